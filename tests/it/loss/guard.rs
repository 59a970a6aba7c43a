//! The guard killed or stopped, alone and together with others: nothing of the command outlives the lease.

use std::cell::{Cell, RefCell};
use std::fs;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::harness::fault::{DELETED, EXPIRY, Fault};
use crate::harness::poll;
use crate::harness::process::{self, Process};
use crate::harness::rights::{Right, refused};
use crate::harness::running::finish;
use crate::harness::scratch::{GRACE, LASTING_VERBOSE, LOCK, Scratch, direct};
use crate::harness::times::{AT_ONCE, LEASE, SOON};
use crate::harness::traced::Traced;

const DIED: &str = "zklock: internal error: the guard process died; killed the command\n";

/// The command of the holder has a child in its process group, and a daemon that has left it.
fn with_tree(options: &[&str]) -> (Fault, Vec<Process>) {
    let tree = ["--wait", "--spawn-daemon", "--", "--name", "daemon", "--wait"];
    let fault = Fault::with(Scratch::new().with_lock(), &direct(), options, &tree);
    poll::until("the daemon", || fault.holder.stdout().contains("daemon ready").then_some(()));
    let mut family = fault.holder.processes();
    family.retain(|process| process.name == "child");
    assert!(family.len() >= 2, "{family:?}");
    (fault, family)
}

/// The kernel kills the command, the supervisor the daemon.
#[test]
fn killed() {
    let (mut fault, family) = with_tree(&["--session-timeout", "60"]);
    fault.strike(Signal::SIGKILL, &[fault.holder.guard()]);
    fault.command_dead(AT_ONCE);
    let output = fault.holder.wait().expect_code(70);
    assert_eq!(output.stderr(), DIED);
    process::expect_dead(&family);
    fault.next_starts(AT_ONCE);
    fault.end();
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
/// ends a guard that waits so. Hence it makes only calls that need none, until it has killed its children and their groups.
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
    let mut fault = Fault::with(Scratch::new().with_lock(), &direct(), &[], &child);
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
    fault.holder.expect_lost(DELETED);
    fault.next_starts(AT_ONCE);
    fault.end_with_overlap();
}

/// The kernel continues it when it would have to kill, and there is a newer lease.
#[test]
fn stopped_while_the_lock_is_held() {
    let mut fault = Fault::with(Scratch::new().with_lock(), &direct(), &[], &["--exit-on", "TERM"]);
    fault.strike(Signal::SIGSTOP, &[fault.holder.guard()]);
    process::wait_state(fault.holder.guard(), &['S']);
    fault.expect_undisturbed();
}

/// It cannot move its timer, and the kernel kills it at the end of the lease that it knew.
#[test]
fn held_by_a_debugger_past_the_lease() {
    if refused([Right::Ptrace]) {
        return;
    }
    let (mut fault, family) = with_tree(&GRACE);
    let debugger = Traced::hold(fault.holder.guard());
    fault.strikes();
    fault.command_dead(LEASE);
    drop(debugger);
    fault.holder.wait().expect_code(70);
    process::expect_dead(&family);
    fault.next_starts(LEASE + AT_ONCE);
    fault.end();
}

/// It has heard of the death of zklock, and has killed nothing yet. What is left of the command is its daemon.
#[test]
fn stopped_when_it_is_to_kill() {
    if refused([Right::Ptrace]) {
        return;
    }
    let (mut fault, family) = with_tree(&GRACE);
    let guard = fault.holder.guard();
    let debugger = Traced::hold(guard);
    fault.strike(Signal::SIGKILL, &[fault.supervisor]);
    debugger.until_call(1, |call| call[0] == libc::SYS_kill as u64);
    process::send(guard, Signal::SIGSTOP);
    drop(debugger);
    fault.command_dead(AT_ONCE);
    fault.holder.wait().expect_signal(Signal::SIGKILL);
    family.iter().for_each(|process| process::wait_dead(process.pid));
    fault.next_starts(LEASE);
    fault.end();
}

/// The death of the first continues the second. If that has no time to act, the session expires.
#[test]
fn supervisor_and_guard_killed() {
    let mut fault = Fault::shared();
    let both = [fault.holder.guard(), fault.supervisor];
    fault.strike(Signal::SIGSTOP, &both);
    fault.strike(Signal::SIGKILL, &both);
    fault.expect_killed(EXPIRY);
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

/// The lock is granted while the process at the gate is stopped. The keeper goes on with its beats, so the lock would be held
/// for as long as nothing continues the process.
#[test]
fn stopped_at_the_gate() {
    // A stop signal such as WINCH does not end what waits at the gate.
    let briefly = ["--max-run", "500ms", "--signal", "WINCH"];
    for (what, options, status) in
        [("TERM", &[][..], None), ("too late", &[], Some(76)), ("max-run", &briefly, Some(124))]
    {
        println!("{what}");
        let scratch = Scratch::new().with_lock();
        let mut holder = scratch.hold();
        let options = [&LASTING_VERBOSE[..], options].concat();
        let mut victim = scratch.start(&direct(), "victim", &options, &["--wait"]);
        scratch.wait_queue(2);
        let mut next = scratch.queue("next", 2);
        let guard = victim.guard();
        let at_the_gate = poll::until("a process at the gate", || process::children(guard).pop());
        process::stop(at_the_gate.pid);
        finish(&mut holder);
        victim.wait_stderr("holding");
        let output = if let Some(status) = status {
            victim.wait().expect_code(status)
        } else {
            victim.signal(Signal::SIGTERM);
            victim.wait_at_most(SOON).expect_signal(Signal::SIGTERM)
        };
        assert_eq!(output.stdout(), "");
        process::expect_dead(&[at_the_gate]);
        victim.wait_until_nothing_is_left();
        finish(&mut next);
        scratch.expect_tidy(&["holder", "next"]);
    }
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
