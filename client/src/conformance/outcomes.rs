//! Commit and rollback: their effect, their repeats, their order.

use bytes::Bytes;
use verdict_protocol::{BranchId, Settlement, Vote};

use super::drive::{Checked, Driver, expect};

pub(super) async fn plain(driver: &mut Driver<'_>) -> Checked {
    let (first, second) = (driver.branch(), driver.branch());
    driver.effects(0, 0).await?;
    driver.prepare(first, Vote::Prepared).await?;
    driver.prepare(second, Vote::Prepared).await?;
    driver.effects(2, 0).await?;
    driver.commit(first, Settlement::Done).await?;
    driver.effects(1, 1).await?;
    driver.rollback(second, Settlement::Done).await?;
    driver.effects(0, 1).await
}

pub(super) async fn branches_apart(driver: &mut Driver<'_>) -> Checked {
    let first = driver.branch();
    let second = BranchId { number: 2, ..first };
    driver.prepare(first, Vote::Prepared).await?;
    driver.effects(1, 0).await?;
    driver.prepare(second, Vote::Prepared).await?;
    driver.effects(2, 0).await?;
    driver.commit(second, Settlement::Done).await?;
    driver.effects(1, 1).await?;
    driver.recovers(&[first]).await?;
    driver.commit(first, Settlement::Done).await?;
    driver.effects(0, 2).await
}

pub(super) async fn commit_twice(driver: &mut Driver<'_>) -> Checked {
    let (branch, other) = (driver.branch(), driver.branch());
    driver.prepare(branch, Vote::Prepared).await?;
    // A second commit could eat another branch's reservation.
    driver.prepare(other, Vote::Prepared).await?;
    for _ in 0..3 {
        driver.commit(branch, Settlement::Done).await?;
        driver.effects(1, 1).await?;
    }
    driver.restart().await;
    driver.commit(branch, Settlement::Done).await?;
    driver.effects(1, 1).await
}

pub(super) async fn rollback_twice(driver: &mut Driver<'_>) -> Checked {
    let (branch, other) = (driver.branch(), driver.branch());
    driver.prepare(branch, Vote::Prepared).await?;
    driver.prepare(other, Vote::Prepared).await?;
    for _ in 0..3 {
        driver.rollback(branch, Settlement::Done).await?;
        driver.effects(1, 0).await?;
    }
    driver.restart().await;
    driver.rollback(branch, Settlement::Done).await?;
    driver.effects(1, 0).await?;
    driver.prepare(branch, Vote::Refused).await?;
    driver.effects(1, 0).await
}

pub(super) async fn rollback_before_prepare(driver: &mut Driver<'_>) -> Checked {
    let branch = driver.branch();
    driver.rollback(branch, Settlement::Done).await?;
    driver.prepare(branch, Vote::Refused).await?;
    driver.effects(0, 0).await?;
    driver.recovers(&[]).await
}

pub(super) async fn tombstone_is_durable(driver: &mut Driver<'_>) -> Checked {
    let branch = driver.branch();
    driver.rollback(branch, Settlement::Done).await?;
    driver.restart().await;
    driver.prepare(branch, Vote::Refused).await?;
    driver.effects(0, 0).await
}

pub(super) async fn unknown_rollback(driver: &mut Driver<'_>) -> Checked {
    let branch = driver.branch();
    driver.rollback(branch, Settlement::Done).await?;
    driver.rollback(branch, Settlement::Done).await?;
    driver.effects(0, 0).await
}

pub(super) async fn unknown_commit(driver: &mut Driver<'_>) -> Checked {
    let branch = driver.branch();
    driver.commit(branch, Settlement::HeuristicHazard).await?;
    driver.effects(0, 0).await
}

pub(super) async fn commit_after_refusal(driver: &mut Driver<'_>) -> Checked {
    let Some(payload) = driver.payload(Vote::Refused) else { return Ok(()) };
    let branch = driver.branch();
    driver.prepare_with(branch, payload, Vote::Refused).await?;
    driver.commit(branch, Settlement::HeuristicRollback).await?;
    driver.effects(0, 0).await
}

pub(super) async fn opposite_outcome(driver: &mut Driver<'_>) -> Checked {
    let (committed, rolled_back) = (driver.branch(), driver.branch());
    driver.prepare(committed, Vote::Prepared).await?;
    driver.prepare(rolled_back, Vote::Prepared).await?;
    driver.commit(committed, Settlement::Done).await?;
    driver.rollback(rolled_back, Settlement::Done).await?;
    driver.rollback(committed, Settlement::HeuristicCommit).await?;
    driver.commit(rolled_back, Settlement::HeuristicRollback).await?;
    driver.restart().await;
    driver.rollback(committed, Settlement::HeuristicCommit).await?;
    driver.commit(rolled_back, Settlement::HeuristicRollback).await?;
    driver.effects(0, 1).await
}

pub(super) async fn outcome_without_payload(driver: &mut Driver<'_>) -> Checked {
    let (committed, rolled_back) = (driver.branch(), driver.branch());
    driver.prepare(committed, Vote::Prepared).await?;
    driver.prepare(rolled_back, Vote::Prepared).await?;
    let commit = driver.try_commit(committed, Bytes::new()).await.map_err(|error| error.to_string())?;
    expect("commit", commit.settlement, Settlement::Done)?;
    let rollback = driver.try_rollback(rolled_back, Bytes::new()).await.map_err(|error| error.to_string())?;
    expect("rollback", rollback.settlement, Settlement::Done)?;
    driver.effects(0, 1).await
}

pub(super) async fn twins_at_once(driver: &mut Driver<'_>) -> Checked {
    const TWINS: usize = 20;
    let (committed, rolled_back) = (driver.branch(), driver.branch());
    driver.prepare_twins(committed, TWINS).await?;
    driver.prepare_twins(rolled_back, TWINS).await?;
    driver.effects(2, 0).await?;
    driver.commit_twins(committed, TWINS).await?;
    driver.rollback_twins(rolled_back, TWINS).await?;
    driver.effects(0, 1).await
}
