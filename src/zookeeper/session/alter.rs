//! What is asked to change nodes of other sessions, or to find out whether that is permitted.

use super::channel::Channel;
use super::client::ClientSession;
use super::{Expected, Failure, Session as _, acl};
use crate::zookeeper::wire::request::{NewNode, NodeKind, Request};

/// Like the functions of [`Session`](super::Session), these have queued their request when they return.
impl<C: Channel> ClientSession<C> {
    /// Stores data in a node. [`Failure::Changed`]: its data has another version.
    pub fn store(&self, path: &str, data: &[u8], version: i32) -> Expected<'_, ()> {
        self.ask_to_do(&Request::SetData { path, data, version: Some(version) })
    }

    /// Asks whether a child may be created below `lock`, with these missing `parents` above it (`lock` included, where it
    /// is missing). [`Failure::Denied`], if not.
    ///
    /// Nothing is created: the transaction ends with a check that fails. Servers look at the ACLs of all operations
    /// in their order, and apply none if one fails (`PrepRequestProcessor`).
    pub fn rehearse(&self, parents: &[String], lock: &str) -> Expected<'_, ()> {
        let child = format!("{lock}/zklock-check-{:016x}", self.id());
        let missing = format!("{child}-missing");
        let node = |path| NewNode { path, data: &[], acl: acl::of_node(self.protection()) };
        let mut operations: Vec<_> =
            parents.iter().map(|path| Request::Create { node: node(path), kind: NodeKind::Persistent }).collect();
        operations.push(Request::Create { node: node(&child), kind: NodeKind::Ephemeral });
        operations.push(Request::Check { path: &missing, version: None });
        let reply = self.ask(&Request::Multi(&operations));
        Box::pin(async move {
            match reply.await {
                Err(Failure::NoNode) => Ok(()),
                Ok(_) => {
                    Err(Failure::Refused("a transaction was carried out although one of its checks fails".to_owned()))
                }
                Err(failure) => Err(failure),
            }
        })
    }
}
