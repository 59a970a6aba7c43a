//! Three servers together, and a corner of its own on servers for one test.

use std::collections::BTreeMap;
use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::OnceLock;

use super::client::{Client, Kind};
use super::poll;
use super::proxy::Proxy;
use super::server::{BIND_ATTEMPTS, Role, Server, Settings, free_port};

#[derive(Debug)]
pub(crate) struct Ensemble {
    servers: Vec<Server>,
    links: BTreeMap<(usize, usize), Proxy>,
}

impl Ensemble {
    /// The ensemble that all tests share. Not to be hurt.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Ensemble> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    pub(crate) fn start() -> Self {
        Settings::default().ensemble()
    }

    fn new(settings: &Settings) -> Self {
        let ids = 1..=3;
        let ports: BTreeMap<usize, (u16, u16)> = ids.clone().map(|id| (id, (free_port(), free_port()))).collect();
        let mut links = BTreeMap::new();
        if settings.proxied {
            for from in ids.clone() {
                for to in ids.clone().filter(|&to| to != from) {
                    links.insert((from, to), Proxy::plain(SocketAddr::from((Ipv4Addr::LOCALHOST, ports[&to].0))));
                }
            }
        }
        let servers = ids
            .clone()
            .map(|from| {
                // A follower connects to the leader's first port, as its own configuration has it. So a proxy for each
                // pair cuts each pair by itself. The election, on the second port, stays whole: it finds a leader that
                // the follower then cannot reach.
                let peers: String = ids
                    .clone()
                    .map(|to| {
                        let quorum = links.get(&(from, to)).map_or(ports[&to].0, Proxy::port);
                        format!("server.{to}=127.0.0.1:{quorum}:{}\n", ports[&to].1)
                    })
                    .collect();
                Server::new(from, settings, &peers)
            })
            .collect();
        Self { servers, links }
    }

    pub(crate) fn servers(&self) -> &[Server] {
        &self.servers
    }

    /// `127.0.0.1:PORT,127.0.0.1:PORT,127.0.0.1:PORT`.
    pub(crate) fn addresses(&self) -> String {
        self.servers.iter().map(Server::address).collect::<Vec<_>>().join(",")
    }

    pub(crate) fn chroot(&self) -> Chroot {
        Chroot::create(self.addresses())
    }

    #[track_caller]
    pub(crate) fn leader(&self) -> &Server {
        poll::until("a leader", || self.servers.iter().find(|server| server.role() == Some(Role::Leader)))
    }

    #[track_caller]
    pub(crate) fn followers(&self) -> [&Server; 2] {
        poll::until("two followers", || {
            let followers: Vec<_> =
                self.servers.iter().filter(|server| server.role() == Some(Role::Follower)).collect();
            followers.try_into().ok()
        })
    }

    /// The proxy through which `follower` reaches `leader`, in an ensemble started [`Settings::proxied`].
    #[track_caller]
    pub(crate) fn link(&self, follower: &Server, leader: &Server) -> &Proxy {
        self.links.get(&(follower.id, leader.id)).expect("the ensemble was started with proxies")
    }

    #[track_caller]
    pub(crate) fn wait_until_serving(&self) {
        self.servers.iter().for_each(Server::wait_until_serving);
    }
}

impl Settings {
    pub(crate) fn ensemble(&self) -> Ensemble {
        for _ in 0..BIND_ATTEMPTS {
            let ensemble = Ensemble::new(self);
            for server in &ensemble.servers {
                server.begin();
            }
            if ensemble.servers.iter().all(Server::comes_up) {
                return ensemble;
            }
        }
        panic!("no ensemble came up on {BIND_ATTEMPTS} different sets of ports");
    }
}

/// A place of its own for one test. Displayed, it is the connect string.
#[derive(Clone, Debug)]
pub(crate) struct Chroot {
    servers: String,
    path: String,
}

impl Chroot {
    pub(super) fn create(servers: String) -> Self {
        let path = format!("/test-{:016x}", fastrand::u64(..));
        Client::connect(&servers).create(&path, b"", Kind::Persistent).expect("a chroot can be created");
        Self { servers, path }
    }

    pub(crate) fn path(&self) -> &str {
        &self.path
    }

    /// The same place by other addresses: one server of several, or proxies.
    pub(crate) fn by(&self, addresses: impl Into<String>) -> Self {
        Self { servers: addresses.into(), path: self.path.clone() }
    }

    #[track_caller]
    pub(crate) fn client(&self) -> Client {
        Client::connect(&self.to_string())
    }
}

impl fmt::Display for Chroot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.servers, self.path)
    }
}
