//! ZooKeeper's framing, as far as a proxy must read it: a length of four bytes, then a request that begins with xid and
//! opcode, or a reply that begins with xid, zxid and error (zookeeper.jute).

use std::mem;
use std::time::Duration;

macro_rules! ops {
    ($($name:ident = $code:literal)*) => {
        /// The kind of a request, with its number on the wire: ZooDefs.OpCode.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Op {
            $($name = $code,)*
            Unknown = 999,
        }

        impl Op {
            fn from_code(code: i32) -> Self {
                match code {
                    $($code => Self::$name,)*
                    _ => Self::Unknown,
                }
            }
        }
    };
}
// GetChildren2 and Create2 also give the node's stat.
ops! {
    Create = 1 Delete = 2 Exists = 3 GetData = 4 SetData = 5 SetAcl = 7 GetChildren = 8 Sync = 9 Ping = 11 GetChildren2 = 12
    Check = 13 Multi = 14 Create2 = 15 CreateContainer = 19 Auth = 100 SetWatches = 101 Sasl = 102 CloseSession = -11
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Request {
    /// The connection that it came on, counted from 0.
    pub(crate) connection: usize,
    pub(crate) op: Op,
    /// The path that it begins with, chroot and all; empty for a kind that has none.
    pub(crate) path: String,
    /// The number by which its reply is known, within the connection.
    pub(crate) xid: i32,
    /// Whether the server's reply has reached the proxy.
    pub(crate) is_answered: bool,
}

impl Request {
    /// Reads a frame from a client; `None` when it is no request.
    pub(crate) fn parse(connection: usize, frame: &Frame) -> Option<Self> {
        let payload = frame.payload()?;
        let (xid, rest) = int(payload)?;
        let (code, rest) = int(rest)?;
        let op = Op::from_code(code);
        let path = match op {
            // A multi begins with the header of its first part: type, done, error. The body of that part follows.
            Op::Multi => rest.get(9..).and_then(string),
            _ => string(rest),
        };
        Some(Self { connection, op, path: path.unwrap_or_default(), xid, is_answered: false })
    }
}

/// A server that makes a mistake about one node, as seen by its clients.
#[derive(Debug)]
pub(crate) struct Mistake {
    /// Chroot and all.
    path: String,
    kind: Wrong,
    /// The body of the last reply to `getData`, while the node was there.
    shown: Vec<u8>,
}

/// What a server does wrong. It may go on for good (ZOOKEEPER-5010).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// It tells no watcher of the deletion of the node.
    Silent,
    /// The same, and it goes on showing the node.
    Haunted,
    /// It does not show the node, which is there.
    Lacking,
}

impl Mistake {
    pub(crate) fn new(path: String, kind: Wrong) -> Self {
        Self { path, kind, shown: Vec::new() }
    }

    /// Changes a frame from the server, which answers `request` if it answers any. Returns whether the frame passes.
    pub(crate) fn change_reply(&mut self, request: Option<&Request>, frame: &mut Frame) -> bool {
        const HEADER: usize = 16;
        const NO_NODE: i32 = -101;
        let Some(payload) = frame.payload().filter(|payload| payload.len() >= HEADER) else { return true };
        let (header, body) = payload.split_at(HEADER);
        let error = i32::from_be_bytes(*header.last_chunk().expect("a whole header"));
        let Some(request) = request else {
            const EVENT: i32 = -1;
            const DELETED: i32 = 2;
            let is_event = int(header).is_some_and(|(xid, _)| xid == EVENT);
            let deleted = int(body).filter(|(kind, _)| *kind == DELETED).and_then(|(_, rest)| string(rest.get(4..)?));
            return self.kind == Wrong::Lacking || !(is_event && deleted.as_deref() == Some(&self.path));
        };
        let (parent, name) = self.path.rsplit_once('/').expect("a path");
        match request.op {
            Op::GetData if request.path == self.path && self.kind == Wrong::Lacking => frame.set_answer(NO_NODE, &[]),
            Op::GetData if request.path == self.path && error == 0 => self.shown = body.to_vec(),
            Op::GetData if request.path == self.path && error == NO_NODE && self.kind == Wrong::Haunted => {
                frame.set_answer(0, &self.shown);
            }
            Op::GetChildren if request.path == parent && error == 0 => {
                let length = i32::try_from(name.len()).expect("a short name");
                let name = [&length.to_be_bytes(), name.as_bytes()].concat();
                let (count, names) = int(body).expect("a list");
                let listed = names.windows(name.len()).position(|part| part == name);
                match (self.kind, listed) {
                    (Wrong::Haunted, None) => {
                        frame.set_answer(0, &[&(count + 1).to_be_bytes(), names, &name].concat());
                    }
                    (Wrong::Lacking, Some(at)) => {
                        let (before, rest) = (&names[..at], &names[at + name.len()..]);
                        frame.set_answer(0, &[&(count - 1).to_be_bytes(), before, rest].concat());
                    }
                    _ => {}
                }
            }
            _ => {}
        }
        true
    }
}

