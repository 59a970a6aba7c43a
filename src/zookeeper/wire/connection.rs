//! One connection with a session: requests become bytes, bytes become replies and events.

use std::collections::VecDeque;
use std::time::Duration;

use super::error::{Broken, Code, Malformed, Unsendable};
use super::frames::{Inbox, LONGEST_REPLY, Outbox};
use super::handshake::{Granted, Identity};
use super::records::JuteReader;
use super::reply::{Header, NOTIFICATION, Reply, ReplyForm, WatchEvent};
use super::request::Request;
use crate::rules::instant::Instant;
use crate::rules::keep_alive::KeepAlive;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerEvent<T> {
    Answered {
        tag: T,
        /// When the request was sent. The server has heard from us no earlier.
        sent: Instant,
        result: Result<Reply, Code>,
    },
    Changed(WatchEvent),
}

/// A request that waits for its reply.
#[derive(Debug)]
struct Pending<T> {
    xid: i32,
    creates: bool,
    form: ReplyForm,
    tag: T,
    asked: Instant,
    /// When its last byte was sent.
    sent: Option<Instant>,
    /// How many bytes the connection has sent when this request is sent.
    ends_at: u64,
}

/// An established session over one connection.
///
/// Requests are answered in the order in which they were made, except for pings and logins, which have an xid of their own.
///
/// It does no I/O. The caller sends the bytes of [`Connection::to_send`], passes those that come to
/// [`Connection::receive`], and takes the events. Only then does the caller compare the clock with
/// [`Connection::ping_at`] and [`Connection::lost_at`]: after a pause, the reply may be there already.
///
/// `T`: the tag by which the caller knows a request when its reply comes.
pub struct Connection<T> {
    identity: Identity,
    timeout: Duration,
    asked_at: Instant,
    /// Without a slash at its end, so empty if it is the root.
    chroot: String,
    keep_alive: KeepAlive,
    inbox: Inbox,
    outbox: Outbox,
    last_sent: Instant,
    last_received: Instant,
    last_xid: i32,
    pending: VecDeque<Pending<T>>,
    has_answered: bool,
    state: ConnectionState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConnectionState {
    Open,
    /// The last request was made.
    Closing,
    Broken(Broken),
}

impl<T> Connection<T> {
    /// A connection on which a session was granted, at `now`. All paths are below `chroot`.
    pub fn new(granted: Granted, chroot: &str, keep_alive: KeepAlive, now: Instant) -> Self {
        let Granted { identity, timeout, asked_at, inbox } = granted;
        Self {
            identity,
            timeout,
            asked_at,
            chroot: chroot.trim_end_matches('/').to_owned(),
            keep_alive,
            inbox,
            outbox: Outbox::default(),
            last_sent: asked_at,
            last_received: now,
            last_xid: 0,
            pending: VecDeque::new(),
            has_answered: false,
            state: ConnectionState::Open,
        }
    }

    /// What was granted: for another use of the connection, once all requests are answered.
    pub fn into_granted(self) -> Granted {
        let Self { identity, timeout, asked_at, inbox, .. } = self;
        Granted { identity, timeout, asked_at, inbox }
    }

    /// For the next connection, if this one is lost.
    pub const fn identity(&self) -> &Identity {
        &self.identity
    }

    /// When the server was asked for the session: its leader has heard from us no earlier.
    pub const fn asked_at(&self) -> Instant {
        self.asked_at
    }

    pub fn set_keep_alive(&mut self, keep_alive: KeepAlive) {
        self.keep_alive = keep_alive;
    }

    /// Makes a request. Its bytes are the last of [`Connection::to_send`].
    pub fn request(&mut self, request: &Request<'_>, tag: T, now: Instant) -> Result<(), Unsendable> {
        match self.state {
            ConnectionState::Closing => return Err(Unsendable::Closing),
            // A server whose answer makes no sense may close the session all the same.
            ConnectionState::Broken(broken) if *request != Request::Close => return Err(Unsendable::Broken(broken)),
            ConnectionState::Open | ConnectionState::Broken(_) => {}
        }
        let xid = request.fixed_xid().unwrap_or_else(|| next_xid(self.last_xid));
        self.outbox.push(|bytes| request.write(xid, &self.chroot, bytes)).map_err(Unsendable::TooLarge)?;
        if request.fixed_xid().is_none() {
            self.last_xid = xid;
        }
        if matches!(request, Request::Close) {
            self.state = ConnectionState::Closing;
        }
        let ends_at = self.outbox.total();
        self.pending.push_back(Pending {
            xid,
            creates: request.creates(),
            form: request.form(),
            tag,
            asked: now,
            sent: None,
            ends_at,
        });
        Ok(())
    }

