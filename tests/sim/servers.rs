//! The ensemble: a leader with a log of transactions, and servers that follow it late.
//!
//! It does what ZooKeeper promises to its clients, and no more:
//! - A session expires no earlier than its timeout after the leader last heard of it, and maybe later.
//! - Each server grants the timeout that is asked for, up to a limit of its own. The leader counts with the timeout
//!   that was granted over the connection that it heard of last; a new leader begins with the timeout that the session
//!   was created with (SessionTrackerImpl).
//! - Every half tick, a server tells the leader which sessions it has heard from. A request that it forwards does not
//!   count (Learner.ping, LearnerHandler).
//! - A server that is cut off from the leader still answers reads and pings for a while.
//! - A client sees a watch event before it sees the new state.
//!
//! And three things that it should not do: a follower may miss a deletion for good (ZOOKEEPER-5010), one that follows a
//! new leader may lack a node for good, and all servers may come back with an older copy of their data.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::rc::Rc;

use zklock::rules::guard::Stage;
use zklock::zookeeper::session::NodeStat;

use crate::coverage::Kind;
use crate::network::{Conn, Slot};
use crate::state::{Event, MS, Path, State, Time};
use crate::tree::{Effect, Node, Tree};
use crate::wire::{
    self, Answer, BAD_VERSION, Done, Hello, NO_NODE, NODE_EXISTS, NOT_EMPTY, Operation, Request, SESSION_EXPIRED,
    SESSION_MOVED, THROTTLED,
};

/// Messages in the order in which they were sent, each with the time of its arrival.
pub(crate) struct Lane<T> {
    pub(crate) items: VecDeque<(Time, T)>,
    pub(crate) last: Time,
}

impl<T> Default for Lane<T> {
    fn default() -> Self {
        Self { items: VecDeque::new(), last: 0 }
    }
}

impl<T> Lane<T> {
    /// Sends a message. Returns the time of its arrival.
    pub(crate) fn send(&mut self, at: Time, item: T) -> Time {
        self.last = self.last.max(at);
        self.items.push_back((self.last, item));
        self.last
    }

    /// Whether the first message has arrived.
    pub(crate) fn has_arrived(&self, now: Time) -> bool {
        self.items.front().is_some_and(|(at, _)| *at <= now)
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        self.items.pop_front().map(|(_, item)| item)
    }
}

/// A committed transaction. A request that failed has one as well, without effects.
struct Transaction {
    effects: Vec<Effect>,
    /// The connection over which it was requested, the xid of the request, and the answer.
    origin: Option<Origin>,
    /// The session that it closes.
    closes: Option<usize>,
}

type Origin = (usize, i32, Slot);

enum ToLeader {
    /// A client wants a new session, or wants to resume one.
    Open {
        conn: usize,
        session: Option<usize>,
    },
    Write {
        conn: usize,
        xid: i32,
        session: usize,
        request: Request,
    },
    Sync {
        conn: usize,
        xid: i32,
        path: String,
    },
    /// The sessions that the server has heard from, and the timeouts that they were granted.
    Heard(Vec<(usize, Time)>),
}

enum FromLeader {
    /// All transactions in the log before this position are committed.
    Commit(usize),
    Opened {
        conn: usize,
        session: Option<usize>,
    },
    Synced {
        conn: usize,
        xid: i32,
        path: String,
    },
}

#[derive(Default)]
pub(crate) struct Server {
    pub(crate) tree: Tree,
    applied: usize,
    to_leader: Lane<ToLeader>,
    from_leader: Lane<FromLeader>,
    /// The sessions that it has heard from and not yet told the leader of, with their timeouts.
    heard: Vec<(usize, Time)>,
    telling: bool,
    phase: Time,
    /// The longest session timeout that it grants.
    pub(crate) limit: Time,
    pub(crate) conns: Vec<usize>,
    /// Until when it accepts no clients.
    pub(crate) closed_until: Time,
    /// Until when it is cut off from the leader.
    pub(crate) isolated_until: Time,
    /// Until when it does nothing.
    pub(crate) frozen_until: Time,
    /// How much later than usual it hears of commits.
    pub(crate) lag: Time,
    /// How many of the next deletions of contenders' nodes it misses.
    pub(crate) misses: u32,
    /// The contenders' nodes that it lacks, as a follower. It shows them nevertheless to clients that have not known them
    /// before they connected: those could not find out.
    pub(crate) lacks: Vec<Path>,
    /// Whether it was the leader and has not noticed that another server is now.
    deposed: bool,
}

