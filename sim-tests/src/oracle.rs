//! An independent judge: replays the replicated log and says what became of each transaction.
//!
//! Written from the rules of the design, apart from the product's ledger, and simpler: it keeps everything and forgets
//! nothing. Where the product's ledger refuses or ignores a command, nothing changes here.

use std::collections::BTreeMap;

use verdict_protocol::{
    BranchId, Brought, Command, Conclusion, Entry, Instance, Key, ListedBranch, NewBranch, Outcome, Resolution, Rules,
    SessionName, SessionRef, Vote, Xid,
};

use crate::logs::Settled;

/// What became of a transaction.
#[derive(Clone, Debug, Default)]
pub struct Case {
    /// Registered and listed branches, with their votes.
    pub branches: BTreeMap<u32, (NewBranch, Option<Vote>)>,
    /// The entry that registered or listed each branch.
    pub registered: BTreeMap<u32, u64>,
    /// The list is closed.
    pub closed: bool,
    pub key: Option<Key>,
    pub session: Option<SessionRef>,
    /// The branch that decides once all others have promised.
    pub delegate: Option<u32>,
    /// They have: it decides, and nothing else does.
    pub delegated: bool,
    pub outcome: Option<Sentence>,
    /// It should be decided so many milliseconds after the entry at this index.
    pub due: Option<(u64, u64)>,
    /// Nobody knew it, and a branch asked.
    pub presumed: bool,
    /// Branches that refused after they had promised.
    pub broken: Vec<u32>,
}

/// An outcome, and the entry that fixed it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sentence {
    pub outcome: Outcome,
    pub index: u64,
    pub term: u64,
}

/// The judge.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    pub cases: BTreeMap<Xid, Case>,
    /// Branches that the log counts as settled, with the index of the entry that says so.
    pub settled: Vec<(u64, BranchId)>,
    /// What was decided, in the order of the log.
    pub decided: Vec<(u64, Xid, Outcome)>,
    /// What was handed over to one branch, in the order of the log.
    pub delegated: Vec<(u64, Xid)>,
    rules: Option<Rules>,
    /// Who has opened each session, in order: the last works under it, and its place is its epoch.
    sessions: BTreeMap<SessionName, Vec<Instance>>,
    at: u64,
    place: (u64, u64),
}

impl Oracle {
    /// Judges a log.
    ///
    /// # Errors
    /// A sentence, for an entry that can't be read.
    pub fn judge(log: &Settled) -> Result<Self, String> {
        let mut oracle = Self::default();
        for (index, logged) in log {
            let Some(command) = &logged.command else { continue };
            let entry = Entry::decode(command).map_err(|error| format!("the entry at {index} is not one: {error}"))?;
            oracle.at = oracle.at.max(entry.at.as_millis());
            oracle.place = (*index, logged.term);
            for command in &entry.commands {
                oracle.command(command);
            }
        }
        Ok(oracle)
    }

    /// The log time of the last entry, in milliseconds.
    #[must_use]
    pub fn at(&self) -> u64 {
        self.at
    }

    /// A transaction that was born before this may have been forgotten.
    #[must_use]
    pub fn horizon(&self) -> u64 {
        let rules = self.rules.unwrap_or_default();
        self.at.saturating_sub(rules.retention_ms).saturating_sub(rules.max_lifetime_ms)
    }

