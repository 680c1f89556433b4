//! Random histories of a node's files on a simulated disk, beside a simple model.
//!
//! ```text
//!   one operation at a time; a crash, a failed sync or a full disk can end it anywhere
//!   then the files must hold what they held before it, or what they hold after it, and nothing else
//!   or say what is damaged, and be whole again after a repair
//! ```

#![allow(unreachable_pub, reason = "shared by the tests of this folder")]

pub mod buggy;
pub mod coverage;
pub mod model;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use bytes::Bytes;
use rand::{Rng, RngExt, SeedableRng, rngs::StdRng};
use verdict_raft_log::files::testing::SimDisk;
use verdict_raft_log::files::{Damage, Disk, Log, Purged, Record, RepairFrom, StorageError};

use buggy::{Bug, BuggyDisk};
use coverage::Coverage;
use model::{Model, Node, judge_damage, open};

struct History {
    rng: StdRng,
    sim: SimDisk,
    bug: Bug,
    /// What the files hold for certain, because it was acknowledged.
    model: Model,
    /// What they may hold instead, because of an operation that was not answered.
    or: Option<Model>,
    /// Every body that was ever written at an index.
    ever: BTreeMap<u64, BTreeSet<Bytes>>,
    /// Whether something was damaged on purpose since the files were last found whole.
    harmed: bool,
    coverage: Coverage,
}

/// Why an operation has no result: the process died, or the storage failed.
type Interrupted = StorageError;

/// Runs one history. The error says what rule was broken, and how to run it again.
pub fn run(seed: u64, bug: Bug) -> Result<Coverage, String> {
    let mut history = History {
        rng: StdRng::seed_from_u64(seed),
        sim: SimDisk::new(),
        bug,
        model: Model::default(),
        or: None,
        ever: BTreeMap::new(),
        harmed: false,
        coverage: Coverage::default(),
    };
    let shows = std::env::var_os("VERDICT_TRACE").is_some();
    if shows {
        history.sim.record_trace();
    }
    let done = history.run();
    if shows {
        history.sim.take_trace().iter().for_each(|event| println!("{event:?}"));
    }
    done.map(|()| history.coverage).map_err(|why| format!("{why}\nrun it again with VERDICT_SEED={seed}"))
}

impl History {
    fn run(&mut self) -> Result<(), String> {
        let Some(mut node) = self.reopen()? else { return Ok(()) };
        for _ in 0..self.rng.random_range(5..40) {
            self.coverage.operations += 1;
            if self.rng.random_bool(0.05) {
                let operations = self.rng.random_range(0..12);
                self.sim.die_after(Some(operations));
            }
            if self.rng.random_bool(0.03) {
                self.sim.fail_syncs(self.rng.random_range(0..4), 1);
            }
            if self.rng.random_bool(0.02) {
                self.sim.set_room(Some(self.rng.random_range(0..6000)));
            }
            let goes_on = match self.operate(&mut node)? {
                Ok(goes_on) => goes_on,
                Err(error) => {
                    self.coverage.failures += 1;
                    self.check_stopped(&mut node, &error)?;
                    false
                }
            };
            if !goes_on {
                drop(node);
                match self.reopen()? {
                    Some(opened) => node = opened,
                    None => return Ok(()),
                }
            }
        }
        drop(node);
        self.sim.crash(&mut self.rng);
        self.reopen().map(drop)
    }

    fn body(&mut self) -> Bytes {
        let size = match self.rng.random_range(0..20) {
            0 => 0,
            1 | 3 | 4 => self.rng.random_range(500..2500),
            2 => 512,
            _ => self.rng.random_range(1..60),
        };
        let mut body = vec![0; size];
        if self.rng.random_bool(0.8) {
            self.rng.fill_bytes(&mut body);
        }
        body.into()
    }

    /// One operation: whether the process goes on, or why it does not. The outer error is a broken rule.
    fn operate(&mut self, node: &mut Node) -> Result<Result<bool, Interrupted>, String> {
        match self.rng.random_range(0..100) {
            0..47 => Ok(self.append(node)),
            47..50 => Ok(make_spare(node).map(|()| true)),
            50..59 => Ok(self.truncate(node)),
            59..68 => Ok(self.snapshot_and_purge(node).map(|()| true)),
            68..78 => Ok(self.save_ballot(node).map(|()| true)),
            78..84 => self.check_reading(node).map(|()| Ok(true)),
            84..87 => {
                self.harm();
                Ok(Ok(self.rng.random_bool(0.7)))
            }
            87..93 => {
                self.sim.crash(&mut self.rng);
                self.coverage.crashes += 1;
                Ok(Ok(false))
            }
            _ => {
                self.coverage.kills += 1;
                Ok(Ok(false))
            }
        }
    }

