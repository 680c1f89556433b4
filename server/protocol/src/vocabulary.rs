//! X/Open's words, each used for one thing.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Log time: milliseconds since the Unix epoch, as the replicated log counts them. Never runs backwards.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LogTime(u64);

impl LogTime {
    #[must_use]
    pub const fn from_millis(millis: u64) -> Self {
        Self(millis)
    }

    #[must_use]
    pub const fn as_millis(self) -> u64 {
        self.0
    }

    #[must_use]
    pub const fn plus(self, millis: u64) -> Self {
        Self(self.0.saturating_add(millis))
    }

    #[must_use]
    pub const fn minus(self, millis: u64) -> Self {
        Self(self.0.saturating_sub(millis))
    }

    /// Milliseconds from `earlier` until this, 0 if it is not earlier.
    #[must_use]
    pub const fn since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// A branch's answer to prepare.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Vote {
    /// Promises to commit or roll back as it is told (XA_OK).
    Prepared,
    /// Changed nothing and is out of phase two (XA_RDONLY).
    ReadOnly,
    /// Has rolled back (XA_RB*).
    Refused,
}

/// What a transaction came to. Fixed once, in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Outcome {
    Committed,
    Aborted,
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Committed => "COMMITTED",
            Self::Aborted => "ABORTED",
        })
    }
}

/// How a branch took its outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Settlement {
    Done,
    HeuristicCommit,
    HeuristicRollback,
    HeuristicMixed,
    HeuristicHazard,
}

/// Why a transaction was aborted, or why a branch refused.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Reason {
    pub code: ReasonCode,
    /// A sentence for people, at most [`Reason::MAX_TEXT`] bytes.
    pub text: String,
    /// The participant's own error code, at most [`Reason::MAX_TEXT`] bytes.
    pub source_code: String,
    /// Whether the same action may succeed if it is tried again as a new transaction.
    pub retryable: bool,
}

impl Reason {
    /// The most bytes of a text that are kept: reasons are replicated and stay as long as the outcome.
    pub const MAX_TEXT: usize = 512;

    /// A reason without a code of the participant's; the text is cut at [`Reason::MAX_TEXT`].
    #[must_use]
    pub fn new(code: ReasonCode, text: impl Into<String>) -> Self {
        let retryable = match code {
            ReasonCode::Deadline | ReasonCode::Timeout | ReasonCode::Limit | ReasonCode::Presumed => true,
            ReasonCode::Refused
            | ReasonCode::Rollback
            | ReasonCode::Skewed
            | ReasonCode::Operator
            | ReasonCode::Fenced => false,
        };
        Self { code, text: cut(text.into()), source_code: String::new(), retryable }
    }

    /// A branch's refusal, with the participant's own code and its word on trying again.
    #[must_use]
    pub fn refused(text: impl Into<String>, source_code: impl Into<String>, retryable: bool) -> Self {
        Self { code: ReasonCode::Refused, text: cut(text.into()), source_code: cut(source_code.into()), retryable }
    }
}

fn cut(mut text: String) -> String {
    if text.len() > Reason::MAX_TEXT {
        text.truncate(text.floor_char_boundary(Reason::MAX_TEXT));
    }
    text
}

/// A [`Reason`] in one word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum ReasonCode {
    /// Not all branches had voted when the vote deadline passed.
    Deadline,
    /// Begun, and not asked to commit within its timeout.
    Timeout,
    /// The client gave up.
    Rollback,
    /// A branch refused to prepare.
    Refused,
    /// The xid was born too far ahead of log time.
    Skewed,
    /// A limit was reached.
    Limit,
    /// A branch asked about a transaction that nobody had heard of.
    Presumed,
    /// An operator decided.
    Operator,
    /// Another instance has opened its session.
    Fenced,
}

impl fmt::Display for ReasonCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Deadline => "DEADLINE",
            Self::Timeout => "TIMEOUT",
            Self::Rollback => "ROLLBACK",
            Self::Refused => "REFUSED",
            Self::Skewed => "SKEWED",
            Self::Limit => "LIMIT",
            Self::Presumed => "PRESUMED",
            Self::Operator => "OPERATOR",
            Self::Fenced => "FENCED",
        })
    }
}
