//! A debugger has the guard, or what is below it: SIGKILL does not end it, or nobody can reap it.

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::harness::fault::{EXPIRY, Fault, SILENCE};
use crate::harness::process;
use crate::harness::proxy::Proxy;
use crate::harness::rights::{Right, refused};
use crate::harness::scratch::{GRACE, LOCK, Scratch};
use crate::harness::times::{BRIEF_SESSION, LEASE};
use crate::harness::traced::Traced;
use crate::harness::zklock::Zklock;

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
    if refused([Right::Ptrace]) {
        return;
    }
    let (mut fault, proxy) = holder("guard: beyond SIGKILL, network: cut");
    let guard = fault.holder.guard();
    let debugger = Traced::seize(guard, libc::PTRACE_O_TRACEEXIT).expect("ptrace(2)");
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
    if refused([Right::Ptrace]) {
        return;
    }
    let (mut fault, proxy) = holder("guard: KILL, not to be reaped, network: cut");
    let guard = fault.holder.guard();
    let family = process::children(fault.command);
    assert_eq!(family.len(), 1);
    let debugger = Traced::seize(guard, 0).expect("ptrace(2)");
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

/// Nobody else reaps what comes to it, or kills whole process groups. SIGKILL does not end the command, so the run stays as
/// it is.
#[test]
fn stopped_and_continued_to_kill() {
    if refused([Right::Ptrace]) {
        return;
    }
    let scratch = Scratch::new();
    let mut job = scratch.zklock().args(["--max-run", "2s", "--kill-after", "0s", LOCK]).child(["--wait"]).spawn();
    job.wait_stdout("ready");
    let (command, guard) = (job.command(), job.guard());
    let debugger = Traced::seize(command, libc::PTRACE_O_TRACEEXIT).expect("ptrace(2)");
    process::stop(guard);
    process::wait_state(guard, &['S']);
    process::wait_state(command, &['t']);
    drop(debugger);
    job.wait().expect_code(124);
}

/// A chain of processes, each in a session of its own.
const CHAIN: &str = r#"if [ "$1" -gt 1 ]; then setsid sh -c "$0" "$0" $(($1 - 1)) "$2"; exit; fi; eval "$2""#;

#[test]
fn far_below_what_does_not_die() {
    if refused([Right::Ptrace]) {
        return;
    }
    let scratch = Scratch::new();
    expect_lowest_dead(scratch.zklock(), 20, "echo $$; exec sleep 600", 19);
}

/// At the eighth level, and with fewer descriptors than there are of them.
#[test]
fn beside_many_that_do_not_die() {
    if refused([Right::Ptrace]) {
        return;
    }
    let scratch = Scratch::new();
    let last = "for _ in $(seq 40); do setsid sleep 600 & done; setsid sh -c 'echo $$; exec sleep 600' & wait";
    let few = ["sh", "-c", r#"ulimit -n 64; exec "$@""#, "sh"];
    expect_lowest_dead(scratch.zklock().run_by(few), 8, last, 48);
}

/// A command that is a chain of so many processes, and the last of them runs a script. SIGKILL ends none of these, and of the
/// others none but the one that writes its number; that is in the reach of the guard alone, because zklock is stopped.
#[track_caller]
fn expect_lowest_dead(zklock: Zklock, length: u32, last: &str, immortal: usize) {
    let timeout = format!("{}s", BRIEF_SESSION.as_secs());
    let job = zklock.args(["--session-timeout", &timeout, LOCK, "--", "sh", "-c", CHAIN, CHAIN]);
    let mut job = job.args([&length.to_string(), last]).spawn();
    let lowest = Pid::from_raw(job.wait_stdout("").parse().expect("a pid"));
    let mut above = vec![];
    let mut unseen = vec![job.guard()];
    while let Some(parent) = unseen.pop() {
        let children = process::children(parent).into_iter().map(|child| child.pid).filter(|pid| *pid != lowest);
        unseen.extend(children.clone());
        above.extend(children);
    }
    let debuggers = above.iter().map(|pid| Traced::seize(*pid, libc::PTRACE_O_TRACEEXIT).expect("ptrace(2)"));
    let debuggers: Vec<_> = debuggers.collect();
    assert_eq!(debuggers.len(), immortal);
    let stopped = [job.zklock(), job.keeper()];
    stopped.into_iter().for_each(process::stop);
    process::wait_dead(lowest);
    // A debugger leaves only what it has stopped.
    above.into_iter().for_each(|pid| process::wait_state(pid, &['t']));
    drop(debuggers);
    stopped.into_iter().for_each(|stopped| process::send(stopped, Signal::SIGCONT));
    job.wait().expect_code(76);
    job.wait_until_nothing_is_left();
}
