//! What can go wrong, one type for each place where it is noticed.

use std::error::Error;
use std::fmt;

/// From rows of variant, number on the wire, and name in ZooKeeper's documentation.
macro_rules! codes {
    ($($code:ident = $number:literal $name:literal,)*) => {
        /// What a server answers in place of a result (`KeeperException.Code`).
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code {
            $($code,)*
            Other(i32),
        }

        impl Code {
            /// What the number in a reply means. `None` for 0, which is success.
            pub const fn from_wire(number: i32) -> Option<Self> {
                match number {
                    0 => None,
                    $($number => Some(Self::$code),)*
                    other => Some(Self::Other(other)),
                }
            }
        }

        impl fmt::Display for Code {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$code => f.write_str($name),)*
                    Self::Other(number) => write!(f, "error {number}"),
                }
            }
        }
    };
}

codes! {
    SystemError = -1 "SystemError",
    RuntimeInconsistency = -2 "RuntimeInconsistency",
    DataInconsistency = -3 "DataInconsistency",
    ConnectionLoss = -4 "ConnectionLoss",
    MarshallingError = -5 "MarshallingError",
    Unimplemented = -6 "Unimplemented",
    OperationTimeout = -7 "OperationTimeout",
    BadArguments = -8 "BadArguments",
    UnknownSession = -12 "UnknownSession",
    NoNode = -101 "NoNode",
    NoAuth = -102 "NoAuth",
    BadVersion = -103 "BadVersion",
    NoChildrenForEphemerals = -108 "NoChildrenForEphemerals",
    NodeExists = -110 "NodeExists",
    NotEmpty = -111 "NotEmpty",
    SessionExpired = -112 "SessionExpired",
    InvalidAcl = -114 "InvalidACL",
    AuthFailed = -115 "AuthFailed",
    SessionMoved = -118 "SessionMoved",
    NotReadOnly = -119 "NotReadOnly",
    EphemeralOnLocalSession = -120 "EphemeralOnLocalSession",
    RequestTimeout = -122 "RequestTimeout",
    SessionClosedRequireAuth = -124 "SessionClosedRequireAuth",
    QuotaExceeded = -125 "QuotaExceeded",
    Throttled = -127 "ThrottledOp",
}

impl Code {
    /// Whether a server sends this at once, ahead of the replies to earlier requests, and then closes the
    /// connection (`UnimplementedRequestProcessor`, `AuthenticationHelper`).
    pub(super) const fn overtakes(self) -> bool {
        matches!(self, Self::Unimplemented | Self::SessionClosedRequireAuth)
    }
}

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
    /// No server has a node of this name.
    ChildName,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "not what ZooKeeper sends: {self:?}")
    }
}

/// Why a connection has no session, or is of no more use although its session may live on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Broken {
    Malformed(Malformed),
    /// The server has seen the session on another connection, perhaps a late one of our own (ZOOKEEPER-710).
    SessionMoved,
    /// The session that was to be resumed is over, or the server went on with another one.
    Expired,
    ReadOnly,
    /// It is ClickHouse Keeper, or made from it.
    ClickHouseKeeper,
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
            Self::Expired => f.write_str("the session has expired"),
            Self::ReadOnly => f.write_str("the server only serves reads"),
            Self::ClickHouseKeeper => f.write_str("the server is ClickHouse Keeper"),
        }
    }
}

impl Error for Broken {}

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
