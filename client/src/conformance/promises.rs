//! Prepare: the vote, its durability, its repeats.

use verdict_protocol::{BranchId, Settlement, Vote};

use super::drive::{Checked, Driver, expect};

pub(super) async fn prepare_twice(driver: &mut Driver<'_>) -> Checked {
    let branch = driver.branch();
    for _ in 0..3 {
        driver.prepare(branch, Vote::Prepared).await?;
        driver.effects(1, 0).await?;
    }
    driver.commit(branch, Settlement::Done).await?;
    driver.effects(0, 1).await
}

pub(super) async fn prepared_is_durable(driver: &mut Driver<'_>) -> Checked {
    let (kept, given_back) = (driver.branch(), driver.branch());
    driver.prepare(kept, Vote::Prepared).await?;
    driver.prepare(given_back, Vote::Prepared).await?;
    driver.restart().await;
    driver.effects(2, 0).await?;
    driver.recovers(&[kept, given_back]).await?;
    driver.prepare(kept, Vote::Prepared).await?;
    driver.effects(2, 0).await?;
    driver.commit(kept, Settlement::Done).await?;
    driver.rollback(given_back, Settlement::Done).await?;
    driver.effects(0, 1).await?;
    driver.restart().await;
    driver.recovers(&[]).await?;
    driver.effects(0, 1).await
}

pub(super) async fn refusal_stands(driver: &mut Driver<'_>) -> Checked {
    let Some(payload) = driver.payload(Vote::Refused) else { return Ok(()) };
    let branch = driver.branch();
    driver.prepare_with(branch, payload.clone(), Vote::Refused).await?;
    driver.effects(0, 0).await?;
    driver.recovers(&[]).await?;
    // Even if the same work could be done by now.
    driver.prepare(branch, Vote::Refused).await?;
    driver.restart().await;
    driver.prepare(branch, Vote::Refused).await?;
    driver.rollback(branch, Settlement::Done).await?;
    driver.prepare(branch, Vote::Refused).await?;
    driver.effects(0, 0).await
}

pub(super) async fn read_only_is_remembered(driver: &mut Driver<'_>) -> Checked {
    let Some(payload) = driver.payload(Vote::ReadOnly) else { return Ok(()) };
    let branch = driver.branch();
    driver.prepare_with(branch, payload.clone(), Vote::ReadOnly).await?;
    driver.prepare_with(branch, payload.clone(), Vote::ReadOnly).await?;
    driver.recovers(&[]).await?;
    driver.restart().await;
    let again = driver.try_prepare(branch, payload).await.map_err(|error| format!("prepare: {error}"))?;
    expect("PREPARED after READ_ONLY", again.vote == Vote::Prepared, false)?;
    driver.effects(0, 0).await
}

pub(super) async fn recover_lists_the_doubtful(driver: &mut Driver<'_>) -> Checked {
    let branches: Vec<BranchId> = (0..6).map(|_| driver.branch()).collect();
    driver.recovers(&[]).await?;
    for branch in &branches {
        driver.prepare(*branch, Vote::Prepared).await?;
    }
    driver.recovers(&branches).await?;
    driver.commit(branches[0], Settlement::Done).await?;
    driver.rollback(branches[3], Settlement::Done).await?;
    let held = [branches[1], branches[2], branches[4], branches[5]];
    driver.recovers(&held).await?;
    expect("recover of at most 2", driver.recover(2).await?.as_slice(), &held[..2])?;
    driver.restart().await;
    driver.recovers(&held).await
}

pub(super) async fn prepare_after_commit(driver: &mut Driver<'_>) -> Checked {
    let branch = driver.branch();
    driver.prepare(branch, Vote::Prepared).await?;
    driver.commit(branch, Settlement::Done).await?;
    driver.prepare(branch, Vote::Prepared).await?;
    driver.effects(0, 1).await?;
    driver.recovers(&[]).await?;
    driver.restart().await;
    driver.prepare(branch, Vote::Prepared).await?;
    driver.commit(branch, Settlement::Done).await?;
    driver.effects(0, 1).await
}
