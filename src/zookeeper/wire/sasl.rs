//! Between the opening of a session and its first request: tokens of SASL to the server, and back.
//!
//! A server that demands SASL closes the connection over anything else before that, pings included. So there is no
//! [`Connection`](super::connection::Connection) yet. And a token tells the servers nothing about the session: they do
//! not count it as a sign of life (`ZooKeeperServer.processPacket`).

use super::error::{Code, Malformed};
use super::frames::Outbox;
use super::handshake::Granted;
use super::records::{Reader, RecordWriter};
use super::reply::Header;
use super::request::Request;

/// The number of a `GetSASLRequest` (`ZooDefs.OpCode`).
const SASL: i32 = 102;

/// The longest answer that is believed. One with a ticket has some kilobytes.
const LONGEST: usize = 1 << 20;

/// A connection over which tokens are exchanged, one at a time.
#[derive(Debug)]
pub struct Exchange {
    granted: Granted,
    outbox: Outbox,
    xid: i32,
}

impl Exchange {
    pub fn new(granted: Granted) -> Self {
        Self { granted, outbox: Outbox::default(), xid: 0 }
    }

    /// Sends a token. The one before must have been answered. Fails with its length if no server would take it.
    pub fn ask(&mut self, token: &[u8]) -> Result<(), usize> {
        self.xid += 1;
        let mut record = vec![];
        let mut to = RecordWriter::new(&mut record);
        to.int(self.xid);
        to.int(SASL);
        to.buffer(token);
        self.outbox.push(|bytes| RecordWriter::new(bytes).buffer(&record))
    }

    pub fn to_send(&self) -> &[u8] {
        self.outbox.to_send()
    }

    pub fn sent(&mut self, count: usize) {
        self.outbox.sent(count);
    }

    pub fn receive(&mut self, bytes: &[u8]) {
        self.granted.inbox.push(bytes);
    }

    /// Takes the answer, a `SetSASLResponse`, once it is there as a whole. It is empty if the server has nothing to
    /// say.
    pub fn answer(&mut self) -> Result<Option<Result<Vec<u8>, Code>>, Malformed> {
        let Some(packet) = self.granted.inbox.next_packet(LONGEST)? else { return Ok(None) };
        let mut from = Reader::new(packet);
        let header = Header::read(&mut from)?;
        if header.xid != self.xid {
            return Err(Malformed::UnexpectedReply(header.xid));
        }
        Ok(Some(match header.refusal {
            Some(code) => Err(code),
            None => Ok(from.buffer()?.to_vec()),
        }))
    }

    /// Closes the session: to be called when it is of no use.
    pub fn close(&mut self) {
        // Never too long.
        let _ = self.outbox.push(|bytes| Request::Close.write(self.xid + 1, "", bytes));
    }

    /// The session, once SASL is done.
    pub fn finish(self) -> Granted {
        self.granted
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::handshake::Attempt;
    use super::*;
    use crate::rules::instant::Instant;

    fn exchange() -> Exchange {
        let mut attempt = Attempt::open(Duration::from_secs(20));
        attempt.sent(usize::MAX, Instant::from_boot(Duration::from_secs(1)));
        let mut reply = [0; 40];
        (reply[3], reply[11], reply[23]) = (36, 200, 16);
        Exchange::new(attempt.receive(&reply).unwrap().unwrap())
    }

    fn reply(xid: i32, error: i32, token: Option<&[u8]>) -> Vec<u8> {
        let mut record = vec![];
        let mut to = RecordWriter::new(&mut record);
        to.int(xid);
        to.long(0);
        to.int(error);
        match token {
            Some(token) => to.buffer(token),
            None => to.int(-1),
        }
        let mut packet = vec![];
        RecordWriter::new(&mut packet).buffer(&record);
        packet
    }

    #[test]
    fn tokens_there_and_back() {
        let mut exchange = exchange();
        for (xid, token, answer) in [(1, &b""[..], Some(&b"challenge"[..])), (2, b"proof", None), (3, b"x", Some(b""))]
        {
            exchange.ask(token).unwrap();
            let mut from = Reader::new(exchange.to_send());
            assert_eq!(from.int(), Ok(12 + i32::try_from(token.len()).unwrap()));
            assert_eq!((from.int(), from.int(), from.buffer()), (Ok(xid), Ok(102), Ok(token)));
            assert!(from.is_empty());
            exchange.sent(usize::MAX);
            assert!(exchange.to_send().is_empty());
            for byte in reply(xid, 0, answer) {
                assert_eq!(exchange.answer(), Ok(None));
                exchange.receive(&[byte]);
            }
            assert_eq!(exchange.answer(), Ok(Some(Ok(answer.unwrap_or_default().to_vec()))));
        }
        assert_eq!(exchange.finish().timeout, Duration::from_millis(200));
    }

    #[test]
    fn refusals_and_nonsense() {
        let answer = |bytes: &[u8]| {
            let mut exchange = exchange();
            exchange.ask(b"").unwrap();
            exchange.receive(bytes);
            exchange.answer()
        };
        assert_eq!(answer(&reply(1, -115, None)), Ok(Some(Err(Code::AuthFailed))));
        assert_eq!(answer(&reply(2, 0, None)), Err(Malformed::UnexpectedReply(2)));
        assert_eq!(answer(&[0, 0, 0, 1, 0]), Err(Malformed::Truncated));
        assert_eq!(answer(&[127, 0, 0, 0]), Err(Malformed::PacketLength(0x7f00_0000)));
        assert_eq!(exchange().ask(&vec![0; 1 << 20]), Err((1 << 20) + 12));
    }
}
