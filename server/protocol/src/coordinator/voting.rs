//! Asking the branches, and proposing their votes.

use super::{Coordinator, Effect, Pending};
use crate::{BranchId, BranchNumber, Command, Ledger, ListedBranch, LogTime, Outcome, Phase, Reason, Vote, Xid};

/// How long a leader keeps votes to itself that do not decide yet, in milliseconds. In most transactions all votes are
/// there long before, and go to the log in one entry.
pub const KEEP_VOTES_MS: u64 = 1_000;
/// The same where another leader began to ask.
pub const KEEP_VOTES_OF_ANOTHERS_MS: u64 = 10;

/// The list of a Commit call, on its way to the log.
pub(super) struct Closing<'a> {
    pub(super) branches: &'a [ListedBranch],
    pub(super) delegate: Option<BranchNumber>,
    pub(super) deadline: LogTime,
}

impl Coordinator {
    /// Asks the branches before the list is in the log: the append and the prepares take their time side by side.
    ///
    /// A branch whose vote the client brings along is prepared already, and is not asked; the one that decides is asked
    /// last.
    pub(super) fn ask_early(
        &mut self,
        now: LogTime,
        xid: Xid,
        closing: &Closing<'_>,
        ledger: &Ledger,
        effects: &mut Vec<Effect>,
    ) {
        let Closing { branches, delegate, deadline } = *closing;
        let work = self.works.entry(xid).or_default();
        work.deadline = work.deadline.max(deadline);
        let brought = |number| {
            delegate == Some(number)
                || branches.iter().any(|listed| listed.branch.number == number && listed.vote.is_some())
        };
        let registered = ledger.transaction(xid).into_iter().flat_map(|transaction| transaction.unvoted());
        for (number, branch) in registered.filter(|(number, _)| !brought(*number)) {
            work.ask(now, BranchId { xid, number }, &branch.resource, &branch.payload, effects);
        }
        for listed in branches.iter().filter(|listed| !brought(listed.branch.number)) {
            let id = BranchId { xid, number: listed.branch.number };
            let voted = ledger.transaction(xid).and_then(|transaction| transaction.branches.get(&id.number));
            if voted.is_none_or(|branch| branch.vote.is_none()) {
                let (resource, payload) = (&listed.branch.resource, &listed.branch.payload);
                work.early.insert(id.number, (resource.clone(), payload.clone()));
                work.ask(now, id, resource, payload, effects);
            }
        }
    }

    /// The list came too late, or was refused: what was asked for it hears that the transaction is aborted, if it is.
    /// Otherwise, and if that gets lost, it inquires.
    pub(super) fn release_early(&mut self, xid: Xid, ledger: &Ledger, effects: &mut Vec<Effect>) {
        let Some(outcome) = ledger.outcome(xid).filter(|outcome| outcome.value() == Outcome::Aborted) else { return };
        let Some(work) = self.works.get_mut(&xid) else { return };
        let registered = |number| ledger.transaction(xid).is_some_and(|open| open.branches.contains_key(&number));
        for (number, (resource, payload)) in std::mem::take(&mut work.early) {
            if !registered(number) {
                effects.push(Effect::Tell { branch: BranchId { xid, number }, resource, payload, outcome });
            }
        }
    }

    /// The list is closed: asks whoever was not asked, and proposes the votes if they are there already.
    pub(super) fn closed(
        &mut self,
        now: LogTime,
        xid: Xid,
        deadline: LogTime,
        ledger: &Ledger,
        effects: &mut Vec<Effect>,
    ) {
        let Some(transaction) = ledger.transaction(xid) else { return };
        if !matches!(transaction.phase, Phase::Voting { .. }) {
            return;
        }
        let work = self.works.entry(xid).or_default();
        work.deadline = deadline;
        work.early.clear();
        for (number, branch) in transaction.unvoted() {
            work.ask(now, BranchId { xid, number }, &branch.resource, &branch.payload, effects);
        }
        self.arm(xid, deadline.min(now.plus(KEEP_VOTES_MS)));
        self.propose_votes(xid, ledger, effects);
    }

    pub(super) fn voted(
        &mut self,
        branch: BranchId,
        vote: Vote,
        reason: Option<Reason>,
        ledger: &Ledger,
        effects: &mut Vec<Effect>,
    ) {
        // Without work for it there is nothing to decide: a late answer of a transaction that has ended.
        let Some(work) = self.works.get_mut(&branch.xid) else { return };
        let Some(call) = work.asking.get_mut(&branch.number) else { return };
        call.in_flight = false;
        call.last_error = None;
        self.timers.clear(branch.xid, Some(branch.number), &mut call.due);
        let first = *work.votes.get(&branch.number).map_or(&vote, |(first, _)| first);
        if vote == Vote::Refused || first == vote {
            work.votes.insert(branch.number, (vote, reason));
        }
        self.propose_votes(branch.xid, ledger, effects);
    }

    /// Proposes the votes once they decide: all of a full list in one entry, or a refusal at once. Where voting is slow
    /// it proposes what it has, so that the next leader need not ask for it again.
    pub(super) fn propose_votes(&mut self, xid: Xid, ledger: &Ledger, effects: &mut Vec<Effect>) {
        let Some(transaction) = ledger.transaction(xid) else { return };
        let Some(work) = self.works.get_mut(&xid) else { return };
        if work.votes_proposed || !matches!(transaction.phase, Phase::Voting { .. }) {
            return;
        }
        let of = |number, (vote, reason): &(Vote, Option<Reason>)| Command::Vote {
            branch: BranchId { xid, number },
            vote: *vote,
            reason: reason.clone(),
        };
        let refused = work
            .votes
            .iter()
            .find(|(number, (vote, _))| *vote == Vote::Refused && transaction.branches.contains_key(number));
        let commands: Vec<Command> = match refused {
            Some((number, vote)) => vec![of(*number, vote)],
            None => {
                let missing = transaction.unvoted().count();
                let in_hand =
                    transaction.unvoted().filter_map(|(number, _)| Some(of(number, work.votes.get(&number)?)));
                let commands: Vec<Command> = in_hand.collect();
                if commands.is_empty() || commands.len() < missing && !work.slow {
                    return;
                }
                commands
            }
        };
        work.votes_proposed = true;
        self.propose(Pending::Votes { xid }, commands, effects);
    }

    /// If they did not decide, those go that came meanwhile, and the deadline is looked at: it may have come as well.
    pub(super) fn votes_in_log(&mut self, xid: Xid, ledger: &Ledger, effects: &mut Vec<Effect>) {
        let Some(work) = self.works.get_mut(&xid) else { return };
        work.votes_proposed = false;
        let Some(Phase::Voting { .. }) = ledger.transaction(xid).map(|open| &open.phase) else { return };
        let deadline = work.deadline;
        self.propose_votes(xid, ledger, effects);
        self.arm(xid, deadline);
    }
}
