//! What can go wrong, one type for each place where it is noticed.

use std::error::Error;
use std::fmt;

/// What a server answers in place of a result (`KeeperException.Code`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Code {
    SystemError,
    /// In a multi: another operation of it was refused.
    RuntimeInconsistency,
    /// The server found that its data contradict each other.
    DataInconsistency,
    /// The server lost a connection of its own; the outcome is unknown.
    ConnectionLoss,
    /// The server could not read the request, or not write the reply.
    MarshallingError,
    /// The server does not know this kind of request. It also closes the connection.
    Unimplemented,
    OperationTimeout,
    /// The request makes no sense, such as a path with a character that is not allowed.
    BadArguments,
    UnknownSession,
    /// The node, or its parent, does not exist.
    NoNode,
    /// An ACL forbids it.
    NoAuth,
    BadVersion,
    NoChildrenForEphemerals,
    NodeExists,
    NotEmpty,
    SessionExpired,
    /// The ACL is empty, its scheme is unknown, or it is for the session's credentials and there are none.
    InvalidAcl,
    AuthFailed,
    SessionMoved,
    /// The server only serves reads.
    NotReadOnly,
    EphemeralOnLocalSession,
    RequestTimeout,
    /// The server wants credentials first. It also closes the connection.
    SessionClosedRequireAuth,
    QuotaExceeded,
    /// The server is too busy and has done nothing.
    Throttled,
    Other(i32),
}

/// The numbers of the codes on the wire, and their names in ZooKeeper's documentation.
const CODES: [(Code, i32, &str); 25] = [
    (Code::SystemError, -1, "SystemError"),
    (Code::RuntimeInconsistency, -2, "RuntimeInconsistency"),
    (Code::DataInconsistency, -3, "DataInconsistency"),
    (Code::ConnectionLoss, -4, "ConnectionLoss"),
    (Code::MarshallingError, -5, "MarshallingError"),
    (Code::Unimplemented, -6, "Unimplemented"),
    (Code::OperationTimeout, -7, "OperationTimeout"),
    (Code::BadArguments, -8, "BadArguments"),
    (Code::UnknownSession, -12, "UnknownSession"),
    (Code::NoNode, -101, "NoNode"),
    (Code::NoAuth, -102, "NoAuth"),
    (Code::BadVersion, -103, "BadVersion"),
    (Code::NoChildrenForEphemerals, -108, "NoChildrenForEphemerals"),
    (Code::NodeExists, -110, "NodeExists"),
    (Code::NotEmpty, -111, "NotEmpty"),
    (Code::SessionExpired, -112, "SessionExpired"),
    (Code::InvalidAcl, -114, "InvalidACL"),
    (Code::AuthFailed, -115, "AuthFailed"),
    (Code::SessionMoved, -118, "SessionMoved"),
    (Code::NotReadOnly, -119, "NotReadOnly"),
    (Code::EphemeralOnLocalSession, -120, "EphemeralOnLocalSession"),
    (Code::RequestTimeout, -122, "RequestTimeout"),
    (Code::SessionClosedRequireAuth, -124, "SessionClosedRequireAuth"),
    (Code::QuotaExceeded, -125, "QuotaExceeded"),
    (Code::Throttled, -127, "ThrottledOp"),
];

impl Code {
    /// What the number in a reply means. `None` for 0, which is success.
    pub fn from_wire(number: i32) -> Option<Self> {
        match CODES.iter().find(|(_, known, _)| *known == number) {
            Some((code, _, _)) => Some(*code),
            None => (number != 0).then_some(Self::Other(number)),
        }
    }

    /// Whether a server sends this at once, ahead of the replies to earlier requests, and then closes the
    /// connection (`UnimplementedRequestProcessor`, `AuthenticationHelper`).
    pub(super) const fn overtakes(self) -> bool {
        matches!(self, Self::Unimplemented | Self::SessionClosedRequireAuth)
    }
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Self::Other(number) = self {
            return write!(f, "error {number}");
        }
        let name = CODES.iter().find(|(code, _, _)| code == self).map(|(_, _, name)| *name);
        f.write_str(name.unwrap_or_default())
    }
}

impl Error for Code {}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The request as a whole.
    Request(Code),
    /// Nothing of a multi was done because of one operation.
    Operation {
        /// Which of the operations, counted from 0.
        index: usize,
        code: Code,
    },
}

impl Refused {
    pub const fn code(self) -> Code {
        match self {
            Self::Request(code) | Self::Operation { code, .. } => code,
        }
    }
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Request(code) => code.fmt(f),
            Self::Operation { index, code } => write!(f, "operation {index}: {code}"),
        }
    }
}

impl Error for Refused {}

/// How the bytes differ from what ZooKeeper sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    PacketLength(i32),
    /// A field, or a number of fields, with this length.
    FieldLength(i32),
    Truncated,
    /// A reply with this xid, but no request waits for it.
    UnexpectedReply(i32),
    /// A result of another kind than the operation: its opcode.
    UnexpectedResult(i32),
    /// The results of a multi are more or fewer than its operations, or its errors give no reason.
    IncompleteMulti,
    OutsideChroot,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not what ZooKeeper sends: ")?;
        match self {
            Self::PacketLength(length) => write!(f, "a packet of {length} bytes"),
            Self::FieldLength(length) => write!(f, "a field of length {length}"),
            Self::Truncated => f.write_str("a packet that ends too early"),
            Self::UnexpectedReply(xid) => write!(f, "a reply to request {xid}, which is not due"),
            Self::UnexpectedResult(kind) => write!(f, "a result of kind {kind}, which was not asked for"),
            Self::IncompleteMulti => f.write_str("a multi without all results"),
            Self::OutsideChroot => f.write_str("a path outside the chroot"),
        }
    }
}

impl Error for Malformed {}

/// Why a connection is of no more use. Its session may live on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    Malformed(Malformed),
    /// The server has seen the session on another connection, perhaps a late one of our own (ZOOKEEPER-710).
    SessionMoved,
}

impl From<Malformed> for Broken {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl fmt::Display for Broken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(malformed) => malformed.fmt(f),
            Self::SessionMoved => f.write_str("the session has moved to another connection"),
        }
    }
}

impl Error for Broken {}

/// Why a connection has no session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoSession {
    Malformed(Malformed),
    /// The session that was to be resumed is over.
    Expired,
    /// Another session was to be resumed; the server resumed the one with this id.
    Another(i64),
    ReadOnly,
}

impl From<Malformed> for NoSession {
    fn from(malformed: Malformed) -> Self {
        Self::Malformed(malformed)
    }
}

impl fmt::Display for NoSession {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Malformed(malformed) => malformed.fmt(f),
            Self::Expired => f.write_str("the session has expired"),
            Self::Another(id) => write!(f, "the server went on with another session, {id:#018x}"),
            Self::ReadOnly => f.write_str("the server only serves reads"),
        }
    }
}

impl Error for NoSession {}

/// Why a request cannot be sent. Nothing of it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unsendable {
    /// It has this many bytes. A server would close the connection.
    TooLarge(usize),
    Closing,
    Broken(Broken),
}

impl fmt::Display for Unsendable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLarge(bytes) => write!(f, "a request of {bytes} bytes is too large"),
            Self::Closing => f.write_str("the session is being closed"),
            Self::Broken(broken) => broken.fmt(f),
        }
    }
}

impl Error for Unsendable {}
