//! What a log decides, worked out apart from the product: a plain replay that forgets nothing, knows no buckets, no
//! transition table and no digests, and derives each outcome from the whole history of its transaction.

use std::collections::BTreeMap;

use verdict_protocol::{
    BranchNumber, Command, Conclusion, Entry, Instance, Key, ListedBranch, LogTime, NewBranch, Outcome, Resolution,
    Rules, SessionName, SessionRef, Vote, Xid,
};

/// All that the log says of one transaction.
#[derive(Clone, Debug, Default)]
pub struct History {
    pub registered: BTreeMap<BranchNumber, NewBranch>,
    /// Every vote for a registered branch, in order.
    pub votes: BTreeMap<BranchNumber, Vec<Vote>>,
    pub closed: bool,
    pub key: Option<Key>,
    pub session: Option<SessionRef>,
    /// The branch that is to decide, once all others have promised; and whether they have.
    pub delegate: Option<BranchNumber>,
    pub delegated: bool,
    /// The outcome and the index of the entry that fixed it.
    pub outcome: Option<(Outcome, u64)>,
}

/// The world as a log tells it.
#[derive(Clone, Debug, Default)]
pub struct Oracle {
    at: LogTime,
    index: u64,
    rules: Option<Rules>,
    transactions: BTreeMap<Xid, History>,
    /// Who has opened each session, in order: the last works under it, and its place is its epoch.
    sessions: BTreeMap<SessionName, Vec<Instance>>,
}

impl Oracle {
    pub fn apply(&mut self, index: u64, entry: &Entry) {
        self.index = index;
        self.at = self.at.max(entry.at);
        for command in &entry.commands {
            match (self.rules, command) {
                (None, Command::Found { rules, .. }) => self.rules = Some(*rules),
                (Some(rules), command) => self.command(&rules, command),
                (None, _) => {}
            }
        }
    }

    pub fn of(&self, xid: Xid) -> Option<&History> {
        self.transactions.get(&xid)
    }

    pub fn outcome(&self, xid: Xid) -> Option<Outcome> {
        self.of(xid)?.outcome.map(|(outcome, _)| outcome)
    }

    /// Whether this branch may ever hear COMMIT.
    pub fn may_commit(&self, xid: Xid, number: BranchNumber) -> bool {
        self.of(xid).is_some_and(|history| {
            matches!(history.outcome, Some((Outcome::Committed, _)))
                && history.votes.get(&number).and_then(|votes| votes.first()) == Some(&Vote::Prepared)
        })
    }

    pub fn is_behind_horizon(&self, xid: Xid) -> bool {
        let Some(rules) = self.rules else { return false };
        xid.birth().as_millis() + rules.retention_ms + rules.max_lifetime_ms < self.at.as_millis()
    }

    fn is_too_far_ahead(&self, rules: &Rules, xid: Xid) -> bool {
        xid.birth().as_millis() > self.at.as_millis() + rules.max_skew_ms
    }

    /// The transaction that works under the key or has committed.
    pub fn holder(&self, key: &Key) -> Option<Xid> {
        let holds = |history: &History| {
            history.key.as_ref() == Some(key)
                && history.outcome.is_none_or(|(outcome, _)| outcome == Outcome::Committed)
        };
        self.transactions.iter().find(|(_, history)| holds(history)).map(|(xid, _)| *xid)
    }

    fn admits(&self, session: Option<&SessionRef>) -> bool {
        session.is_none_or(|session| self.epoch(&session.name) == Some(session.epoch))
    }

    pub fn epoch(&self, name: &SessionName) -> Option<u64> {
        self.sessions.get(name).map(|instances| instances.len() as u64)
    }

