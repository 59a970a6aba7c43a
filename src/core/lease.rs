//! For how long a lock may be relied on: validity arithmetic, nothing else.
//!
//! The leader of the ensemble never expires a session earlier than its timeout T after it last
//! heard of it. It has heard of us no earlier than we *sent* the request that the quorum then
//! answered. So everything here is counted from send times, on a clock that goes on counting
//! while the machine sleeps.

use std::collections::VecDeque;
use std::fmt;
use std::ops::{Add, Sub};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// A point on `CLOCK_BOOTTIME`: time since boot, sleep included (clock_gettime(2)).
///
/// `std::time::Instant` is `CLOCK_MONOTONIC` on Linux, which stands still while the machine
/// sleeps; a lease reckoned on it would outlive the session.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Instant(Duration);

impl Instant {
    /// The point that lies `since_boot` after the machine started.
    pub const fn from_boot(since_boot: Duration) -> Self {
        Self(since_boot)
    }

    /// Time since boot.
    pub const fn since_boot(self) -> Duration {
        self.0
    }

    /// Time from `earlier` to `self`; zero when `earlier` is later.
    pub fn saturating_since(self, earlier: Self) -> Duration {
        self.0.saturating_sub(earlier.0)
    }
}

impl Add<Duration> for Instant {
    type Output = Self;

    /// Saturates: a deadline past the end of time is never reached, which is what is meant.
    fn add(self, rhs: Duration) -> Self {
        Self(self.0.saturating_add(rhs))
    }
}

impl Sub<Duration> for Instant {
    type Output = Self;

    fn sub(self, rhs: Duration) -> Self {
        Self(self.0.saturating_sub(rhs))
    }
}

impl fmt::Debug for Instant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:.3}s", self.0.as_secs_f64())
    }
}

/// The grace between stop signal and SIGKILL when `--kill-after` was not given and the session
/// timeout has room for it.
pub const DEFAULT_KILL_AFTER: Duration = Duration::from_secs(5);

/// `--kill-after` leaves no room in the lease that the granted session timeout gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoRoom {
    /// What was asked for.
    pub kill_after: Duration,
    /// The longest grace that this session timeout has room for.
    pub longest: Duration,
}

/// How long a lease lasts and when its end must be acted upon, for one granted session timeout.
///
/// From the send time of the last answered beat, in this order:
/// `beat` (the next beat is sent), `stop` (the stop signal goes out), `kill` (SIGKILL),
/// and the end of the lease ([`Terms::end_of`]), by which the command must have been reaped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    timeout: Duration,
    beat: Duration,
    stop: Duration,
    kill: Duration,
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

    /// Time from one beat to the next under a granted session timeout.
    pub fn beat_of(timeout: Duration) -> Duration {
        timeout / 5
    }

    /// How long a lease lasts from the send time of a beat.
    fn validity(timeout: Duration) -> Duration {
        timeout - Self::word(timeout) - Self::between_contacts(timeout)
    }

    /// The longest time between two words of a follower to its leader about whom it has heard from.
    ///
    /// A request that a follower forwards does not count as a sign of life with the leader. Only
    /// that word does, which goes out every half tick (Learner.ping, LearnerHandler). A client does
    /// not know the tick; the least session timeout is two of them unless configured otherwise, so
    /// half a tick is a quarter of that at most.
    fn word(timeout: Duration) -> Duration {
        (timeout / 4).min(Duration::from_secs(2))
    }

    /// How often a keeper that holds, or is next, lets its server hear from it: with each beat, and
    /// once in between.
    fn between_contacts(timeout: Duration) -> Duration {
        Self::beat_of(timeout) / 2
    }

    /// When a lease that counts from `sent` is over under a granted session timeout.
    pub fn end_of(timeout: Duration, sent: Instant) -> Instant {
        sent + Self::validity(timeout)
    }

    /// From when a lease counts that counted from `from` under a session timeout of `before`, now that a
    /// connection opened at `opened` was granted the shorter `timeout`.
    ///
    /// So that it ends no later than before, and than the session, which the leader heard of at
    /// `opened`: whichever of the two timeouts that leader has, if it is one still.
    pub fn shortened(from: Instant, before: Duration, timeout: Duration, opened: Instant) -> Instant {
        opened.min(from + Self::validity(before).saturating_sub(Self::validity(timeout)))
    }

    /// Whether a session is over at `now` so early that leases of others may last of which the servers know
    /// nothing any more. Its connection was lost at `lost`, and the servers have heard of it until `heard`.
    ///
    /// Not when it can have expired; nor when no lease from before the loss lasts any longer, for then it
    /// does not matter what ended it. A silence is noticed late, so the session may have expired by then.
    pub fn is_early(timeout: Duration, heard: Instant, lost: Instant, now: Instant) -> bool {
        now < heard + timeout && now < Self::end_of(timeout, lost)
    }

    /// The granted session timeout T.
    pub const fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Time from one beat to the next.
    pub const fn beat(&self) -> Duration {
        self.beat
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

    /// When half of the silence that a command lives through is over, if no beat sent after `sent` is answered.
    pub fn warn_at(&self, sent: Instant) -> Instant {
        sent + self.beat + self.patience() / 2
    }

    /// When the stop signal must go out if no beat sent after `sent` is answered.
    pub fn stop_at(&self, sent: Instant) -> Instant {
        sent + self.stop
    }

    /// When SIGKILL must go out.
    pub fn kill_at(&self, sent: Instant) -> Instant {
        sent + self.kill
    }

    /// Whether a lease counted from `sent` is long enough at `now` to start a command under it:
    /// it lasts until a further beat had its chance.
    pub fn worth_starting(&self, sent: Instant, now: Instant) -> bool {
        now + self.beat <= self.stop_at(sent)
    }
}

