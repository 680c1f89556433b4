//! The figures side by side, as Markdown.

use std::fmt::Write as _;

use super::{Figures, Situation, classic, hot_row, verdict};

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
