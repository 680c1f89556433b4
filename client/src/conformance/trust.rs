//! Stamps: the horizon, the cluster, its incarnation and term.

use verdict_protocol::{ClusterId, Settlement, Vote};

use super::drive::{BIRTH, Checked, Driver};

pub(super) async fn behind_the_horizon(driver: &mut Driver<'_>) -> Checked {
    let (unknown, finished, rolled_back, fresh) = (driver.branch(), driver.branch(), driver.branch(), driver.branch());
    driver.prepare(finished, Vote::Prepared).await?;
    driver.commit(finished, Settlement::Done).await?;
    driver.rollback(rolled_back, Settlement::Done).await?;

    let old = driver.stamp.horizon;
    driver.stamp.horizon = driver.later_days(1);
    driver.prepare(unknown, Vote::Refused).await?;
    driver.stamp.horizon = driver.later_days(2);
    driver.rollback(fresh, Settlement::Done).await?;
    // Whether their records are gone by now or not.
    driver.prepare(rolled_back, Vote::Refused).await?;
    driver.restart().await;
    // A message that was long under way.
    driver.stamp.horizon = old;
    driver.prepare(rolled_back, Vote::Refused).await?;
    driver.effects(0, 1).await
}

pub(super) async fn kept_until_the_horizon(driver: &mut Driver<'_>) -> Checked {
    let (finished, rolled_back, other) = (driver.branch(), driver.branch(), driver.branch());
    driver.prepare(finished, Vote::Prepared).await?;
    driver.commit(finished, Settlement::Done).await?;
    driver.rollback(rolled_back, Settlement::Done).await?;
    for _ in 0..2 {
        // As far as it may move without passing any of them.
        driver.stamp.horizon = BIRTH;
        driver.rollback(other, Settlement::Done).await?;
        driver.prepare(rolled_back, Vote::Refused).await?;
        driver.prepare(finished, Vote::Prepared).await?;
        driver.commit(finished, Settlement::Done).await?;
        driver.effects(0, 1).await?;
        driver.recovers(&[]).await?;
        driver.restart().await;
    }
    Ok(())
}

pub(super) async fn records_are_dropped(driver: &mut Driver<'_>) -> Checked {
    let (held, others) = (driver.branch(), [driver.branch(), driver.branch()]);
    driver.prepare(held, Vote::Prepared).await?;
    for _ in 0..8 {
        let (committed, rolled_back) = (driver.branch(), driver.branch());
        driver.prepare(committed, Vote::Prepared).await?;
        driver.commit(committed, Settlement::Done).await?;
        driver.rollback(rolled_back, Settlement::Done).await?;
    }
    for (days, other) in (1..).zip(others) {
        driver.stamp.horizon = driver.later_days(days);
        driver.rollback(other, Settlement::Done).await?;
    }
    // The promise, and the two that brought the horizon.
    driver.keeps_at_most(3).await?;
    driver.recovers(&[held]).await
}

pub(super) async fn forgotten_tombstone(driver: &mut Driver<'_>) -> Checked {
    let (rolled_back, other) = (driver.branch(), driver.branch());
    driver.rollback(rolled_back, Settlement::Done).await?;
    driver.stamp.horizon = driver.later_days(1);
    driver.rollback(other, Settlement::Done).await?;
    for _ in 0..2 {
        driver.prepare(rolled_back, Vote::Refused).await?;
        driver.concludes(rolled_back, false, false).await?;
        driver.commit_is_not_done(rolled_back).await?;
        driver.effects(0, 0).await?;
        driver.recovers(&[]).await?;
        driver.restart().await;
    }
    Ok(())
}

pub(super) async fn prepare_of_an_old_term(driver: &mut Driver<'_>) -> Checked {
    let (seen, late) = (driver.branch(), driver.branch());
    driver.prepare(seen, Vote::Prepared).await?;
    driver.stamp.term -= 1;
    driver.gives_no_promise(late).await?;
    driver.effects(1, 0).await?;
    driver.recovers(&[seen]).await?;
    driver.stamp.term += 2;
    driver.prepare(late, Vote::Prepared).await?;
    driver.effects(2, 0).await
}

pub(super) async fn prepared_outlives_the_horizon(driver: &mut Driver<'_>) -> Checked {
    let (committed, rolled_back, other) = (driver.branch(), driver.branch(), driver.branch());
    driver.prepare(committed, Vote::Prepared).await?;
    driver.prepare(rolled_back, Vote::Prepared).await?;
    driver.stamp.horizon = driver.later_days(30);
    driver.rollback(other, Settlement::Done).await?;
    driver.restart().await;
    driver.recovers(&[committed, rolled_back]).await?;
    driver.prepare(committed, Vote::Prepared).await?;
    for _ in 0..2 {
        driver.commit(committed, Settlement::Done).await?;
        driver.rollback(rolled_back, Settlement::Done).await?;
    }
    driver.effects(0, 1).await
}

pub(super) async fn another_cluster(driver: &mut Driver<'_>) -> Checked {
    let (branch, unknown) = (driver.branch(), driver.branch());
    driver.prepare(branch, Vote::Prepared).await?;
    let own = driver.stamp;
    for _ in 0..2 {
        driver.stamp.cluster = ClusterId([8; 16]);
        driver.stamp.term = own.term + 10;
        driver.stamp.incarnation = own.incarnation + 10;
        driver.stamp.horizon = driver.later_days(10);
        driver.answers_nothing(branch).await?;
        driver.answers_nothing(unknown).await?;
        driver.effects(1, 0).await?;
        driver.restart().await;
    }
    // Nothing of it was believed.
    driver.stamp = own;
    driver.prepare(unknown, Vote::Prepared).await?;
    driver.commit(branch, Settlement::Done).await?;
    driver.effects(1, 1).await
}

pub(super) async fn older_incarnation(driver: &mut Driver<'_>) -> Checked {
    let branch = driver.branch();
    driver.prepare(branch, Vote::Prepared).await?;
    let own = driver.stamp;
    for _ in 0..2 {
        driver.stamp.incarnation = own.incarnation - 1;
        driver.stamp.term = own.term + 10;
        driver.answers_nothing(branch).await?;
        driver.effects(1, 0).await?;
        driver.restart().await;
    }
    driver.stamp = own;
    driver.prepare(branch, Vote::Prepared).await?;
    // A restore made a new incarnation, whose terms start again.
    driver.stamp.incarnation = own.incarnation + 1;
    driver.stamp.term = 1;
    let after = driver.branch();
    driver.prepare(after, Vote::Prepared).await?;
    driver.commit(branch, Settlement::Done).await?;
    driver.restart().await;
    driver.stamp = own;
    driver.answers_nothing(branch).await?;
    driver.answers_nothing(after).await?;
    driver.effects(1, 1).await
}

pub(super) async fn outcome_of_an_old_term(driver: &mut Driver<'_>) -> Checked {
    let (committed, rolled_back) = (driver.branch(), driver.branch());
    driver.prepare(committed, Vote::Prepared).await?;
    driver.prepare(rolled_back, Vote::Prepared).await?;
    driver.stamp.term -= 1;
    driver.commit(committed, Settlement::Done).await?;
    driver.rollback(rolled_back, Settlement::Done).await?;
    driver.effects(0, 1).await
}
