//! Requests as bytes.

use super::{NewNode, NodeKind, Request};
use crate::zookeeper::wire::records::JuteWriter;
use crate::zookeeper::wire::reply::{CREATE, CREATE2, ReplyForm};

/// The flag of a container in a `CreateRequest` (`CreateMode.CONTAINER`).
const CONTAINER: i32 = 4;

/// The xids of requests, and of their replies, that may come out of turn (`ClientCnxn.PING_XID`, `AUTHPACKET_XID`).
pub(in crate::zookeeper::wire) const PING: i32 = -2;
pub(in crate::zookeeper::wire) const AUTH: i32 = -4;

impl NodeKind {
    const fn flags(self) -> i32 {
        match self {
            Self::Persistent => 0,
            Self::Ephemeral => 1,
            Self::EphemeralSequential => 3,
        }
    }
}

/// The paths of one connection, written with its chroot before them.
struct Paths<'c>(&'c str);

impl Paths<'_> {
    fn path(&self, to: &mut JuteWriter<'_>, path: &str) {
        let path = if path == "/" && !self.0.is_empty() { "" } else { path };
        to.joined(self.0, path);
    }

    /// `CreateRequest`
    fn node(&self, to: &mut JuteWriter<'_>, node: &NewNode<'_>, flags: i32) {
        self.path(to, node.path);
        to.buffer(node.data);
        to.vector(node.acl, |to, acl| {
            to.int(acl.permissions);
            to.string(acl.scheme);
            to.string(acl.id);
        });
        to.int(flags);
    }
}

/// Begins a part of a multi, or ends it (jute `MultiHeader`).
fn multi_header(to: &mut JuteWriter<'_>, code: i32, is_end: bool) {
    to.int(code);
    to.boolean(is_end);
    to.int(-1);
}

impl Request<'_> {
    pub fn creates(&self) -> bool {
        match self {
            Self::Create { .. } | Self::Create2 { .. } | Self::CreateContainer(_) => true,
            Self::Multi(operations) => operations.iter().any(Self::creates),
            _ => false,
        }
    }

    /// Its number (`ZooDefs.OpCode`).
    const fn code(&self) -> i32 {
        match self {
            Self::Create { .. } => CREATE,
            Self::Delete { .. } => 2,
            Self::Exists { .. } => 3,
            Self::GetData { .. } => 4,
            Self::SetData { .. } => 5,
            Self::GetChildren { .. } => 8,
            Self::Sync { .. } => 9,
            Self::Ping => 11,
            Self::GetChildren2 { .. } => 12,
            Self::Check { .. } => 13,
            Self::Multi(_) => 14,
            Self::Create2 { .. } => CREATE2,
            Self::CreateContainer(_) => 19,
            Self::Auth { .. } => 100,
            Self::Sasl(_) => 102,
            Self::Close => -11,
        }
    }

    /// The xid of a request whose reply may come out of turn.
    pub(in crate::zookeeper::wire) const fn fixed_xid(&self) -> Option<i32> {
        match self {
            Self::Ping => Some(PING),
            Self::Auth { .. } => Some(AUTH),
            _ => None,
        }
    }

    pub(in crate::zookeeper::wire) fn form(&self) -> ReplyForm {
        match self {
            Self::Multi(operations) => ReplyForm::Multi(operations.iter().map(Self::code).collect()),
            request => ReplyForm::One(request.code()),
        }
    }

    /// Appends the request as a packet: its length, `RequestHeader`, and the record of its kind.
    pub(in crate::zookeeper::wire) fn write(&self, xid: i32, chroot: &str, bytes: &mut Vec<u8>) {
        let begin = bytes.len();
        let mut to = JuteWriter::new(bytes);
        // The length, which is not known yet.
        to.int(0);
        to.int(xid);
        to.int(self.code());
        self.write_record(&Paths(chroot), &mut to);
        let length = u32::try_from(bytes.len() - begin - 4).unwrap_or(u32::MAX);
        bytes[begin..begin + 4].copy_from_slice(&length.to_be_bytes());
    }

    fn write_record(&self, paths: &Paths<'_>, to: &mut JuteWriter<'_>) {
        match self {
            Self::Create { node, kind } | Self::Create2 { node, kind } => paths.node(to, node, kind.flags()),
            Self::CreateContainer(node) => paths.node(to, node, CONTAINER),
            Self::Delete { path, version } | Self::Check { path, version } => {
                paths.path(to, path);
                to.int(version.unwrap_or(-1));
            }
            Self::SetData { path, data, version } => {
                paths.path(to, path);
                to.buffer(data);
                to.int(version.unwrap_or(-1));
            }
            Self::Multi(operations) => {
                for operation in *operations {
                    multi_header(to, operation.code(), false);
                    operation.write_record(paths, to);
                }
                multi_header(to, -1, true);
            }
            Self::Exists { path, watch }
            | Self::GetData { path, watch }
            | Self::GetChildren { path, watch }
            | Self::GetChildren2 { path, watch } => {
                paths.path(to, path);
                to.boolean(*watch);
            }
            Self::Sync { path } => paths.path(to, path),
            Self::Ping | Self::Close => {}
            Self::Auth { scheme, credentials } => {
                // The type of an AuthPacket, which servers do not read.
                to.int(0);
                to.string(scheme);
                to.buffer(credentials.0);
            }
            Self::Sasl(token) => to.buffer(token.0),
        }
    }
}

#[cfg(test)]
mod tests;
