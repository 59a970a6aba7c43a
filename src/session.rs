//! A ZooKeeper session: the only room that names the client library.
//!
//! Requests of a session are answered in the order in which they were sent, and the library queues
//! a request when the method is called, not when its future is first polled. So two calls in a row
//! leave back to back, and every function here that gives a future has queued its request when it
//! returns; none of them is an `async fn`.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::time::Duration;

use futures_lite::future::or;
use smol::Timer;
use zookeeper_client::{
    Acls, Client, CreateMode, Error, EventType, MultiWriteError, OneshotWatcher, SessionState, StateWatcher,
};

use crate::plan::ConnectString;

/// Servers that are down are tried again after this long, then after twice that, and so on.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Why a request was not answered as hoped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The node, or its parent, does not exist.
    NoNode,
    /// An ACL forbids it, or the credentials were refused.
    Denied,
    /// The session is over; nothing more will come of it.
    SessionOver,
    /// The connection was lost on the way: nobody knows whether it was done.
    Unknown(String),
    /// The server said no, and will say so again.
    Refused(String),
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNode => f.write_str("no such node"),
            Self::Denied => f.write_str("not permitted"),
            Self::SessionOver => f.write_str("the session is over"),
            Self::Unknown(why) | Self::Refused(why) => f.write_str(why),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::NoNode => Self::NoNode,
            Error::NoAuth | Error::AuthFailed | Error::InvalidAcl => Self::Denied,
            Error::SessionExpired | Error::SessionMoved | Error::ClientClosed => Self::SessionOver,
            // All of these can come from a connection that broke with the request under way.
            Error::ConnectionLoss
            | Error::Timeout
            | Error::UnexpectedError(_)
            | Error::UnmarshalError { .. }
            | Error::Custom(_) => Self::Unknown(error.to_string()),
            _ => Self::Refused(error.to_string()),
        }
    }
}

/// What a server says of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    /// The transaction that created it: the fencing token of a contender.
    pub czxid: i64,
    /// The session that it belongs to, 0 for a node that outlives its session.
    pub owner: i64,
}

impl From<&zookeeper_client::Stat> for Stat {
    fn from(stat: &zookeeper_client::Stat) -> Self {
        Self { czxid: stat.czxid, owner: stat.ephemeral_owner }
    }
}

/// What became of a watched node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It was deleted.
    Deleted,
    /// Its data changed.
    Data,
    /// The session is over, and the watch with it.
    SessionOver,
}

/// A watch on a node that existed when it was set; it fires once.
#[derive(Debug)]
pub struct Watch(OneshotWatcher);

impl Watch {
    /// Waits for the change. Survives reconnections: the library renews the watch.
    pub async fn changed(self) -> Change {
        match self.0.changed().await.event_type {
            EventType::NodeDeleted => Change::Deleted,
            EventType::Session => Change::SessionOver,
            _ => Change::Data,
        }
    }
}

/// An established session.
#[derive(Debug)]
pub struct Session {
    client: Client,
}

