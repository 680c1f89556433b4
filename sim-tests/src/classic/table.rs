//! The figures side by side, as Markdown.

use std::{fmt::Write as _, fs, io};

use super::{Figures, Situation, classic, hot_row, verdict};

/// The page that has the table, and the marks it stands between.
pub const README: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
const MARKS: (&str, &str) = ("<!-- scenarios -->\n", "<!-- /scenarios -->");

/// Puts the table into README.md.
///
/// # Errors
/// It can't be read or written, or does not have the marks.
pub fn record(table: &str) -> io::Result<()> {
    let page = fs::read_to_string(README)?;
    let lacks = || io::Error::other(format!("it has no line {:?}, or none {:?} after it", MARKS.0.trim(), MARKS.1));
    let (before, rest) = page.split_once(MARKS.0).ok_or_else(lacks)?;
    let (_, after) = rest.split_once(MARKS.1).ok_or_else(lacks)?;
    fs::write(README, format!("{before}{}\n{table}\n{}{after}", MARKS.0, MARKS.1))
}

/// The table, as README.md has it.
#[must_use]
pub fn table() -> String {
    let mut text =
        "| situation | coordinator | outcome | decision sent | locks free | locks held | acknowledged | messages | \
                    forced writes |\n|---|---|---|--:|--:|--:|--:|--:|--:|\n"
            .to_owned();
    for situation in Situation::ALL {
        for (who, figures) in [("classic", classic(situation)), ("Verdict", verdict(situation))] {
            let Figures { outcome, sent, free, held, acknowledged, .. } = figures;
            let and = |own: usize, nodes: usize| if nodes == 0 { own.to_string() } else { format!("{own} + {nodes}") };
            let messages = and(figures.messages, figures.peer_messages);
            let forced = and(figures.forced, figures.node_forced);
            let _ = writeln!(
                text,
                "| {situation} | {who} | {outcome} | {sent} | {free} | {held} | {acknowledged} | {messages} | {forced} |"
            );
        }
    }
    let (classic, verdict) = hot_row();
    let _ = writeln!(text, "\nCommits a second on one hot row: {classic} (classic), {verdict} (Verdict).");
    text
}