#[derive(Default)]
pub(crate) struct Session {
    pub(crate) host: usize,
    pub(crate) alive: bool,
    /// How many transactions there were before it was created.
    opened_at: usize,
    /// The timeout that it was created with, and the shortest one that its client knows of.
    created: Time,
    pub(crate) known: Time,
    deadline: Time,
    /// When it would expire if the leader counted with the timeout that the client knows of.
    pub(crate) relied_on: Time,
    /// If it has expired because of a timeout that its client did not know of: until when the client may rely on it.
    pub(crate) unheard_until: Time,
    /// The server that last opened or resumed it.
    server: usize,
    /// The nodes that its client certainly knows of.
    knows: Vec<Path>,
}

impl Session {
    /// The id by which clients know the session with this index.
    pub(crate) fn id(index: usize) -> i64 {
        0x0100_0000_0000_0000 + index as i64
    }

    /// The password that a client needs to resume the session with this index.
    fn password(index: usize) -> [u8; 16] {
        (Self::id(index) as u128 * 0x1_0001).to_be_bytes()
    }
}

#[derive(Default)]
pub(crate) struct Servers {
    pub(crate) all: Vec<Server>,
    pub(crate) leader: usize,
    log: Vec<Transaction>,
    /// The positions in the log of the transactions that were lost. No server knows them any more.
    pub(crate) lost: Range<usize>,
    /// The nodes that had been deleted, and came back with an older copy of the data.
    pub(crate) raised: Vec<Path>,
    /// The nodes, as the leader knows them.
    pub(crate) head: Tree,
    /// When the leader has deleted a node.
    pub(crate) gone: HashMap<Path, Time>,
    /// When a server heard that a node had been deleted, and the session that it belonged to.
    pub(crate) departures: Vec<(Time, i64)>,
    pub(crate) sessions: Vec<Session>,
    /// The session timeout that contenders ask for. No server grants more.
    pub(crate) timeout: Time,
    pub(crate) tick: Time,
    /// By how much the leader's clock gains on those of the hosts, in parts per million.
    pub(crate) gain: Time,
}

impl Servers {
    pub(crate) fn new(timeout: Time, tick: Time, phases: &[Time], limits: &[Time]) -> Self {
        let server = |(phase, limit): (&Time, &Time)| Server { phase: *phase, limit: *limit, ..Server::default() };
        Self { all: phases.iter().zip(limits).map(server).collect(), timeout, tick, ..Self::default() }
    }

    /// How long this time on the leader's clock lasts for all others.
    fn by_the_leader(&self, time: Time) -> Time {
        time - time * self.gain / 1_000_000
    }

    pub(crate) fn session_of(&self, id: i64) -> usize {
        (id - Session::id(0)) as usize
    }

    /// Whether a transaction after the one and before the other has deleted this node.
    pub(crate) fn deleted_between(&self, after: i64, before: i64, path: &str) -> bool {
        let deletes = |effect: &Effect| matches!(effect, Effect::Delete(deleted) if &**deleted == path);
        let mut transactions = (1..before).zip(self.known()).filter(|(zxid, _)| *zxid > after);
        transactions.any(|(_, transaction)| transaction.is_some_and(|known| known.effects.iter().any(deletes)))
    }

    /// How many transactions there were.
    pub(crate) fn transactions(&self) -> usize {
        self.log.len()
    }

    /// The transactions in their order, without those that were lost.
    fn known(&self) -> impl Iterator<Item = Option<&Transaction>> {
        let known = |(position, transaction)| Some(transaction).filter(|_| !self.lost.contains(&position));
        self.log.iter().enumerate().map(known)
    }

    /// Whether a server that has applied this many transactions knows the one with this zxid, and all before it.
    fn knows(&self, applied: usize, zxid: i64) -> bool {
        zxid <= applied as i64
            && !(1..).zip(self.known().take(applied)).any(|(known, lost)| known == zxid && lost.is_none())
    }
}

impl State {
    pub(crate) fn serves(&self, server: usize) -> bool {
        self.servers.all[server].closed_until <= self.now
    }

