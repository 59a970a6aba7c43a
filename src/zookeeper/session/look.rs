//! What is asked to look at locks, and not to take one.

use super::channel::Channel;
use super::client::ClientSession;
use super::watch::Wanted;
use super::{Expected, Failure, NodeStat, Watch};
use crate::rules::child_name::ChildName;
use crate::zookeeper::wire::reply::Reply;
use crate::zookeeper::wire::request::Request;

/// Like the functions of [`Session`](super::Session), these have queued their request when they return. All of them set a
/// watch if `watched`; it completes when what was told here is no longer so.
impl<C: Channel> ClientSession<C> {
    /// The data of a node and all that the server says of it.
    pub fn look(&self, path: &str, watched: bool) -> Expected<'_, (Vec<u8>, NodeStat, Option<Watch>)> {
        let (wanted, watch) = watched.then(|| Wanted::on(path, false)).unzip();
        self.ask_for(&Request::GetData { path, watch: watched }, wanted, |reply| match reply {
            Reply::Data { data, stat } => Ok((data, stat, watch)),
            other => Err(other),
        })
    }

    /// Whether there is this node. Newer servers (3.9.3) refuse to tell more of it to those who may not read it, and of
    /// one that is not there say so to all.
    pub async fn is_there(&self, path: &str) -> Result<bool, Failure> {
        match self.exists(path, false).await {
            Ok((stat, _)) => Ok(stat.is_some()),
            Err(Failure::Denied) => Ok(true),
            Err(failure) => Err(failure),
        }
    }

    /// What the server says of a node. Older ones (3.8) say so even to those who may not read it. `Ok(None)`: there is
    /// none.
    pub fn exists(&self, path: &str, watched: bool) -> Expected<'_, (Option<NodeStat>, Option<Watch>)> {
        let (wanted, watch) = watched.then(|| Wanted::on(path, true)).unzip();
        let reply = self.ask_for(&Request::Exists { path, watch: watched }, wanted, |reply| match reply {
            Reply::Stat(stat) => Ok(Some(stat)),
            other => Err(other),
        });
        let missing = |failure| if failure == Failure::NoNode { Ok(None) } else { Err(failure) };
        Box::pin(async move { Ok((reply.await.or_else(missing)?, watch)) })
    }

    /// The names of the children of a node, in no order.
    pub fn names(&self, path: &str, watched: bool) -> Expected<'_, (Vec<ChildName>, Option<Watch>)> {
        let (wanted, watch) = watched.then(|| Wanted::on(path, false)).unzip();
        self.ask_for(&Request::GetChildren { path, watch: watched }, wanted, |reply| match reply {
            Reply::Children { names, .. } => Ok((names, watch)),
            other => Err(other),
        })
    }

    /// The names of the children of a node, in no order, and what the server says of the node. Without a watch.
    pub fn names_and_stat(&self, path: &str) -> Expected<'_, (Vec<ChildName>, NodeStat)> {
        self.ask_for(&Request::GetChildren2 { path, watch: false }, None, |reply| match reply {
            Reply::Children { names, stat: Some(stat) } => Ok((names, stat)),
            other => Err(other),
        })
    }
}
