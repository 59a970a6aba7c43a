//! Processes that are stopped and continued, one by one and all at once, as when a machine sleeps.

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::harness::fault::{EXPIRY, Fault, NO_ANSWER, SILENCE, UNDISTURBED};
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::running::{Running, finish};
use crate::harness::scratch::{LASTING, LOCK, Scratch, direct};
use crate::harness::times::{AT_ONCE, LEASE, SHORT_SESSION};

#[test]
fn supervisor() {
    let mut fault = Fault::with(
        "supervisor: STOP past SHORT_SESSION, CONT",
        Scratch::new().with_lock(),
        &direct(),
        &[],
        &["--exit-on", "TERM"],
    );
    fault.strike(Signal::SIGSTOP, &[fault.supervisor]);
    fault.scratch.wait_alive_at("holder", fault.since.after(SHORT_SESSION + SHORT_SESSION / 4));
    process::send(fault.supervisor, Signal::SIGCONT);
    // It passes on the SIGCONT that continued it.
    fault.holder.wait_stdout("signal CONT");
    let first = fault.scratch.contenders().swap_remove(0);
    assert_eq!(first.path, fault.holder.variable("ZKLOCK_NODE"));
    fault.row(UNDISTURBED);
    finish(&mut fault.holder);
    finish(&mut fault.next);
    fault.scratch.expect_tidy(&["holder", "next"]);
}

#[test]
fn keeper() {
    let mut fault = Fault::shared("keeper: STOP");
    fault.strike(Signal::SIGSTOP, &[fault.keeper]);
    fault.expect_lost(LEASE, EXPIRY, SILENCE);
}

/// No process is left to kill the command in time. It is killed as soon as one of the two goes on.
#[test]
fn supervisor_and_keeper() {
    let rows = [
        "supervisor and keeper: STOP past SHORT_SESSION, supervisor: CONT",
        "supervisor and keeper: STOP past SHORT_SESSION, keeper: CONT",
    ];
    for (number, what) in rows.into_iter().enumerate() {
        let mut fault = Fault::shared(what);
        let both = [fault.supervisor, fault.keeper];
        fault.strike(Signal::SIGSTOP, &both);
        fault.next_starts(EXPIRY);
        fault.strike(Signal::SIGCONT, &both[number..=number]);
        fault.command_dead(AT_ONCE);
        process::send(fault.supervisor, Signal::SIGCONT);
        fault.lost("");
        process::send(fault.keeper, Signal::SIGCONT);
        fault.end_with_overlap("76");
    }
}

/// Supervisor and keeper each end the command, whether or not the other goes on.
#[test]
fn everything_past_the_session() {
    for (what, last) in [
        ("supervisor, keeper and command: STOP past SHORT_SESSION, CONT", None),
        ("supervisor, keeper and command: STOP past SHORT_SESSION, CONT, supervisor last", Some(1)),
        ("supervisor, keeper and command: STOP past SHORT_SESSION, CONT, keeper last", Some(2)),
    ] {
        let mut fault = Fault::shared(what);
        let all = [fault.command, fault.supervisor, fault.keeper];
        fault.strike(Signal::SIGSTOP, &all);
        fault.next_starts(EXPIRY);
        // Time counts from here. The command is continued first, so that its guards have no head start.
        let first: Vec<Pid> = (0..3).filter(|&number| Some(number) != last).map(|number| all[number]).collect();
        fault.strike(Signal::SIGCONT, &first);
        fault.command_dead(AT_ONCE);
        all.iter().for_each(|&pid| process::send(pid, Signal::SIGCONT));
        // The reason is that the lease is over or that the session is: whichever the supervisor learns first.
        fault.lost("");
        assert!(!fault.holder.stdout().contains("signal TERM"), "no time for a stop signal");
        fault.end_with_overlap("76");
    }
}

#[test]
fn everything_for_less_than_the_lease() {
    let scratch = Scratch::new().with_lock();
    let mut fault = Fault::lasting("supervisor, keeper and command: STOP, CONT", scratch, &direct());
    let all = [fault.command, fault.supervisor, fault.keeper];
    fault.strike(Signal::SIGSTOP, &all);
    fault.strike(Signal::SIGCONT, &all);
    fault.holder.wait_stdout("signal CONT");
    fault.expect_undisturbed();
}

#[test]
fn keeper_does_not_wake() {
    let scratch = Scratch::new().with_lock();
    let (mut holder, mut next) = scratch.holder_and_next(&direct(), &[]);
    let (supervisor, keeper, command) = (holder.pid(), holder.keeper(), holder.command());
    [supervisor, keeper, command].into_iter().for_each(process::stop);
    next.wait_stdout("ready");
    let woken = Moment::now();
    [command, supervisor].into_iter().for_each(|pid| process::send(pid, Signal::SIGCONT));
    process::wait_dead(command);
    scratch.last_alive("holder").expect_within(AT_ONCE, woken, "the command is dead");
    holder.expect_lost(NO_ANSWER);
    next.signal(Signal::SIGTERM);
    next.wait().expect_code(0);
    scratch.wait_queue(0);
}

