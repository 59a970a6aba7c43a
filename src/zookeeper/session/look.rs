//! What is asked to look at locks, and not to take one.

use super::channel::Channel;
use super::client::ClientSession;
use super::{Expected, Failure, NodeStat};
use crate::rules::child_name::ChildName;
use crate::zookeeper::wire::reply::Reply;
use crate::zookeeper::wire::request::Request;

/// Like the functions of [`Session`](super::Session), these have queued their request when they return.
impl<C: Channel> ClientSession<C> {
    /// Whether there is this node. Newer servers (3.9.3) refuse to tell more of it to those who may not read it, and of
    /// one that is not there say so to all.
    pub async fn is_there(&self, path: &str) -> Result<bool, Failure> {
        match self.exists(path).await {
            Ok(stat) => Ok(stat.is_some()),
            Err(Failure::Denied) => Ok(true),
            Err(failure) => Err(failure),
        }
    }

    /// What the server says of a node. Older ones (3.8) say so even to those who may not read it. `Ok(None)`: there is
    /// none.
    pub fn exists(&self, path: &str) -> Expected<'_, Option<NodeStat>> {
        let reply = self.ask_for(&Request::Exists { path, watch: false }, None, |reply| match reply {
            Reply::Stat(stat) => Ok(Some(stat)),
            other => Err(other),
        });
        let missing = |failure| if failure == Failure::NoNode { Ok(None) } else { Err(failure) };
        Box::pin(async move { reply.await.or_else(missing) })
    }

    /// The names of the children of a node, in no order, and what the server says of the node.
    pub fn names_and_stat(&self, path: &str) -> Expected<'_, (Vec<ChildName>, NodeStat)> {
        self.ask_for(&Request::GetChildren2 { path, watch: false }, None, |reply| match reply {
            Reply::Children { names, stat: Some(stat) } => Ok((names, stat)),
            other => Err(other),
        })
    }
}
