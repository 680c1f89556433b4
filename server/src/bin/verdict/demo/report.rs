//! What it came to, for people and for programs.

use std::{collections::BTreeMap, fmt::Write as _, io, path::Path, time::Duration};

use serde::Serialize;
use verdict_client::ReasonCode;

use super::{
    audit::Audit,
    board::Board,
    faults::Fault,
    load::{Account, Answer},
};
use crate::client::{grouped, short};

#[derive(Debug, Serialize)]
pub(super) struct Report {
    pub(super) holds: bool,
    /// In doubt at the end: in the cluster and in the three databases.
    in_doubt: u64,
    lines: u64,
    committed: u64,
    aborted: u64,
    /// Why lines were not booked, and how many.
    reasons: BTreeMap<String, u64>,
    /// Transactions that were aborted for no reason of the business: a deadline, a lost client.
    aborted_by_faults: u64,
    /// Transactions that were aborted for a passing reason and tried again as new ones.
    retried: u64,
    /// Commit calls that ended without an answer and were made again until there was one.
    asked_again: u64,
    seconds: f64,
    commits_per_second: f64,
    commit_ms: Latency,
    faults: Vec<Fault>,
    /// By what seats, tickets and the wallet were kept.
    databases: BTreeMap<&'static str, String>,
    audit: Audit,
}

/// Of commits, from asking to the answer, in milliseconds.
#[derive(Clone, Copy, Debug, Serialize)]
struct Latency {
    p50: f64,
    p90: f64,
    p99: f64,
    max: f64,
}

impl Report {
    pub(super) fn new(
        accounts: &[Account],
        took: Duration,
        board: &Board,
        faults: Vec<Fault>,
        audit: Audit,
        databases: BTreeMap<&'static str, String>,
    ) -> Self {
        let ms = |quantile| (board.latency(quantile).as_secs_f64() * 100_000.0).round() / 100.0;
        let firsts = firsts(accounts);
        let mut reasons = BTreeMap::new();
        let mut by_faults = 0;
        for account in accounts {
            if let Some(Reason { word, by_fault, .. }) = reason(account, &firsts) {
                *reasons.entry(word).or_default() += 1;
                by_faults += u64::from(by_fault);
            }
        }
        let counts = board.counts();
        let committed = counts.committed as f64;
        Self {
            holds: audit.holds,
            in_doubt: audit.in_doubt,
            lines: accounts.len() as u64,
            committed: counts.committed as u64,
            aborted: counts.aborted as u64,
            reasons,
            aborted_by_faults: by_faults,
            retried: counts.retried as u64,
            asked_again: counts.unknown as u64,
            seconds: (took.as_secs_f64() * 1_000.0).round() / 1_000.0,
            commits_per_second: (committed / took.as_secs_f64()).round(),
            commit_ms: Latency { p50: ms(0.5), p90: ms(0.9), p99: ms(0.99), max: ms(1.0) },
            faults,
            databases,
            audit,
        }
    }

    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = self.write(&mut text);
        text
    }

    fn write(&self, text: &mut String) -> std::fmt::Result {
        let (lines, committed, aborted) = (grouped(self.lines), grouped(self.committed), grouped(self.aborted));
        writeln!(text, "\nBookings: {lines} lines, {committed} booked, {aborted} not")?;
        let mut reasons: Vec<_> = self.reasons.iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (reason, count) in reasons {
            writeln!(text, "  {:>6}  {reason}", grouped(*count))?;
        }
        writeln!(
            text,
            "  {:>6}  rolled back because of a fault; {} tried again; {} times asked again for want of an answer",
            self.aborted_by_faults, self.retried, self.asked_again
        )?;
        writeln!(text, "\nFaults")?;
        for fault in &self.faults {
            let gap = Duration::from_millis(fault.longest_gap_ms);
            let leader = match (fault.new_leader, fault.new_leader_after_ms) {
                (Some(leader), Some(ms)) => format!("node {leader} led after {}, ", short(Duration::from_millis(ms))),
                _ => String::new(),
            };
            writeln!(text, "  {}", fault.what)?;
            let committed = match fault.committed_after_ms {
                Some(ms) => format!("committed again after {}", short(Duration::from_millis(ms))),
                None => "nothing was left to commit".to_owned(),
            };
            writeln!(text, "          {leader}{committed}; longest time without a commit {}", short(gap))?;
        }
        let Latency { p50, p90, p99, max } = self.commit_ms;
        writeln!(
            text,
            "\nCommit: p50 {p50:.1} ms, p90 {p90:.1} ms, p99 {p99:.1} ms, longest {max:.0} ms\n        {} a second over {:.1} s, \
             in which bookings came slowly while a fault was on",
            self.commits_per_second, self.seconds
        )?;
        let kept: Vec<String> = self.databases.iter().map(|(kind, by)| format!("{kind} in {by}")).collect();
        writeln!(text, "\nAudit of the three databases: {}", kept.join(", "))?;
        for check in &self.audit.checks {
            let mark = if check.holds { "ok  " } else { "FAIL" };
            writeln!(text, "  {mark}  {}\n          {}", check.name, check.detail)?;
        }
        writeln!(text, "\n{}", if self.holds { "The audit holds." } else { "The audit does NOT hold." })
    }
}

struct Reason {
    /// In a word or two.
    word: String,
    /// In a sentence.
    text: String,
    by_fault: bool,
}

/// Which line booked each order.
fn firsts(accounts: &[Account]) -> BTreeMap<&str, u64> {
    let booked = accounts.iter().filter(|account| matches!(account.answer, Answer::Committed));
    booked.map(|account| (account.line.order.order_id.as_str(), account.line.number)).collect()
}

/// Why a line was not booked.
fn reason(account: &Account, firsts: &BTreeMap<&str, u64>) -> Option<Reason> {
    let by = |word: &str, text: String, by_fault| Some(Reason { word: word.to_owned(), text, by_fault });
    match &account.answer {
        Answer::Committed => None,
        Answer::Refused(text) => by("refused by the cluster", text.clone(), false),
        Answer::Aborted(None) => by("no reason given", String::new(), false),
        Answer::Aborted(Some(reason)) => {
            if let Some(first) = firsts.get(account.line.order.order_id.as_str()) {
                return by("REPEATED_ORDER", format!("line {first} booked this order; {}", reason.text), false);
            }
            match reason.code {
                ReasonCode::Refused if !reason.source_code.is_empty() => {
                    by(&reason.source_code, reason.text.clone(), false)
                }
                code => by(&code.to_string(), reason.text.clone(), code != ReasonCode::Refused),
            }
        }
    }
}

/// Writes what became of each line of the file, as CSV.
pub(super) fn write_outcomes(path: &Path, accounts: &[Account]) -> io::Result<()> {
    let firsts = firsts(accounts);
    let mut csv = csv::Writer::from_path(path)?;
    csv.write_record(["line", "order_id", "outcome", "reason", "text", "xid", "attempts"])?;
    for account in accounts {
        let outcome = match account.answer {
            Answer::Committed => "COMMITTED",
            Answer::Aborted(_) => "ABORTED",
            Answer::Refused(_) => "ERROR",
        };
        let (word, text) = reason(account, &firsts).map_or_else(Default::default, |reason| (reason.word, reason.text));
        csv.write_record([
            &account.line.number.to_string(),
            &account.line.order.order_id,
            outcome,
            &word,
            &text,
            &account.xid.to_string(),
            &account.attempts.to_string(),
        ])?;
    }
    csv.flush()
}