    fn send_to_leader(&mut self, server: usize, message: ToLeader) {
        let at = if server == self.servers.leader { self.now } else { self.now + self.chance.delay() };
        let at = self.servers.all[server].to_leader.send(at, message);
        self.schedule(at, Event::Forward(server));
    }

    fn send_from_leader(&mut self, server: usize, message: FromLeader) {
        let at = self.now + 50 + self.chance.delay() + self.servers.all[server].lag;
        let at = self.servers.all[server].from_leader.send(at, message);
        self.schedule(at, Event::Commit(server));
    }

    /// Until when nothing passes between this server and the leader; `None` if messages pass now.
    fn blocked_until(&self, server: usize) -> Option<Time> {
        let blocked = self.servers.all[server].isolated_until.max(self.servers.all[server].frozen_until);
        (blocked > self.now).then_some(blocked)
    }

    pub(crate) fn forward(&mut self, server: usize) {
        while self.servers.all[server].to_leader.has_arrived(self.now) {
            if let Some(until) = self.blocked_until(server) {
                return self.schedule(until, Event::Forward(server));
            }
            let Some(message) = self.servers.all[server].to_leader.pop() else { return };
            match message {
                ToLeader::Open { conn, session: None } => {
                    let index = self.servers.sessions.len();
                    let (host, created) = (self.conns[conn].host, self.conns[conn].granted);
                    let deadline = self.now + created;
                    self.servers.sessions.push(Session {
                        host,
                        alive: true,
                        opened_at: self.servers.log.len(),
                        created,
                        known: created,
                        deadline,
                        relied_on: deadline,
                        server,
                        ..Session::default()
                    });
                    self.schedule(deadline, Event::Expire(index));
                    self.commit(Transaction { effects: vec![], origin: None, closes: None });
                    self.send_from_leader(server, FromLeader::Opened { conn, session: Some(index) });
                }
                ToLeader::Open { conn, session: Some(index) } => {
                    let alive = self.servers.sessions[index].alive;
                    if alive {
                        self.servers.sessions[index].server = server;
                        self.heard_of(index, self.conns[conn].granted);
                    }
                    self.send_from_leader(server, FromLeader::Opened { conn, session: alive.then_some(index) });
                }
                ToLeader::Sync { conn, xid, path } => {
                    self.send_from_leader(server, FromLeader::Synced { conn, xid, path });
                }
                ToLeader::Heard(sessions) => {
                    for (session, timeout) in sessions {
                        self.heard_of(session, timeout);
                    }
                }
                ToLeader::Write { conn, xid, session, request } => {
                    self.write(server, (conn, xid), session, request);
                }
            }
        }
    }

    /// The leader hears that a session is alive.
    fn heard_of(&mut self, index: usize, timeout: Time) {
        let known = self.servers.by_the_leader(self.servers.sessions[index].known);
        let deadline = self.now + self.servers.by_the_leader(timeout);
        let session = &mut self.servers.sessions[index];
        let before = std::mem::replace(&mut session.deadline, deadline);
        session.relied_on = self.now + known;
        if deadline < before {
            self.schedule(deadline, Event::Expire(index));
        }
    }

    pub(crate) fn expire(&mut self, index: usize) {
        let session = &self.servers.sessions[index];
        if !session.alive {
            return;
        }
        if session.deadline > self.now {
            let deadline = session.deadline;
            return self.schedule(deadline, Event::Expire(index));
        }
        // A leader checks its sessions once per tick, or later if it is busy.
        if session.deadline == self.now && self.chance.once_in(2) {
            let late = self.chance.up_to(self.servers.tick);
            return self.after(late + 1, Event::Expire(index));
        }
        let (host, relied_on) = (session.host, session.relied_on);
        self.note(|| format!("session {index} of host {host} expires"));
        self.coverage.count(Kind::Expiry);
        if relied_on > self.now {
            self.servers.sessions[index].unheard_until = relied_on;
            for host in self.machine(host) {
                self.schedule(relied_on + 1, Event::Verify(host));
            }
        }
        self.close_session(index, None);
        for host in self.machine(host) {
            self.verify(host);
        }
    }

    /// Ends a session and deletes all nodes that it owns.
    pub(crate) fn close_session(&mut self, index: usize, origin: Option<Origin>) {
        self.servers.sessions[index].alive = false;
        let owner = Session::id(index);
        let owned = self.servers.head.nodes().iter().filter(|node| node.owner == owner);
        let effects = owned.map(|node| Effect::Delete(Rc::clone(&node.path))).collect();
        self.commit(Transaction { effects, origin, closes: Some(index) });
    }

