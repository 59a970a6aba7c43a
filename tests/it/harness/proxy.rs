//! A network that misbehaves: a TCP proxy on loopback whose behaviour can be changed while it runs.
//!
//! A [`Proxy::zookeeper`] reads the frames that pass: it counts requests, and can lose or hold back the reply to a
//! chosen one. A [`Proxy::plain`] passes bytes, such as those that servers exchange.
//!
//! Every proxy has one thread for its listener and one for each connection, which waits in poll(2) for the two sockets
//! and for a word from the test.

use std::collections::{BTreeMap, VecDeque};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{self, setsockopt, sockopt};

use super::ensemble::free_port;
use super::frames::{Frames, Greeting, Op, Request, answered_xid};
use super::poll::{self, PATIENCE};

/// What happens to the bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Flow {
    /// They pass.
    #[default]
    Pass,
    /// They wait, as in a network that was cut without a word. They pass once the flow is changed back.
    Hold,
    /// Each read's worth passes this long after it was read.
    Delay(Duration),
}

/// What happens to a connection when the reply that a [`Trap`] waits for arrives. Unless it waits, the reply is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The connection is reset.
    Reset,
    /// The connection is reset, and from the same moment on no other gets an answer: both directions are on hold.
    ResetAndHold,
    /// Nothing passes on this connection ever again, and it stays open. Others are not concerned.
    Blackhole,
    /// The reply and what follows it wait for [`Trap::release`]. Nothing is lost.
    Wait,
}

/// A proxy in front of one address. Dropping it resets its connections and closes its port.
#[derive(Debug)]
pub(crate) struct Proxy {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    port: u16,
    target: SocketAddr,
    reads_frames: bool,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    /// From the client to the server.
    up: Flow,
    /// From the server to the client.
    down: Flow,
    /// Present while the port is open: a byte for the listener's thread.
    listener: Option<UnixStream>,
    connections: BTreeMap<usize, Control>,
    accepted: usize,
    requests: Vec<Request>,
    traps: Vec<Arc<TrapState>>,
    /// What the server is not to know.
    unknown: Vec<Op>,
    /// What is said otherwise when a session is opened.
    greeting: Greeting,
}

#[derive(Debug)]
struct Control {
    wake: UnixStream,
    reset: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole after every statement; a test that panicked elsewhere must still be able to clean up.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        let mut state = self.lock();
        change(&mut state);
        for control in state.connections.values() {
            // A full pipe holds a wake-up already, and a closed one belongs to a connection that is ending.
            let _ = (&control.wake).write(&[0]);
        }
        self.changed.notify_all();
    }

    #[track_caller]
    fn wait(&self, what: &str, is_so: impl Fn(&State) -> bool) {
        let (state, timeout) = self
            .changed
            .wait_timeout_while(self.lock(), PATIENCE, |state| !is_so(state))
            .unwrap_or_else(PoisonError::into_inner);
        drop(state);
        assert!(!timeout.timed_out(), "waited {PATIENCE:?} in vain for the proxy: {what}");
    }
}

impl Proxy {
    /// A proxy for any protocol.
    pub(crate) fn plain(target: SocketAddr) -> Self {
        Self::start(target, false)
    }

    /// A proxy for clients of the ZooKeeper server at `address`, as in `127.0.0.1:2181`.
    pub(crate) fn zookeeper(address: &str) -> Self {
        Self::start(address.parse().expect("an address with a port"), true)
    }

    fn start(target: SocketAddr, reads_frames: bool) -> Self {
        let (port, listener) = poll::until("a port for a proxy", || {
            let port = free_port();
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok().map(|listener| (port, listener))
        });
        let shared = Arc::new(Shared { port, target, reads_frames, state: Mutex::default(), changed: Condvar::new() });
        listen(&shared, listener);
        Self { shared }
    }

    /// Its port on 127.0.0.1.
    pub(crate) fn port(&self) -> u16 {
        self.shared.port
    }

