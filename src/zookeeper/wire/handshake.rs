//! From a connection to a session: the first request and its reply, which have no header.

use std::time::Duration;

use super::error::{Broken, Malformed};
use super::frames::{Inbox, Outbox};
use super::records::{JuteReader, JuteWriter};
use crate::rules::instant::Instant;

/// The longest reply to the first request that is believed. It has 37 bytes.
const LONGEST_REPLY: usize = 1024;

/// The part of a session that outlives its connection. It has no `Debug`, because of the password.
#[derive(Clone, PartialEq, Eq)]
pub struct Identity {
    id: i64,
    password: Vec<u8>,
}

impl Identity {
    pub const fn id(&self) -> i64 {
        self.id
    }
}

/// A connection over which a server is asked for a session.
///
/// A server closes the connection without an answer while it is starting or has no quorum, and when it has too many
/// clients (`ZooKeeperServer.processConnectRequest`). Another server may answer.
pub struct Attempt {
    outbox: Outbox,
    sent_at: Option<Instant>,
    inbox: Inbox,
    /// What the request names.
    asked: Identity,
}

impl Attempt {
    pub fn open(timeout: Duration) -> Self {
        Self::resume(Identity { id: 0, password: vec![0; 16] }, timeout)
    }

    /// The request is a `ConnectRequest`.
    pub fn resume(asked: Identity, timeout: Duration) -> Self {
        let mut record = vec![];
        let mut to = JuteWriter::new(&mut record);
        // The version of the protocol, which has been 0 ever since.
        to.int(0);
        // The last transaction that we saw. A server that knows less would close the connection; with 0, the `sync` that
        // follows makes that server catch up (docs/decisions.md).
        to.long(0);
        to.int(i32::try_from(timeout.as_millis()).unwrap_or(i32::MAX));
        to.long(asked.id);
        to.buffer(&asked.password);
        // Not read-only: a server without a quorum must refuse us.
        to.boolean(false);
        let mut outbox = Outbox::default();
        // Never too long: the password came in a short reply.
        let _ = outbox.push(|bytes| JuteWriter::new(bytes).buffer(&record));
        Self { outbox, sent_at: None, inbox: Inbox::default(), asked }
    }

    pub fn to_send(&self) -> &[u8] {
        self.outbox.to_send()
    }

    /// So many of these bytes were sent, no earlier than `at`: the caller looks at the clock before it sends.
    pub fn sent(&mut self, count: usize, at: Instant) {
        self.outbox.sent(count);
        if self.outbox.to_send().is_empty() {
            self.sent_at.get_or_insert(at);
        }
    }

    /// These bytes came. Returns the session, once the reply is there as a whole: a `ConnectResponse`.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<Option<Granted>, Broken> {
        self.inbox.push(bytes);
        let Some(packet) = self.inbox.next_packet(LONGEST_REPLY)? else { return Ok(None) };
        let mut from = JuteReader::new(packet);
        let _protocol = from.int()?;
        let timeout = Duration::from_millis(u64::try_from(from.int()?).unwrap_or(0));
        let (id, password) = (from.long()?, from.buffer()?.to_vec());
        // Servers before 3.4 do not send it.
        let is_read_only = !from.is_empty() && from.boolean()?;
        // A reply before the request.
        let asked_at = self.sent_at.ok_or(Malformed::UnexpectedReply(0))?;
        if is_read_only && !timeout.is_zero() {
            return Err(Broken::ReadOnly);
        }
        let is_another = self.asked.id != 0 && self.asked.id != id;
        if timeout.is_zero() || is_another {
            return Err(Broken::Expired);
        }
        // Keeper says nothing else, not even that it has no leader (`KeeperTCPHandler::sendHandshake`); RaftKeeper has that
        // from it. ZooKeeper's passwords are random (`ZooKeeperServer.generatePasswd`).
        if !password.is_empty() && password.iter().all(|byte| *byte == 0) {
            return Err(Broken::ClickHouseKeeper);
        }
        let identity = Identity { id, password };
        Ok(Some(Granted { identity, timeout, asked_at, inbox: std::mem::take(&mut self.inbox) }))
    }
}

/// A session that a server has granted.
pub struct Granted {
    /// For the next connection.
    pub identity: Identity,
    /// The session timeout. A resumed session may get another one than before.
    pub timeout: Duration,
    /// When the server was asked: its leader has heard from us no earlier.
    pub asked_at: Instant,
    /// The bytes after the reply.
    pub(super) inbox: Inbox,
}

#[cfg(test)]
mod tests;
