//! The driver: one thread or task owns the files and does what is queued, in order.
//!
//! ```text
//!   LogWriter::append ─┐            ┌─ drains the queue: appends that wait become one batch
//!   save_ballot        ├─► queue ──►│  stage → write → sync → complete
//!   truncate, purge    │  bounded   └─ then answers: on_flushed for each append, in order
//!   read (old records) ┘
//!       └► tail: new records, readable at once
//! ```
//!
//! Promise: operations take effect in the order in which they were queued; an append is answered with success only
//! after the sync that made it durable. After the first failure every operation, queued or new, is answered with it,
//! and nothing is acknowledged any more; reading goes on.
//!
//! In production a thread of its own drives the files, so that no sync blocks the asynchronous runtime; in simulation
//! a task does, which sleeps where a disk would take its time. Both run the same steps.

mod engine;
mod handle;
mod spawn;

pub use handle::{Flushed, LogWriter, WriterOptions};
pub use spawn::{Pace, Spawn};