    /// `127.0.0.1:PORT`.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

    /// Everything passes again.
    pub(crate) fn pass(&self) {
        self.flows(Flow::Pass, Flow::Pass);
    }

    /// Nothing passes. Connections stay open, and new ones are accepted and get no answer.
    pub(crate) fn hold(&self) {
        self.flows(Flow::Hold, Flow::Hold);
    }

    /// What happens to the bytes from the client (`up`) and to those from the server (`down`).
    pub(crate) fn flows(&self, up: Flow, down: Flow) {
        self.shared.change(|state| (state.up, state.down) = (up, down));
    }

    /// Resets all connections. Returns when that has been done.
    #[track_caller]
    pub(crate) fn reset(&self) {
        let last = self.accepted();
        self.shared.change(|state| state.connections.values_mut().for_each(|control| control.reset = true));
        self.shared.wait("connections are reset", |state| state.connections.range(..last).next().is_none());
    }

    /// Closes the port, so that connections are refused, and resets those that there are.
    #[track_caller]
    pub(crate) fn refuse(&self) {
        if let Some(listener) = &self.shared.lock().listener {
            (&*listener).write_all(&[0]).expect("the listener's thread reads");
        }
        self.shared.wait("the port is closed", |state| state.listener.is_none());
        self.reset();
    }

    /// Opens the port again after [`Proxy::refuse`].
    #[track_caller]
    pub(crate) fn accept(&self) {
        let listener = poll::until("the proxy's port can be bound again", || {
            TcpListener::bind((Ipv4Addr::LOCALHOST, self.port())).ok()
        });
        listen(&self.shared, listener);
    }

    /// How many connections were accepted so far.
    pub(crate) fn accepted(&self) -> usize {
        self.shared.lock().accepted
    }

    /// How many connections are open.
    pub(crate) fn open(&self) -> usize {
        self.shared.lock().connections.len()
    }

    /// The requests that have come so far, in their order, pings among them.
    pub(crate) fn requests(&self) -> Vec<Request> {
        self.shared.lock().requests.clone()
    }

    /// How many requests of this kind have come so far.
    pub(crate) fn count(&self, op: Op) -> usize {
        self.shared.lock().requests.iter().filter(|request| request.op == op).count()
    }

    /// Waits until that many requests of this kind have come.
    #[track_caller]
    pub(crate) fn wait_count(&self, op: Op, count: usize) {
        let seen = |state: &State| state.requests.iter().filter(|request| request.op == op).count();
        self.shared.wait("requests", |state| seen(state) >= count);
    }

    /// Decides on the reply to the next request of which `matches` is true. Once.
    pub(crate) fn trap(&self, fate: Fate, matches: impl Fn(&Request) -> bool + Send + Sync + 'static) -> Trap {
        assert!(self.shared.reads_frames, "a plain proxy sees no requests");
        let trap = Arc::new(TrapState { matches: Box::new(matches), fate, stage: Mutex::new(Stage::Armed) });
        self.shared.change(|state| state.traps.push(trap.clone()));
        Trap { shared: self.shared.clone(), trap }
    }

    /// Requests of this kind reach the server as one of a kind that no server knows, and it answers them as a server does
    /// that is older than they are.
    pub(crate) fn make_unknown(&self, op: Op) {
        self.shared.change(|state| state.unknown.push(op));
    }

    /// Decides on the reply to the next request of any of these kinds. Once.
    pub(crate) fn trap_ops(&self, fate: Fate, ops: &[Op]) -> Trap {
        let ops = ops.to_vec();
        self.trap(fate, move |request| ops.contains(&request.op))
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(listener) = &self.shared.lock().listener {
            // When nobody reads any more, the port is closed.
            let _ = (&*listener).write(&[0]);
        }
        self.shared.change(|state| state.connections.values_mut().for_each(|control| control.reset = true));
    }
}

