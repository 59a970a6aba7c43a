//! What is asked to change nodes of other sessions.

use super::Failure;
use super::channel::Channel;
use super::client::ClientSession;
use crate::zookeeper::request::{Operation, Request};

/// Like the functions of [`Session`](super::Session), these have queued their request when they return.
impl<C: Channel> ClientSession<C> {
    /// Stores data in a node. [`Failure::Changed`]: its data has another version.
    pub fn store<'s>(
        &'s self,
        path: &str,
        data: &[u8],
        version: i32,
    ) -> impl Future<Output = Result<(), Failure>> + use<'s, C> {
        let reply = self.ask(&Request::SetData { path, data, version: Some(version) });
        async move { reply.await.map(drop) }
    }

    /// Deletes all of these nodes, or none: [`Failure::NoNode`], if one of them does not exist.
    pub fn delete_together<'s>(&'s self, paths: &[String]) -> impl Future<Output = Result<(), Failure>> + use<'s, C> {
        let operations: Vec<_> = paths.iter().map(|path| Operation::Delete { path, version: None }).collect();
        let reply = self.ask(&Request::Multi(&operations));
        async move { reply.await.map(drop) }
    }
}