    fn write(&mut self, server: usize, (conn, xid): (usize, i32), session: usize, request: Request) {
        let owner = &self.servers.sessions[session];
        let (alive, moved) = (owner.alive, owner.server != server);
        let (operations, is_multi) = match request {
            Request::Write { operations, is_multi } => (Some(operations), is_multi),
            _ => (None, false),
        };
        let count = operations.as_ref().map_or(1, Vec::len);
        let refusal = if !alive {
            Some(Slot::Answered(Answer::written(&Err((0, SESSION_EXPIRED)), count, is_multi)))
        } else if moved && is_multi && self.chance.once_in(2) {
            // Servers before 3.6.
            Some(Slot::Answered(Answer::written(&Err((0, SESSION_MOVED)), count, is_multi)))
        } else if moved {
            Some(Slot::Moved)
        } else if self.chance.once_in(500) && self.faulty {
            self.coverage.count(Kind::Throttled);
            Some(Slot::Answered(Answer::error(THROTTLED)))
        } else {
            None
        };
        if let Some(slot) = refusal {
            return self.commit(Transaction { effects: vec![], origin: Some((conn, xid, slot)), closes: None });
        }
        let (host, owner) = (self.conns[conn].host, Session::id(session));
        let is_own = |path: &str| self.servers.head.get(path).is_some_and(|node| node.owner == owner);
        let has = |of: &dyn Fn(&Operation) -> bool| operations.iter().flatten().any(of);
        let creates = has(&|operation| matches!(operation, Operation::Create { is_ephemeral: true, .. }));
        let releases = match &operations {
            Some(_) => has(&|operation| matches!(operation, Operation::Delete(path) if is_own(path))),
            None => self.servers.head.nodes().iter().any(|node| node.owner == owner),
        };
        let records = has(&Operation::is_of_record);
        let holders: Vec<_> = operations.iter().flatten().filter_map(Operation::holder_record).collect();
        let mut is_done = true;
        match operations {
            Some(operations) => {
                let outcome = self.evaluate(owner, operations);
                is_done = outcome.is_ok();
                let (effects, results) = match outcome {
                    Ok((effects, results)) => (effects, Ok(results)),
                    Err(failed) => (vec![], Err(failed)),
                };
                let slot = Slot::Answered(Answer::written(&results, count, is_multi));
                self.commit(Transaction { effects, origin: Some((conn, xid, slot)), closes: None });
            }
            None => {
                self.note(|| format!("host {host} closes session {session}"));
                self.close_session(session, Some((conn, xid, Slot::Answered(Answer::done()))));
            }
        }
        if records {
            self.check_record(host);
        }
        if is_done {
            self.check_holder_records(host, holders);
        }
        if releases && is_done {
            self.check_recorded(host);
            self.check_released(host);
        }
        if releases {
            // What was sent in a session that was lost while waiting may come when the command runs in the next one.
            if self.hosts[host].grant.as_ref().is_none_or(|grant| grant.session == owner) {
                self.check_release(host);
                let state = &mut self.hosts[host];
                state.is_kept_to_the_end |= is_done && state.guard.stage == Stage::Empty && !state.stopped_by_us;
            }
            self.spring(Kind::AtRelease, host);
        }
        if creates {
            self.check_create(conn, owner);
            self.spring(Kind::AtCreate, host);
        }
    }