/// A decision on one reply, see [`Proxy::trap`].
#[derive(Debug)]
pub(crate) struct Trap {
    shared: Arc<Shared>,
    trap: Arc<TrapState>,
}

impl Trap {
    /// Waits until the reply has come, so that the server has done what was asked, and has met its fate.
    #[track_caller]
    pub(crate) fn wait(&self) {
        self.shared.wait("a reply is trapped", |_| matches!(self.trap.stage(), Stage::Sprung | Stage::Released));
    }

    /// Lets the reply pass that a trap with [`Fate::Wait`] holds, or will hold.
    pub(crate) fn release(&self) {
        self.shared.change(|_| self.trap.set(Stage::Released));
    }
}

struct TrapState {
    matches: Box<dyn Fn(&Request) -> bool + Send + Sync>,
    fate: Fate,
    stage: Mutex<Stage>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Waits for a request.
    Armed,
    /// Waits for the reply to the request with this xid of this connection.
    Expecting { connection: usize, xid: i32 },
    /// The reply has come.
    Sprung,
    /// The reply may pass, or has passed.
    Released,
}

impl TrapState {
    fn stage(&self) -> Stage {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set(&self, stage: Stage) {
        *self.stage.lock().unwrap_or_else(PoisonError::into_inner) = stage;
    }
}

impl std::fmt::Debug for TrapState {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:?} {:?}", self.fate, self.stage())
    }
}

fn listen(shared: &Arc<Shared>, listener: TcpListener) {
    let (wake, word) = UnixStream::pair().expect("a socket pair");
    shared.lock().listener = Some(wake);
    let shared = shared.clone();
    thread::spawn(move || {
        loop {
            let mut interests = [interest(&listener, PollFlags::POLLIN), interest(&word, PollFlags::POLLIN)];
            wait_for(&mut interests, None);
            if is_ready(&interests[1]) {
                break;
            }
            // A client that has gone again before it was accepted is nobody's trouble.
            if let Ok((client, _)) = listener.accept() {
                connect(&shared, client);
            }
        }
        // Closing is not enough: a child that another test has just forked has it, too, until it executes its program.
        socket::shutdown(listener.as_raw_fd(), socket::Shutdown::Both).expect("a listener can be shut down");
        shared.change(|state| state.listener = None);
    });
}

fn connect(shared: &Arc<Shared>, client: TcpStream) {
    let (wake, word) = UnixStream::pair().expect("a socket pair");
    for stream in [&wake, &word] {
        stream.set_nonblocking(true).expect("a socket can be made non-blocking");
    }
    let mut state = shared.lock();
    let number = state.accepted;
    state.accepted += 1;
    state.connections.insert(number, Control { wake, reset: false });
    drop(state);
    let shared = shared.clone();
    thread::spawn(move || {
        // When the server cannot be reached, the client is reset; there is nobody else to tell.
        if let Ok(mut connection) = Connection::open(&shared, number, client, word) {
            match connection.serve(&shared) {
                Ok(End::Both) => {}
                Ok(End::Reset) | Err(_) => {
                    linger_never(&connection.client);
                    linger_never(&connection.server);
                }
            }
        }
        shared.change(|state| drop(state.connections.remove(&number)));
    });
}

/// One of the two directions of a connection.
#[derive(Debug)]
struct Lane {
    frames: Frames,
    /// What was read and may not be written yet.
    queue: VecDeque<Queued>,
    /// What may be written and was not taken yet.
    pending: Vec<u8>,
    at_end: bool,
    end_is_passed: bool,
}

/// Some bytes on their way.
#[derive(Debug)]
struct Queued {
    bytes: Vec<u8>,
    /// The time from which they may pass.
    due: Instant,
    /// The trap that must release them first.
    trap: Option<Arc<TrapState>>,
}

impl Queued {
    /// When they may pass; `None` while a trap holds them.
    fn due(&self) -> Option<Instant> {
        self.trap.as_ref().is_none_or(|trap| trap.stage() == Stage::Released).then_some(self.due)
    }
}

