//! How a command fails: its exit code and its text.

use thiserror::Error;
use verdict_client::CallError;

use crate::{
    client::AskError, demo::DemoError, participant::ParticipantError, resource::ResourceError, serve::ServeError,
};

#[derive(Debug, Error)]
pub(crate) enum Failure {
    #[error("the runtime did not start")]
    Runtime(#[source] std::io::Error),
    #[error(transparent)]
    Serve(#[from] ServeError),
    #[error(transparent)]
    Ask(#[from] AskError),
    #[error(transparent)]
    Resource(#[from] ResourceError),
    #[error(transparent)]
    Participant(#[from] ParticipantError),
    #[error(transparent)]
    Demo(#[from] DemoError),
}

impl Failure {
    /// As `verdict --help` lists them.
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Serve(ServeError::Config(_) | ServeError::Logging(_))
            | Self::Ask(AskError::Options(_) | AskError::Xid(_))
            | Self::Resource(ResourceError::Config(_) | ResourceError::Unknown { .. })
            | Self::Participant(
                ParticipantError::Options(_) | ParticipantError::Resource(_) | ParticipantError::Logging(_),
            )
            | Self::Demo(DemoError::Bookings(_) | DemoError::Keep { .. } | DemoError::Databases { .. }) => 2,
            Self::Ask(AskError::Call(CallError::Unknown { .. })) => 3,
            Self::Demo(DemoError::Interrupted) => 130,
            Self::Runtime(_)
            | Self::Serve(_)
            | Self::Ask(_)
            | Self::Resource(_)
            | Self::Participant(_)
            | Self::Demo(_) => 1,
        }
    }
}
