//! A small blocking ZooKeeper client to look at and change nodes from tests.
//!
//! It speaks the few bytes of the protocol itself (zookeeper.jute) and shares no code with the program under test: no
//! executor that a broken connection could starve, no cache, no retry of a write. What it does not expect, it panics
//! on.

use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use super::frames::Op;
use super::poll;
use super::secure::{LOGIN, Secure};

/// The session timeout that a client asks for. Long: only zklock's sessions are to expire in tests.
const SESSION_TIMEOUT: Duration = Duration::from_secs(60);

/// How long a server may take to answer before another one is asked.
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Persistent = 0,
    Ephemeral = 1,
    /// Goes with this client's session; the server appends a sequence number to its name.
    EphemeralSequential = 3,
}

/// ZooKeeper's answer to a request that it refused: KeeperException.Code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Refusal(i32);

impl Refusal {
    pub(crate) const NO_NODE: Self = Self(-101);
    pub(crate) const NO_AUTH: Self = Self(-102);
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ZooKeeper's error {}", self.0)
    }
}

/// What the server knows of a node, as far as tests ask for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stat {
    pub(crate) czxid: i64,
    pub(crate) version: i32,
    /// The session with which it goes; 0 for a node that stays.
    pub(crate) owner: i64,
    /// The transactions that have last changed its data and the list of its children.
    pub(crate) changed: i64,
    pub(crate) children_changed: i64,
}

/// A session with a server. Dropping it closes the session, and its ephemeral nodes go.
#[derive(Debug)]
pub(crate) struct Client {
    shared: Arc<Mutex<Wire>>,
    servers: Vec<String>,
    chroot: String,
    session: Session,
}

impl Client {
    /// Connects by a connect string, `HOST:PORT,…[/CHROOT]`. Tries all addresses until one answers.
    #[track_caller]
    pub(crate) fn connect(connect_string: &str) -> Self {
        let client = Self::open(connect_string, Session::NEW);
        let granted = lock(&client.shared).session_timeout;
        let pinged = Arc::downgrade(&client.shared);
        thread::spawn(move || {
            loop {
                thread::park_timeout(granted / 6);
                let Some(shared) = pinged.upgrade() else { return };
                // When this fails, the next request sees it too, and reconnects.
                let _ = lock(&shared).ping();
            }
        });
        client
    }

    /// Acts in the session of another client, as a request of that client does that comes late. Its connection breaks by
    /// that, if it has one; its session goes on.
    #[track_caller]
    pub(crate) fn in_session<T>(connect_string: &str, id: i64, act: impl FnOnce(&Self) -> T) -> T {
        let client = Self::open(connect_string, Session { id, password: password(id) });
        assert_eq!(client.session.id, id, "there is no such session");
        let done = act(&client);
        // So that it is not closed.
        let _ = lock(&client.shared).stream.shutdown(Shutdown::Both);
        done
    }

    #[track_caller]
    fn open(connect_string: &str, wanted: Session) -> Self {
        let (servers, chroot) = connect_string.split_at(connect_string.find('/').unwrap_or(connect_string.len()));
        let servers: Vec<String> = servers.split(',').map(str::to_owned).collect();
        let (wire, session) = open_any(&servers, wanted);
        Self { shared: Arc::new(Mutex::new(wire)), servers, chroot: chroot.to_owned(), session }
    }

    pub(crate) fn session(&self) -> i64 {
        self.session.id
    }

    /// Logs in as one more user, for as long as the connection lasts.
    #[track_caller]
    pub(crate) fn log_in(&self, login: &str) {
        let login = login.split_once(':').expect("a scheme and what is shown for it");
        lock(&self.shared).log_in(login).expect("the server knows the scheme");
    }

    /// Creates a node. Anyone may change it, or [those who have logged in](Secure), as with zklock. Returns its path as
    /// the server named it, without the chroot.
    pub(crate) fn create(&self, path: &str, data: &[u8], kind: Kind) -> Result<String, Refusal> {
        let (read, create, all) = (1, 4, 31);
        let body = self.path(path).bytes(data);
        let body = match Secure::used() {
            None => body.int(1).int(all).bytes(b"world").bytes(b"anyone"),
            Some(_) => {
                let others = if kind == Kind::Persistent { create + read } else { read };
                body.int(2).int(all).bytes(b"auth").bytes(b"").int(others).bytes(b"world").bytes(b"anyone")
            }
        };
        let answer = self.write(Op::Create, &body.int(kind as i32))?;
        let created = Answer(&answer).string();
        Ok(created.strip_prefix(&self.chroot).unwrap_or(&created).to_owned())
    }

    pub(crate) fn delete(&self, path: &str) -> Result<(), Refusal> {
        self.write(Op::Delete, &self.path(path).int(-1)).map(drop)
    }