impl Lane {
    fn new(frames: Frames) -> Self {
        Self { frames, queue: VecDeque::new(), pending: Vec::new(), at_end: false, end_is_passed: false }
    }

    fn wants_to_read(&self, flow: Flow) -> bool {
        flow != Flow::Hold && !self.at_end
    }

    /// When `advance` has something to do next, unless something else happens first.
    fn due(&self, flow: Flow) -> Option<Instant> {
        if flow == Flow::Hold { None } else { self.queue.front()?.due() }
    }

    /// Moves what is due to `pending`.
    fn advance(&mut self, flow: Flow) {
        let now = Instant::now();
        while self.due(flow).is_some_and(|due| due <= now || flow == Flow::Pass) {
            self.pending.extend(self.queue.pop_front().expect("something is due").bytes);
        }
    }

    fn wants_to_write(&self, flow: Flow) -> bool {
        flow != Flow::Hold && !self.pending.is_empty()
    }

    /// Passes the end of the stream on, when everything before it has been.
    fn finish(&mut self, flow: Flow, to: &TcpStream) {
        if flow != Flow::Hold && self.at_end && !self.end_is_passed && self.queue.is_empty() && self.pending.is_empty()
        {
            self.end_is_passed = true;
            // The other side may have closed at the same time.
            let _ = to.shutdown(Shutdown::Write);
        }
    }
}

#[derive(Debug)]
struct Connection {
    number: usize,
    client: TcpStream,
    server: TcpStream,
    word: UnixStream,
    up: Lane,
    down: Lane,
    is_dead: bool,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Both sides have closed it.
    Both,
    /// It is to be reset.
    Reset,
}

impl Connection {
    fn open(shared: &Shared, number: usize, client: TcpStream, word: UnixStream) -> io::Result<Self> {
        let server = TcpStream::connect(shared.target).inspect_err(|_| linger_never(&client))?;
        for stream in [&client, &server] {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
        }
        let frames = || if shared.reads_frames { Frames::default() } else { Frames::bytes() };
        let (up, down) = (Lane::new(frames()), Lane::new(frames()));
        Ok(Self { number, client, server, word, up, down, is_dead: false })
    }

    fn serve(&mut self, shared: &Shared) -> io::Result<End> {
        loop {
            let (mut up, mut down) = {
                let state = shared.lock();
                if state.connections.get(&self.number).is_none_or(|control| control.reset) {
                    return Ok(End::Reset);
                }
                (state.up, state.down)
            };
            if self.is_dead {
                (up, down) = (Flow::Hold, Flow::Hold);
            }
            self.up.advance(up);
            self.down.advance(down);
            self.up.finish(up, &self.server);
            self.down.finish(down, &self.client);
            if self.up.end_is_passed && self.down.end_is_passed {
                return Ok(End::Both);
            }
            let (client, server) = self.wait(up, down);
            if client.contains(PollFlags::POLLOUT) {
                pass_on(&mut self.down.pending, &mut self.client)?;
            }
            if server.contains(PollFlags::POLLOUT) {
                pass_on(&mut self.up.pending, &mut self.server)?;
            }
            if self.up.wants_to_read(up) && client.intersects(READABLE) {
                self.read_requests(shared, up)?;
            }
            if self.down.wants_to_read(down)
                && server.intersects(READABLE)
                && let Some(end) = self.read_replies(shared, down)?
            {
                return Ok(end);
            }
        }
    }

