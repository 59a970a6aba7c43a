//! The client's side of a connection through the proxy: plain bytes, or TLS that ends here.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream};

use rustls::server::ServerConnection;

use super::super::secure::Secure;

#[derive(Debug)]
pub(super) struct Side {
    pub(super) stream: TcpStream,
    encryption: Encryption,
}

#[derive(Debug)]
enum Encryption {
    /// The first byte will tell.
    Unknown,
    None,
    Tls(Box<ServerConnection>),
}

impl Side {
    /// `reads`: the proxy must understand what the client says.
    pub(super) fn new(stream: TcpStream, reads: bool) -> Self {
        let may_encrypt = reads && Secure::used().is_some();
        Self { stream, encryption: if may_encrypt { Encryption::Unknown } else { Encryption::None } }
    }

    /// Some bytes; none when there are none yet; `None` at the end.
    pub(super) fn read(&mut self) -> io::Result<Option<Vec<u8>>> {
        self.find_out()?;
        match &mut self.encryption {
            Encryption::Unknown | Encryption::None => read(&mut self.stream),
            Encryption::Tls(tls) => match tls.read_tls(&mut self.stream) {
                Err(error) if may_go_on(&error) => Ok(Some(Vec::new())),
                Err(error) => Err(error),
                Ok(length) => {
                    let state = tls.process_new_packets().map_err(io::Error::other);
                    let mut bytes = vec![0; state?.plaintext_bytes_to_read()];
                    tls.reader().read_exact(&mut bytes)?;
                    Ok((length > 0).then_some(bytes))
                }
            },
        }
    }

    /// A handshake of TLS begins with another byte than a session, and than a four-letter word.
    fn find_out(&mut self) -> io::Result<()> {
        const HANDSHAKE: u8 = 22;
        if !matches!(self.encryption, Encryption::Unknown) {
            return Ok(());
        }
        let mut first = [0];
        match self.stream.peek(&mut first) {
            Err(error) if may_go_on(&error) => return Ok(()),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        self.encryption = match Secure::used().filter(|_| first == [HANDSHAKE]) {
            Some(secure) => {
                let tls = ServerConnection::new(secure.of_proxies()).map_err(io::Error::other)?;
                Encryption::Tls(Box::new(tls))
            }
            None => Encryption::None,
        };
        Ok(())
    }

    /// Whether there is something to write that TLS has added, or has not written yet.
    pub(super) fn wants_to_write(&self) -> bool {
        matches!(&self.encryption, Encryption::Tls(tls) if tls.wants_write())
    }

    /// Writes what the socket takes, and takes that from `pending`.
    pub(super) fn write(&mut self, pending: &mut Vec<u8>) -> io::Result<()> {
        let Encryption::Tls(tls) = &mut self.encryption else { return write(pending, &mut self.stream) };
        let length = tls.writer().write(pending)?;
        pending.drain(..length);
        match tls.write_tls(&mut self.stream) {
            Err(error) if !may_go_on(&error) => Err(error),
            _ => Ok(()),
        }
    }

    /// Nothing more is written.
    pub(super) fn finish(&mut self) {
        if let Encryption::Tls(tls) = &mut self.encryption {
            tls.send_close_notify();
            // A client that has gone, or takes no byte, does without it.
            let _ = tls.write_tls(&mut self.stream);
        }
        // The other side may have closed at the same time.
        let _ = self.stream.shutdown(Shutdown::Write);
    }
}

/// Some bytes; none when there are none yet; `None` at the end.
pub(super) fn read(from: &mut TcpStream) -> io::Result<Option<Vec<u8>>> {
    let mut bytes = vec![0; 64 * 1024];
    match from.read(&mut bytes) {
        Ok(0) => Ok(None),
        Ok(length) => {
            bytes.truncate(length);
            Ok(Some(bytes))
        }
        Err(error) if may_go_on(&error) => Ok(Some(Vec::new())),
        Err(error) => Err(error),
    }
}

/// Writes what the socket takes, and takes that from `pending`.
pub(super) fn write(pending: &mut Vec<u8>, to: &mut TcpStream) -> io::Result<()> {
    match to.write(pending) {
        Ok(length) => drop(pending.drain(..length)),
        Err(error) if may_go_on(&error) => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

fn may_go_on(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}