    fn command(&mut self, command: &Command) {
        if let Command::Found { rules, .. } = command {
            self.rules.get_or_insert(*rules);
        }
        let Some(rules) = self.rules else { return };
        let place = self.place.0;
        match command {
            Command::Found { .. } | Command::Forget { .. } => {}
            Command::Settled { items } => self.settled.extend(items.iter().map(|item| (place, item.branch))),
            Command::Begin { xid, timeout_ms, key, session } => {
                let taken = key.as_ref().is_some_and(|key| self.holds(key, *xid));
                if self.may_begin(*xid, &rules) && !taken && self.admits(session.as_ref()) {
                    let case = self.case(*xid);
                    (case.due, case.key) = (Some((place, *timeout_ms)), key.clone());
                    case.session.clone_from(session);
                }
            }
            Command::Enlist { xid, branches, timeout_ms } => {
                if self.is_open(*xid, &rules) && fits(self.cases.get(xid), branches.iter()) {
                    self.register(*xid, branches.iter());
                    self.case(*xid).due.get_or_insert((place, *timeout_ms));
                }
            }
            Command::OpenSession { name, instance } => self.open_session(name, *instance),
            Command::Prepare { xid, branches, vote_timeout_ms, delegate, session } => {
                if self.prepare(*xid, branches, *delegate, session.as_ref(), &rules) {
                    self.case(*xid).due = Some((place, *vote_timeout_ms));
                }
            }
            Command::Vote { branch, vote, .. } => self.vote(*branch, *vote),
            Command::Abort { xid, .. } => {
                let unknown = !self.cases.contains_key(xid);
                if !(unknown && self.is_expired(*xid)) {
                    self.decide(*xid, Outcome::Aborted);
                }
            }
            Command::Conclude { branch, conclusion } => {
                if self.cases.get(&branch.xid).and_then(|case| case.delegate) == Some(branch.number) {
                    self.conclude(branch.xid, *conclusion == Conclusion::Committed);
                }
            }
            Command::Resolve { xid, resolution: Resolution::Decide(outcome), force, .. } => {
                let known = self.cases.contains_key(xid);
                if *force {
                    self.conclude(*xid, *outcome == Outcome::Committed);
                }
                if known && *outcome == Outcome::Aborted {
                    self.decide(*xid, Outcome::Aborted);
                }
            }
            Command::Resolve { .. } => {}
            Command::PresumeAbort { xid } => {
                if !self.cases.contains_key(xid) && !self.is_expired(*xid) {
                    self.case(*xid).presumed = true;
                    self.decide(*xid, Outcome::Aborted);
                }
            }
        }
    }

    fn case(&mut self, xid: Xid) -> &mut Case {
        self.cases.entry(xid).or_default()
    }

    fn is_expired(&self, xid: Xid) -> bool {
        xid.birth().as_millis() < self.horizon()
    }

    fn is_skewed(&self, xid: Xid, rules: &Rules) -> bool {
        xid.birth().as_millis() > self.at + rules.max_skew_ms
    }

    fn may_begin(&self, xid: Xid, rules: &Rules) -> bool {
        !self.cases.contains_key(&xid) && !self.is_expired(xid) && !self.is_skewed(xid, rules)
    }

    /// Whether branches may be added.
    fn is_open(&self, xid: Xid, rules: &Rules) -> bool {
        match self.cases.get(&xid) {
            Some(case) => !case.closed && case.outcome.is_none(),
            None => self.may_begin(xid, rules),
        }
    }

