//! The keeper dies: a holder stops the command, and a waiter gives up.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::harness::fault::{EXPIRY, Fault, KEEPER_DIED};
use crate::harness::process;
use crate::harness::running::{finish, only_line};
use crate::harness::scratch::{GRACE, LOCK, Scratch, direct};
use crate::harness::stub::Stub;
use crate::harness::times::{LEASE, expect_once_below};

const DIED: &str = "internal error: the keeper process died";

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
fn while_the_lock_is_waited_for() {
    let scratch = Scratch::new();
    let mut holder = scratch.hold();
    // Only the server can remove the node of a keeper that was killed.
    let mut run = scratch.zklock().env("ZKLOCK_SESSION_TIMEOUT", "4s").args([LOCK, "true"]).spawn();
    scratch.wait_queue(2);
    process::send(run.keeper(), Signal::SIGKILL);
    let output = run.wait().expect_code(70);
    assert_eq!(only_line(&output), DIED);
    finish(&mut holder);
    scratch.wait_queue(0);
}

#[test]
fn before_any_server_has_answered() {
    let scratch = Scratch::new();
    let silent = Stub::silent();
    let mut run = scratch.zklock_by(silent.address()).args([LOCK, "true"]).spawn();
    process::send(run.keeper(), Signal::SIGKILL);
    let output = run.wait().expect_code(70);
    assert_eq!(only_line(&output), DIED);
}
