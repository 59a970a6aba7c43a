//! For how long a lock may be relied on: validity arithmetic, nothing else.
//!
//! The leader never expires a session earlier than T, its timeout, after it last heard of that session. It
//! hears of it from our server, late by one relay at most (`Terms::relay`); and our server hears from us only
//! now and then (`Terms::between_contacts`). The leader's clock may be faster than ours (`Terms::drift`). A lease
//! lasts for T less these three. It counts from when we *sent* a request that was answered, because our server
//! heard from us no earlier than that. The clock goes on counting while the machine sleeps.

use std::time::Duration;

use super::instant::Instant;

/// The grace between stop signal and SIGKILL when `--kill-after` was not given and the session
/// timeout has room for it.
pub const DEFAULT_KILL_AFTER: Duration = Duration::from_secs(5);

/// `--kill-after` leaves no room in the lease that the granted session timeout gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    pub kill_after: Duration,
    /// The longest grace that this session timeout has room for.
    pub longest: Duration,
}

/// How long a lease lasts and when its end must be acted upon, for one granted session timeout.
///
/// Counted from the start of the lease, in this order: `beat` (the next beat is sent), `stop` (the stop
/// signal goes out), `kill` (SIGKILL), and the end of the lease ([`Span::ends_at`]), by which the command
/// must have been reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The granted session timeout T.
    pub timeout: Duration,
    pub beat: Duration,
    stop: Duration,
    kill: Duration,
}

/// What a guard enforces. Both lie in the past where there is no lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// When SIGKILL must go out at the latest.
    pub kill_at: Instant,
    pub ends_at: Instant,
}

/// A lease, for those that only have to enforce its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Span {
    /// The session timeout that it counts with.
    pub timeout: Duration,
    pub from: Instant,
    /// When SIGKILL must go out at the latest.
    pub kill_at: Instant,
    pub ends_at: Instant,
}

impl Span {
    /// The session timeout of a lease that outlasts every run: a hundred years, which every timer can count.
    pub const WITHOUT_END: Duration = Duration::from_secs(100 * 365 * 24 * 3600);
}

impl Terms {
    /// Terms for a granted session timeout. `kill_after`: what the user asked for, if anything.
    pub fn new(timeout: Duration, kill_after: Option<Duration>) -> Result<Self, NoRoom> {
        let terms = Self::with_default_grace(timeout);
        let longest = terms.kill.saturating_sub(terms.beat * 2);
        match kill_after {
            None => Ok(terms),
            Some(kill_after) if kill_after > longest => Err(NoRoom { kill_after, longest }),
            Some(kill_after) => Ok(Self { stop: terms.kill - kill_after, ..terms }),
        }
    }

    /// Terms for a granted session timeout with the grace that it has room for.
    pub fn with_default_grace(timeout: Duration) -> Self {
        let beat = Self::beat_of(timeout);
        // SIGKILL takes effect at once, but reaping a large process takes the kernel a while, and
        // a loaded machine schedules us late.
        let reaping = (timeout / 40).clamp(Duration::from_millis(10), Duration::from_millis(250));
        let kill = Self::validity(timeout).saturating_sub(reaping);
        // A blip of T/3 that begins just before a beat must not stop the command.
        let grace = DEFAULT_KILL_AFTER.min(kill.saturating_sub(beat + timeout / 3));
        Self { timeout, beat, stop: kill - grace, kill }
    }

    pub fn beat_of(timeout: Duration) -> Duration {
        timeout / 5
    }

    pub(super) fn validity(timeout: Duration) -> Duration {
        timeout - Self::reach(timeout) - Self::drift(timeout)
    }

    /// How old the last contact that the leader has been told of may be when a beat is sent, for a lease to count from
    /// that beat.
    pub(super) fn reach(timeout: Duration) -> Duration {
        Self::relay(timeout) + Self::between_contacts(timeout)
    }

    /// By how much the leader's clock may gain on ours within a session timeout. A clock that is kept by NTP is
    /// slewed by 500 ppm at most, and ours may lose as much as the leader's gains.
    fn drift(timeout: Duration) -> Duration {
        timeout / 1000
    }

    /// How often, at least, a follower tells its leader which sessions it has heard from.
    ///
    /// A request that a follower forwards does not count as a sign of life with the leader. Only this relay
    /// does, which goes out every half tick (Learner.ping, LearnerHandler). A client does not know the tick;
    /// the least session timeout is two ticks unless configured otherwise, so half a tick is a quarter of any
    /// granted timeout at most. Half of the longest tick that is supported is 2 s.
    pub(super) fn relay(timeout: Duration) -> Duration {
        (timeout / 4).min(Duration::from_secs(2))
    }

