//! Whoever is called in the middle of a transaction enlists himself with it: the transaction goes along with the call,
//! over gRPC or HTTP, as two headers.
//!
//! ```text
//!   shop ── verdict-xid: 0190…, verdict-branch: 1 ─▶ payment ── Enlist(branch 1) ─▶ Verdict
//!     │                                                 └── verdict-branch: 257 ─▶ bank ── Enlist(branch 257)
//!     └── Commit: registered ∪ listed; it need not know what its calls have registered
//! ```
//!
//! The caller hands out the number of the branch, one for each call, so that two services never come to the same one and
//! a call that is repeated registers nothing new. Whoever was called hands out further numbers below his own: a number is
//! a path of up to [`Context::MAX_DEPTH`] steps of one byte each, the lowest byte the first step; a step is never 0. So
//! no two paths are the same number, and nobody has to ask.
//!
//! A caller who has no answer repeats the call with the same context, or rolls back: the branch may be registered. A call
//! that arrives when the list is closed is refused, and does nothing.
//!
//! ```no_run
//! use verdict_client::{Verdict, context::Context};
//! # use tonic::{Request, Response, Status};
//! # struct Charge { text: String }
//! # async fn call(request: Request<Charge>) -> Result<Response<()>, Status> { Ok(Response::new(())) }
//!
//! # async fn caller(verdict: Verdict) -> Result<(), Box<dyn std::error::Error>> {
//! // The caller.
//! let mut order = verdict.transaction();
//! let context = order.call()?;
//! let mut request = Request::new(Charge { text: "alice, 30.00".to_owned() });
//! context.inject(request.metadata_mut().as_mut());
//! call(request).await?;
//! order.commit().await?;
//! # Ok(())
//! # }
//!
//! // Who is called.
//! # async fn charge(verdict: Verdict, request: Request<Charge>) -> Result<Response<()>, Box<dyn std::error::Error>> {
//! let context = Context::extract(request.metadata().as_ref())?.ok_or("call this within a transaction")?;
//! context.enlist(&verdict, "payments".try_into()?, request.into_inner().text.into()).await?;
//! # Ok(Response::new(()))
//! # }
//! ```

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue};
use thiserror::Error;
use tonic::{Request, Status, service::Interceptor};
use verdict_protocol::{BranchId, BranchNumber, ResourceName, Xid};

use crate::{CallError, Enlisted, Verdict};

/// Header and gRPC metadata: the transaction, as text.
pub const XID: HeaderName = HeaderName::from_static("verdict-xid");
/// Header and gRPC metadata: the number of the branch that whoever is called may enlist, decimal.
pub const BRANCH: HeaderName = HeaderName::from_static("verdict-branch");

/// The transaction under which a call is made, and the branch that is kept for whoever is called. For one call: another
/// one needs another context, and a repeated one the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Context {
    branch: BranchId,
}

/// Headers that stand for no context.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum ContextError {
    #[error("{0} is missing: a transaction goes along with a call as verdict-xid and verdict-branch")]
    Missing(HeaderName),
    #[error("{0} is there more than once")]
    Repeated(HeaderName),
    #[error("verdict-xid is not the xid of a transaction: 8-4-4-4-12 hex digits, version 7")]
    Xid,
    #[error("verdict-branch is not the number of a branch that was kept for a call")]
    Branch,
    #[error("a number for a call is 1 to {}, this is {step}", Context::MAX_STEP)]
    Step { step: u32 },
    #[error("{depth} calls deep, one of another: numbers for branches reach {} deep", Context::MAX_DEPTH)]
    Depth { depth: u32 },
}

impl Context {
    /// How deep calls may call others.
    pub const MAX_DEPTH: u32 = 4;
    /// How many numbers each may hand out.
    pub const MAX_STEP: u32 = 255;

    /// A context of a caller that keeps its own books of numbers.
    ///
    /// # Errors
    /// [`ContextError::Branch`] if the number is no path of steps.
    pub fn new(xid: Xid, number: BranchNumber) -> Result<Self, ContextError> {
        let bytes = number.to_le_bytes();
        let depth = bytes.iter().take_while(|step| **step != 0).count();
        let is_path = depth > 0 && bytes[depth..].iter().all(|step| *step == 0);
        if is_path { Ok(Self { branch: BranchId { xid, number } }) } else { Err(ContextError::Branch) }
    }

