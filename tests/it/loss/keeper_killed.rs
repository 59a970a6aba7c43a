//! The keeper dies: its holder stops the command, its waiter starts another keeper.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::harness::fault::{EXPIRY, Fault, KEEPER_DIED};
use crate::harness::poll;
use crate::harness::process;
use crate::harness::running::{finish, only_line};
use crate::harness::scratch::{GRACE, LOCK, Scratch, direct};
use crate::harness::stub::Stub;
use crate::harness::times::{LEASE, expect_once_below};

#[test]
fn keeper_killed() {
    let mut fault = Fault::shared();
    fault.strike(Signal::SIGKILL, &[fault.keeper]);
    fault.expect_lost(LEASE, EXPIRY, KEEPER_DIED);
}

/// The command ends by itself. No confirmation of the release can come, so none is waited for.
#[test]
fn the_run_ends_at_once() {
    expect_once_below(Duration::from_millis(800), || {
        let scratch = Scratch::new().with_lock();
        let mut holder = scratch.start(&direct(), "holder", &GRACE, &["--exit-on", "TERM"]);
        holder.wait_stdout("ready");
        process::send(holder.keeper(), Signal::SIGKILL);
        let killed = Instant::now();
        holder.wait().expect_code(76);
        let took = killed.elapsed();
        assert!(scratch.log().runs()[0].ended, "the command may end by itself");
        took
    });
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
    let queued_again = "zklock: lost the place in the queue for /lock: the keeper process died; queueing again";
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
