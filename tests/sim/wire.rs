//! The server's side of ZooKeeper's protocol: requests are read, replies are written.
//!
//! It is written against `zookeeper.jute` and the server's sources, not against `src/zookeeper/`, of which it uses only
//! what writes and reads single values.

use std::rc::Rc;

use zklock::rules::last_run;
use zklock::rules::lock_delay::{self, HolderRecord};
use zklock::zookeeper::session::NodeStat;
use zklock::zookeeper::wire::error::Malformed;
use zklock::zookeeper::wire::frames::Inbox;
use zklock::zookeeper::wire::records::{JuteReader, JuteWriter};

use crate::state::{MS, Time};

/// `KeeperException.Code`
pub(crate) const RUNTIME_INCONSISTENCY: i32 = -2;
pub(crate) const NO_NODE: i32 = -101;
pub(crate) const BAD_VERSION: i32 = -103;
pub(crate) const NODE_EXISTS: i32 = -110;
pub(crate) const NOT_EMPTY: i32 = -111;
pub(crate) const SESSION_EXPIRED: i32 = -112;
pub(crate) const SESSION_MOVED: i32 = -118;
pub(crate) const THROTTLED: i32 = -127;

/// `ZooDefs.OpCode`
mod code {
    pub(super) const CREATE: i32 = 1;
    pub(super) const DELETE: i32 = 2;
    pub(super) const GET_DATA: i32 = 4;
    pub(super) const SET_DATA: i32 = 5;
    pub(super) const GET_CHILDREN: i32 = 8;
    pub(super) const SYNC: i32 = 9;
    pub(super) const PING: i32 = 11;
    pub(super) const CHECK: i32 = 13;
    pub(super) const MULTI: i32 = 14;
    pub(super) const CREATE2: i32 = 15;
    pub(super) const CREATE_CONTAINER: i32 = 19;
    pub(super) const CLOSE: i32 = -11;
    pub(super) const ERROR: i32 = -1;
}

/// `ClientCnxn.NOTIFICATION_XID`
const NOTIFICATION: i32 = -1;

/// The longest packet that a server takes (`jute.maxbuffer`).
const LONGEST: usize = 0xf_ffff;

/// The first request of a connection (`ConnectRequest`).
pub(crate) struct Hello {
    /// The last transaction that the client has seen.
    pub(crate) last_zxid: i64,
    /// The session timeout that it asks for.
    pub(crate) timeout: Time,
    /// The session that it wants to resume, 0 for a new one.
    pub(crate) session: i64,
    pub(crate) password: Vec<u8>,
}

pub(crate) enum Request {
    /// A single write, or several in a multi.
    Write {
        operations: Vec<Operation>,
        is_multi: bool,
    },
    Close,
    Sync(String),
    Ping,
    Children(String),
    Data {
        path: String,
        watch: bool,
    },
}

pub(crate) enum Operation {
    Create {
        path: String,
        data: Rc<[u8]>,
        is_ephemeral: bool,
        is_sequential: bool,
        /// The code of the request.
        kind: i32,
    },
    Delete(String),
    /// With the version that the node must have, or -1.
    Set(String, Rc<[u8]>, i32),
    Check(String),
}

/// The result of an operation.
pub(crate) enum Done {
    Created { path: String, stat: NodeStat, kind: i32 },
    Set(NodeStat),
    Deleted,
    Checked,
}

/// The reply to a request: its error, 0 for none, and its record.
#[derive(Clone)]
pub(crate) struct Answer {
    error: i32,
    record: Vec<u8>,
}

/// The packets of a connection that have come, and the bytes of those that have not come as a whole.
#[derive(Default)]
pub(crate) struct Packets(Inbox);

impl Packets {
    pub(crate) fn push(&mut self, bytes: &[u8]) {
        self.0.push(bytes);
    }

    pub(crate) fn next_hello(&mut self) -> Result<Option<Hello>, Malformed> {
        let Some(packet) = self.0.next_packet(LONGEST)? else { return Ok(None) };
        let mut from = JuteReader::new(packet);
        let _protocol = from.int()?;
        let (last_zxid, timeout) = (from.long()?, from.int()?);
        let timeout = Time::try_from(timeout).unwrap_or(0) * MS;
        let (session, password) = (from.long()?, from.buffer()?.to_vec());
        let read_only = from.boolean()?;
        assert!(!read_only && from.is_empty());
        Ok(Some(Hello { last_zxid, timeout, session, password }))
    }

