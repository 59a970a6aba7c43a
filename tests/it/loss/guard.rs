//! The guard killed or stopped, alone and together with others: nothing of the command outlives the lease.

use std::cell::{Cell, RefCell};
use std::fs;
use std::process::Command;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::harness::fault::{DELETED, EXPIRY, Fault};
use crate::harness::poll;
use crate::harness::process::{self, Process};
use crate::harness::rights::{Right, refused};
use crate::harness::running::{Running, finish, only_line};
use crate::harness::scratch::{GRACE, LASTING, LASTING_VERBOSE, LOCK, Scratch, direct};
use crate::harness::times::{AT_ONCE, LEASE, SOON};
use crate::harness::traced::Traced;

const DIED: &str = "zklock: internal error: the guard process died; killed the command\n";

/// The command of the holder has a child in its process group, and a daemon that has left it.
fn with_tree(what: &'static str, options: &[&str]) -> (Fault, Vec<Process>) {
    let tree = ["--wait", "--spawn-daemon", "--", "--name", "daemon", "--wait"];
    let fault = Fault::with(what, Scratch::new().with_lock(), &direct(), options, &tree);
    poll::until("the daemon", || fault.holder.stdout().contains("daemon ready").then_some(()));
    let mut family = fault.holder.processes();
    family.retain(|process| process.name == "child");
    assert!(family.len() >= 2, "{family:?}");
    (fault, family)
}

#[track_caller]
fn wait_dead(family: &[Process]) {
    family.iter().for_each(|process| process::wait_dead(process.pid));
}

/// The kernel kills the command, the supervisor the daemon.
#[test]
fn killed() {
    let (mut fault, family) = with_tree("guard: KILL", &["--session-timeout", "60"]);
    fault.strike(Signal::SIGKILL, &[fault.holder.guard()]);
    fault.command_dead(AT_ONCE);
    let output = fault.holder.wait().expect_code(70);
    assert_eq!(output.stderr(), DIED);
    process::expect_dead(&family);
    fault.next_starts(AT_ONCE);
    fault.end("70");
}

/// A process of the command, outside of its group, whose parent dies with the group. The guard is dying by then and adopts
/// no more orphans, so this one comes to the supervisor, like a stranger. It is a matter of microseconds: several tries.
#[test]
fn killed_and_then_an_orphan() {
    const TREE: &str = r#"sh -c "setsid sleep 600 & echo \$! is it; sh -c \"sleep 600; :\"; :" & wait"#;
    for _ in 0..10 {
        let scratch = Scratch::new();
        let mut job = scratch.zklock().args([LOCK, "--", "sh", "-c", TREE]).spawn();
        let line = job.wait_stdout(" is it");
        let orphan = Pid::from_raw(line.trim_end_matches(" is it").parse().expect("a pid"));
        poll::until("it executes its program", || {
            process::look(orphan).is_some_and(|process| process.name == "sleep").then_some(())
        });
        process::send(job.guard(), Signal::SIGKILL);
        job.wait().expect_code(70);
        assert!(process::look(orphan).is_none(), "{orphan} lives on without the lock");
    }
}

/// The supervisor has no descriptor left to look at processes with. What it cannot see may be there.
#[test]
fn killed_when_the_supervisor_can_open_nothing() {
    let (mut fault, family) = with_tree("guard: KILL", &["--session-timeout", "60"]);
    // All numbers below are in use, and poll(2) is not restricted yet.
    set_limit(fault.supervisor, "--nofile=8");
    fault.strike(Signal::SIGKILL, &[fault.holder.guard()]);
    fault.holder.wait().expect_code(70);
    process::expect_dead(&family);
    fault.next_starts(AT_ONCE);
    fault.end("70");
}

/// Changes a limit of a process (prlimit(1)).
#[track_caller]
fn set_limit(pid: Pid, limit: &str) {
    let status = Command::new("prlimit").args(["--pid", &pid.to_string(), limit]).status();
    assert!(status.expect("prlimit(1)").success());
}