    /// Whether a request was sent that is not answered yet.
    pub fn is_owed(&self) -> bool {
        self.pending.front().is_some_and(|request| request.sent.is_some())
    }

    /// Whether the first request that was sent and is not answered yet, pings and logins left out, creates a node, and another
    /// one was answered before.
    pub fn owes_creation(&self) -> bool {
        let oldest = self.pending.iter().find(|request| request.xid >= 0).filter(|_| self.has_answered);
        oldest.is_some_and(|request| request.sent.is_some() && request.creates)
    }

    pub fn to_send(&self) -> &[u8] {
        self.outbox.to_send()
    }

    /// So many of these bytes were sent, no earlier than `at`: the caller looks at the clock before it sends.
    ///
    /// A server takes notice of a request when it has all of it. So a request that leaves in pieces is sent with the
    /// last piece.
    pub fn sent(&mut self, count: usize, at: Instant) {
        self.outbox.sent(count);
        let sent = self.outbox.total_sent();
        for request in self.pending.iter_mut().filter(|request| request.sent.is_none() && request.ends_at <= sent) {
            request.sent = Some(at);
            self.last_sent = at;
        }
    }

    pub fn receive(&mut self, bytes: &[u8], now: Instant) {
        if !matches!(self.state, ConnectionState::Broken(_)) {
            self.inbox.push(bytes);
        }
        self.last_received = now;
    }

    /// Takes the next event. `None`: there is none before more bytes come.
    pub fn next_event(&mut self) -> Result<Option<ServerEvent<T>>, Broken> {
        if let ConnectionState::Broken(broken) = self.state {
            return Err(broken);
        }
        self.read_event().inspect_err(|broken| self.state = ConnectionState::Broken(*broken))
    }

    fn read_event(&mut self) -> Result<Option<ServerEvent<T>>, Broken> {
        while let Some(packet) = self.inbox.next_packet(LONGEST_REPLY)? {
            let mut reader = JuteReader::new(packet);
            let header = Header::read(&mut reader)?;
            if header.xid == NOTIFICATION {
                if let Some(change) = WatchEvent::read(&mut reader, &self.chroot)? {
                    return Ok(Some(ServerEvent::Changed(change)));
                }
                continue;
            }
            let unexpected = Malformed::UnexpectedReply(header.xid);
            let index = answered(&self.pending, &header).ok_or(unexpected)?;
            let result = match header.refusal {
                Some(code) => Err(code),
                None => self.pending[index].form.read(&mut reader, &self.chroot)?,
            };
            // Servers before 3.6 say it of an operation of a multi.
            if result == Err(Code::SessionMoved) {
                return Err(Broken::SessionMoved);
            }
            let request = self.pending.remove(index).ok_or(unexpected)?;
            let sent = request.sent.ok_or(unexpected)?;
            self.has_answered = true;
            return Ok(Some(ServerEvent::Answered { tag: request.tag, sent, result }));
        }
        Ok(None)
    }

    /// When a [`Request::Ping`] is due. `None`: there is no use in one now.
    ///
    /// Also while another is unanswered: its answer may be behind a long reply, and the server is to hear from us all
    /// the same.
    pub fn ping_at(&self) -> Option<Instant> {
        let is_useful = self.state == ConnectionState::Open && self.to_send().is_empty();
        is_useful.then(|| self.keep_alive.ping_at(self.last_sent))
    }

    /// When the connection is lost, unless something comes. `None`: nothing is expected to come.
    pub fn lost_at(&self) -> Option<Instant> {
        let oldest = self.pending.front()?;
        Some(self.keep_alive.lost_at(self.last_received, oldest.asked))
    }
}

/// The xid after this one. None is negative, for those have meanings of their own (ZOOKEEPER-3253).
const fn next_xid(last: i32) -> i32 {
    if last == i32::MAX { 1 } else { last + 1 }
}

/// The position of the request that a reply belongs to.
fn answered<T>(pending: &VecDeque<Pending<T>>, header: &Header) -> Option<usize> {
    let same = |request: &Pending<T>| request.xid == header.xid;
    let may_overtake = header.xid < 0 || header.refusal.is_some_and(Code::overtakes);
    let index = if may_overtake {
        pending.iter().position(same)
    } else {
        pending.iter().position(|request| request.xid >= 0).filter(|index| same(&pending[*index]))
    }?;
    pending[index].sent.is_some().then_some(index)
}

#[cfg(test)]
mod tests;
