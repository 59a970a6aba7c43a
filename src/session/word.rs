//! The four letter words that servers answer on a connection of its own: no protocol, a text and the end.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};

use nix::poll::PollFlags;

use super::channel::is_for_later;
use super::tcp::begin_to_connect;
use crate::reactor::Reactor;

/// How the answer of a server begins that has no quorum, or is starting (`ZooKeeperServer.ZK_NOT_SERVING`).
pub const NOT_SERVING: &str = "This ZooKeeper instance is not currently serving requests";

/// The longest answer that is read. That to `srvr` or `conf` has less than a thousand bytes.
const LONGEST: usize = 64 * 1024;

/// A connection on which a word was sent.
#[derive(Debug)]
pub(super) struct Word {
    socket: TcpStream,
    answer: Vec<u8>,
}

impl Word {
    /// Sends a word.
    pub(super) async fn ask(server: SocketAddr, reactor: &Reactor, word: &str) -> io::Result<Self> {
        let mut socket = begin_to_connect(server)?;
        reactor.ready(&socket, PollFlags::POLLOUT).await;
        socket.write_all(word.as_bytes())?;
        Ok(Self { socket, answer: vec![] })
    }

    /// Reads what comes next. `Ok(false)`: this was the end.
    pub(super) async fn read(&mut self, reactor: &Reactor) -> io::Result<bool> {
        let mut bytes = [0; 4096];
        loop {
            reactor.ready(&self.socket, PollFlags::POLLIN).await;
            match self.socket.read(&mut bytes) {
                Ok(count) => {
                    self.answer.extend_from_slice(&bytes[..count]);
                    return Ok(count > 0 && self.answer.len() < LONGEST);
                }
                Err(error) if is_for_later(&error) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// What has come.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.answer).into_owned()
    }
}

/// The whole answer of a server to a word.
pub async fn answer_to(word: &str, server: SocketAddr, reactor: &Reactor) -> io::Result<String> {
    let mut asked = Word::ask(server, reactor, word).await?;
    while asked.read(reactor).await? {}
    Ok(asked.text())
}
