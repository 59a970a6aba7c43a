//! What the answers of a server mean to those who have asked.

use super::{Failure, Stat};
use crate::zookeeper::error::{Code, Refused};
use crate::zookeeper::reply;

impl From<Code> for Failure {
    fn from(code: Code) -> Self {
        match code {
            Code::NoNode => Self::NoNode,
            Code::NodeExists => Self::Exists,
            Code::BadVersion => Self::Changed,
            Code::NoAuth | Code::InvalidAcl => Self::Denied,
            Code::AuthFailed | Code::SessionClosedRequireAuth => {
                Self::NotLetIn("they refuse the login, or want one (--auth-file)".to_owned())
            }
            Code::Unimplemented => Self::Unimplemented,
            Code::SessionExpired => Self::SessionOver,
            // The server has broken the connection to another one, or is too busy and has done nothing.
            Code::ConnectionLoss | Code::OperationTimeout | Code::RequestTimeout | Code::Throttled => {
                Self::Unknown(code.to_string())
            }
            _ => Self::Refused(code.to_string()),
        }
    }
}

impl From<Refused> for Failure {
    fn from(refused: Refused) -> Self {
        refused.code().into()
    }
}

impl From<reply::Stat> for Stat {
    fn from(stat: reply::Stat) -> Self {
        Self { czxid: stat.czxid, owner: stat.ephemeral_owner, created: stat.ctime, written: stat.mtime }
    }
}
