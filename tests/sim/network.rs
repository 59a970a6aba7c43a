//! Connections between keepers and servers.
//!
//! A connection carries bytes, in order and late, in pieces, and none once it is broken.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::rc::{Rc, Weak};
use std::time::Duration;

use zklock::rules::instant::Instant;
use zklock::rules::keep_alive::silence_limit;
use zklock::zookeeper::session::channel::Channel;

use crate::chance::LATEST;
use crate::coverage::Kind;
use crate::servers::{Lane, Session};
use crate::state::{Event, MS, Path, State, Time, instant, micros};
use crate::wire::{Answer, Packets, Request};
use crate::world::Shared;

/// What is under way.
pub(crate) enum Piece {
    Bytes(Vec<u8>),
    /// The sender has closed the connection, or has gone.
    End,
}

#[derive(Default)]
pub(crate) struct Conn {
    pub(crate) keeper: usize,
    pub(crate) host: usize,
    pub(crate) server: usize,
    /// The session that the server has accepted on this connection, and the timeout that it grants.
    pub(crate) session: Option<usize>,
    pub(crate) granted: Time,
    up: Lane<Piece>,
    down: Lane<Piece>,
    /// What the server has read, and whether the first request was in it.
    packets: Packets,
    is_greeted: bool,
    /// What has arrived at the client's machine, and its keeper has not read.
    inbox: VecDeque<u8>,
    has_ended: bool,
    /// Until when the client's socket takes no more bytes.
    full_until: Time,
    pub(crate) server_open: bool,
    pub(crate) client_open: bool,
    /// Requests that the server has not answered yet, by xid: the answer (`None` while the leader is asked for it), or
    /// a request that the server will answer from its own tree.
    pub(crate) slots: VecDeque<(i32, Slot)>,
    /// The nodes with watches that are set on the server.
    pub(crate) watched: Vec<Path>,
    /// The nodes that the last list sent over it has shown.
    pub(crate) shown: Vec<Path>,
    /// The nodes that the server hides: it lacks them, and the client has known them before it connected.
    pub(crate) hidden: Vec<Path>,
    /// The watches that the client still waits for, or has asked for. A mark lives as long as the future.
    pub(crate) awaited: Vec<(String, Weak<()>)>,
    /// How many creations the client has asked for and has no reply to.
    pub(crate) creating: usize,
}

/// The answer to a request.
pub(crate) enum Slot {
    /// The leader is asked.
    Asked,
    Answered(Answer),
    /// The session has moved to another server. This one then closes the connection (ZOOKEEPER-710).
    Moved,
    /// The server will look it up when the turn of this request comes.
    Local(Request),
}

impl State {
    /// A keeper connects to a server.
    pub(crate) fn dial(&mut self, keeper: usize, server: usize) -> usize {
        self.conns.push(Conn {
            keeper,
            host: self.keepers[keeper].host,
            server,
            server_open: true,
            client_open: true,
            ..Conn::default()
        });
        let conn = self.conns.len() - 1;
        self.keepers[keeper].conns.push(conn);
        self.servers.all[server].conns.push(conn);
        conn
    }

    fn send_up(&mut self, conn: usize, piece: Piece) {
        let at = self.now + self.chance.delay();
        let at = self.conns[conn].up.send(at, piece);
        self.schedule(at, Event::Up(conn));
    }

    fn send_piece_down(&mut self, conn: usize, piece: Piece) {
        let at = self.now + self.chance.delay();
        let at = self.conns[conn].down.send(at, piece);
        self.schedule(at, Event::Down(conn));
    }

    /// Now and then a packet arrives in two pieces.
    fn tear(&mut self, mut bytes: Vec<u8>) -> impl Iterator<Item = Piece> + use<> {
        let rest = self.chance.once_in(32).then(|| bytes.split_off(self.chance.one_of(bytes.len()) + 1));
        [Some(bytes), rest].into_iter().flatten().map(Piece::Bytes)
    }

    pub(crate) fn send_down(&mut self, conn: usize, bytes: Vec<u8>) {
        self.tear(bytes).for_each(|piece| self.send_piece_down(conn, piece));
    }