    /// Equal for two that say the same from now on.
    #[allow(dead_code, reason = "not every test that has this oracle asks")]
    pub fn digest(&self) -> u64 {
        use std::hash::{DefaultHasher, Hash, Hasher};
        let mut hasher = DefaultHasher::new();
        (self.at, &self.sessions).hash(&mut hasher);
        for (xid, history) in &self.transactions {
            let History { registered, votes, closed, key, session, delegate, delegated, outcome } = history;
            (xid, closed, key, session, delegate, delegated, outcome.map(|(outcome, _)| outcome)).hash(&mut hasher);
            registered.keys().for_each(|number| number.hash(&mut hasher));
            for (number, votes) in votes {
                (number, votes.first(), votes.contains(&Vote::Refused)).hash(&mut hasher);
            }
        }
        hasher.finish()
    }

    /// The epoch of an instance that has opened the session.
    #[allow(dead_code, reason = "not every test that has this oracle asks")]
    pub fn place(&self, name: &SessionName, instance: Instance) -> Option<u64> {
        let place = self.sessions.get(name)?.iter().position(|other| *other == instance)?;
        Some(place as u64 + 1)
    }

    /// A transaction of an earlier epoch that is not decided.
    #[allow(dead_code, reason = "not every test that has this oracle asks")]
    pub fn undecided_before(&self, name: &SessionName, epoch: u64) -> Option<Xid> {
        let is_earlier = |history: &History| {
            let session = history.session.as_ref();
            session.is_some_and(|of| of.name == *name && of.epoch < epoch) && history.outcome.is_none()
        };
        self.transactions.iter().find(|(_, history)| is_earlier(history)).map(|(xid, _)| *xid)
    }

    fn open_session(&mut self, name: &SessionName, instance: Instance) {
        let instances = self.sessions.entry(name.clone()).or_default();
        if !instances.contains(&instance) {
            instances.push(instance);
        }
        let (epoch, index) = (instances.len() as u64, self.index);
        for history in self.transactions.values_mut() {
            let is_older = history.session.as_ref().is_some_and(|of| of.name == *name && of.epoch < epoch);
            if is_older && !history.closed {
                history.outcome.get_or_insert((Outcome::Aborted, index));
            }
        }
    }

    /// The branch that decides, or an operator in its place, has decided.
    fn conclude(&mut self, xid: Xid, outcome: Outcome) {
        let index = self.index;
        let Some(history) = self.transactions.get_mut(&xid).filter(|history| history.delegated) else { return };
        if history.outcome.is_none() {
            history.outcome = Some((outcome, index));
            let vote = if outcome == Outcome::Committed { Vote::Prepared } else { Vote::Refused };
            history.votes.insert(history.delegate.expect("it is delegated"), vec![vote]);
        }
    }

