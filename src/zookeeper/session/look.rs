//! What is asked to look at locks, and not to take one.

use super::channel::Channel;
use super::client::ClientSession;
use super::failure::unexpected;
use super::watch::Wanted;
use super::{Failure, Watch};
use crate::zookeeper::wire::reply::{Reply, Stat};
use crate::zookeeper::wire::request::Request;

/// Like the functions of [`Session`](super::Session), these have queued their request when they return. All of them set a
/// watch if `watched`; it completes when what was told here is no longer so.
impl<C: Channel> ClientSession<C> {
    /// The data of a node and all that the server says of it.
    pub fn look<'s>(
        &'s self,
        path: &str,
        watched: bool,
    ) -> impl Future<Output = Result<(Vec<u8>, Stat, Option<Watch>), Failure>> + use<'s, C> {
        let (wanted, watch) = Wanted::on(path, false);
        let request = Request::GetData { path, watch: watched };
        let reply = self.ask_and_watch(&request, watched.then_some(wanted));
        async move {
            match reply.await? {
                Reply::Data { data, stat } => Ok((data, stat, watched.then_some(watch))),
                other => Err(unexpected(&other)),
            }
        }
    }

    /// Whether there is this node. Newer servers (3.9.5) refuse to tell more of it to those who may not read it, and of
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
    pub fn exists<'s>(
        &'s self,
        path: &str,
        watched: bool,
    ) -> impl Future<Output = Result<(Option<Stat>, Option<Watch>), Failure>> + use<'s, C> {
        let (wanted, watch) = Wanted::on(path, true);
        let request = Request::Exists { path, watch: watched };
        let reply = self.ask_and_watch(&request, watched.then_some(wanted));
        async move {
            let stat = match reply.await {
                Ok(Reply::Stat(stat)) => Some(stat),
                Err(Failure::NoNode) => None,
                Ok(other) => return Err(unexpected(&other)),
                Err(failure) => return Err(failure),
            };
            Ok((stat, watched.then_some(watch)))
        }
    }

    /// The names of the children of a node, in no order.
    pub fn names<'s>(
        &'s self,
        path: &str,
        watched: bool,
    ) -> impl Future<Output = Result<(Vec<String>, Option<Watch>), Failure>> + use<'s, C> {
        let (wanted, watch) = Wanted::on(path, false);
        let request = Request::GetChildren { path, watch: watched };
        let reply = self.ask_and_watch(&request, watched.then_some(wanted));
        async move {
            match reply.await? {
                Reply::Children { names, .. } => Ok((names, watched.then_some(watch))),
                other => Err(unexpected(&other)),
            }
        }
    }

    /// The names of the children of a node, in no order, and what the server says of the node. Without a watch.
    pub fn names_and_stat<'s>(
        &'s self,
        path: &str,
    ) -> impl Future<Output = Result<(Vec<String>, Stat), Failure>> + use<'s, C> {
        let reply = self.ask(&Request::GetChildren2 { path, watch: false });
        async move {
            match reply.await? {
                Reply::Children { names, stat: Some(stat) } => Ok((names, stat)),
                other => Err(unexpected(&other)),
            }
        }
    }
}