    /// Deletes a node that will not be created again, by as many connections as that takes. It may have gone already.
    #[track_caller]
    pub(crate) fn remove(&self, path: &str) {
        match self.read(Op::Delete, &self.path(path).int(-1)) {
            Ok(_) | Err(Refusal::NO_NODE) => {}
            Err(refusal) => panic!("{path}: {refusal}"),
        }
    }

    pub(crate) fn set(&self, path: &str, data: &[u8]) -> Result<(), Refusal> {
        self.write(Op::SetData, &self.path(path).bytes(data).int(-1)).map(drop)
    }

    pub(crate) fn make_read_only(&self, path: &str) -> Result<(), Refusal> {
        let read = 1;
        self.allow(path, read)
    }

    pub(crate) fn make_unreadable(&self, path: &str) -> Result<(), Refusal> {
        let (create, delete, admin) = (4, 8, 16);
        self.allow(path, create + delete + admin)
    }

    pub(crate) fn make_open(&self, path: &str) -> Result<(), Refusal> {
        self.allow(path, 31)
    }

    /// Allows everyone this, and nothing else.
    pub(crate) fn allow(&self, path: &str, permissions: i32) -> Result<(), Refusal> {
        let body = self.path(path).int(1).int(permissions).bytes(b"world").bytes(b"anyone").int(-1);
        self.write(Op::SetAcl, &body).map(drop)
    }

    /// The data of a node, and what the server knows of it.
    pub(crate) fn get(&self, path: &str) -> Result<(Vec<u8>, Stat), Refusal> {
        let answer = self.read(Op::GetData, &self.path(path).bool(false))?;
        let mut answer = Answer(&answer);
        let data = answer.bytes();
        let czxid = answer.long();
        let (changed, _ctime, _mtime) = (answer.long(), answer.long(), answer.long());
        let version = answer.int();
        let (_cversion, _aversion) = (answer.int(), answer.int());
        let (owner, _length, _children) = (answer.long(), answer.int(), answer.int());
        Ok((data, Stat { czxid, version, owner, changed, children_changed: answer.long() }))
    }

    pub(crate) fn exists(&self, path: &str) -> bool {
        match self.get(path) {
            Ok(_) => true,
            Err(Refusal::NO_NODE) => false,
            Err(refusal) => panic!("{path}: {refusal}"),
        }
    }

    /// Whether the leader has this node: by a transaction, which changes nothing. A server that this client is connected
    /// to may have another view for good (ZOOKEEPER-5010).
    #[allow(dead_code, reason = "for tests/torture")]
    pub(crate) fn leader_has(&self, path: &str) -> bool {
        let (any_version, nothing, last) = (-1, -1, -1);
        // Each part of a multi begins with its type, whether it is the last, and an error.
        let check = Body::default().int(Op::Check as i32).bool(false).int(nothing);
        let path_and_version = self.path(path).int(any_version);
        let body = check.with(path_and_version).int(last).bool(true).int(nothing);
        let answer = self.read(Op::Multi, &body).unwrap_or_else(|refusal| panic!("{path}: {refusal}"));
        let mut answer = Answer(&answer);
        let (_type, _is_last, error) = (answer.int(), answer.bool(), answer.int());
        match Refusal(error) {
            Refusal(0) => true,
            Refusal::NO_NODE => false,
            refusal => panic!("{path}: {refusal}"),
        }
    }

    /// The names of a node's children by their sequence numbers, those without one last. None when there is no node.
    #[track_caller]
    pub(crate) fn children(&self, path: &str) -> Vec<String> {
        let answer = match self.read(Op::GetChildren, &self.path(path).bool(false)) {
            Ok(answer) => answer,
            Err(Refusal::NO_NODE) => return Vec::new(),
            Err(refusal) => panic!("{path}: {refusal}"),
        };
        let mut answer = Answer(&answer);
        let mut names: Vec<String> = (0..answer.int()).map(|_| answer.string()).collect();
        names.sort_by_key(|name| (sequence(name).unwrap_or(i64::MAX), name.clone()));
        names
    }

    /// Waits until the children of a node are as `what` says, and returns them as [`Client::children`] does.
    #[track_caller]
    pub(crate) fn wait_children(
        &self,
        path: &str,
        what: impl fmt::Display,
        are_right: impl Fn(&[String]) -> bool,
    ) -> Vec<String> {
        let mut last = Vec::new();
        let right = poll::within(poll::PATIENCE, || {
            last = self.children(path);
            are_right(&last).then(|| last.clone())
        });
        right.unwrap_or_else(|| panic!("waited in vain for {path} to have {what}; it has {last:?}"))
    }

    /// Waits until a node has this many children, and returns them as [`Client::children`] does.
    #[track_caller]
    pub(crate) fn wait_count(&self, path: &str, count: usize) -> Vec<String> {
        self.wait_children(path, format_args!("{count} children"), |children| children.len() == count)
    }

