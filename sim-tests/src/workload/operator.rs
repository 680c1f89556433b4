//! An operator who looks after transactions that stay open. Without force nothing that he says breaks a promise: all
//! must hold as if he were not there.

use std::{sync::Arc, time::Duration};

use rand::{RngExt as _, rngs::StdRng};
use tokio::time::sleep;
use verdict_client::ListQuery;
use verdict_protocol::{Outcome, Resolution, Word};

use super::calls::status;
use crate::{
    chance::{pick, stream},
    history::{Ask, What},
    plan::Place,
    world::Shared,
};

const PLACE: Place = Place::Admin;
/// He aborts more than anything else: the rest is seldom granted.
const WORDS: [Ask; 4] =
    [Ask::Resolve(Outcome::Aborted), Ask::Resolve(Outcome::Aborted), Ask::Resolve(Outcome::Committed), Ask::Forget];

/// Works until nothing new is begun.
pub(crate) async fn look_after(shared: Arc<Shared>) {
    let random = &mut stream(shared.plan.seed, "operator's words");
    while !shared.work.is_closing() {
        sleep(Duration::from_millis(random.random_range(20..1_500))).await;
        say_something(&shared, random).await;
    }
}

async fn say_something(shared: &Shared, random: &mut StdRng) {
    let verdict = shared.verdict(PLACE);
    let older_than = Duration::from_millis(*pick(random, &[0, 0, 0, 300]));
    let Ok(page) = verdict.list(ListQuery { limit: 50, older_than, ..ListQuery::default() }).await else { return };
    if page.transactions.is_empty() {
        return;
    }
    let (xid, ask) = (pick(random, &page.transactions).xid, *pick(random, &WORDS));
    let call = shared.history.call();
    shared.history.record(PLACE, What::Asked { call, xid, ask });
    let word = Word { who: "ada".to_owned(), why: "it stays open".to_owned() };
    let said = match ask {
        Ask::Resolve(outcome) => verdict.resolve(xid, Resolution::Decide(outcome), word, false).await,
        _ => verdict.forget(xid, word, false).await,
    };
    shared.history.record(PLACE, What::Answered { call, xid, ask, answer: status(said) });
}