    /// Bytes arrive at the server.
    pub(crate) fn arrive_up(&mut self, conn: usize) {
        let (host, server) = (self.conns[conn].host, self.conns[conn].server);
        while self.conns[conn].up.has_arrived(self.now) {
            let blocked = self.hosts[host].cuts[server].0.max(self.servers.all[server].frozen_until);
            if blocked > self.now {
                return self.schedule(blocked, Event::Up(conn));
            }
            match self.conns[conn].up.pop() {
                Some(Piece::Bytes(bytes)) => self.conns[conn].packets.push(&bytes),
                Some(Piece::End) if self.conns[conn].server_open => self.forget(conn),
                _ => {}
            }
            self.read_packets(conn);
        }
    }

    fn read_packets(&mut self, conn: usize) {
        while self.conns[conn].server_open {
            let Conn { packets, is_greeted, .. } = &mut self.conns[conn];
            if !*is_greeted {
                match packets.next_hello() {
                    Ok(Some(hello)) => {
                        *is_greeted = true;
                        self.greet(conn, &hello);
                    }
                    Ok(None) => return,
                    Err(why) => return self.fail(format!("a first request that no server reads: {why}")),
                }
            } else {
                match packets.next_request() {
                    Ok(Some((xid, request))) => self.request(conn, xid, request),
                    Ok(None) => return,
                    Err(why) => return self.fail(format!("a request that no server reads: {why}")),
                }
            }
        }
    }

    /// Bytes arrive at the client's machine.
    pub(crate) fn arrive_down(&mut self, conn: usize) {
        let (keeper, host, server) = (self.conns[conn].keeper, self.conns[conn].host, self.conns[conn].server);
        while self.conns[conn].down.has_arrived(self.now) && self.hosts[host].asleep.is_none() {
            let blocked = self.hosts[host].cuts[server].1;
            if blocked > self.now {
                return self.schedule(blocked, Event::Down(conn));
            }
            let state = &mut self.conns[conn];
            match state.down.pop() {
                Some(Piece::Bytes(bytes)) if !state.has_ended => state.inbox.extend(bytes),
                Some(Piece::End) => state.has_ended = true,
                // The server has sent it before it knew of the end.
                _ => {}
            }
            if state.client_open {
                self.touch_keeper(keeper);
            }
        }
    }

    /// The client finds that the connection is lost.
    pub(crate) fn lose(&mut self, conn: usize) {
        let Conn { keeper, server, has_ended, creating, session, .. } = self.conns[conn];
        self.note(|| format!("keeper {keeper} loses its connection to server {server}"));
        if !has_ended {
            self.coverage.count(Kind::Silence);
            // Under a short timeout, chance alone can do that: three messages that are late, one after the other.
            let Conn { host, granted, .. } = self.conns[conn];
            self.hosts[host].was_silent |=
                silence_limit(Duration::from_micros(granted)) < Duration::from_micros(3 * LATEST);
        }
        // A creation whose reply will not come is counted by whether it was done.
        if let Some(session) = session.filter(|_| creating > 0) {
            let done = self.servers.head.nodes().iter().any(|node| node.owner == Session::id(session));
            self.coverage.count(if done { Kind::ReplyLost } else { Kind::CreationLost });
        }
    }

    /// The client closes the connection. What it has sent before still arrives.
    pub(crate) fn hang_up(&mut self, conn: usize) {
        if std::mem::replace(&mut self.conns[conn].client_open, false) {
            self.send_up(conn, Piece::End);
            let keeper = self.conns[conn].keeper;
            self.keepers[keeper].conns.retain(|other| *other != conn);
        }
    }

    /// The server forgets the connection.
    fn forget(&mut self, conn: usize) {
        let state = &mut self.conns[conn];
        state.server_open = false;
        state.slots.clear();
        state.watched.clear();
        let server = state.server;
        self.servers.all[server].conns.retain(|other| *other != conn);
    }

    pub(crate) fn server_hangs_up(&mut self, conn: usize) {
        if self.conns[conn].server_open {
            self.forget(conn);
            self.send_piece_down(conn, Piece::End);
        }
    }

    /// The server's machine goes down, and the client is not told.
    pub(crate) fn server_vanishes(&mut self, conn: usize) {
        self.forget(conn);
    }

