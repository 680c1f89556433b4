//! `verdict serve`: one node.

use std::{path::PathBuf, pin::pin, process::ExitCode, time::Duration};

use clap::Args;
use thiserror::Error;
use tokio::{sync::oneshot, time::timeout};
use tonic_health::{ServingStatus, server::HealthReporter};
use tonic_reflection::server::Builder as Reflection;
use verdict_proto::{
    peer::v1::peer_server::PeerServer,
    v1::{
        branches_server::BranchesServer, operator_server::OperatorServer, sessions_server::SessionsServer,
        transactions_server::TransactionsServer,
    },
};
use verdict_raft_log::Status;
use verdict_server::{MAX_MESSAGE, Node, Seams, StartError};

use crate::{
    calls::Calls,
    config::{Config, ConfigError},
    listener::{self, ListenError},
    logging::Logging,
    parent,
    signals::StopSignals,
};

/// How long a graceful stop lets calls that are under way come to their end.
const DRAIN_WITHIN: Duration = Duration::from_secs(3);

/// How long the last answers may take to leave this process.
const FLUSH_WITHIN: Duration = Duration::from_millis(100);

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// The node's configuration. Each key can be set by a variable instead: VERDICT_ and the key in capitals, two
    /// underscores for the dot, such as VERDICT_TIMEOUTS__VOTE_MS=5000.
    #[arg(long, value_name = "FILE", env = "VERDICT_CONFIG")]
    config: PathBuf,
    #[command(flatten)]
    logging: Logging,
    /// End when standard input is closed.
    #[arg(long, hide = true)]
    exit_with_parent: bool,
}

/// Why a node did not start, or does not go on.
#[derive(Debug, Error)]
pub(crate) enum ServeError {
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error("{0}")]
    Logging(String),
    #[error("signals cannot be listened to")]
    Signals(#[source] std::io::Error),
    #[error("listen")]
    Listen(#[from] ListenError),
    #[error("the data folder {} cannot be used", data.display())]
    Data { data: PathBuf, source: std::io::Error },
    #[error("the node does not start")]
    Start(#[source] StartError),
    #[error("the server failed")]
    Server(#[from] tonic::transport::Error),
    #[error("reflection cannot be served")]
    Reflection(#[from] tonic_reflection::server::Error),
    #[error(
        "the node stopped itself, since it can acknowledge nothing more: {reason}. What it acknowledged is safe; \
         remove the cause and start it again with the same data folder"
    )]
    Stopped { reason: String },
}

enum End {
    Signal(&'static str),
    Stopped(String),
    Server(Result<(), tonic::transport::Error>),
}

impl Serve {
    pub(crate) async fn run(self) -> Result<ExitCode, ServeError> {
        if self.exit_with_parent {
            parent::exit_with_parent();
        }
        self.logging.start().map_err(ServeError::Logging)?;
        let mut stop = StopSignals::listen().map_err(ServeError::Signals)?;
        let environment = std::env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.to_string_lossy().into_owned())));
        let Config { options, data, listen, databases } = Config::read(&self.config, environment)?;
        let (incoming, address) = listener::listen(&listen).await?;
        let number = options.node;
        let mut seams = Seams::production(&data).map_err(|source| ServeError::Data { data: data.clone(), source })?;
        seams.databases = databases;
        let node = Node::start(options, seams).await.map_err(ServeError::Start)?;

        let (health, health_service) = tonic_health::server::health_reporter();
        let reflection = || Reflection::configure().register_encoded_file_descriptor_set(verdict_proto::DESCRIPTORS);
        let (services, calls) = (node.services(), Calls::new());
        let router = listener::server()
            .add_service(health_service)
            .add_service(reflection().build_v1()?)
            .add_service(reflection().build_v1alpha()?)
            .add_service(calls.count(TransactionsServer::new(services.transactions())))
            .add_service(calls.count(SessionsServer::new(services.sessions())))
            .add_service(calls.count(BranchesServer::new(services.branches())))
            .add_service(calls.count(OperatorServer::new(services.operator())))
            .add_service(PeerServer::new(services.peer()).max_decoding_message_size(MAX_MESSAGE));
        let (close, closed) = oneshot::channel::<()>();
        let mut server = pin!(router.serve_with_incoming_shutdown(incoming, async move {
            // Also if the sender is dropped: then nothing is served any more.
            let _ = closed.await;
        }));
        tracing::info!(node = number.0, %address, data = %data.display(), "serving");

        let mut status = node.status();
        let end = loop {
            report(&health, is_serving(&status)).await;
            if let Some(reason) = status.stopped {
                break End::Stopped(reason);
            }
            tokio::select! {
                biased;
                signal = stop.received() => break End::Signal(signal),
                result = &mut server => break End::Server(result),
                next = node.status_changed(&status) => status = next,
            }
        };
        report(&health, false).await;
        match end {
            End::Signal(signal) => {
                tracing::info!(signal, "stopping");
                let handed_over = async {
                    if let Err(error) = node.hand_over().await {
                        tracing::warn!(%error, "nobody took the leadership over: the others will elect a leader");
                    }
                };
                // Calls are answered meanwhile.
                tokio::select! {
                    () = handed_over => {}
                    result = &mut server => result?,
                }
                // Closed already if the server has ended.
                let _ = close.send(());
                let drained = async {
                    calls.ended().await;
                    // The answers go out, and connections close; those of other nodes stay open.
                    let _ = timeout(FLUSH_WITHIN, &mut server).await;
                };
                if timeout(DRAIN_WITHIN, drained).await.is_err() {
                    tracing::warn!("calls were still under way: their clients ask another node");
                }
                node.stop().await;
                tracing::info!("stopped");
                Ok(ExitCode::SUCCESS)
            }
            End::Stopped(reason) => {
                node.stop().await;
                Err(ServeError::Stopped { reason })
            }
            End::Server(result) => {
                node.stop().await;
                result?;
                Ok(ExitCode::SUCCESS)
            }
        }
    }
}

/// Whether a client that comes here gets answers: from this node, or through it from a leader.
fn is_serving(status: &Status) -> bool {
    status.stopped.is_none() && status.leader.is_some()
}

async fn report(health: &HealthReporter, serving: bool) {
    let status = if serving { ServingStatus::Serving } else { ServingStatus::NotServing };
    for service in ["", "verdict.v1.Transactions"] {
        health.set_service_status(service, status).await;
    }
}
