//! Connections between keepers and servers, and what a session does with them.
//!
//! A connection delivers in order and late, and nothing once it is broken. The session pings when it has sent nothing
//! for a while. It gives up a connection that has been silent for a sixth of the session timeout.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use zklock::rules::contacts::silence_limit;
use zklock::session::{Change, Failure, Stat};

use crate::coverage::Kind;
use crate::servers::{Lane, Session};
use crate::state::{Event, Path, State, Time, micros};

/// A request of a client to its server.
pub(crate) enum Request {
    Create { prefixes: Vec<String>, data: Rc<[u8]>, with_stat: bool },
    Mkdir(String),
    Beat { nodes: Vec<String>, publish: Option<Rc<[u8]>> },
    Delete(String),
    Close,
    Sync,
    Children(String),
    Read(String),
    Watch(String),
}

#[derive(Clone)]
pub(crate) enum Answer {
    Accepted(usize),
    Created(Vec<String>, Option<Stat>),
    Done,
    /// The session has moved to another server. The server then closes the connection (ZOOKEEPER-710).
    Moved,
    Children(Vec<String>),
    Data(Vec<u8>, Stat),
    Failed(Failure),
}

pub(crate) enum Up {
    Connect(Option<usize>),
    Ping,
    Request(u32, Request),
    /// The client has closed the connection.
    End,
}

pub(crate) enum Down {
    Accepted(usize),
    /// The session that the client wanted to resume is over.
    Over,
    Pong,
    Reply(u32, Answer),
    Changed(u32, Change),
    /// The server has closed the connection.
    End,
}

/// What else a client expects from a request.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Wish {
    /// Nothing but the answer.
    Answer,
    /// To hear of changes.
    Watch,
    /// A node of its own.
    Creation,
}

/// Receives a reply, and the event of its watch if it has one.
#[derive(Default)]
pub(crate) struct Slot {
    pub(crate) answer: RefCell<Option<Answer>>,
    pub(crate) watch: Rc<Cell<Option<Change>>>,
}

pub(crate) struct Conn {
    pub(crate) keeper: usize,
    pub(crate) host: usize,
    pub(crate) server: usize,
    /// The session that the server has accepted on this connection.
    pub(crate) session: Option<usize>,
    /// The session timeout that this server grants.
    pub(crate) granted: Time,
    up: Lane<Up>,
    down: Lane<Down>,
    /// Messages that have arrived at the client's machine, but that its keeper has not read.
    inbox: VecDeque<Down>,
    pub(crate) server_open: bool,
    client_open: bool,
    /// Whether the client knows that the connection is lost.
    pub(crate) lost: Rc<Cell<bool>>,
    /// Requests that the server has not answered yet: the answer (`None` while the leader is asked for it), or a
    /// request that the server will answer from its own tree.
    pub(crate) slots: VecDeque<(u32, Result<Option<Answer>, Request>)>,
    /// The watches that are set on the server.
    pub(crate) watched: Vec<(Path, u32)>,
    /// The requests that the client waits for, and the watches that may still fire.
    pending: VecDeque<(u32, Wish, Rc<Slot>)>,
    watches: Vec<(u32, Rc<Cell<Option<Change>>>)>,
    handshake: Rc<Slot>,
    number: u32,
    /// When the session last sent and last heard something, on the clock that does not count sleep.
    sent: Time,
    heard: Time,
}

impl State {
    /// A keeper tries to connect to a server. Returns the connection and the slot for the answer.
    pub(crate) fn dial(
        &mut self,
        keeper: usize,
        server: usize,
        session: Option<usize>,
        asked: Time,
    ) -> (usize, Rc<Slot>) {
        let host = self.keepers[keeper].host;
        let now = self.monotonic(host);
        let handshake = Rc::new(Slot::default());
        self.conns.push(Conn {
            keeper,
            host,
            server,
            session: None,
            granted: asked.min(self.servers.all[server].limit),
            up: Lane::default(),
            down: Lane::default(),
            inbox: VecDeque::new(),
            server_open: true,
            client_open: true,
            lost: Rc::default(),
            slots: VecDeque::new(),
            watched: vec![],
            pending: VecDeque::new(),
            watches: vec![],
            handshake: Rc::clone(&handshake),
            number: 0,
            sent: now,
            heard: now,
        });
        let conn = self.conns.len() - 1;
        self.keepers[keeper].conns.push(conn);
        self.servers.all[server].conns.push(conn);
        self.send_up(conn, Up::Connect(session));
        (conn, handshake)
    }

