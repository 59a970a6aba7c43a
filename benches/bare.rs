//! A session over one blocking connection: what the programs here need of a client, and no more. No pings, no
//! reconnection; whatever is unexpected is an error.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::process;
use std::time::Duration;

use zklock::rules::instant::Instant;
use zklock::rules::keep_alive::KeepAlive;
use zklock::zookeeper::wire::connection::{Connection, ServerEvent};
use zklock::zookeeper::wire::error::Code;
use zklock::zookeeper::wire::handshake::{Attempt, Granted};
use zklock::zookeeper::wire::reply::{Reply, WatchEvent};
use zklock::zookeeper::wire::request::Request;

/// All that happens happens at this instant: there is neither a lease nor a limit.
const NOW: Instant = Instant::from_boot(Duration::ZERO);

/// The session, and what has come over its connection.
pub(crate) struct Bare {
    socket: TcpStream,
    connection: Connection<()>,
}

/// The answer to a request.
pub(crate) type Answer = Result<Reply, Code>;

impl Bare {
    /// Opens a session with one of these servers, which are separated by commas.
    pub(crate) fn open(servers: &str, timeout: Duration) -> io::Result<Self> {
        let servers: Vec<&str> = servers.split(',').collect();
        // Each program has another number, so each server gets its share.
        let mut socket = TcpStream::connect(servers[process::id() as usize % servers.len()])?;
        socket.set_nodelay(true)?;
        let mut attempt = Attempt::open(timeout);
        socket.write_all(attempt.to_send())?;
        attempt.sent(attempt.to_send().len(), NOW);
        let granted: Granted = loop {
            let bytes = read(&mut socket)?;
            if let Some(granted) = attempt.receive(&bytes).map_err(io::Error::other)? {
                break granted;
            }
        };
        Ok(Self { socket, connection: Connection::new(granted, "/", KeepAlive::calm(timeout), NOW) })
    }

    /// Sends these requests in one flight.
    pub(crate) fn ask(&mut self, requests: &[Request<'_>]) -> io::Result<()> {
        for request in requests {
            self.connection.request(request, (), NOW).map_err(io::Error::other)?;
        }
        self.socket.write_all(self.connection.to_send())?;
        self.connection.sent(self.connection.to_send().len(), NOW);
        Ok(())
    }

    /// Waits for the next event of a watch. Answers that come before it are passed over.
    pub(crate) fn change(&mut self) -> io::Result<WatchEvent> {
        loop {
            if let ServerEvent::Changed(change) = self.event()? {
                return Ok(change);
            }
        }
    }

    /// Waits for the next answer.
    pub(crate) fn answer(&mut self) -> io::Result<Answer> {
        match self.event()? {
            ServerEvent::Answered { result, .. } => Ok(result),
            ServerEvent::Changed(change) => Err(io::Error::other(format!("unexpected {change:?}"))),
        }
    }

    fn event(&mut self) -> io::Result<ServerEvent<()>> {
        loop {
            if let Some(event) = self.connection.next_event().map_err(io::Error::other)? {
                return Ok(event);
            }
            let bytes = read(&mut self.socket)?;
            self.connection.receive(&bytes, NOW);
        }
    }
}

fn read(socket: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 16 * 1024];
    let count = socket.read(&mut bytes)?;
    if count == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    bytes.truncate(count);
    Ok(bytes)
}
