//! The real session: the only module that names the client library.
//!
//! The library queues a request when the method is called, not when its future is first polled.

use std::cell::{Cell, RefCell};
use std::future::{Future, pending, poll_fn};
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::rc::Rc;
use std::time::Duration;

use futures_lite::future::or;
use smol::channel::Receiver;
use smol::{Task, Timer};
use zookeeper_client::{
    Acls, Client, CreateMode, Error, EventType, MultiWriteError, MultiWriteResult, OneshotWatcher, SessionInfo,
    SessionState,
};

use super::servers::{Servers, diagnose};
use super::{Change, Created, Failure, Session, Stat, Watch};
use crate::clock;
use crate::rules::contacts::silence_limit;
use crate::rules::instant::Instant;

/// Servers that are down are tried again after this long, then after twice that, and so on.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        match error {
            Error::NoNode => Self::NoNode,
            Error::NoAuth | Error::AuthFailed | Error::InvalidAcl => Self::Denied,
            Error::Unimplemented => Self::Unimplemented,
            Error::SessionExpired => Self::SessionOver,
            // All of these can come from a connection that broke while the request was under way, or that
            // was replaced by another one of the same session.
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

impl From<&zookeeper_client::Stat> for Stat {
    fn from(stat: &zookeeper_client::Stat) -> Self {
        Self { czxid: stat.czxid, owner: stat.ephemeral_owner }
    }
}

async fn changed(watcher: OneshotWatcher) -> Change {
    match watcher.changed().await.event_type {
        EventType::NodeDeleted => Change::Deleted,
        EventType::Session => Change::Unknown,
        _ => Change::Data,
    }
}

/// What it takes to go on with a session over another connection.
#[derive(Clone, Debug)]
pub struct Identity(SessionInfo);

/// An established session over one connection.
///
/// The library would reconnect by itself, and not tell what it was granted then. But a server with another
/// `maxSessionTimeout` changes the timeout of a session in the middle, and an imitation of a server may hand
/// out another session. The library also gives up a session that the servers still have, if all of them were
/// down for a while. So for the library each connection is a session of its own here, and its task ends with
/// the connection.
#[derive(Debug)]
pub struct ClientSession {
    opened: Instant,
    timeout: Duration,
    server: SocketAddr,
    distrusted: Rc<Cell<Option<SocketAddr>>>,
    /// The library's task, which reads and writes the connection; it ends when that is lost.
    task: Task<()>,
    /// Nothing is ever sent: the channel is closed when the connection is lost.
    lost: Receiver<()>,
    client: Client,
}

impl ClientSession {
    /// Opens a session with one of the servers, however long it takes; `unreachable` is told the
    /// reason each time that all of them have been tried in vain. Fails only where trying again is of no
    /// use.
    pub async fn open(
        servers: &Servers<'_>,
        timeout: Duration,
        mut unreachable: impl FnMut(String),
    ) -> Result<Self, Failure> {
        let mut session = Self::connect(servers, timeout, None, &mut unreachable).await?;
        let mut asked = timeout;
        // The library computes how long a connection may be silent from the timeout asked for, not from the
        // one granted.
        while session.timeout() < asked {
            let identity = session.identity();
            asked = session.timeout();
            session.abandon().await;
            session = Self::resume(servers, asked, &identity, &mut unreachable).await?;
        }
        Ok(session)
    }

    /// Goes on with a session, as `Outside::resume` says. No more than `timeout` is relied on.
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
            let reason = match servers.resolve(silence_limit(timeout)).await {
                Ok(addresses) => {
                    // One at a time, because the library does not say to which of several it is connected.
                    for server in servers.in_turn(&addresses) {
                        match Self::connect_once(servers, server, timeout, identity).await {
                            Err(Failure::Unknown(_) | Failure::NoNode | Failure::Unimplemented) => {}
                            outcome => return outcome,
                        }
                    }
                    diagnose(addresses[0], silence_limit(timeout), identity.is_none()).await
                }
                Err(reason) => reason,
            };
            unreachable(reason);
            Timer::after(pause).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    async fn connect_once(
        servers: &Servers<'_>,
        server: SocketAddr,
        timeout: Duration,
        identity: Option<&Identity>,
    ) -> Result<Self, Failure> {
        let mut connector = Client::connector()
            .with_session_timeout(timeout)
            .with_connection_timeout(silence_limit(timeout))
            .with_fail_eagerly();
        if let Some(identity) = identity {
            connector = connector.with_session(identity.0.clone());
        }
        let opened = clock::now();
        let spawned = Spawned::default();
        let connect_string = format!("{server}{}", servers.connect.chroot);
        let mut connecting = pin!(connector.connect(&connect_string));
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
                let task = servers.executor.spawn(async move {
                    let mut task = task;
                    // When the connection is lost, the library begins to reconnect; it is not polled any
                    // more then.
                    or(task.as_mut(), async {
                        states.changed().await;
                    })
                    .await;
                    tell.close();
                    // Not dropped yet: the futures of its watches would panic.
                    pending().await
                });
                let granted = client.session_timeout();
                // A new leader counts with the timeout that the session was created with, whatever was
                // granted since (SessionTrackerImpl).
                let timeout = if identity.is_some() { granted.min(timeout) } else { granted };
                let distrusted = Rc::clone(&servers.distrusted);
                Ok(Self { opened, timeout, server, distrusted, task, lost, client })
            }
            Err(Error::NoHosts) => Err(Failure::Unknown(String::new())),
            Err(error @ Error::BadArguments(_)) => Err(Failure::Refused(error.to_string())),
            Err(error) => Err(Failure::from(error)),
        }
    }
}