    /// Waits for what there is to do, and tells what the client's and the server's sockets are ready for.
    fn wait(&mut self, up: Flow, down: Flow) -> (PollFlags, PollFlags) {
        let flags = |reads: bool, writes: bool| {
            let read = if reads { PollFlags::POLLIN } else { PollFlags::empty() };
            if writes { read | PollFlags::POLLOUT } else { read }
        };
        let client = flags(self.up.wants_to_read(up), self.down.wants_to_write(down));
        let server = flags(self.down.wants_to_read(down), self.up.wants_to_write(up));
        // A socket that nothing is wanted of must not be polled: poll(2) reports a hang-up unasked, again and again.
        let mut interests = vec![interest(&self.word, PollFlags::POLLIN)];
        interests.extend((!client.is_empty()).then(|| interest(&self.client, client)));
        interests.extend((!server.is_empty()).then(|| interest(&self.server, server)));
        let due = self.up.due(up).into_iter().chain(self.down.due(down)).min();
        wait_for(&mut interests, due);
        let mut results = interests[1..].iter().map(|interest| interest.revents().unwrap_or(PollFlags::empty()));
        let mut result = |asked: PollFlags| if asked.is_empty() { asked } else { results.next().unwrap_or(asked) };
        let ready = (result(client), result(server));
        if (&self.word).read(&mut [0; 64]).is_ok_and(|length| length > 0) {
            // The test has changed something. What was read now would be treated by the old rules.
            return (PollFlags::empty(), PollFlags::empty());
        }
        ready
    }

    fn read_requests(&mut self, shared: &Shared, flow: Flow) -> io::Result<()> {
        let Some(bytes) = read(&mut self.client)? else {
            self.up.at_end = true;
            return Ok(());
        };
        let due = due(flow);
        for mut frame in self.up.frames.split(&bytes) {
            shared.lock().greeting.change_request(&mut frame);
            if let Some(request) = Request::parse(self.number, &frame) {
                shared.change(|state| {
                    if state.unknown.contains(&request.op) {
                        frame.set_op(Op::Other(999));
                    }
                    let armed =
                        state.traps.iter().find(|trap| trap.stage() == Stage::Armed && (trap.matches)(&request));
                    if let Some(trap) = armed {
                        trap.set(Stage::Expecting { connection: self.number, xid: request.xid });
                    }
                    state.requests.push(request);
                });
            }
            self.up.queue.push_back(Queued { bytes: frame.bytes, due, trap: None });
        }
        Ok(())
    }

    fn read_replies(&mut self, shared: &Shared, flow: Flow) -> io::Result<Option<End>> {
        let Some(bytes) = read(&mut self.server)? else {
            self.down.at_end = true;
            return Ok(None);
        };
        let due = due(flow);
        for mut frame in self.down.frames.split(&bytes) {
            shared.lock().greeting.change_answer(&mut frame);
            let trap = answered_xid(&frame).and_then(|xid| self.sprung(shared, xid));
            match trap.as_ref().map(|trap| trap.fate) {
                None | Some(Fate::Wait) => self.down.queue.push_back(Queued { bytes: frame.bytes, due, trap }),
                Some(Fate::Reset | Fate::ResetAndHold) => return Ok(Some(End::Reset)),
                Some(Fate::Blackhole) => {
                    self.is_dead = true;
                    return Ok(None);
                }
            }
        }
        Ok(None)
    }

    /// The trap that waited for the reply with this xid.
    fn sprung(&self, shared: &Shared, xid: i32) -> Option<Arc<TrapState>> {
        let expected = Stage::Expecting { connection: self.number, xid };
        let trap = shared.lock().traps.iter().find(|trap| trap.stage() == expected)?.clone();
        // In one step: whoever has seen that it has sprung may let everything pass again.
        shared.change(|state| {
            if trap.fate == Fate::ResetAndHold {
                (state.up, state.down) = (Flow::Hold, Flow::Hold);
            }
            trap.set(Stage::Sprung);
        });
        Some(trap)
    }
}

const READABLE: PollFlags = PollFlags::POLLIN.union(PollFlags::POLLHUP).union(PollFlags::POLLERR);

fn due(flow: Flow) -> Instant {
    match flow {
        Flow::Delay(delay) => Instant::now() + delay,
        Flow::Pass | Flow::Hold => Instant::now(),
    }
}