    /// Remembers what the files may hold from now on, until the operation is answered.
    fn begin(&mut self, change: impl FnOnce(&mut Model)) {
        let mut after = self.model.clone();
        change(&mut after);
        self.or = Some(after);
    }

    fn answered(&mut self) {
        if let Some(after) = self.or.take() {
            self.model = after;
        }
    }

    fn append(&mut self, node: &mut Node) -> Result<bool, Interrupted> {
        let first = self.model.next;
        let count = self.rng.random_range(1..5);
        let records: Vec<_> = (first..first + count).map(|index| Record::new(index, self.body())).collect();
        for record in &records {
            self.ever.entry(record.index).or_default().insert(record.body.clone());
        }
        let staged = node.files.log.stage(&records)?;
        self.begin(|model| model.append(&records));
        self.drive(&mut node.files.log, staged)
    }

    fn truncate(&mut self, node: &mut Node) -> Result<bool, Interrupted> {
        let next = self.rng.random_range(self.model.first()..=self.model.next);
        let staged = node.files.log.stage_truncate(next.checked_sub(1))?;
        self.begin(|model| model.truncate(next));
        self.drive(&mut node.files.log, staged)
    }

    /// Brings a batch through its steps; the process may stop between any two. Whether it goes on.
    fn drive(&mut self, log: &mut Log, staged: verdict_raft_log::files::Staged) -> Result<bool, Interrupted> {
        let stop = if self.rng.random_bool(0.12) { self.rng.random_range(0..3) } else { 3 };
        if stop == 0 {
            return Ok(self.stop());
        }
        let written = log.write(staged)?;
        if self.bug == Bug::ReportEarly {
            self.answered();
        }
        if stop == 1 {
            return Ok(self.stop());
        }
        let synced = log.sync(written)?;
        self.answered();
        if stop == 2 {
            return Ok(self.stop());
        }
        log.complete(synced);
        Ok(true)
    }

    fn stop(&mut self) -> bool {
        if self.rng.random_bool(0.7) {
            self.sim.crash(&mut self.rng);
            self.coverage.crashes += 1;
        } else {
            self.coverage.kills += 1;
        }
        false
    }

    fn snapshot_and_purge(&mut self, node: &mut Node) -> Result<(), Interrupted> {
        let beyond = self.rng.random_bool(0.15);
        let last = if beyond { self.model.next + self.rng.random_range(0..5) } else { self.model.next.max(1) - 1 };
        if last < self.model.first() {
            return Ok(());
        }
        let index = self.rng.random_range(self.model.first()..=last);
        let sealed = (format!("sealed-{}", index / 8), Bytes::from(format!("sealed {}", index / 8)));
        let open = (format!("open-{index}"), self.body());
        let mark = Bytes::from(format!("mark of {index}"));
        self.coverage.purges += 1;
        if self.bug == Bug::PurgeBeforeSnapshot {
            self.begin(|model| model.purge(index, mark.clone()));
            node.files.log.purge_up_to(index, mark)?;
            self.answered();
            return self.take_snapshot(node, index, &[sealed, open]);
        }
        self.take_snapshot(node, index, &[sealed, open])?;
        self.begin(|model| model.purge(index, mark.clone()));
        node.files.log.purge_up_to(index, mark)?;
        self.answered();
        Ok(())
    }

    fn take_snapshot(&mut self, node: &mut Node, index: u64, sections: &[(String, Bytes)]) -> Result<(), Interrupted> {
        // An id names its content for ever: what is stored under it already stays.
        let body = |(id, body): &(String, Bytes)| {
            let id = verdict_raft_log::files::SectionId::new(id.clone())?;
            match node.snapshots.stored(&id).cloned() {
                Some(stored) => node.snapshots.read(&stored),
                None => Ok(body.clone()),
            }
        };
        let bodies = sections.iter().map(body).collect::<Result<Vec<_>, _>>()?;
        self.begin(|model| model.snapshot = Some((index, bodies)));
        node.snapshot(index, sections)?;
        self.answered();
        Ok(())
    }

