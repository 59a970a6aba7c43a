//! The keeper dies: its holder stops the command, its waiter starts another keeper.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::harness::fault::{EXPIRY, Fault, KEEPER_DIED};
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::running::{finish, only_line};
use crate::harness::scratch::{GRACE, LOCK, Scratch, direct};
use crate::harness::stub::Stub;
use crate::harness::times::{LEASE, expect_once_below};

#[test]
fn keeper_killed() {
    let mut fault = Fault::shared("keeper: KILL");
    fault.strike(Signal::SIGKILL, &[fault.keeper]);
    fault.expect_lost(LEASE, EXPIRY, KEEPER_DIED);
}

#[test]
fn command_may_end_by_itself() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.start(&direct(), "holder", &GRACE, &["--exit-on", "TERM"]);
    holder.wait_stdout("ready");
    let mut next = scratch.queue("next", 1);
    let killed = Moment::now();
    process::send(holder.keeper(), Signal::SIGKILL);
    let why = "the keeper process died; stopping the command";
    scratch.expect_handover(&mut holder, &mut next, killed, why);
    assert!(scratch.log().runs()[0].ended);
}

/// No confirmation of the release can come, so none is waited for.
#[test]
fn the_run_ends_at_once() {
    expect_once_below(Duration::from_millis(800), || {
        let scratch = Scratch::new().with_lock();
        let mut holder = scratch.start(&direct(), "holder", &GRACE, &["--exit-on", "TERM"]);
        holder.wait_stdout("ready");
        process::send(holder.keeper(), Signal::SIGKILL);
        let killed = Instant::now();
        holder.wait().expect_code(76);
        killed.elapsed()
    });
}

#[test]
fn supervisor_stopped_for_a_moment() {
    let mut fault = Fault::shared("supervisor: STOP, keeper: KILL, supervisor: CONT");
    fault.strike(Signal::SIGSTOP, &[fault.supervisor]);
    fault.strike(Signal::SIGKILL, &[fault.keeper]);
    process::wait_state(fault.keeper, &['Z']);
    process::send(fault.supervisor, Signal::SIGCONT);
    fault.expect_lost(LEASE, EXPIRY, KEEPER_DIED);
}

/// The guard ends the command with the lease, and its own end continues the supervisor. Why the lease was over is the death of
/// the keeper, and no silence of the servers.
#[test]
fn supervisor_stopped_past_the_lease() {
    let mut fault = Fault::shared("supervisor: STOP, keeper: KILL");
    fault.strike(Signal::SIGSTOP, &[fault.supervisor]);
    fault.strike(Signal::SIGKILL, &[fault.keeper]);
    fault.command_dead(LEASE);
    fault.lost("the keeper process died; ");
    fault.next_starts(EXPIRY);
    fault.end("76");
}

#[test]
fn again_and_again_is_an_internal_error() {
    let scratch = Scratch::new();
    let mut holder = scratch.hold();
    // Only the server can remove the node of a keeper that was killed.
    let mut run = scratch.zklock().env("ZKLOCK_SESSION_TIMEOUT", "4s").args(["-v", LOCK, "true"]).spawn();
    for _ in 0..3 {
        let keeper = run.keeper();
        // Each has queued before it dies, and the supervisor was told of its session before that; its node stays for as
        // long as its session.
        run.wait_stderr("contender /");
        process::send(keeper, Signal::SIGKILL);
        poll::until("the keeper is gone", || process::look(keeper).is_none().then_some(()));
    }
    let output = run.wait().expect_code(70);
    let stderr = output.stderr();
    let is_told = |line: &&str| line.contains("queueing again") || line.contains("internal error");
    let lines: Vec<&str> = stderr.lines().filter(is_told).collect();
    let queued_again = "zklock: lost our place in the queue for /lock: the keeper process died; queueing again";
    let died = "zklock: internal error: the keeper process died repeatedly";
    assert_eq!(lines, [queued_again, queued_again, died]);
    finish(&mut holder);
    scratch.wait_queue(0);
}

#[test]
fn before_any_server_has_answered() {
    let scratch = Scratch::new();
    let silent = Stub::silent();
    let mut run = scratch.zklock_by(silent.address()).args(["--connect-timeout", "2s", LOCK, "true"]).spawn();
    process::send(run.keeper(), Signal::SIGKILL);
    let output = run.wait().expect_code(69);
    only_line(&output);
}