    /// Returns a request and its xid.
    pub(crate) fn next_request(&mut self) -> Result<Option<(i32, Request)>, Malformed> {
        let Some(packet) = self.0.next_packet(LONGEST)? else { return Ok(None) };
        let mut from = JuteReader::new(packet);
        let (xid, kind) = (from.int()?, from.int()?);
        let request = match kind {
            code::MULTI => Request::Write { operations: read_multi(&mut from)?, is_multi: true },
            code::CLOSE => Request::Close,
            code::PING => Request::Ping,
            code::SYNC => Request::Sync(from.string()?),
            code::GET_CHILDREN => {
                let (path, watch) = (from.string()?, from.boolean()?);
                assert!(!watch, "the children of {path} are watched");
                Request::Children(path)
            }
            code::GET_DATA => Request::Data { path: from.string()?, watch: from.boolean()? },
            _ => Request::Write { operations: vec![read_operation(kind, &mut from)?], is_multi: false },
        };
        assert!(from.is_empty(), "a request of kind {kind} with more in it than servers read");
        Ok(Some((xid, request)))
    }
}

fn read_multi(from: &mut JuteReader<'_>) -> Result<Vec<Operation>, Malformed> {
    let mut operations = vec![];
    loop {
        let (kind, is_end, _error) = (from.int()?, from.boolean()?, from.int()?);
        if is_end {
            return Ok(operations);
        }
        operations.push(read_operation(kind, from)?);
    }
}

fn read_operation(kind: i32, from: &mut JuteReader<'_>) -> Result<Operation, Malformed> {
    // A version is given with data alone.
    let path = from.string()?;
    let operation = match kind {
        code::CREATE | code::CREATE2 | code::CREATE_CONTAINER => {
            let data = Rc::from(from.buffer()?);
            let permissions = from.vector(12, |from| {
                let permissions = from.int()?;
                from.string()?;
                from.string().map(|_| permissions)
            })?;
            assert_eq!(permissions, [31], "who may use {path}");
            let flags = from.int()?;
            assert_eq!(flags == 4, kind == code::CREATE_CONTAINER);
            Operation::Create { path, data, is_ephemeral: flags & 1 != 0, is_sequential: flags & 2 != 0, kind }
        }
        code::DELETE => Operation::Delete(path).at_any_version(from)?,
        code::CHECK => Operation::Check(path).at_any_version(from)?,
        code::SET_DATA => {
            let data = Rc::from(from.buffer()?);
            Operation::Set(path, data, from.int()?)
        }
        kind => return Err(Malformed::UnexpectedResult(kind)),
    };
    Ok(operation)
}

impl Operation {
    /// Whether it writes the record of a successful run.
    pub(crate) fn is_of_record(&self) -> bool {
        match self {
            Self::Create { path, .. } | Self::Set(path, ..) => path.ends_with(&last_run::path("")),
            Self::Delete(_) | Self::Check(_) => false,
        }
    }

    /// The record of a holder that it writes.
    pub(crate) fn holder_record(&self) -> Option<HolderRecord> {
        match self {
            Self::Create { path, data, .. } | Self::Set(path, data, _) if lock_delay::is_record(path) => {
                HolderRecord::from_bytes(data)
            }
            _ => None,
        }
    }

    fn at_any_version(self, from: &mut JuteReader<'_>) -> Result<Self, Malformed> {
        assert_eq!(from.int()?, -1, "a version");
        Ok(self)
    }
}

/// Makes a packet of what `write` writes, and of what follows.
fn packet(write: impl FnOnce(&mut JuteWriter<'_>), rest: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    write(&mut JuteWriter::new(&mut bytes));
    bytes.extend_from_slice(rest);
    let length = u32::try_from(bytes.len() - 4).expect("a short packet");
    bytes[..4].copy_from_slice(&length.to_be_bytes());
    bytes
}

/// The answer to the first request of a connection (`ConnectResponse`). Without a session: that which was to be resumed
/// is over.
pub(crate) fn welcome(session: Option<(i64, Time, [u8; 16])>) -> Vec<u8> {
    let (id, timeout, password) = session.unwrap_or_default();
    let write = |to: &mut JuteWriter<'_>| {
        to.int(0);
        to.int(i32::try_from(timeout / MS).expect("a timeout"));
        to.long(id);
        to.buffer(&password);
        to.boolean(false);
    };
    packet(write, &[])
}

