//! What a beat is worth after silences and pauses.

use proptest::prelude::*;

use super::*;
use crate::rules::keep_alive::KeepAlive;
use crate::rules::lease::Lease;

const BOOT: Instant = Instant::from_boot(Duration::from_secs(1000));
const HALF_MINUTE: Duration = Duration::from_secs(30);

fn at(millis: u64) -> Instant {
    BOOT + Duration::from_millis(millis)
}

fn worth_starting(timeout: Duration, from: Instant, now: Instant) -> bool {
    Lease::new(Terms::with_default_grace(timeout), from).worth_starting(now)
}

fn contact(sent: u64, answered: u64) -> Contact {
    Contact { sent: at(sent), answered: at(answered) }
}

/// The start of the lease after a `sync` that was sent at `synced`, and a beat that was sent at `sent`, on its answer.
fn beat(contacts: &mut Contacts, timeout: Duration, synced: Instant, sent: Instant) -> Instant {
    contacts.note_synced(synced);
    let beat = contacts.beat_sent_at(sent);
    contacts.lease_from(timeout, beat)
}

/// An idle session: a ping is sent when it is due, and the way there and back takes `delay`.
fn idle_until(keep_alive: KeepAlive, timeout: Duration, delay: Duration, end: Instant) -> Contacts {
    let mut contacts = Contacts::new(BOOT);
    let mut sent = keep_alive.ping_at(BOOT);
    while sent + delay <= end {
        contacts.add(timeout, [Contact { sent, answered: sent + delay }]);
        sent = keep_alive.ping_at(sent);
    }
    contacts
}

/// The same, with a session timeout of half a minute.
fn contacts_until(millis: u64) -> Contacts {
    idle_until(KeepAlive::brisk(HALF_MINUTE), HALF_MINUTE, Duration::from_millis(1), at(millis))
}

proptest! {
    /// From the first moment on, as long as an answer takes no longer than what the margin has left for it.
    #[test]
    fn a_beat_over_an_idle_connection_counts_in_full(
        millis in 1000u64..300_000,
        answer in 0.0..1.0,
        age in 0.0..5.0,
    ) {
        let timeout = Duration::from_millis(millis);
        let delay = (timeout / 10 - timeout / 16).mul_f64(answer);
        let sent = BOOT + timeout.mul_f64(age);
        let mut contacts = idle_until(KeepAlive::brisk(timeout), timeout, delay, sent);
        let from = beat(&mut contacts, timeout, sent, sent + delay);
        prop_assert!(sent <= from && from <= sent + delay, "{from:?}");
        prop_assert!(worth_starting(timeout, sent, sent + delay * 2));
    }

    /// One that was far back may start at its turn, but no lease is longer than what its last relayed ping has proved.
    #[test]
    fn a_beat_of_one_that_was_far_back_is_worth_starting(millis in 1000u64..300_000, age in 0.0..5.0) {
        let (timeout, delay) = (Duration::from_millis(millis), Duration::from_millis(millis / 50));
        let sent = BOOT + timeout.mul_f64(age);
        let mut contacts = idle_until(KeepAlive::calm(timeout), timeout, delay, sent);
        let from = beat(&mut contacts, timeout, sent, sent + delay);
        prop_assert!(worth_starting(timeout, from, sent + delay * 2), "{from:?}");
    }

    /// Whatever was answered, and however late: the leader has heard of what the lease relies on.
    #[test]
    fn a_lease_ends_before_the_session_can(
        millis in 1000u64..300_000,
        gaps in proptest::collection::vec((0.0..0.5, 0.0..0.5), 0..20),
        cut in 0.0..5.0,
        phase in 0.0..1.0,
    ) {
        let timeout = Duration::from_millis(millis);
        let mut contacts = Contacts::new(BOOT);
        let (mut sent, mut answered, mut all) = (BOOT, BOOT, vec![]);
        for (gap, delay) in gaps {
            sent = sent + timeout.mul_f64(gap);
            answered = answered.max(sent + timeout.mul_f64(delay));
            all.push(Contact { sent, answered });
            contacts.add(timeout, [Contact { sent, answered }]);
        }
        // A last relay at any time in the half tick before a `sync` is sent. Its answer comes late, because our server is cut
        // off from the leader; and before the next relay, it is cut off again.
        let synced = answered;
        let relayed_at = synced - Terms::relay(timeout).mul_f64(phase);
        let heard = all.iter().filter(|contact| contact.answered <= relayed_at).map(|contact| contact.sent).max();
        let leader = heard.unwrap_or(BOOT).max(BOOT) + (timeout - timeout / 1000);
        let sent = synced + timeout.mul_f64(cut);
        contacts.add(timeout, [Contact { sent: synced, answered: sent }]);
        let from = beat(&mut contacts, timeout, synced, sent);
        prop_assert!(Terms::span(timeout, from).ends_at <= leader, "{from:?}");
        prop_assert!(from <= sent);
    }
}

