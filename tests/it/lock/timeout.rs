//! `-w`: one timeout over the whole wait, and what is said when it is over.

use std::time::Duration;

use crate::harness::frames::Op;
use crate::harness::poll;
use crate::harness::proxy::{Flow, Proxy};
use crate::harness::running::{Running, finish, only_line};
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::times::AT_ONCE;

/// One timeout over everything: each departure before it makes the waiter look again.
#[test]
fn counts_once_over_all_departures() {
    const DEPARTURES: u32 = 5;
    let scratch = Scratch::new();
    let mut holder = scratch.hold();
    let others: Vec<String> = (0..DEPARTURES).map(|_| scratch.occupy("")).collect();
    let mut loser = scratch.zklock().args(["-w", "5", LOCK]).child(scratch.logged("loser")).spawn();
    scratch.wait_queue(7);
    // The nearest leaves first.
    for (other, n) in others.iter().rev().zip(1..) {
        let time = Duration::from_millis(900) * n;
        poll::until("it is time to leave", || (loser.has_ended() || loser.elapsed() >= time).then_some(()));
        scratch.delete(other);
    }
    let output = loser.wait().expect_code(75);
    let line = only_line(&output);
    assert!(line.starts_with("gave up waiting for /lock after 5s: ") && line.contains(", held by "), "{output}");
    // On an idle machine half of a second or so would do. Counted anew from each departure, it would be 4.5 s.
    let late = output.elapsed.checked_sub(Duration::from_secs(5)).expect("not before five seconds");
    assert!(late < Duration::from_secs(4), "{late:?} late\n{output}");
    loser.wait_until_nothing_is_left();
    assert_eq!(scratch.client().children(LOCK).len(), 1, "no node is left");
    finish(&mut holder);
    assert_eq!(scratch.log().order(), ["holder"]);
}

/// `--timeout` counts from the start, not from when it queued again.
#[test]
fn counts_once_over_queueing_again() {
    let (scratch, proxy) = Scratch::proxied();
    let mut holder = scratch.hold();
    let options = ["--timeout", "14", "--session-timeout", "4"];
    let mut waiter = scratch.start(&proxy.address(), "waiter", &options, &[]);
    scratch.wait_queue(2);
    proxy.refuse();
    scratch.wait_queue(1);
    proxy.accept();
    waiter.wait_stderr("queueing again");
    scratch.wait_queue(2);
    let output = waiter.wait().expect_code(75);
    let limit = Duration::from_secs(14);
    assert!(limit <= output.elapsed && output.elapsed < limit + AT_ONCE, "{output}");
    assert_eq!(output.stderr().lines().count(), 2, "{output}");
    scratch.wait_queue(1);
    finish(&mut holder);
    scratch.expect_tidy(&["holder"]);
}

/// Otherwise a user of `-E 0` would be told for ever that the work is being done elsewhere.
#[test]
fn unnoticed_silence_is_no_busy_lock() {
    let (scratch, proxy) = Scratch::proxied();
    let mut holder = scratch.hold();
    let mut waiter = waiter(&scratch, &proxy, "0");
    // It knows who is before it.
    waiter.wait_stderr("2nd of 2");
    proxy.hold();
    let said = waiter.wait().expect_code(69).stderr();
    let line = "zklock: gave up waiting for /lock after 5s: ZooKeeper did not answer in time\n";
    assert!(said.ends_with(line), "{said}");
    finish(&mut holder);
    proxy.pass();
    scratch.expect_tidy(&["holder"]);
}

/// The answers come again before the release is given up, but what was known of the queue is old by then.
#[test]
fn what_changed_in_a_silence_is_known_when_it_gives_up() {
    for holder_goes in [true, false] {
        let (scratch, proxy) = Scratch::proxied();
        let mut holder = scratch.hold();
        // The same crontab on many hosts has them give up at the same moment.
        let before = scratch.occupy("");
        let mut waiter = waiter(&scratch, &proxy, "3");
        waiter.wait_stderr("3rd of 3");
        proxy.flows(Flow::Pass, Flow::Hold);
        scratch.delete(&before);
        if holder_goes {
            finish(&mut holder);
        }
        // It gives up.
        proxy.wait_count(Op::Delete, 1);
        proxy.pass();
        let said = waiter.wait().expect_code(if holder_goes { 69 } else { 3 }).stderr();
        let line = said.lines().last().unwrap_or_default();
        let why = line.strip_prefix("zklock: gave up waiting for /lock after 5s: ").unwrap_or_else(|| panic!("{said}"));
        assert_eq!(why.contains(", held by "), !holder_goes, "{said}");
        assert_eq!(why == "zklock has learnt too late that it is free", holder_goes, "{said}");
        if !holder_goes {
            finish(&mut holder);
        }
        scratch.expect_tidy(&["holder"]);
    }
}

/// A run that gives up after five seconds, and does not notice a silence in that time.
fn waiter(scratch: &Scratch, proxy: &Proxy, status: &str) -> Running {
    // The connection is given up after a sixth of the session timeout.
    let options = ["-E", status, "--timeout", "5", "--session-timeout", "60"];
    scratch.job(&proxy.address(), "waiter", &options, &[]).env("CI", "true").spawn()
}
