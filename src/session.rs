//! A ZooKeeper session: the only room that names the client library.
//!
//! Requests of a session are answered in the order in which they were sent, and the library queues
//! a request when the method is called, not when its future is first polled. So two calls in a row
//! leave back to back. The functions here that give a future have queued their request when they
//! return; the few that are an `async fn` queue it when they are first polled.

use std::cell::RefCell;
use std::fmt;
use std::future::{Future, pending, poll_fn};
use std::io;
use std::net::{IpAddr, SocketAddr, TcpStream, ToSocketAddrs};
use std::pin::{Pin, pin};
use std::time::Duration;

use futures_lite::future::or;
use smol::channel::Receiver;
use smol::{LocalExecutor, Task, Timer};
use zookeeper_client::{
    Acls, Client, CreateMode, Error, EventType, MultiWriteError, OneshotWatcher, SessionInfo, SessionState,
};

use crate::plan::{ConnectString, HostPort};

/// Servers that are down are tried again after this long, then after twice that, and so on.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// The servers that a session may use, and where they were when that was last found out.
#[derive(Debug)]
pub struct Servers<'p> {
    connect: &'p ConnectString,
    /// Runs the library's tasks, on the thread that waits for what they do: what comes over a
    /// connection is acted upon without waking another thread.
    executor: &'p LocalExecutor<'static>,
    known: RefCell<Vec<SocketAddr>>,
}

impl<'p> Servers<'p> {
    /// The servers of a connect string; nothing is looked up yet. `executor` has to run for as long
    /// as a session is used.
    pub fn new(connect: &'p ConnectString, executor: &'p LocalExecutor<'static>) -> Self {
        Self { connect, executor, known: RefCell::new(vec![]) }
    }

    /// Looks up every host, and gives all their addresses, or the reason why there is none. Once
    /// they are known, `patience` limits the wait: what cuts off the servers may cut off the name
    /// servers too, and the lease does not wait for those to come back.
    async fn resolve(&self, patience: Duration) -> Result<Vec<SocketAddr>, String> {
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

/// Why a request was not answered as hoped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The node, or its parent, does not exist.
    NoNode,
    /// An ACL forbids it, or the credentials were refused.
    Denied,
    /// The server does not know this kind of request. It closes the connection over it, too.
    Unimplemented,
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
            Self::Unimplemented => f.write_str("the server does not know the request"),
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
            Error::Unimplemented => Self::Unimplemented,
            Error::SessionExpired => Self::SessionOver,
            // All of these can come from a connection that broke with the request under way, or that
            // another one of the same session has replaced.
            Error::ConnectionLoss
            | Error::SessionMoved
            // The server is too busy, and has done nothing.
            | Error::Throttled
            | Error::ClientClosed
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
    /// The connection was lost, and the watch with it.
    Unknown,
}

/// A watch on a node that existed when it was set; it fires once.
#[derive(Debug)]
pub struct Watch(OneshotWatcher);

impl Watch {
    /// Waits for the change.
    pub async fn changed(self) -> Change {
        match self.0.changed().await.event_type {
            EventType::NodeDeleted => Change::Deleted,
            EventType::Session => Change::Unknown,
            _ => Change::Data,
        }
    }
}

/// What it takes to go on with a session over another connection.
#[derive(Clone, Debug)]
pub struct Identity(SessionInfo);

impl Identity {
    /// The session id.
    pub fn id(&self) -> i64 {
        self.0.id().0
    }
}

/// An established session over one connection.
///
/// The library would reconnect by itself, and not tell what it was granted then: a server that has
/// another `maxSessionTimeout` changes the timeout of a session in the middle, and an imitation of
/// a server may hand out another session. It also gives a session up while the servers, which were
/// all down, still have it. So each connection is a `Session` of its own here, and the library's
/// task is ended with the connection.
#[derive(Debug)]
pub struct Session {
    /// The library's task, which reads and writes the connection; it ends when that is lost.
    task: Task<()>,
    /// Nothing is ever sent: the channel is closed when the connection is lost.
    lost: Receiver<()>,
    client: Client,
}

impl Session {
    /// Opens a session with one of the servers, however long it takes; `unreachable` is told the
    /// reason each time that all of them have been tried in vain. Gives a failure only where trying
    /// again is of no use.
    pub async fn open(
        servers: &Servers<'_>,
        timeout: Duration,
        mut unreachable: impl FnMut(String),
    ) -> Result<Self, Failure> {
        let session = Self::connect(servers, timeout, None, &mut unreachable).await?;
        let (granted, identity) = (session.timeout(), session.identity());
        if granted >= timeout {
            return Ok(session);
        }
        // How long the connection may be silent was reckoned from what was asked for.
        session.abandon().await;
        Self::resume(servers, granted, &identity, unreachable).await
    }