/// Some bytes; none when there are none yet; `None` at the end.
fn read(from: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; 64 * 1024];
    match from.read(&mut bytes) {
        Ok(0) => Ok(None),
        Ok(length) => {
            bytes.truncate(length);
            Ok(Some(bytes))
        }
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => Ok(Some(Vec::new())),
        Err(error) => Err(error),
    }
}

fn pass_on(pending: &mut Vec<u8>, to: &mut TcpStream) -> io::Result<()> {
    match to.write(pending) {
        Ok(length) => drop(pending.drain(..length)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Makes the coming close(2) send a reset: socket(7), SO_LINGER with a time of zero.
fn linger_never(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    setsockopt(stream, sockopt::Linger, &linger).expect("SO_LINGER can be set on a socket");
}

fn interest<'fd>(source: &'fd impl AsFd, flags: PollFlags) -> PollFd<'fd> {
    let descriptor: BorrowedFd<'fd> = source.as_fd();
    PollFd::new(descriptor, flags)
}

fn is_ready(interest: &PollFd<'_>) -> bool {
    interest.any().unwrap_or(true)
}

/// poll(2) until something is ready, until `due`, or until a signal comes.
fn wait_for(interests: &mut [PollFd<'_>], due: Option<Instant>) {
    let timeout = due.map_or(PollTimeout::NONE, |due| {
        // Rounded up, or the last part of a millisecond would be spent in a busy loop.
        let milliseconds = due.saturating_duration_since(Instant::now()).as_millis() + 1;
        PollTimeout::try_from(milliseconds).unwrap_or(PollTimeout::MAX)
    });
    match poll(interests, timeout) {
        Ok(_) | Err(nix::errno::Errno::EINTR) => {}
        Err(error) => panic!("poll: {error}"),
    }
}

/// A server that accepts connections and answers each with the same bytes, or never.
#[derive(Debug)]
pub(crate) struct Stub {
    port: u16,
    stop: UnixStream,
}

impl Stub {
    /// Accepts and never answers.
    pub(crate) fn silent() -> Self {
        Self::answering(Vec::new())
    }

    /// Answers each connection with 16 kB of random bytes.
    pub(crate) fn garbage() -> Self {
        Self::answering((0..16 * 1024).map(|_| fastrand::u8(..)).collect())
    }

    /// Writes `bytes` to each connection and keeps it open.
    pub(crate) fn answering(bytes: Vec<u8>) -> Self {
        let (port, listener) = poll::until("a port for a stub", || {
            let port = free_port();
            TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok().map(|listener| (port, listener))
        });
        let (stop, word) = UnixStream::pair().expect("a socket pair");
        thread::spawn(move || {
            let mut connections = Vec::new();
            loop {
                let mut interests = [interest(&listener, PollFlags::POLLIN), interest(&word, PollFlags::POLLIN)];
                wait_for(&mut interests, None);
                if is_ready(&interests[1]) {
                    return;
                }
                if let Ok((mut client, _)) = listener.accept() {
                    // 16 kB fit into a socket's buffer; a client that has gone does not matter.
                    let _ = client.write_all(&bytes);
                    connections.push(client);
                }
            }
        });
        Self { port, stop }
    }

    /// `127.0.0.1:PORT`.
    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        // The thread ends only by this.
        let _ = self.stop.write(&[0]);
    }
}

impl Proxy {
    /// From the next connection on, clients are told that their session has this id: what some imitations of a server
    /// do instead of saying that a session is over.
    pub(crate) fn give_out_session(&self, id: i64) {
        self.shared.change(|state| state.greeting.session = Some(id));
    }

    /// From the next connection on, clients ask for this session timeout, whatever they want.
    pub(crate) fn ask_for(&self, timeout: Duration) {
        self.shared.change(|state| state.greeting.timeout = Some(timeout));
    }
}
