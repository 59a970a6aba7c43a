//! Servers that answer late.

use std::time::Duration;

use crate::harness::frames::Op;
use crate::harness::proxy::{Flow, Proxy};
use crate::harness::release::Feature;
use crate::harness::running::finish;
use crate::harness::scratch::{LOCK, Scratch, direct};

/// A beat takes two round trips. The first one of the next beat does not wait for the second one of this: else the lease
/// would end before it is extended.
#[test]
fn a_command_lives_on_with_slow_answers() {
    let scratch = Scratch::new().with_lock();
    let proxy = Proxy::zookeeper(&direct());
    let slow_down = |half| {
        let half = Flow::Delay(Duration::from_millis(half));
        proxy.flows(half, half);
    };
    let zklock =
        scratch.zklock_by(proxy.address()).args(["--session-timeout", "20", LOCK]).child(scratch.logged("job"));
    let mut job;
    if Feature::Create2.is_there() {
        slow_down(1275);
        job = zklock.spawn();
        job.wait_stdout("ready");
    } else {
        // The start takes more round trips, too many for its lease. And in one step, the two round trips that are to overlap
        // would come too late.
        job = zklock.spawn();
        job.wait_stdout("ready");
        slow_down(900);
        wait_beats(&proxy, 3);
        slow_down(1275);
    }
    wait_beats(&proxy, 5);
    proxy.pass();
    finish(&mut job);
    scratch.expect_tidy(&["job"]);
}

/// What is next in line beats while it waits. Its lease is never young enough to start a command under.
#[test]
fn a_waiter_says_that_answers_are_too_slow() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold();
    let proxy = Proxy::zookeeper(&direct());
    let zklock = scratch.zklock_by(proxy.address()).args(["--session-timeout", "6", LOCK]);
    let mut waiter = zklock.child(scratch.logged("waiter")).spawn();
    scratch.wait_queue(2);
    let half = Flow::Delay(Duration::from_millis(430));
    proxy.flows(half, half);
    // The opening of the connection is too long ago to help.
    wait_beats(&proxy, 4);
    finish(&mut holder);
    waiter.wait_stderr("it is this run's turn");
    proxy.pass();
    waiter.wait_stdout("ready");
    finish(&mut waiter);
    scratch.expect_tidy(&["holder", "waiter"]);
}

/// Waits for this many more beats.
fn wait_beats(proxy: &Proxy, count: usize) {
    let before = proxy.count(Op::Multi);
    proxy.wait_count(Op::Multi, before + count);
}
