//! What is looked at before a branch table is opened, whatever the database.

use std::error::Error;

use thiserror::Error as ThisError;
use verdict_protocol::ClusterId;

use crate::{
    participant::Fence,
    resource::xa::{Finding, Grade},
};

/// The format of the tables.
const FORMAT: i64 = 1;

/// Why a branch table can't be opened.
#[derive(Debug, ThisError)]
pub enum OpenError {
    #[error("no connection to the database")]
    Connect(#[source] Box<dyn Error + Send + Sync>),
    #[error(
        "can't prepare the branch table: have an administrator run this crate's schema file for the database, and grant \
         SELECT, INSERT, UPDATE and DELETE"
    )]
    Schema(#[source] Box<dyn Error + Send + Sync>),
    /// A vote would be worth nothing there.
    #[error("{setting} is {value}: {advice}")]
    Unfit { setting: &'static str, value: String, advice: String },
    #[error("the pool leads to no database: name one in its URL")]
    NoDatabase,
    #[error("the branch table is not as this program writes it: restore it")]
    Damaged,
    #[error("the branch table has format {found}, this program knows up to {known}: run a newer one")]
    Newer { found: i64, known: i64 },
    #[error("the branch table belongs to cluster {found:?}, the options name {wanted:?}")]
    Cluster { found: ClusterId, wanted: ClusterId },
}

impl OpenError {
    pub(in crate::resource) fn connect(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Connect(Box::new(error))
    }

    pub(in crate::resource) fn schema(error: impl Error + Send + Sync + 'static) -> Self {
        Self::Schema(Box::new(error))
    }
}

/// What a table says of itself.
#[derive(Clone, Copy, Debug)]
pub(in crate::resource) struct Stamped {
    pub(in crate::resource) format: i64,
    /// Without a term or a horizon.
    pub(in crate::resource) fence: Fence,
}

/// The cluster that has to be written into the table, if any.
pub(in crate::resource) fn claim(found: Stamped, wanted: Option<ClusterId>) -> Result<Option<ClusterId>, OpenError> {
    if found.format > FORMAT {
        return Err(OpenError::Newer { found: found.format, known: FORMAT });
    }
    match (found.fence.cluster, wanted) {
        (Some(found), Some(wanted)) if found != wanted => Err(OpenError::Cluster { found, wanted }),
        (None, Some(wanted)) => Ok(Some(wanted)),
        (Some(_), _) | (None, None) => Ok(None),
    }
}

/// Refuses a database under one of whose settings `that_matter` a commit is not durable.
pub(in crate::resource) fn judge_settings(findings: Vec<Finding>, that_matter: &[&str]) -> Result<(), OpenError> {
    let wrong = findings.into_iter().find(|found| found.grade == Grade::Error && that_matter.contains(&found.setting));
    match wrong {
        Some(Finding { setting, value, advice, .. }) => Err(OpenError::Unfit { setting, value, advice }),
        None => Ok(()),
    }
}
