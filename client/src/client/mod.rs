//! The client: knows several nodes, follows the leader, retries within a deadline.
//!
//! ```text
//!   Transaction ─▶ Verdict ─▶ call (retry, judge each answer) ─▶ Routes (which node) ─▶ one connection a node
//! ```

mod call;
mod error;
mod follow;
mod handle;
mod local;
mod options;
mod routes;
mod session;
mod status;
mod transaction;
mod watch;

pub(crate) use self::follow::Next;
pub use self::{
    error::{CallError, RefusalCode},
    handle::Verdict,
    local::LocalBranch,
    options::{Backoff, Clock, Options, OptionsError, SystemClock},
    routes::endpoint,
    session::Session,
    status::{
        Begun, Branch, BranchStatus, ClusterStatus, Decision, Enlisted, ListQuery, NodeStatus, Order, Page,
        TransactionStatus,
    },
    transaction::Transaction,
    watch::{Step, Transition, Watch, WatchQuery, Watched},
};