/// A disk that does not answer must not stop a guard: all its pages are locked in memory as soon as it uses them.
#[test]
fn its_code_stays_in_memory() {
    if refused([Right::LockedMemory]) {
        return;
    }
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold();
    let maps = fs::read_to_string(format!("/proc/{}/smaps", holder.guard())).expect("our own process");
    let is_code = |line: &str| line.contains(" r-xp ") && (line.ends_with("/zklock") || line.contains("/libc.so"));
    let mut lines = maps.lines();
    let mut found = 0;
    while let Some(line) = lines.next() {
        if is_code(line) {
            let flags = lines.find(|line| line.starts_with("VmFlags:")).unwrap_or_default();
            assert!(flags.contains(" lo "), "{line}: {flags}");
            found += 1;
        }
    }
    assert!(found > 1, "{maps}");
    finish(&mut holder);
}

/// Where the kernel needs memory for a system call, it may first wait for a disk, or for a file server. Not even its timer
/// ends a guard that waits so. Hence it makes only such calls, until it has killed all that it can reach.
#[test]
fn it_kills_without_memory_of_the_kernel() {
    const CALLS: &[libc::c_long] = &[
        libc::SYS_clock_gettime,
        // Of a pipe. Before that, a debug build looks whether it is open.
        libc::SYS_close,
        libc::SYS_fcntl,
        libc::SYS_getpgid,
        libc::SYS_getsid,
        libc::SYS_kill,
        #[cfg(target_arch = "x86_64")]
        libc::SYS_poll,
        libc::SYS_ppoll,
        // Its buffer was allocated when the list was read before.
        libc::SYS_pread64,
        libc::SYS_read,
        libc::SYS_recvfrom,
        libc::SYS_restart_syscall,
        libc::SYS_timer_settime,
        libc::SYS_timerfd_settime,
        libc::SYS_wait4,
        libc::SYS_waitid,
        // To an eventfd.
        libc::SYS_write,
    ];
    if refused([Right::Ptrace]) {
        return;
    }
    // The child outside of the group comes up to the guard when its parent has died.
    let child = ["--wait", "--spawn", "--", "--name", "session", "--setsid", "--wait"];
    let mut fault = Fault::with("node: deleted, guard: traced", Scratch::new().with_lock(), &direct(), &[], &child);
    fault.holder.wait_stdout_all(&["session ready"]);
    let debugger = Traced::hold(fault.holder.guard());
    let session = process::children(fault.command).pop().expect("a child").pid;
    // It would do without a guard that is as slow as a debugger makes it.
    process::send(fault.supervisor, Signal::SIGSTOP);
    process::wait_state(fault.supervisor, &['T']);
    fault.delete_node();
    let (others, kills) = (RefCell::new(vec![]), Cell::new(false));
    debugger.until_call(1, |call| {
        let [number, target, signal, ..] = *call else { panic!("{call:?}") };
        let number = libc::c_long::try_from(number).expect("the number of a system call");
        let is_kill = number == libc::SYS_kill && signal == libc::SIGKILL as u64;
        let has_killed = kills.replace(kills.get() || is_kill);
        // What takes long to die keeps the session from it, so it looks further below, which takes files.
        if has_killed && number == libc::SYS_openat {
            return true;
        }
        if !CALLS.contains(&number) {
            others.borrow_mut().push(number);
        }
        is_kill && i32::try_from(target.cast_signed()).is_ok_and(|pid| pid.abs() == session.as_raw())
    });
    drop(debugger);
    assert_eq!(others.into_inner(), [0; 0], "system calls that may wait");
    process::wait_dead(session);
    process::send(fault.supervisor, Signal::SIGCONT);
    fault.lost(DELETED);
    fault.next_starts(AT_ONCE);
    fault.end_with_overlap("76");
}

/// It cannot move its timer, and the kernel kills it at the end of the lease that it knew.
#[test]
fn stopped_past_the_lease() {
    let (mut fault, family) = with_tree("guard: STOP", &GRACE);
    fault.strike(Signal::SIGSTOP, &[fault.holder.guard()]);
    fault.command_dead(LEASE);
    fault.holder.wait().expect_code(70);
    process::expect_dead(&family);
    fault.next_starts(LEASE + AT_ONCE);
    fault.end("70");
}

