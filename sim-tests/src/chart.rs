//! What a seed looked like: who led, who was down, and which faults struck, as bars over simulated time.

use std::{collections::BTreeMap, time::Duration};

use serde::Serialize;

use crate::{
    history::{Event, What},
    plan::Place,
};

/// The bars of a seed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Chart {
    /// In milliseconds of simulated time, as everything here.
    pub length: u64,
    /// From when on nothing struck any more.
    pub faults_end: Option<u64>,
    pub rows: Vec<Row>,
}

/// A place, or a kind of fault.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    pub name: String,
    pub bars: Vec<Bar>,
}

#[derive(Clone, Debug, Serialize)]
pub struct Bar {
    pub kind: Kind,
    pub from: u64,
    pub to: u64,
    pub what: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    Leads,
    Down,
    Fault,
}

/// Bars that have begun and not ended.
struct Open {
    rows: BTreeMap<String, Vec<Bar>>,
    begun: BTreeMap<(String, Kind), (u64, String)>,
}

impl Open {
    fn begin(&mut self, row: &str, kind: Kind, at: u64, what: String) {
        self.begun.entry((row.to_owned(), kind)).or_insert((at, what));
    }

    fn end(&mut self, row: &str, kind: Kind, to: u64) {
        if let Some((from, what)) = self.begun.remove(&(row.to_owned(), kind)) {
            self.rows.entry(row.to_owned()).or_default().push(Bar { kind, from, to, what });
        }
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl Chart {
    /// What these events look like.
    #[must_use]
    pub fn of(events: &[Event]) -> Self {
        let length = events.last().map_or(0, |last| millis(last.at));
        let mut open = Open { rows: BTreeMap::new(), begun: BTreeMap::new() };
        let nodes = events.iter().filter(|event| matches!(event.who, Place::Node(_)));
        open.rows.extend(nodes.map(|event| (event.who.to_string(), Vec::new())));
        let mut faults_end = None;
        for Event { at, who, what } in events {
            let (at, place) = (millis(*at), who.to_string());
            match what {
                What::Killed { .. } | What::Stopped(_) => {
                    open.end(&place, Kind::Leads, at);
                    open.begin(&place, Kind::Down, at, what.to_string());
                }
                What::Started => open.end(&place, Kind::Down, at),
                What::Leads { .. } => {
                    let others: Vec<String> = open.begun.keys().map(|(row, _)| row.clone()).collect();
                    others.iter().for_each(|other| open.end(other, Kind::Leads, at));
                    open.begin(&place, Kind::Leads, at, what.to_string());
                }
                What::Strikes(fault) => open.begin(&fault.to_string(), Kind::Fault, at, fault.to_string()),
                What::Passes(fault) => open.end(&fault.to_string(), Kind::Fault, at),
                What::FaultsEnd => {
                    faults_end = Some(at);
                    let begun: Vec<_> = open.begun.keys().cloned().collect();
                    for (row, kind) in begun.into_iter().filter(|(_, kind)| *kind == Kind::Fault) {
                        open.end(&row, kind, at);
                    }
                }
                _ => {}
            }
        }
        for (row, kind) in open.begun.keys().cloned().collect::<Vec<_>>() {
            open.end(&row, kind, length);
        }
        let mut rows: Vec<Row> = open.rows.into_iter().map(|(name, bars)| Row { name, bars }).collect();
        // Nodes, other places, faults; each by name, as they are.
        let is_fault = |row: &Row| row.bars.iter().any(|bar| bar.kind == Kind::Fault);
        rows.sort_by_key(|row| (is_fault(row), !row.name.starts_with("node-")));
        Self { length, faults_end, rows }
    }
}
