//! TLS on one connection.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::{ClientConnection, HandshakeKind};

use super::trouble::{Seen, Unconnected};
use super::{Shows, Tls};
use crate::system::errors::brief;
use crate::zookeeper::session::channel::{is_end, is_for_later};

/// How often the socket is read in one call. A server that goes on sending what is not for us, such as tickets of TLS
/// 1.3, must not keep us from everything else.
const READS: u32 = 32;

pub(in crate::zookeeper::net) struct Stream {
    connection: Box<ClientConnection>,
    shows: Arc<Shows>,
    seen: Seen,
    trouble: Option<Unconnected>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TLS with {}", self.seen.host)
    }
}

impl Stream {
    pub(super) fn new(connection: ClientConnection, shows: Arc<Shows>, tls: Tls, host: String) -> Self {
        Self { connection: Box::new(connection), shows, seen: Seen { was_asked: false, tls, host }, trouble: None }
    }

    /// Goes on with the handshake. Returns whether it is over.
    #[inline(never)]
    pub(in crate::zookeeper::net) fn shake_hands(&mut self, socket: &TcpStream) -> Result<bool, Unconnected> {
        match self.handshake(socket) {
            Ok(is_over) => Ok(is_over),
            Err(error) if is_for_later(&error) => Ok(false),
            Err(error) => Err(match self.trouble.take() {
                Some(trouble) => trouble,
                None if is_end(&error) => Unconnected::Closed,
                None => Unconnected::Failed(format!("{} in the TLS handshake", brief(&error))),
            }),
        }
    }

    fn handshake(&mut self, socket: &TcpStream) -> io::Result<bool> {
        for _ in 0..READS {
            if !self.flush(socket)? {
                return Ok(false);
            }
            if !self.connection.is_handshaking() {
                let kind = match self.connection.handshake_kind() {
                    Some(HandshakeKind::Resumed) => "resumed",
                    _ => "full",
                };
                log::debug!("{}: {}, {kind} handshake", self.seen.host, self.protocol());
                return Ok(true);
            }
            if self.take_in(socket)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        Ok(false)
    }

    /// As [`io::Read::read`] on the socket.
    #[inline(never)]
    pub(in crate::zookeeper::net) fn read(&mut self, socket: &TcpStream, bytes: &mut [u8]) -> io::Result<usize> {
        // What could not be sent when it was written.
        self.flush(socket)?;
        let mut reads = 0..READS;
        loop {
            match self.connection.reader().read(bytes) {
                // After the last one, poll(2) tells of what is left in the socket.
                Err(error) if error.kind() == io::ErrorKind::WouldBlock && reads.next().is_some() => {}
                // ZooKeeper's packets have lengths, so nothing is lost unseen.
                Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
            self.take_in(socket)?;
        }
    }

    /// As [`io::Write::write`] on the socket. What it takes may leave a moment later: bytes count as sent when they were
    /// taken, which is no later than they leave. Nothing is taken before the bytes of the last call have all left.
    #[inline(never)]
    pub(in crate::zookeeper::net) fn write(&mut self, socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        let error = match self.take_and_flush(socket, bytes) {
            Err(error) if !is_for_later(&error) => error,
            written => return written,
        };
        // A server that has closed the connection may have said before why.
        match self.take_in(socket) {
            Err(said) if self.trouble.is_some() => Err(said),
            _ => Err(error),
        }
    }

    fn take_and_flush(&mut self, socket: &TcpStream, bytes: &[u8]) -> io::Result<usize> {
        if !self.flush(socket)? {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let count = self.connection.writer().write(bytes)?;
        self.flush(socket)?;
        Ok(count)
    }

    pub(in crate::zookeeper::net) fn has_unsent(&self) -> bool {
        self.connection.wants_write()
    }

    #[inline(never)]
    pub(in crate::zookeeper::net) fn has_unread(&mut self) -> bool {
        self.connection.process_new_packets().is_ok_and(|state| state.plaintext_bytes_to_read() > 0)
    }

    /// Why the connection has failed, if that is because of TLS.
    pub(in crate::zookeeper::net) fn trouble(&self) -> Option<Unconnected> {
        self.trouble.clone()
    }

    /// The server has asked for a certificate, and we have none.
    pub(in crate::zookeeper::net) fn lacks_certificate(&self) -> bool {
        self.seen.was_asked && self.seen.tls.own.is_none()
    }

    fn protocol(&self) -> String {
        let version = self.connection.protocol_version().and_then(|version| version.as_str()).unwrap_or("TLS");
        version.replace("TLSv1_", "TLSv1.")
    }

    /// Sends what can be without waiting. Returns whether that is all.
    fn flush(&mut self, mut socket: &TcpStream) -> io::Result<bool> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut socket) {
                Err(error) if is_for_later(&error) => return Ok(false),
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                written => drop(written?),
            }
        }
        Ok(true)
    }

    /// Reads from the socket once. Returns how many bytes came.
    fn take_in(&mut self, mut socket: &TcpStream) -> io::Result<usize> {
        let count = self.connection.read_tls(&mut socket)?;
        let processed = self.connection.process_new_packets();
        self.seen.was_asked |= self.shows.was_asked();
        // If it has failed, the server is to know as well.
        let flushed = self.flush(socket);
        if let Err(error) = processed {
            let trouble = self.trouble.insert(Unconnected::of(&error, &self.seen));
            return Err(io::Error::new(io::ErrorKind::InvalidData, trouble.to_string()));
        }
        flushed.map(|_| count)
    }
}