    fn command(&mut self, rules: &Rules, command: &Command) {
        let xid = match command {
            Command::OpenSession { name, instance } => return self.open_session(name, *instance),
            Command::Found { .. } | Command::Settled { .. } | Command::Forget { .. } => return,
            Command::Begin { xid, .. }
            | Command::Enlist { xid, .. }
            | Command::Prepare { xid, .. }
            | Command::Abort { xid, .. }
            | Command::PresumeAbort { xid }
            | Command::Resolve { xid, .. } => *xid,
            Command::Vote { branch, .. } | Command::Conclude { branch, .. } => branch.xid,
        };
        let known = self.transactions.contains_key(&xid);
        if !known && self.is_behind_horizon(xid) {
            return;
        }
        let skewed = !known && self.is_too_far_ahead(rules, xid);
        let index = self.index;
        let abort = |history: &mut History| {
            if !history.delegated {
                history.outcome.get_or_insert((Outcome::Aborted, index));
            }
        };
        match command {
            Command::Found { .. } | Command::Settled { .. } | Command::Forget { .. } | Command::OpenSession { .. } => {}
            Command::Begin { key, session, .. } => {
                let taken = key.as_ref().is_some_and(|key| self.holder(key).is_some_and(|holder| holder != xid));
                if !known && !skewed && !taken && self.admits(session.as_ref()) {
                    let history = self.transactions.entry(xid).or_default();
                    (history.key, history.session) = (key.clone(), session.clone());
                }
            }
            Command::Enlist { branches, .. } => {
                let mut history = self.of(xid).cloned().unwrap_or_default();
                if history.closed || history.outcome.is_some() || skewed {
                    return;
                }
                if add(&mut history, branches) && history.registered.len() as u64 <= rules.max_branches {
                    self.transactions.insert(xid, history);
                }
            }
            Command::Prepare { branches, delegate, session, .. } => {
                let mut history = self.of(xid).cloned().unwrap_or_default();
                if history.closed || history.outcome.is_some() {
                    return;
                }
                if skewed {
                    abort(self.transactions.entry(xid).or_default());
                    return;
                }
                let is_forged = |listed: &ListedBranch| {
                    let forged = listed.vote.as_ref().is_some_and(|brought| !brought.proven);
                    forged && history.registered.contains_key(&listed.branch.number)
                };
                if branches.iter().any(is_forged) {
                    return;
                }
                let list: Vec<NewBranch> = branches.iter().map(|listed| listed.branch.clone()).collect();
                if !add(&mut history, &list) {
                    return;
                }
                if history.registered.len() as u64 > rules.max_branches {
                    abort(self.transactions.entry(xid).or_default());
                    return;
                }
                if delegate.is_some_and(|number| !history.registered.contains_key(&number)) {
                    return;
                }
                if !self.admits(session.as_ref()) {
                    abort(self.transactions.entry(xid).or_default());
                    return;
                }
                (history.closed, history.delegate) = (true, *delegate);
                history.session = session.clone().or(history.session);
                for listed in branches {
                    let vote = listed.vote.as_ref().map(|brought| brought.vote);
                    history.votes.entry(listed.branch.number).or_default().extend(vote);
                }
                self.transactions.insert(xid, history);
            }
            Command::Vote { branch, vote, .. } => {
                if let Some(history) = self.transactions.get_mut(&xid)
                    && history.outcome.is_none()
                    && !history.delegated
                    && history.registered.contains_key(&branch.number)
                {
                    history.votes.entry(branch.number).or_default().push(*vote);
                }
            }
            Command::Abort { .. } => abort(self.transactions.entry(xid).or_default()),
            Command::Conclude { branch, conclusion } => {
                let outcome = match conclusion {
                    Conclusion::Committed => Outcome::Committed,
                    Conclusion::Fenced(_) => Outcome::Aborted,
                };
                if self.of(xid).is_some_and(|history| history.delegate == Some(branch.number)) {
                    self.conclude(xid, outcome);
                }
            }
            Command::Resolve { resolution: Resolution::Decide(outcome), force, .. } => {
                if *force {
                    self.conclude(xid, *outcome);
                }
                if let Some(history) = self.transactions.get_mut(&xid)
                    && *outcome == Outcome::Aborted
                {
                    abort(history);
                }
            }
            Command::Resolve { .. } => {}
            Command::PresumeAbort { .. } => {
                if !known {
                    abort(self.transactions.entry(xid).or_default());
                }
            }
        }
        if let Some(history) = self.transactions.get_mut(&xid) {
            let refused = history.votes.values().flatten().any(|vote| *vote == Vote::Refused);
            let complete = history.closed
                && history.registered.keys().all(|number| {
                    history.delegate == Some(*number) || history.votes.get(number).is_some_and(|v| !v.is_empty())
                });
            let decides = history.delegate.filter(|number| history.votes.get(number).is_none_or(Vec::is_empty));
            if history.outcome.is_none() && !history.delegated {
                match (refused, complete, decides) {
                    (true, ..) => abort(history),
                    (false, true, Some(_)) => history.delegated = true,
                    (false, true, None) => history.outcome = Some((Outcome::Committed, index)),
                    (false, false, _) => {}
                }
            }
        }
    }
}

/// Adds the branches, unless one of them contradicts another.
fn add(history: &mut History, branches: &[NewBranch]) -> bool {
    branches.iter().all(|branch| {
        let known = history.registered.entry(branch.number).or_insert_with(|| branch.clone());
        known == branch
    })
}
