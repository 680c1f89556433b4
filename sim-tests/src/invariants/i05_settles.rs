//! I5: after healing, every transaction is decided and settled everywhere.

use verdict_protocol::State;

use super::Evidence;
use crate::{history::Answer, run::SETTLES_WITHIN};

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let mut wrong: Vec<String> = match &evidence.healed {
        Ok(_) => Vec::new(),
        Err(open) => open.iter().map(|open| format!("{SETTLES_WITHIN:?} after the last fault: {open}")).collect(),
    };
    for (xid, answer) in &evidence.finals {
        let undecided = match answer {
            Answer::Decided { .. } | Answer::Undecided(State::Expired | State::Unknown) => continue,
            Answer::Undecided(state) => format!("{state:?}"),
            Answer::Done | Answer::Unknown => "without an answer".to_owned(),
            Answer::Refused(code) => code.clone(),
        };
        wrong.push(format!("{xid} is {undecided} at the end"));
    }
    wrong
}