    /// Evaluates a write. Returns its effects and its results, or which operation fails and why.
    fn evaluate(&mut self, session: i64, operations: Vec<Operation>) -> Result<(Vec<Effect>, Vec<Done>), (usize, i32)> {
        let head = &self.servers.head;
        let (zxid, clock) = (self.servers.log.len() as i64 + 1, self.servers_clock());
        let (mut effects, mut results) = (vec![], vec![]);
        for (index, operation) in operations.into_iter().enumerate() {
            let exists = |path: &str| head.get(path).ok_or((index, NO_NODE));
            match operation {
                Operation::Create { path, data, is_ephemeral, is_sequential, kind } => {
                    let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
                    let counter = if parent.is_empty() { 0 } else { exists(parent)?.counter };
                    let path =
                        if is_sequential { format!("{path}{:010}", counter + results.len() as i32) } else { path };
                    if head.get(&path).is_some() {
                        return Err((index, NODE_EXISTS));
                    }
                    let owner = if is_ephemeral { session } else { 0 };
                    let node = Node::new(&path, data, owner, zxid, clock);
                    results.push(Done::Created { path, stat: node.stat(), kind });
                    effects.push(Effect::Create(node));
                }
                Operation::Delete(path) => {
                    let node = exists(&path)?;
                    if head.children(&path).next().is_some() {
                        return Err((index, NOT_EMPTY));
                    }
                    effects.push(Effect::Delete(Rc::clone(&node.path)));
                    results.push(Done::Deleted);
                }
                Operation::Set(path, data, version) => {
                    let node = exists(&path)?;
                    if ![-1, node.version].contains(&version) {
                        return Err((index, BAD_VERSION));
                    }
                    effects.push(Effect::Set { path: Rc::clone(&node.path), data, written: clock });
                    results.push(Done::Set(NodeStat { written: clock, ..node.stat() }));
                }
                Operation::Check(path) => {
                    exists(&path)?;
                    results.push(Done::Checked);
                }
            }
        }
        Ok((effects, results))
    }

    fn commit(&mut self, transaction: Transaction) {
        for effect in &transaction.effects {
            match effect {
                Effect::Create(node) => {
                    let (path, zxid) = (Rc::clone(&node.path), node.czxid);
                    self.note(|| format!("created {path}, czxid {zxid}"));
                }
                Effect::Delete(path) => {
                    let path = Rc::clone(path);
                    self.check_wakes(&path);
                    self.servers.gone.insert(Rc::clone(&path), self.now);
                    self.servers.all.iter_mut().for_each(|server| server.lacks.retain(|lacked| *lacked != path));
                    self.note(|| format!("deleted {path}"));
                }
                Effect::Set { path, .. } => {
                    let path = Rc::clone(path);
                    self.note(|| format!("data of {path} set"));
                }
            }
            self.servers.head.apply(effect);
        }
        self.servers.log.push(transaction);
        for server in 0..self.servers.all.len() {
            self.send_from_leader(server, FromLeader::Commit(self.servers.log.len()));
        }
    }

    /// Messages from the leader arrive at a server.
    pub(crate) fn hear_leader(&mut self, server: usize) {
        while self.servers.all[server].from_leader.has_arrived(self.now) {
            if let Some(until) = self.blocked_until(server) {
                return self.schedule(until, Event::Commit(server));
            }
            match self.servers.all[server].from_leader.pop() {
                Some(FromLeader::Commit(end)) => self.apply_log(server, end),
                Some(FromLeader::Synced { conn, xid, path }) => {
                    self.answer(conn, xid, Slot::Answered(Answer::synced(&path)));
                }
                Some(FromLeader::Opened { conn, session }) => self.opened(conn, session),
                None => return,
            }
        }
    }

    fn apply_log(&mut self, server: usize, end: usize) {
        for position in self.servers.all[server].applied..end {
            let mut changes = vec![];
            let transaction = &self.servers.log[position];
            let follows = server != self.servers.leader;
            for effect in &transaction.effects {
                let state = &mut self.servers.all[server];
                if let Effect::Delete(path) = effect
                    && follows
                    && state.misses > 0
                    && state.tree.get(path).is_some_and(|node| node.owner != 0)
                    && !self.remade.iter().any(|remade| **remade == **path)
                {
                    state.misses -= 1;
                    continue;
                }
                if let Effect::Delete(path) = effect
                    && let Some(node) = state.tree.get(path)
                {
                    self.servers.departures.push((self.now, node.owner));
                }
                state.tree.apply(effect);
                match effect {
                    Effect::Delete(path) => changes.push((Rc::clone(path), true)),
                    Effect::Set { path, .. } => changes.push((Rc::clone(path), false)),
                    Effect::Create(_) => {}
                }
            }
            let closes = transaction.closes;
            let conns = &self.conns;
            let origin = self.servers.log[position].origin.take_if(|(conn, ..)| conns[*conn].server == server);
            self.servers.all[server].applied = position + 1;
            for (path, is_deleted) in changes {
                self.fire(server, &path, is_deleted);
            }
            if let Some((conn, xid, slot)) = origin {
                self.answer(conn, xid, slot);
            }
            if let Some(session) = closes {
                for conn in self.servers.all[server].conns.clone() {
                    if self.conns[conn].session == Some(session) {
                        self.server_hangs_up(conn);
                    }
                }
            }
        }
    }

