//! When the servers last heard from us, as far as a keeper can know.

use std::collections::VecDeque;
use std::time::Duration;

use super::instant::Instant;
use super::lease::Terms;

/// A request that was answered. Our server has heard from us no earlier than it was sent, and by the time of the answer
/// at the latest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Contact {
    pub sent: Instant,
    pub answered: Instant,
}

/// A beat that is on its way, or another transaction that says as much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Beat {
    pub sent: Instant,
    /// When the last `sync` was sent that had been answered by then.
    synced: Option<Instant>,
}

/// The answered requests of one connection, pings included. They decide from when the lease counts after an answered
/// beat.
///
/// A beat proves that there was a quorum when it was sent. It does not prove that the leader counts the
/// session from then: a leader learns from a follower's relays, one every half tick, which sessions that
/// follower has heard from (`Terms::relay`). If our server is cut off from the leader just after the beat,
/// what counts is when our server had last heard from us before its last relay. Normally that is a moment
/// ago. But after a silence (the keeper was suspended, or the network stood still) it is long ago, and a
/// lease that counted from the beat would outlast the session.
///
/// A relay is a follower's answer to a ping of the leader (Learner.ping), so there is none while the two are cut off from
/// each other. The answer to a `sync` comes to the follower behind the leader's pings, in the same stream. So once it is
/// here, the follower has sent a relay that is no older than half a tick before the `sync` was sent; and what it forwards
/// from then on, such as a beat, reaches the leader behind that relay.
///
/// Nothing is taken for granted that no answer proves. That our pings leave in time, or that bytes come in, does not
/// prove that our server hears us.
#[derive(Debug)]
pub struct Contacts {
    /// The leader itself has heard of us no earlier than this: the session was opened or resumed then.
    opened: Instant,
    /// The contacts in the order of their answers. Of those that have been relayed, only the newest is kept.
    answered: VecDeque<Contact>,
    /// When the last `sync` that was answered was sent.
    synced: Option<Instant>,
}

impl Contacts {
    /// Nothing answered yet, over a connection that was opened no earlier than `opened`.
    pub fn new(opened: Instant) -> Self {
        Self { opened, answered: VecDeque::new(), synced: None }
    }

    /// These requests of this connection were answered after those before.
    pub fn add(&mut self, timeout: Duration, contacts: impl IntoIterator<Item = Contact>) {
        for Contact { sent, answered } in contacts {
            // An answer may overtake another. The server has heard of the later request all the same.
            let sent = self.answered.back().map_or(sent, |last| last.sent.max(sent));
            self.answered.push_back(Contact { sent, answered });
            // No beat that is older than a session timeout extends a lease.
            self.forget(|next| next + timeout <= answered);
        }
    }

    /// Drops the contacts before the last one that was `relayed`.
    fn forget(&mut self, relayed: impl Fn(Instant) -> bool) {
        while self.answered.get(1).is_some_and(|next| relayed(next.answered)) {
            self.answered.pop_front();
        }
    }

    /// Whether a `sync` makes the lease longer that a beat gives, if that is about to be sent. It does not while the opening
    /// of the connection is recent enough; and by little if the last one is recent.
    pub fn wants_sync(&self, timeout: Duration, now: Instant) -> bool {
        let is_old = self.synced.is_none_or(|synced| synced + Terms::beat_of(timeout) / 4 <= now);
        is_old && self.opened + Terms::reach(timeout) < now
    }

    /// A `sync` that was sent at `sent` has been answered.
    pub const fn note_synced(&mut self, sent: Instant) {
        self.synced = Some(sent);
    }

    pub const fn beat_sent_at(&self, sent: Instant) -> Beat {
        Beat { sent, synced: self.synced }
    }

    /// The start of the lease, now that the quorum has answered a beat: the instant at which it was sent, or an earlier one.
    /// The beats come in the order in which they were sent.
    pub fn lease_from(&mut self, timeout: Duration, beat: Beat) -> Instant {
        let Beat { sent, synced } = beat;
        // A request that was answered this long before the `sync` was sent has been relayed to the leader by then.
        let relayed = |answered: Instant| synced.is_some_and(|synced| answered + Terms::relay(timeout) <= synced);
        self.forget(relayed);
        let contact = self.answered.front().filter(|first| relayed(first.answered));
        let heard = contact.map_or(self.opened, |contact| contact.sent.max(self.opened));
        sent.min(heard + Terms::reach(timeout))
    }
}

#[cfg(test)]
mod tests;
