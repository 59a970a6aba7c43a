//! The session: ZooKeeper's protocol over a [`Channel`].
//!
//! [`ClientSession::lost`] has to be polled for as long as the session is used: it reads, writes, and sees to it that
//! the server hears from us. Requests that are made in the same round leave together: in the next, or in this one if the
//! server owes no answer.

use std::cell::RefCell;
use std::future::{Future, poll_fn};
use std::io;
use std::pin::pin;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::Duration;

use super::channel::{Channel, is_end, is_for_later, send};
use super::watch::{Fired, Wanted};
use super::{Created, Expected, Failure, NodeStat, RecordWrite, Session, Watch, acl, created, failure};
use crate::rules::child_name::ChildName;
use crate::rules::contacts::Contact;
use crate::rules::instant::Instant;
use crate::rules::keep_alive::KeepAlive;
use crate::zookeeper::login::{Credential, Login, Protection};
use crate::zookeeper::wire::connection::{Connection, ServerEvent};
use crate::zookeeper::wire::error::Unsendable;
use crate::zookeeper::wire::handshake::{Granted, Identity};
use crate::zookeeper::wire::reply::Reply;
use crate::zookeeper::wire::request::{NewNode, NodeKind, Request, Secret};

/// Where a reply is put for the future that waits for it.
type Slot = Rc<RefCell<Option<Result<Reply, Failure>>>>;

#[derive(Default)]
struct Waits {
    slot: Slot,
    /// The watch that is asked for, if any.
    watch: Option<Wanted>,
    /// The scheme of our login, if it is one: refused, it ends the session; granted, it is no sign of life to the
    /// leader.
    login: Option<String>,
}

/// An established session over one connection.
pub struct ClientSession<C> {
    channel: C,
    timeout: Duration,
    /// Who may do what with the nodes that we create.
    protection: Protection,
    wire: RefCell<Wire>,
}

/// The state of the connection, and what waits for something to come over it.
struct Wire {
    connection: Connection<Waits>,
    watches: Vec<(String, Weak<Fired>)>,
    contacts: Vec<Contact>,
    /// Where bytes are read to.
    buffer: Box<[u8]>,
    is_lost: bool,
    /// See [`Session::closed_over_creation`].
    closed_over_creation: bool,
    /// The scheme of a login that the server has refused.
    refused: Option<String>,
    /// The round in which it was last looked at.
    round: u64,
}

impl<C: Channel> ClientSession<C> {
    /// A session that was granted over this channel. `before`: its timeout, if it existed before.
    pub fn new(channel: C, granted: Granted, chroot: &str, before: Option<Duration>) -> Self {
        // A new leader counts with the timeout that the session was created with, whatever was granted since
        // (SessionTrackerImpl).
        let timeout = before.map_or(granted.timeout, |before| before.min(granted.timeout));
        let connection = Connection::new(granted, chroot, KeepAlive::brisk(timeout), channel.now());
        Self {
            channel,
            timeout,
            wire: RefCell::new(Wire {
                connection,
                watches: vec![],
                contacts: vec![],
                buffer: vec![0; 16 * 1024].into(),
                is_lost: false,
                closed_over_creation: false,
                refused: None,
                round: 0,
            }),
            protection: Protection::Open,
        }
    }

    /// Logs in, before anything else is asked, and creates nodes with ACLs that suit it.
    pub fn with_login(mut self, login: &Login) -> Self {
        self.protection = login.protection;
        for Credential { scheme, secret } in login.shown() {
            let request = Request::Auth { scheme, credentials: Secret(secret) };
            let waits = Waits { login: Some(scheme.clone()), ..Waits::default() };
            // If they are longer than any server takes, the nodes are not those of this login, and that is noticed.
            let _ = self.wire.get_mut().connection.request(&request, waits, self.channel.now());
        }
        self
    }

    pub(super) const fn protection(&self) -> Protection {
        self.protection
    }

    /// Reads and writes what can be without waiting, once in each round. What is asked later in it, of a server that owes no
    /// answer, leaves in it too. If there are others to wait for, many requests leave in one write.
    fn go_on(&self) {
        let mut wire = self.wire.borrow_mut();
        let round = self.channel.round();
        let is_next_round = std::mem::replace(&mut wire.round, round) != round;
        if wire.is_lost || !is_next_round && wire.connection.is_owed() {
            return;
        }
        let gone_on = if is_next_round { wire.exchange(&self.channel) } else { wire.write(&self.channel) };
        if let Err(why) = gone_on {
            log::info!("connection to {} lost: {why}", self.channel);
            wire.is_lost = true;
            wire.closed_over_creation = is_end(&why) && wire.connection.owes_creation();
            self.channel.poll_again();
        }
    }

