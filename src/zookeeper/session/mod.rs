//! A ZooKeeper session, as a keeper needs it.
//!
//! [`client`] speaks ZooKeeper's protocol over any [`channel`]: [`net::tcp`](crate::zookeeper::net::tcp) has the real one,
//! the simulator of the tests another. [`look`] has what only looks at locks.

mod acl; // who may do what with our nodes
mod alter; // what `zklock break` changes
pub mod channel; // the stream of bytes below
pub mod client; // the session
mod created; // what was created, and by whom
mod failure; // what the errors of servers mean
pub mod look; // what `look/` asks
mod parents; // the nodes above a contender
mod record; // what is written beside a lock
mod watch; // watches that have fired

use std::fmt;
use std::pin::Pin;
use std::time::Duration;

pub use self::record::{RecordWrite, Replaced};
use crate::rules::child_name::ChildName;
use crate::rules::contacts::Contact;
use crate::rules::instant::Instant;
use crate::rules::keep_alive::KeepAlive;
pub use crate::zookeeper::wire::reply::{Change, NodeStat};

/// Why a request was not answered as hoped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The node, or its parent, does not exist.
    NoNode,
    Exists,
    /// The node's data has been changed by someone else, or by a request of ours whose reply was lost.
    Changed,
    /// An ACL forbids it, or the credentials were refused.
    Denied,
    /// The servers do not let us in, for this reason.
    NotLetIn(String),
    /// This machine lacks a library that the login needs: which one, and how to get it.
    NoLibrary(String),
    /// This server is ClickHouse Keeper, where a lock cannot be relied on.
    ClickHouseKeeper(String),
    /// The server does not know this kind of request, and closes the connection over it.
    Unimplemented,
    /// The session is over; nothing more will come of it.
    SessionOver,
    /// The connection was lost on the way: the request may or may not have been carried out.
    Unknown(String),
    /// The servers or the nodes have to be changed first: why, and how.
    Unusable(String),
    /// The server refuses it, and would refuse it again.
    Refused(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNode => f.write_str("no such node"),
            Self::Exists => f.write_str("the node exists"),
            Self::Changed => f.write_str("the node has been changed"),
            Self::Denied => f.write_str("not permitted"),
            Self::Unimplemented => f.write_str("the server does not know the request"),
            Self::SessionOver => f.write_str("the session is over"),
            Self::ClickHouseKeeper(server) => write!(f, "{server} is ClickHouse Keeper"),
            Self::NotLetIn(why)
            | Self::NoLibrary(why)
            | Self::Unknown(why)
            | Self::Unusable(why)
            | Self::Refused(why) => f.write_str(why),
        }
    }
}

impl Failure {
    /// The session can have no ephemeral nodes.
    pub fn of_local_session() -> Self {
        Self::Unusable(
            "the sessions are local and can have no ephemeral nodes: set localSessionsUpgradingEnabled=true on the \
             servers, or localSessionsEnabled=false"
                .to_owned(),
        )
    }
}

/// A watch on a node that existed when it was set. Completes once. Dropping it takes the watch back.
pub type Watch = Pin<Box<dyn Future<Output = Change>>>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// The full paths, with their sequence numbers, in the order of the prefixes.
    pub paths: Vec<String>,
    /// What the server says of the node. `None` if it was not asked, or if several were created: then servers say
    /// nothing (ZOOKEEPER-4026).
    pub stat: Option<NodeStat>,
}

/// What a server is going to answer to a request that was queued.
pub type Expected<'s, T> = Pin<Box<dyn Future<Output = Result<T, Failure>> + 's>>;

/// An established session over one connection. Dropping it closes the connection, and not the session.
///
/// Requests of a session are answered in the order in which they were sent. The functions here that return a
/// future have queued their request when they return, not when it is first polled; so two calls in a row
/// leave back to back. The few that are documented as lazy queue it when they are first polled.
pub trait Session: Sized {
    /// What it takes to go on with a session over another connection.
    type Identity: Clone;

