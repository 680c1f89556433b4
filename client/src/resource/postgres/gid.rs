//! The names of prepared transactions: `verdict:<cluster>:<xid>:<branch>`. The cluster is 32 hexadecimal digits, so
//! nobody else's are taken for this cluster's.

use std::fmt;

use verdict_protocol::{BranchId, ClusterId, Xid};

use crate::resource::xa::BranchName;

/// The name under which a branch is prepared. At most 89 bytes, of characters that need no quoting; PostgreSQL allows 199.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Gid(pub(super) BranchName);

/// What all names of this cluster begin with.
pub(super) fn prefix(cluster: ClusterId) -> String {
    let cluster = cluster.0.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    format!("verdict:{cluster}:")
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BranchName { cluster, branch } = self.0;
        write!(f, "{}{branch}", prefix(cluster))
    }
}

/// The branch of a name; none for one that is not this cluster's, or that it never gave.
pub(super) fn branch_of(cluster: ClusterId, gid: &str) -> Option<BranchId> {
    let (xid, number) = gid.strip_prefix(&prefix(cluster))?.split_once(':')?;
    let branch = BranchId { xid: Xid::parse(xid).ok()?, number: number.parse().ok()? };
    (Gid(BranchName { cluster, branch }).to_string() == gid).then_some(branch)
}

#[cfg(test)]
mod tests {
    use verdict_protocol::LogTime;

    use super::*;

    #[test]
    fn a_name_is_read_as_it_was_given_and_no_other_is() {
        let cluster = ClusterId([0xab; 16]);
        let branch = BranchId { xid: Xid::new(LogTime::from_millis(1_700_000_000_000), 7, 9), number: 4_000_000_000 };
        let gid = Gid(BranchName { cluster, branch }).to_string();
        assert!(gid.len() <= 89, "{gid}");
        assert!(
            gid.bytes().all(|byte| byte.is_ascii_alphanumeric() || b":-".contains(&byte)),
            "{gid} needs no quoting"
        );
        assert_eq!(branch_of(cluster, &gid), Some(branch));
        assert_eq!(branch_of(ClusterId([0xac; 16]), &gid), None);
        for other in
            [format!("{gid} "), gid.replace(":4", ":04"), gid.to_uppercase(), "verdict:".to_owned(), String::new()]
        {
            assert_eq!(branch_of(cluster, &other), None, "{other}");
        }
    }
}
