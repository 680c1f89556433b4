//! Which instance of a client works under a name, and the fence against its predecessors.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use serde::{Deserialize, Serialize};

use super::{Change, Ledger, Phase};
use crate::{Answer, Instance, Key, LogTime, Outcome, Reason, ReasonCode, Refusal, SessionName, SessionRef, Xid};

/// Predecessors that are remembered, the last ones: a late message of one of them must not open the session again.
const MOST_PAST: usize = 64;

/// A session as all nodes know it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Session {
    pub(super) epoch: u64,
    instance: Instance,
    /// Predecessors, the oldest first.
    past: Vec<Instance>,
    touched: LogTime,
    /// Its undecided transactions.
    #[serde(skip)]
    pub(super) undecided: BTreeSet<Xid>,
}

pub(super) type Sessions = BTreeMap<SessionName, Session>;

impl Ledger {
    pub(super) fn open_session(&mut self, name: &SessionName, instance: Instance, changes: &mut Vec<Change>) -> Answer {
        let (at, horizon, most) = (self.at, self.horizon(), self.rules.max_sessions);
        if !self.sessions.contains_key(name) && self.sessions.len() as u64 >= most {
            // Whoever comes back to a session that is forgotten is fenced, and opens it again.
            self.sessions.retain(|_, session| session.touched >= horizon || !session.undecided.is_empty());
            if self.sessions.len() as u64 >= most {
                return Err(Refusal::Limit { what: "sessions".to_owned(), limit: most });
            }
        }
        let new = || Session { epoch: 1, instance, past: Vec::new(), touched: at, undecided: BTreeSet::new() };
        let session = self.sessions.entry(name.clone()).or_insert_with(new);
        if session.instance != instance {
            if session.past.contains(&instance) {
                return Err(Refusal::Fenced);
            }
            if session.past.len() >= MOST_PAST {
                session.past.remove(0);
            }
            session.past.push(std::mem::replace(&mut session.instance, instance));
            session.epoch += 1;
        }
        session.touched = at;
        let undecided: Vec<Xid> = session.undecided.iter().copied().collect();
        for xid in undecided {
            let active = self.transaction(xid).is_some_and(|open| matches!(open.phase, Phase::Active { .. }));
            if active && self.is_of_a_predecessor(xid) {
                let reason = Reason::new(ReasonCode::Fenced, format!("another instance has opened session {name}"));
                self.decide(xid, Outcome::Aborted, Some(reason), changes);
            }
        }
        Ok(())
    }

    /// Whether work under this session may begin; it counts as a sign of life.
    pub(super) fn admit(&mut self, session: Option<&SessionRef>) -> Answer {
        let Some(SessionRef { name, epoch }) = session else { return Ok(()) };
        match self.sessions.get_mut(name) {
            Some(known) if known.epoch == *epoch => {
                known.touched = self.at;
                Ok(())
            }
            Some(_) | None => Err(Refusal::Fenced),
        }
    }

    /// Whether work under this session may begin, as the ledger stands.
    pub(super) fn is_current(&self, session: Option<&SessionRef>) -> bool {
        session.is_none_or(|of| self.sessions.get(&of.name).is_some_and(|known| known.epoch == of.epoch))
    }

    /// The epoch in which this instance has opened a session, and whether a predecessor's transaction is still undecided;
    /// none if another one has opened it since.
    #[must_use]
    pub fn session(&self, name: &SessionName, instance: Instance) -> Option<(u64, bool)> {
        let session = self.sessions.get(name).filter(|session| session.instance == instance)?;
        let waits = session.undecided.iter().any(|xid| self.is_of_a_predecessor(*xid));
        Some((session.epoch, waits))
    }

    /// A transaction that begins, or is asked to commit, under a session.
    pub(super) fn works_under(&mut self, xid: Xid, session: Option<&SessionRef>) {
        let Some(session) = session else { return };
        let Some(open) = self.open.get_mut(&xid).map(Arc::make_mut) else { return };
        open.session = Some(session.clone());
        let undecided = !matches!(open.phase, Phase::Decided { .. });
        if let Some(known) = self.sessions.get_mut(&session.name).filter(|_| undecided) {
            known.undecided.insert(xid);
        }
    }

    /// A transaction that is decided frees its key, or keeps it for good, and holds its session up no more.
    pub(super) fn stops_working(
        &mut self,
        xid: Xid,
        key: Option<&Key>,
        session: Option<&SessionRef>,
        outcome: Outcome,
    ) {
        if let Some(key) = key {
            self.keys.decided(key, outcome, self.at, self.index, &self.rules);
        }
        if let Some(session) = session.and_then(|session| self.sessions.get_mut(&session.name)) {
            session.undecided.remove(&xid);
        }
    }

    fn is_of_a_predecessor(&self, xid: Xid) -> bool {
        let of = self.transaction(xid).and_then(|open| open.session.as_ref());
        of.is_some_and(|of| self.sessions.get(&of.name).is_some_and(|session| session.epoch > of.epoch))
    }
}
