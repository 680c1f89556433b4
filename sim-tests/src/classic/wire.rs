//! The way between two machines.

use std::{pin::pin, time::Duration};

use madsim::{
    runtime::NodeHandle,
    time::{TimeHandle, sleep},
};
use tokio::sync::oneshot;

use super::HOP;

/// Waits so long and no longer: the simulator's `sleep` takes a millisecond at least, as tokio's does.
pub(super) async fn exactly(duration: Duration) {
    let deadline = TimeHandle::current().now_instant() + duration;
    let mut sleep = pin!(sleep(duration));
    sleep.as_mut().reset(deadline);
    sleep.await;
}

/// Brings `work` to a machine, has it done there, and brings its answer back: the message arrives although its sender
/// may have died by then, and there is no answer where the machine has died. `begin` is called there; `answered` when
/// the answer sets out.
pub(super) async fn carry<A, F>(
    wire: &NodeHandle,
    begin: impl FnOnce() -> Option<(NodeHandle, F)> + Send + 'static,
    answered: impl FnOnce() + Send + 'static,
) -> Option<A>
where
    A: Send + 'static,
    F: Future<Output = A> + Send + 'static,
{
    let (sender, answer) = oneshot::channel();
    drop(wire.spawn(async move {
        exactly(HOP).await;
        let Some((machine, work)) = begin() else { return };
        let (done, result) = oneshot::channel();
        drop(machine.spawn(async move { drop(done.send(work.await)) }));
        if let Ok(result) = result.await {
            answered();
            exactly(HOP).await;
            // Whoever asked may be gone.
            drop(sender.send(result));
        }
    }));
    answer.await.ok()
}
