//! Which servers a session may use, in which order they are tried, and why none of them answers.

use std::cell::{Cell, RefCell};
use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::rc::Rc;
use std::time::Duration;

use futures_lite::future::or;
use smol::{LocalExecutor, Task, Timer};

use crate::plan::{ConnectString, HostPort};

/// The servers that a session may use, and their addresses as they were last looked up.
#[derive(Debug)]
pub struct Servers<'p> {
    pub(super) connect: &'p ConnectString,
    /// Runs the library's tasks on the thread that waits for their results, so that a reply wakes no
    /// second thread.
    pub(super) executor: &'p LocalExecutor<'static>,
    known: RefCell<Vec<SocketAddr>>,
    /// The server that is asked last, because it has shown what is not so.
    pub(super) distrusted: Rc<Cell<Option<SocketAddr>>>,
}

impl<'p> Servers<'p> {
    /// The servers of a connect string; nothing is looked up yet. `executor` has to run for as long
    /// as a session is used.
    pub fn new(connect: &'p ConnectString, executor: &'p LocalExecutor<'static>) -> Self {
        Self { connect, executor, known: RefCell::new(vec![]), distrusted: Rc::default() }
    }

    /// The addresses in the order in which they are tried. A random one comes first, so that the clients of an
    /// ensemble spread over its servers.
    pub(super) fn in_turn(&self, addresses: &[SocketAddr]) -> Vec<SocketAddr> {
        let mut addresses = addresses.to_vec();
        fastrand::shuffle(&mut addresses);
        addresses.sort_by_key(|address| self.distrusted.get() == Some(*address));
        addresses
    }

    /// Looks up every host. Returns all their addresses, or the reason why there is none. Once they are
    /// known, `patience` limits the wait: a fault that cuts off the servers may cut off the name servers as
    /// well, and the lease does not wait for those.
    pub(super) async fn resolve(&self, patience: Duration) -> Result<Vec<SocketAddr>, String> {
        let lookups: Vec<_> = self.connect.hosts.iter().map(Lookup::start).collect();
        let all = async {
            let mut addresses = vec![];
            let mut reason = String::new();
            for lookup in lookups {
                match lookup.finish().await {
                    Ok(found) => addresses.extend(found),
                    Err(error) => {
                        log::info!("{error}");
                        reason = error;
                    }
                }
            }
            if addresses.is_empty() { Err(reason) } else { Ok(addresses) }
        };
        let known = self.known.borrow().clone();
        let addresses = if known.is_empty() {
            all.await?
        } else {
            let enough = async {
                Timer::after(patience).await;
                Err(String::new())
            };
            or(all, enough).await.unwrap_or(known)
        };
        self.known.replace(addresses.clone());
        Ok(addresses)
    }
}

/// The look-up of one host, which runs while others do.
enum Lookup {
    Known(SocketAddr),
    Asked { host: String, task: Task<io::Result<Vec<SocketAddr>>> },
}

impl Lookup {
    fn start(server: &HostPort) -> Self {
        if let Ok(address) = server.host.parse::<IpAddr>() {
            return Self::Known(SocketAddr::new(address, server.port));
        }
        let asked = (server.host.clone(), server.port);
        let task = smol::unblock(move || Ok((asked.0.as_str(), asked.1).to_socket_addrs()?.collect()));
        Self::Asked { host: server.host.clone(), task }
    }

    async fn finish(self) -> Result<Vec<SocketAddr>, String> {
        match self {
            Self::Known(address) => Ok(vec![address]),
            Self::Asked { host, task } => {
                task.await.map_err(|error| format!("cannot resolve {host}: {}", brief(&error)))
            }
        }
    }
}

/// Why a server did not answer; the library only says that none did. `asks`: whether there is time to ask the
/// server. While a lease is running there is none.
pub(super) async fn diagnose(address: SocketAddr, patience: Duration, asks: bool) -> String {
    let patience = patience.min(Duration::from_secs(1));
    let connect = move || {
        let connection = TcpStream::connect_timeout(&address, patience)?;
        Ok(if asks { ask_for_state(connection, patience).unwrap_or_default() } else { String::new() })
    };
    match smol::unblock(connect).await {
        // ZooKeeperServer.ZK_NOT_SERVING
        Ok(state) if state.starts_with("This ZooKeeper instance is not currently serving requests") => {
            format!("{address} is a ZooKeeper server that serves no clients now: it is starting, or has no quorum")
        }
        Ok(state) if state.starts_with("Zookeeper version: ") => {
            format!("{address} is a ZooKeeper server, but opens no session now")
        }
        Ok(_) => format!("{address} accepts connections but does not answer as ZooKeeper"),
        Err(error) => format!("{address}: {}", brief(&error)),
    }
}

/// The reply to `srvr`, the one four letter word that servers answer by default.
fn ask_for_state(mut connection: TcpStream, patience: Duration) -> io::Result<String> {
    let mut state = [0; 64];
    connection.set_read_timeout(Some(patience))?;
    connection.write_all(b"srvr")?;
    let read = connection.read(&mut state)?;
    Ok(String::from_utf8_lossy(&state[..read]).into_owned())
}

/// An I/O error without the words that std puts around it.
fn brief(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
    let text = text.split(" (os error").next().unwrap_or(text);
    text.to_owned()
}
