//! Where bookings work: each in a session of its own, in a branch that commit prepares, brings along and settles.

use std::error::Error;

use verdict_client::{
    Reason, Transaction, Verdict,
    participant::with_causes,
    resource::{
        mysql::{self, Mysql, mysql_async::prelude::Queryable as _},
        postgres::{self, Postgres},
    },
};

use super::tables::{Stock, Tables, numbered};
use crate::participant::Order;

/// A database as the bookings see it. Clones share its connections.
#[derive(Clone, Debug)]
pub(in crate::demo) struct Till {
    pub(in crate::demo) stock: Stock,
    resource: Resource,
}

#[derive(Clone, Debug)]
enum Resource {
    Postgres(Postgres),
    Mariadb(Mysql),
}

type Anything = Box<dyn Error + Send + Sync>;

impl Till {
    pub(super) async fn at_postgres(
        stock: Stock,
        verdict: &Verdict,
        dsn: &str,
        connections: usize,
    ) -> Result<Self, Anything> {
        let (name, pool) = (stock.kind().name().try_into()?, postgres::pool(dsn, connections)?);
        Ok(Self { stock, resource: Resource::Postgres(Postgres::open(verdict, name, pool).await?) })
    }

    pub(super) async fn at_mariadb(
        stock: Stock,
        verdict: &Verdict,
        dsn: &str,
        connections: usize,
    ) -> Result<Self, Anything> {
        let (name, pool) = (stock.kind().name().try_into()?, mysql::pool(dsn, connections)?);
        Ok(Self { stock, resource: Resource::Mariadb(Mysql::open(verdict, name, pool).await?) })
    }

    /// Takes what an order needs, in a new branch of the transaction, which then commits or rolls back with it.
    ///
    /// # Errors
    /// The reason if there is too little, or, to be tried again in another transaction, if the database is away or has
    /// ended the work.
    pub(in crate::demo) async fn take(&self, booking: &mut Transaction, order: &Order) -> Result<(), Reason> {
        let taken = match &self.resource {
            Resource::Postgres(database) => self.take_at_postgres(database, booking, order).await,
            Resource::Mariadb(database) => self.take_at_mariadb(database, booking, order).await,
        };
        taken.unwrap_or_else(|error| Err(Reason::refused(with_causes(&*error), "DATABASE", true)))
    }

    async fn take_at_postgres(
        &self,
        database: &Postgres,
        booking: &mut Transaction,
        order: &Order,
    ) -> Result<Result<(), Reason>, Anything> {
        let Tables { left, take, note, .. } = self.stock.tables();
        let (xid, key) = (booking.xid().to_string(), self.stock.key(order));
        let session = database.enlist(booking).await?;
        let client = session.client()?;
        let left: i64 = client.query_one(&numbered(left), &[&key]).await?.try_get(0)?;
        let amount = match self.stock.amount(order, left) {
            Ok(amount) => amount,
            Err(too_little) => return Ok(Err(too_little)),
        };
        client.execute(&numbered(take), &[&amount, &key]).await?;
        client.execute(&numbered(note), &[&order.order_id, &xid, &key, &amount]).await?;
        Ok(Ok(()))
    }

    async fn take_at_mariadb(
        &self,
        database: &Mysql,
        booking: &mut Transaction,
        order: &Order,
    ) -> Result<Result<(), Reason>, Anything> {
        let Tables { left, take, note, .. } = self.stock.tables();
        let (xid, key) = (booking.xid().to_string(), self.stock.key(order));
        let session = database.enlist(booking).await?;
        let mut connection = session.connection().await?;
        let left: Option<i64> = connection.exec_first(*left, (key,)).await?;
        let amount = match self.stock.amount(order, left.ok_or("what is to be taken is not there")?) {
            Ok(amount) => amount,
            Err(too_little) => return Ok(Err(too_little)),
        };
        connection.exec_drop(*take, (amount, key)).await?;
        connection.exec_drop(*note, (&order.order_id, xid, key, amount)).await?;
        Ok(Ok(()))
    }
}
