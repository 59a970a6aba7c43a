//! Nodes that outlive a session: what is written beside a lock.

use super::acl;
use crate::zookeeper::login::Protection;
use crate::zookeeper::wire::request::{NewNode, NodeKind, Request};

/// Data for the node of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordWrite {
    pub path: String,
    pub data: Vec<u8>,
    pub replaces: Replaced,
}

/// What the data are to replace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// Nothing: the node is created ([`Failure::Exists`](super::Failure::Exists)).
    Nothing,
    /// Whatever the node has.
    Anything,
    /// This version ([`Failure::Changed`](super::Failure::Changed)).
    Version(i32),
}

impl RecordWrite {
    pub(super) fn request(&self, protection: Protection) -> Request<'_> {
        let Self { path, data, replaces } = self;
        let version = match replaces {
            Replaced::Nothing => {
                let node = NewNode { path, data, acl: acl::of_node(protection) };
                return Request::Create { node, kind: NodeKind::Persistent };
            }
            Replaced::Anything => None,
            Replaced::Version(version) => Some(*version),
        };
        Request::SetData { path, data, version }
    }
}