/// When our server has heard from us, as far as we know: what an answered beat is worth.
///
/// A beat proves that the quorum was there when it was sent, and that all that our server had told
/// the leader before has arrived. If the two are cut off from each other just after that, what
/// counts is our server's last word, and so the last time it had heard from us before that word. As
/// a rule that was a moment ago. After a silence, of a keeper that was stopped or a network that
/// stood still, it was not, and then a lease that counts from the beat would outlast the session.
#[derive(Debug)]
pub struct Contacts {
    /// The leader itself has heard of us: the session was opened or resumed.
    opened: Instant,
    /// The requests that were answered, when they were sent and answered, oldest first; one that is
    /// older than what counts for the last beat is not kept.
    answered: VecDeque<(Instant, Instant)>,
    /// Since when we have been running without a pause, until when we did before that, and when we
    /// last knew.
    steady_since: Instant,
    paused_at: Instant,
    pulse: Instant,
}

impl Contacts {
    /// Over a connection that was opened no earlier than this.
    pub fn new(opened: Instant) -> Self {
        Self { opened, answered: VecDeque::new(), steady_since: opened, paused_at: opened, pulse: opened }
    }

    /// A request of this connection was answered.
    pub fn answered(&mut self, sent: Instant, now: Instant) {
        self.answered.push_back((sent, now));
    }

    /// We are running. To be told every [`Contacts::pulse_of`].
    pub fn pulse(&mut self, timeout: Duration, now: Instant) {
        if now.saturating_since(self.pulse) > Self::unnoticed(timeout) {
            (self.steady_since, self.paused_at) = (now, self.pulse);
        }
        self.pulse = now;
    }

    /// Until when the servers may have heard from us over this connection, of which we learn now that
    /// it is lost. What is lost before anything can have been heard since a pause was lost in it.
    pub fn heard_until(&self, timeout: Duration, now: Instant) -> Instant {
        if now.saturating_since(self.pulse) > Self::unnoticed(timeout) {
            self.pulse
        } else if now.saturating_since(self.steady_since) <= Self::patience(timeout) {
            self.paused_at
        } else {
            now
        }
    }

    /// How often to say that we are running.
    pub fn pulse_of(timeout: Duration) -> Duration {
        timeout / 96
    }

    /// For how long a connection lasts at most over which nothing is heard: the client library gives it
    /// up after T/6 and looks every T/48, and a pause may have gone unnoticed. Sleep does not count there.
    fn patience(timeout: Duration) -> Duration {
        timeout / 6 + timeout / 48 + Self::unnoticed(timeout)
    }

    /// A pause that is longer than this is noticed.
    fn unnoticed(timeout: Duration) -> Duration {
        Self::pulse_of(timeout) * 2
    }

