//! The application: moves 1 from an account at PostgreSQL to one at MariaDB.

use verdict_client::{
    Options, Verdict,
    resource::{
        mysql::{self, Mysql, mysql_async::prelude::Queryable as _},
        postgres::{self, Postgres},
    },
};

use super::ACCOUNTS;

/// Told the ports of its databases, and where the nodes are.
pub(crate) async fn transfer(arguments: &[String]) {
    let [accounts_port, ledger_port, nodes @ ..] = arguments else { panic!("{arguments:?}") };
    let verdict = Verdict::new(Options::new(nodes.iter().cloned())).unwrap();
    let [accounts, ledger] = ACCOUNTS.map(|name| name.try_into().unwrap());
    let dsn = format!("host=127.0.0.1 port={accounts_port} user={} dbname=shop", super::postgres::APP);
    let accounts = Postgres::open(&verdict, accounts, postgres::pool(&dsn, 2).unwrap()).await.unwrap();
    let url = format!("mysql://root@127.0.0.1:{ledger_port}/bank?prefer_socket=false");
    let ledger = Mysql::open(&verdict, ledger, mysql::pool(&url, 2).unwrap()).await.unwrap();

    let mut transfer = verdict.transaction();
    let (from, to) = (accounts.enlist(&mut transfer).await.unwrap(), ledger.enlist(&mut transfer).await.unwrap());
    from.client().unwrap().execute("UPDATE account SET balance = balance - 1 WHERE id = 1", &[]).await.unwrap();
    to.connection().await.unwrap().query_drop("UPDATE accounts SET balance = balance + 1 WHERE id = 1").await.unwrap();
    transfer.commit().await.unwrap();
}
