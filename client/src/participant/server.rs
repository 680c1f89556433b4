//! Resource managers, asked over gRPC or through a stream.
//!
//! ```text
//!   call, or stream ─▶ parse ─▶ which manager? ─▶ a task of its own ─▶ ResourceManager ─▶ reply
//!                                                 └ counted: bounded, awaited by stop()
//! ```
//!
//! A caller that goes away, or whose deadline passes, or whose stream breaks, drops the handler but not the task.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use thiserror::Error;
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};
use verdict_proto::v1::{self, participant_server::Participant};
use verdict_protocol::ResourceName;

use super::{
    OnePhase, Prepare, ResourceManager, Settle,
    inquiry::{Inquiry, InquiryOptions},
    stream::{Stream, StreamStatus},
};
use crate::{
    Verdict,
    wire::{FromWire, ToWire},
};

/// How participants are served.
#[derive(Clone, Copy, Debug)]
pub struct ParticipantOptions {
    /// How many calls run at a time; more are refused and come again. It bounds memory: each holds at most a payload.
    /// It is the credit that a stream gives, up to 4,096.
    pub in_flight: u32,
    /// How many branches a Recover lists, so that its reply stays well under gRPC's 4 MiB.
    pub recover_limit: usize,
    pub inquiry: InquiryOptions,
}

impl Default for ParticipantOptions {
    fn default() -> Self {
        Self { in_flight: 1024, recover_limit: 50_000, inquiry: InquiryOptions::default() }
    }
}

/// Resource managers of this process, by name: attached to the cluster by a stream, or served over gRPC, or both; and
/// each branch that they hold in doubt for too long asked about. Stop it with [`Participants::stop`]; dropped, it stops
/// asking at once.
///
/// A participant that the cluster's configuration declares as a `stream` needs no address:
///
/// ```no_run
/// # async fn attach(manager: impl verdict_client::participant::ResourceManager) -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use verdict_client::{Options, Verdict, participant::{ParticipantOptions, Participants}};
///
/// let verdict = Verdict::new(Options::new(["127.0.0.1:7101", "127.0.0.1:7102", "127.0.0.1:7103"]))?;
/// let mut participants =
///     Participants::start([("seats".try_into()?, Arc::new(manager) as _)], verdict, ParticipantOptions::default());
/// participants.attach();
/// // Until the process is to end:
/// participants.stop().await;
/// # Ok(())
/// # }
/// ```
///
/// One that is declared with its endpoint is served there:
///
/// ```no_run
/// # async fn serve(manager: impl verdict_client::participant::ResourceManager) -> Result<(), Box<dyn std::error::Error>> {
/// use std::sync::Arc;
/// use verdict_client::{Options, Verdict, participant::{ParticipantOptions, Participants}};
/// use verdict_proto::v1::participant_server::ParticipantServer;
///
/// let verdict = Verdict::new(Options::new(["127.0.0.1:7101"]))?;
/// let participants =
///     Participants::start([("seats".try_into()?, Arc::new(manager) as _)], verdict, ParticipantOptions::default());
/// tonic::transport::Server::builder()
///     .tcp_nodelay(true)
///     .add_service(ParticipantServer::new(participants.handlers()))
///     .serve("127.0.0.1:7201".parse()?)
///     .await?;
/// participants.stop().await;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Participants {
    shared: Arc<Shared>,
    verdict: Verdict,
    inquiry: Inquiry,
    stream: Option<Stream>,
}

#[derive(Debug)]
pub(super) struct Shared {
    pub(super) managers: BTreeMap<ResourceName, Arc<dyn ResourceManager>>,
    pub(super) options: ParticipantOptions,
    permits: Arc<Semaphore>,
    stopping: AtomicBool,
}

/// Why a call was not run to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum RunError {
    #[error("the participant is stopping: ask again when it is back")]
    Stopping,
    #[error("the participant has {0} calls in flight, as many as it takes: ask again")]
    Full(u32),
    #[error("the participant's code panicked: see its log")]
    Panicked,
}

impl From<RunError> for Status {
    fn from(error: RunError) -> Self {
        match error {
            RunError::Stopping => Self::unavailable(error.to_string()),
            RunError::Full(_) => Self::resource_exhausted(error.to_string()),
            RunError::Panicked => Self::internal(error.to_string()),
        }
    }
}

impl Participants {
    /// Starts to ask `verdict` about branches in doubt. [`Participants::attach`] it, or serve
    /// [`Participants::handlers`], as well.
    #[must_use]
    pub fn start(
        managers: impl IntoIterator<Item = (ResourceName, Arc<dyn ResourceManager>)>,
        verdict: Verdict,
        options: ParticipantOptions,
    ) -> Self {
        let shared = Arc::new(Shared {
            managers: managers.into_iter().collect(),
            options,
            permits: Arc::new(Semaphore::new(options.in_flight as usize)),
            stopping: AtomicBool::new(false),
        });
        let inquiry = Inquiry::start(&shared, verdict.clone());
        Self { shared, verdict, inquiry, stream: None }
    }

