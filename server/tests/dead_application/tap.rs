//! What goes between an application and its database passes here: it is looked at, and held back if it is to be.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{
        TcpListener, TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    sync::{mpsc, watch},
};

/// What was said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Said {
    /// The application asks for a promise.
    Prepare,
    /// The database has promised.
    Prepared,
    /// The application tells an outcome.
    Settle,
}

const PREPARES: [&[u8]; 2] = [b"PREPARE TRANSACTION", b"XA PREPARE"];
const SETTLES: [&[u8]; 4] = [b"COMMIT PREPARED", b"ROLLBACK PREPARED", b"XA COMMIT", b"XA ROLLBACK"];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    Shut,
    /// What is held goes on to the database.
    LetsThrough,
    /// It is lost.
    Drops,
}

/// Before one database.
pub(crate) struct Tap {
    pub(crate) port: u16,
    heard: mpsc::Receiver<Said>,
    shared: Arc<Shared>,
}

struct Shared {
    database: u16,
    tell: mpsc::Sender<Said>,
    holds: Mutex<Vec<Said>>,
    gate: watch::Sender<Gate>,
}

impl Tap {
    pub(crate) async fn before(database: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let (tell, heard) = mpsc::channel(1_000);
        let shared = Arc::new(Shared { database, tell, holds: Mutex::default(), gate: watch::Sender::new(Gate::Shut) });
        let own = Arc::clone(&shared);
        drop(tokio::spawn(async move {
            while let Ok((application, _)) = listener.accept().await {
                let Ok(database) = TcpStream::connect(("127.0.0.1", own.database)).await else { continue };
                application.set_nodelay(true).unwrap();
                database.set_nodelay(true).unwrap();
                let asked = Arc::new(AtomicBool::new(false));
                let ((from, to), (back, there)) = (application.into_split(), database.into_split());
                drop(tokio::spawn(asks(Arc::clone(&own), from, there, Arc::clone(&asked))));
                drop(tokio::spawn(answers(Arc::clone(&own), back, to, asked)));
            }
        }));
        Self { port, heard, shared }
    }

    /// From now on it holds this back. What was heard before is forgotten.
    pub(crate) fn holds(&mut self, said: &[Said]) {
        *self.shared.holds() = said.to_vec();
        self.shared.gate.send_replace(Gate::Shut);
        while self.heard.try_recv().is_ok() {}
    }

    /// What is held goes on to its database, or is lost.
    pub(crate) fn lets_go(&mut self, arrives: bool) {
        self.shared.gate.send_replace(if arrives { Gate::LetsThrough } else { Gate::Drops });
    }

    pub(crate) async fn hears(&mut self, what: Said) {
        while self.heard.recv().await.unwrap() != what {}
    }
}

impl Shared {
    fn holds(&self) -> MutexGuard<'_, Vec<Said>> {
        self.holds.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it may go on.
    async fn passes(&self, said: Said) -> bool {
        let held = self.holds().contains(&said);
        self.tell.send(said).await.unwrap();
        let mut gate = self.gate.subscribe();
        !held || *gate.wait_for(|gate| *gate != Gate::Shut).await.unwrap() == Gate::LetsThrough
    }
}

fn contains(bytes: &[u8], one_of: &[&[u8]]) -> bool {
    one_of.iter().any(|what| bytes.windows(what.len()).any(|window| window == *what))
}

/// A statement comes in one piece: these are short, and the network is this machine's own.
async fn asks(shared: Arc<Shared>, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, asked: Arc<AtomicBool>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let bytes = &buffer[..count];
        let prepare = contains(bytes, &PREPARES);
        let said = if prepare { Some(Said::Prepare) } else { contains(bytes, &SETTLES).then_some(Said::Settle) };
        if let Some(said) = said
            && !shared.passes(said).await
        {
            return;
        }
        asked.fetch_or(prepare, Ordering::SeqCst);
        if to.write_all(bytes).await.is_err() {
            return;
        }
    }
}

/// What comes first after it was asked for is the answer.
async fn answers(shared: Arc<Shared>, mut from: OwnedReadHalf, mut to: OwnedWriteHalf, asked: Arc<AtomicBool>) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        if asked.swap(false, Ordering::SeqCst) && !shared.passes(Said::Prepared).await {
            return;
        }
        if to.write_all(&buffer[..count]).await.is_err() {
            return;
        }
    }
}