    /// The network breaks a connection. Only some of what is under way still arrives, and perhaps only a part of a
    /// packet.
    pub(crate) fn break_conn(&mut self, conn: usize) {
        let Conn { up, down, .. } = &mut self.conns[conn];
        for lane in [up, down] {
            lane.items.truncate(self.chance.one_of(lane.items.len() + 1));
            if let Some((_, Piece::Bytes(bytes))) = lane.items.back_mut()
                && self.chance.once_in(2)
            {
                bytes.truncate(self.chance.one_of(bytes.len() + 1));
            }
        }
        self.send_up(conn, Piece::End);
        self.send_piece_down(conn, Piece::End);
    }

    /// How many contenders would hear of the end of this node, not counting its owner. A contender that has lost its
    /// own node in this queue does not count: it may not know that yet, or may still be withdrawing from other queues.
    pub(crate) fn watchers(&self, path: &str, owner: i64) -> usize {
        let nodes = self.servers.head.nodes();
        let queue = path.rsplit_once('/').map(|(lock, _)| lock);
        let in_queue = |node: &Path| node.rsplit_once('/').map(|(lock, _)| lock) == queue;
        let contends =
            |session: usize| nodes.iter().any(|node| node.owner == Session::id(session) && in_queue(&node.path));
        let hears = |conn: &&Conn| {
            conn.server_open
                && conn.client_open
                && conn.session.is_some_and(|session| Session::id(session) != owner && contends(session))
                && conn.watched.iter().any(|watched| &**watched == path)
                && conn.awaited.iter().any(|(awaited, mark)| awaited == path && mark.strong_count() > 0)
        };
        self.conns.iter().filter(hears).count()
    }
}

/// The client's end of a connection.
pub(crate) struct SimChannel {
    pub(crate) state: Shared,
    pub(crate) keeper: usize,
    pub(crate) conn: usize,
}

impl fmt::Display for SimChannel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "server {}", self.state.borrow().conns[self.conn].server)
    }
}

impl Channel for SimChannel {
    fn now(&self) -> Instant {
        instant(self.state.borrow().now)
    }

    fn read(&self, bytes: &mut [u8]) -> io::Result<usize> {
        let conn = &mut self.state.borrow_mut().conns[self.conn];
        if conn.inbox.is_empty() && !conn.has_ended {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        io::Read::read(&mut conn.inbox, bytes)
    }

    fn write(&self, bytes: &[u8]) -> io::Result<usize> {
        let mut state = self.state.borrow_mut();
        let now = state.now;
        if state.conns[self.conn].full_until > now {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let mut count = bytes.len();
        if state.chance.once_in(64) {
            count = 1 + state.chance.one_of(count);
            let wait = state.chance.up_to(5 * MS);
            state.conns[self.conn].full_until = now + wait;
        }
        state.tear(bytes[..count].to_vec()).for_each(|piece| state.send_up(self.conn, piece));
        Ok(count)
    }

    fn round(&self) -> u64 {
        self.state.borrow().keepers[self.keeper].turn
    }

    fn poll_again(&self) {
        self.state.borrow_mut().touch_keeper(self.keeper);
    }

    fn wake_at(&self, at: Instant) {
        self.state.borrow_mut().wake_keeper_at(self.keeper, micros(at.since_boot()));
    }

    fn wake_on_bytes(&self, unsent: bool) {
        // What comes wakes the keeper in any case.
        if unsent {
            let mut state = self.state.borrow_mut();
            let full_until = state.conns[self.conn].full_until;
            state.wake_keeper_at(self.keeper, full_until);
        }
    }

    fn distrust(&self) {
        let mut state = self.state.borrow_mut();
        let Conn { server, ref hidden, .. } = state.conns[self.conn];
        let kind = if hidden.is_empty() { Kind::SeenThrough } else { Kind::FoundLacking };
        state.coverage.count(kind);
        state.keepers[self.keeper].distrusted = Some(server);
        state.note(|| format!("keeper {} distrusts server {server}", self.keeper));
    }
}

impl Drop for SimChannel {
    fn drop(&mut self) {
        // At the end of a run, everything may be dropped at once.
        if let Ok(mut state) = RefCell::try_borrow_mut(&self.state) {
            state.hang_up(self.conn);
        }
    }
}

/// A mark that a client waits for a change of this node.
pub(crate) fn mark(conn: &mut Conn, path: &str) -> Rc<()> {
    let mark = Rc::new(());
    conn.awaited.retain(|(_, mark)| mark.strong_count() > 0);
    conn.awaited.push((path.to_owned(), Rc::downgrade(&mark)));
    mark
}
