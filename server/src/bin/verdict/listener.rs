//! The socket that a process serves on.

use std::{io, net::SocketAddr, time::Duration};

use thiserror::Error;
use tokio::net::{TcpListener, lookup_host};
use tonic::transport::{Server, server::TcpIncoming};

/// Why a process can't be reached where it should be.
#[derive(Debug, Error)]
pub(crate) enum ListenError {
    #[error("{address} is in use: stop the process that listens there, or choose another address")]
    InUse { address: String },
    #[error("{address} has no address on this machine")]
    Resolve {
        address: String,
        #[source]
        source: Option<io::Error>,
    },
    #[error("cannot listen on {address}")]
    Other {
        address: String,
        #[source]
        source: io::Error,
    },
}

/// Listens on `host:port`. Every connection gets TCP_NODELAY, without which small answers wait for 40 ms.
pub(crate) async fn listen(address: &str) -> Result<(TcpIncoming, SocketAddr), ListenError> {
    let resolve = |source| ListenError::Resolve { address: address.to_owned(), source };
    let mut resolved = lookup_host(address).await.map_err(|error| resolve(Some(error)))?;
    let socket = resolved.next().ok_or_else(|| resolve(None))?;
    let other = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => ListenError::InUse { address: address.to_owned() },
        _ => ListenError::Other { address: address.to_owned(), source },
    };
    let listener = TcpListener::bind(socket).await.map_err(other)?;
    let local = listener.local_addr().map_err(other)?;
    Ok((TcpIncoming::from(listener).with_nodelay(Some(true)), local))
}

/// Calls of one connection at a time. A node bounds calls in all; this is far above what one client keeps in flight.
const STREAMS: u32 = 4096;

/// A gRPC server with bounds: on what one connection may hold open, and on how long a silent one is kept.
pub(crate) fn server() -> Server {
    Server::builder()
        .max_concurrent_streams(Some(STREAMS))
        // A node that was paused finds the calls that its clients have given up since; that is no attack.
        .http2_max_pending_accept_reset_streams(Some(STREAMS as usize))
        .http2_max_header_list_size(Some(16 << 10))
        .http2_keepalive_interval(Some(Duration::from_secs(10)))
        .http2_keepalive_timeout(Some(Duration::from_secs(5)))
}
