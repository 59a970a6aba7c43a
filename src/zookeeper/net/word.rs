//! The four letter words that servers answer on a connection of its own: no protocol, a text and the end.

use std::future::poll_fn;
use std::io;
use std::net::SocketAddr;
use std::task::Poll;

use super::servers::{Address, Servers};
use super::tcp::{TcpChannel, Unconnected};
use crate::system::reactor::Reactor;
use crate::zookeeper::session::channel::{Channel as _, is_for_later};

/// How the answer of a server begins that has no quorum, or is starting (`ZooKeeperServer.ZK_NOT_SERVING`).
pub const NOT_SERVING: &str = "This ZooKeeper instance is not currently serving requests";

/// How the answer to `srvr` begins.
pub const VERSION: &str = "Zookeeper version: ";

/// The longest answer that is read. That to `cons` has two hundred bytes for each connection.
const LONGEST: usize = 1024 * 1024;

/// A connection on which a word was sent.
#[derive(Debug)]
pub(super) struct Word<'p> {
    channel: TcpChannel<'p>,
    answer: Vec<u8>,
}

impl<'p> Word<'p> {
    pub(super) async fn ask(channel: TcpChannel<'p>, word: &str) -> Result<Self, Unconnected> {
        channel.connected().await?;
        // A word always has room.
        channel.write(word.as_bytes())?;
        Ok(Self { channel, answer: vec![] })
    }

    /// Reads what comes next. `Ok(false)`: this was the end.
    pub(super) async fn read(&mut self) -> io::Result<bool> {
        // On the heap, because this future is part of several others.
        let mut bytes = vec![0; 4096];
        let count = poll_fn(|_| match self.channel.read(&mut bytes) {
            Err(error) if is_for_later(&error) => {
                self.channel.wake_on_bytes(false);
                Poll::Pending
            }
            read => Poll::Ready(read),
        })
        .await?;
        self.answer.extend_from_slice(&bytes[..count]);
        Ok(count > 0 && self.answer.len() < LONGEST)
    }

    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.answer).into_owned()
    }
}

/// The whole answer of a server to a word, and from which address it was asked; `None`, if it does not come.
pub(super) async fn answer_to<'p>(
    word: &str,
    servers: &'p Servers<'p>,
    address: Address<'p>,
    reactor: &'p Reactor,
) -> Option<(String, SocketAddr)> {
    let channel = TcpChannel::begin(servers, reactor, address).ok()?;
    let mut asked = Word::ask(channel, word).await.ok()?;
    while asked.read().await.ok()? {}
    Some((asked.text(), asked.channel.socket.local_addr().ok()?))
}
