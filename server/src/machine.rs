//! The ledger as the replicated log's state machine.

use std::sync::Arc;

use bytes::Bytes;
use verdict_protocol::{Entry, Event, Frozen, Thawed, encode_answers};
use verdict_raft_log::{DecodeError, Machine, Position, Section};

use crate::{engine::Engine, recent::Recent};

/// Applies entries to the engine's ledger, and keeps what they changed for whoever watches.
#[derive(Debug)]
pub(crate) struct LedgerMachine {
    pub(crate) engine: Arc<Engine>,
    pub(crate) recent: Arc<Recent>,
}

impl Machine for LedgerMachine {
    type Frozen = Frozen;
    type Thawed = Thawed;

    /// # Panics
    /// On an entry that this version cannot read: going on would make another ledger than the other nodes'.
    fn apply(&mut self, at: Position, entry: Bytes) -> Bytes {
        let entry = match Entry::decode(&entry) {
            Ok(entry) => entry,
            Err(error) => panic!("the entry at {at} cannot be applied: {error}"),
        };
        let (answers, time, transitions) = self.engine.apply(|ledger| {
            let applied = ledger.apply(at.index, &entry);
            let result = (encode_answers(&applied.answers), ledger.at(), applied.transitions);
            (result, Event::Applied { changes: applied.changes })
        });
        self.recent.push(at.index, time, transitions);
        answers
    }

    fn freeze(&mut self) -> Frozen {
        self.engine.with_ledger(|ledger| ledger.freeze())
    }

    fn encode(frozen: Frozen) -> Vec<Section> {
        frozen.sections().into_iter().map(|(id, body)| Section { id, body }).collect()
    }

    fn decode(sections: Vec<(String, Bytes)>) -> Result<Thawed, DecodeError> {
        Thawed::decode(sections).map_err(|error| DecodeError::caused_by("the ledger's snapshot", error))
    }

    fn thaw(&mut self, thawed: Thawed) {
        let index = self.engine.with_ledger(|ledger| {
            ledger.thaw(thawed);
            ledger.index()
        });
        self.recent.replaced(index);
    }
}
