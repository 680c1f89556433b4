//! kill -9 of the server under a branch table: what the table has said is there when the server is back.

#![cfg(any(feature = "mysql", feature = "postgres"))]
#![allow(clippy::unwrap_used, reason = "tests")]

mod common;

const KILLS: u64 = 6;

#[cfg(feature = "postgres")]
mod postgres {
    use verdict_client::{
        BranchId,
        resource::{
            Reservation,
            postgres::{
                deadpool_postgres::Transaction,
                pool,
                table::{BranchTable, Handler, TableOptions},
                tokio_postgres::Error,
            },
        },
    };

    use super::{
        KILLS,
        common::{
            postgres::{APP, PostgresServer},
            tables::{holds_what_it_said, number, work_until_killed},
        },
    };

    /// One row a branch: 1 reserved, 2 confirmed.
    struct Rows;

    fn key(branch: BranchId) -> i64 {
        number(branch).try_into().unwrap()
    }

    #[tonic::async_trait]
    impl Handler for Rows {
        async fn reserve(&self, database: &Transaction<'_>, branch: BranchId, _: &[u8]) -> Result<Reservation, Error> {
            database.execute("INSERT INTO work VALUES ($1, 1)", &[&key(branch)]).await?;
            Ok(Reservation::Reserved)
        }

        async fn confirm(&self, database: &Transaction<'_>, branch: BranchId, _: &[u8]) -> Result<(), Error> {
            let changed = database.execute("UPDATE work SET state = state + 1 WHERE n = $1", &[&key(branch)]).await?;
            assert_eq!(changed, 1);
            Ok(())
        }

        async fn cancel(&self, database: &Transaction<'_>, branch: BranchId, _: &[u8]) -> Result<(), Error> {
            database.execute("DELETE FROM work WHERE n = $1", &[&key(branch)]).await.map(drop)
        }
    }

    #[tokio::test]
    async fn what_was_said_before_postgres_was_killed_is_there_after_it() {
        let mut server = PostgresServer::start(&[]).await;
        server.database("bank").await;
        server.client("bank").await.batch_execute("CREATE TABLE work (n bigint PRIMARY KEY, state int)").await.unwrap();
        let pool = pool(&server.dsn(APP, "bank"), 8).unwrap();
        // One process of the service lives through all of it.
        let table = BranchTable::open(pool, Rows, TableOptions::default()).await.unwrap();
        let (mut finished, mut kept) = (0, 0);
        for kill in 0..KILLS {
            let branches = kill * 100_000..(kill + 1) * 100_000;
            let said = work_until_killed(&table, branches, async || server.kill(), 10 + 9 * kill).await;
            server.start_again().await;
            finished += said.1.len();
            let client = server.client("bank").await;
            let state = async |n: u64| {
                let n = i64::try_from(n).unwrap();
                let row = client.query_opt("SELECT state FROM work WHERE n = $1", &[&n]).await.unwrap();
                row.map(|row| row.get(0))
            };
            kept += holds_what_it_said(&table, said, state).await;
        }
        println!("{KILLS} kills of PostgreSQL: {finished} branches finished before, {kept} held and finished after");
        assert!(kept > 0, "never was anything in doubt at a kill");
    }
}

#[cfg(feature = "mysql")]
mod mysql {
    use verdict_client::{
        BranchId,
        resource::{
            Reservation,
            mysql::{
                mysql_async::{Result, Transaction, prelude::Queryable},
                table::{BranchTable, Handler, TableOptions},
            },
        },
    };

    use super::{
        KILLS,
        common::{
            mariadb::MariaDb,
            tables::{holds_what_it_said, number, work_until_killed},
        },
    };

    /// One row a branch: 1 reserved, 2 confirmed.
    struct Rows;

    #[tonic::async_trait]
    impl Handler for Rows {
        async fn reserve(&self, database: &mut Transaction<'_>, branch: BranchId, _: &[u8]) -> Result<Reservation> {
            database.exec_drop("INSERT INTO work VALUES (?, 1)", (number(branch),)).await?;
            Ok(Reservation::Reserved)
        }

        async fn confirm(&self, database: &mut Transaction<'_>, branch: BranchId, _: &[u8]) -> Result<()> {
            database.exec_drop("UPDATE work SET state = state + 1 WHERE n = ?", (number(branch),)).await?;
            assert_eq!(database.affected_rows(), 1);
            Ok(())
        }

        async fn cancel(&self, database: &mut Transaction<'_>, branch: BranchId, _: &[u8]) -> Result<()> {
            database.exec_drop("DELETE FROM work WHERE n = ?", (number(branch),)).await
        }
    }

    #[tokio::test]
    async fn what_was_said_before_mariadb_was_killed_is_there_after_it() {
        let mut server = MariaDb::start().await;
        let create = "CREATE TABLE work (n BIGINT PRIMARY KEY, state INT) ENGINE=InnoDB";
        server.root("bank").await.query_drop(create).await.unwrap();
        // One process of the service lives through all of it.
        let table = BranchTable::open(server.pool_of_at_most(8), Rows, TableOptions::default()).await.unwrap();
        let (mut finished, mut kept) = (0, 0);
        for kill in 0..KILLS {
            let branches = kill * 100_000..(kill + 1) * 100_000;
            let said = work_until_killed(&table, branches, async || server.kill(), 10 + 9 * kill).await;
            server.restart().await;
            finished += said.1.len();
            let server = &server;
            let state = async |n: u64| {
                let mut root = server.root("bank").await;
                root.exec_first("SELECT state FROM work WHERE n = ?", (n,)).await.unwrap()
            };
            kept += holds_what_it_said(&table, said, state).await;
        }
        println!("{KILLS} kills of MariaDB: {finished} branches finished before, {kept} held and finished after");
        assert!(kept > 0, "never was anything in doubt at a kill");
    }
}