    /// From when the lease counts, now that the quorum has answered a beat that was sent at `sent`.
    /// No later than that.
    pub fn lease_from(&mut self, timeout: Duration, sent: Instant, now: Instant) -> Instant {
        self.pulse(timeout, now);
        // What had been answered so long before is in a word that the leader has got.
        let told = |answered: Instant| answered + Terms::word(timeout) <= sent;
        while self.answered.get(1).is_some_and(|next| told(next.1)) {
            self.answered.pop_front();
        }
        let contact = self.answered.front().filter(|first| told(first.1)).map_or(self.opened, |first| first.0);
        // The client library sees to it that there is something to hear. What it heard last may have
        // been on its way for as long as it waits. While we run, what our server heard last is no older.
        let silence = Terms::word(timeout) + Self::patience(timeout) * 2;
        let alive = Some(sent - silence).filter(|_| self.steady_since + silence <= sent);
        let heard = alive.map_or(contact, |alive| alive.max(contact)).max(self.opened);
        sent.min(heard + (timeout - Terms::validity(timeout)))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BOOT: Instant = Instant::from_boot(Duration::from_secs(1000));

    proptest! {
        #[test]
        fn steps_come_in_order_and_end_before_the_session(
            millis in 100u64..3_600_000,
            kill_after in proptest::option::of(0u64..3_600_000),
        ) {
            let timeout = Duration::from_millis(millis);
            match Terms::new(timeout, kill_after.map(Duration::from_millis)) {
                Ok(terms) => {
                    prop_assert!(terms.beat() < terms.stop);
                    prop_assert!(terms.stop <= terms.kill);
                    prop_assert!(terms.kill_at(BOOT) < Terms::end_of(timeout, BOOT));
                    prop_assert!(Terms::end_of(timeout, BOOT) < BOOT + timeout);
                    prop_assert!(terms.worth_starting(BOOT, BOOT));
                    if let Some(asked) = kill_after {
                        prop_assert_eq!(terms.kill_after(), Duration::from_millis(asked));
                    } else {
                        prop_assert!(!terms.is_impatient());
                        prop_assert!(terms.kill_after() <= DEFAULT_KILL_AFTER);
                    }
                }
                Err(no_room) => {
                    prop_assert!(kill_after.is_some());
                    prop_assert!(Terms::new(timeout, Some(no_room.longest)).is_ok());
                }
            }
        }

        #[test]
        fn a_later_beat_never_brings_an_earlier_end(millis in 100u64..3_600_000, a in 0u64..10_000, b in 0u64..10_000) {
            let terms = Terms::new(Duration::from_millis(millis), None).unwrap();
            let (early, late) = (BOOT + Duration::from_millis(a.min(b)), BOOT + Duration::from_millis(a.max(b)));
            prop_assert!(terms.stop_at(early) <= terms.stop_at(late));
            prop_assert!(terms.kill_at(early) <= terms.kill_at(late));
            prop_assert!(Terms::end_of(terms.timeout(), early) <= Terms::end_of(terms.timeout(), late));
        }
    }

    #[test]
    fn default_terms_of_the_default_session_timeout() {
        let terms = Terms::new(Duration::from_secs(30), None).unwrap();
        assert_eq!(terms.beat(), Duration::from_secs(6));
        assert_eq!(Terms::end_of(terms.timeout(), BOOT), BOOT + Duration::from_millis(25_000));
        assert_eq!(terms.kill_after(), DEFAULT_KILL_AFTER);
        assert_eq!(terms.kill_at(BOOT), BOOT + Duration::from_millis(24_750));
    }

    #[test]
    fn a_shorter_timeout_brings_no_later_end() {
        let (before, timeout) = (Duration::from_secs(30), Duration::from_secs(6));
        for (opened, end) in [(0, 3900), (10_000, 13_900), (21_100, 25_000), (24_000, 25_000)] {
            let from = Terms::shortened(BOOT, before, timeout, at(opened));
            assert_eq!(Terms::end_of(timeout, from), at(end));
        }
    }

    #[test]
    fn a_session_that_expired_in_a_silence_is_not_over_early() {
        let is_early = |heard, lost, now| Terms::is_early(HALF_MINUTE, at(heard), at(lost), at(now));
        assert!(is_early(0, 0, 24_999));
        assert!(!is_early(0, 0, 25_000));
        // The last word at 0, missed after T/6 and T/48, and the next one when the server has looked for what has expired.
        assert!(!is_early(5625, 5625, 31_000));
        // Lost after a pause, with all the leases of those who made none.
        assert!(is_early(0, 20_000, 29_999));
        assert!(!is_early(0, 29_000, 30_000));
    }

    #[test]
    fn grace_that_the_lease_has_no_room_for_is_refused() {
        let no_room = Terms::new(Duration::from_secs(6), Some(Duration::from_secs(5))).unwrap_err();
        assert_eq!(no_room.kill_after, Duration::from_secs(5));
        assert!(no_room.longest < Duration::from_secs(3));
    }

    const HALF_MINUTE: Duration = Duration::from_secs(30);

    fn at(millis: u64) -> Instant {
        BOOT + Duration::from_millis(millis)
    }

    /// A keeper that is in touch with its server as often as one that holds.
    fn contacts_until(millis: u64) -> Contacts {
        let mut contacts = Contacts::new(BOOT);
        for now in (0..=millis).step_by(300) {
            contacts.pulse(HALF_MINUTE, at(now));
            if now % 3000 == 0 {
                contacts.answered(at(now), at(now + 1));
            }
        }
        contacts
    }

    #[test]
    fn a_beat_of_a_keeper_that_was_in_touch_is_worth_all_of_it() {
        for sent in [0, 6000, 12_000, 60_000] {
            assert_eq!(contacts_until(sent).lease_from(HALF_MINUTE, at(sent), at(sent + 5)), at(sent));
        }
    }

    #[test]
    fn a_beat_after_a_silence_counts_from_what_was_before_it() {
        let margin = HALF_MINUTE - Terms::validity(HALF_MINUTE);
        // Stopped for nine seconds.
        let mut contacts = contacts_until(60_000);
        assert_eq!(contacts.lease_from(HALF_MINUTE, at(69_000), at(69_005)), at(60_000) + margin);
        contacts.answered(at(69_000), at(69_005));
        // Too early: that the leader knows of the beat before nobody can say yet.
        assert_eq!(contacts.lease_from(HALF_MINUTE, at(70_000), at(70_005)), at(60_000) + margin);
        assert_eq!(contacts.lease_from(HALF_MINUTE, at(71_005), at(71_010)), at(71_005));
    }

    #[test]
    fn a_live_connection_of_a_keeper_that_runs_is_worth_something_without_requests() {
        let mut contacts = Contacts::new(BOOT);
        for now in (0..=60_000).step_by(300) {
            contacts.pulse(HALF_MINUTE, at(now));
        }
        let sent = at(60_500);
        let lease = contacts.lease_from(HALF_MINUTE, sent, sent);
        assert_eq!(
            lease,
            sent - HALF_MINUTE * 5 / 12 - Duration::from_secs(2) + (HALF_MINUTE - Terms::validity(HALF_MINUTE))
        );
        assert!(Terms::with_default_grace(HALF_MINUTE).worth_starting(lease, sent));
        // A reply that was under way for as long as the library waits, and then nothing for as long.
        let patience = HALF_MINUTE / 6 + HALF_MINUTE / 48 + Contacts::unnoticed(HALF_MINUTE);
        let heard = sent - Terms::word(HALF_MINUTE) - patience * 2;
        assert!(Terms::end_of(HALF_MINUTE, lease) <= heard + HALF_MINUTE);
        // The same after a pause of which it was told only now.
        let mut paused = Contacts::new(BOOT);
        paused.pulse(HALF_MINUTE, at(50_000));
        let lease = paused.lease_from(HALF_MINUTE, sent, sent);
        assert!(!Terms::with_default_grace(HALF_MINUTE).worth_starting(lease, sent));
    }

    #[test]
    fn what_is_lost_just_after_a_pause_was_lost_in_it() {
        let mut contacts = contacts_until(60_000);
        assert_eq!(contacts.heard_until(HALF_MINUTE, at(60_300)), at(60_300));
        // The end of a pause, of which nobody else has told yet, or has.
        assert_eq!(contacts.heard_until(HALF_MINUTE, at(100_000)), at(60_000));
        contacts.pulse(HALF_MINUTE, at(100_000));
        assert_eq!(contacts.heard_until(HALF_MINUTE, at(100_010)), at(60_000));
        // A machine that wakes without a network: the library does not give the connection up before this.
        for now in (100_300..=105_600).step_by(300) {
            contacts.pulse(HALF_MINUTE, at(now));
        }
        assert_eq!(contacts.heard_until(HALF_MINUTE, at(105_630)), at(60_000));
        for now in (105_700..=106_300).step_by(300) {
            contacts.pulse(HALF_MINUTE, at(now));
        }
        assert_eq!(contacts.heard_until(HALF_MINUTE, at(106_300)), at(106_300));
    }

    #[test]
    fn a_live_connection_is_enough_to_start_under_whatever_the_timeout() {
        for timeout in [2, 4, 8, 12, 30, 300].map(Duration::from_secs) {
            let mut contacts = Contacts::new(BOOT);
            for step in 0..200 {
                contacts.pulse(timeout, BOOT + Contacts::pulse_of(timeout) * step);
            }
            let sent = BOOT + timeout * 2;
            let lease = contacts.lease_from(timeout, sent, sent);
            assert!(Terms::with_default_grace(timeout).worth_starting(lease, sent), "{timeout:?}");
        }
    }

    #[test]
    fn an_old_beat_starts_nothing() {
        let terms = Terms::new(Duration::from_secs(30), None).unwrap();
        assert!(!terms.worth_starting(BOOT, BOOT + Duration::from_secs(15)));
    }
}
