//! One phase: a branch that is given the decision.

use verdict_protocol::{Conclusion, Settlement, Vote};

use super::drive::{Checked, Driver, expect};

const GIVEN: bool = false;
const FENCE: bool = true;

pub(super) async fn commits_once(driver: &mut Driver<'_>) -> Checked {
    let branch = driver.branch();
    driver.concludes(branch, GIVEN, true).await?;
    driver.effects(0, 1).await?;
    driver.concludes(branch, GIVEN, true).await?;
    driver.restart().await;
    driver.concludes(branch, GIVEN, true).await?;
    driver.effects(0, 1).await?;
    driver.recovers(&[]).await
}

pub(super) async fn fence_comes_first(driver: &mut Driver<'_>) -> Checked {
    let branch = driver.branch();
    driver.concludes(branch, FENCE, false).await?;
    driver.concludes(branch, GIVEN, false).await?;
    driver.restart().await;
    driver.concludes(branch, GIVEN, false).await?;
    driver.prepare(branch, Vote::Refused).await?;
    driver.effects(0, 0).await
}

pub(super) async fn fence_comes_late(driver: &mut Driver<'_>) -> Checked {
    let branch = driver.branch();
    driver.concludes(branch, GIVEN, true).await?;
    driver.concludes(branch, FENCE, true).await?;
    driver.restart().await;
    driver.concludes(branch, FENCE, true).await?;
    driver.effects(0, 1).await
}

pub(super) async fn refusal_is_never(driver: &mut Driver<'_>) -> Checked {
    let Some(payload) = driver.payload(Vote::Refused) else { return Ok(()) };
    let branch = driver.branch();
    for _ in 0..2 {
        let said = driver.try_conclude(branch, payload.clone(), GIVEN).await.map_err(|error| error.to_string())?;
        let reason = matches!(said, Conclusion::Fenced(Some(_)));
        expect("a refusal is FENCED, with its reason", reason, true)?;
        driver.restart().await;
    }
    driver.effects(0, 0).await
}

pub(super) async fn outcomes_agree(driver: &mut Driver<'_>) -> Checked {
    let (committed, rolled_back) = (driver.branch(), driver.branch());
    driver.concludes(committed, GIVEN, true).await?;
    driver.commit(committed, Settlement::Done).await?;
    driver.rollback(committed, Settlement::HeuristicCommit).await?;
    driver.rollback(rolled_back, Settlement::Done).await?;
    driver.concludes(rolled_back, GIVEN, false).await?;
    driver.effects(0, 1).await
}

pub(super) async fn twins(driver: &mut Driver<'_>) -> Checked {
    let branch = driver.branch();
    driver.conclude_twins(branch, 20).await?;
    driver.effects(0, 1).await
}