    fn identity(&self) -> Self::Identity;

    fn id(&self) -> i64;

    /// The session timeout that the server granted for this connection. Never more than it granted before.
    fn timeout(&self) -> Duration;

    /// When the servers were asked for this connection: the leader heard from us no earlier than that.
    fn opened(&self) -> Instant;

    /// From now on, pings leave, and the connection is given up, by this keep-alive. At first it is
    /// [`KeepAlive::brisk`].
    fn set_keep_alive(&self, keep_alive: KeepAlive);

    /// The requests that were answered since the last call, pings and refusals included, in the order of the answers.
    fn take_contacts(&self) -> Vec<Contact>;

    /// Waits until the connection is lost. From then on, no other future of this session ends.
    fn lost(&self) -> impl Future<Output = ()>;

    /// Whether the server has closed the connection over a request that creates a node, after it had answered another one.
    fn closed_over_creation(&self) -> bool;

    /// The next connections are to another server than this one, as long as another one answers.
    fn distrust(&self);

    /// Waits until the server that we are connected to knows what its leader knows. `path`: any node, which
    /// need not exist.
    fn sync(&self, path: &str) -> Expected<'_, ()>;

    /// Creates an ephemeral node with this data for each of the prefixes: either all or none. `numbered`: the server
    /// appends sequence numbers; otherwise the prefixes are the names ([`Failure::Exists`]). `with_stat`: a single node is
    /// created by a request that asks what the server says of it, which servers before 3.5 do not know
    /// ([`Failure::Unimplemented`]).
    fn create<'s>(
        &'s self,
        prefixes: &'s [String],
        data: &[u8],
        numbered: bool,
        with_stat: bool,
    ) -> Expected<'s, Created>;

    /// Creates `path` and what is missing above it: containers, which the server removes again when their
    /// last child has gone, or plain nodes. [`Failure::NoNode`] means that the chroot does not exist,
    /// [`Failure::Unimplemented`] that the server knows no containers, as those before 3.5. With the failure: the node
    /// that could not be created. Lazy.
    fn create_parents(&self, path: &str, containers: bool) -> impl Future<Output = Result<(), (Failure, String)>>;

    fn children(&self, path: &str) -> Expected<'_, Vec<ChildName>>;

    /// Like [`Session::children`], with a watch on children that come and go.
    fn watch_children(&self, path: &str) -> Expected<'_, (Vec<ChildName>, Watch)>;

    fn read(&self, path: &str) -> Expected<'_, (Vec<u8>, NodeStat)>;

    /// Like [`Session::read`], with a watch. Unlike `exists`, sets none when the node does not exist.
    fn read_and_watch(&self, path: &str) -> Expected<'_, (Vec<u8>, NodeStat, Watch)>;

    /// Asks the quorum whether all of `nodes` still exist. `publish`: data to store in them at the same time, unless
    /// something has been stored in one of them since they were created ([`Failure::Changed`]).
    ///
    /// A ping would prove nothing: the server that we are connected to answers it, and one that has lost the
    /// leader goes on answering for a while. A transaction goes through the leader, even one that only
    /// checks.
    fn beat(&self, nodes: &[String], publish: Option<&[u8]>) -> Expected<'_, ()>;

    /// Deletes a node. A missing node counts as success.
    fn delete(&self, path: &str) -> Expected<'_, ()>;

    /// Checks that all of `checked` exist, writes `records`, which outlive the session, and deletes `deleted`: either all of it or
    /// nothing.
    fn transact(&self, checked: &[String], records: &[RecordWrite], deleted: &[String]) -> Expected<'_, ()>;

    /// Closes the session, and waits until that is done. The ephemeral nodes that it had created go with it.
    /// [`Failure::Unknown`]: the connection was lost on the way. To be called when no watch is left. Lazy.
    fn close(&self) -> impl Future<Output = Result<(), Failure>>;
}
