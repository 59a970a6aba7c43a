//! Processes that are stopped and continued, one by one and all at once, as when a machine sleeps.

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::harness::fault::{EXPIRY, Fault, SILENCE};
use crate::harness::process;
use crate::harness::running::finish;
use crate::harness::scratch::{LASTING_VERBOSE, Scratch, direct};
use crate::harness::times::{LEASE, SHORT_SESSION};

#[test]
fn supervisor() {
    let mut fault = Fault::with(Scratch::new().with_lock(), &direct(), &[], &["--exit-on", "TERM"]);
    fault.strike(Signal::SIGSTOP, &[fault.supervisor]);
    fault.scratch.wait_alive_at("holder", fault.since.after(SHORT_SESSION + SHORT_SESSION / 4));
    process::send(fault.supervisor, Signal::SIGCONT);
    // It passes on the SIGCONT that continued it.
    fault.holder.wait_stdout("signal CONT");
    let first = fault.scratch.contenders().swap_remove(0);
    assert_eq!(first.path, fault.holder.variable("ZKLOCK_NODE"));
    finish(&mut fault.holder);
    finish(&mut fault.next);
    fault.scratch.expect_tidy(&["holder", "next"]);
}

#[test]
fn keeper() {
    let mut fault = Fault::shared();
    fault.strike(Signal::SIGSTOP, &[fault.keeper]);
    fault.expect_lost(LEASE, EXPIRY, SILENCE);
}

/// The guard kills the command with the lease. If it is stopped, the kernel continues it for that.
#[test]
fn past_the_lease() {
    for (others, status) in [("keeper", 76), ("keeper, command", 76), ("keeper, guard", 76)] {
        println!("supervisor, {others}");
        let mut fault = Fault::shared();
        let all = [("keeper", fault.keeper), ("guard", fault.holder.guard()), ("command", fault.command)];
        let others = all.into_iter().filter(|(name, _)| others.contains(name)).map(|(_, pid)| pid);
        let stopped: Vec<Pid> = others.chain([fault.supervisor]).collect();
        fault.strike(Signal::SIGSTOP, &stopped);
        fault.command_dead(LEASE);
        if stopped.contains(&fault.keeper) {
            fault.next_starts(EXPIRY);
        }
        stopped.iter().for_each(|&pid| process::send(pid, Signal::SIGCONT));
        let said = fault.holder.wait().expect_code(status).stderr();
        assert!(!said.contains("deleted"), "nobody did that\n{said}");
        fault.next_starts(EXPIRY);
        fault.end();
    }
}

#[test]
fn everything_for_less_than_the_lease() {
    let scratch = Scratch::new().with_lock();
    let mut fault = Fault::with(scratch, &direct(), &LASTING_VERBOSE, &["--exit-on", "TERM"]);
    let all = [fault.command, fault.supervisor, fault.keeper];
    fault.strike(Signal::SIGSTOP, &all);
    fault.strike(Signal::SIGCONT, &all);
    fault.holder.wait_stdout("signal CONT");
    fault.expect_undisturbed();
}
