//! A connection of the pool's, which goes back there only if nothing is under way in it.

use mysql_async::{Conn, Error, IsolationLevel, Pool, Transaction, TxOpts, prelude::Queryable};

use super::super::database::DEAD_CONNECTIONS;

/// Dropped before the transaction in it has ended, say because whoever waited went away, it is closed: the server rolls back
/// what is open in it, and an answer that is still to come is nobody's.
pub(super) struct Lease {
    /// Always there until it is dropped.
    connection: Option<Conn>,
    is_clean: bool,
}

impl Lease {
    /// The isolation is the next transaction's; None: the session's own.
    pub(super) async fn take(pool: &Pool, isolation: Option<IsolationLevel>) -> Result<Self, Error> {
        let mut dead = 0;
        loop {
            let mut lease = Self { connection: Some(pool.get_conn().await?), is_clean: false };
            let connection = lease.connection();
            let works = match isolation {
                Some(level) => connection.query_drop(format!("SET TRANSACTION ISOLATION LEVEL {level}")).await,
                None => connection.ping().await,
            };
            match works {
                Ok(()) => return Ok(lease),
                // It has died in the pool.
                Err(error) if error.is_fatal() && dead < DEAD_CONNECTIONS => dead += 1,
                Err(error) => return Err(error),
            }
        }
    }

    /// To be called with each new transaction: until it is ended, the connection is not clean.
    pub(super) async fn begin(&mut self) -> Result<Transaction<'_>, Error> {
        self.is_clean = false;
        self.connection().start_transaction(TxOpts::default()).await
    }

    /// Takes note of what came of ending the transaction.
    pub(super) fn came_to<T>(&mut self, ended: Result<T, Error>) -> Result<T, Error> {
        self.is_clean = ended.is_ok();
        ended
    }

    pub(super) fn connection(&mut self) -> &mut Conn {
        self.connection.as_mut().expect("the connection is there until it is dropped")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if !self.is_clean
            && let Some(connection) = self.connection.take()
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            drop(runtime.spawn(async { drop(connection.disconnect().await) }));
        }
    }
}
