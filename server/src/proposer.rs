//! Group commit: what is asked for while entries are on their way shares the next one.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream::FuturesUnordered};
use tokio::time::{Instant, sleep_until, timeout};
use tracing::debug;
use verdict_protocol::{Command, Entry, Event, ProposalId, decode_answers};
use verdict_raft_log::{ProposeError, Replica};

use crate::engine::{Batch, Engine};

/// Entries on their way at a time. While the first is being written another is gathered and sent; more would only
/// split the groups.
const IN_FLIGHT: usize = 2;
/// What one entry is filled to, in bytes: well under the log's limit of an entry, and quickly written.
const FILL: usize = 1 << 20;
/// How long an entry may take before its proposals are answered with "not known": without a majority nothing ends it.
const PROPOSED_WITHIN: Duration = Duration::from_secs(3);
/// How long settlements wait for an entry to ride along with.
const SETTLED_WITHIN: Duration = Duration::from_millis(100);

/// Proposes what the engine gathers, until it is dropped.
pub(crate) async fn run(engine: Arc<Engine>, replica: Replica) {
    let mut on_their_way = FuturesUnordered::new();
    let mut settled_by: Option<Instant> = None;
    loop {
        while on_their_way.len() < IN_FLIGHT {
            let alone_too = settled_by.is_some_and(|by| Instant::now() >= by);
            let Some((at, batch)) = engine.take_batch(FILL, alone_too) else { break };
            on_their_way.push(propose(Arc::clone(&engine), replica.clone(), at, batch));
        }
        settled_by = engine.has_later().then(|| settled_by.unwrap_or_else(|| Instant::now() + SETTLED_WITHIN));
        tokio::select! {
            biased;
            Some(()) = on_their_way.next(), if !on_their_way.is_empty() => {}
            () = engine.proposals.notified(), if on_their_way.len() < IN_FLIGHT => {}
            () = until(settled_by), if on_their_way.len() < IN_FLIGHT => {}
        }
    }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => sleep_until(at).await,
        None => std::future::pending().await,
    }
}

async fn propose(engine: Arc<Engine>, replica: Replica, at: verdict_protocol::LogTime, batch: Batch) {
    let Batch { proposals, later } = batch;
    let owners: Vec<(ProposalId, usize)> =
        proposals.iter().map(|proposal| (proposal.id, proposal.commands.len())).collect();
    let mut commands: Vec<Command> = proposals.into_iter().flat_map(|proposal| proposal.commands).collect();
    if !later.is_empty() {
        commands.push(Command::Settled { items: later });
    }
    let applied = timeout(PROPOSED_WITHIN, replica.propose(Entry { at, commands }.encode())).await;
    let answers = match applied {
        Err(_) => Err("no majority has it in time".to_owned()),
        Ok(Ok(applied)) => decode_answers(&applied.answer).map_err(|error| error.to_string()),
        Ok(Err(error @ (ProposeError::NotLeader { .. } | ProposeError::Interrupted))) => Err(error.to_string()),
        Ok(Err(error @ (ProposeError::TooLarge { .. } | ProposeError::Stopped { .. }))) => {
            tracing::error!(%error, "an entry was not logged");
            Err(error.to_string())
        }
    };
    match answers {
        Ok(answers) => engine.answered(owners, answers),
        Err(error) => {
            debug!(%error, "proposals without an answer");
            for (proposal, _) in owners {
                engine.handle(Event::Interrupted { proposal });
            }
        }
    }
}
