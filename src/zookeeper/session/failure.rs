//! What the answers of a server mean to those who have asked.

use super::Failure;
use crate::zookeeper::wire::error::Code;
use crate::zookeeper::wire::reply::Reply;

impl From<Code> for Failure {
    fn from(code: Code) -> Self {
        match code {
            Code::NoNode => Self::NoNode,
            Code::NodeExists => Self::Exists,
            Code::BadVersion => Self::Changed,
            Code::NoAuth => Self::Denied,
            // The scheme `auth` stands for all our identities, of which there is none.
            Code::InvalidAcl => Self::NotLetIn(
                "they know no login of this run that nodes can belong to; a certificate counts as one if they ask for it \
                 (ssl.clientAuth, authProvider.x509); otherwise log in (--auth-file), or use --acl open"
                    .to_owned(),
            ),
            Code::AuthFailed | Code::SessionClosedRequireAuth => {
                Self::NotLetIn("they refuse the login, or want one (--auth-file)".to_owned())
            }
            Code::Unimplemented => Self::Unimplemented,
            Code::SessionExpired => Self::SessionOver,
            Code::EphemeralOnLocalSession => Self::of_local_session(),
            Code::QuotaExceeded => Self::Unusable(
                "a quota of this node or of one above it is exceeded (QuotaExceeded): raise it with setquota"
                    .to_owned(),
            ),
            Code::NoChildrenForEphemerals => Self::Unusable(
                "it is ephemeral, or a node above it is, and can have no children: use another path".to_owned(),
            ),
            // The server has broken the connection to another one, or is too busy and has done nothing.
            Code::ConnectionLoss | Code::OperationTimeout | Code::RequestTimeout | Code::Throttled => {
                Self::Unknown(code.to_string())
            }
            _ => Self::Refused(code.to_string()),
        }
    }
}

/// The servers refuse a login by this scheme, which is no secret.
pub(super) fn of_login(scheme: &str) -> Failure {
    // Those that ZooKeeper itself knows, or has known. Plug-ins of the servers may add others.
    let is_known = matches!(scheme, "digest" | "ip" | "x509" | "world" | "auth");
    Failure::NotLetIn(match is_known {
        true => format!("they refuse the login by {scheme}"),
        false => format!("they refuse the login: do they know the scheme \"{scheme}\"? write digest:USER:PASSWORD"),
    })
}

/// A reply of another kind than the request asks for cannot be: the connection has checked that.
pub(super) fn unexpected(reply: &Reply) -> Failure {
    Failure::Refused(format!("unexpected reply {reply:?}"))
}
