//! `verdict tx`.

use std::{process::ExitCode, time::Duration};

use clap::{Args, Subcommand, ValueEnum};
use serde::Serialize;
use verdict_client::{ListQuery, Outcome, Reason, Resolution, Settlement, State, TransactionStatus, Vote, Word, Xid};

use crate::{
    client::{AskError, Format, Target, duration, short, table},
    watch::Watch,
};

/// The exit code of a question about a transaction that the cluster does not know.
const NOT_KNOWN: u8 = 4;

#[derive(Debug, Subcommand)]
pub(crate) enum Tx {
    /// List transactions, oldest first.
    List {
        /// Only transactions with a branch in doubt.
        #[arg(long)]
        in_doubt: bool,
        /// Only transactions at least this old, such as 30s.
        #[arg(long, value_parser = duration, value_name = "AGE")]
        older_than: Option<Duration>,
        /// At most so many, up to 1000.
        #[arg(long, default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
        limit: u32,
        /// Go on behind this transaction: where the last page ended.
        #[arg(long, value_name = "XID")]
        after: Option<String>,
        #[command(flatten)]
        target: Target,
    },
    /// Show a transaction with its branches.
    Show {
        xid: String,
        #[command(flatten)]
        target: Target,
    },
    /// Follow what becomes of transactions, a line for each step, over the loss of any node.
    Watch(Watch),
    /// Say how a transaction, or a branch of it, ended that cannot say so itself.
    ///
    /// Undecided transactions can be aborted. Where the decision was delegated to a branch whose database is lost, it can
    /// be taken over, and of a decided one a branch that will never answer can be settled: what can break atomicity needs
    /// --force. Who and why are kept with the transaction and in the log.
    Resolve {
        xid: String,
        /// What the transaction comes to.
        #[arg(long, value_enum, required_unless_present = "branch", conflicts_with = "branch")]
        outcome: Option<OutcomeWord>,
        /// The branch that is settled, by its number.
        #[arg(long, requires = "ended", value_name = "NUMBER")]
        branch: Option<u32>,
        /// How that branch ended.
        #[arg(long, value_enum, requires = "branch", value_name = "HOW")]
        ended: Option<Ended>,
        #[command(flatten)]
        word: Speaker,
        #[command(flatten)]
        target: Target,
    },
    /// Stop showing a transaction whose branches are settled, some of them otherwise than decided.
    Forget {
        xid: String,
        #[command(flatten)]
        word: Speaker,
        #[command(flatten)]
        target: Target,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum OutcomeWord {
    Committed,
    Aborted,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Ended {
    /// As decided.
    Done,
    Committed,
    RolledBack,
    /// Partly committed.
    Mixed,
    /// Nobody knows.
    Unknown,
}

/// Who says it, and why.
#[derive(Clone, Debug, Args)]
pub(crate) struct Speaker {
    /// Why. It is kept with the transaction.
    #[arg(long, value_name = "TEXT")]
    reason: String,
    /// Who says so.
    #[arg(long, env = "USER", value_name = "NAME")]
    by: String,
    /// Do it even if it can break atomicity.
    #[arg(long)]
    force: bool,
}

#[derive(Debug, Serialize)]
struct ListView {
    transactions: Vec<TransactionView>,
    more: bool,
}

#[derive(Debug, Serialize)]
struct TransactionView {
    xid: String,
    state: &'static str,
    outcome: Option<&'static str>,
    reason: Option<ReasonView>,
    log_index: Option<u64>,
    age_ms: u64,
    branches: Vec<BranchView>,
    words: Vec<WordView>,
}

#[derive(Debug, Serialize)]
struct WordView {
    at_ms: u64,
    who: String,
    why: String,
}

#[derive(Debug, Serialize)]
struct BranchView {
    number: u32,
    resource: String,
    vote: Option<&'static str>,
    reason: Option<ReasonView>,
    settlement: Option<&'static str>,
    /// What it waits for; none if nothing has failed.
    blocker: Option<BlockerView>,
}

#[derive(Debug, Serialize)]
struct BlockerView {
    last_error: String,
    failed_attempts: u32,
    next_attempt_ms: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct ReasonView {
    code: String,
    text: String,
    source_code: Option<String>,
    retryable: bool,
}

impl Tx {
    pub(crate) async fn run(self) -> Result<ExitCode, AskError> {
        match self {
            Self::List { in_doubt, older_than, limit, after, target } => {
                let after = after.as_deref().map(Xid::parse).transpose()?;
                let query = ListQuery { limit, in_doubt, older_than: older_than.unwrap_or_default(), after };
                let page = target.connect()?.list(query).await?;
                let transactions = page.transactions.into_iter().map(view).collect();
                target.print(&ListView { transactions, more: page.more }, list_text)?;
                Ok(ExitCode::SUCCESS)
            }
            Self::Show { xid, target } => {
                let status = target.connect()?.get(Xid::parse(&xid)?).await?;
                let state = status.state;
                let view = view(status);
                match state {
                    State::Unknown if target.output == Format::Text => eprintln!(
                        "verdict: {xid}: the cluster knows no such transaction; its first call may still be on its way"
                    ),
                    State::Expired if target.output == Format::Text => {
                        eprintln!("verdict: {xid}: will not commit from now on; whether it did is no longer kept")
                    }
                    _ => target.print(&view, show_text)?,
                }
                let found = !matches!(state, State::Unknown | State::Expired);
                Ok(if found { ExitCode::SUCCESS } else { ExitCode::from(NOT_KNOWN) })
            }
            Self::Watch(watch) => watch.run().await,
            Self::Resolve { xid, outcome, branch, ended, word, target } => {
                let resolution = match (outcome, branch, ended) {
                    (_, Some(number), Some(ended)) => Resolution::Settle { number, settlement: ended.into() },
                    (outcome, ..) => Resolution::Decide(outcome.map_or(Outcome::Aborted, Outcome::from)),
                };
                let (force, word) = (word.force, word.into());
                let status = target.connect()?.resolve(Xid::parse(&xid)?, resolution, word, force).await?;
                target.print(&view(status), show_text)?;
                Ok(ExitCode::SUCCESS)
            }
            Self::Forget { xid, word, target } => {
                let (force, word) = (word.force, word.into());
                let status = target.connect()?.forget(Xid::parse(&xid)?, word, force).await?;
                target.print(&view(status), show_text)?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

impl From<OutcomeWord> for Outcome {
    fn from(word: OutcomeWord) -> Self {
        match word {
            OutcomeWord::Committed => Self::Committed,
            OutcomeWord::Aborted => Self::Aborted,
        }
    }
}

impl From<Ended> for Settlement {
    fn from(ended: Ended) -> Self {
        match ended {
            Ended::Done => Self::Done,
            Ended::Committed => Self::HeuristicCommit,
            Ended::RolledBack => Self::HeuristicRollback,
            Ended::Mixed => Self::HeuristicMixed,
            Ended::Unknown => Self::HeuristicHazard,
        }
    }
}

impl From<Speaker> for Word {
    fn from(speaker: Speaker) -> Self {
        Self { who: speaker.by, why: speaker.reason }
    }
}

fn view(status: TransactionStatus) -> TransactionView {
    let (outcome, reason, log_index) = match status.decision {
        Some(decision) => (Some(outcome_word(decision.outcome)), decision.reason, Some(decision.log_index)),
        None => (None, None, None),
    };
    TransactionView {
        xid: status.xid.to_string(),
        state: state_word(status.state),
        outcome,
        reason: reason.map(reason_view),
        log_index,
        age_ms: u64::try_from(status.age.as_millis()).unwrap_or(u64::MAX),
        branches: status
            .branches
            .into_iter()
            .map(|branch| BranchView {
                number: branch.number,
                resource: branch.resource.into(),
                vote: branch.vote.map(vote_word),
                reason: branch.reason.map(reason_view),
                settlement: branch.settlement.map(settlement_word),
                blocker: Some(branch.last_error).filter(|error| !error.is_empty()).map(|last_error| BlockerView {
                    last_error,
                    failed_attempts: branch.failed_attempts,
                    next_attempt_ms: u64::try_from(branch.next_attempt.as_millis()).unwrap_or(u64::MAX),
                }),
            })
            .collect(),
        words: status
            .words
            .into_iter()
            .map(|(at, word)| WordView { at_ms: at.as_millis(), who: word.who, why: word.why })
            .collect(),
    }
}

pub(crate) fn reason_view(reason: Reason) -> ReasonView {
    ReasonView {
        code: reason.code.to_string(),
        text: reason.text,
        source_code: Some(reason.source_code).filter(|code| !code.is_empty()),
        retryable: reason.retryable,
    }
}

fn list_text(view: &ListView) -> String {
    if view.transactions.is_empty() {
        return "no transactions".to_owned();
    }
    let mut list = table(&["XID", "STATE", "OUTCOME", "AGE", "BRANCHES", "WAITS FOR"]);
    for transaction in &view.transactions {
        let branches: Vec<&str> = transaction.branches.iter().map(|branch| branch.resource.as_str()).collect();
        list.add_row([
            transaction.xid.clone(),
            transaction.state.to_owned(),
            transaction.outcome.unwrap_or("").to_owned(),
            short(Duration::from_millis(transaction.age_ms)),
            branches.join(", "),
            transaction.branches.iter().filter_map(blocker_text).collect::<Vec<_>>().join("\n"),
        ]);
    }
    let mut text = list.to_string();
    if let Some(last) = view.transactions.last().filter(|_| view.more) {
        text.push_str(&format!("\nmore follow: --after {}", last.xid));
    }
    text
}

fn show_text(view: &TransactionView) -> String {
    let mut text = format!("transaction  {}\nstate        {}\n", view.xid, view.state);
    if let (Some(outcome), Some(index)) = (view.outcome, view.log_index) {
        text.push_str(&format!("outcome      {outcome}, at index {index} of the log\n"));
    }
    if let Some(reason) = &view.reason {
        text.push_str(&format!("reason       {}\n", reason_text(reason)));
    }
    text.push_str(&format!("age          {}\n", short(Duration::from_millis(view.age_ms))));
    for word in &view.words {
        text.push_str(&format!("{:<12} {}\n", word.who, word.why));
    }
    if view.branches.is_empty() {
        return text;
    }
    let mut branches = table(&["BRANCH", "RESOURCE", "VOTE", "SETTLED", "NOTE"]);
    for branch in &view.branches {
        let note = branch.reason.as_ref().map(reason_text).or_else(|| blocker_text(branch)).unwrap_or_default();
        branches.add_row([
            branch.number.to_string(),
            branch.resource.clone(),
            branch.vote.unwrap_or("-").to_owned(),
            branch.settlement.unwrap_or("-").to_owned(),
            note,
        ]);
    }
    format!("{text}\n{branches}")
}

/// Which participant, its last error, and when it is asked or told again.
fn blocker_text(branch: &BranchView) -> Option<String> {
    let BlockerView { last_error, failed_attempts, next_attempt_ms } = branch.blocker.as_ref()?;
    let again = match next_attempt_ms {
        0 => "now".to_owned(),
        ms => format!("in {}", short(Duration::from_millis(*ms))),
    };
    Some(format!("{}: {last_error} ({failed_attempts} times; again {again})", branch.resource))
}

pub(crate) fn reason_text(reason: &ReasonView) -> String {
    let source = reason.source_code.as_ref().map_or(String::new(), |code| format!(" ({code})"));
    format!("{}: {}{source}", reason.code, reason.text)
}

fn state_word(state: State) -> &'static str {
    match state {
        State::Active => "ACTIVE",
        State::Voting => "VOTING",
        State::Delegated => "DELEGATED",
        State::Decided => "DECIDED",
        State::Ended => "ENDED",
        State::Expired => "EXPIRED",
        State::Unknown => "UNKNOWN",
    }
}

pub(crate) fn outcome_word(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Committed => "COMMITTED",
        Outcome::Aborted => "ABORTED",
    }
}

fn vote_word(vote: Vote) -> &'static str {
    match vote {
        Vote::Prepared => "PREPARED",
        Vote::ReadOnly => "READ_ONLY",
        Vote::Refused => "REFUSED",
    }
}

pub(crate) fn settlement_word(settlement: Settlement) -> &'static str {
    match settlement {
        Settlement::Done => "DONE",
        Settlement::HeuristicCommit => "HEURISTIC_COMMIT",
        Settlement::HeuristicRollback => "HEURISTIC_ROLLBACK",
        Settlement::HeuristicMixed => "HEURISTIC_MIXED",
        Settlement::HeuristicHazard => "HEURISTIC_HAZARD",
    }
}