#[test]
fn a_beat_after_a_silence_counts_from_before_it() {
    let reach = Terms::reach(HALF_MINUTE);
    // The last ping before 60 s was sent at 58.125 s. Then the keeper is suspended for nine seconds.
    let mut contacts = contacts_until(59_000);
    let before = at(58_125) + reach;
    assert_eq!(beat(&mut contacts, HALF_MINUTE, at(69_000), at(69_005)), before);
    contacts.add(HALF_MINUTE, [contact(69_000, 69_005)]);
    // Too early: the leader may not know of the previous beat yet.
    assert_eq!(beat(&mut contacts, HALF_MINUTE, at(71_000), at(71_010)), before);
    assert_eq!(beat(&mut contacts, HALF_MINUTE, at(71_005), at(71_010)), at(71_010));
}

/// A waiter far back pings every ten seconds. Then it is next in line, and pings at once.
#[test]
fn the_next_in_line_has_a_full_lease_after_half_a_tick() {
    let mut contacts = idle_until(KeepAlive::calm(HALF_MINUTE), HALF_MINUTE, Duration::from_millis(1), at(61_000));
    let at_once = beat(&mut contacts, HALF_MINUTE, at(61_000), at(61_001));
    assert_eq!(at_once, at(50_000) + Terms::reach(HALF_MINUTE));
    contacts.add(HALF_MINUTE, [contact(61_000, 61_001)]);
    assert_eq!(beat(&mut contacts, HALF_MINUTE, at(63_001), at(63_002)), at(63_002));
}

/// Our server may be cut off from the leader, and answers pings all the same.
#[test]
fn without_a_sync_only_the_opening_counts() {
    let reach = Terms::reach(HALF_MINUTE);
    let mut contacts = contacts_until(60_000);
    assert!(!contacts.wants_sync(HALF_MINUTE, BOOT + reach));
    let early = contacts.beat_sent_at(BOOT + reach);
    assert_eq!(contacts.lease_from(HALF_MINUTE, early), BOOT + reach);
    assert!(contacts.wants_sync(HALF_MINUTE, at(60_000)));
    let beat = contacts.beat_sent_at(at(60_000));
    // Answered while the beat was on its way: that may have overtaken the relay.
    contacts.note_synced(at(60_000));
    assert!(!contacts.wants_sync(HALF_MINUTE, at(61_499)));
    assert!(contacts.wants_sync(HALF_MINUTE, at(61_500)));
    assert_eq!(contacts.lease_from(HALF_MINUTE, beat), BOOT + reach);
}

/// The way to the server is dead, and bytes of a long reply come in: the connection is not given up.
#[test]
fn a_connection_that_only_brings_bytes_proves_nothing() {
    let mut contacts = contacts_until(60_000);
    let lease = beat(&mut contacts, HALF_MINUTE, at(90_000), at(90_000));
    assert_eq!(lease, at(58_125) + Terms::reach(HALF_MINUTE));
    assert!(!worth_starting(HALF_MINUTE, lease, at(90_000)));
}

/// The server answers a ping at once, and a transaction when the quorum has.
#[test]
fn answers_may_overtake_each_other() {
    let mut contacts = Contacts::new(BOOT);
    contacts.add(HALF_MINUTE, [contact(40_000, 40_010), contact(38_000, 40_020)]);
    let lease = beat(&mut contacts, HALF_MINUTE, at(60_000), at(60_010));
    assert_eq!(lease, at(40_000) + Terms::reach(HALF_MINUTE));
}

#[test]
fn a_waiter_that_waits_long_keeps_few_contacts() {
    assert!(contacts_until(3_600_000).answered.len() < 20);
}