/// No process of zklock can act: the kernel kills the guard, and with it the command's process group.
#[test]
fn all_stopped_past_the_lease() {
    let mut fault = Fault::shared("supervisor, keeper and guard: STOP");
    let all = [fault.supervisor, fault.keeper, fault.holder.guard()];
    fault.strike(Signal::SIGSTOP, &all);
    fault.command_dead(LEASE);
    fault.next_starts(EXPIRY);
    for pid in [fault.supervisor, fault.keeper] {
        process::send(pid, Signal::SIGCONT);
    }
    fault.holder.wait().expect_code(76);
    fault.end("76");
}

#[test]
fn supervisor_and_guard_stopped_past_the_lease() {
    let mut fault = Fault::shared("supervisor and guard: STOP");
    fault.strike(Signal::SIGSTOP, &[fault.supervisor, fault.holder.guard()]);
    fault.command_dead(LEASE);
    process::send(fault.supervisor, Signal::SIGCONT);
    fault.holder.wait().expect_code(70);
    fault.next_starts(EXPIRY);
    fault.end("70");
}

/// The death of the first continues the second. If that has no time to act, the session expires.
#[test]
fn supervisor_and_guard_killed() {
    let mut fault = Fault::shared("supervisor and guard: KILL");
    let both = [fault.holder.guard(), fault.supervisor];
    fault.strike(Signal::SIGSTOP, &both);
    fault.strike(Signal::SIGKILL, &both);
    fault.expect_killed(EXPIRY);
}

#[test]
fn keeper_and_guard_killed() {
    let (mut fault, family) = with_tree("keeper and guard: KILL", &GRACE);
    let guard = fault.holder.guard();
    fault.strike(Signal::SIGSTOP, &[fault.keeper, guard]);
    // The keeper first: the status tells what the supervisor learns of first.
    fault.strike(Signal::SIGKILL, &[fault.keeper]);
    process::wait_dead(fault.keeper);
    fault.strike(Signal::SIGKILL, &[guard]);
    fault.command_dead(AT_ONCE);
    fault.holder.wait().expect_code(76);
    process::expect_dead(&family);
    fault.next_starts(EXPIRY);
    fault.end("76");
}

/// While there is no command yet, the death of the guard or of the process at the gate costs nothing: another one is made.
#[test]
fn killed_while_waiting() {
    for gated in [false, true] {
        let scratch = Scratch::new().with_lock();
        let mut holder = scratch.hold();
        let mut next = scratch.queue("next", 1);
        let guard = next.guard();
        let at_the_gate = poll::until("a process at the gate", || process::children(guard).pop());
        process::send(if gated { at_the_gate.pid } else { guard }, Signal::SIGKILL);
        poll::until("the guard is reaped", || process::look(guard).is_none().then_some(()));
        finish(&mut holder);
        next.wait_stdout("next ready");
        finish(&mut next);
        scratch.expect_tidy(&["holder", "next"]);
    }
}

#[test]
fn killed_at_the_gate_and_given_up() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold();
    let mut next = scratch.queue("next", 1);
    let gated = poll::until("a process at the gate", || process::children(next.guard()).pop());
    process::send(gated.pid, Signal::SIGKILL);
    next.signal(Signal::SIGTERM);
    next.wait_at_most(SOON).expect_signal(Signal::SIGTERM);
    next.wait_until_nothing_is_left();
    finish(&mut holder);
    scratch.expect_tidy(&["holder"]);
}

/// The lock is granted while the process at the gate is stopped. `next` waits behind it.
#[track_caller]
fn stopped_at_the_gate(scratch: &Scratch, options: &[&str]) -> (Running, Running, Process) {
    let mut holder = scratch.hold();
    let options = [&LASTING_VERBOSE[..], options].concat();
    let mut victim = scratch.start(&direct(), "victim", &options, &["--wait"]);
    scratch.wait_queue(2);
    let next = scratch.queue("next", 2);
    let guard = victim.guard();
    let at_the_gate = poll::until("a process at the gate", || process::children(guard).pop());
    process::stop(at_the_gate.pid);
    finish(&mut holder);
    victim.wait_stderr("holding");
    (victim, next, at_the_gate)
}

