//! The four letter word `srvr`, which servers answer on a connection of its own: no protocol, a text and the end.

use std::future::poll_fn;
use std::task::Poll;

use super::servers::{Address, Servers};
use super::tcp::TcpChannel;
use crate::system::reactor::Reactor;
use crate::zookeeper::session::channel::{Channel as _, is_for_later};

/// How the answer of a server begins that has no quorum, or is starting (`ZooKeeperServer.ZK_NOT_SERVING`).
pub const NOT_SERVING: &str = "This ZooKeeper instance is not currently serving requests";

/// How the answer begins otherwise.
pub const VERSION: &str = "Zookeeper version: ";

/// The longest answer that is read.
const LONGEST_ANSWER: usize = 64 * 1024;

/// What the server at this address answers; `None`, if it does not.
pub async fn srvr(servers: &Servers<'_>, reactor: &Reactor, address: Address<'_>) -> Option<String> {
    answer(TcpChannel::begin(servers, reactor, address).ok()?).await
}

pub(super) async fn answer(channel: TcpChannel<'_>) -> Option<String> {
    channel.connected().await.ok()?;
    // A word always has room.
    channel.write(b"srvr").ok()?;
    // On the heap, because this future is part of several others.
    let (mut bytes, mut answer) = (vec![0; 4096], vec![]);
    loop {
        let read = poll_fn(|_| match channel.read(&mut bytes) {
            Err(error) if is_for_later(&error) => {
                channel.wake_on_bytes(false);
                Poll::Pending
            }
            read => Poll::Ready(read),
        });
        let count = read.await.ok()?;
        answer.extend_from_slice(&bytes[..count]);
        if count == 0 || answer.len() >= LONGEST_ANSWER {
            return Some(String::from_utf8_lossy(&answer).into_owned());
        }
    }
}