    /// Goes on with a session whose connection was lost, however long that takes.
    /// [`Failure::SessionOver`] is the servers' word that they have it no more. The servers may
    /// grant another timeout than before, and the caller has to compare the id.
    ///
    /// The server may lag behind the one before: [`Session::catch_up`] comes before anything else.
    pub async fn resume(
        servers: &Servers<'_>,
        timeout: Duration,
        identity: &Identity,
        unreachable: impl FnMut(String),
    ) -> Result<Self, Failure> {
        Self::connect(servers, timeout, Some(identity), unreachable).await
    }

    async fn connect(
        servers: &Servers<'_>,
        timeout: Duration,
        identity: Option<&Identity>,
        mut unreachable: impl FnMut(String),
    ) -> Result<Self, Failure> {
        let mut pause = FIRST_PAUSE;
        loop {
            let reason = match servers.resolve(timeout / 6).await {
                Ok(addresses) => {
                    let list: Vec<String> = addresses.iter().map(ToString::to_string).collect();
                    let connect_string = list.join(",") + &servers.connect.chroot;
                    match Self::connect_once(servers.executor, &connect_string, timeout, identity).await {
                        Ok(session) => return Ok(session),
                        Err(failure @ (Failure::Denied | Failure::SessionOver | Failure::Refused(_))) => {
                            return Err(failure);
                        }
                        Err(_) => diagnose(addresses[0], timeout / 6).await,
                    }
                }
                Err(reason) => reason,
            };
            unreachable(reason);
            Timer::after(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn connect_once(
        executor: &LocalExecutor<'static>,
        connect_string: &str,
        timeout: Duration,
        identity: Option<&Identity>,
    ) -> Result<Self, Failure> {
        let mut connector = Client::connector()
            .with_session_timeout(timeout)
            // A silent connection is given up after this long. The library's own 2/5 would leave
            // no time for a second server within the lease.
            .with_connection_timeout(timeout / 6)
            .with_fail_eagerly();
        if let Some(identity) = identity {
            connector = connector.with_session(identity.0.clone());
        }
        let spawned = Spawned::default();
        let mut connecting = pin!(connector.connect(connect_string));
        let client = poll_fn(|context| {
            let _scope = spawns_core::enter(&spawned);
            connecting.as_mut().poll(context)
        })
        .await;
        match client {
            Ok(client) => {
                let task = spawned.0.take().ok_or_else(|| Failure::Refused("the client has no task".to_owned()))?;
                let mut states = client.state_watcher();
                let (tell, lost) = smol::channel::bounded(1);
                let task = executor.spawn(async move {
                    let mut task = task;
                    // When the connection is lost, the library begins to reconnect, and is not polled
                    // any more.
                    or(task.as_mut(), async {
                        states.changed().await;
                    })
                    .await;
                    tell.close();
                    // Not dropped yet: the futures of its watches would panic.
                    pending().await
                });
                Ok(Self { task, lost, client })
            }
            Err(Error::NoHosts) => Err(Failure::Unknown(String::new())),
            Err(error @ Error::BadArguments(_)) => Err(Failure::Refused(error.to_string())),
            Err(error) => Err(Failure::from(error)),
        }
    }

    /// What [`Session::resume`] needs.
    pub fn identity(&self) -> Identity {
        Identity(self.client.session().clone())
    }

    /// The session id.
    pub fn id(&self) -> i64 {
        self.client.session_id().0
    }

    /// The session timeout that the server granted for this connection.
    pub fn timeout(&self) -> Duration {
        self.client.session_timeout()
    }

    /// Waits until the connection is lost. From then on, no other future of this session ends.
    pub async fn lost(&self) {
        let _ = self.lost.recv().await;
    }

    /// Closes the connection, and not the session.
    pub async fn abandon(self) {
        // In this order, and only when the task has gone: the library takes it for a wish to close
        // the session when its last client is dropped.
        self.task.cancel().await;
        drop(self.client);
    }

    /// Waits until the server that we are connected to knows all that was done before this.
    ///
    /// `sync` makes it catch up with its leader. That may be one that has just been deposed and
    /// does not know it yet; a transaction goes through only where there is a quorum.
    pub async fn catch_up(&self, path: &str) -> Result<(), Failure> {
        let synced = self.client.sync(path);
        let committed = self.beat(path, None);
        synced.await?;
        match committed.await {
            // The answer counts, not what it says.
            Ok(()) | Err(Failure::NoNode | Failure::Denied) => Ok(()),
            Err(failure) => Err(failure),
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

    /// Creates `path` and what is missing above it: containers, which the server removes again when
    /// their last child has gone, or plain nodes. [`Failure::NoNode`] means that the chroot does not
    /// exist, [`Failure::Unimplemented`] that the server knows no containers.
    pub async fn create_parents(&self, path: &str, containers: bool) -> Result<(), Failure> {
        let mode = if containers { CreateMode::Container } else { CreateMode::Persistent };
        Ok(self.client.mkdir(path, &mode.with_acls(Acls::anyone_all())).await?)
    }

    /// The names of the children of `path`, in no order.
    pub fn children<'a>(&'a self, path: &'a str) -> impl Future<Output = Result<Vec<String>, Failure>> + use<'a> {
        let reply = self.client.list_children(path);
        async move { Ok(reply.await?) }
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

    /// Closes the session, and waits until that is done. Whatever it had created goes with it.
    /// [`Failure::Unknown`]: the connection was lost on the way. To be called when nothing watches
    /// any more: the library would remove the watches after the session, and wait for answers that
    /// do not come.
    pub async fn close(self) -> Result<(), Failure> {
        let mut states = self.client.state_watcher();
        drop(self.client);
        let _ = self.lost.recv().await;
        match states.state() {
            SessionState::AuthFailed | SessionState::Expired | SessionState::Closed => Ok(()),
            _ => Err(Failure::Unknown("connection lost".to_owned())),
        }
    }
}

/// Catches the task that the library spawns when it has connected.
#[derive(Default)]
struct Spawned(RefCell<Option<Pin<Box<dyn Future<Output = ()> + Send>>>>);

impl spawns_core::Spawn for Spawned {
    fn spawn(&self, task: spawns_core::Task) {
        let spawns_core::Task { future, .. } = task;
        self.0.replace(Some(Box::into_pin(future)));
    }
}

/// Why a server did not answer: the library only says that none did.
async fn diagnose(address: SocketAddr, patience: Duration) -> String {
    let patience = patience.min(Duration::from_secs(1));
    match smol::unblock(move || TcpStream::connect_timeout(&address, patience)).await {
        Ok(_) => format!("{address} accepts connections but does not answer as ZooKeeper"),
        Err(error) => format!("{address}: {}", brief(&error)),
    }
}

/// An I/O error without the words that std puts around it.
fn brief(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.strip_prefix("failed to lookup address information: ").unwrap_or(&text);
    let text = text.split(" (os error").next().unwrap_or(text);
    text.to_owned()
}
