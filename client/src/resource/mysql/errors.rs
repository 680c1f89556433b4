//! The server's errors by number, and what they mean here.

use mysql_async::{Error, ServerError};
use verdict_protocol::{Reason, ResourceName};

use crate::participant::{NotAnswered, Voted};

pub(super) const NO_SUCH_THREAD: u16 = 1094;
const NOT_OWNER_OF_THREAD: u16 = 1095;
pub(super) const LOCK_WAIT_TIMEOUT: u16 = 1205;
pub(super) const DEADLOCK: u16 = 1213;
const NEEDS_PRIVILEGE: u16 = 1227;
/// XAER_NOTA: no branch of that name, or none that this session may end.
const NOTA: u16 = 1397;
/// XAER_RMFAIL: not in this state of the branch.
const RMFAIL: u16 = 1399;
/// XAER_RMERR; to MySQL also "you may not see what is prepared".
const RMERR: u16 = 1401;
/// XA_RBROLLBACK: the branch was rolled back.
const RBROLLBACK: u16 = 1402;
const RBTIMEOUT: u16 = 1613;
const RBDEADLOCK: u16 = 1614;

/// None for an error that is not the server's.
pub(super) fn code(error: &Error) -> Option<u16> {
    match error {
        Error::Server(said) => Some(said.code),
        Error::Driver(_) | Error::Io(_) | Error::Other(_) | Error::Url(_) => None,
    }
}

/// What is said of a branch that is not prepared, here or at all.
pub(super) fn is_over(code: u16) -> bool {
    matches!(code, NOTA | RBROLLBACK | RBTIMEOUT | RBDEADLOCK)
}

/// No answer: it is asked again.
pub(super) fn failed(what: impl Into<String>, error: Error) -> NotAnswered {
    let advice = match code(&error) {
        Some(NOT_OWNER_OF_THREAD) => {
            ": let the agent log in as the application's user, or grant it CONNECTION ADMIN (MySQL: CONNECTION_ADMIN)"
        }
        Some(NEEDS_PRIVILEGE | RMERR) => ": on MySQL the agent needs XA_RECOVER_ADMIN",
        _ => "",
    };
    NotAnswered::Unavailable { what: format!("{}{advice}", what.into()), source: Some(Box::new(error)) }
}

/// The database's no, in its own words.
pub(super) fn refused(resource: &ResourceName, ServerError { code, state, message }: ServerError) -> Voted {
    // A deadlock leaves a branch in which nothing but a rollback is allowed.
    let was_rolled_back = code == RMFAIL && message.contains("ROLLBACK ONLY");
    let again = matches!(code, DEADLOCK | LOCK_WAIT_TIMEOUT | RBROLLBACK | RBTIMEOUT | RBDEADLOCK) || was_rolled_back;
    let hint = if was_rolled_back { ": a statement before met a deadlock" } else { "" };
    Voted::refused(Reason::refused(format!("{resource}: {message}{hint}"), format!("{code} ({state})"), again))
}
