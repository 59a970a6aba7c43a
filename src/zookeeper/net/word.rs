//! The four letter words that servers answer on a connection of its own: no protocol, a text and the end.

use std::future::poll_fn;
use std::net::SocketAddr;
use std::task::Poll;

use super::tcp::TcpChannel;
use crate::zookeeper::session::channel::{Channel as _, is_for_later};

/// How the answer of a server begins that has no quorum, or is starting (`ZooKeeperServer.ZK_NOT_SERVING`).
pub const NOT_SERVING: &str = "This ZooKeeper instance is not currently serving requests";

/// How the answer to `srvr` begins.
pub const VERSION: &str = "Zookeeper version: ";

/// The longest answer that is read. That to `cons` has two hundred bytes for each connection.
const LONGEST_ANSWER: usize = 1024 * 1024;

/// What a server answers to a word, and from which address it was asked; `None`, if the answer does not come. `whole`: up
/// to its end, and not just what comes first.
pub(super) async fn answer_to(word: &str, channel: TcpChannel<'_>, whole: bool) -> Option<(String, SocketAddr)> {
    channel.connected().await.ok()?;
    // A word always has room.
    channel.write(word.as_bytes()).ok()?;
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
        if !whole || count == 0 || answer.len() >= LONGEST_ANSWER {
            return Some((String::from_utf8_lossy(&answer).into_owned(), channel.socket.local_addr().ok()?));
        }
    }
}
