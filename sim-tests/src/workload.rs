//! What clients do: transfers over several banks, retried, repeated, raced and given up in every way that is allowed.
//!
//! A client that is killed forgets nothing in vain: what it had begun lies on the table ([`Work`]), and another
//! client may take it up under its xid, as a restarted process would.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::time::{sleep, timeout};
use verdict_client::{Branch, CallError, Decision, RefusalCode, Transaction, Verdict};
use verdict_protocol::{BranchId, Xid};

use crate::{
    bank::payload,
    history::{Answer, Ask, History, What},
    plan::{ACCOUNTS, BANKS, Place},
    world::{Shared, bank_name, bank_of},
};

/// What clients have begun.
#[derive(Debug)]
pub struct Work(Mutex<Table>);

#[derive(Debug)]
struct Table {
    /// Every transaction that was ordered.
    ordered: BTreeMap<Xid, Vec<Branch>>,
    /// Those of them that nobody has heard the outcome of.
    open: BTreeSet<Xid>,
    /// Lanes at work, for each client.
    busy: Vec<usize>,
    /// How many more may be begun.
    left: u64,
    /// Nothing new is begun.
    closing: bool,
}

impl Work {
    #[must_use]
    pub fn new(clients: usize, transactions: u64) -> Self {
        let (ordered, open, busy) = (BTreeMap::new(), BTreeSet::new(), vec![0; clients]);
        let table = Table { ordered, open, busy, left: transactions, closing: false };
        Self(Mutex::new(table))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on nothing new is begun; what is under way comes to its end.
    pub fn close(&self) {
        self.table().closing = true;
    }

    /// Lanes that still work.
    #[must_use]
    pub fn busy(&self) -> usize {
        self.table().busy.iter().sum()
    }

    pub(crate) fn died(&self, client: usize) {
        self.table().busy[client] = 0;
    }

    /// Every transaction that was ordered.
    #[must_use]
    pub fn xids(&self) -> Vec<Xid> {
        self.table().ordered.keys().copied().collect()
    }

    /// Every branch that was ordered, with its bank.
    #[must_use]
    pub fn branches(&self) -> BTreeSet<(usize, BranchId)> {
        let table = self.table();
        let of = |(xid, branches): (&Xid, &Vec<Branch>)| {
            let xid = *xid;
            let at = |branch: &Branch| (bank_of(&branch.resource), BranchId { xid, number: branch.number });
            branches.iter().map(at).collect::<Vec<_>>()
        };
        table.ordered.iter().flat_map(of).collect()
    }

    fn begin_or_end(&self, client: usize, begin: bool) -> bool {
        let mut table = self.table();
        if begin && (table.closing || table.left == 0) {
            return false;
        }
        table.left -= u64::from(begin);
        table.busy[client] = if begin { table.busy[client] + 1 } else { table.busy[client].saturating_sub(1) };
        true
    }

    fn order(&self, xid: Xid, branches: Vec<Branch>) {
        let mut table = self.table();
        table.ordered.insert(xid, branches);
        table.open.insert(xid);
    }

    fn heard(&self, xid: Xid) {
        self.table().open.remove(&xid);
    }

    /// A transaction that somebody began and nobody knows the outcome of.
    fn take_up(&self, random: &mut StdRng) -> Option<(Xid, Vec<Branch>)> {
        let table = self.table();
        let at = random.random_range(0..table.open.len().max(1));
        let xid = *table.open.iter().nth(at)?;
        Some((xid, table.ordered.get(&xid)?.clone()))
    }
}

/// A client's process: its lanes work side by side until nothing new is to be begun.
pub async fn work(shared: Arc<Shared>, client: usize) {
    let verdict = shared.verdict(Place::Client(client));
    let lanes: Vec<_> = (0..shared.plan.lanes)
        .map(|_| {
            let lane = Lane {
                shared: Arc::clone(&shared),
                place: Place::Client(client),
                verdict: verdict.clone(),
                random: Arc::new(Mutex::new(StdRng::seed_from_u64(shared.draw()))),
            };
            tokio::spawn(async move { lane.run(client).await })
        })
        .collect();
    for lane in lanes {
        // A lane that panics takes the whole simulation down.
        drop(lane.await);
    }
    // The process stays up, idle.
    std::future::pending().await
}

/// One transaction after another.
#[derive(Clone, Debug)]
struct Lane {
    shared: Arc<Shared>,
    place: Place,
    verdict: Verdict,
    random: Arc<Mutex<StdRng>>,
}

/// How a client goes about a transaction.
#[derive(Clone, Copy, Debug)]
enum Style {
    /// Commit brings the list.
    Plain,
    /// Branches are registered one by one first.
    Enlist,
    /// Registered early, then as it comes.
    Begin,
    /// Stops waiting for the commit, and later asks again, gives up, or forgets.
    Abandon,
    /// Commit and rollback at the same time.
    Race,
    /// Registers and rolls back; a late commit follows now and then.
    Rollback,
    /// Registers and is not heard of again.
    Vanish,
    /// Commits again what is decided, and looks it up.
    Repeat,
    /// Takes up what another began.
    TakeUp,
}

const STYLES: [(Style, u32); 9] = [
    (Style::Plain, 30),
    (Style::Enlist, 12),
    (Style::Begin, 8),
    (Style::Abandon, 14),
    (Style::Race, 10),
    (Style::Rollback, 5),
    (Style::Vanish, 4),
    (Style::Repeat, 9),
    (Style::TakeUp, 8),
];

impl Lane {
    fn random(&self) -> MutexGuard<'_, StdRng> {
        self.random.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn history(&self) -> &History {
        &self.shared.history
    }

