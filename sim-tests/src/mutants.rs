//! The list of seeded bugs that the checks are measured by, and how each is put in.
//!
//! Numbers and sentences are those of the list of mutations. A bug is a wrapper around a public seam ([`Flaw`]), chosen
//! at run time; or a patch, applied to a scratch copy of the whole tree that is built apart. Nothing of them is in the
//! product.

use std::collections::BTreeMap;

use crate::flaws::Flaw;

/// A seeded bug.
#[derive(Clone, Copy, Debug)]
pub struct Mutant {
    pub number: u8,
    pub sentence: &'static str,
    pub how: How,
}

/// How a bug is put in.
#[derive(Clone, Copy, Debug)]
pub enum How {
    Wrapper(Flaw),
    /// By the patch whose file begins with its number.
    Patch,
    /// Not at all, and why.
    Not(&'static str),
}

impl Mutant {
    /// As it is called everywhere.
    #[must_use]
    pub fn name(&self) -> String {
        format!("M{}", self.number)
    }
}

const fn wrapper(number: u8, flaw: Flaw, sentence: &'static str) -> Mutant {
    Mutant { number, sentence, how: How::Wrapper(flaw) }
}

const fn patch(number: u8, sentence: &'static str) -> Mutant {
    Mutant { number, sentence, how: How::Patch }
}

const fn not(number: u8, sentence: &'static str, why: &'static str) -> Mutant {
    Mutant { number, sentence, how: How::Not(why) }
}

const TIES: &str = "no effect: a term can have several leaders, in the order of their nodes, so candidates that stand at \
                    once do not block each other; 200 seeds without jitter were as calm as with it";
const SAGAS: &str = "waits for sagas";
const OUTBOX: &str = "waits for the outbox";
const RESTORE: &str = "waits for backup and restore";

/// The list.
pub const ALL: [Mutant; 64] = [
    wrapper(1, Flaw::BallotNotSynced, "the sync of a Raft ballot is skipped"),
    wrapper(2, Flaw::LogNotSynced, "the sync of an append is skipped"),
    wrapper(3, Flaw::FlushEarly, "a flush is reported early: each sync is done when the next one is asked for"),
    patch(4, "COMMITTED is answered before the quorum: an append counts for a follower once it is sent"),
    patch(5, "the decision is sent to participants before it is replicated"),
    patch(6, "a new leader drops the last participant that is to be told"),
    wrapper(7, Flaw::VoteInvented, "decided with one vote missing: a link says PREPARED for who was never asked"),
    patch(8, "a timeout counts as NO although every YES is replicated"),
    wrapper(9, Flaw::TimeoutIsYes, "a timeout counts as YES"),
    patch(10, "a YES is accepted after ABORTED"),
    patch(11, "a late registration is accepted after the decision"),
    wrapper(12, Flaw::CommitTwice, "the effect of a commit is not idempotent"),
    wrapper(13, Flaw::NoTombstone, "a rollback before prepare leaves no tombstone"),
    patch(14, "a status is read without asking whether the leader still leads"),
    patch(15, "a read index without an entry of the own term"),
    patch(16, "the outcomes by which repeats are known are missing from the snapshot"),
    patch(17, "the tombstones (aborted outcomes) are missing from the snapshot"),
    patch(18, "the log is purged before the snapshot is synced"),
    patch(19, "the purge point is not persisted"),
    patch(20, "the snapshot loses transactions in doubt"),
    wrapper(21, Flaw::XidReused, "a transaction id is used again after a restart"),
    patch(22, "a session's epoch is ignored"),
    patch(23, "\"unknown transaction\" counts as an acknowledgement of commit"),
    patch(24, "any error counts as an acknowledgement"),
    patch(25, "a transaction is forgotten before all its acknowledgements"),
    patch(26, "presumed abort is answered while a commit is in flight"),
    patch(27, "the recovery scan starts before the log has caught up"),
    patch(28, "a wall clock in apply"),
    patch(29, "map order in apply"),
    not(30, "a saga compensates forwards", SAGAS),
    not(31, "a saga compensates a step that never ran", SAGAS),
    not(32, "a saga compensates twice after a failover", SAGAS),
    not(33, "an outbox event is published before its commit", OUTBOX),
    not(34, "the outbox cursor moves before the publish is durable", OUTBOX),
    patch(35, "the log is cut at the first bad checksum"),
    wrapper(36, Flaw::SyncErrorIgnored, "the node goes on after an fsync error"),
    patch(37, "retries without backoff"),
    not(38, "election timeouts without jitter", TIES),
    not(39, "an old version drops fields it does not know", "there is only one version of the format yet"),
    patch(40, "a credential is checked on the leader only, not on a forwarded call"),
    patch(41, "a closed list decides only on a Vote entry, not when Prepare comes last"),
    patch(42, "Prepare's list replaces the enlisted branches"),
    patch(43, "a branch that is not in the list hears COMMITTED"),
    patch(44, "the answer to a presumption is what was proposed, not what was applied"),
    patch(45, "horizon and skew are judged only at the door"),
    wrapper(46, Flaw::ClientRollsBack, "the client rolls back its prepared branches on an error"),
    patch(47, "an unknown branch answers Prepare with READ_ONLY"),
    patch(48, "a client behind the horizon hears ABORTED"),
    patch(49, "log time follows one leader's wall clock"),
    patch(50, "Abort is accepted after the decision was delegated"),
    patch(51, "a delegate is asked before the log says that it decides"),
    patch(52, "a last resource is asked before all others voted"),
    patch(53, "the sweep does not ask the ledger"),
    patch(54, "XAER_NOTA is taken for done"),
    not(55, "a restored cluster presumes", RESTORE),
    patch(56, "a node whose log lost acknowledged entries elects"),
    patch(57, "OpenSession answers while a predecessor's transaction is voting"),
    patch(58, "a watcher is not told of a gap"),
    patch(59, "a watcher that goes on begins one late"),
    patch(60, "a branch whose client brought its vote is told by nobody else"),
    patch(61, "what an operator says needs no force"),
    patch(70, "a deposed leader keeps its streams"),
    patch(71, "a reply on a stream is taken for its oldest question, whatever its number"),
    patch(72, "the grace of a presumption is zero"),
];

/// The one of this name.
#[must_use]
pub fn of_name(name: &str) -> Option<&'static Mutant> {
    ALL.iter().find(|mutant| mutant.name().eq_ignore_ascii_case(name))
}

/// Reads the recorded killers: of each bug's number the seed that found it, and what it broke.
///
/// # Errors
/// A sentence naming the line that is none.
pub fn killers(text: &str) -> Result<BTreeMap<u8, (u64, String)>, String> {
    let mut killers = BTreeMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()) {
        let mut words = line.split_whitespace();
        let number = words.next().and_then(|name| name.strip_prefix('M')?.parse().ok());
        let seed = words.next().and_then(|seed| seed.parse().ok());
        let (Some(number), Some(seed)) = (number, seed) else {
            return Err(format!("{line:?} is not a line like \"M1 4711 I6 ...\""));
        };
        killers.insert(number, (seed, words.collect::<Vec<_>>().join(" ")));
    }
    Ok(killers)
}
