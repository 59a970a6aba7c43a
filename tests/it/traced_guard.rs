//! A debugger has the guard: SIGKILL does not end it, or nobody can reap it.

use nix::sys::signal::Signal;

use crate::harness::fault::{EXPIRY, Fault, SILENCE};
use crate::harness::process;
use crate::harness::proxy::Proxy;
use crate::harness::release::not_tested;
use crate::harness::scratch::{GRACE, Scratch};
use crate::harness::times::LEASE;
use crate::harness::traced::Traced;

/// A holder behind a proxy whose command has a process in a session of its own.
fn holder(what: &'static str) -> (Fault, Proxy) {
    let (scratch, proxy) = Scratch::proxied();
    let child = ["--wait", "--spawn", "--", "--name", "session", "--setsid", "--wait"];
    let fault = Fault::with(what, scratch, &proxy.address(), &GRACE, &child);
    // It may have come before the line of the holder.
    fault.holder.wait_stdout_all(&["session ready"]);
    (fault, proxy)
}

/// The guard is stopped, and what SIGKILL makes of it is the stop in which a debugger looks at a process that exits.
#[test]
fn beyond_sigkill() {
    let (mut fault, proxy) = holder("guard: beyond SIGKILL, network: cut");
    let guard = fault.holder.guard();
    let Ok(debugger) = Traced::seize(guard, libc::PTRACE_O_TRACEEXIT) else {
        return not_tested("ptrace(2)");
    };
    process::send(guard, Signal::SIGSTOP);
    process::wait_state(guard, &['t']);
    let family = process::below_guard(fault.supervisor);
    proxy.hold();
    fault.strikes();
    fault.command_dead(LEASE);
    fault.next_starts(EXPIRY);
    process::expect_dead(&family);
    drop(debugger);
    fault.lost(SILENCE);
    fault.end("76");
}

/// What was below a guard that has died comes to the supervisor, also while the guard itself cannot be reaped.
#[test]
fn dead_and_not_reaped() {
    let (mut fault, proxy) = holder("guard: KILL, not to be reaped, network: cut");
    let guard = fault.holder.guard();
    let family = process::children(fault.command);
    assert_eq!(family.len(), 1);
    let Ok(debugger) = Traced::seize(guard, 0) else {
        return not_tested("ptrace(2)");
    };
    process::send(guard, Signal::SIGKILL);
    process::wait_state(guard, &['Z']);
    proxy.hold();
    fault.strikes();
    fault.next_starts(EXPIRY);
    process::expect_dead(&family);
    drop(debugger);
    fault.lost(SILENCE);
    fault.end("76");
}
