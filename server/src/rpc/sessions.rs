//! Sessions of clients.

use std::sync::Arc;

use tonic::{Request, Response, Status};
use verdict_proto::v1::{OpenSessionRequest, OpenSessionResponse, sessions_server::Sessions};
use verdict_protocol::{self as protocol, Reply, SessionName};

use super::{
    failure::Failure,
    route::{Call, Front},
};
use crate::wire;

#[derive(Debug)]
pub(super) struct Service(pub(super) Arc<Front>);

#[tonic::async_trait]
impl Sessions for Service {
    async fn open(&self, request: Request<OpenSessionRequest>) -> Result<Response<OpenSessionResponse>, Status> {
        self.0.route(request.into_inner()).await
    }
}

impl Call for OpenSessionRequest {
    const KIND: u32 = 12;
    type Reply = OpenSessionResponse;

    async fn serve(self, front: &Front) -> Result<OpenSessionResponse, Failure> {
        let name = SessionName::try_from(self.name).map_err(|error| Failure::Invalid(format!("name: {error}")))?;
        let instance = wire::instance(&self.instance).map_err(Failure::Invalid)?;
        match front.request(protocol::Request::OpenSession { name, instance }).await? {
            Reply::Session { epoch } => Ok(OpenSessionResponse { epoch }),
            Reply::Refused(refusal) => Err(Failure::Refused(refusal)),
            Reply::Decided { .. }
            | Reply::Done { .. }
            | Reply::Order { .. }
            | Reply::Interrupted
            | Reply::NotLeader => Err(Failure::Interrupted),
        }
    }
}
