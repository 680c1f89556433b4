//! What every call passes through. Calls under way are counted, so that a stop can wait for them, and for nothing else:
//! the links between nodes never end by themselves. And a message that is too large is refused as every other limit is.

use std::{
    convert::Infallible,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use tokio::sync::watch;
use tonic::{
    Code, Status,
    body::Body,
    codegen::{Service, http},
    server::NamedService,
};
use verdict_client::wire;
use verdict_proto::v1::{ErrorDetail, error_detail};

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
            answer.map(|response| too_large(&response).map_or(response, Status::into_http))
        })
    }
}

/// What to answer instead of tonic's own word for a message that is larger than it reads: OUT_OF_RANGE, which has
/// another meaning here, and bears no detail.
fn too_large(response: &http::Response<Body>) -> Option<Status> {
    let status = Status::from_header_map(response.headers())?;
    if status.code() != Code::OutOfRange || !status.details().is_empty() {
        return None;
    }
    let text = format!("{}: split the list over several calls, or keep large payloads elsewhere", status.message());
    let detail = ErrorDetail { code: error_detail::Code::Invalid.into(), ..ErrorDetail::default() };
    Some(wire::status(Code::ResourceExhausted, text, &detail))
}

impl<S: NamedService> NamedService for Counted<S> {
    const NAME: &'static str = S::NAME;
}