    fn fire(&mut self, server: usize, path: &str, is_deleted: bool) {
        for conn in self.servers.all[server].conns.clone() {
            let watched = &mut self.conns[conn].watched;
            if let Some(index) = watched.iter().position(|watched| &**watched == path) {
                watched.swap_remove(index);
                self.send_down(conn, wire::event(path, is_deleted));
            }
        }
    }

    /// A client asks for a new session, or to resume one.
    pub(crate) fn greet(&mut self, conn: usize, hello: &Hello) {
        let server = self.conns[conn].server;
        // A client that has seen more than the server knows is turned away.
        if !self.serves(server) || !self.servers.knows(self.servers.all[server].applied, hello.last_zxid) {
            return self.server_hangs_up(conn);
        }
        self.conns[conn].granted = hello.timeout.min(self.servers.all[server].limit);
        let session = (hello.session != 0).then(|| self.servers.session_of(hello.session));
        if session.is_some_and(|session| Session::password(session) != *hello.password) {
            return self.fail(format!("session {:#x} is resumed with a wrong password", hello.session));
        }
        self.send_to_leader(server, ToLeader::Open { conn, session });
    }

    fn opened(&mut self, conn: usize, session: Option<usize>) {
        if !self.conns[conn].server_open {
            return;
        }
        let Some(session) = session else {
            self.send_down(conn, wire::welcome(None));
            return self.server_hangs_up(conn);
        };
        // A second connection of a session replaces the first.
        let server = self.conns[conn].server;
        for other in self.servers.all[server].conns.clone() {
            if other != conn && self.conns[other].session == Some(session) {
                self.server_hangs_up(other);
            }
        }
        self.conns[conn].session = Some(session);
        if server != self.servers.leader {
            let (lacks, knows) = (&self.servers.all[server].lacks, &self.servers.sessions[session].knows);
            self.conns[conn].hidden = lacks.iter().filter(|node| knows.contains(node)).cloned().collect();
        }
        let granted = self.conns[conn].granted;
        self.send_down(conn, wire::welcome(Some((Session::id(session), granted, Session::password(session)))));
    }

    /// A request arrives.
    pub(crate) fn request(&mut self, conn: usize, xid: i32, request: Request) {
        let (server, session) = (self.conns[conn].server, self.conns[conn].session);
        let Some(session) = session else { return self.fail("a request before there is a session") };
        self.hear_client(conn);
        let slot = match request {
            Request::Children(_) | Request::Data { .. } => Slot::Local(request),
            // Some servers answer it ahead of the requests before it.
            Request::Ping if self.chance.once_in(2) => return self.reply(conn, xid, &Answer::done()),
            Request::Ping => Slot::Answered(Answer::done()),
            Request::Sync(path) if self.servers.all[server].deposed => Slot::Answered(Answer::synced(&path)),
            Request::Sync(_) if self.faulty && self.chance.once_in(500) => Slot::Answered(Answer::error(THROTTLED)),
            Request::Sync(path) => {
                self.send_to_leader(server, ToLeader::Sync { conn, xid, path });
                Slot::Asked
            }
            Request::Write { .. } | Request::Close => {
                self.send_to_leader(server, ToLeader::Write { conn, xid, session, request });
                Slot::Asked
            }
        };
        self.conns[conn].slots.push_back((xid, slot));
        self.answer_in_order(conn);
    }

    fn reply(&mut self, conn: usize, xid: i32, answer: &Answer) {
        let zxid = self.servers.all[self.conns[conn].server].applied as i64;
        self.send_down(conn, wire::reply(xid, zxid, answer));
    }

    /// A server hears from a client.
    pub(crate) fn hear_client(&mut self, conn: usize) {
        let (server, Some(session)) = (self.conns[conn].server, self.conns[conn].session) else { return };
        let timeout = self.conns[conn].granted;
        if server == self.servers.leader {
            return self.heard_of(session, timeout);
        }
        let half_tick = self.servers.tick / 2;
        let state = &mut self.servers.all[server];
        state.heard.retain(|heard| heard.0 != session);
        state.heard.push((session, timeout));
        if !std::mem::replace(&mut state.telling, true) {
            let at = self.now + half_tick - (self.now + state.phase) % half_tick;
            self.schedule(at, Event::Tell(server));
        }
    }

