//! The names of branches at the database: a formatID of Verdict's own, the cluster and the transaction as gtrid, the
//! branch and its resource as bqual.
//!
//! ```text
//!   formatID 1448232020   gtrid  cluster (16 bytes) · xid (16 bytes)   bqual  number (4 bytes) · resource (1 to 60 bytes)
//! ```
//!
//! The cluster is 16 random bytes, so nobody else's names are taken for this cluster's. `XA RECOVER` lists those of all
//! the server's databases: the resource in the name keeps two databases on one server apart.

use std::fmt;

use verdict_protocol::{BranchId, ClusterId, ResourceName, Xid};

use super::super::xa::BranchName;

/// "VRDT".
pub(super) const FORMAT: u64 = 0x5652_4454;
/// The longest name of a resource that is such a database, in bytes: XA gives a bqual 64, and the number takes four.
pub const MAX_RESOURCE: usize = 60;

const NUMBER: usize = 4;
const CLUSTER: usize = 16;

/// Writes itself as XA statements want it, in hexadecimal literals that need no quoting.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct XaName {
    pub(super) gtrid: String,
    pub(super) bqual: String,
}

impl XaName {
    pub(super) fn new(resource: &ResourceName, name: BranchName) -> Self {
        let BranchName { cluster, branch } = name;
        Self {
            gtrid: hex([cluster.0.as_slice(), branch.xid.as_bytes()].concat()),
            bqual: hex([branch.number.to_be_bytes().as_slice(), resource.as_str().as_bytes()].concat()),
        }
    }
}

impl fmt::Display for XaName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "X'{}',X'{}',{FORMAT}", self.gtrid, self.bqual)
    }
}

pub(super) fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02X}")).collect()
}

/// The branch of a row of `XA RECOVER`: formatID, the lengths of gtrid and bqual, and both. None for one that is not of
/// this cluster and resource.
pub(super) fn branch_of(
    resource: &ResourceName,
    cluster: ClusterId,
    (format, gtrid, bqual, data): &(u64, usize, usize, Vec<u8>),
) -> Option<BranchId> {
    if *format != FORMAT || gtrid.checked_add(*bqual)? != data.len() {
        return None;
    }
    let (gtrid, bqual) = data.split_at_checked(*gtrid)?;
    let (of, xid) = gtrid.split_at_checked(CLUSTER)?;
    let (number, at) = bqual.split_at_checked(NUMBER)?;
    let number = u32::from_be_bytes(number.try_into().ok()?);
    let xid = Xid::from_slice(xid).ok()?;
    (of == cluster.0 && at == resource.as_str().as_bytes()).then_some(BranchId { xid, number })
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use verdict_protocol::LogTime;

    use super::*;

    const CLUSTER: ClusterId = ClusterId([0xab; 16]);

    fn bytes(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    fn row(name: &XaName) -> (u64, usize, usize, Vec<u8>) {
        let (gtrid, bqual) = (bytes(&name.gtrid), bytes(&name.bqual));
        (FORMAT, gtrid.len(), bqual.len(), [gtrid, bqual].concat())
    }

    /// s49
    #[test]
    fn a_name_is_read_as_it_was_given_and_no_other_is() {
        let resource: ResourceName = "r".repeat(MAX_RESOURCE).try_into().unwrap();
        let xid = Xid::new(LogTime::from_millis(1_700_000_000_000), 7, 9);
        let branch = BranchId { xid, number: 4_000_000_000 };
        let row = row(&XaName::new(&resource, BranchName { cluster: CLUSTER, branch }));
        assert_eq!((row.1, row.2), (32, 64));
        assert_eq!(branch_of(&resource, CLUSTER, &row), Some(branch));

        assert_eq!(branch_of(&resource, ClusterId([0xac; 16]), &row), None, "another cluster's");
        assert_eq!(branch_of(&"orders".try_into().unwrap(), CLUSTER, &row), None, "another database's");
        let (format, gtrid, bqual, data) = row;
        for other in [
            (1, gtrid, bqual, data.clone()),
            (format, gtrid - 1, bqual + 1, data.clone()),
            (format, gtrid, bqual - 1, data.clone()),
            (format, usize::MAX, bqual, data.clone()),
            (format, 200, 0, data),
            (format, 2, 1, b"abc".to_vec()),
            (format, 0, 0, Vec::new()),
        ] {
            assert_eq!(branch_of(&resource, CLUSTER, &other), None, "{other:?}");
        }
    }

    #[test]
    fn a_name_needs_no_quoting() {
        let branch = BranchId { xid: Xid::new(LogTime::from_millis(1), 0, 1), number: 2 };
        let name = XaName::new(&"a".try_into().unwrap(), BranchName { cluster: CLUSTER, branch }).to_string();
        assert!(name.chars().all(|c| c.is_ascii_alphanumeric() || "',".contains(c)), "{name}");
    }
}