    fn send_up(&mut self, conn: usize, message: Up) {
        let at = self.now + self.delay();
        let at = self.conns[conn].up.send(at, message);
        self.schedule(at, Event::Up(conn));
    }

    pub(crate) fn send_down(&mut self, conn: usize, message: Down) {
        let at = self.now + self.delay();
        let at = self.conns[conn].down.send(at, message);
        self.schedule(at, Event::Down(conn));
    }

    /// The client sends a request. Returns the slot for the reply.
    pub(crate) fn ask(&mut self, conn: usize, request: Request) -> Rc<Slot> {
        let slot = Rc::new(Slot::default());
        let host = self.conns[conn].host;
        let now = self.monotonic(host);
        let wish = match request {
            Request::Watch(_) => Wish::Watch,
            Request::Create { .. } => Wish::Creation,
            _ => Wish::Answer,
        };
        let beats = matches!(request, Request::Beat { .. });
        let state = &mut self.conns[conn];
        if state.client_open {
            state.number += 1;
            let number = state.number;
            state.pending.push_back((number, wish, Rc::clone(&slot)));
            state.sent = now;
            self.send_up(conn, Up::Request(number, request));
        }
        if beats {
            self.spring(Kind::AtBeat, host);
        }
        slot
    }

    /// Messages arrive at the server.
    pub(crate) fn arrive_up(&mut self, conn: usize) {
        let (host, server) = (self.conns[conn].host, self.conns[conn].server);
        while self.conns[conn].up.has_arrived(self.now) {
            let blocked = self.hosts[host].cuts[server].0.max(self.servers.all[server].frozen_until);
            if blocked > self.now {
                return self.schedule(blocked, Event::Up(conn));
            }
            let Some(message) = self.conns[conn].up.pop() else { return };
            if !self.conns[conn].server_open {
                continue;
            }
            match message {
                Up::Connect(session) => self.connect(conn, session),
                Up::Ping => {
                    self.hear_client(conn);
                    self.send_down(conn, Down::Pong);
                }
                Up::Request(number, request) => self.request(conn, number, request),
                Up::End => self.forget(conn),
            }
        }
    }

    /// Messages arrive at the client's machine, and its keeper reads them if it runs.
    pub(crate) fn arrive_down(&mut self, conn: usize) {
        let (keeper, host, server) = (self.conns[conn].keeper, self.conns[conn].host, self.conns[conn].server);
        while self.conns[conn].down.has_arrived(self.now) && self.hosts[host].asleep.is_none() {
            let blocked = self.hosts[host].cuts[server].1;
            if blocked > self.now {
                self.schedule(blocked, Event::Down(conn));
                break;
            }
            let Some(message) = self.conns[conn].down.pop() else { break };
            self.conns[conn].inbox.push_back(message);
        }
        while self.conns[conn].client_open && self.keeper_runs(keeper) {
            let Some(message) = self.conns[conn].inbox.pop_front() else { return };
            self.conns[conn].heard = self.monotonic(host);
            self.touch_keeper(keeper);
            match message {
                Down::Accepted(session) => {
                    self.conns[conn].handshake.answer.replace(Some(Answer::Accepted(session)));
                    self.schedule(self.now, Event::Look(conn));
                }
                Down::Over => {
                    self.conns[conn].handshake.answer.replace(Some(Answer::Failed(Failure::SessionOver)));
                }
                Down::Pong => {}
                Down::Reply(number, answer) => {
                    let Some((asked, wish, slot)) = self.conns[conn].pending.pop_front() else { return };
                    assert_eq!(asked, number, "replies come in order");
                    if wish == Wish::Watch && matches!(answer, Answer::Data(..)) {
                        self.conns[conn].watches.push((number, Rc::clone(&slot.watch)));
                    }
                    slot.answer.replace(Some(answer));
                }
                Down::Changed(number, change) => {
                    let watches = &mut self.conns[conn].watches;
                    if let Some(index) = watches.iter().position(|watch| watch.0 == number) {
                        watches.swap_remove(index).1.set(Some(change));
                    }
                }
                Down::End => self.lose(conn),
            }
        }
    }

