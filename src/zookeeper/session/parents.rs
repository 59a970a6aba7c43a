//! The nodes above a contender.

use super::channel::Channel;
use super::client::ClientSession;
use super::{Failure, acl};
use crate::zookeeper::wire::request::{NewNode, NodeKind, Request};

impl<C: Channel> ClientSession<C> {
    /// Creates the node at `path` and those above it, as far as they are missing. What fails is named by its path.
    pub(super) async fn create_each_above(&self, path: &str, containers: bool) -> Result<(), (Failure, String)> {
        let ends = path.match_indices('/').map(|(end, _)| end).filter(|end| *end > 0).chain([path.len()]);
        let create = |end| {
            let node = NewNode { path: &path[..end], data: &[], acl: acl::of_parent(self.protection()) };
            let kind = NodeKind::Persistent;
            (end, self.ask(&if containers { Request::CreateContainer(node) } else { Request::Create { node, kind } }))
        };
        // All requests leave together, before the first reply is awaited.
        let replies: Vec<_> = ends.map(create).collect();
        let mut failed = None;
        for (end, reply) in replies {
            match reply.await {
                // It is there, so it does not matter that one above it could not be created.
                Err(Failure::Exists) | Ok(_) => failed = None,
                // The server closes the connection, and answers nothing more.
                Err(Failure::Unimplemented) => return Err((Failure::Unimplemented, path.to_owned())),
                // The reason is what happened to those above it.
                Err(Failure::NoNode) => failed = failed.or(Some((Failure::NoNode, end))),
                Err(other) => failed = Some((other, end)),
            }
        }
        failed.map_or(Ok(()), |(failure, end)| Err((failure, path[..end].to_owned())))
    }
}