    fn save_ballot(&mut self, node: &mut Node) -> Result<(), Interrupted> {
        let mut ballot = self.body();
        ballot.truncate(1500);
        self.begin(|model| model.ballot = Some(ballot.clone()));
        node.files.save_ballot(ballot)?;
        self.answered();
        Ok(())
    }

    fn check_reading(&mut self, node: &mut Node) -> Result<(), String> {
        match node.observe() {
            Ok(seen) if seen == self.model => Ok(()),
            Ok(seen) => Err(format!("reads {seen:?}\nwhere it should be {:?}", self.model)),
            Err(StorageError::Damage(_)) if self.harmed => Ok(()),
            // The process died while it read.
            Err(StorageError::Io { .. }) => Ok(()),
            Err(error) => Err(format!("reading failed: {error}")),
        }
    }

    fn harm(&mut self) {
        // One file at most: who loses all of them looks like somebody new.
        if self.harmed || self.rng.random_bool(0.85) {
            self.harmed = true;
            let flipped = self.sim.flip_any_bit(&mut self.rng);
            self.sim.mark(format!("flipped {flipped:?}"));
        } else {
            self.harmed = true;
            let files = self.sim.sizes();
            let (name, _) = &files[self.rng.random_range(0..files.len())];
            self.sim.lose_file(name);
            self.sim.mark(format!("lost {name}"));
        }
    }

    /// I19: after a failure nothing more is taken.
    fn check_stopped(&mut self, node: &mut Node, error: &StorageError) -> Result<(), String> {
        if node.files.log.failure().is_none() {
            return Ok(());
        }
        match node.files.log.stage(&[Record::new(node.files.log.next_index(), "more")]) {
            Err(StorageError::Stopped(_)) => Ok(()),
            other => Err(format!("after {error} the log still takes records: {other:?}")),
        }
    }

    /// Opens the files after a crash or without one, checks them, and repairs them if they are damaged. `None` ends
    /// the history: damage was reported that no repair of the log mends.
    fn reopen(&mut self) -> Result<Option<Node>, String> {
        if self.rng.random_bool(0.4) {
            self.sim.crash(&mut self.rng);
            self.coverage.crashes += 1;
        }
        self.sim.set_room(None);
        for attempt in 0..40 {
            self.sim.fail_syncs(0, 0);
            self.sim.die_after(None);
            if attempt < 3 && self.rng.random_bool(0.15) {
                self.sim.die_after(Some(self.rng.random_range(0..20)));
            }
            if attempt < 3 && self.rng.random_bool(0.05) {
                self.sim.fail_syncs(self.rng.random_range(0..4), 1);
            }
            let disk: Arc<dyn Disk> = Arc::new(BuggyDisk::new(Arc::new(self.sim.mount()), self.bug));
            let outcome = open(disk);
            match outcome {
                Ok((node, recovery)) => {
                    self.coverage.torn += u64::from(recovery.torn.is_some());
                    let Some(damage) = recovery.damage else { return self.check_whole(node) };
                    match self.repair(node, damage)? {
                        Ok(done) => return Ok(done),
                        Err(StorageError::Misuse(why)) => return Err(why),
                        Err(_interrupted) => {}
                    }
                }
                Err(StorageError::Damage(damage)) => {
                    return if self.harmed { Ok(None) } else { Err(format!("unharmed, and says {damage}")) };
                }
                Err(StorageError::Io { .. } | StorageError::SyncFailed { .. }) => {}
                Err(error) => return Err(format!("opening failed: {error}")),
            }
            if self.rng.random_bool(0.5) {
                self.sim.crash(&mut self.rng);
            }
        }
        Err("the files do not open in 40 attempts".into())
    }

