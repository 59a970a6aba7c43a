//! What the addresses of servers have shown.

use std::collections::BTreeSet;
use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use crate::rules::message::Right;
use crate::zookeeper::net::probe::Cure;

/// What one address of a server has shown. What is not known is `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Server {
    /// As the connect string has it, with the port.
    pub name: String,
    /// `None`: the name has no address.
    pub address: Option<SocketAddr>,
    /// The number of the server in its ensemble.
    pub member: Option<u8>,
    pub version: Option<String>,
    /// `standalone`, `leader`, `follower`, `observer`.
    pub role: Option<String>,
    /// Its tick, where it tells.
    pub tick: Option<Duration>,
    /// How many connections it has from our address beside those of the check, and how many it takes, where it tells.
    pub connections: Option<(usize, usize)>,
    /// The version of its ensemble's configuration, and the numbers of those who vote.
    pub voters: Option<(u64, BTreeSet<u8>)>,
    /// The least session timeout that it grants.
    pub least: Option<Duration>,
    /// The greatest one.
    pub greatest: Option<Duration>,
    /// Round trip of a request that the server answers by itself.
    pub read: Option<Duration>,
    /// Round trip of a request that goes through the leader.
    pub beat: Option<Duration>,
    /// Whether it carries out transactions.
    pub transactions: Option<bool>,
    /// Whether its sessions are local, and can have no ephemeral nodes.
    pub is_local: bool,
    /// Whether the chroot is there.
    pub chroot: Option<bool>,
    pub lacks: Option<Vec<Lack>>,
    /// How its connections are encrypted. `None`: they are not.
    pub tls: Option<SeenTls>,
    /// Why it cannot be used, or not fully.
    pub error: Option<String>,
    /// What helps, if there is an error.
    pub cure: Cure,
}

/// How a connection is encrypted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SeenTls {
    /// The version of the protocol, such as `TLSv1.3`.
    pub protocol: String,
    /// When the server's certificate expires, in seconds since the Unix epoch.
    pub not_after: Option<i64>,
}

/// Something that a lock needs and that the servers refuse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lack {
    /// An ACL forbids it.
    Denied(Right, String),
    /// It is refused for this reason.
    Refused(String, String),
}

impl Server {
    /// An address, or a name without one, of which nothing is known yet.
    pub(super) fn new(name: String, address: Option<SocketAddr>) -> Self {
        Self { name, address, ..Self::default() }
    }

    /// Whether it has opened sessions.
    pub(super) const fn is_reachable(&self) -> bool {
        self.greatest.is_some()
    }

    /// Whether it may yet open sessions if nobody does anything about it: it is starting, say.
    pub(super) const fn may_come_up(&self) -> bool {
        !self.is_reachable() && matches!(self.cure, Cure::Server | Cure::Tls | Cure::NoTls | Cure::Full)
    }

    /// What it grants to a client that asks for this session timeout (`ZooKeeperServer.processConnectRequest`).
    pub(super) fn grants(&self, asked: Duration) -> Option<Duration> {
        Some(asked.max(self.least?).min(self.greatest?))
    }

    /// Whether it wants another client certificate or another login.
    pub(super) const fn is_refusing(&self) -> bool {
        matches!(self.cure, Cure::Certificate | Cure::Login)
    }

    pub(super) fn is_observer(&self) -> bool {
        self.role.as_deref() == Some("observer")
    }

    /// Whether it knows containers, which are there since 3.5.
    pub(super) fn knows_containers(&self) -> Option<bool> {
        let mut numbers = self.version.as_deref()?.split('.').map(|number| number.parse::<u32>().ok());
        Some((numbers.next()??, numbers.next()??) >= (3, 5))
    }
}

impl fmt::Display for Server {
    /// As messages name it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.address.map(|address| address.to_string()) {
            Some(address) if address != self.name => write!(f, "{} ({address})", self.name),
            _ => f.write_str(&self.name),
        }
    }
}
