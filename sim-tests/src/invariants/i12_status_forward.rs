//! I12: a status read never goes back in time: once anybody has heard an outcome, whoever asks then hears it too.

use std::collections::BTreeMap;

use verdict_protocol::State;

use super::Evidence;
use crate::history::{Answer, What};

pub(super) fn check(evidence: &Evidence) -> Vec<String> {
    let mut decided = BTreeMap::new();
    let mut asked = BTreeMap::new();
    let mut wrong = Vec::new();
    for event in &evidence.events {
        match &event.what {
            What::Asked { call, .. } => drop(asked.insert(*call, event.at)),
            What::Answered { xid, answer: Answer::Decided { .. }, .. } => {
                decided.entry(*xid).or_insert(event.at);
            }
            What::Answered { call, xid, answer: Answer::Undecided(state), .. } if *state != State::Expired => {
                let since = decided.get(xid);
                if since.is_some_and(|since| asked.get(call).is_some_and(|asked| asked > since)) {
                    wrong.push(format!("{xid} was decided at {since:?}; asked later, {} heard {state:?}", event.who));
                }
            }
            _ => {}
        }
    }
    wrong
}
