//! A watch channel that wakes its receivers in the order in which they began to wait.
//!
//! tokio's picks a random order, which makes two simulations of one seed differ. This one serves production as well,
//! so that both run the same code.

use std::future::poll_fn;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};
use std::task::{Poll, Waker};

use openraft_rt::watch::{RecvError, SendError, Watch, WatchReceiver, WatchSender};

/// The channel's type, for Raft's runtime.
#[derive(Debug)]
pub(crate) struct OrderedWatch;

struct Shared<T> {
    value: RwLock<T>,
    /// Grows with each change; changed only while `value` is locked for writing.
    version: AtomicU64,
    senders: AtomicUsize,
    receivers: AtomicUsize,
    waiting: Mutex<Waiting>,
}

/// Who waits, oldest first. Bounded by the number of receivers: each waits at most once.
#[derive(Default)]
struct Waiting {
    closed: bool,
    next: u64,
    wakers: Vec<(u64, Waker)>,
}

impl<T> Shared<T> {
    fn wake_all(&self) {
        let wakers = std::mem::take(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner).wakers);
        for (_, waker) in wakers {
            waker.wake();
        }
    }

    fn read(&self) -> RwLockReadGuard<'_, T> {
        self.value.read().unwrap_or_else(PoisonError::into_inner)
    }
}

pub(crate) struct OrderedSender<T>(Arc<Shared<T>>);

pub(crate) struct OrderedReceiver<T> {
    shared: Arc<Shared<T>>,
    seen: u64,
}

/// Makes a channel that holds `init`, which counts as seen.
pub(crate) fn channel<T>(init: T) -> (OrderedSender<T>, OrderedReceiver<T>) {
    let shared = Arc::new(Shared {
        value: RwLock::new(init),
        version: AtomicU64::new(0),
        senders: AtomicUsize::new(1),
        receivers: AtomicUsize::new(1),
        waiting: Mutex::default(),
    });
    (OrderedSender(Arc::clone(&shared)), OrderedReceiver { shared, seen: 0 })
}

impl<T> Clone for OrderedSender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Ordering::AcqRel);
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for OrderedSender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.waiting.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
            self.0.wake_all();
        }
    }
}

impl<T> Clone for OrderedReceiver<T> {
    fn clone(&self) -> Self {
        self.shared.receivers.fetch_add(1, Ordering::AcqRel);
        Self { shared: Arc::clone(&self.shared), seen: self.seen }
    }
}

impl<T> Drop for OrderedReceiver<T> {
    fn drop(&mut self) {
        self.shared.receivers.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Forgets the waker when the wait is given up.
struct Wait<'a, T> {
    shared: &'a Shared<T>,
    ticket: Option<u64>,
}

impl<T> Drop for Wait<'_, T> {
    fn drop(&mut self) {
        if let Some(ticket) = self.ticket {
            let mut waiting = self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            waiting.wakers.retain(|(other, _)| *other != ticket);
        }
    }
}

impl Watch for OrderedWatch {
    type Sender<T: Send + Sync> = OrderedSender<T>;
    type Receiver<T: Send + Sync> = OrderedReceiver<T>;
    type Ref<'a, T: Send + 'a> = RwLockReadGuard<'a, T>;

    fn channel<T: Send + Sync>(init: T) -> (OrderedSender<T>, OrderedReceiver<T>) {
        channel(init)
    }
}

impl<T: Send + Sync> WatchSender<OrderedWatch, T> for OrderedSender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.0.receivers.load(Ordering::Acquire) == 0 {
            return Err(SendError(value));
        }
        self.send_if_modified(|current| {
            *current = value;
            true
        });
        Ok(())
    }

    fn send_if_modified<F>(&self, modify: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        {
            let mut value = self.0.value.write().unwrap_or_else(PoisonError::into_inner);
            if !modify(&mut value) {
                return false;
            }
            self.0.version.fetch_add(1, Ordering::AcqRel);
        }
        self.0.wake_all();
        true
    }

    fn borrow_watched(&self) -> RwLockReadGuard<'_, T> {
        self.0.read()
    }

    fn subscribe(&self) -> OrderedReceiver<T> {
        self.0.receivers.fetch_add(1, Ordering::AcqRel);
        let value = self.0.read();
        let seen = self.0.version.load(Ordering::Acquire);
        drop(value);
        OrderedReceiver { shared: Arc::clone(&self.0), seen }
    }
}