    pub(crate) fn sync(&self) {
        self.read(Op::Sync, &self.path("/")).expect("sync is not refused");
    }

    fn path(&self, path: &str) -> Body {
        let whole = match (self.chroot.as_str(), path) {
            ("", path) => path.to_owned(),
            (chroot, "/") => chroot.to_owned(),
            (chroot, path) => format!("{chroot}{path}"),
        };
        Body::default().bytes(whole.as_bytes())
    }

    /// A request that may be repeated: on a broken connection it is sent again over a new one, with the same session
    /// while the servers know it.
    #[track_caller]
    fn read(&self, op: Op, body: &Body) -> Result<Vec<u8>, Refusal> {
        let mut wire = lock(&self.shared);
        poll::until(format_args!("an answer to {op:?}"), || {
            wire.call(op, body)
                .inspect_err(|_| {
                    let (again, session) = open_any(&self.servers, self.session);
                    *wire = if session == self.session { again } else { open_any(&self.servers, Session::NEW).0 };
                })
                .ok()
        })
    }

    /// A request that is sent once. As it cannot be tried again, it is waited for longer.
    #[track_caller]
    fn write(&self, op: Op, body: &Body) -> Result<Vec<u8>, Refusal> {
        let mut wire = lock(&self.shared);
        let mut call = || {
            wire.stream.set_read_timeout(Some(poll::PATIENCE))?;
            let answer = wire.call(op, body)?;
            wire.stream.set_read_timeout(Some(ANSWER_LIMIT))?;
            Ok::<_, io::Error>(answer)
        };
        match call() {
            Ok(answer) => answer,
            Err(error) => panic!("{op:?}: outcome unknown: {error}"),
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // When this fails, the session expires.
        let _ = lock(&self.shared).call(Op::CloseSession, &Body::default());
    }
}

fn lock(wire: &Mutex<Wire>) -> MutexGuard<'_, Wire> {
    // A test that panicked here has left a connection that the next request finds broken, or whole.
    wire.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The sequence number that a server appended to a name: `%010d` of a signed number.
pub(crate) fn sequence(name: &str) -> Option<i64> {
    name.get(name.len().checked_sub(10)?..)?.parse().ok()
}

/// Ends the session of another client at once, as if it had expired: opens it a second time and closes it.
///
/// `address` is any server of the ensemble. Panics when no such session is alive.
#[track_caller]
pub(crate) fn expire_session(address: &str, id: i64) {
    assert!(end_session(&[address.to_owned()], id), "there is no session {id:#x} on {address}");
}

/// Like [`expire_session`], by the first of several servers that answers. Returns whether the session was alive.
#[track_caller]
pub(crate) fn end_session(addresses: &[String], id: i64) -> bool {
    let wanted = Session { id, password: password(id) };
    let (mut wire, got) = open_any(addresses, wanted);
    if got.id != id {
        return false;
    }
    // The session's owner, thrown out, may have come back and thrown us out. Then it is opened again.
    poll::until(format_args!("session {id:#x} is over"), || match wire.call(Op::CloseSession, &Body::default()) {
        Ok(answer) => {
            answer.expect("a session can be closed");
            Some(())
        }
        Err(_) => {
            let (again, got) = open_any(addresses, wanted);
            wire = again;
            (got.id != id).then_some(())
        }
    });
    true
}

/// The password that every server gives to the session `id`: `ZooKeeperServer.generatePasswd`, the first 16 bytes of
/// `new Random(id ^ 0xB3415C00L)`.
fn password(id: i64) -> [u8; 16] {
    // java.util.Random is specified down to its bits: a linear congruential generator of 48 bits, of which nextBytes
    // takes the upper 32, the lowest byte first.
    const MULTIPLIER: u64 = 0x5_DEEC_E66D;
    const MASK: u64 = (1 << 48) - 1;
    let mut state = (id as u64 ^ 0xB341_5C00 ^ MULTIPLIER) & MASK;
    let mut password = [0; 16];
    for chunk in password.chunks_mut(4) {
        state = (state.wrapping_mul(MULTIPLIER).wrapping_add(0xB)) & MASK;
        chunk.copy_from_slice(&((state >> 16) as u32).to_le_bytes());
    }
    password
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Session {
    id: i64,
    password: [u8; 16],
}

impl Session {
    const NEW: Self = Self { id: 0, password: [0; 16] };
}

/// Opens a session, or `wanted` again, at the first server that answers. A session that is over comes back with id 0.
#[track_caller]
fn open_any(servers: &[String], wanted: Session) -> (Wire, Session) {
    let mut last = None;
    let opened = poll::within(poll::PATIENCE, || {
        servers.iter().find_map(|server| Wire::open(server, wanted).map_err(|error| last = Some(error)).ok())
    });
    opened.unwrap_or_else(|| panic!("no answer from {servers:?}: {last:?}"))
}

#[derive(Debug)]
struct Wire {
    stream: TcpStream,
    xid: i32,
    /// As the server granted it; zero when the session that was asked for is over.
    session_timeout: Duration,
}

impl Wire {
    fn open(server: &str, wanted: Session) -> io::Result<(Self, Session)> {
        let address = server.to_socket_addrs()?.next().ok_or(io::ErrorKind::AddrNotAvailable)?;
        let stream = TcpStream::connect_timeout(&address, ANSWER_LIMIT)?;
        stream.set_read_timeout(Some(ANSWER_LIMIT))?;
        stream.set_nodelay(true)?;
        let mut wire = Self { stream, xid: 0, session_timeout: Duration::ZERO };
        let timeout = i32::try_from(SESSION_TIMEOUT.as_millis()).expect("a minute fits");
        let protocol_version = 0;
        let last_zxid_seen = 0;
        let request = Body::default().int(protocol_version).long(last_zxid_seen).int(timeout).long(wanted.id);
        wire.send(&request.bytes(&wanted.password).bool(false).0)?;
        let answer = wire.receive()?;
        let mut answer = Answer(&answer);
        let (_protocol_version, granted) = (answer.int(), answer.int());
        wire.session_timeout = Duration::from_millis(granted.try_into().unwrap_or(0));
        let id = answer.long();
        let password = answer.bytes().try_into().map_err(|_| io::ErrorKind::InvalidData)?;
        if Secure::used().is_some() && id != 0 {
            wire.log_in(LOGIN)?;
        }
        Ok((wire, Session { id, password }))
    }

    fn log_in(&mut self, (scheme, secret): (&str, &str)) -> io::Result<()> {
        const AUTH: i32 = -4;
        let kind = 0;
        let login = Body::default().int(kind).bytes(scheme.as_bytes()).bytes(secret.as_bytes());
        let answer = self.exchange(AUTH, Op::Auth, &login)?;
        answer.map(drop).map_err(|refusal| io::Error::other(refusal.to_string()))
    }

    fn ping(&mut self) -> io::Result<()> {
        const PING: i32 = -2;
        self.exchange(PING, Op::Ping, &Body::default()).map(drop)
    }

    fn call(&mut self, op: Op, body: &Body) -> io::Result<Result<Vec<u8>, Refusal>> {
        self.xid += 1;
        self.exchange(self.xid, op, body)
    }

    fn exchange(&mut self, xid: i32, op: Op, body: &Body) -> io::Result<Result<Vec<u8>, Refusal>> {
        let mut request = Body::default().int(xid).int(op as i32);
        request.0.extend_from_slice(&body.0);
        self.send(&request.0)?;
        let reply = self.receive()?;
        let mut header = Answer(&reply);
        if header.int() != xid {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "an answer to another request"));
        }
        let _zxid = header.long();
        Ok(match header.int() {
            0 => Ok(header.0.to_vec()),
            error => Err(Refusal(error)),
        })
    }