    /// How long it may take from one request that is answered to the answer of the next one. A session that lives by its
    /// lease pings when it has sent nothing for T/16 ([`KeepAlive::brisk`](super::keep_alive::KeepAlive::brisk)).
    /// The rest is for the way to the server and back.
    pub fn between_contacts(timeout: Duration) -> Duration {
        timeout / 10
    }

    /// When a lease that counts from `from` ends under a granted session timeout.
    pub fn span(timeout: Duration, from: Instant) -> Span {
        let (kill_at, ends_at) = (from + Self::with_default_grace(timeout).kill, from + Self::validity(timeout));
        assert!(
            kill_at <= ends_at && ends_at <= from + timeout,
            "SIGKILL, the end of the lease, the end of the session"
        );
        Span { timeout, from, kill_at, ends_at }
    }

    /// The start of a lease under a shorter session timeout: it counted from `from` under a timeout of
    /// `before`, and now a connection opened at `opened` was granted `timeout`.
    ///
    /// The lease must not end later than it would have, and SIGKILL must not go out later. The lease must also end before the
    /// session does: the leader heard of us no earlier than `opened`, and may count with either timeout.
    pub fn shortened(from: Instant, before: Duration, timeout: Duration, opened: Instant) -> Instant {
        let kill = |timeout| Self::with_default_grace(timeout).kill;
        let shortened = opened.min(from + kill(before).saturating_sub(kill(timeout)));
        let (earlier, now) = (Self::span(before, from), Self::span(timeout, shortened));
        assert!(
            now.kill_at <= earlier.kill_at && now.ends_at <= earlier.ends_at,
            "a shorter session timeout postpones neither SIGKILL nor the end of the lease"
        );
        shortened
    }

    /// Time from the stop signal to SIGKILL.
    pub fn kill_after(&self) -> Duration {
        self.kill - self.stop
    }

    /// The longest silence of ZooKeeper that leaves the command undisturbed, at worst: one that
    /// begins just before a beat.
    pub fn patience(&self) -> Duration {
        self.stop.saturating_sub(self.beat)
    }

    /// Whether a silence shorter than a third of the session timeout can stop the command.
    pub fn is_impatient(&self) -> bool {
        self.patience() < self.timeout / 3
    }
}

/// The time for which a lock may be relied on, unless it is extended.
///
/// It counts from the instant at which the servers last heard of us for sure: the sending of the last
/// beat that was answered, or earlier (see [`super::contacts`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    pub(super) terms: Terms,
    from: Instant,
    /// When the servers last answered anything.
    answered: Instant,
}

impl Lease {
    pub const fn new(terms: Terms, from: Instant) -> Self {
        Self { terms, from, answered: from }
    }

    /// The lease counts from `from`, if that is later than before, and with these terms.
    pub fn renew(&mut self, terms: Terms, from: Instant) {
        // A server that grants less has answered no beat.
        if terms.timeout == self.terms.timeout {
            self.answer(from);
        }
        self.terms = terms;
        self.from = self.from.max(from);
    }

    /// The servers answered something at `now`. That extends nothing.
    pub fn answer(&mut self, now: Instant) {
        self.answered = self.answered.max(now);
    }

    /// For how long the servers have not answered.
    pub fn silence(&self, now: Instant) -> Duration {
        now.saturating_since(self.answered)
    }

    /// For how long the servers have not extended it.
    pub fn age(&self, now: Instant) -> Duration {
        now.saturating_since(self.from)
    }

    /// When to warn, unless the lease is extended: half-way between the next beat and the stop signal.
    pub fn warn_at(&self) -> Instant {
        self.from + self.warn_after()
    }

    /// How long a silence is that the user is warned of.
    pub fn warn_after(&self) -> Duration {
        self.terms.beat + self.terms.patience() / 2
    }

    /// When the stop signal must go out, unless the lease is extended.
    pub fn stop_at(&self) -> Instant {
        self.from + self.terms.stop
    }

    /// When SIGKILL must go out, unless the lease is extended.
    pub fn kill_at(&self) -> Instant {
        self.from + self.terms.kill
    }

    /// Whether the lease is long enough at `now` to start a command under it: there is time for one more beat
    /// before the stop signal is due.
    pub fn worth_starting(&self, now: Instant) -> bool {
        now + self.terms.beat <= self.stop_at()
    }
}

#[cfg(test)]
mod tests;