#[test]
fn stopped_at_the_gate_and_interrupted() {
    let scratch = Scratch::new().with_lock();
    let (mut victim, next, at_the_gate) = stopped_at_the_gate(&scratch, &[]);
    victim.signal(Signal::SIGTERM);
    assert_eq!(victim.wait_at_most(SOON).expect_signal(Signal::SIGTERM).stdout(), "");
    expect_passed_on(&scratch, victim, next, at_the_gate);
}

/// The keeper goes on with its beats, so the lock would be held for as long as nothing continues the process.
#[test]
fn stopped_at_the_gate_until_it_is_too_late() {
    let scratch = Scratch::new().with_lock();
    let (mut victim, next, at_the_gate) = stopped_at_the_gate(&scratch, &[]);
    let output = victim.wait().expect_code(76);
    assert_eq!(output.stdout(), "");
    assert!(output.stderr().ends_with("this machine stalled; the command was not started\n"), "{output}");
    expect_passed_on(&scratch, victim, next, at_the_gate);
}

/// The stop signal is one that does not end what waits at the gate.
#[test]
fn stopped_at_the_gate_until_max_run_is_over() {
    let scratch = Scratch::new().with_lock();
    let options = ["--max-run", "500ms", "--signal", "WINCH"];
    let (mut victim, next, at_the_gate) = stopped_at_the_gate(&scratch, &options);
    let output = victim.wait_at_most(SOON).expect_code(124);
    assert_eq!(output.stdout(), "");
    expect_passed_on(&scratch, victim, next, at_the_gate);
}

/// Nothing is left of the victim, and the next one has the lock.
#[track_caller]
fn expect_passed_on(scratch: &Scratch, mut victim: Running, mut next: Running, at_the_gate: Process) {
    process::expect_dead(&[at_the_gate]);
    victim.wait_until_nothing_is_left();
    next.wait_stdout("next ready");
    finish(&mut next);
    scratch.expect_tidy(&["holder", "next"]);
}

/// The guard, or the process at its gate, dies as the supervisor is about to send the first or the second of two messages
/// that open the gate. After the first one, no other guard can be made.
#[test]
fn killed_as_the_gate_is_opened() {
    if refused([Right::Ptrace]) {
        return;
    }
    let is_message = |call: &[u64]| {
        let flags = u64::from((libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT).cast_unsigned());
        call[0] == libc::SYS_sendto.cast_unsigned() && call[4] == flags
    };
    for (message, gated) in [(1, false), (1, true), (2, false), (2, true)] {
        let scratch = Scratch::new().with_lock();
        let mut holder = scratch.hold();
        let mut victim = scratch.start(&direct(), "victim", &LASTING, &["--exit-on", "TERM"]);
        scratch.wait_queue(2);
        let guard = victim.guard();
        let at_the_gate = poll::until("a process at the gate", || process::children(guard).pop()).pid;
        let held = Traced::hold(victim.pid());
        finish(&mut holder);
        held.until_call(message, is_message);
        process::send(if gated { at_the_gate } else { guard }, Signal::SIGKILL);
        [guard, at_the_gate].into_iter().for_each(process::wait_dead);
        drop(held);
        if message == 1 {
            finish(&mut victim);
            scratch.expect_tidy(&["holder", "victim"]);
        } else {
            let output = victim.wait().expect_code(70);
            let why = ": not started, because a process of zklock has died";
            assert!(only_line(&output).ends_with(why), "{output}");
            victim.wait_until_nothing_is_left();
            scratch.expect_tidy(&["holder"]);
        }
    }
}

/// What waited at the gate is dead, and its guard can neither see nor say that.
#[test]
fn killed_at_the_gate_of_a_stopped_guard() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold();
    let mut next = scratch.queue("next", 1);
    let guard = next.guard();
    let at_the_gate = poll::until("a process at the gate", || process::children(guard).pop()).pid;
    process::stop(guard);
    process::send(at_the_gate, Signal::SIGKILL);
    process::wait_dead(at_the_gate);
    finish(&mut holder);
    finish(&mut next);
    scratch.expect_tidy(&["holder", "next"]);
}

