//! What a beat is worth after silences and pauses.

use super::*;
use crate::rules::lease::Lease;

const BOOT: Instant = Instant::from_boot(Duration::from_secs(1000));
const HALF_MINUTE: Duration = Duration::from_secs(30);

fn at(millis: u64) -> Instant {
    BOOT + Duration::from_millis(millis)
}

fn worth_starting(timeout: Duration, from: Instant, now: Instant) -> bool {
    Lease::new(Terms::with_default_grace(timeout), from).worth_starting(now)
}

/// A keeper that is in touch with its server as often as one that holds.
fn contacts_until(millis: u64) -> Contacts {
    let mut contacts = Contacts::new(BOOT);
    for now in (0..=millis).step_by(300) {
        contacts.awake(HALF_MINUTE, at(now));
        if now % 3000 == 0 {
            contacts.answered(at(now), at(now + 1));
        }
    }
    contacts
}

#[test]
fn a_beat_of_a_keeper_in_touch_counts_in_full() {
    for sent in [0, 6000, 12_000, 60_000] {
        assert_eq!(contacts_until(sent).lease_from(HALF_MINUTE, at(sent), at(sent + 5)), at(sent));
    }
}

#[test]
fn a_beat_after_a_silence_counts_from_before_it() {
    let margin = HALF_MINUTE - Terms::validity(HALF_MINUTE);
    // Stopped for nine seconds.
    let mut contacts = contacts_until(60_000);
    assert_eq!(contacts.lease_from(HALF_MINUTE, at(69_000), at(69_005)), at(60_000) + margin);
    contacts.answered(at(69_000), at(69_005));
    // Too early: the leader may not know of the previous beat yet.
    assert_eq!(contacts.lease_from(HALF_MINUTE, at(70_000), at(70_005)), at(60_000) + margin);
    assert_eq!(contacts.lease_from(HALF_MINUTE, at(71_005), at(71_010)), at(71_005));
}

#[test]
fn a_live_connection_counts_without_requests() {
    let mut contacts = Contacts::new(BOOT);
    for now in (0..=60_000).step_by(300) {
        contacts.awake(HALF_MINUTE, at(now));
    }
    let sent = at(60_500);
    let lease = contacts.lease_from(HALF_MINUTE, sent, sent);
    assert_eq!(
        lease,
        sent - HALF_MINUTE * 5 / 12 - Duration::from_secs(2) + (HALF_MINUTE - Terms::validity(HALF_MINUTE))
    );
    assert!(worth_starting(HALF_MINUTE, lease, sent));
    // At worst, the last reply was under way for as long as a session waits, and nothing came for as long
    // again.
    let patience = HALF_MINUTE / 6 + HALF_MINUTE / 48 + Contacts::unnoticed(HALF_MINUTE);
    let heard = sent - Terms::relay(HALF_MINUTE) - patience * 2;
    assert!(Terms::span(HALF_MINUTE, lease).ends_at <= heard + HALF_MINUTE);
    // But not if we were paused meanwhile, even if `awake` was not called since the pause.
    let mut paused = Contacts::new(BOOT);
    paused.awake(HALF_MINUTE, at(50_000));
    let lease = paused.lease_from(HALF_MINUTE, sent, sent);
    assert!(!worth_starting(HALF_MINUTE, lease, sent));
}

#[test]
fn a_loss_just_after_a_pause_was_in_the_pause() {
    let mut contacts = contacts_until(60_000);
    assert_eq!(contacts.heard_until(HALF_MINUTE, at(60_300)), at(60_300));
    // The end of a pause, before and after `awake` was called.
    assert_eq!(contacts.heard_until(HALF_MINUTE, at(100_000)), at(60_000));
    contacts.awake(HALF_MINUTE, at(100_000));
    assert_eq!(contacts.heard_until(HALF_MINUTE, at(100_010)), at(60_000));
    // A machine that wakes without a network: a session does not give the connection up before this.
    for now in (100_300..=105_600).step_by(300) {
        contacts.awake(HALF_MINUTE, at(now));
    }
    assert_eq!(contacts.heard_until(HALF_MINUTE, at(105_630)), at(60_000));
    for now in (105_700..=106_300).step_by(300) {
        contacts.awake(HALF_MINUTE, at(now));
    }
    assert_eq!(contacts.heard_until(HALF_MINUTE, at(106_300)), at(106_300));
}

#[test]
fn any_live_connection_lets_a_command_start() {
    for timeout in [2, 4, 8, 12, 30, 300].map(Duration::from_secs) {
        let mut contacts = Contacts::new(BOOT);
        for step in 0..200 {
            contacts.awake(timeout, BOOT + Contacts::awake_interval(timeout) * step);
        }
        let sent = BOOT + timeout * 2;
        let lease = contacts.lease_from(timeout, sent, sent);
        assert!(worth_starting(timeout, lease, sent), "{timeout:?}");
    }
}

#[test]
fn a_step_of_the_wall_clock_is_told_once() {
    const WALL: u64 = 1_700_000_000_000;
    let mut clocks = Clocks::new(BOOT, WALL);
    let mut step = |boot, wall: u64| clocks.step(HALF_MINUTE, at(boot), WALL + wall);
    assert_eq!(step(300, 300), None);
    // A pause that only the wall clock shows.
    assert_eq!(step(600, 40_600), Some(Duration::from_secs(40)));
    assert_eq!(step(900, 40_900), None);
    // A pause that both show, as when the machine sleeps, or we are stopped.
    assert_eq!(step(60_900, 100_900), None);
    // The wall clock is set back, and forward again.
    assert_eq!(step(61_200, 0), None);
    assert_eq!(step(61_500, 101_500), Some(Duration::from_millis(101_200)));
}

#[test]
fn a_small_step_is_told_where_the_session_is_short() {
    let ahead = |timeout, wall: u64| Clocks::new(BOOT, 0).step(timeout, at(20), 20 + wall);
    assert_eq!(ahead(HALF_MINUTE, 1000), None);
    assert_eq!(ahead(HALF_MINUTE, 1001), Some(Duration::from_millis(1001)));
    assert_eq!(ahead(Duration::from_secs(2), 200), None);
    assert_eq!(ahead(Duration::from_secs(2), 201), Some(Duration::from_millis(201)));
}