    /// Opens a stream to the cluster's leader, through which all resources here are asked, and keeps it: whenever it
    /// ends it is opened again, at whoever leads by then. A second time changes nothing.
    pub fn attach(&mut self) {
        let start = || Stream::start(self.shared.clone(), self.verdict.clone());
        self.stream.get_or_insert_with(start);
    }

    /// Whether the stream stands; none before [`Participants::attach`].
    #[must_use]
    pub fn stream(&self) -> Option<StreamStatus> {
        self.stream.as_ref().map(Stream::status)
    }

    /// The gRPC service, for `ParticipantServer::new`.
    #[must_use]
    pub fn handlers(&self) -> Handlers {
        Handlers { shared: self.shared.clone() }
    }

    /// Refuses new calls, lets those that run come to their end, stops asking. A stream takes the last replies along
    /// before it ends.
    pub async fn stop(self) {
        if let Some(stream) = &self.stream {
            stream.leave();
        }
        self.shared.stopping.store(true, Ordering::Release);
        self.inquiry.stop();
        // All permits are back when nothing runs. The semaphore is never closed, so this can't fail.
        let drained = self.shared.permits.acquire_many(self.shared.options.in_flight).await;
        drop(drained);
        if let Some(stream) = self.stream {
            stream.ended().await;
        }
    }
}

impl Shared {
    /// Runs `work` in a task of its own, so that it comes to its end whoever stops waiting for it.
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, RunError> {
        if self.stopping.load(Ordering::Acquire) {
            return Err(RunError::Stopping);
        }
        let full = |_| RunError::Full(self.options.in_flight);
        let permit = self.permits.clone().try_acquire_owned().map_err(full)?;
        let task = tokio::spawn(async move {
            let result = work.await;
            drop(permit);
            result
        });
        task.await.map_err(|_| RunError::Panicked)
    }

    fn manager(&self, resource: &ResourceName) -> Result<Arc<dyn ResourceManager>, Status> {
        self.managers.get(resource).cloned().ok_or_else(|| {
            let names: Vec<_> = self.managers.keys().map(ResourceName::as_str).collect();
            let names = names.join(", ");
            Status::not_found(format!("no resource {resource} here, only {names}: check the cluster's configuration"))
        })
    }

    pub(super) async fn prepare(&self, request: v1::PrepareRequest) -> Result<v1::PrepareResponse, Status> {
        let request = Prepare::from_wire(request)?;
        let manager = self.manager(&request.resource)?;
        Ok(self.run(async move { manager.prepare(request).await }).await??.to_wire())
    }

    pub(super) async fn commit(&self, request: v1::SettleRequest) -> Result<v1::SettleResponse, Status> {
        let request = Settle::from_wire(request)?;
        let manager = self.manager(&request.resource)?;
        Ok(self.run(async move { manager.commit(request).await }).await??.to_wire())
    }

    pub(super) async fn rollback(&self, request: v1::SettleRequest) -> Result<v1::SettleResponse, Status> {
        let request = Settle::from_wire(request)?;
        let manager = self.manager(&request.resource)?;
        Ok(self.run(async move { manager.rollback(request).await }).await??.to_wire())
    }

    pub(super) async fn commit_one_phase(&self, request: v1::OnePhaseRequest) -> Result<v1::OnePhaseResponse, Status> {
        let request = OnePhase::from_wire(request)?;
        let manager = self.manager(&request.resource)?;
        Ok(self.run(async move { manager.commit_one_phase(request).await }).await??.to_wire())
    }

    pub(super) async fn recover(&self, request: v1::RecoverRequest) -> Result<v1::RecoverResponse, Status> {
        let resource = ResourceName::try_from(request.resource).map_err(crate::wire::WireError::from)?;
        let manager = self.manager(&resource)?;
        let limit = self.options.recover_limit;
        let prepared = self.run(async move { manager.recover(limit).await }).await??;
        Ok(v1::RecoverResponse { prepared: prepared.into_iter().map(ToWire::to_wire).collect() })
    }
}

/// The gRPC service of [`Participants`].
#[derive(Clone, Debug)]
pub struct Handlers {
    shared: Arc<Shared>,
}

#[tonic::async_trait]
impl Participant for Handlers {
    async fn prepare(&self, request: Request<v1::PrepareRequest>) -> Result<Response<v1::PrepareResponse>, Status> {
        self.shared.prepare(request.into_inner()).await.map(Response::new)
    }

    async fn commit(&self, request: Request<v1::SettleRequest>) -> Result<Response<v1::SettleResponse>, Status> {
        self.shared.commit(request.into_inner()).await.map(Response::new)
    }

    async fn rollback(&self, request: Request<v1::SettleRequest>) -> Result<Response<v1::SettleResponse>, Status> {
        self.shared.rollback(request.into_inner()).await.map(Response::new)
    }

    async fn commit_one_phase(
        &self,
        request: Request<v1::OnePhaseRequest>,
    ) -> Result<Response<v1::OnePhaseResponse>, Status> {
        self.shared.commit_one_phase(request.into_inner()).await.map(Response::new)
    }

    async fn recover(&self, request: Request<v1::RecoverRequest>) -> Result<Response<v1::RecoverResponse>, Status> {
        self.shared.recover(request.into_inner()).await.map(Response::new)
    }
}
