//! A blocking client: a line to a server, and the protocol's state around it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use zklock::rules::keep_alive::KeepAlive;
use zklock::system::clock;
use zklock::zookeeper::wire::connection::{Connection, ServerEvent};
use zklock::zookeeper::wire::error::{Broken, Code};
use zklock::zookeeper::wire::handshake::{Attempt, Identity};
use zklock::zookeeper::wire::reply::{NodeStat, Reply, WatchEvent};
use zklock::zookeeper::wire::request::Request;

use crate::harness::poll::PATIENCE;

/// The session timeout that is asked for.
pub(super) const TIMEOUT: Duration = Duration::from_secs(20);

/// How long a server may be silent.
const SILENCE: Duration = Duration::from_secs(4);

/// A connection to a server, or what is known of one.
pub(super) trait Line {
    /// Sends all of these bytes.
    fn send(&mut self, bytes: &[u8]);

    /// Waits for the next bytes. There are none if the server has closed the connection.
    fn receive(&mut self) -> Vec<u8>;
}

impl Line for TcpStream {
    fn send(&mut self, bytes: &[u8]) {
        self.write_all(bytes).expect("a server that takes our bytes");
    }

    fn receive(&mut self) -> Vec<u8> {
        self.set_read_timeout(Some(PATIENCE)).expect("a limit");
        let mut bytes = vec![0; 4096];
        // A reset is a way to close, when some of what we sent was not read.
        let count = self.read(&mut bytes).unwrap_or_else(|error| {
            assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
            0
        });
        bytes.truncate(count);
        bytes
    }
}

/// A session over one line.
pub(super) struct Talk<L> {
    line: L,
    pub(super) connection: Connection<&'static str>,
    /// The watches that have fired, and that the test has not asked for.
    changes: Vec<WatchEvent>,
}

/// A session with an absolute chroot, which need not exist yet.
pub(super) fn open<L: Line>(line: L, chroot: &str) -> Talk<L> {
    begin(Attempt::open(TIMEOUT), line, chroot).expect("a new session")
}

/// `None`: the session is over.
pub(super) fn resume<L: Line>(line: L, identity: &Identity, chroot: &str) -> Option<Talk<L>> {
    begin(Attempt::resume(identity.clone(), TIMEOUT), line, chroot)
}

fn begin<L: Line>(mut attempt: Attempt, mut line: L, chroot: &str) -> Option<Talk<L>> {
    let asked_at = clock::now();
    line.send(attempt.to_send());
    attempt.sent(attempt.to_send().len(), asked_at);
    let granted = loop {
        let bytes = line.receive();
        match attempt.receive(&bytes) {
            // The server has closed the connection.
            Ok(None) if bytes.is_empty() => return None,
            Ok(None) => {}
            Ok(Some(granted)) => break granted,
            Err(Broken::Expired) => return None,
            Err(other) => panic!("{other:?}"),
        }
    };
    assert_eq!((granted.asked_at, granted.timeout), (asked_at, TIMEOUT));
    let connection = Connection::new(granted, chroot, KeepAlive::brisk(SILENCE * 6), clock::now());
    Some(Talk { line, connection, changes: vec![] })
}

impl<L: Line> Talk<L> {
    /// Makes a request. It is sent with the next wait for an answer.
    pub(super) fn ask(&mut self, request: &Request<'_>, tag: &'static str) {
        self.connection.request(request, tag, clock::now()).expect("a request that can be sent");
    }

    /// Sends what was asked.
    fn flush(&mut self) {
        let bytes = self.connection.to_send();
        if !bytes.is_empty() {
            let now = clock::now();
            let count = bytes.len();
            self.line.send(bytes);
            self.connection.sent(count, now);
        }
    }

    /// Waits for the next event. `None`: the server has closed the connection.
    fn event(&mut self) -> Result<Option<ServerEvent<&'static str>>, Broken> {
        self.flush();
        loop {
            if let Some(event) = self.connection.next_event()? {
                return Ok(Some(event));
            }
            let bytes = self.line.receive();
            if bytes.is_empty() {
                return Ok(None);
            }
            self.connection.receive(&bytes, clock::now());
        }
    }

    /// Waits for the answer to the request with this tag, which must be the next.
    pub(super) fn answer(&mut self, expected: &str) -> Result<Reply, Code> {
        loop {
            match self.event().expect("a server that speaks the protocol").expect("an open connection") {
                ServerEvent::Answered { tag, sent, result } => {
                    assert_eq!(tag, expected);
                    assert!((self.connection.asked_at()..=clock::now()).contains(&sent));
                    return result;
                }
                ServerEvent::Changed(change) => self.changes.push(change),
            }
        }
    }

    /// Makes a request and waits for its answer.
    pub(super) fn call(&mut self, request: &Request<'_>) -> Result<Reply, Code> {
        self.ask(request, "call");
        self.answer("call")
    }

    /// The watches that have fired and were not looked at yet.
    pub(super) fn changes(&mut self) -> Vec<WatchEvent> {
        std::mem::take(&mut self.changes)
    }

    /// Waits until a watch has fired.
    pub(super) fn change(&mut self) -> WatchEvent {
        match self.event() {
            Ok(Some(ServerEvent::Changed(change))) => change,
            other => panic!("no change: {other:?}"),
        }
    }

    /// Waits until the server has closed the connection; nothing else comes before that.
    pub(super) fn closed(&mut self) {
        assert_eq!(self.event(), Ok(None));
    }
}

/// The path of a node that was created.
#[track_caller]
pub(super) fn path_of(reply: Result<Reply, Code>) -> String {
    let Ok(Reply::Created { path, .. }) = reply else { panic!("not created: {reply:?}") };
    path
}

/// The data of a node and its stat.
#[track_caller]
pub(super) fn data_of(reply: Result<Reply, Code>) -> (Vec<u8>, NodeStat) {
    let Ok(Reply::Data { data, stat }) = reply else { panic!("no data: {reply:?}") };
    (data, stat)
}