impl<T: Send + Sync> WatchReceiver<OrderedWatch, T> for OrderedReceiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        let mut wait = Wait { shared: &self.shared, ticket: None };
        let seen = &mut self.seen;
        poll_fn(|cx| {
            let mut waiting = wait.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner);
            // Looked at under the lock that a change takes before it wakes: no change slips between look and wait.
            let version = wait.shared.version.load(Ordering::Acquire);
            if version != *seen {
                *seen = version;
                return Poll::Ready(Ok(()));
            }
            if waiting.closed {
                return Poll::Ready(Err(RecvError(())));
            }
            match waiting.wakers.iter_mut().find(|(ticket, _)| Some(*ticket) == wait.ticket) {
                Some((_, waker)) => waker.clone_from(cx.waker()),
                None => {
                    let ticket = waiting.next;
                    waiting.next += 1;
                    waiting.wakers.push((ticket, cx.waker().clone()));
                    drop(waiting);
                    wait.ticket = Some(ticket);
                }
            }
            Poll::Pending
        })
        .await
    }

    fn borrow_watched(&self) -> RwLockReadGuard<'_, T> {
        self.shared.read()
    }

    fn borrow_and_update(&mut self) -> RwLockReadGuard<'_, T> {
        let value = self.shared.read();
        self.seen = self.shared.version.load(Ordering::Acquire);
        value
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::task::{Context, Wake};

    use super::*;

    struct Note(usize, Arc<Mutex<Vec<usize>>>);

    impl Wake for Note {
        fn wake(self: Arc<Self>) {
            self.1.lock().expect("no panic meanwhile").push(self.0);
        }
    }

    #[test]
    fn wakes_in_the_order_of_waiting() {
        let (sender, receiver) = channel(0);
        let woken = Arc::new(Mutex::new(Vec::new()));
        let mut receivers: Vec<_> = (0..5).map(|_| receiver.clone()).collect();
        let mut waits: Vec<_> = receivers.iter_mut().map(|receiver| Box::pin(receiver.changed())).collect();
        for at in [3, 0, 4, 1, 2] {
            let waker = Waker::from(Arc::new(Note(at, Arc::clone(&woken))));
            assert!(waits[at].as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
        }
        sender.send(1).expect("there are receivers");
        assert_eq!(*woken.lock().expect("no panic meanwhile"), [3, 0, 4, 1, 2]);
    }

    #[test]
    fn an_abandoned_wait_leaves_nothing_behind() {
        let (sender, mut receiver) = channel(0);
        {
            let mut wait = Box::pin(receiver.changed());
            assert!(wait.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        assert!(sender.0.waiting.lock().expect("no panic meanwhile").wakers.is_empty());
    }

    #[test]
    fn no_change_is_missed_between_threads() {
        let (sender, receiver) = channel(0_usize);
        let seen = Arc::new(AtomicUsize::new(0));
        let readers: Vec<_> = (0..3)
            .map(|_| {
                let (mut receiver, seen) = (receiver.clone(), Arc::clone(&seen));
                std::thread::spawn(move || {
                    block_on(async move {
                        while receiver.changed().await.is_ok() {}
                        seen.fetch_add(*receiver.borrow_watched(), Ordering::AcqRel);
                    });
                })
            })
            .collect();
        for value in 1..=10_000 {
            sender.send(value).expect("there are receivers");
        }
        drop(sender);
        for reader in readers {
            reader.join().expect("a reader ends");
        }
        assert_eq!(seen.load(Ordering::Acquire), 30_000, "each reader saw the last value");
    }

    /// Parks the thread between polls.
    fn block_on(future: impl Future<Output = ()>) {
        struct Unpark(std::thread::Thread);
        impl Wake for Unpark {
            fn wake(self: Arc<Self>) {
                self.0.unpark();
            }
        }
        let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
        let mut future = std::pin::pin!(future);
        while future.as_mut().poll(&mut Context::from_waker(&waker)).is_pending() {
            std::thread::park();
        }
    }
}