impl Session for ClientSession {
    type Identity = Identity;

    fn identity(&self) -> Identity {
        Identity(self.client.session().clone())
    }

    fn id(&self) -> i64 {
        self.client.session_id().0
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn opened(&self) -> Instant {
        self.opened
    }

    async fn lost(&self) {
        let _ = self.lost.recv().await;
    }

    fn distrust(&self) {
        self.distrusted.set(Some(self.server));
    }

    async fn abandon(self) {
        // In this order: if the task still ran, the library would close the session when its last client
        // is dropped.
        self.task.cancel().await;
        drop(self.client);
    }

    fn sync<'s>(&'s self, path: &str) -> impl Future<Output = Result<(), Failure>> + use<'s> {
        let reply = self.client.sync(path);
        async move { Ok(reply.await?) }
    }

    fn create<'s>(
        &'s self,
        prefixes: &'s [String],
        data: &[u8],
    ) -> impl Future<Output = Result<Created, Failure>> + use<'s> {
        let options = CreateMode::EphemeralSequential.with_acls(Acls::anyone_all());
        let single = match prefixes {
            [prefix] => Some((prefix.clone(), self.client.create(prefix, data, &options))),
            _ => None,
        };
        let several = || {
            let mut writer = self.client.new_multi_writer();
            for prefix in prefixes {
                writer.add_create(prefix, data, &options)?;
            }
            Ok(writer.commit())
        };
        let several: Option<Result<_, Error>> = single.is_none().then(several);
        async move {
            if let Some((prefix, reply)) = single {
                let (stat, sequence) = reply.await?;
                return Ok(Created { paths: vec![format!("{prefix}{sequence}")], stat: Some(Stat::from(&stat)) });
            }
            let mut paths = vec![];
            if let Some(reply) = several {
                for result in reply?.await.map_err(multi_failure)? {
                    if let MultiWriteResult::Create { path, .. } = result {
                        paths.push(path);
                    }
                }
            }
            Ok(Created { paths, stat: None })
        }
    }

    async fn create_parents(&self, path: &str, containers: bool) -> Result<(), Failure> {
        let mode = if containers { CreateMode::Container } else { CreateMode::Persistent };
        Ok(self.client.mkdir(path, &mode.with_acls(Acls::anyone_all())).await?)
    }

    fn children<'s>(&'s self, path: &str) -> impl Future<Output = Result<Vec<String>, Failure>> + use<'s> {
        let reply = self.client.list_children(path);
        async move { Ok(reply.await?) }
    }

    fn read<'s>(&'s self, path: &str) -> impl Future<Output = Result<(Vec<u8>, Stat), Failure>> + use<'s> {
        let reply = self.client.get_data(path);
        async move {
            let (data, stat) = reply.await?;
            Ok((data, Stat::from(&stat)))
        }
    }

    fn read_and_watch<'s>(
        &'s self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<u8>, Stat, Watch), Failure>> + use<'s> {
        let reply = self.client.get_and_watch_data(path);
        async move {
            let (data, stat, watcher) = reply.await?;
            let watch: Watch = Box::pin(changed(watcher));
            Ok((data, Stat::from(&stat), watch))
        }
    }

    fn beat<'s>(
        &'s self,
        nodes: &[String],
        publish: Option<&[u8]>,
    ) -> impl Future<Output = Result<(), Failure>> + use<'s> {
        let mut writer = self.client.new_multi_writer();
        let mut add = || {
            for node in nodes {
                writer.add_check_version(node, -1)?;
                if let Some(data) = publish {
                    writer.add_set_data(node, data, None)?;
                }
            }
            Ok(())
        };
        let queued: Result<(), Error> = add();
        let queued = queued.map(|()| writer.commit());
        async move {
            queued?.await.map_err(multi_failure)?;
            Ok(())
        }
    }

    fn delete<'s>(&'s self, path: &str) -> impl Future<Output = Result<(), Failure>> + use<'s> {
        let reply = self.client.delete(path, None);
        async move {
            match reply.await {
                Ok(()) | Err(Error::NoNode) => Ok(()),
                Err(error) => Err(error.into()),
            }
        }
    }

    /// No watch may be left: the library would remove it after it has closed the session, and wait for an
    /// answer that does not come.
    async fn close(self) -> Result<(), Failure> {
        let mut states = self.client.state_watcher();
        drop(self.client);
        let _ = self.lost.recv().await;
        match states.state() {
            SessionState::Closed => Ok(()),
            SessionState::AuthFailed | SessionState::Expired => Err(Failure::SessionOver),
            _ => Err(Failure::Unknown("connection lost".to_owned())),
        }
    }
}

fn multi_failure(error: MultiWriteError) -> Failure {
    match error {
        MultiWriteError::RequestFailed { source } | MultiWriteError::OperationFailed { source, .. } => source.into(),
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
