//! A network that misbehaves: a TCP proxy on loopback whose behaviour can be changed while it runs.
//!
//! A [`Proxy::zookeeper`] reads the frames that pass: it counts requests, and can lose or hold back the reply to a
//! chosen one. A [`Proxy::plain`] passes bytes, such as those that servers exchange, and TLS as it is.
//!
//! Every proxy has one thread for its listener and one for each connection, which waits in poll(2) for the two sockets
//! and for a word from the test.

use std::collections::BTreeMap;
use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use nix::poll::PollFlags;
use nix::sys::socket;

use self::relay::{Connection, End, interest, is_ready, linger_never, wait_for};
use super::frames::{Mistake, Op, Request, Wrong};
use super::poll::{self, PATIENCE};
use super::server;

#[path = "proxy/relay.rs"]
mod relay;
#[path = "proxy/side.rs"]
mod side;

/// What happens to the bytes of one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Flow {
    #[default]
    Pass,
    /// They wait, as in a network that was cut without a word. They pass once the flow is changed back.
    Hold,
    /// Each read's worth passes this long after it was read.
    Delay(Duration),
    Slow(usize),
}

/// What happens to a connection when the reply that a [`Trap`] waits for arrives. Except with `Wait`, the reply is
/// lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
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
    up: Flow,
    down: Flow,
    /// Present while the port is open: a byte for the listener's thread.
    listener: Option<UnixStream>,
    connections: BTreeMap<usize, Control>,
    accepted: usize,
    requests: Vec<Request>,
    traps: Vec<Arc<TrapState>>,
    unknown: Vec<Op>,
    /// The requests that do not reach the server: the connection is reset instead.
    /// The session timeout that the server is asked for, whatever clients want.
    timeout: Option<Duration>,
    mistakes: Vec<Mistake>,
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
    pub(crate) fn plain(target: SocketAddr) -> Self {
        Self::start(target, false)
    }

    /// A proxy for clients of the ZooKeeper server at `address`, as in `127.0.0.1:2181`.
    pub(crate) fn zookeeper(address: &str) -> Self {
        Self::start(address.parse().expect("an address with a port"), true)
    }

    fn start(target: SocketAddr, reads_frames: bool) -> Self {
        Self::new(server::listener().1, target, reads_frames)
    }

    /// A proxy for clients of the ZooKeeper server at `address` that accepts by this listener, in whichever network that is.
    pub(crate) fn behind(listener: TcpListener, address: &str) -> Self {
        Self::new(listener, address.parse().expect("an address with a port"), true)
    }

    fn new(listener: TcpListener, target: SocketAddr, reads_frames: bool) -> Self {
        let port = listener.local_addr().expect("a listener has an address").port();
        let shared = Arc::new(Shared { port, target, reads_frames, state: Mutex::default(), changed: Condvar::new() });
        listen(&shared, listener);
        Self { shared }
    }

    pub(crate) fn port(&self) -> u16 {
        self.shared.port
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port())
    }

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

    #[track_caller]
    pub(crate) fn accept(&self) {
        let listener = poll::until("the proxy's port can be bound again", || {
            TcpListener::bind((Ipv4Addr::LOCALHOST, self.port())).ok()
        });
        self.accept_by(listener);
    }

    pub(crate) fn accept_by(&self, listener: TcpListener) {
        listen(&self.shared, listener);
    }

    pub(crate) fn accepted(&self) -> usize {
        self.shared.lock().accepted
    }

    pub(crate) fn open(&self) -> usize {
        self.shared.lock().connections.len()
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.shared.lock().requests.clone()
    }

    pub(crate) fn count(&self, op: Op) -> usize {
        self.shared.lock().requests.iter().filter(|request| request.op == op).count()
    }

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

    /// Requests of this kind reach the server as one of a kind that no server knows, and it answers them as a server
    /// does that is older than they are.
    pub(crate) fn make_unknown(&self, op: Op) {
        self.shared.change(|state| state.unknown.push(op));
    }

    /// Clients are not told of the deletion of the node at `path`, chroot and all. `haunts`: they are also shown the
    /// node as if it were still there; they must have read it before.
    pub(crate) fn hide_deletion(&self, path: String, haunts: bool) {
        let kind = if haunts { Wrong::Haunted } else { Wrong::Silent };
        self.shared.change(|state| state.mistakes.push(Mistake::new(path, kind)));
    }

    /// Clients are shown no node at `path`, chroot and all, although it is there.
    pub(crate) fn hide_node(&self, path: String) {
        self.shared.change(|state| state.mistakes.push(Mistake::new(path, Wrong::Lacking)));
    }

    /// Decides on the reply to the next request of any of these kinds. Once.
    pub(crate) fn trap_ops(&self, fate: Fate, ops: &[Op]) -> Trap {
        let ops = ops.to_vec();
        self.trap(fate, move |request| ops.contains(&request.op))
    }

    /// From the next connection on, clients ask for this session timeout, whatever they want.
    pub(crate) fn ask_for(&self, timeout: Duration) {
        self.shared.change(|state| state.timeout = Some(timeout));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        if let Some(listener) = &self.shared.lock().listener {
            // When there is no reader any more, the port is closed.
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
    Armed,
    /// Waits for the reply to the request with this xid of this connection.
    Expecting {
        connection: usize,
        xid: i32,
    },
    /// The reply has come.
    Sprung,
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
            // A client that has gone before it was accepted does not matter.
            if let Ok((client, _)) = listener.accept() {
                connect(&shared, client);
            }
        }
        // Closing is not enough: a child that another test has just forked has it as well, until it executes its
        // program.
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
        // When the server cannot be reached, the client is reset.
        if let Ok(mut connection) = Connection::open(&shared, number, client, word) {
            match connection.serve(&shared) {
                Ok(End::Both) => {}
                Ok(End::Reset) | Err(_) => {
                    linger_never(&connection.client.stream);
                    linger_never(&connection.server);
                }
            }
        }
        shared.change(|state| drop(state.connections.remove(&number)));
    });
}
