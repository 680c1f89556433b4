//! The shop: each order is one transaction over two services, of which it knows nothing but how to call them.

use std::{error::Error, time::Duration};

use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::TokioExecutor,
};
use tonic::{Code, transport::Channel};
use verdict_client::{CallError, Decision, Transaction, Verdict, context::Context};

use crate::payments::{ChargeRequest, PaymentsClient};

/// How often a call without an answer is repeated.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_millis(100);

#[derive(Clone, Debug)]
pub(crate) struct Shop {
    pub(crate) verdict: Verdict,
    pub(crate) payments: Channel,
    /// `host:port`.
    pub(crate) stock: String,
    pub(crate) http: Client<HttpConnector, Full<axum::body::Bytes>>,
}

/// What a customer wants.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Order {
    pub(crate) customer: &'static str,
    pub(crate) good: &'static str,
    pub(crate) count: u32,
    pub(crate) cents: u32,
}

/// What a service said that will not take part.
#[derive(Debug)]
pub(crate) struct Refused(pub(crate) String);

impl Shop {
    pub(crate) fn new(verdict: Verdict, payments: Channel, stock: String) -> Self {
        Self { verdict, payments, stock, http: Client::builder(TokioExecutor::new()).build_http() }
    }

    /// Sells, or does not: the money is taken if and only if the goods are.
    pub(crate) async fn sell(&self, order: Order, times: u32) -> Result<(Transaction, Decision), CallError> {
        let mut transaction = self.verdict.transaction();
        let (pay, take) = (transaction.call()?, transaction.call()?);
        let mut answer = Ok(());
        // A call that comes again in the same context is the same branch.
        for _ in 0..times {
            answer = answer.and(self.charge(pay, order).await).and(self.take(take, order).await);
        }
        let decision = match answer {
            Ok(()) => transaction.commit().await?,
            Err(Refused(why)) => transaction.rollback(why).await?,
        };
        Ok((transaction, decision))
    }

    /// Calls the payment service.
    pub(crate) async fn charge(&self, context: Context, order: Order) -> Result<(), Refused> {
        // The context is the interceptor of this one call.
        let mut client = PaymentsClient::with_interceptor(self.payments.clone(), context);
        let Order { customer, cents, .. } = order;
        let mut attempts = 0;
        loop {
            match client.charge(ChargeRequest { customer: customer.to_owned(), cents }).await {
                Ok(_) => return Ok(()),
                Err(status) if status.code() == Code::Unavailable && attempts < ATTEMPTS => {
                    attempts += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                Err(status) => return Err(Refused(format!("payments: {}", status.message()))),
            }
        }
    }

    /// Calls the stock service.
    pub(crate) async fn take(&self, context: Context, order: Order) -> Result<(), Refused> {
        let mut attempts = 0;
        loop {
            match self.post(|headers| context.inject(headers), order).await {
                Ok((StatusCode::NO_CONTENT, _)) => return Ok(()),
                Ok((StatusCode::SERVICE_UNAVAILABLE, _)) | Err(_) if attempts < ATTEMPTS => {
                    attempts += 1;
                    tokio::time::sleep(PAUSE).await;
                }
                Ok((_, why)) => return Err(Refused(format!("stock: {why}"))),
                Err(error) => return Err(Refused(format!("stock: {error}"))),
            }
        }
    }

    pub(crate) async fn post(
        &self,
        headers: impl FnOnce(&mut http::HeaderMap),
        order: Order,
    ) -> Result<(StatusCode, String), Box<dyn Error + Send + Sync>> {
        let body = Full::from(format!("{} {}", order.good, order.count));
        let mut request = Request::post(format!("http://{}/take", self.stock)).body(body)?;
        headers(request.headers_mut());
        let response = self.http.request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        Ok((status, String::from_utf8_lossy(&body).into_owned()))
    }
}