impl Session {
    /// Connects to one of the servers, however long it takes; `unreachable` is told the reason each
    /// time that all of them have been tried in vain. Gives a failure only where trying again is
    /// of no use.
    pub async fn connect(
        servers: &ConnectString,
        timeout: Duration,
        mut unreachable: impl FnMut(String),
    ) -> Result<Self, Failure> {
        let mut pause = FIRST_PAUSE;
        loop {
            let reason = match Endpoints::resolve(servers).await {
                Ok(endpoints) => match Self::connect_once(&endpoints, &servers.chroot, timeout).await {
                    Ok(session) => return Ok(session),
                    Err(failure @ (Failure::Denied | Failure::Refused(_))) => return Err(failure),
                    Err(_) => endpoints.diagnose(timeout).await,
                },
                Err(reason) => reason,
            };
            log::info!("no connection: {reason}");
            unreachable(reason);
            Timer::after(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn connect_once(endpoints: &Endpoints, chroot: &str, timeout: Duration) -> Result<Self, Failure> {
        let connector = Client::connector()
            .with_session_timeout(timeout)
            // A silent connection is given up after this long. The library's own 2/5 would leave
            // no time for a second server within the lease.
            .with_connection_timeout(timeout / 6)
            .with_fail_eagerly();
        match connector.connect(&endpoints.connect_string(chroot)).await {
            Ok(client) => Ok(Self { client }),
            Err(Error::NoHosts) => Err(Failure::Unknown(String::new())),
            Err(error @ Error::BadArguments(_)) => Err(Failure::Refused(error.to_string())),
            Err(error) => Err(Failure::from(error)),
        }
    }

    /// The session id.
    pub fn id(&self) -> i64 {
        self.client.session_id().0
    }

    /// The session timeout that the server granted.
    pub fn timeout(&self) -> Duration {
        self.client.session_timeout()
    }

    /// Waits until no server has answered for `limit`, or the session is known to be over.
    ///
    /// The library says that a session is over at 1.4 times its timeout, or, past that with an
    /// address that fails at once, never, while it burns a core. Nobody may rely on it for either.
    pub async fn silent_for(&self, limit: Duration) {
        let mut states: StateWatcher = self.client.state_watcher();
        let mut state = self.client.state();
        loop {
            state = match state {
                SessionState::Disconnected => {
                    log::info!("connection to ZooKeeper lost");
                    let reconnected = async { Some(states.changed().await) };
                    let gave_up = async {
                        Timer::after(limit).await;
                        None
                    };
                    match or(reconnected, gave_up).await {
                        Some(SessionState::SyncConnected) => {
                            log::info!("connection to ZooKeeper restored");
                            SessionState::SyncConnected
                        }
                        Some(state) => state,
                        None => return,
                    }
                }
                SessionState::SyncConnected | SessionState::ConnectedReadOnly => states.changed().await,
                SessionState::AuthFailed | SessionState::Expired | SessionState::Closed => return,
            };
        }
    }

    /// Creates an ephemeral sequential node. Gives its sequence number and what the server says of
    /// it.
    pub fn create_contender<'a>(
        &'a self,
        prefix: &'a str,
        data: &[u8],
    ) -> impl Future<Output = Result<(i64, Stat), Failure>> + use<'a> {
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let reply = self.client.create(prefix, data, &options);
        async move {
            let (stat, sequence) = reply.await?;
            Ok((sequence.into_i64(), Stat::from(&stat)))
        }
    }

    /// Creates `path` and what is missing above it: nodes that the server removes again when their
    /// last child has gone, or plain ones where it knows no such. [`Failure::NoNode`] means that
    /// the chroot does not exist.
    pub async fn create_parents(&self, path: &str) -> Result<(), Failure> {
        let acls = Acls::anyone_all();
        match self.client.mkdir(path, &CreateMode::Container.with_acls(acls)).await {
            Err(Error::Unimplemented) => {
                self.client.mkdir(path, &CreateMode::Persistent.with_acls(acls)).await.map_err(Failure::from)
            }
            result => result.map_err(Failure::from),
        }
    }

    /// The names of the children of `path`, in no order.
    pub fn children<'a>(&'a self, path: &'a str) -> impl Future<Output = Result<Vec<String>, Failure>> + use<'a> {
        let reply = self.client.list_children(path);
        async move { Ok(reply.await?) }
    }

    /// Waits until the server that we are connected to has caught up with the leader: what follows
    /// sees everything that was done before.
    pub async fn sync(&self, path: &str) -> Result<(), Failure> {
        Ok(self.client.sync(path).await?)
    }

    /// The data of a node and what the server says of it.
    pub fn read(&self, path: &str) -> impl Future<Output = Result<(Vec<u8>, Stat), Failure>> + use<> {
        let reply = self.client.get_data(path);
        async move {
            let (data, stat) = reply.await?;
            Ok((data, Stat::from(&stat)))
        }
    }

    /// Like [`Session::read`], with a watch. Sets none when the node does not exist, as `exists`
    /// would.
    pub fn read_and_watch<'a>(
        &'a self,
        path: &'a str,
    ) -> impl Future<Output = Result<(Vec<u8>, Stat, Watch), Failure>> + use<'a> {
        let reply = self.client.get_and_watch_data(path);
        async move {
            let (data, stat, watcher) = reply.await?;
            Ok((data, Stat::from(&stat), Watch(watcher)))
        }
    }

    /// Asks the quorum whether `node` is still there; `publish`: data to give it at the same time.
    ///
    /// A ping would prove nothing: the server that we are connected to answers it, and one that
    /// has lost the leader goes on answering for a while. A transaction goes through the leader,
    /// even one that only checks.
    pub fn beat<'a>(
        &'a self,
        node: &str,
        publish: Option<&[u8]>,
    ) -> impl Future<Output = Result<(), Failure>> + use<'a> {
        let mut writer = self.client.new_multi_writer();
        let queued = writer
            .add_check_version(node, -1)
            .and_then(|()| publish.map_or(Ok(()), |data| writer.add_set_data(node, data, None)))
            .map(|()| writer.commit());
        async move {
            match queued?.await {
                Ok(_) => Ok(()),
                Err(MultiWriteError::RequestFailed { source } | MultiWriteError::OperationFailed { source, .. }) => {
                    Err(source.into())
                }
            }
        }
    }

    /// Deletes a node. One that is not there is as good.
    pub async fn delete(&self, path: &str) -> Result<(), Failure> {
        match self.client.delete(path, None).await {
            Ok(()) | Err(Error::NoNode) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Deletes `node` and closes the session, in one flight, and waits for both, for as long as it
    /// takes. Whatever else the session had created goes with it.
    pub async fn release(self, node: Option<&str>) {
        let mut states = self.client.state_watcher();
        let deleted = node.map(|node| self.client.delete(node, None));
        drop(self.client);
        if let Some(deleted) = deleted {
            match deleted.await {
                Ok(()) => {}
                // Closing the session does it as well.
                Err(error) => log::info!("deleting the contender node: {error}"),
            }
        }
        loop {
            match states.state() {
                SessionState::Disconnected | SessionState::SyncConnected | SessionState::ConnectedReadOnly => {
                    states.changed().await;
                }
                SessionState::AuthFailed | SessionState::Expired | SessionState::Closed => return,
            }
        }
    }
}

/// Where the servers are, as far as that can be found out now.
#[derive(Debug)]
struct Endpoints {
    /// What the library is to try, in the syntax of a connect string.
    list: Vec<String>,
    /// The addresses among them, to find out why none answers.
    addresses: Vec<SocketAddr>,
}

impl Endpoints {
    /// Looks up every host. Gives the reason when none of them has an address.
    async fn resolve(servers: &ConnectString) -> Result<Self, String> {
        let mut addresses = vec![];
        let mut names = vec![];
        let mut reason = String::new();
        for server in &servers.hosts {
            if let Ok(address) = server.host.parse::<IpAddr>() {
                addresses.push(SocketAddr::new(address, server.port));
                continue;
            }
            let lookup = server.clone();
            match smol::unblock(move || (lookup.host.as_str(), lookup.port).to_socket_addrs()).await {
                Ok(found) => {
                    addresses.extend(found);
                    names.push(server.to_string());
                }
                Err(error) => {
                    reason = format!("cannot resolve {}: {}", server.host, brief(&error));
                    log::info!("{reason}");
                }
            }
        }
        if addresses.is_empty() {
            return Err(reason);
        }
        // The names too, so that servers that move to other addresses are found again.
        let mut list: Vec<String> = addresses.iter().map(ToString::to_string).chain(names).collect();
        // The library pauses for up to 3.2 s after each round through the list: too long for a
        // session that is to survive the restart of a single server.
        while list.len() < 3 {
            list.extend_from_within(..);
        }
        Ok(Self { list, addresses })
    }

    fn connect_string(&self, chroot: &str) -> String {
        self.list.join(",") + chroot
    }

    /// Why no server answered: the library only says that there is none.
    async fn diagnose(&self, patience: Duration) -> String {
        let Some(address) = self.addresses.first().copied() else { return "no address".to_owned() };
        let patience = patience.min(Duration::from_secs(1));
        match smol::unblock(move || TcpStream::connect_timeout(&address, patience)).await {
            Ok(_) => format!("{address} accepts connections but does not answer as ZooKeeper"),
            Err(error) => format!("{address}: {}", brief(&error)),
        }
    }
}

/// An I/O error without the words that std puts around it.
fn brief(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
    let text = text.split(" (os error").next().unwrap_or(text);
    text.to_owned()
}
