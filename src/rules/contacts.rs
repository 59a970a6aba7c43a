//! When the servers last heard from us, as far as a keeper can know.

use std::collections::VecDeque;
use std::time::Duration;

use super::instant::Instant;
use super::lease::Terms;

/// The requests of one connection that were answered: what an answered beat is worth.
///
/// A beat proves that there was a quorum when it was sent, and that the leader knows all that our server
/// had told it before. If the two are cut off from each other just after that, what counts is our server's
/// last relay, and so the last time that it had heard from us before that relay. As a rule that was a moment
/// ago. After a silence, because the keeper was stopped or the network stood still, it was not; a lease that
/// counted from the beat would then outlast the session.
#[derive(Debug)]
pub struct Contacts {
    /// The leader itself has heard of us: the session was opened or resumed.
    opened: Instant,
    /// The requests that were answered, when they were sent and answered, oldest first. None is older than
    /// the one that counts for the last beat.
    answered: VecDeque<(Instant, Instant)>,
    /// Since when we have been running without a pause.
    steady_since: Instant,
    /// Until when we had been running before that.
    paused_at: Instant,
    /// When we were last seen to be running.
    awake_at: Instant,
}

impl Contacts {
    /// Over a connection that was opened no earlier than this.
    pub fn new(opened: Instant) -> Self {
        Self { opened, answered: VecDeque::new(), steady_since: opened, paused_at: opened, awake_at: opened }
    }

    /// A request of this connection was answered.
    pub fn answered(&mut self, sent: Instant, now: Instant) {
        self.answered.push_back((sent, now));
    }

    /// We are running. To be called every [`Contacts::awake_interval`].
    pub fn awake(&mut self, timeout: Duration, now: Instant) {
        if now.saturating_since(self.awake_at) > Self::unnoticed(timeout) {
            (self.steady_since, self.paused_at) = (now, self.awake_at);
        }
        self.awake_at = now;
    }

    /// The last moment at which the servers can have heard from us over this connection, which was just
    /// found to be lost. If it is lost soon after a pause, assume that it was lost during the pause.
    pub fn heard_until(&self, timeout: Duration, now: Instant) -> Instant {
        if now.saturating_since(self.awake_at) > Self::unnoticed(timeout) {
            self.awake_at
        } else if now.saturating_since(self.steady_since) <= Self::patience(timeout) {
            self.paused_at
        } else {
            now
        }
    }

    /// How often to call [`Contacts::awake`].
    pub fn awake_interval(timeout: Duration) -> Duration {
        timeout / 96
    }

    /// For how long a silent connection lasts at most. The client library gives it up after T/6 and looks
    /// every T/48, and a pause may have gone unnoticed. It does not count time that the machine slept.
    fn patience(timeout: Duration) -> Duration {
        timeout / 6 + timeout / 48 + Self::unnoticed(timeout)
    }

    /// The longest pause that may go unnoticed.
    fn unnoticed(timeout: Duration) -> Duration {
        Self::awake_interval(timeout) * 2
    }

    /// The start of the lease, now that the quorum has answered a beat that was sent at `sent`: that instant,
    /// or an earlier one.
    pub fn lease_from(&mut self, timeout: Duration, sent: Instant, now: Instant) -> Instant {
        self.awake(timeout, now);
        // A request that was answered so long before has been relayed to the leader.
        let relayed = |answered: Instant| answered + Terms::relay(timeout) <= sent;
        while self.answered.get(1).is_some_and(|next| relayed(next.1)) {
            self.answered.pop_front();
        }
        let contact = self.answered.front().filter(|first| relayed(first.1)).map_or(self.opened, |first| first.0);
        // The client library sends pings. Its last one may have been on its way for as long as the library
        // waits; while we run, the server heard from us no longer ago than this.
        let silence = Terms::relay(timeout) + Self::patience(timeout) * 2;
        let alive = Some(sent - silence).filter(|_| self.steady_since + silence <= sent);
        let heard = alive.map_or(contact, |alive| alive.max(contact)).max(self.opened);
        sent.min(heard + (timeout - Terms::validity(timeout)))
    }
}

#[cfg(test)]
mod tests;
