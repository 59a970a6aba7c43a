//! Why no server has opened a session, in words.

use std::net::SocketAddr;
use std::time::Duration;

use super::servers::{Address, Servers};
use super::tcp::TcpChannel;
use super::tls::Unconnected;
use super::word::{NOT_SERVING, VERSION, answer};
use crate::system::clock;
use crate::system::futures::or;
use crate::system::reactor::Reactor;
use crate::zookeeper::session::channel::Rejected;

/// How long to wait for a server to say what is the matter with it.
const DIAGNOSIS: Duration = Duration::from_secs(1);

/// Why one server has opened no session.
pub(super) enum ServerTrouble {
    Unconnected(Unconnected),
    /// `wants_certificate`: it has asked for one, and we have none.
    NoSession {
        wants_certificate: bool,
        why: Rejected,
    },
}

/// The reason, if servers want a client certificate or refuse ours, and none of the others may let us in later.
pub(super) fn not_let_in(troubles: &[(SocketAddr, ServerTrouble)]) -> Option<String> {
    let may_do = |trouble: &ServerTrouble| matches!(trouble, ServerTrouble::NoSession { .. });
    let refused = |(server, trouble): &(SocketAddr, ServerTrouble)| match trouble {
        ServerTrouble::Unconnected(Unconnected::Refused(why)) => Some(format!("{server}: {why}")),
        _ => None,
    };
    troubles.iter().find_map(refused).filter(|_| !troubles.iter().any(|(_, trouble)| may_do(trouble)))
}

/// A round in which all servers were tried in vain.
pub(super) struct Round<'a, 'p> {
    pub(super) servers: &'p Servers<'p>,
    pub(super) reactor: &'p Reactor,
    pub(super) timeout: Duration,
    /// While a lease is running, there is no time to ask.
    pub(super) may_ask: bool,
    pub(super) known: &'a [Address<'p>],
}

impl Round<'_, '_> {
    /// Why one of the servers has opened no session: the first one where TLS has failed, or else the first one. The same one each
    /// time, so that the same reason is not told again.
    pub(super) async fn tell(&self, troubles: &[(SocketAddr, ServerTrouble)]) -> String {
        let trouble = |server| troubles.iter().find(|(troubled, _)| *troubled == server).map(|(_, trouble)| trouble);
        let is_tls = |why: &Unconnected| !matches!(why, Unconnected::Io(_));
        let has_failed = |server| matches!(trouble(server), Some(ServerTrouble::Unconnected(why)) if is_tls(why));
        let address = self.known.iter().find(|address| has_failed(address.socket)).unwrap_or(&self.known[0]);
        let server = address.socket;
        match trouble(server) {
            Some(ServerTrouble::Unconnected(Unconnected::Closed)) if self.may_ask && self.is_plain(*address).await => {
                format!("{server} speaks ZooKeeper without TLS: name its secureClientPort, or connect without TLS")
            }
            Some(ServerTrouble::Unconnected(why)) => format!("{server}: {why}"),
            other => {
                let why = match other {
                    Some(ServerTrouble::NoSession { why, .. }) => *why,
                    _ => Rejected::NoSession,
                };
                let state = if self.may_ask { self.state(*address).await } else { None };
                let state = state.unwrap_or_else(|| format!("{server} {}", self.no_answer(why)));
                match other {
                    Some(ServerTrouble::NoSession { wants_certificate: true, .. }) => {
                        format!("{state}; it has asked for a client certificate (--tls-cert)")
                    }
                    _ => state,
                }
            }
        }
    }

    const fn no_answer(&self, why: Rejected) -> &'static str {
        match (why, self.servers.security.is_none()) {
            // A port for TLS closes the connection, or answers.
            (Rejected::Silent, _) => "accepts connections but does not answer: it hangs, or is no ZooKeeper server",
            (Rejected::Closed, true) => {
                "closes connections before it answers: it is starting, or full (maxClientCnxns), wants TLS \
                 (--tls), or is no ZooKeeper server"
            }
            (Rejected::Closed, false) => {
                "closes connections before it answers: it is starting, or full (maxClientCnxns), or is no \
                 ZooKeeper server"
            }
            (_, true) => "does not answer as ZooKeeper; if this is its secureClientPort, use --tls",
            (_, false) => "does not answer as ZooKeeper",
        }
    }

    /// Why a server that accepts connections opens no session, by its answer to `srvr`, the one four letter word that servers
    /// answer by default.
    async fn state(&self, address: Address<'_>) -> Option<String> {
        let server = address.socket;
        match self.ask(TcpChannel::begin(self.servers, self.reactor, address)).await {
            state if state.starts_with(NOT_SERVING) => {
                let why = "serves no clients now: it is starting, or has no quorum";
                Some(format!("{server} is a ZooKeeper server that {why}"))
            }
            state if state.starts_with(VERSION) => {
                Some(format!("{server} is a ZooKeeper server, but opens no session now"))
            }
            _ => None,
        }
    }

    /// Whether it is a ZooKeeper server that does not use TLS.
    async fn is_plain(&self, address: Address<'_>) -> bool {
        let answer = self.ask(TcpChannel::begin_plain(self.servers, self.reactor, address)).await;
        answer.starts_with(NOT_SERVING) || answer.starts_with(VERSION)
    }

    /// What it answers to `srvr`; empty, if it does not.
    async fn ask(&self, channel: Result<TcpChannel<'_>, Unconnected>) -> String {
        let Ok(channel) = channel else { return String::new() };
        let enough = async {
            let patience = self.servers.silence_limit(self.timeout).min(DIAGNOSIS);
            self.reactor.sleep_until(clock::now() + patience).await;
            None
        };
        or(answer(channel), enough).await.unwrap_or_default()
    }
}
