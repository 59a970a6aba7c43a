//! TLS on one connection.

use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::sync::Arc;

use rustls::{ClientConnection, HandshakeKind};

use super::certificate::not_after;
use super::trouble::{FailedHandshake, TlsTrouble};
use super::{Encryption, Shows};
use crate::system::files::brief;
use crate::zookeeper::net::tls::Tls;

/// How often the socket is read in one call. A server that goes on sending what is not for us, such as tickets of TLS
/// 1.3, must not keep us from all else.
const READS: u32 = 32;

/// TLS on one connection.
pub(in crate::zookeeper::net) struct Stream {
    connection: Box<ClientConnection>,
    shows: Arc<Shows>,
    tls: Tls,
    /// The server's name, as the user wrote it.
    host: String,
    /// The server has asked for our certificate.
    was_asked: bool,
    is_ready: bool,
    trouble: Option<TlsTrouble>,
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TLS with {}", self.host)
    }
}

impl Stream {
    pub(super) fn new(connection: ClientConnection, shows: Arc<Shows>, tls: Tls, host: String) -> Self {
        let connection = Box::new(connection);
        Self { connection, shows, tls, host, was_asked: false, is_ready: false, trouble: None }
    }

    /// Goes on with the handshake. Returns whether it is over.
    #[inline(never)]
    pub(in crate::zookeeper::net) fn shake_hands(&mut self, socket: &TcpStream) -> Result<bool, TlsTrouble> {
        let told = |this: &mut Self, error: &io::Error| match this.trouble.take() {
            Some(trouble) => trouble,
            None if is_end(error) => TlsTrouble::Closed,
            None => TlsTrouble::Failed(format!("{} in the TLS handshake", brief(error))),
        };
        let mut reads = 0..READS;
        loop {
            match self.flush(socket) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(told(self, &error)),
            }
            if !self.connection.is_handshaking() {
                self.note_handshake();
                return Ok(true);
            }
            if reads.next().is_none() {
                return Ok(false);
            }
            match self.take_in(socket) {
                Ok(0) => return Err(told(self, &io::ErrorKind::UnexpectedEof.into())),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(told(self, &error)),
            }
        }
    }

    fn note_handshake(&mut self) {
        if !std::mem::replace(&mut self.is_ready, true) {
            let kind = match self.connection.handshake_kind() {
                Some(HandshakeKind::Resumed) => "resumed",
                _ => "full",
            };
            log::debug!("{}: {}, {kind} handshake", self.host, self.protocol());
        }
    }

    /// As [`io::Read::read`] on the socket.
    #[inline(never)]
    pub(in crate::zookeeper::net) fn read(&mut self, socket: &TcpStream, bytes: &mut [u8]) -> io::Result<usize> {
        // What could not be sent when it was written.
        match self.flush(socket) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => return Err(error),
            _ => {}
        }
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
        let written = self.flush(socket).and_then(|()| self.connection.writer().write(bytes));
        let count = match written {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
            Err(error) => return Err(self.last_words(socket, error)),
        };
        match self.flush(socket) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(self.last_words(socket, error)),
            _ => Ok(count),
        }
    }

    pub(in crate::zookeeper::net) fn has_unsent(&self) -> bool {
        self.connection.wants_write()
    }

    #[inline(never)]
    pub(in crate::zookeeper::net) fn has_unread(&mut self) -> bool {
        self.connection.process_new_packets().is_ok_and(|state| state.plaintext_bytes_to_read() > 0)
    }

    /// Why the connection has failed, if that is because of TLS.
    pub(in crate::zookeeper::net) fn trouble(&self) -> Option<TlsTrouble> {
        self.trouble.clone()
    }

    /// The server has asked for a certificate, and we have none.
    pub(in crate::zookeeper::net) fn lacks_certificate(&self) -> bool {
        self.was_asked && self.tls.own.is_none()
    }

    pub(in crate::zookeeper::net) fn encryption(&self) -> Encryption {
        let certificate = self.connection.peer_certificates().and_then(<[_]>::first);
        Encryption { protocol: self.protocol(), not_after: certificate.and_then(|der| not_after(der)) }
    }

    fn protocol(&self) -> String {
        let version = self.connection.protocol_version().and_then(|version| version.as_str()).unwrap_or("TLS");
        version.replace("TLSv1_", "TLSv1.")
    }

    fn flush(&mut self, mut socket: &TcpStream) -> io::Result<()> {
        while self.connection.wants_write() {
            match self.connection.write_tls(&mut socket) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                written => drop(written?),
            }
        }
        Ok(())
    }

    /// Reads from the socket once. Returns how many bytes came.
    fn take_in(&mut self, mut socket: &TcpStream) -> io::Result<usize> {
        let count = loop {
            match self.connection.read_tls(&mut socket) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                read => break read?,
            }
        };
        let processed = self.connection.process_new_packets();
        self.was_asked |= self.shows.was_asked();
        if let Err(error) = processed {
            // The server is to know as well.
            let _ = self.flush(socket);
            let own = self.shows.own.as_ref().and_then(|own| not_after(own.cert.first()?));
            let seen =
                FailedHandshake { was_asked: self.was_asked, tls: &self.tls, host: &self.host, own_not_after: own };
            let trouble = TlsTrouble::of(&error, &seen);
            let told = io::Error::new(io::ErrorKind::InvalidData, trouble.to_string());
            self.trouble = Some(trouble);
            return Err(told);
        }
        match self.flush(socket) {
            Err(error) if error.kind() != io::ErrorKind::WouldBlock => Err(error),
            _ => Ok(count),
        }
    }

    /// A server that has closed the connection may have said before why.
    fn last_words(&mut self, socket: &TcpStream, error: io::Error) -> io::Error {
        match self.take_in(socket) {
            Err(said) if self.trouble.is_some() => said,
            _ => error,
        }
    }
}

fn is_end(error: &io::Error) -> bool {
    use io::ErrorKind as E;
    matches!(error.kind(), E::UnexpectedEof | E::ConnectionReset | E::BrokenPipe)
}