    #[must_use]
    pub fn xid(&self) -> Xid {
        self.branch.xid
    }

    /// The branch that is kept for whoever is called.
    #[must_use]
    pub fn branch(&self) -> BranchId {
        self.branch
    }

    /// The context of a call that whoever was called with this one makes in turn, under the same transaction. `step`
    /// tells his calls apart, from 1; a repeat must give the same call the same step.
    ///
    /// # Errors
    /// [`ContextError::Step`] and [`ContextError::Depth`].
    pub fn call(&self, step: u32) -> Result<Self, ContextError> {
        let depth = (u32::BITS - self.branch.number.leading_zeros()).div_ceil(8);
        if !(1..=Self::MAX_STEP).contains(&step) {
            return Err(ContextError::Step { step });
        }
        if depth >= Self::MAX_DEPTH {
            return Err(ContextError::Depth { depth: depth + 1 });
        }
        let number = self.branch.number | step << (8 * depth);
        Ok(Self { branch: BranchId { number, ..self.branch } })
    }

    /// Puts it into the headers of a call, in place of another that may be there. gRPC's metadata are headers too:
    /// `request.metadata_mut().as_mut()`.
    pub fn inject(&self, headers: &mut HeaderMap) {
        let xid = HeaderValue::try_from(self.branch.xid.to_string());
        headers.insert(XID, xid.expect("hex digits and hyphens may stand in a header"));
        headers.insert(BRANCH, HeaderValue::from(self.branch.number));
    }

    /// Reads it from the headers of a call; none if the call is not made under a transaction.
    ///
    /// # Errors
    /// [`ContextError`] for headers that are malformed, incomplete or repeated: the call is to be refused.
    pub fn extract(headers: &HeaderMap) -> Result<Option<Self>, ContextError> {
        if !headers.contains_key(XID) && !headers.contains_key(BRANCH) {
            return Ok(None);
        }
        let text = |name: HeaderName| {
            let mut values = headers.get_all(&name).iter();
            match (values.next(), values.next()) {
                (Some(value), None) => Ok(value.to_str().unwrap_or_default()),
                (None, _) => Err(ContextError::Missing(name)),
                (Some(_), Some(_)) => Err(ContextError::Repeated(name)),
            }
        };
        let (xid, number) = (text(XID)?, text(BRANCH)?);
        let xid = Xid::parse(xid).map_err(|_| ContextError::Xid)?;
        // Digits alone: parsing would take a sign as well.
        let is_decimal = !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit());
        let number = number.parse().ok().filter(|_| is_decimal).ok_or(ContextError::Branch)?;
        Self::new(xid, number).map(Some)
    }

    /// Registers the called service's part in the transaction, with what its participant needs to prepare it. When this
    /// returns, a majority has it and the call may be answered: it will be asked to prepare when the caller commits.
    /// The same again is the same branch, whether or not the list is closed meanwhile.
    ///
    /// # Errors
    /// [`CallError`]. [`RefusalCode::Closed`](crate::RefusalCode::Closed): the call came too late, do nothing;
    /// [`RefusalCode::Mismatch`](crate::RefusalCode::Mismatch): its branch was used for something else, so do nothing
    /// either. After [`CallError::Unknown`] the branch may be registered: the caller has to repeat the call or to roll
    /// back.
    pub async fn enlist(
        &self,
        verdict: &Verdict,
        resource: ResourceName,
        payload: Bytes,
    ) -> Result<Enlisted, CallError> {
        verdict.resume(self.branch.xid).enlist_as(self.branch.number, resource, payload).await
    }
}

/// For a gRPC client of one call: all requests that go through it are made in this context.
impl Interceptor for Context {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        self.inject(request.metadata_mut().as_mut());
        Ok(request)
    }
}

/// For a gRPC server, as its interceptor: puts the context into the request's extensions, and refuses a malformed one.
///
/// # Errors
/// `INVALID_ARGUMENT` with what is wrong.
pub fn accept(mut request: Request<()>) -> Result<Request<()>, Status> {
    if let Some(context) = Context::extract(request.metadata().as_ref())? {
        request.extensions_mut().insert(context);
    }
    Ok(request)
}

impl From<ContextError> for Status {
    fn from(error: ContextError) -> Self {
        Self::invalid_argument(error.to_string())
    }
}