/// A zklock that its caller has left with a child of that caller's own.
#[test]
fn children_of_the_caller_outlive_the_guard() {
    let scratch = Scratch::new();
    let caller = r#"sleep 1000 >/dev/null 2>&1 & echo $!; exec "$@""#;
    let zklock = scratch.zklock().arg(LOCK).child(["--wait"]).run_by(["sh", "-c", caller, "sh"]);
    let mut job = zklock.spawn();
    job.wait_stdout("ready");
    let stranger = Pid::from_raw(job.stdout().lines().next().and_then(|line| line.parse().ok()).expect("a pid"));
    process::send(job.guard(), Signal::SIGKILL);
    assert_eq!(job.wait().expect_code(70).stderr(), DIED);
    assert!(process::look(stranger).is_some_and(|process| process.state != 'Z'), "{stranger} was killed");
    process::send(stranger, Signal::SIGKILL);
    job.wait_until_nothing_is_left();
}

/// A program that overwrites its environment and its name, in a session of its own, is the command's all the same.
#[test]
fn process_that_hides_dies_with_the_supervisor() {
    let scratch = Scratch::new().with_lock();
    let script = r#"env -i setsid perl -e '$0 = "x" x 200; open F, ">hidden"; print F $$; close F; sleep 1000' & wait"#;
    let mut job = scratch.zklock().args([LOCK, "--", "sh", "-c", script]).spawn();
    let hidden: i32 = poll::until("the hidden process", || {
        fs::read_to_string(scratch.file("hidden")).ok().and_then(|text| text.parse().ok())
    });
    job.signal(Signal::SIGKILL);
    job.wait().expect_signal(Signal::SIGKILL);
    process::wait_dead(Pid::from_raw(hidden));
    scratch.wait_queue(0);
    job.wait_until_nothing_is_left();
}

/// The write ends of pipes that a process has open, and the read ends.
fn pipes(pid: Pid) -> (Vec<String>, Vec<String>) {
    let numbers = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    let ends = numbers.filter_map(|number| {
        let pipe = fs::read_link(number.path()).ok()?.to_str()?.to_owned();
        let info = fs::read_to_string(format!("/proc/{pid}/fdinfo/{}", number.file_name().to_str()?)).ok()?;
        let flags = info.lines().find_map(|line| line.strip_prefix("flags:"))?.trim().to_owned();
        let is_write = i32::from_str_radix(&flags, 8).ok()? & libc::O_ACCMODE != libc::O_RDONLY;
        pipe.starts_with("pipe:").then_some((pipe, is_write))
    });
    let (write, read): (Vec<_>, Vec<_>) = ends.partition(|(_, is_write)| *is_write);
    let names = |ends: Vec<(String, bool)>| ends.into_iter().map(|(pipe, _)| pipe).collect();
    (names(write), names(read))
}

/// A stray copy of a write end would keep the kernel from killing the command when the process dies that should be the
/// only one to have it.
#[test]
fn no_stray_copy_of_what_shows_that_a_process_lives() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.start(&direct(), "holder", &["-v"], &["--wait"]);
    holder.wait_stdout("holder ready");
    let (guard, supervisor) = (holder.guard(), holder.pid());
    let (of_guard, seen_by_guard) = pipes(guard);
    let (of_supervisor, seen_by_supervisor) = pipes(supervisor);
    let guard_lives: Vec<_> = of_guard.iter().filter(|pipe| seen_by_supervisor.contains(pipe)).collect();
    let supervisor_lives: Vec<_> = of_supervisor.iter().filter(|pipe| seen_by_guard.contains(pipe)).collect();
    let ([guard_lives], [supervisor_lives]) = (&guard_lives[..], &supervisor_lives[..]) else {
        panic!("{guard_lives:?} {supervisor_lives:?}");
    };
    for process in process::all() {
        let (write, _) = pipes(process.pid);
        assert_eq!(write.contains(guard_lives), process.pid == guard, "{process}");
        assert_eq!(write.contains(supervisor_lives), process.pid == supervisor, "{process}");
    }
    holder.signal(Signal::SIGTERM);
    process::send(holder.command(), Signal::SIGKILL);
    holder.wait();
    wait_dead(&holder.processes());
}