    fn check_whole(&mut self, mut node: Node) -> Result<Option<Node>, String> {
        let seen = match node.observe() {
            Ok(seen) => seen,
            Err(StorageError::Damage(_)) if self.harmed => return Ok(None),
            Err(StorageError::Io { .. }) => return self.reopen(),
            Err(error) => return Err(format!("reading failed: {error}")),
        };
        if self.harmed && seen.snapshot.is_none() && self.model.snapshot.is_some() {
            // Its manifest's file was lost. Behind a purge point that is said; else the log has everything.
            if seen.purged.is_some() {
                let said = node.files.snapshot_is_gone(&node.snapshots);
                return said.map(|_damage| None).ok_or_else(|| "a snapshot is gone and nothing says so".into());
            }
            for model in std::iter::once(&mut self.model).chain(&mut self.or) {
                model.snapshot = None;
            }
        }
        if seen == self.model || self.or.as_ref() == Some(&seen) {
            let (snapshot, purged) = (seen.snapshot.as_ref().map(|(index, _)| *index), seen.purged.as_ref());
            if let Some((purged, _)) = purged
                && snapshot.is_none_or(|snapshot| snapshot < *purged)
            {
                return Err(format!("purged up to {purged}, and the snapshot reaches {snapshot:?}"));
            }
            self.model = seen;
            self.or = None;
            return Ok(Some(node));
        }
        Err(format!("found {seen:?}\nwhere it should be {:?}\nor {:?}", self.model, self.or))
    }

    /// Repairs from a peer that has everything. The inner error: the process died, and what is on the disk is damaged
    /// as before, or whole.
    fn repair(&mut self, mut node: Node, damage: Damage) -> Result<Result<Option<Node>, Interrupted>, String> {
        self.coverage.damages += 1;
        if !self.harmed {
            return Err(format!("unharmed, and says {damage}"));
        }
        let seen = match node.observe() {
            Ok(seen) => seen,
            // A section of the snapshot is damaged, too.
            Err(StorageError::Damage(_)) => return Ok(Ok(None)),
            Err(error) => return Ok(Err(error)),
        };
        let allowed: Vec<Model> = std::iter::once(self.model.clone()).chain(self.or.clone()).collect();
        judge_damage(&damage, &seen, &allowed, &self.ever)?;
        match self.repair_from_peer(&mut node, &seen) {
            Ok(()) => {}
            Err(error) => return Ok(Err(error)),
        }
        self.coverage.repairs += 1;
        self.check_whole(node).map(Ok)
    }

    fn repair_from_peer(&mut self, node: &mut Node, seen: &Model) -> Result<(), Interrupted> {
        // The peer has whatever may have been acknowledged, so the later log of both.
        let peer = self.or.clone().unwrap_or_else(|| self.model.clone());
        let agrees = |index: &u64| seen.records.get(index) == peer.records.get(index);
        let last =
            peer.records.keys().copied().take_while(|index| seen.records.contains_key(index) && agrees(index)).last();
        // A snapshot can be beyond the purge point, if the process died between the two.
        let purged = peer.purged.clone().map(|(index, mark)| Purged { index, mark });
        let same_purge = seen.purged == peer.purged;
        let from = match last {
            Some(last) if same_purge => RepairFrom::After(last),
            _ => RepairFrom::Start(purged),
        };
        let lost_end = node.files.log.damage().map_or(0, |damage| *damage.lost.end());
        let mut repair = node.files.log.repair(from)?;
        let mut peer = peer;
        // Damage may name records that were never there; the peer has gone on meanwhile.
        while peer.next <= lost_end {
            let body = Bytes::from_static(b"written by the peer");
            self.ever.entry(peer.next).or_default().insert(body.clone());
            peer.append(&[Record::new(peer.next, body)]);
        }
        let records: Vec<_> =
            peer.records.range(repair.next_index()..).map(|(index, body)| Record::new(*index, body.clone())).collect();
        let or = self.or.get_or_insert_with(|| self.model.clone());
        (or.records, or.next, or.purged) = (peer.records.clone(), peer.next, peer.purged.clone());
        repair.push(&records)?;
        repair.finish()?;
        let model = &mut self.model;
        (model.records, model.next, model.purged) = (peer.records, peer.next, peer.purged);
        Ok(())
    }
}

/// As the driver does it on a thread of its own. That it fails matters to nobody.
fn make_spare(node: &mut Node) -> Result<(), Interrupted> {
    if let Some(plan) = node.files.log.spare_plan()
        && let Ok(Some(spare)) = plan.make(&AtomicBool::new(false))
    {
        node.files.log.give_spare(spare);
    }
    Ok(())
}