    /// Queues a request. The future completes with the reply.
    pub(in crate::zookeeper) fn ask<'s>(
        &'s self,
        request: &Request<'_>,
    ) -> impl Future<Output = Result<Reply, Failure>> + use<'s, C> {
        self.ask_and_watch(request, None)
    }

    /// The same, if the reply says no more than that it was done.
    pub(super) fn ask_to_do(&self, request: &Request<'_>) -> Expected<'_, ()> {
        self.ask_for(request, None, |_| Ok(()))
    }

    /// The same, for what is in the reply. `read`: takes it out of a reply of the kind that belongs to the request.
    pub(super) fn ask_for<'s, T>(
        &'s self,
        request: &Request<'_>,
        watch: Option<Wanted>,
        read: impl FnOnce(Reply) -> Result<T, Reply> + 's,
    ) -> Expected<'s, T> {
        let reply = self.ask_and_watch(request, watch);
        Box::pin(async move { read(reply.await?).map_err(|reply| failure::unexpected(&reply)) })
    }

    pub(super) fn ask_and_watch<'s>(
        &'s self,
        request: &Request<'_>,
        watch: Option<Wanted>,
    ) -> impl Future<Output = Result<Reply, Failure>> + use<'s, C> {
        let slot = Slot::default();
        let waits = Waits { slot: Rc::clone(&slot), watch, login: None };
        let queued = self.wire.borrow_mut().connection.request(request, waits, self.channel.now());
        self.channel.poll_again();
        async move {
            // Over a connection that is lost, or being closed, nothing comes any more.
            if let Err(error @ Unsendable::TooLarge(_)) = queued {
                return Err(Failure::Unusable(error.to_string()));
            }
            poll_fn(|_| {
                self.go_on();
                if let Some(scheme) = &self.wire.borrow().refused {
                    return Poll::Ready(Err(failure::of_login(scheme)));
                }
                // After the loss as well: the reply may have come in the same round, before it.
                slot.take().map_or(Poll::Pending, Poll::Ready)
            })
            .await
        }
    }
}

impl Wire {
    /// Reads and writes what can be without waiting. An error means that the connection is lost.
    fn exchange(&mut self, channel: &impl Channel) -> io::Result<()> {
        let read = self.read(channel);
        let mut has_heard = false;
        while let Some(event) = self.connection.next_event().map_err(io::Error::other)? {
            self.take(event, channel.now());
            has_heard = true;
        }
        if has_heard {
            channel.poll_again();
        }
        match read {
            // What came before the end is for others to see first. The end is still there in the next round.
            Err(_) if has_heard => return Ok(()),
            read => read?,
        }
        let now = channel.now();
        if self.connection.ping_at().is_some_and(|at| at <= now) {
            self.connection.request(&Request::Ping, Waits::default(), now).map_err(io::Error::other)?;
        }
        self.write(channel)?;
        if self.connection.lost_at().is_some_and(|at| at <= now) {
            return Err(io::Error::other("the server does not answer"));
        }
        channel.wake_on_bytes(!self.connection.to_send().is_empty());
        [self.connection.ping_at(), self.connection.lost_at()].into_iter().flatten().for_each(|at| channel.wake_at(at));
        Ok(())
    }

    fn read(&mut self, channel: &impl Channel) -> io::Result<()> {
        // A server that never stops sending must not keep us from everything else.
        for _ in 0..64 {
            match channel.read(&mut self.buffer) {
                Ok(0) => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the server has closed it")),
                Ok(count) => {
                    log::trace!("{count} bytes from ZooKeeper");
                    self.connection.receive(&self.buffer[..count], channel.now());
                    // As a rule there is no more; poll(2) tells.
                    if count < self.buffer.len() {
                        return Ok(());
                    }
                }
                Err(error) if is_for_later(&error) => return Ok(()),
                Err(error) => return Err(error),
            }
        }
        channel.poll_again();
        Ok(())
    }

    fn write(&mut self, channel: &impl Channel) -> io::Result<()> {
        while let Some((count, at)) = send(channel, self.connection.to_send())? {
            log::trace!("{count} bytes to ZooKeeper");
            self.connection.sent(count, at);
        }
        Ok(())
    }

    fn take(&mut self, event: ServerEvent<Waits>, now: Instant) {
        match event {
            ServerEvent::Answered { tag: Waits { slot, watch, login }, sent, result } => {
                self.contacts.extend(login.is_none().then_some(Contact { sent, answered: now }));
                self.refused = self.refused.take().or_else(|| login.filter(|_| result.is_err()));
                let result = result.map_err(Failure::from);
                if let Some(watch) = watch.filter(|_| result.is_ok()) {
                    self.watches.push((watch.path, Rc::downgrade(&watch.fired)));
                }
                slot.replace(Some(result));
            }
            ServerEvent::Changed(event) => {
                for (_, fired) in self.watches.extract_if(.., |(path, _)| *path == event.path) {
                    if let Some(fired) = fired.upgrade() {
                        fired.set(Some(event.change));
                    }
                }
            }
        }
        // Watches that the caller has dropped are forgotten.
        self.watches.retain(|(_, fired)| fired.strong_count() > 0);
    }
}

impl<C: Channel> Session for ClientSession<C> {
    type Identity = Identity;

    fn identity(&self) -> Identity {
        self.wire.borrow().connection.identity().clone()
    }

