//! For tests: a disk in memory that fails like a real one.

mod sim_disk;
mod sim_state;

pub use sim_disk::{Mount, SimDisk};
pub use sim_state::{DiskEvent, DiskStats};
