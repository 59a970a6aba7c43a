//! Terms for every session timeout.

use proptest::prelude::*;

use super::*;

const BOOT: Instant = Instant::from_boot(Duration::from_secs(1000));

fn at(millis: u64) -> Instant {
    BOOT + Duration::from_millis(millis)
}

proptest! {
    #[test]
    fn steps_come_in_order_before_the_session_ends(
        millis in 100u64..3_600_000,
        kill_after in proptest::option::of(0u64..3_600_000),
    ) {
        let timeout = Duration::from_millis(millis);
        match Terms::new(timeout, kill_after.map(Duration::from_millis)) {
            Ok(terms) => {
                prop_assert!(terms.beat < terms.stop);
                prop_assert!(terms.stop <= terms.kill);
                let lease = Lease::new(terms, BOOT);
                prop_assert!(lease.kill_at() < Terms::span(timeout, BOOT).ends_at);
                prop_assert!(Terms::span(timeout, BOOT).ends_at < BOOT + timeout);
                prop_assert!(lease.worth_starting(BOOT));
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
        let (mut lease, extended) = (Lease::new(terms, early), Lease::new(terms, late));
        prop_assert!(lease.stop_at() <= extended.stop_at());
        prop_assert!(lease.kill_at() <= extended.kill_at());
        lease.renew(terms, late);
        prop_assert_eq!(lease, extended);
        lease.renew(terms, early);
        prop_assert_eq!(lease, extended);
        prop_assert!(Terms::span(terms.timeout, early).ends_at <= Terms::span(terms.timeout, late).ends_at);
    }
}

#[test]
fn default_terms_of_the_default_session_timeout() {
    let terms = Terms::new(Duration::from_secs(30), None).unwrap();
    assert_eq!(terms.beat, Duration::from_secs(6));
    assert_eq!(Terms::span(terms.timeout, BOOT).ends_at, BOOT + Duration::from_millis(24_970));
    assert_eq!(terms.kill_after(), DEFAULT_KILL_AFTER);
    assert_eq!(Lease::new(terms, BOOT).kill_at(), BOOT + Duration::from_millis(24_720));
}

#[test]
fn a_shorter_timeout_brings_no_later_end() {
    let (before, timeout) = (Duration::from_secs(30), Duration::from_secs(6));
    for (opened, end) in [(0, 3894), (10_000, 13_894), (21_100, 24_870), (24_000, 24_870)] {
        let from = Terms::shortened(BOOT, before, timeout, at(opened));
        assert_eq!(Terms::span(timeout, from).ends_at, at(end));
    }
}

#[test]
fn a_lease_ends_in_time_for_a_leader_whose_clock_gains() {
    for seconds in [2, 6, 30, 120] {
        let timeout = Duration::from_secs(seconds);
        let expires = BOOT + (timeout - timeout / 1000 - Terms::reach(timeout));
        assert!(Terms::span(timeout, BOOT).ends_at <= expires);
    }
}

#[test]
fn a_grace_without_room_is_refused() {
    let no_room = Terms::new(Duration::from_secs(6), Some(Duration::from_secs(5))).unwrap_err();
    assert_eq!(no_room.kill_after, Duration::from_secs(5));
    assert!(no_room.longest < Duration::from_secs(3));
}

#[test]
fn an_old_beat_starts_nothing() {
    let terms = Terms::new(Duration::from_secs(30), None).unwrap();
    assert!(!Lease::new(terms, BOOT).worth_starting(BOOT + Duration::from_secs(15)));
}
