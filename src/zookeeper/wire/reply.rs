//! Replies and events, and how they are read.

use super::error::{Code, Malformed};
use super::records::JuteReader;
use crate::rules::child_name::ChildName;

/// The xid of an event (`ClientCnxn.NOTIFICATION_XID`).
pub(super) const NOTIFICATION: i32 = -1;

/// What begins a reply (jute `ReplyHeader`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) xid: i32,
    pub(super) refusal: Option<Code>,
}

impl Header {
    pub(super) fn read(from: &mut JuteReader<'_>) -> Result<Self, Malformed> {
        // The last transaction that the server knew is between them.
        let (xid, _zxid) = (from.int()?, from.long()?);
        Ok(Self { xid, refusal: Code::from_wire(from.int()?) })
    }
}

/// What a server says of a node: the fields of jute's `Stat` that matter here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeStat {
    /// The transaction that created it: the fencing token of a contender.
    pub czxid: i64,
    /// When it was created, in milliseconds since the Unix epoch on ZooKeeper's clock.
    pub created: i64,
    /// When its data were written last, likewise.
    pub written: i64,
    /// How often its data were written after its creation.
    pub version: i32,
    /// The session that it belongs to, 0 for a node that outlives its session.
    pub owner: i64,
}

impl NodeStat {
    fn read(from: &mut JuteReader<'_>) -> Result<Self, Malformed> {
        let (czxid, _mzxid) = (from.long()?, from.long()?);
        let (created, written) = (from.long()?, from.long()?);
        let (version, _cversion, _aversion) = (from.int()?, from.int()?, from.int()?);
        let owner = from.long()?;
        let (_data_length, _num_children, _pzxid) = (from.int()?, from.int()?, from.long()?);
        Ok(Self { czxid, created, written, version, owner })
    }
}

/// The result of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Done,
    Created {
        /// Its path below the chroot, with its number.
        path: String,
        /// Only in reply to some requests, and some servers leave it out.
        stat: Option<NodeStat>,
    },
    Stat(NodeStat),
    Data {
        /// Empty if the node has none.
        data: Vec<u8>,
        stat: NodeStat,
    },
    Children {
        /// Their names, in no order.
        names: Vec<ChildName>,
        /// The stat of the node, in reply to `getChildren2`.
        stat: Option<NodeStat>,
    },
    /// What SASL has to say; empty if that is nothing.
    Token(Vec<u8>),
    /// The results of the operations of a multi, in their order.
    Multi(Vec<Self>),
}

/// What is in the reply to a request, unless it is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ReplyForm {
    /// The record for the request with this opcode.
    One(i32),
    /// `MultiResponse`, for operations with these opcodes.
    Multi(Vec<i32>),
}

impl ReplyForm {
    /// Reads what comes after the header. `Ok(Err(_))`: a multi was refused, and its record says why.
    pub(super) fn read(&self, from: &mut JuteReader<'_>, chroot: &str) -> Result<Result<Reply, Code>, Malformed> {
        match self {
            Self::One(code) => Ok(Ok(read_one(*code, from, chroot)?)),
            Self::Multi(operations) => read_multi(operations, from, chroot),
        }
    }
}

/// Reads the record for the request with this opcode (`ZooDefs.OpCode`).
fn read_one(code: i32, from: &mut JuteReader<'_>, chroot: &str) -> Result<Reply, Malformed> {
    Ok(match code {
        // `CreateResponse`
        CREATE => Reply::Created { path: path(from, chroot)?, stat: None },
        // `Create2Response`, also for a container
        CREATE2 | 19 => Reply::Created { path: path(from, chroot)?, stat: Some(NodeStat::read(from)?) },
        // `ExistsResponse`, `SetDataResponse`
        3 | 5 => Reply::Stat(NodeStat::read(from)?),
        // `GetDataResponse`
        4 => Reply::Data { data: from.buffer()?.to_vec(), stat: NodeStat::read(from)? },
        // `GetChildrenResponse`, `GetChildren2Response`
        8 => Reply::Children { names: child_names(from)?, stat: None },
        12 => Reply::Children { names: child_names(from)?, stat: Some(NodeStat::read(from)?) },
        // `SetSASLResponse`
        102 => Reply::Token(from.buffer()?.to_vec()),
        // No record, or nothing new in it (`SyncResponse`).
        _ => Reply::Done,
    })
}

/// The opcodes of results in a multi that are told apart (`ZooDefs.OpCode`).
pub(super) const CREATE: i32 = 1;
pub(super) const CREATE2: i32 = 15;
const ERROR: i32 = -1;

/// Reads a `MultiResponse`: for each operation a `MultiHeader` and the record of its kind, then an end mark.
///
/// If one operation is refused, there are only errors: 0 for the operations before it, its own, and
/// `RuntimeInconsistency` for those after it (`PrepRequestProcessor`, `DataTree.processTxn`).
fn read_multi(operations: &[i32], from: &mut JuteReader<'_>, chroot: &str) -> Result<Result<Reply, Code>, Malformed> {
    let mut results = vec![];
    let mut errors = vec![];
    loop {
        let (kind, is_end, _error) = (from.int()?, from.boolean()?, from.int()?);
        if is_end {
            break;
        }
        let operation = operations.get(results.len() + errors.len()).ok_or(Malformed::IncompleteMulti)?;
        // A server may leave out the stat of a create2 (ZOOKEEPER-4026).
        let fits = kind == *operation || (kind, *operation) == (CREATE, CREATE2);
        if kind == ERROR {
            errors.push(Code::from_wire(from.int()?));
        } else if !fits {
            return Err(Malformed::UnexpectedResult(kind));
        } else {
            results.push(read_one(kind, from, chroot)?);
        }
    }
    if results.len() + errors.len() != operations.len() {
        return Err(Malformed::IncompleteMulti);
    }
    if errors.is_empty() {
        return Ok(Ok(Reply::Multi(results)));
    }
    let reason = errors.into_iter().flatten().find(|code| *code != Code::RuntimeInconsistency);
    Ok(Err(reason.ok_or(Malformed::IncompleteMulti)?))
}

/// What became of a watched node (`Watcher.Event.EventType`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    Deleted,
    /// Any other change: it was created, its data were written, a child came or went.
    Other,
}

/// A watch has fired, and is used up (jute `WatcherEvent`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WatchEvent {
    pub change: Change,
    /// To which node, below the chroot.
    pub path: String,
}

impl WatchEvent {
    /// `None`: it is about no node.
    pub(super) fn read(from: &mut JuteReader<'_>, chroot: &str) -> Result<Option<Self>, Malformed> {
        let change = match from.int()? {
            -1 => return Ok(None),
            2 => Change::Deleted,
            _ => Change::Other,
        };
        // The state of the session: connected.
        let _state = from.int()?;
        Ok(Some(Self { change, path: path(from, chroot)? }))
    }
}

/// Reads the names of children. One that no server has a node of makes the whole reply worthless.
fn child_names(from: &mut JuteReader<'_>) -> Result<Vec<ChildName>, Malformed> {
    from.vector(4, |from| ChildName::parse(from.string()?).ok_or(Malformed::ChildName))
}

/// Reads a path and takes the chroot off it.
fn path(from: &mut JuteReader<'_>, chroot: &str) -> Result<String, Malformed> {
    let path = from.string()?;
    match path.strip_prefix(chroot) {
        Some("") => Ok("/".to_owned()),
        Some(below) if below.starts_with('/') => Ok(below.to_owned()),
        _ => Err(Malformed::OutsideChroot),
    }
}

#[cfg(test)]
mod tests;
