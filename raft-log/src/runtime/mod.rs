//! The asynchronous runtime under Raft: tokio in production, madsim in simulation, with one watch channel for both.
//!
//! This is the only file of the product that asks which of the two it runs on.

pub(crate) mod watch;

use std::future::Future;
use std::time::Duration;

use openraft_rt::AsyncRuntime;
use openraft_rt_tokio::TokioRuntime;

/// Raft's runtime.
#[derive(Debug)]
pub(crate) struct Runtime {
    #[cfg(not(madsim))]
    inner: TokioRuntime,
}

#[cfg(not(madsim))]
impl AsyncRuntime for Runtime {
    type JoinError = <TokioRuntime as AsyncRuntime>::JoinError;
    type JoinHandle<T: Send + 'static> = <TokioRuntime as AsyncRuntime>::JoinHandle<T>;
    type Sleep = <TokioRuntime as AsyncRuntime>::Sleep;
    type Instant = <TokioRuntime as AsyncRuntime>::Instant;
    type TimeoutError = <TokioRuntime as AsyncRuntime>::TimeoutError;
    type Timeout<R, T: Future<Output = R> + Send> = <TokioRuntime as AsyncRuntime>::Timeout<R, T>;
    type ThreadLocalRng = <TokioRuntime as AsyncRuntime>::ThreadLocalRng;
    type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
    type Watch = watch::OrderedWatch;
    type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
    type Mutex<T: Send + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

    fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
    where
        T: Future + Send + 'static,
        T::Output: Send + 'static,
    {
        TokioRuntime::spawn(future)
    }

    fn sleep(duration: Duration) -> Self::Sleep {
        TokioRuntime::sleep(duration)
    }

    fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
        TokioRuntime::sleep_until(deadline)
    }

    fn timeout<R, F: Future<Output = R> + Send>(duration: Duration, future: F) -> Self::Timeout<R, F> {
        TokioRuntime::timeout(duration, future)
    }

    fn timeout_at<R, F: Future<Output = R> + Send>(deadline: Self::Instant, future: F) -> Self::Timeout<R, F> {
        TokioRuntime::timeout_at(deadline, future)
    }

    fn is_panic(join_error: &Self::JoinError) -> bool {
        TokioRuntime::is_panic(join_error)
    }

    fn thread_rng() -> Self::ThreadLocalRng {
        TokioRuntime::thread_rng()
    }

    fn new(threads: usize) -> Self {
        Self { inner: TokioRuntime::new(threads) }
    }

    fn block_on<F, T>(&mut self, future: F) -> T
    where
        F: Future<Output = T>,
    {
        self.inner.block_on(future)
    }
}

#[cfg(madsim)]
mod simulated {
    use std::pin::Pin;
    use std::task::{Context, Poll};

    use rand::SeedableRng;

    use super::*;

    /// A future with a deadline.
    pub(crate) struct Deadline<F> {
        future: Pin<Box<F>>,
        sleep: Pin<Box<tokio::time::Sleep>>,
    }

    #[derive(Debug, thiserror::Error)]
    #[error("deadline has elapsed")]
    pub(crate) struct TimedOut;

    impl<F: Future> Future for Deadline<F> {
        type Output = Result<F::Output, TimedOut>;

        fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
            if let Poll::Ready(output) = self.future.as_mut().poll(cx) {
                return Poll::Ready(Ok(output));
            }
            self.sleep.as_mut().poll(cx).map(|()| Err(TimedOut))
        }
    }

    impl AsyncRuntime for Runtime {
        type JoinError = tokio::task::JoinError;
        type JoinHandle<T: Send + 'static> = tokio::task::JoinHandle<T>;
        type Sleep = tokio::time::Sleep;
        type Instant = std::time::Instant;
        type TimeoutError = TimedOut;
        type Timeout<R, T: Future<Output = R> + Send> = Deadline<T>;
        type ThreadLocalRng = rand::rngs::StdRng;
        type Mpsc = <TokioRuntime as AsyncRuntime>::Mpsc;
        type Watch = watch::OrderedWatch;
        type Oneshot = <TokioRuntime as AsyncRuntime>::Oneshot;
        type Mutex<T: Send + 'static> = <TokioRuntime as AsyncRuntime>::Mutex<T>;

        fn spawn<T>(future: T) -> Self::JoinHandle<T::Output>
        where
            T: Future + Send + 'static,
            T::Output: Send + 'static,
        {
            tokio::spawn(future)
        }

        fn sleep(duration: Duration) -> Self::Sleep {
            tokio::time::sleep(duration)
        }

        fn sleep_until(deadline: Self::Instant) -> Self::Sleep {
            tokio::time::sleep_until(deadline)
        }

        fn timeout<R, F: Future<Output = R> + Send>(duration: Duration, future: F) -> Self::Timeout<R, F> {
            Deadline { future: Box::pin(future), sleep: Box::pin(tokio::time::sleep(duration)) }
        }

        fn timeout_at<R, F: Future<Output = R> + Send>(deadline: Self::Instant, future: F) -> Self::Timeout<R, F> {
            Deadline { future: Box::pin(future), sleep: Box::pin(tokio::time::sleep_until(deadline)) }
        }

        fn is_panic(join_error: &Self::JoinError) -> bool {
            join_error.is_panic()
        }

        fn thread_rng() -> Self::ThreadLocalRng {
            rand::rngs::StdRng::seed_from_u64(madsim::rand::random())
        }

        fn new(_threads: usize) -> Self {
            Self {}
        }

        /// Runs a simulation of seed 0: openraft's own test suites enter it here.
        fn block_on<F, T>(&mut self, future: F) -> T
        where
            F: Future<Output = T>,
        {
            madsim::runtime::Runtime::with_seed_and_config(0, madsim::Config::default()).block_on(future)
        }
    }
}

/// Runs a computation that may take long beside the asynchronous runtime's workers.
#[cfg(not(madsim))]
pub(crate) async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> std::io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(std::io::Error::other)
}

/// Runs a computation that may take long: in simulation at once, as a step of its own.
#[cfg(madsim)]
pub(crate) async fn beside<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> std::io::Result<T> {
    tokio::spawn(async move { work() }).await.map_err(std::io::Error::other)
}

#[cfg(all(test, not(madsim)))]
mod tests {
    /// What openraft asks of a runtime, its watch channel included.
    #[test]
    fn serves_raft() {
        openraft_rt::testing::Suite::<super::Runtime>::test_all();
    }
}
