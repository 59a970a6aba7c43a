//! kill -9 of zklock: all that it has started is dead before the next holder starts, which it does at once.

use std::time::Instant;

use nix::sys::signal::{Signal, killpg};

use crate::harness::fault::{EXPIRY, Fault};
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::process::{self, Process};
use crate::harness::running::finish;
use crate::harness::scratch::{GRACE, LOCK, Scratch, direct};
use crate::harness::terminal::Terminal;
use crate::harness::times::{AT_ONCE, INSTANT, SOON, expect_once_below};

/// All that the command has started is dead before the next one starts, what has left its process group as well.
#[test]
fn supervisor_killed() {
    let tree = ["--wait", "--spawn-daemon", "--", "--name", "daemon", "--wait"];
    let minute = ["--session-timeout", "60"];
    let mut fault = Fault::with("supervisor: KILL", Scratch::new().with_lock(), &direct(), &minute, &tree);
    poll::until("the daemon", || fault.holder.stdout().contains("daemon ready\n").then_some(()));
    let mut family = fault.holder.processes();
    family.retain(|process| process.name == "child");
    assert!(family.len() >= 2, "{family:?}");
    fault.strike(Signal::SIGKILL, &[fault.supervisor]);
    fault.next.wait_stdout("next ready");
    process::expect_dead(&family);
    fault.expect_killed(AT_ONCE);
}

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

/// The guard, which has nothing to guard yet, is stopped: it does not hold up the keeper. At a terminal it has a session
/// of its own, so the kernel does not continue it when zklock dies (setpgid(2), orphaned groups).
#[test]
fn waiter_killed_while_its_guard_is_stopped() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold();
    let terminal = Terminal::new(80);
    let mut victim = terminal.spawn(scratch.job(&direct(), "victim", &["--session-timeout", "60"], &[]));
    scratch.wait_queue(2);
    let guard = victim.guard();
    poll::until("a process at the gate", || process::children(guard).pop());
    process::stop(guard);
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
    let mut fault = Fault::minute("command: STOP, supervisor: KILL");
    fault.strike(Signal::SIGSTOP, &[fault.command]);
    fault.strike(Signal::SIGKILL, &[fault.supervisor]);
    fault.expect_killed(AT_ONCE);
}

#[test]
fn keeper_stopped() {
    let mut fault = Fault::shared("keeper: STOP, supervisor: KILL");
    fault.strike(Signal::SIGSTOP, &[fault.keeper]);
    fault.strike(Signal::SIGKILL, &[fault.supervisor]);
    fault.command_dead(AT_ONCE);
    fault.holder.wait().expect_signal(Signal::SIGKILL);
    fault.next_starts(EXPIRY);
    // It finds its session over, and itself with nothing to do.
    process::send(fault.keeper, Signal::SIGCONT);
    fault.end("KILL");
}

/// The keeper cannot say good-bye, and the session ends by itself.
#[test]
fn network_cut() {
    let (mut fault, proxy) = Fault::proxied("network: cut, supervisor: KILL");
    proxy.hold();
    fault.strike(Signal::SIGKILL, &[fault.supervisor]);
    fault.expect_killed(EXPIRY);
}

/// The session is not closed, because the keeper would do that. It expires.
#[test]
fn keeper_killed_as_well() {
    let mut fault = Fault::shared("supervisor and keeper: KILL");
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
    let what = "supervisor, keeper and guard: KILL, command with children";
    let mut fault = Fault::with(what, scratch, &direct(), &GRACE, &tree);
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