    /// The session checks whether to ping, or to give up a silent connection.
    pub(crate) fn look(&mut self, conn: usize) {
        let (keeper, host) = (self.conns[conn].keeper, self.conns[conn].host);
        if !self.conns[conn].client_open || !self.keeper_runs(keeper) {
            return;
        }
        let (now, timeout) = (self.monotonic(host), self.conns[conn].granted);
        let limit = micros(silence_limit(Duration::from_micros(timeout)));
        let jitter = self.up_to(limit / 8);
        let state = &mut self.conns[conn];
        if now >= state.heard + limit {
            self.coverage.count(Kind::Silence);
            return self.lose(conn);
        }
        if now >= state.sent + timeout / 16 {
            state.sent = now;
            self.send_up(conn, Up::Ping);
        }
        let state = &self.conns[conn];
        let next = (state.sent + timeout / 16 + jitter).min(state.heard + limit) - now;
        self.after(next, Event::Look(conn));
    }

    /// The client gives the connection up as lost.
    fn lose(&mut self, conn: usize) {
        if !self.conns[conn].lost.replace(true) {
            let (keeper, server) = (self.conns[conn].keeper, self.conns[conn].server);
            self.note(|| format!("keeper {keeper} loses its connection to server {server}"));
            self.count_lost_creation(conn);
            if self.once_in(8) {
                for (_, watch) in &self.conns[conn].watches {
                    watch.set(Some(Change::Unknown));
                }
            }
        }
        self.hang_up(conn);
        self.touch_keeper(self.conns[conn].keeper);
    }

    /// Counts a creation whose reply will not come, by whether it was done.
    fn count_lost_creation(&mut self, conn: usize) {
        let state = &self.conns[conn];
        if let (true, Some(session)) = (state.pending.iter().any(|(_, wish, _)| *wish == Wish::Creation), state.session)
        {
            let done = self.servers.head.nodes().iter().any(|node| node.owner == Session::id(session));
            self.coverage.count(if done { Kind::ReplyLost } else { Kind::CreationLost });
        }
    }

    /// The client closes the connection. The messages that it has sent before still arrive.
    pub(crate) fn hang_up(&mut self, conn: usize) {
        if std::mem::replace(&mut self.conns[conn].client_open, false) {
            self.send_up(conn, Up::End);
            let keeper = self.conns[conn].keeper;
            self.keepers[keeper].conns.retain(|other| *other != conn);
            self.conns[conn].lost.set(true);
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
            self.send_down(conn, Down::End);
        }
    }

    /// The server's machine goes down, and the client is not told.
    pub(crate) fn server_vanishes(&mut self, conn: usize) {
        self.forget(conn);
    }

    /// The network breaks a connection. Only some of the messages under way still arrive.
    pub(crate) fn break_conn(&mut self, conn: usize) {
        let Conn { up, down, .. } = &mut self.conns[conn];
        up.items.truncate(self.chance.one_of(up.items.len() + 1));
        down.items.truncate(down.items.len() - self.chance.one_of(down.items.len() + 1));
        self.send_up(conn, Up::End);
        self.send_down(conn, Down::End);
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
            let live = |number: u32| {
                let mut pending = conn.pending.iter();
                conn.watches.iter().any(|(watch, cell)| *watch == number && Rc::strong_count(cell) > 1)
                    || pending.any(|(asked, wish, slot)| {
                        *asked == number && *wish == Wish::Watch && Rc::strong_count(slot) > 1
                    })
            };
            conn.server_open
                && conn.client_open
                && conn.session.is_some_and(|session| Session::id(session) != owner && contends(session))
                && conn.watched.iter().any(|(watched, number)| &**watched == path && live(*number))
        };
        self.conns.iter().filter(hears).count()
    }
}
