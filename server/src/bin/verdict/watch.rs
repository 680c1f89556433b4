//! `verdict tx watch`: a line for each step, until it is interrupted.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use clap::Args;
use serde::Serialize;
use verdict_client::{ResourceName, Step, Transition, WatchQuery, Watched, Xid};

use crate::{
    client::{AskError, Format, Target},
    tx::{OutcomeWord, ReasonView, outcome_word, reason_text, reason_view, settlement_word},
};

#[derive(Debug, Args)]
pub(crate) struct Watch {
    /// Begin behind this index of the log; 0 begins with the oldest that is kept. Without it: with what happens from now
    /// on.
    #[arg(long, value_name = "INDEX")]
    after: Option<u64>,
    /// Only this transaction.
    #[arg(long)]
    xid: Option<String>,
    /// Only transactions with a branch at this resource, and the branches there.
    #[arg(long, value_name = "NAME")]
    resource: Option<String>,
    /// Only decisions with this outcome.
    #[arg(long, value_enum)]
    outcome: Option<OutcomeWord>,
    #[command(flatten)]
    target: Target,
}

#[derive(Debug, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
enum EventView {
    Transition(TransitionView),
    Gap { first: u64, last: u64 },
    Mark { index: u64 },
}

#[derive(Debug, Serialize)]
struct TransitionView {
    index: u64,
    number: u32,
    at_ms: u64,
    xid: String,
    step: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    branch: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    outcome: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<ReasonView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    settlement: Option<&'static str>,
    resources: Vec<String>,
}

impl Watch {
    pub(crate) async fn run(self) -> Result<ExitCode, AskError> {
        let xid = self.xid.as_deref().map(Xid::parse).transpose()?;
        let resource = self.resource.map(ResourceName::try_from).transpose()?;
        let query = WatchQuery { after: self.after, xid, resource, outcome: self.outcome.map(Into::into) };
        let mut watch = self.target.connect()?.watch(query);
        loop {
            let event = view(watch.next().await?);
            let line = match (self.target.output, &event) {
                (Format::Json, event) => serde_json::to_string(event).map_err(io::Error::other)?,
                // Only a program goes on behind an index at which nothing happened.
                (Format::Text, EventView::Mark { .. }) => continue,
                (Format::Text, event) => text(event),
            };
            let mut out = io::stdout().lock();
            match writeln!(out, "{line}").and_then(|()| out.flush()) {
                // Whoever read it has seen enough.
                Err(error) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(ExitCode::SUCCESS),
                written => written?,
            }
        }
    }
}

fn view(watched: Watched) -> EventView {
    let Transition { index, number, at, xid, resources, step } = match watched {
        Watched::Transition(transition) => transition,
        Watched::Gap { first, last } => return EventView::Gap { first, last },
        Watched::Mark { index } => return EventView::Mark { index },
    };
    let mut view = TransitionView {
        index,
        number,
        at_ms: at.as_millis(),
        xid: xid.to_string(),
        step: step_word(&step),
        branch: None,
        outcome: None,
        reason: None,
        settlement: None,
        resources: resources.into_iter().map(String::from).collect(),
    };
    match step {
        Step::Begun | Step::Voting | Step::Ended => {}
        Step::Delegated { branch } | Step::PromiseBroken { branch } => view.branch = Some(branch),
        Step::Decided { outcome, reason } => {
            (view.outcome, view.reason) = (Some(outcome_word(outcome)), reason.map(reason_view));
        }
        Step::Settled { branch, settlement } => {
            (view.branch, view.settlement) = (Some(branch), Some(settlement_word(settlement)));
        }
    }
    EventView::Transition(view)
}

fn text(event: &EventView) -> String {
    let view = match event {
        EventView::Transition(view) => view,
        EventView::Gap { first, last } => {
            return format!("{last:>8}  what happened from {first} to {last} is not kept");
        }
        EventView::Mark { index } => return format!("{index:>8}"),
    };
    let mut line = format!("{:>8}  {}  {:<14}", view.index, view.xid, view.step);
    let details = [
        view.outcome.map(str::to_owned),
        view.reason.as_ref().map(reason_text),
        view.branch.map(|branch| format!("branch {branch}")),
        view.settlement.map(str::to_owned),
        Some(view.resources.join(", ")).filter(|names| !names.is_empty()),
    ];
    for detail in details.into_iter().flatten() {
        line.push_str("  ");
        line.push_str(&detail);
    }
    line.trim_end().to_owned()
}

fn step_word(step: &Step) -> &'static str {
    match step {
        Step::Begun => "BEGUN",
        Step::Voting => "VOTING",
        Step::Delegated { .. } => "DELEGATED",
        Step::Decided { .. } => "DECIDED",
        Step::Settled { .. } => "SETTLED",
        Step::PromiseBroken { .. } => "PROMISE_BROKEN",
        Step::Ended => "ENDED",
    }
}
