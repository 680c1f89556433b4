//! Whom a participant believes: one cluster, its newest incarnation, its newest term.

use verdict_protocol::{ClusterId, LogTime, Xid};

use super::{NotAnswered, Stamp};

/// What a message asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// A new promise: only the newest term may ask for it.
    Promise,
    /// An outcome, which never changes: taken at any term.
    Outcome,
}

/// The newest stamp seen. Only who asks for a promise raises the term: it leads, whereas an outcome may be spoken by
/// any node, also one that stands for election and fails. Cluster and incarnation must be durable before anything that
/// they admitted is answered; the horizon before anything that it allowed to drop is dropped; the term need not be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fence {
    /// None until the first message, whose cluster is then the only one.
    pub cluster: Option<ClusterId>,
    pub incarnation: u64,
    pub term: u64,
    pub horizon: LogTime,
}

impl Fence {
    /// Takes note of a message's stamp. True if cluster or incarnation changed and must be made durable.
    ///
    /// # Errors
    /// [`NotAnswered`] naming what is wrong with a message of another cluster, of an older incarnation or, if it
    /// asks for a promise, of an older term. The fence is then unchanged.
    pub fn admit(&mut self, stamp: &Stamp, purpose: Purpose) -> Result<bool, NotAnswered> {
        if let Some(own) = self.cluster.filter(|own| *own != stamp.cluster) {
            return Err(NotAnswered::WrongCluster { own, other: stamp.cluster });
        }
        if stamp.incarnation < self.incarnation {
            return Err(NotAnswered::StaleIncarnation { message: stamp.incarnation, seen: self.incarnation });
        }
        let restored = stamp.incarnation > self.incarnation;
        if !restored && stamp.term < self.term && purpose == Purpose::Promise {
            return Err(NotAnswered::StaleTerm { message: stamp.term, seen: self.term });
        }
        let changed = restored || self.cluster.is_none();
        self.cluster = Some(stamp.cluster);
        self.incarnation = stamp.incarnation;
        if restored {
            self.term = 0;
        }
        if purpose == Purpose::Promise {
            self.term = self.term.max(stamp.term);
        }
        self.horizon = self.horizon.max(stamp.horizon);
        Ok(changed)
    }

    /// Adds what need not be durable, to a fence that was read from where it is: the term of its incarnation, and the horizon.
    pub fn recall(&mut self, seen: &Self) {
        self.horizon = self.horizon.max(seen.horizon);
        if self.incarnation == seen.incarnation {
            self.term = self.term.max(seen.term);
        }
    }

    /// Takes over what another fence has seen, unless it is of an older incarnation.
    pub fn learn(&mut self, other: &Self) {
        if other.incarnation >= self.incarnation {
            let seen = std::mem::replace(self, *other);
            self.recall(&seen);
        }
    }

    /// Whether an unknown branch of this transaction can never commit any more.
    #[must_use]
    pub fn expired(&self, xid: Xid) -> bool {
        xid.birth() < self.horizon
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp(cluster: u8, incarnation: u64, term: u64, horizon: u64) -> Stamp {
        Stamp { cluster: ClusterId([cluster; 16]), incarnation, term, horizon: LogTime::from_millis(horizon) }
    }

    #[test]
    fn incarnation_is_compared_before_term() {
        let mut fence = Fence::default();
        assert!(fence.admit(&stamp(1, 1, 90, 5), Purpose::Promise).is_ok_and(|changed| changed));
        assert!(fence.admit(&stamp(1, 2, 3, 4), Purpose::Promise).is_ok_and(|changed| changed));
        assert_eq!((fence.term, fence.horizon), (3, LogTime::from_millis(5)));
        let stale = fence.admit(&stamp(1, 1, 91, 9), Purpose::Outcome);
        assert!(matches!(stale, Err(NotAnswered::StaleIncarnation { message: 1, seen: 2 })));
    }

    #[test]
    fn outcomes_pass_at_any_term_and_promises_do_not() {
        let mut fence = Fence::default();
        assert!(fence.admit(&stamp(1, 1, 7, 0), Purpose::Promise).is_ok());
        assert!(fence.admit(&stamp(1, 1, 6, 0), Purpose::Outcome).is_ok_and(|changed| !changed));
        assert!(fence.admit(&stamp(1, 1, 8, 0), Purpose::Outcome).is_ok_and(|changed| !changed));
        assert_eq!(fence.term, 7);
        let stale = fence.admit(&stamp(1, 1, 6, 0), Purpose::Promise);
        assert!(matches!(stale, Err(NotAnswered::StaleTerm { message: 6, seen: 7 })));
    }

    #[test]
    fn another_cluster_changes_nothing() {
        let mut fence = Fence::default();
        assert!(fence.admit(&stamp(1, 1, 7, 3), Purpose::Promise).is_ok());
        let before = fence;
        assert!(matches!(fence.admit(&stamp(2, 9, 9, 9), Purpose::Outcome), Err(NotAnswered::WrongCluster { .. })));
        assert_eq!(fence, before);
    }
}
