//! What clients do: transfers, seats and lists at several banks, retried, repeated, raced and given up in every way that is allowed.
//!
//! A client that is killed forgets nothing in vain: what it had begun lies on the table ([`Work`]), and another
//! client may take it up under its xid, as a restarted process would.

mod calls;
mod desks;
mod holder;
mod lists;
mod operator;
mod seats;
mod transfers;
mod vaults;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::time::{sleep, timeout};
use verdict_client::{Branch, Transaction, Verdict};
use verdict_protocol::{BranchId, BranchNumber, Xid};

pub use self::calls::look_up;
pub(crate) use self::operator::look_after;
use crate::{
    history::{History, What},
    plan::Place,
    world::{Shared, bank_name, bank_of},
};

/// What clients have begun.
#[derive(Debug)]
pub struct Work(Mutex<Table>);

#[derive(Debug)]
struct Table {
    /// Every transaction that was ordered.
    ordered: BTreeMap<Xid, Vec<Branch>>,
    /// What commit is to list, where that is not all that was ordered.
    listed: BTreeMap<Xid, Vec<Branch>>,
    /// The branch that decides, where one does.
    delegates: BTreeMap<Xid, BranchNumber>,
    /// Branches that were prepared and are in no list.
    left_out: BTreeSet<(usize, BranchId)>,
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
        let (listed, delegates, left_out) = (BTreeMap::new(), BTreeMap::new(), BTreeSet::new());
        let table = Table { ordered, listed, delegates, left_out, open, busy, left: transactions, closing: false };
        Self(Mutex::new(table))
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// From now on nothing new is begun; what is under way comes to its end.
    pub fn close(&self) {
        self.table().closing = true;
    }

    fn is_closing(&self) -> bool {
        self.table().closing
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
        table.ordered.iter().flat_map(of).chain(table.left_out.iter().copied()).collect()
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

    /// The branches of a transaction as they were ordered.
    fn ordered(&self, xid: Xid) -> Vec<Branch> {
        self.table().ordered.get(&xid).cloned().unwrap_or_default()
    }

    /// Nobody is to take it up yet: what is to be listed is not clear.
    fn withhold(&self, xid: Xid) {
        self.table().open.remove(&xid);
    }

    /// From now on this is what commit lists.
    fn list(&self, xid: Xid, branches: Vec<Branch>) {
        let mut table = self.table();
        table.listed.insert(xid, branches);
        table.open.insert(xid);
    }

    /// From now on this branch decides.
    fn delegate(&self, xid: Xid, number: BranchNumber) {
        self.table().delegates.insert(xid, number);
    }

    fn left_out(&self, bank: usize, branch: BranchId) {
        self.table().left_out.insert((bank, branch));
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
    fn take_up(&self, random: &mut StdRng) -> Option<(Xid, Vec<Branch>, Option<BranchNumber>)> {
        let table = self.table();
        let at = random.random_range(0..table.open.len().max(1));
        let xid = *table.open.iter().nth(at)?;
        let listed = table.listed.get(&xid).or_else(|| table.ordered.get(&xid));
        Some((xid, listed?.clone(), table.delegates.get(&xid).copied()))
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
    /// Commits, waits until all branches are settled, and reads what they left.
    ReadBack,
    /// Prepares the branches itself.
    Bring,
    /// Has them prepared and settled by its own library.
    Drive,
    /// Begins under an idempotency key, as others do.
    Once,
    /// Opens a session that others use too, and works under it.
    Session,
}

const STYLES: [(Style, u32); 14] = [
    (Style::Plain, 30),
    (Style::Enlist, 12),
    (Style::Begin, 8),
    (Style::Abandon, 14),
    (Style::Race, 10),
    (Style::Rollback, 5),
    (Style::Vanish, 4),
    (Style::Repeat, 9),
    (Style::TakeUp, 8),
    (Style::ReadBack, 8),
    (Style::Bring, 9),
    (Style::Drive, 9),
    (Style::Once, 7),
    (Style::Session, 6),
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
            Style::Plain if self.shared.plan.databases > 0 && self.chance(0.4) => self.drive_vaults().await,
            Style::Plain if self.shared.plan.forgets() && self.chance(0.3) => self.commit_late().await,
            Style::Plain => self.commit(&self.delegate(self.order(self.verdict.transaction()))).await,
            Style::Enlist => {
                let mut transaction = self.order(self.verdict.transaction());
                if self.chance(0.5) {
                    transaction = self.enlist_and_leave_out(&transaction).await;
                } else {
                    self.enlist(&transaction, true).await;
                }
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
                let transaction = self.delegate(self.order(self.verdict.transaction()));
                self.commit(&transaction).await;
                self.get(transaction.xid()).await;
                self.commit(&transaction).await;
            }
            Style::ReadBack => {
                let transaction = self.order(self.verdict.transaction());
                self.commit(&transaction).await;
                self.read_lists(transaction.xid()).await;
            }
            Style::Bring => self.bring().await,
            Style::Drive => self.drive().await,
            Style::Once => self.once().await,
            Style::Session => self.in_session().await,
            Style::TakeUp => {
                let found = self.shared.work.take_up(&mut self.random());
                let Some((xid, branches, delegate)) = found else { return };
                let mut transaction = self.verdict.resume(xid);
                if let Some(number) = delegate {
                    transaction.decided_by(number);
                }
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

    /// Draws what is to be done.
    fn order(&self, transaction: Transaction) -> Transaction {
        self.order_at(transaction, self.shared.plan.banks)
    }

    /// The same, at so many participants.
    fn order_at(&self, mut transaction: Transaction, banks: usize) -> Transaction {
        let (deeds, filler) = {
            let random = &mut *self.random();
            let deeds = match random.random_range(0..10) {
                0..5 => transfers::draw(random, banks),
                5..8 => seats::draw(random, banks),
                _ => lists::draw(random, banks),
            };
            // A batch of more than a sector can be torn.
            (deeds, if random.random_bool(0.5) { random.random_range(0..1_500) } else { 0 })
        };
        let mut listed = Vec::new();
        for (number, (bank, deed)) in (1..).zip(&deeds) {
            let (resource, payload) = (bank_name(*bank), deed.payload(filler).into());
            let branch = Branch { number, resource, payload, vote: None };
            transaction.add_branch(branch.clone()).expect("the numbers differ");
            listed.push(branch);
        }
        let xid = transaction.xid();
        let told = (1..).zip(&deeds).map(|(number, (bank, deed))| (number, *bank, deed.to_string()));
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
        let transaction = self.delegate(self.order(self.verdict.transaction()));
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
        let transaction = Arc::new(self.delegate(self.order(self.verdict.transaction())));
        let (lane, other) = (self.clone(), Arc::clone(&transaction));
        let pause = Duration::from_millis(self.random().random_range(0..60));
        let rollback = tokio::spawn(async move {
            sleep(pause).await;
            lane.rollback(&other).await;
        });
        self.commit(&transaction).await;
        drop(rollback.await);
    }
}
