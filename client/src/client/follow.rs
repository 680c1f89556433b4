//! Where a stream that is kept to the leader goes next. A call ends with its answer; a stream is opened again and again.

use std::time::Duration;

use tokio::time::Instant;
use tonic::{Status, transport::Channel};

use super::{
    RefusalCode,
    call::Caller,
    error::{Judgement, judge},
};
use crate::wire;

/// What to do when a stream was not opened, or has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Another node was named that is to be tried.
    AtOnce,
    /// Not before this, and not before the caller's own backoff.
    NotBefore(Duration),
    /// The cluster refuses it, as it is configured now.
    Refused(RefusalCode),
}

impl Caller {
    /// The node to open it at.
    pub(crate) fn next_node(&self) -> (String, Channel) {
        self.shared().routes.pick(Instant::now())
    }

    /// It is open: that node leads.
    pub(crate) fn opened_at(&self, node: &str) {
        self.shared().routes.answered(node, None, Instant::now());
    }

    /// It was not opened at a node that was tried at `since`, or ended there.
    pub(crate) fn ended_at(&self, node: &str, since: Instant, status: &Status) -> Next {
        match judge(status) {
            Judgement::Refused(code) => Next::Refused(code),
            Judgement::Overloaded { retry_after } => Next::NotBefore(retry_after),
            Judgement::NotLeader { leader, retry_after } => {
                if self.turn_away(node, leader.as_deref()) {
                    Next::AtOnce
                } else {
                    Next::NotBefore(retry_after)
                }
            }
            Judgement::Unanswered { leader, retry_after } => {
                if wire::detail(status).is_some() {
                    self.turn_away(node, leader.as_deref());
                } else {
                    self.shared().routes.unanswered(node, since, Instant::now());
                }
                Next::NotBefore(retry_after)
            }
        }
    }
}
