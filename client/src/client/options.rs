//! How a client is set up, and where it gets the time and its random numbers from.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use rand::{Rng, SeedableRng, TryRng, rngs::StdRng, rngs::SysRng};
use thiserror::Error;
use verdict_protocol::LogTime;

/// The wall clock from which xids take their birth time. A clock that is far ahead makes them SKEWED.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    fn now(&self) -> LogTime;
}

/// The operating system's clock.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> LogTime {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        LogTime::from_millis(u64::try_from(since_epoch.as_millis()).unwrap_or(u64::MAX))
    }
}

/// How a [`Verdict`](crate::Verdict) handle is set up. [`Options::new`] fills in what suits a cluster on one network.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where nodes serve clients: `host:port`, or `http://host:port`. Any one that is up is enough; name them all.
    pub nodes: Vec<String>,
    /// How long a call is tried before it ends as unknown. A commit is given its vote timeout on top.
    pub deadline: Duration,
    /// How long one attempt waits for its answer before another node is tried. Doubles with each round over the nodes
    /// that was waited for in vain, so that a slow cluster is not asked faster than it can answer.
    pub attempt_timeout: Duration,
    pub connect_timeout: Duration,
    pub backoff: Backoff,
    pub clock: Arc<dyn Clock>,
    /// Where random numbers start (of xids and jitter). None takes it from the operating system.
    pub seed: Option<u64>,
}

impl Options {
    pub fn new<S: Into<String>>(nodes: impl IntoIterator<Item = S>) -> Self {
        Self {
            nodes: nodes.into_iter().map(Into::into).collect(),
            deadline: Duration::from_secs(10),
            attempt_timeout: Duration::from_millis(500),
            connect_timeout: Duration::from_millis(300),
            backoff: Backoff { first: Duration::from_millis(10), most: Duration::from_secs(1) },
            clock: Arc::new(SystemClock),
            seed: None,
        }
    }

    pub(super) fn random(&self) -> Result<StdRng, OptionsError> {
        let seed = match self.seed {
            Some(seed) => seed,
            None => SysRng.try_next_u64().map_err(OptionsError::Random)?,
        };
        Ok(StdRng::seed_from_u64(seed))
    }
}

/// Pauses between attempts: each about twice the one before, half of it at random.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    pub first: Duration,
    pub most: Duration,
}

impl Backoff {
    /// The pause after the `failures`-th failure in a row, counted from 1.
    pub fn pause(&self, failures: u32, random: &mut impl Rng) -> Duration {
        let doubled = self.first.saturating_mul(1 << failures.saturating_sub(1).min(16));
        jitter(doubled.min(self.most), random)
    }
}

/// Between half of `duration` and all of it.
pub(crate) fn jitter(duration: Duration, random: &mut impl Rng) -> Duration {
    let nanos = u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX);
    let half = nanos / 2;
    Duration::from_nanos(nanos - half + random.next_u64() % (half + 1))
}

/// A client that can't be set up.
#[derive(Debug, Error)]
pub enum OptionsError {
    #[error("no nodes: name at least one address of the cluster, host:port")]
    NoNodes,
    #[error("{address:?} is no node's address: write host:port, or http://host:port")]
    Address { address: String },
    #[error("the operating system gave no random number to start from")]
    Random(#[source] rand::rngs::SysError),
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_most_and_differ() {
        let backoff = Backoff { first: Duration::from_millis(10), most: Duration::from_millis(100) };
        let mut random = StdRng::seed_from_u64(1);
        for (failures, whole) in [(1, 10), (2, 20), (3, 40), (4, 80), (5, 100), (40, 100), (u32::MAX, 100)] {
            let pauses: Vec<_> = (0..20).map(|_| backoff.pause(failures, &mut random)).collect();
            assert!(pauses.iter().all(|pause| (whole / 2..=whole).contains(&pause.as_millis())), "{pauses:?}");
            assert!(pauses.windows(2).any(|pair| pair[0] != pair[1]), "no jitter: {pauses:?}");
        }
    }
}