/// A reply (`ReplyHeader`, and the record). `zxid`: the last transaction that the server knows.
pub(crate) fn reply(xid: i32, zxid: i64, answer: &Answer) -> Vec<u8> {
    let header = |to: &mut JuteWriter<'_>| {
        to.int(xid);
        to.long(zxid);
        to.int(answer.error);
    };
    packet(header, &answer.record)
}

/// The event of a watch (`WatcherEvent`).
pub(crate) fn event(path: &str, is_deleted: bool) -> Vec<u8> {
    let write = |to: &mut JuteWriter<'_>| {
        to.int(NOTIFICATION);
        to.long(-1);
        to.int(0);
        to.int(if is_deleted { 2 } else { 3 });
        // KeeperState.SyncConnected
        to.int(3);
        to.string(path);
    };
    packet(write, &[])
}

fn stat(to: &mut JuteWriter<'_>, stat: NodeStat) {
    to.long(stat.czxid);
    to.long(stat.czxid);
    to.long(stat.created);
    to.long(stat.written);
    to.int(stat.version);
    // cversion and aversion
    to.int(0);
    to.int(0);
    to.long(stat.owner);
    // dataLength and numChildren
    to.int(0);
    to.int(0);
    to.long(stat.czxid);
}

impl Done {
    const fn code(&self) -> i32 {
        match self {
            Self::Created { kind, .. } => *kind,
            Self::Set(_) => code::SET_DATA,
            Self::Deleted => code::DELETE,
            Self::Checked => code::CHECK,
        }
    }

    fn write(&self, to: &mut JuteWriter<'_>) {
        match self {
            Self::Created { path, kind: code::CREATE, .. } => to.string(path),
            Self::Created { path, stat: node, .. } => {
                to.string(path);
                stat(to, *node);
            }
            Self::Set(node) => stat(to, *node),
            Self::Deleted | Self::Checked => {}
        }
    }
}

impl Answer {
    fn success(write: impl FnOnce(&mut JuteWriter<'_>)) -> Self {
        let mut record = vec![];
        write(&mut JuteWriter::new(&mut record));
        Self { error: 0, record }
    }

    /// Nothing but success.
    pub(crate) fn done() -> Self {
        Self::success(|_| {})
    }

    /// The request as a whole has failed.
    pub(crate) fn error(error: i32) -> Self {
        Self { error, record: vec![] }
    }

    /// The answer to a sync.
    pub(crate) fn synced(path: &str) -> Self {
        Self::success(|to| to.string(path))
    }

    pub(crate) fn children<'n>(names: impl Iterator<Item = &'n str>) -> Self {
        Self::success(|to| to.vector(&names.collect::<Vec<_>>(), |to, name| to.string(name)))
    }

    pub(crate) fn data(data: &[u8], node: NodeStat) -> Self {
        Self::success(|to| {
            to.buffer(data);
            stat(to, node);
        })
    }

    /// The answer to a write: its results, or the number of the operation that has failed and why.
    pub(crate) fn written(results: &Result<Vec<Done>, (usize, i32)>, operations: usize, is_multi: bool) -> Self {
        match results {
            Ok(results) if is_multi => Self::success(|to| {
                for result in results {
                    multi_header(to, result.code(), false, 0);
                    result.write(to);
                }
                multi_header(to, -1, true, -1);
            }),
            Ok(results) => Self::success(|to| results.iter().for_each(|result| result.write(to))),
            Err((failed, error)) if is_multi => Self::success(|to| {
                for index in 0..operations {
                    let error = match index.cmp(failed) {
                        std::cmp::Ordering::Less => 0,
                        std::cmp::Ordering::Equal => *error,
                        std::cmp::Ordering::Greater => RUNTIME_INCONSISTENCY,
                    };
                    multi_header(to, code::ERROR, false, error);
                    to.int(error);
                }
                multi_header(to, -1, true, -1);
            }),
            Err((_, error)) => Self::error(*error),
        }
    }
}

fn multi_header(to: &mut JuteWriter<'_>, kind: i32, is_end: bool, error: i32) {
    to.int(kind);
    to.boolean(is_end);
    to.int(error);
}