    fn id(&self) -> i64 {
        self.wire.borrow().connection.identity().id()
    }

    fn timeout(&self) -> Duration {
        self.timeout
    }

    fn opened(&self) -> Instant {
        self.wire.borrow().connection.asked_at()
    }

    fn set_keep_alive(&self, keep_alive: KeepAlive) {
        self.wire.borrow_mut().connection.set_keep_alive(keep_alive);
        self.channel.poll_again();
    }

    fn take_contacts(&self) -> Vec<Contact> {
        std::mem::take(&mut self.wire.borrow_mut().contacts)
    }

    async fn lost(&self) {
        poll_fn(|_| {
            self.go_on();
            if self.wire.borrow().is_lost { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }

    fn closed_over_creation(&self) -> bool {
        self.wire.borrow().closed_over_creation
    }

    fn distrust(&self) {
        self.channel.distrust();
    }

    fn sync(&self, path: &str) -> Expected<'_, ()> {
        self.ask_to_do(&Request::Sync { path })
    }

    fn create<'s>(
        &'s self,
        prefixes: &'s [String],
        data: &[u8],
        numbered: bool,
        with_stat: bool,
    ) -> Expected<'s, Created> {
        let kind = if numbered { NodeKind::EphemeralSequential } else { NodeKind::Ephemeral };
        let new_node = |path| NewNode { path, data, acl: acl::of_node(self.protection) };
        let reply = match prefixes {
            [path] if with_stat => self.ask(&Request::Create2 { node: new_node(path), kind }),
            [path] => self.ask(&Request::Create { node: new_node(path), kind }),
            _ => {
                let creation = |path| Request::Create { node: new_node(path), kind };
                let creations: Vec<_> = prefixes.iter().map(|path| creation(path)).collect();
                self.ask(&Request::Multi(&creations))
            }
        };
        Box::pin(async move { created::read(reply.await?, prefixes, numbered) })
    }

    async fn create_parents(&self, path: &str, containers: bool) -> Result<(), (Failure, String)> {
        self.create_each_above(path, containers).await
    }

    fn children(&self, path: &str) -> Expected<'_, Vec<ChildName>> {
        self.ask_for(&Request::GetChildren { path, watch: false }, None, |reply| match reply {
            Reply::Children { names, .. } => Ok(names),
            other => Err(other),
        })
    }

    fn watch_children(&self, path: &str) -> Expected<'_, (Vec<ChildName>, Watch)> {
        let (wanted, watch) = Wanted::on(path);
        self.ask_for(&Request::GetChildren { path, watch: true }, Some(wanted), |reply| match reply {
            Reply::Children { names, .. } => Ok((names, watch)),
            other => Err(other),
        })
    }

    fn read(&self, path: &str) -> Expected<'_, (Vec<u8>, NodeStat)> {
        self.ask_for(&Request::GetData { path, watch: false }, None, |reply| match reply {
            Reply::Data { data, stat } => Ok((data, stat)),
            other => Err(other),
        })
    }

    fn read_and_watch(&self, path: &str) -> Expected<'_, (Vec<u8>, NodeStat, Watch)> {
        let (wanted, watch) = Wanted::on(path);
        self.ask_for(&Request::GetData { path, watch: true }, Some(wanted), |reply| match reply {
            Reply::Data { data, stat } => Ok((data, stat, watch)),
            other => Err(other),
        })
    }

    fn beat(&self, nodes: &[String], publish: Option<&[u8]>) -> Expected<'_, ()> {
        let operations: Vec<_> = nodes
            .iter()
            .flat_map(|path| {
                let check = Request::Check { path, version: None };
                let store = publish.map(|data| Request::SetData { path, data, version: Some(0) });
                [Some(check), store].into_iter().flatten()
            })
            .collect();
        self.ask_to_do(&Request::Multi(&operations))
    }

    fn delete(&self, path: &str) -> Expected<'_, ()> {
        let reply = self.ask(&Request::Delete { path, version: None });
        let is_gone = |failure| if failure == Failure::NoNode { Ok(()) } else { Err(failure) };
        Box::pin(async move { reply.await.map(drop).or_else(is_gone) })
    }

    fn transact(&self, checked: &[String], records: &[RecordWrite], deleted: &[String]) -> Expected<'_, ()> {
        let checks = checked.iter().map(|path| Request::Check { path, version: None });
        let writes = records.iter().map(|record| record.request(self.protection));
        let deletions = deleted.iter().map(|path| Request::Delete { path, version: None });
        self.ask_to_do(&Request::Multi(&checks.chain(writes).chain(deletions).collect::<Vec<_>>()))
    }

    async fn close(&self) -> Result<(), Failure> {
        let mut reply = pin!(self.ask(&Request::Close));
        poll_fn(|context| match reply.as_mut().poll(context) {
            Poll::Pending if self.wire.borrow().is_lost => {
                Poll::Ready(Err(Failure::Unknown("connection lost".to_owned())))
            }
            reply => reply.map_ok(drop),
        })
        .await
    }
}