    async fn run(&self, client: usize) {
        while self.shared.work.begin_or_end(client, true) {
            self.transact().await;
            self.shared.work.begin_or_end(client, false);
            let think = u64::try_from(self.shared.plan.think.as_millis()).unwrap_or(0);
            let think = self.random().random_range(0..=think.max(1));
            sleep(Duration::from_millis(think)).await;
        }
    }

    async fn transact(&self) {
        let whole: u32 = STYLES.iter().map(|(_, weight)| weight).sum();
        let mut drawn = self.random().random_range(0..whole);
        let style = STYLES.iter().find(|(_, weight)| {
            let here = drawn < *weight;
            drawn = drawn.saturating_sub(*weight);
            here
        });
        match style.map_or(Style::Plain, |(style, _)| *style) {
            Style::Plain => self.commit(&self.order(self.verdict.transaction())).await,
            Style::Enlist => {
                let transaction = self.order(self.verdict.transaction());
                self.enlist(&transaction, true).await;
                self.commit(&transaction).await;
            }
            Style::Begin => self.begin().await,
            Style::Abandon => self.abandon().await,
            Style::Race => self.race().await,
            Style::Rollback => {
                let transaction = self.order(self.verdict.transaction());
                self.enlist(&transaction, false).await;
                self.rollback(&transaction).await;
                if self.chance(0.3) {
                    self.commit(&transaction).await;
                }
            }
            Style::Vanish => self.enlist(&self.order(self.verdict.transaction()), false).await,
            Style::Repeat => {
                let transaction = self.order(self.verdict.transaction());
                self.commit(&transaction).await;
                self.get(transaction.xid()).await;
                self.commit(&transaction).await;
            }
            Style::TakeUp => {
                let found = self.shared.work.take_up(&mut self.random());
                let Some((xid, branches)) = found else { return };
                let mut transaction = self.verdict.resume(xid);
                for branch in branches {
                    transaction.add_branch(branch).expect("the branches were right before");
                }
                self.commit(&transaction).await;
            }
        }
    }

    fn chance(&self, probability: f64) -> bool {
        self.random().random_bool(probability)
    }

    /// Draws what is to be transferred: what some accounts lose, others get.
    fn order(&self, mut transaction: Transaction) -> Transaction {
        let mut branches = Vec::new();
        {
            let random = &mut *self.random();
            let amount: i64 = random.random_range(1..=60);
            let first = random.random_range(0..BANKS);
            let step = if random.random_bool(0.2) { 0 } else { random.random_range(1..BANKS) };
            let second = (first + step) % BANKS;
            branches.push((first, random.random_range(0..ACCOUNTS), -amount));
            if random.random_bool(0.4) {
                let part = random.random_range(0..=amount);
                branches.push((second, random.random_range(0..ACCOUNTS), part));
                let third = (2 * BANKS - first - second) % BANKS;
                branches.push((third, random.random_range(0..ACCOUNTS), amount - part));
            } else {
                branches.push((second, random.random_range(0..ACCOUNTS), amount));
            }
            if random.random_bool(0.08) {
                branches.push((random.random_range(0..BANKS), 0, 0));
            }
            if random.random_bool(0.05) {
                // There is no such account: the bank refuses.
                branches.push((random.random_range(0..BANKS), ACCOUNTS, 1));
            }
        }
        // A batch of more than a sector can be torn.
        let filler = if self.chance(0.5) { self.random().random_range(0..1_500) } else { 0 };
        let mut listed = Vec::new();
        for (number, (bank, account, change)) in (1..).zip(&branches) {
            let resource = bank_name(*bank);
            let branch = Branch { number, resource, payload: payload(*account, *change, filler).into(), vote: None };
            transaction.add_branch(branch.clone()).expect("the numbers differ");
            listed.push(branch);
        }
        let xid = transaction.xid();
        let told = (1..)
            .zip(&branches)
            .map(|(number, (bank, account, change))| (number, *bank, payload(*account, *change, 0)));
        self.history().record(self.place, What::Ordered { xid, branches: told.collect() });
        self.shared.work.order(xid, listed);
        transaction
    }

