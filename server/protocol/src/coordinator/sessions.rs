//! Instances that have opened a session, and wait until nothing of their predecessors is undecided any more.

use super::{Coordinator, Effect, Reply, Token};
use crate::{Instance, Ledger, Refusal, SessionName};

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Opening {
    pub(super) token: Token,
    pub(super) name: SessionName,
    pub(super) instance: Instance,
}

impl Coordinator {
    /// Answers those that need to wait no more. Of one that was followed meanwhile no epoch is told.
    pub(super) fn answer_openings(&mut self, ledger: &Ledger, effects: &mut Vec<Effect>) {
        self.openings.retain(|Opening { token, name, instance }| {
            let reply = match ledger.session(name, *instance) {
                Some((_, true)) => return true,
                Some((epoch, false)) => Reply::Session { epoch },
                None => Reply::Refused(Refusal::Fenced),
            };
            effects.push(Effect::Reply { token: *token, reply });
            false
        });
    }
}