    fn send(&mut self, payload: &[u8]) -> io::Result<()> {
        self.stream.write_all(&Body::default().bytes(payload).0)
    }

    fn receive(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut payload = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut payload)?;
        Ok(payload)
    }
}

/// A request in jute's encoding.
#[derive(Debug, Default)]
struct Body(Vec<u8>);

impl Body {
    fn int(mut self, value: i32) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn long(mut self, value: i64) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn bool(mut self, value: bool) -> Self {
        self.0.push(value.into());
        self
    }

    fn with(mut self, rest: Self) -> Self {
        self.0.extend(rest.0);
        self
    }

    fn bytes(self, value: &[u8]) -> Self {
        let mut body = self.int(value.len().try_into().expect("a short value"));
        body.0.extend_from_slice(value);
        body
    }
}

/// What is left to read of an answer in jute's encoding. Reading past its end panics: no server sends such.
struct Answer<'a>(&'a [u8]);

impl Answer<'_> {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let (taken, rest) = self.0.split_first_chunk().expect("a whole answer");
        self.0 = rest;
        *taken
    }

    fn int(&mut self) -> i32 {
        i32::from_be_bytes(self.take())
    }

    fn bool(&mut self) -> bool {
        let [byte] = self.take();
        byte != 0
    }

    fn long(&mut self) -> i64 {
        i64::from_be_bytes(self.take())
    }

    fn bytes(&mut self) -> Vec<u8> {
        // -1 stands for a null buffer.
        let length = usize::try_from(self.int()).unwrap_or(0);
        let (taken, rest) = self.0.split_at(length);
        self.0 = rest;
        taken.to_vec()
    }

    fn string(&mut self) -> String {
        String::from_utf8(self.bytes()).expect("names are UTF-8")
    }
}
