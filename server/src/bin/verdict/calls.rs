//! Counts the calls that a service is working on, so that a stop can wait for them, and for nothing else: the links
//! between nodes never end by themselves.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::sync::watch;
use tonic::{
    body::Body,
    codegen::{Service, http},
    server::NamedService,
};

#[derive(Clone, Debug)]
pub(crate) struct Calls(Arc<watch::Sender<usize>>);

/// A service whose calls are counted.
#[derive(Clone, Debug)]
pub(crate) struct Counted<S> {
    service: S,
    calls: Calls,
}

struct Guard(Calls);

impl Calls {
    pub(crate) fn new() -> Self {
        Self(Arc::new(watch::Sender::new(0)))
    }

    pub(crate) fn count<S>(&self, service: S) -> Counted<S> {
        Counted { service, calls: self.clone() }
    }

    /// Waits until no call is under way.
    pub(crate) async fn ended(&self) {
        // The sender is this one's, so it is there.
        let _ = self.0.subscribe().wait_for(|calls| *calls == 0).await;
    }

    fn begin(&self) -> Guard {
        self.0.send_modify(|calls| *calls += 1);
        Guard(self.clone())
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.0.send_modify(|calls| *calls -= 1);
    }
}

impl<S> Service<http::Request<Body>> for Counted<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        // Held until there is an answer, or the caller has gone away.
        let guard = self.calls.begin();
        let answer = self.service.call(request);
        Box::pin(async move {
            let answer = answer.await;
            drop(guard);
            answer
        })
    }
}

impl<S: NamedService> NamedService for Counted<S> {
    const NAME: &'static str = S::NAME;
}