    pub(crate) fn tell(&mut self, server: usize) {
        if let Some(until) = self.blocked_until(server) {
            // The leader's pings have queued up by then, and are answered at once.
            return self.schedule(until, Event::Tell(server));
        }
        self.servers.all[server].telling = false;
        let heard = std::mem::take(&mut self.servers.all[server].heard);
        if !heard.is_empty() {
            self.send_to_leader(server, ToLeader::Heard(heard));
        }
    }

    fn answer(&mut self, conn: usize, xid: i32, answer: Slot) {
        let mut slots = self.conns[conn].slots.iter_mut();
        if let Some((_, slot)) = slots.find(|(other, slot)| *other == xid && matches!(slot, Slot::Asked)) {
            *slot = answer;
        }
        self.answer_in_order(conn);
    }

    /// Answers the requests of a session in their order. A read returns what the server knows when its turn comes.
    fn answer_in_order(&mut self, conn: usize) {
        while self.conns[conn].server_open {
            let Some((xid, slot)) = self.conns[conn].slots.pop_front() else { return };
            match slot {
                Slot::Asked => return self.conns[conn].slots.push_front((xid, slot)),
                Slot::Moved => return self.server_hangs_up(conn),
                Slot::Answered(answer) => self.reply(conn, xid, &answer),
                Slot::Local(request) => {
                    let answer = self.look_up(conn, &request);
                    self.reply(conn, xid, &answer);
                }
            }
        }
    }

    fn look_up(&mut self, conn: usize, request: &Request) -> Answer {
        let server = self.conns[conn].server;
        let tree = &self.servers.all[server].tree;
        let Conn { session, watched, shown, hidden, .. } = &mut self.conns[conn];
        let Some(session) = *session else { unreachable!("a read before there is a session") };
        let (owner, knows) = (Session::id(session), &mut self.servers.sessions[session].knows);
        let is_shown = |node: &&Node| !hidden.contains(&node.path);
        let (Request::Children(path) | Request::Data { path, .. }) = request else { unreachable!("not a read") };
        let Some(node) = tree.get(path).filter(is_shown) else { return Answer::error(NO_NODE) };
        if let Request::Data { watch, .. } = request {
            if *watch && !watched.contains(&node.path) {
                watched.push(Rc::clone(&node.path));
            }
            // It has read the list before it watches another's node.
            if *watch && node.owner != owner {
                knows.append(shown);
            }
            Answer::data(&node.data, node.stat())
        } else {
            let children = tree.below(path).filter(is_shown);
            *shown = children.clone().map(|node| Rc::clone(&node.path)).collect();
            Answer::children(children.map(|node| &node.path[path.len() + 1..]))
        }
    }

    /// The server loses its clients and all messages between it and the leader, and serves again at `until`.
    pub(crate) fn shut(&mut self, server: usize, until: Time, silently: bool) {
        for conn in self.servers.all[server].conns.clone() {
            if silently {
                self.server_vanishes(conn);
            } else {
                self.server_hangs_up(conn);
            }
        }
        let state = &mut self.servers.all[server];
        state.to_leader.items.clear();
        state.from_leader.items.clear();
        state.heard.clear();
        state.telling = false;
        state.closed_until = state.closed_until.max(until);
        state.deposed = false;
        self.schedule(until, Event::Recover(server));
    }

    pub(crate) fn recover(&mut self, server: usize) {
        if !self.serves(server) {
            return;
        }
        if let Some(until) = self.blocked_until(server) {
            return self.shut(server, until, false);
        }
        self.send_from_leader(server, FromLeader::Commit(self.servers.log.len()));
    }

    /// Cuts a server off from the leader for `time`. It notices after `patience`.
    pub(crate) fn isolate(&mut self, server: usize, time: Time, patience: Time) {
        if server == self.servers.leader && self.servers.all.len() > 1 {
            let election = self.chance.up_to(self.servers.timeout / 2);
            self.elect(election, Some(server));
        }
        let state = &mut self.servers.all[server];
        state.isolated_until = state.isolated_until.max(self.now + time);
        if patience < time || state.deposed {
            self.after(patience.min(time), Event::GiveUp(server));
        }
    }

    pub(crate) fn give_up(&mut self, server: usize) {
        let state = &self.servers.all[server];
        let until = state.isolated_until.max(self.now);
        if state.deposed || until > self.now {
            self.note(|| format!("server {server} looks for a leader"));
            self.shut(server, until, false);
        }
    }