    async fn begin(&self) {
        let mut transaction = match self.verdict.begin(Duration::from_millis(1_500)).await {
            Ok(transaction) => transaction,
            // Its xid went with it.
            Err(_) => return,
        };
        transaction = self.order(transaction);
        self.enlist(&transaction, false).await;
        self.commit(&transaction).await;
    }

    async fn abandon(&self) {
        let transaction = self.order(self.verdict.transaction());
        let patience = Duration::from_millis(self.random().random_range(1..400));
        if timeout(patience, self.commit(&transaction)).await.is_ok() {
            return;
        }
        let pause = Duration::from_millis(self.random().random_range(0..1_500));
        sleep(pause).await;
        if self.chance(0.4) {
            self.commit(&transaction).await;
        } else if self.chance(0.5) {
            self.rollback(&transaction).await;
        }
    }

    async fn race(&self) {
        let transaction = Arc::new(self.order(self.verdict.transaction()));
        let (lane, other) = (self.clone(), Arc::clone(&transaction));
        let pause = Duration::from_millis(self.random().random_range(0..60));
        let rollback = tokio::spawn(async move {
            sleep(pause).await;
            lane.rollback(&other).await;
        });
        self.commit(&transaction).await;
        drop(rollback.await);
    }

    /// Registers branches, each by a call; or only some.
    async fn enlist(&self, transaction: &Transaction, all: bool) {
        let branches = self.shared.work.table().ordered.get(&transaction.xid()).cloned().unwrap_or_default();
        let mut registering = self.verdict.resume(transaction.xid());
        for branch in branches {
            if !all && self.chance(0.4) {
                continue;
            }
            let (xid, ask) = (transaction.xid(), Ask::Enlist(branch.number));
            let Branch { number, resource, payload, .. } = branch;
            let call = self.asks(xid, ask);
            let answer = match registering.enlist_as(number, resource, payload).await {
                Ok(_) => Answer::Done,
                Err(error) => failed(&error),
            };
            self.hears(call, xid, ask, answer);
        }
    }

    /// Commits until there is an answer.
    async fn commit(&self, transaction: &Transaction) {
        let xid = transaction.xid();
        loop {
            let call = self.asks(xid, Ask::Commit);
            let done = transaction.commit().await;
            if self.decided(call, xid, Ask::Commit, done) {
                return;
            }
        }
    }

    async fn rollback(&self, transaction: &Transaction) {
        let xid = transaction.xid();
        loop {
            let call = self.asks(xid, Ask::Rollback);
            let done = transaction.rollback("the client changed its mind").await;
            if self.decided(call, xid, Ask::Rollback, done) {
                return;
            }
        }
    }

    /// Records an answer; false if there was none.
    fn decided(&self, call: u64, xid: Xid, ask: Ask, done: Result<Decision, CallError>) -> bool {
        let (answer, heard) = match done {
            Ok(decision) => (decided(decision), true),
            Err(error @ CallError::Unknown { .. }) => (failed(&error), false),
            // Nothing was logged for want of room: it may be asked again.
            Err(error) => (failed(&error), error.code() != Some(RefusalCode::Overloaded)),
        };
        self.hears(call, xid, ask, answer);
        if heard {
            self.shared.work.heard(xid);
        }
        heard
    }

    async fn get(&self, xid: Xid) {
        let call = self.asks(xid, Ask::Get);
        let answer = look_up(&self.verdict, xid).await;
        self.hears(call, xid, Ask::Get, answer);
    }

    fn asks(&self, xid: Xid, ask: Ask) -> u64 {
        let call = self.history().call();
        self.history().record(self.place, What::Asked { call, xid, ask });
        call
    }

    fn hears(&self, call: u64, xid: Xid, ask: Ask, answer: Answer) {
        self.history().record(self.place, What::Answered { call, xid, ask, answer });
    }
}

/// Looks a transaction up.
pub async fn look_up(verdict: &Verdict, xid: Xid) -> Answer {
    match verdict.get(xid).await {
        Ok(status) => status.decision.map_or(Answer::Undecided(status.state), decided),
        Err(error) => failed(&error),
    }
}

fn decided(decision: Decision) -> Answer {
    let reason = decision.reason.map_or_else(String::new, |reason| format!("{}: {}", reason.code, reason.text));
    Answer::Decided { outcome: decision.outcome, index: decision.log_index, reason }
}

fn failed(error: &CallError) -> Answer {
    match error {
        CallError::Unknown { .. } => Answer::Unknown,
        CallError::Refused { code, .. } => Answer::Refused(code.to_string()),
    }
}
