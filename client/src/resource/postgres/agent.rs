//! Who settles what an application left prepared.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use deadpool_postgres::Object;
use verdict_protocol::{BranchId, Conclusion, Outcome, Reason};

use super::{
    Postgres,
    gid::{Gid, branch_of, prefix},
    outcome::{failed, finish},
};
use crate::participant::{
    Fence, NotAnswered, OnePhase, Prepare, Purpose, ResourceManager, Settle, Settled, Stamp, Voted,
};

/// Finishes prepared transactions of one cluster in one database, by the cluster's word only; those of others it does not
/// see. It does no work of its own: what an application has not prepared it refuses.
///
/// PostgreSQL keeps no tombstones: a `PREPARE TRANSACTION` that comes after its rollback is found by the next sweep, and
/// the cluster asked about it.
#[derive(Debug)]
pub struct Agent {
    database: Postgres,
    known: Mutex<Known>,
}

#[derive(Debug)]
struct Known {
    fence: Fence,
    /// The numbers of what the last look at the database found prepared: one that is settled by others meanwhile can be
    /// judged by its own.
    held: Arc<BTreeMap<BranchId, u64>>,
}

/// `transaction` has lost its epoch: it is that of the newest number, or the one before.
const HELD: &str = "SELECT gid, transaction::text::int8, pg_snapshot_xmax(pg_current_snapshot())::text::int8 \
                    FROM pg_prepared_xacts \
                    WHERE database = current_database() AND starts_with(gid, $1) ORDER BY prepared LIMIT $2";

impl Agent {
    pub(super) fn new(database: Postgres) -> Self {
        let fence = Fence { cluster: Some(database.cluster), ..Fence::default() };
        Self { database, known: Mutex::new(Known { fence, held: Arc::default() }) }
    }

    /// Nothing panics while it is held.
    fn known(&self) -> MutexGuard<'_, Known> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn admit(&self, stamp: &Stamp, purpose: Purpose) -> Result<(), NotAnswered> {
        self.known().fence.admit(stamp, purpose).map(drop)
    }

    async fn connect(&self) -> Result<Object, NotAnswered> {
        self.database.connect().await.map_err(|error| NotAnswered::Unavailable {
            what: "the database's agent can't reach it".to_owned(),
            source: Some(Box::new(error)),
        })
    }

    fn gid(&self, branch: BranchId) -> Gid {
        Gid { cluster: self.database.cluster, branch }
    }

    async fn settle(&self, request: Settle, outcome: Outcome) -> Result<Settled, NotAnswered> {
        self.admit(&request.stamp, Purpose::Outcome)?;
        let brought = std::str::from_utf8(&request.payload).ok().and_then(|text| text.parse().ok());
        let xid8 = brought.or_else(|| self.known().held.get(&request.branch).copied());
        let client = self.connect().await?;
        finish(&client, self.gid(request.branch), outcome, xid8).await
    }
}

#[tonic::async_trait]
impl ResourceManager for Agent {
    /// The vote of a branch that its application prepared, and did not come to bring along.
    async fn prepare(&self, request: Prepare) -> Result<Voted, NotAnswered> {
        self.admit(&request.stamp, Purpose::Promise)?;
        let gid = self.gid(request.branch).to_string();
        let client = self.connect().await?;
        let asked = client.query_opt("SELECT 1 FROM pg_prepared_xacts WHERE gid = $1", &[&gid]).await;
        match asked.map_err(|error| failed(format!("whether {gid} is prepared can't be read"), error))? {
            Some(_) => Ok(Voted::PREPARED),
            None => Ok(Voted::refused(Reason::refused("its application has not prepared it", "", true))),
        }
    }

    async fn commit(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.settle(request, Outcome::Committed).await
    }

    async fn rollback(&self, request: Settle) -> Result<Settled, NotAnswered> {
        self.settle(request, Outcome::Aborted).await
    }

    /// Never commits: an agent has no work to do.
    async fn commit_one_phase(&self, request: OnePhase) -> Result<Conclusion, NotAnswered> {
        let OnePhase { stamp, branch, resource, payload, .. } = request;
        let settled = self.rollback(Settle { stamp, branch, resource, payload }).await?;
        let why = settled.reason.unwrap_or_else(|| {
            Reason::refused("a database that its application prepares can't be the one that decides", "", false)
        });
        Ok(Conclusion::Fenced(Some(why)))
    }

    async fn recover(&self, limit: usize) -> Result<Vec<BranchId>, NotAnswered> {
        let (cluster, limit) = (self.database.cluster, i64::try_from(limit).unwrap_or(i64::MAX));
        let client = self.connect().await?;
        let rows = client.query(HELD, &[&prefix(cluster), &limit]).await;
        let rows = rows.map_err(|error| failed("what is prepared can't be read".to_owned(), error))?;
        let held = rows.iter().filter_map(|row| {
            let branch = branch_of(cluster, row.get(0))?;
            Some((branch, with_epoch(row.get::<_, i64>(1).unsigned_abs(), row.get::<_, i64>(2).unsigned_abs())))
        });
        let held: Vec<(BranchId, u64)> = held.collect();
        self.known().held = Arc::new(held.iter().copied().collect());
        Ok(held.into_iter().map(|(branch, _)| branch).collect())
    }
}

/// The full number of a transaction whose lower 32 bits are `low`, where the next one will be `next`.
fn with_epoch(low: u64, next: u64) -> u64 {
    let full = next & !u64::from(u32::MAX) | low;
    if full >= next { full.saturating_sub(1 << 32) } else { full }
}

#[cfg(test)]
mod tests {
    use super::with_epoch;

    #[test]
    fn a_number_gets_the_epoch_of_the_newest_or_the_one_before() {
        assert_eq!(with_epoch(734, 735), 734);
        assert_eq!(with_epoch(734, 7 << 32 | 735), 7 << 32 | 734);
        assert_eq!(with_epoch(4_294_967_000, 7 << 32 | 5), 6 << 32 | 4_294_967_000);
    }
}