    /// The leader is deposed, and another takes over after `time`. `stays`: the server that does not notice.
    pub(crate) fn elect(&mut self, time: Time, stays: Option<usize>) {
        let count = self.servers.all.len();
        let until = self.now + time + MS;
        for server in (0..count).filter(|server| Some(*server) != stays) {
            self.shut(server, until, false);
        }
        if let Some(server) = stays {
            let state = &mut self.servers.all[server];
            state.to_leader.items.clear();
            state.from_leader.items.clear();
            state.telling = false;
            state.deposed = true;
        }
        let others: Vec<usize> = (0..count).filter(|other| count == 1 || *other != self.servers.leader).collect();
        self.servers.leader = others[self.chance.one_of(others.len())];
        // A new leader gives each session its whole timeout again.
        for index in 0..self.servers.sessions.len() {
            let created = self.servers.by_the_leader(self.servers.sessions[index].created);
            let session = &mut self.servers.sessions[index];
            session.deadline = until + created;
            session.relied_on = session.deadline;
        }
        let leader = self.servers.leader;
        // A server that is elected can talk to the others, and what it has is what the others get.
        self.servers.all[leader].isolated_until = 0;
        self.servers.all[leader].lacks.clear();
        self.note(|| format!("server {leader} will lead"));
    }

    /// All servers are stopped, and come back at `until` with a copy of the first transactions, so many of them. The
    /// numbers of transactions go on where they were, because the servers elect a leader, which begins a new epoch.
    pub(crate) fn restore(&mut self, copied: usize, until: Time) {
        self.note(|| format!("the servers lose all but {copied} transactions"));
        for server in 0..self.servers.all.len() {
            let silently = self.chance.once_in(2);
            self.shut(server, until, silently);
        }
        let Servers { all, log, sessions, head, lost, raised, .. } = &mut self.servers;
        *lost = copied..log.len();
        let before = std::mem::take(head);
        log[..copied].iter().flat_map(|transaction| &transaction.effects).for_each(|effect| head.apply(effect));
        let back = head.nodes().iter().filter(|node| before.get(&node.path).is_none());
        raised.extend(back.map(|node| Rc::clone(&node.path)));
        for server in all {
            server.tree = head.clone();
            server.applied = log.len();
        }
        let mut back = vec![];
        for (index, session) in sessions.iter_mut().enumerate() {
            let closed = log[..copied].iter().any(|transaction| transaction.closes == Some(index));
            session.alive = session.opened_at < copied && !closed;
            if session.alive {
                session.deadline = until + session.created;
                session.relied_on = session.deadline;
                back.push((session.deadline, index));
            }
        }
        for (deadline, index) in back {
            self.schedule(deadline, Event::Expire(index));
        }
        for host in 0..self.hosts.len() {
            // A holder that is out of touch has the rest of its lease. Until then two commands may run at the same time, because
            // the servers have not kept what they had confirmed.
            self.hosts[host].operator_until = self.now + self.servers.timeout;
            self.after(self.servers.timeout + 1, Event::Verify(host));
        }
    }

    /// The clock of whichever server is the leader, in milliseconds.
    fn servers_clock(&self) -> i64 {
        (self.now / MS) as i64
    }

    /// Deletes a node or sets its data, as an operator does with a client of their own.
    pub(crate) fn operate(&mut self, path: &str, data: Option<&[u8]>) {
        let effect = match data {
            Some(data) => Effect::Set { path: Path::from(path), data: Rc::from(data), written: self.servers_clock() },
            None => Effect::Delete(Path::from(path)),
        };
        self.commit(Transaction { effects: vec![effect], origin: None, closes: None });
    }

    /// Creates a node that belongs to no session, as an operator does with a client of their own.
    pub(crate) fn remake(&mut self, path: &str) {
        self.create_for(path, Rc::from([]), 0);
    }

    /// Creates a node that belongs to this session, of which there is no more.
    pub(crate) fn create_for(&mut self, path: &str, data: Rc<[u8]>, owner: i64) {
        let node = Node::new(path, data, owner, self.servers.log.len() as i64 + 1, self.servers_clock());
        self.commit(Transaction { effects: vec![Effect::Create(node)], origin: None, closes: None });
    }
}