#[test]
fn command_without_a_terminal() {
    let scratch = Scratch::new().with_lock();
    let mut job = scratch.start(&direct(), "job", &LASTING, &["--exit-on", "TERM", "--exit", "7"]);
    job.wait_stdout("ready");
    let command = job.command();
    process::stop(command);
    // zklock was told that the command has stopped before it was sent these signals. So by the time it passes
    // on the second signal, it has noticed the stop.
    for signal in [Signal::SIGUSR1, Signal::SIGUSR2] {
        job.signal(signal);
        process::wait_pending(command, signal);
    }
    process::send(command, Signal::SIGCONT);
    job.wait_stdout("signal USR1");
    job.signal(Signal::SIGTERM);
    job.wait().expect_code(7);
    job.wait_until_nothing_is_left();
    scratch.expect_tidy(&["job"]);
}

/// A command has left a daemon in its process group, while zklock was stopped, and so its guard has not been told that the
/// daemon is to live on. Returns the guard and the daemon. The daemon ends with a file.
#[track_caller]
fn untold(scratch: &Scratch) -> (Running, Pid, Pid) {
    let until = |file: &str| format!("until [ -e {file} ]; do sleep 0.01; done");
    let script = format!("({}) >&- 2>&- & echo $!; {}", until("end"), until("go"));
    let mut job = scratch.zklock().args(LASTING).args([LOCK, "--", "sh", "-c", &script]).spawn();
    let daemon = Pid::from_raw(job.wait_stdout("").parse().expect("a pid"));
    let guard = job.guard();
    process::stop(job.zklock());
    scratch.touch("go");
    poll::until("the end of the command", || {
        let left = process::children(guard);
        (left.len() == 1 && left[0].pid == daemon).then_some(())
    });
    (job, guard, daemon)
}

/// The guard is stopped when the command ends, and killed before it could say so. The command may have ended by that very
/// kill, which reaches its group one by one: so what has left the group dies as well.
#[test]
fn guard_killed_before_it_has_reaped() {
    let scratch = Scratch::new().with_lock();
    let script = r#"setsid sleep 1000 >/dev/null 2>&1 & echo $!; while [ ! -e end ]; do sleep 0.01; done; exit 5"#;
    let mut job = scratch.zklock().args([LOCK, "--", "sh", "-c", script]).spawn();
    let daemon = poll::until("the daemon", || job.stdout().trim().parse().ok().map(Pid::from_raw));
    let (guard, command) = (job.guard(), job.command());
    process::stop(guard);
    scratch.touch("end");
    process::wait_state(command, &['Z']);
    process::send(guard, Signal::SIGKILL);
    let output = job.wait().expect_code(70);
    assert!(output.stderr().ends_with("the guard process died; killed the command\n"), "{output}");
    assert!(process::look(daemon).is_none_or(|process| process.state == 'Z'), "{daemon} lives");
    scratch.wait_queue(0);
}

/// The command has ended, and what it leaves behind is meant to live on. The guard is stopped before it can be told.
#[test]
fn guard_at_the_orderly_end() {
    let scratch = Scratch::new().with_lock();
    let (mut job, guard, daemon) = untold(&scratch);
    process::stop(guard);
    process::send(job.zklock(), Signal::SIGCONT);
    let output = job.wait().expect_code(0);
    assert!(output.stderr().ends_with("go on without the lock\n"), "{output}");
    assert!(process::look(daemon).is_some_and(|process| process.state != 'Z'), "{daemon} was killed");
    scratch.touch("end");
    job.wait_until_nothing_is_left();
}

/// What the command has left behind is waited for, and is killed with it.
#[test]
fn guard_killed_when_the_command_has_ended() {
    let scratch = Scratch::new().with_lock();
    let script = "setsid sleep 1000 >/dev/null 2>&1 & exit 4";
    let mut job = scratch.zklock().args(["--wait-descendants", LOCK, "--", "sh", "-c", script]).spawn();
    poll::until("the daemon alone", || {
        let below = process::below_guard(job.pid());
        (below.len() == 1 && below[0].name == "sleep").then_some(())
    });
    // It has said how the command has ended.
    process::wait_state(job.guard(), &['S']);
    process::send(job.guard(), Signal::SIGKILL);
    let output = job.wait().expect_code(70);
    assert!(output.stderr().ends_with("the guard process died; killed what the command had left behind\n"), "{output}");
    job.wait_until_nothing_is_left();
}

/// A stopped guard leaves zombies, and with thousands of them zklock comes too late with SIGKILL. So the guard is continued
/// before that, with the stop signal.
#[test]
fn guard_is_continued_with_the_stop_signal() {
    let scratch = Scratch::new().with_lock();
    let options = ["--max-run", "2s", "--kill-after", "2s"];
    let mut job = scratch.zklock().args(LASTING).args(options).arg(LOCK).child(["--wait"]).spawn();
    job.wait_stdout("ready");
    let (command, guard) = (job.command(), job.guard());
    process::stop(guard);
    job.wait_stdout("signal TERM");
    process::wait_state(guard, &['S']);
    assert!(process::look(command).is_some_and(|process| process.state != 'Z'), "{job}");
    job.wait().expect_code(124);
    job.wait_until_nothing_is_left();
}
