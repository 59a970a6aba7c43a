//! kill -9 of zklock: all that it has started is dead before the next holder starts, which it does at once.

use std::time::Instant;

use nix::sys::signal::{Signal, killpg};

use crate::harness::fault::{EXPIRY, Fault};
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::process::{self, Process};
use crate::harness::running::finish;
use crate::harness::scratch::{GRACE, LOCK, Scratch, direct};
use crate::harness::times::{AT_ONCE, INSTANT, SOON, expect_once_below};

#[test]
fn next_starts_within_100_ms() {
    expect_once_below(INSTANT, || {
        let scratch = Scratch::new();
        let logged = ["--beat", "--log", "log", "--name"];
        let tree = logged.iter().copied().chain(["first", "--wait", "--spawn", "--", "--setsid", "--wait"]);
        let mut first = scratch.zklock().arg(LOCK).child(tree).args(logged).arg("grandchild").spawn();
        first.wait_stdout_all(&["first ready", "grandchild ready"]);
        let mut second = scratch.zklock().arg(LOCK).child(logged).arg("second").spawn();
        scratch.wait_queue(2);
        let killed = Moment::now();
        first.signal(Signal::SIGKILL);
        first.wait().expect_signal(Signal::SIGKILL);
        second.wait().expect_code(0);
        first.wait_until_nothing_is_left();
        let log = scratch.log();
        let (next, tree) = log.runs().split_last().expect("three runs");
        assert_eq!((next.name.as_str(), tree.len()), ("second", 2));
        assert!(tree.iter().all(|run| run.last < next.begin), "{log:?}");
        let took = scratch.begin("second").since(killed);
        assert!(took < SOON, "{took:?}");
        took
    });
}

/// The keeper is in a group of its own, and has something left to do.
#[test]
fn whole_process_group_killed() {
    let scratch = Scratch::new();
    let mut job = scratch.zklock().arg(LOCK).child(["--wait"]).spawn();
    job.wait_stdout("ready");
    let killed = Instant::now();
    killpg(job.pid(), Signal::SIGKILL).expect("a group can be killed");
    scratch.wait_queue(0);
    assert!(killed.elapsed() < SOON);
    job.wait().expect_signal(Signal::SIGKILL);
    job.wait_until_nothing_is_left();
}

#[test]
fn waiter_killed() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold();
    let mut victim = scratch.start(&direct(), "victim", &["--session-timeout", "60"], &[]);
    scratch.wait_queue(2);
    let killed = Moment::now();
    victim.signal(Signal::SIGKILL);
    scratch.wait_queue(1);
    Moment::now().expect_within(AT_ONCE, killed, "the node goes");
    victim.wait().expect_signal(Signal::SIGKILL);
    victim.wait_until_nothing_is_left();
    finish(&mut holder);
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn command_stopped() {
    let mut fault = Fault::minute();
    fault.strike(Signal::SIGSTOP, &[fault.command]);
    fault.strike(Signal::SIGKILL, &[fault.supervisor]);
    fault.expect_killed(AT_ONCE);
}

#[test]
fn keeper_stopped() {
    let mut fault = Fault::shared();
    fault.strike(Signal::SIGSTOP, &[fault.keeper]);
    fault.strike(Signal::SIGKILL, &[fault.supervisor]);
    fault.command_dead(AT_ONCE);
    fault.holder.wait().expect_signal(Signal::SIGKILL);
    fault.next_starts(EXPIRY);
    // It finds its session over, and itself with nothing to do.
    process::send(fault.keeper, Signal::SIGCONT);
    fault.end();
}

/// The keeper cannot say good-bye, and the session ends by itself.
#[test]
fn network_cut() {
    let (mut fault, proxy) = Fault::proxied();
    proxy.hold();
    fault.strike(Signal::SIGKILL, &[fault.supervisor]);
    fault.expect_killed(EXPIRY);
}

/// The session is not closed, because the keeper would do that. It expires.
#[test]
fn keeper_killed_as_well() {
    let mut fault = Fault::shared();
    // Neither sees the other one die.
    fault.strike(Signal::SIGSTOP, &[fault.supervisor, fault.keeper]);
    fault.strike(Signal::SIGKILL, &[fault.supervisor, fault.keeper]);
    fault.expect_killed(EXPIRY);
}

/// What the command has started in its process group dies with it.
#[test]
fn all_killed_with_children_in_the_group() {
    let scratch = Scratch::new().with_lock();
    let tree = ["--wait", "--spawn", "--", "--name", "grandchild", "--wait"];
    let mut fault = Fault::with(scratch, &direct(), &GRACE, &tree);
    // It may have been quicker than the command itself.
    poll::until("the grandchild", || fault.holder.stdout().contains("grandchild ready").then_some(()));
    let all = [fault.supervisor, fault.keeper, fault.holder.guard()];
    let (_, family) = fault.holder.family(2);
    fault.strike(Signal::SIGSTOP, &all);
    fault.strike(Signal::SIGKILL, &all);
    fault.command_dead(AT_ONCE);
    poll::until("all are dead", || {
        let is_dead = |process: &Process| process::look(process.pid).is_none_or(|now| now.state == 'Z');
        family.iter().all(is_dead).then_some(())
    });
    fault.expect_killed(EXPIRY);
}
