//! The part to copy.

use thiserror::Error;
use verdict_client::{
    CallError, Decision, Verdict,
    resource::{
        mysql::{
            Mysql, MysqlError,
            mysql_async::{self, prelude::Queryable as _},
        },
        postgres::{Postgres, PostgresError, tokio_postgres},
    },
};

/// What is to be moved.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) from: i32,
    pub(crate) to: i32,
    pub(crate) amount: i64,
}

/// Why it is not known to have been moved. Nothing stays locked: what was not committed is rolled back.
#[derive(Debug, Error)]
pub(crate) enum TransferError {
    #[error("there is no account {0}")]
    NoAccount(i32),
    #[error(transparent)]
    Accounts(#[from] PostgresError),
    #[error("accounts")]
    AccountsSql(#[from] tokio_postgres::Error),
    #[error(transparent)]
    Ledger(#[from] MysqlError),
    #[error("ledger")]
    LedgerSql(#[from] mysql_async::Error),
    #[error("commit")]
    Commit(#[from] CallError),
}

pub(crate) async fn transfer(
    verdict: &Verdict,
    accounts: &Postgres,
    ledger: &Mysql,
    Order { from, to, amount }: Order,
) -> Result<Decision, TransferError> {
    let mut transaction = verdict.transaction();
    let giver = accounts.enlist(&mut transaction).await?;
    let taker = ledger.enlist(&mut transaction).await?;

    let take = "UPDATE account SET balance = balance - $2 WHERE id = $1";
    if giver.client()?.execute(take, &[&from, &amount]).await? != 1 {
        return Err(TransferError::NoAccount(from));
    }
    let mut connection = taker.connection().await?;
    connection.exec_drop("UPDATE accounts SET balance = balance + ? WHERE id = ?", (amount, to)).await?;
    if connection.affected_rows() != 1 {
        return Err(TransferError::NoAccount(to));
    }
    drop(connection);

    Ok(transaction.commit().await?)
}
