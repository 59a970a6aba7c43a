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
        let has_failed = |server| match trouble(server) {
            Some(ServerTrouble::Unconnected(why)) => !matches!(why, Unconnected::Io(_)),
            _ => false,
        };
        let address = self.known.iter().find(|address| has_failed(address.socket)).unwrap_or(&self.known[0]);
        let server = address.socket;
        let plain = match trouble(server) {
            Some(ServerTrouble::Unconnected(Unconnected::Closed)) if self.may_ask => {
                self.state(TcpChannel::begin_plain(self.servers, self.reactor, *address)).await
            }
            _ => None,
        };
        let (why, wants_certificate) = match trouble(server) {
            _ if plain.is_some() => {
                let how = "name its secureClientPort, or connect without TLS";
                return format!("{server} speaks ZooKeeper without TLS: {how}");
            }
            Some(ServerTrouble::Unconnected(why)) => return format!("{server}: {why}"),
            Some(ServerTrouble::NoSession { why, wants_certificate }) => (*why, *wants_certificate),
            None => (Rejected::NoSession, false),
        };
        let state = match self.may_ask {
            true => self.state(TcpChannel::begin(self.servers, self.reactor, *address)).await,
            false => None,
        };
        let state = state.map_or_else(|| self.no_answer(why), str::to_owned);
        let hint = if wants_certificate { "; it has asked for a client certificate (--tls-cert)" } else { "" };
        format!("{server} {state}{hint}")
    }

    fn no_answer(&self, why: Rejected) -> String {
        let is_plain = self.servers.security.is_none();
        match why {
            Rejected::Silent => {
                "accepts connections but does not answer: it hangs, or is no ZooKeeper server".to_owned()
            }
            // A port for TLS closes the connection, or answers.
            Rejected::Closed => format!(
                "closes connections before it answers: it is starting, or full (maxClientCnxns), {}or is no ZooKeeper server",
                if is_plain { "wants TLS (--tls), " } else { "" }
            ),
            _ if is_plain => "does not answer as ZooKeeper; if this is its secureClientPort, use --tls".to_owned(),
            _ => "does not answer as ZooKeeper".to_owned(),
        }
    }

    /// What a server is, by its answer to `srvr`, the one four letter word that servers answer by default. `None`: it is no
    /// ZooKeeper server, as far as can be seen.
    async fn state(&self, channel: Result<TcpChannel<'_>, Unconnected>) -> Option<&'static str> {
        let enough = async {
            let patience = self.servers.silence_limit(self.timeout).min(DIAGNOSIS);
            self.reactor.sleep_until(clock::now() + patience).await;
            None
        };
        match or(answer(channel.ok()?), enough).await? {
            answer if answer.starts_with(NOT_SERVING) => {
                Some("is a ZooKeeper server that serves no clients now: it is starting, or has no quorum")
            }
            answer if answer.starts_with(VERSION) => Some("is a ZooKeeper server, but opens no session now"),
            _ => None,
        }
    }
}
