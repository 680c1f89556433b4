//! Somebody who watches what becomes of transactions, and writes it down.
//!
//! He lives in the process of a client, and dies with it. What he has written stays; whoever takes over begins a new
//! page behind the last index that was told to its end.

use std::{
    mem,
    sync::{Arc, Mutex},
};

use verdict_client::{WatchQuery, Watched};

use crate::{
    plan::Place,
    world::{Shared, lock},
};

/// What was told in one life of a watcher's process.
#[derive(Clone, Debug, Default)]
pub struct Page {
    /// Behind which index it begins.
    pub after: u64,
    /// Without the marks.
    pub told: Vec<Watched>,
    /// The last index that was told to its end.
    pub seen: u64,
}

/// All pages, the last one still being written.
#[derive(Debug, Default)]
pub struct Notebook(Mutex<Vec<Page>>);

impl Notebook {
    #[must_use]
    pub fn pages(&self) -> Vec<Page> {
        lock(&self.0).clone()
    }

    /// Turns the page. Where it begins.
    fn turn(&self) -> u64 {
        let mut pages = lock(&self.0);
        let after = pages.last().map_or(0, |page| page.seen);
        pages.push(Page { after, told: Vec::new(), seen: after });
        after
    }

    fn write(&self, watched: Watched, seen: u64) {
        let mut pages = lock(&self.0);
        let Some(page) = pages.last_mut() else { return };
        page.seen = seen;
        if !matches!(watched, Watched::Mark { .. }) {
            page.told.push(watched);
        }
    }
}

/// Watches, as long as its process lives.
pub(crate) async fn watch(shared: Arc<Shared>, place: Place) {
    let after = shared.notebook.turn();
    let mut watch = shared.verdict(place).watch(WatchQuery { after: Some(after), ..WatchQuery::default() });
    let mut silent = false;
    loop {
        match watch.next().await {
            Ok(watched) => {
                shared.history.note(place, format_args!("is told {watched:?}"));
                shared.notebook.write(watched, watch.seen().unwrap_or(after));
                silent = false;
            }
            Err(error) => {
                if !mem::replace(&mut silent, true) {
                    shared.history.note(place, format_args!("is told nothing: {error}"));
                }
            }
        }
    }
}