/// The xid of the request that a frame from a server answers; `None` when it answers none, as a watch's event.
pub(crate) fn answered_xid(frame: &Frame) -> Option<i32> {
    let (xid, _) = int(frame.payload()?)?;
    (xid >= 0).then_some(xid)
}

fn int(bytes: &[u8]) -> Option<(i32, &[u8])> {
    let (int, rest) = bytes.split_first_chunk()?;
    Some((i32::from_be_bytes(*int), rest))
}

fn string(bytes: &[u8]) -> Option<String> {
    let (length, rest) = int(bytes)?;
    String::from_utf8(rest.get(..usize::try_from(length).ok()?)?.to_vec()).ok()
}

#[derive(Debug)]
pub(crate) struct Frame {
    /// All of it, its length included.
    pub(crate) bytes: Vec<u8>,
    is_message: bool,
}

impl Frame {
    /// What follows the length; `None` when this is no request or reply.
    fn payload(&self) -> Option<&[u8]> {
        if self.is_message { self.bytes.get(4..) } else { None }
    }

    /// Makes the reply one with this error, 0 for none, and this body.
    fn set_answer(&mut self, error: i32, body: &[u8]) {
        // Length, xid and zxid come before the error.
        self.bytes.truncate(16);
        self.bytes.extend_from_slice(&error.to_be_bytes());
        self.bytes.extend_from_slice(body);
        let length = u32::try_from(self.bytes.len() - 4).expect("a short reply");
        self.bytes[..4].copy_from_slice(&length.to_be_bytes());
    }

    /// Changes the session timeout that is asked for, if this is the frame that opens a session.
    pub(crate) fn set_timeout(&mut self, timeout: Duration) {
        let millis = i32::try_from(timeout.as_millis()).expect("a timeout that fits the protocol");
        // Length, version and zxid come before it (zookeeper.jute, ConnectRequest).
        if !self.is_message
            && let Some(place) = self.bytes.get_mut(16..20)
        {
            place.copy_from_slice(&millis.to_be_bytes());
        }
    }

    /// Makes the request one of another kind.
    pub(crate) fn set_op(&mut self, op: Op) {
        // Length and xid come before it.
        self.bytes[8..12].copy_from_slice(&(op as i32).to_be_bytes());
    }
}

/// Cuts one direction of a connection into frames.
#[derive(Debug, Default)]
pub(crate) struct Frames {
    begun: Vec<u8>,
    reading: Reading,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Reading {
    /// The request or answer that opens a session. It has no header.
    #[default]
    Greeting,
    Messages,
    /// Not ZooKeeper's framing: bytes that pass as they come.
    Bytes,
}

/// The longest frame that is believed. A four-letter word, read as a length, is longer; so is garbage.
const LONGEST: usize = 64 << 20;

impl Frames {
    /// For a protocol that is not looked into.
    pub(crate) fn bytes() -> Self {
        Self { begun: Vec::new(), reading: Reading::Bytes }
    }

    /// The frames that are complete with these bytes.
    pub(crate) fn split(&mut self, bytes: &[u8]) -> Vec<Frame> {
        self.begun.extend_from_slice(bytes);
        let mut frames = Vec::new();
        while self.reading != Reading::Bytes {
            let Some(length) = self.begun.first_chunk().map(|length| u32::from_be_bytes(*length) as usize + 4) else {
                return frames;
            };
            if length > LONGEST {
                self.reading = Reading::Bytes;
                break;
            }
            if self.begun.len() < length {
                return frames;
            }
            let rest = self.begun.split_off(length);
            let is_message = self.reading == Reading::Messages;
            frames.push(Frame { bytes: mem::replace(&mut self.begun, rest), is_message });
            self.reading = Reading::Messages;
        }
        if !self.begun.is_empty() {
            frames.push(Frame { bytes: mem::take(&mut self.begun), is_message: false });
        }
        frames
    }
}