    fn register<'a>(&mut self, xid: Xid, branches: impl Iterator<Item = &'a NewBranch>) {
        let index = self.place.0;
        let case = self.case(xid);
        for branch in branches {
            case.branches.entry(branch.number).or_insert_with(|| (branch.clone(), None));
            case.registered.entry(branch.number).or_insert(index);
        }
    }

    /// Whether it closed the list.
    fn prepare(
        &mut self,
        xid: Xid,
        listed: &[ListedBranch],
        delegate: Option<u32>,
        session: Option<&SessionRef>,
        rules: &Rules,
    ) -> bool {
        if !self.cases.contains_key(&xid) && !self.is_expired(xid) && self.is_skewed(xid, rules) {
            self.decide(xid, Outcome::Aborted);
            return false;
        }
        let branches = || listed.iter().map(|listed| &listed.branch);
        if !self.is_open(xid, rules) || !fits(self.cases.get(&xid), branches()) {
            return false;
        }
        let registered = self.cases.get(&xid).map(|case| &case.branches);
        let is_listed = |number: u32| {
            registered.is_some_and(|all| all.contains_key(&number)) || branches().any(|branch| branch.number == number)
        };
        if delegate.is_some_and(|number| !is_listed(number)) {
            return false;
        }
        // Who cannot show that it was he who registered a branch brings no vote for it.
        let unproven = |listed: &&ListedBranch| listed.vote.as_ref().is_some_and(|brought| !brought.proven);
        let is_registered = |number: u32| registered.is_some_and(|all| all.contains_key(&number));
        if listed.iter().filter(unproven).any(|listed| is_registered(listed.branch.number)) {
            return false;
        }
        if !self.admits(session) {
            self.decide(xid, Outcome::Aborted);
            return false;
        }
        self.register(xid, branches());
        let case = self.case(xid);
        if session.is_some() {
            case.session = session.cloned();
        }
        (case.closed, case.delegate) = (true, delegate);
        for ListedBranch { branch, vote } in listed {
            if let Some(Brought { vote, .. }) = vote {
                take(case, branch.number, *vote);
            }
        }
        self.count(xid);
        true
    }

    /// The first vote counts, except that a refusal before the decision always does.
    fn vote(&mut self, branch: BranchId, vote: Vote) {
        let Some(case) = self.cases.get_mut(&branch.xid) else { return };
        if case.outcome.is_none() && !case.delegated && case.branches.contains_key(&branch.number) {
            take(case, branch.number, vote);
            self.count(branch.xid);
        }
    }

    fn count(&mut self, xid: Xid) {
        let Some(case) = self.cases.get(&xid) else { return };
        let silent = |number: u32| case.branches.get(&number).is_some_and(|(_, vote)| vote.is_none());
        let complete = case.branches.keys().all(|number| case.delegate == Some(*number) || !silent(*number));
        if case.branches.values().any(|(_, vote)| *vote == Some(Vote::Refused)) {
            self.decide(xid, Outcome::Aborted);
        } else if case.closed && complete && case.delegate.is_some_and(silent) {
            let index = self.place.0;
            if !std::mem::replace(&mut self.case(xid).delegated, true) {
                self.delegated.push((index, xid));
            }
        } else if case.closed && complete {
            self.decide(xid, Outcome::Committed);
        }
    }

    /// Whether another transaction than `xid` works under the key or has committed.
    fn holds(&self, key: &Key, xid: Xid) -> bool {
        let holds = |case: &Case| {
            case.key.as_ref() == Some(key) && case.outcome.is_none_or(|sentence| sentence.outcome == Outcome::Committed)
        };
        self.cases.iter().any(|(other, case)| *other != xid && holds(case))
    }

    fn admits(&self, session: Option<&SessionRef>) -> bool {
        let epoch = |name| self.sessions.get(name).map_or(0, |instances| instances.len() as u64);
        session.is_none_or(|session| epoch(&session.name) == session.epoch)
    }

    fn open_session(&mut self, name: &SessionName, instance: Instance) {
        let instances = self.sessions.entry(name.clone()).or_default();
        if !instances.contains(&instance) {
            instances.push(instance);
        }
        let epoch = instances.len() as u64;
        let is_older = |case: &Case| case.session.as_ref().is_some_and(|of| of.name == *name && of.epoch < epoch);
        let left: Vec<Xid> =
            self.cases.iter().filter(|(_, case)| is_older(case) && !case.closed).map(|(xid, _)| *xid).collect();
        for xid in left {
            self.decide(xid, Outcome::Aborted);
        }
    }

    /// The branch that decides has decided, or an operator in its place.
    fn conclude(&mut self, xid: Xid, committed: bool) {
        let Some(case) = self.cases.get_mut(&xid).filter(|case| case.delegated) else { return };
        case.delegated = false;
        if let Some((_, vote)) = case.delegate.and_then(|number| case.branches.get_mut(&number)) {
            *vote = Some(if committed { Vote::Prepared } else { Vote::Refused });
        }
        self.decide(xid, if committed { Outcome::Committed } else { Outcome::Aborted });
    }

    fn decide(&mut self, xid: Xid, outcome: Outcome) {
        let (index, term) = self.place;
        let case = self.case(xid);
        if !case.delegated && case.outcome.is_none() {
            case.outcome = Some(Sentence { outcome, index, term });
            self.decided.push((index, xid, outcome));
        }
    }
}

fn take(case: &mut Case, number: u32, vote: Vote) {
    let Some((_, recorded)) = case.branches.get_mut(&number) else { return };
    if recorded.is_none() || vote == Vote::Refused {
        if *recorded == Some(Vote::Prepared) {
            case.broken.push(number);
        }
        *recorded = Some(vote);
    }
}

/// Whether these branches contradict neither what is registered nor each other.
fn fits<'a>(case: Option<&Case>, branches: impl Iterator<Item = &'a NewBranch>) -> bool {
    let mut seen: BTreeMap<u32, &NewBranch> = BTreeMap::new();
    let registered = case.map(|case| &case.branches);
    for branch in branches {
        let known = registered.and_then(|all| all.get(&branch.number)).map(|(known, _)| known);
        if known.is_some_and(|known| known != branch) || seen.get(&branch.number).is_some_and(|known| *known != branch)
        {
            return false;
        }
        seen.insert(branch.number, branch);
    }
    true
}
