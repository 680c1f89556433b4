//! Who runs the steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::mpsc;

use super::engine::{Engine, Op, Step};
use crate::files::error::StorageError;
use crate::files::spare::Spare;

/// Who drives the files.
#[derive(Debug, Clone)]
pub enum Spawn {
    /// A thread of its own, for a real disk.
    Thread,
    /// A task of the current asynchronous runtime, for a disk in memory: it sleeps so long before a write is done and
    /// before a sync is done.
    Task { write: Duration, sync: Duration },
    /// The same with writes that take no time, and syncs that take as long as the pace says when they begin: a disk
    /// that stalls now and then.
    PacedTask(Pace),
}

/// How long a sync takes from now on. Clones are the same pace.
#[derive(Debug, Clone, Default)]
pub struct Pace(Arc<AtomicU64>);

impl Pace {
    /// In whole microseconds.
    pub fn set(&self, sync: Duration) {
        self.0.store(u64::try_from(sync.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub fn sync(&self) -> Duration {
        Duration::from_micros(self.0.load(Ordering::Relaxed))
    }
}

pub(super) fn spawn(how: Spawn, engine: Engine, queue: mpsc::Receiver<Op>) -> Result<(), StorageError> {
    match how {
        Spawn::Thread => {
            let name = "verdict-log".to_owned();
            let spawned = std::thread::Builder::new().name(name).spawn(move || on_thread(engine, queue));
            spawned.map(drop).map_err(|e| StorageError::of("starting a thread for", "the log", e))
        }
        Spawn::Task { write, sync } => {
            drop(tokio::spawn(as_task(engine, queue, write, move || sync)));
            Ok(())
        }
        Spawn::PacedTask(pace) => {
            drop(tokio::spawn(as_task(engine, queue, Duration::ZERO, move || pace.sync())));
            Ok(())
        }
    }
}

fn on_thread(mut engine: Engine, mut queue: mpsc::Receiver<Op>) {
    let mut maker = SpareMaker::default();
    while let Some(op) = queue.blocking_recv() {
        engine.take(op);
        engine.take_more(&mut queue);
        while engine.step().is_some() {
            engine.take_more(&mut queue);
        }
        maker.tend(&mut engine);
        engine.tell_closed();
    }
}

/// Makes spare segments on a thread of its own, one at a time. It ends with this.
#[derive(Default)]
struct SpareMaker {
    making: Option<JoinHandle<Option<Spare>>>,
    stop: Arc<AtomicBool>,
    /// Behind this segment it was tried.
    tried: Option<u64>,
}

impl SpareMaker {
    fn tend(&mut self, engine: &mut Engine) {
        let Some(log) = engine.log() else { return self.end() };
        if let Some(making) = self.making.take_if(|making| making.is_finished()) {
            // Without one the log makes its segment itself, and says what is wrong.
            if let Ok(Some(spare)) = making.join() {
                log.give_spare(spare);
            }
        }
        if self.making.is_none()
            && let Some(plan) = log.spare_plan()
            && self.tried != Some(plan.after_segment)
        {
            self.tried = Some(plan.after_segment);
            let stop = self.stop.clone();
            let make = move || plan.make(&stop).ok().flatten();
            self.making = std::thread::Builder::new().name("verdict-spare".to_owned()).spawn(make).ok();
        }
    }

    fn end(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(making) = self.making.take() {
            drop(making.join());
        }
    }
}

impl Drop for SpareMaker {
    fn drop(&mut self) {
        self.end();
    }
}

async fn as_task(mut engine: Engine, mut queue: mpsc::Receiver<Op>, write: Duration, sync: impl Fn() -> Duration) {
    while let Some(op) = queue.recv().await {
        engine.take(op);
        engine.take_more(&mut queue);
        while let Some(next) = engine.step() {
            let pause = match next {
                Step::Write => write,
                Step::Sync => sync(),
                Step::Other => Duration::ZERO,
            };
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
            engine.take_more(&mut queue);
        }
        engine.tell_closed();
    }
}
