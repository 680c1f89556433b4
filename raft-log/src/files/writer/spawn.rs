//! Who runs the steps.

use std::time::Duration;

use tokio::sync::mpsc;

use super::engine::{Engine, Op, Step};
use crate::files::error::StorageError;

/// Who drives the files.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Spawn {
    /// A thread of its own, for a real disk.
    Thread,
    /// A task of the current asynchronous runtime, for a disk in memory: it sleeps so long before a write is done and
    /// before a sync is done.
    Task { write: Duration, sync: Duration },
}

pub(super) fn spawn(how: Spawn, engine: Engine, queue: mpsc::Receiver<Op>) -> Result<(), StorageError> {
    match how {
        Spawn::Thread => {
            let name = "verdict-log".to_owned();
            let spawned = std::thread::Builder::new().name(name).spawn(move || on_thread(engine, queue));
            spawned.map(drop).map_err(|e| StorageError::of("starting a thread for", "the log", e))
        }
        Spawn::Task { write, sync } => {
            drop(tokio::spawn(as_task(engine, queue, write, sync)));
            Ok(())
        }
    }
}

fn on_thread(mut engine: Engine, mut queue: mpsc::Receiver<Op>) {
    while let Some(op) = queue.blocking_recv() {
        engine.take(op);
        engine.take_more(&mut queue);
        while engine.step().is_some() {
            engine.take_more(&mut queue);
        }
    }
}

async fn as_task(mut engine: Engine, mut queue: mpsc::Receiver<Op>, write: Duration, sync: Duration) {
    while let Some(op) = queue.recv().await {
        engine.take(op);
        engine.take_more(&mut queue);
        while let Some(next) = engine.step() {
            let pause = match next {
                Step::Write => write,
                Step::Sync => sync,
                Step::Other => Duration::ZERO,
            };
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            engine.take_more(&mut queue);
        }
    }
}
