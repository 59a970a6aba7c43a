//! Replies to looks and to deletions are lost, connections break in every phase: nothing changes.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::harness::creation::{expect_one_creation, expect_watch_works, lose_creation};
use crate::harness::frames::Op;
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::proxy::{Fate, Flow, Proxy};
use crate::harness::release::{Feature, lacks};
use crate::harness::running::{Running, finish};
use crate::harness::scratch::{LASTING_VERBOSE, LOCK, Scratch};
use crate::harness::times::{AT_ONCE, SHORT_SESSION};

/// Loses the reply to the first request of a waiter that is of this kind, and whose path ends with the holder's node or
/// does not.
fn reply_to_look_lost(op: Op, about_holder: bool, fate: Fate) {
    // The first list is asked for together with the creation, and then nothing is answered.
    if op == Op::GetChildren && lacks(Feature::Create2) {
        return;
    }
    let (scratch, proxy) = Scratch::proxied();
    let mut holder = scratch.hold();
    let path = scratch.only_contender().path;
    let trap = proxy.trap(fate, move |request| request.op == op && request.path.ends_with(&path) == about_holder);
    let mut job = scratch.start(&proxy.address(), "job", &LASTING_VERBOSE, &["--exit-on", "TERM"]);
    trap.wait();
    proxy.pass();
    expect_watch_works(&scratch, &proxy, &mut holder, &mut job);
    expect_one_creation(&proxy);
}

#[test]
fn first_list() {
    for fate in [Fate::Reset, Fate::Blackhole] {
        reply_to_look_lost(Op::GetChildren, false, fate);
    }
}

#[test]
fn watch_on_the_holder() {
    for fate in [Fate::Reset, Fate::Blackhole] {
        reply_to_look_lost(Op::GetData, true, fate);
    }
}

#[test]
fn watch_on_our_own_node() {
    reply_to_look_lost(Op::GetData, false, Fate::Reset);
}

/// The watch on our own node is there again too: that it is deleted is noticed without a beat.
#[test]
fn own_node_deleted_after_a_reset() {
    let (scratch, proxy) = Scratch::proxied();
    let mut job = scratch.start(&proxy.address(), "job", &["-v", "--session-timeout", "60"], &["--wait"]);
    job.wait_stdout("ready");
    proxy.reset();
    job.wait_stderr("restored");
    let deleted = Moment::now();
    scratch.delete(&scratch.only_contender().path);
    job.wait().expect_code(76);
    // A beat would come after 12 s.
    scratch.last_alive("job").expect_within(AT_ONCE, deleted, "the command is dead");
    scratch.expect_tidy(&["job"]);
}

/// Loses the reply to the deletion of a command's node after the command has ended with 7.
fn reply_to_delete_lost(fate: Fate) -> (Running, Duration) {
    let (scratch, proxy) = Scratch::proxied();
    let trap = proxy.trap_ops(fate, &[Op::Delete]);
    let mut job = scratch.start(&proxy.address(), "job", &[], &["--exit-on", "TERM", "--exit", "7"]);
    job.wait_stdout("ready");
    let told = Instant::now();
    job.signal(Signal::SIGTERM);
    trap.wait();
    scratch.wait_queue(0);
    let output = job.wait().expect_code(7);
    let took = told.elapsed();
    assert!(output.stderr().lines().count() <= 1, "{output}");
    scratch.expect_tidy(&["job"]);
    (job, took)
}

#[test]
fn delete_by_a_reset_or_by_silence() {
    for fate in [Fate::Reset, Fate::Blackhole] {
        let (job, took) = reply_to_delete_lost(fate);
        assert_eq!(job.stderr(), "", "the lock was released");
        assert!(took < SHORT_SESSION, "{fate:?}: {took:?}");
    }
}

#[test]
fn delete_and_no_answer_any_more() {
    let (job, took) = reply_to_delete_lost(Fate::ResetAndHold);
    assert_eq!(
        job.stderr(),
        format!(
            "zklock: the release of {LOCK} was not confirmed; it frees itself within {}s\n",
            SHORT_SESSION.as_secs()
        )
    );
    assert!(took < SHORT_SESSION + AT_ONCE, "{took:?}");
}

#[test]
fn reset_in_any_phase() {
    let (scratch, proxy) = Scratch::proxied();
    let mut holder = scratch.hold();

    // Connecting: it is accepted, and gets no answer.
    proxy.hold();
    let mut job = scratch.start(&proxy.address(), "job", &LASTING_VERBOSE, &["--exit-on", "TERM", "--exit", "7"]);
    poll::until("it connects", || (proxy.accepted() > 0).then_some(()));
    proxy.reset();

    // Creating: the node is there, and the reply is not.
    let creation = lose_creation(&proxy, Fate::Wait);
    proxy.pass();
    creation.wait();
    proxy.reset();
    expect_reconnected(&proxy);
    scratch.wait_queue(2);

    // Waiting: the holder goes while the connection is down.
    let holders = scratch.contenders()[0].path.clone();
    poll::until("it watches the holder", || {
        proxy
            .requests()
            .iter()
            .any(|request| request.op == Op::GetData && request.path.ends_with(&holders))
            .then_some(())
    });
    proxy.refuse();
    finish(&mut holder);
    proxy.accept();

    // Holding.
    job.wait_stdout("ready");
    let beats = proxy.count(Op::Multi);
    proxy.reset();
    proxy.wait_count(Op::Multi, beats + 2);
    scratch.expect_ours(&job);

    // Releasing.
    let deletion = proxy.trap_ops(Fate::Wait, &[Op::Delete]);
    job.signal(Signal::SIGTERM);
    deletion.wait();
    proxy.reset();
    job.wait().expect_code(7);
    expect_one_creation(&proxy);
    scratch.expect_tidy(&["holder", "job"]);
}

#[track_caller]
fn expect_reconnected(proxy: &Proxy) {
    poll::until("it is connected", || (proxy.open() > 0).then_some(()));
}

#[test]
fn slow_network_that_breaks_at_every_handover() {
    let (scratch, proxy) = Scratch::proxied();
    let delay = Flow::Delay(Duration::from_millis(5));
    proxy.flows(delay, delay);
    let names: Vec<String> = (0..10).map(|number| format!("job{number}")).collect();
    let mut jobs: Vec<Running> =
        names.iter().map(|name| scratch.start(&proxy.address(), name, &LASTING_VERBOSE, &["--until", name])).collect();
    for _ in &names {
        let running = poll::until("one of them runs", || {
            scratch.log().runs().iter().find(|run| !run.ended).map(|run| run.name.clone())
        });
        proxy.reset();
        scratch.touch(&running);
        proxy.reset();
        poll::until("it ends", || {
            scratch.log().runs().iter().any(|run| run.name == running && run.ended).then_some(())
        });
    }
    for job in &mut jobs {
        job.wait().expect_code(0);
    }
    let log = scratch.log().expect_no_overlap();
    assert_eq!(log.runs().len(), names.len());
    scratch.wait_queue(0);
}
