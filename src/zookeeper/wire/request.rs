//! What a server can be asked. `bytes` writes it.

pub(super) mod bytes;

use std::fmt;

/// Everything is allowed (`ZooDefs.Perms.ALL`).
const ALL_PERMISSIONS: i32 = 31;

/// Who may do what (jute `ACL`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acl<'a> {
    /// The sum of what is allowed (`ZooDefs.Perms`).
    pub permissions: i32,
    /// What kind of identity it is, such as `world` or `digest`.
    pub scheme: &'a str,
    pub id: &'a str,
}

impl Acl<'_> {
    /// To read a node, and to list its children (`ZooDefs.Perms.READ`).
    pub const READ: i32 = 1;
    /// To create children (`ZooDefs.Perms.CREATE`).
    pub const CREATE: i32 = 4;

    /// Anyone may do everything (`ZooDefs.Ids.OPEN_ACL_UNSAFE`).
    pub const ANYONE: Self = Self { permissions: ALL_PERMISSIONS, scheme: "world", id: "anyone" };

    /// The identities that this session has proved may do everything (`ZooDefs.Ids.CREATOR_ALL_ACL`).
    pub const CREATOR: Self = Self { permissions: ALL_PERMISSIONS, scheme: "auth", id: "" };
}

/// Bytes that are shown to the server, and in no message.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret<'a>(pub &'a [u8]);

impl fmt::Debug for Secret<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a secret")
    }
}

/// How long a node lasts, and whether the server appends a number to its name (`CreateMode`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeKind {
    /// Until it is deleted.
    Persistent,
    /// As long as the session at most.
    Ephemeral,
    /// As long as the session at most, with a number.
    EphemeralSequential,
}

/// A node to be created (jute `CreateRequest`, without its flags).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NewNode<'a> {
    /// Where; without the number, if the server appends one.
    pub path: &'a str,
    pub data: &'a [u8],
    /// Who may do what with it. Servers refuse an empty list.
    pub acl: &'a [Acl<'a>],
}

/// What a server can be asked over a connection. Paths begin at the chroot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request<'a> {
    /// Creates a node. The reply has its path.
    Create { node: NewNode<'a>, kind: NodeKind },
    /// The same. The reply also has the node's stat. Since 3.5; in a multi, servers before 3.9 send no stat
    /// (ZOOKEEPER-4026), and 3.4 answers `MarshallingError`.
    Create2 { node: NewNode<'a>, kind: NodeKind },
    /// Creates a node that the servers delete when its last child has gone. Since 3.5.
    CreateContainer(NewNode<'a>),
    /// Deletes a node, in this version if one is given.
    Delete { path: &'a str, version: Option<i32> },
    /// Replaces the data of a node, in this version if one is given. The reply has its stat.
    SetData { path: &'a str, data: &'a [u8], version: Option<i32> },
    /// Fails unless the node exists, in this version if one is given (jute `CheckVersionRequest`). Only in a multi:
    /// servers up to 3.8 fail to write the reply to its success and send none (`FinalRequestProcessor`, a
    /// `SetDataResponse` without stat), and 3.9 does not know it.
    Check { path: &'a str, version: Option<i32> },
    /// All of these or none of them, in one transaction: creations, deletions, new data and checks.
    Multi(&'a [Self]),
    /// Asks for the stat of a node.
    Exists {
        path: &'a str,
        /// To be told of its next change, or of its creation.
        watch: bool,
    },
    /// Asks for data and stat of a node.
    GetData {
        path: &'a str,
        /// To be told of its next change. No watch is set if there is no such node.
        watch: bool,
    },
    /// Asks for the names of the children of a node.
    GetChildren {
        path: &'a str,
        /// To be told when a child comes or goes, or the node is deleted.
        watch: bool,
    },
    /// The same. The reply also has the node's stat.
    GetChildren2 { path: &'a str, watch: bool },
    /// Waits until the server knows what its leader knows. The node need not exist.
    Sync { path: &'a str },
    /// Lets the server hear from us.
    Ping,
    /// Shows credentials. The server closes the connection if it refuses them.
    Auth {
        /// Of what kind they are, such as `digest`.
        scheme: &'a str,
        /// Such as `user:password`.
        credentials: Secret<'a>,
    },
    /// A token of SASL. A server that demands SASL closes the connection over anything else before that, pings included. It
    /// does not count a token as a sign of life (`ZooKeeperServer.processPacket`).
    Sasl(Secret<'a>),
    /// Closes the session; its ephemeral nodes go with it. The last request of a connection.
    Close,
}
