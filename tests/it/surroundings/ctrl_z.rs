//! Ctrl-Z stops the job, `fg` and `bg` continue it.

use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::harness::frames::Op;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::proxy::Proxy;
use crate::harness::running::Running;
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::terminal::{CTRL_C, CTRL_Z, Terminal};
use crate::harness::zklock::{Zklock, child};

/// A shell that runs its command in the foreground, waits for a line when that has stopped, and continues it.
const STOP_AND_CONTINUE: &str = r#""$@"; echo "stopped $?"; read; fg >/dev/null; echo "ended $?""#;

#[test]
fn stops_the_job_and_fg_continues_it() {
    let scratch = Scratch::new();
    let proxy = Proxy::zookeeper(&direct());
    let terminal = Terminal::new(80);
    let zklock = scratch.zklock_by(proxy.address()).arg(LOCK);
    let zklock = zklock.child(["--default", "TSTP,CONT", "--exit-on", "INT"]);
    let job = terminal.spawn_by(STOP_AND_CONTINUE, zklock);
    terminal.wait_count("ready", 1);
    let contenders = scratch.client().children(LOCK);
    terminal.press(CTRL_Z);
    terminal.wait_count("stopped", 1);
    // By the last of these four beats, a lease from before the stop would be over: so beats do go on.
    proxy.wait_count(Op::Multi, proxy.count(Op::Multi) + 4);
    assert_eq!(scratch.client().children(LOCK), contenders);
    terminal.enter("");
    // The shell has given it the terminal when it continues; until then the key goes to the shell's own group.
    poll::until("the command goes on", || {
        process::all()
            .into_iter()
            .find(|process| process.session == job.pid() && process.name == "child" && process.state != 'T')
    });
    end_by_ctrl_c(&terminal, job);
}

/// Ctrl-C ends the command, and so the job and its shell.
#[track_caller]
fn end_by_ctrl_c(terminal: &Terminal, mut shell: Running) {
    terminal.press(CTRL_C);
    terminal.wait_count("signal INT", 1);
    terminal.wait_count("ended 0", 1);
    shell.wait().expect_code(0);
}

/// timeout(1) leaves the process group of zklock, so the terminal signals zklock alone.
#[test]
fn command_that_leaves_our_process_group() {
    let scratch = Scratch::new();
    let below_timeout = |words: &[&str]| scratch.zklock().args([LOCK, "--", "timeout", "600"]).arg(child()).args(words);
    expect_stop_and_end(below_timeout(&STOPPED_THEN_ENDED), |terminal, _| terminal.press(CTRL_Z));
    let terminal = Terminal::new(80);
    let mut job = terminal.spawn(below_timeout(&["--exit-on", "INT", "--exit", "3"]));
    terminal.wait_count("ready", 1);
    terminal.press(CTRL_C);
    terminal.wait_count("signal INT", 1);
    job.wait().expect_code(3);
}

/// Options of a child for [`expect_stop_and_end`].
pub(crate) const STOPPED_THEN_ENDED: [&str; 6] = ["--default", "TSTP,CONT", "--exit-on", "TERM", "--exit", "3"];

/// Runs `zklock` below a shell at a terminal, has `stop` stop it, and continues it with `fg`. A signal for zklock then ends its
/// command.
#[track_caller]
pub(crate) fn expect_stop_and_end(zklock: Zklock, stop: impl FnOnce(&Terminal, Pid)) {
    let terminal = Terminal::new(80);
    let mut job = terminal.spawn_by(STOP_AND_CONTINUE, zklock);
    terminal.wait_count("ready", 1);
    let zklock = job.zklock();
    stop(&terminal, zklock);
    terminal.wait_count("stopped", 1);
    terminal.enter("");
    poll::until("zklock goes on", || process::look(zklock).filter(|process| process.state != 'T'));
    process::send(zklock, Signal::SIGTERM);
    terminal.wait_count("signal TERM", 1);
    terminal.wait_count("ended 3", 1);
    job.wait().expect_code(0);
}

/// It keeps its place. The lock comes while it is stopped, and that lasts longer than it was to wait.
#[test]
fn a_waiter_that_has_the_lock_when_it_goes_on_runs_its_command() {
    let scratch = Scratch::new();
    let holder = scratch.occupy("");
    let terminal = Terminal::new(80);
    let zklock = scratch.zklock().args(["-w", "3", LOCK]).bare_child();
    let mut job = terminal.spawn_by(STOP_AND_CONTINUE, zklock);
    terminal.wait_count("waiting for /lock", 1);
    terminal.press(CTRL_Z);
    terminal.wait_count("stopped", 1);
    let last = scratch.occupy("");
    scratch.delete(&holder);
    poll::until("its time is over", || (job.elapsed() > Duration::from_secs(5)).then_some(()));
    terminal.enter("");
    terminal.wait_count("ready", 1);
    terminal.wait_count("ended 0", 1);
    job.wait().expect_code(0);
    scratch.delete(&last);
}

#[test]
fn then_bg() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    // A shell that Ctrl-C ends takes the terminal along.
    let script = r#"trap "echo caught" INT; "$@"; echo "stopped $?"; bg >/dev/null; wait; wait"#;
    let zklock = scratch.zklock().arg(LOCK).child(["--default", "TSTP,CONT", "--exit-on", "TERM", "--exit", "3"]);
    let mut job = terminal.spawn_by(script, zklock);
    terminal.wait_count("ready", 1);
    terminal.press(CTRL_Z);
    terminal.wait_count("stopped", 1);
    let zklock = job.zklock();
    poll::until("both go on", || {
        let goes_on = |pid| process::look(pid).is_some_and(|process| process.state != 'T');
        (goes_on(zklock) && goes_on(process::command(zklock))).then_some(())
    });
    // The terminal is the shell's by now.
    terminal.press(CTRL_C);
    terminal.wait_count("caught", 1);
    process::send(zklock, Signal::SIGTERM);
    terminal.wait_count("signal TERM", 1);
    job.wait();
    assert!(!terminal.lines().iter().any(|line| line.contains("signal INT")), "{:#?}", terminal.lines());
}

/// As below `ssh -t` and `docker run -it`: no shell is there to continue a job, so Ctrl-Z stops none (setpgid(2)).
#[test]
fn stops_no_leader_of_a_session() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    let mut job = terminal.spawn(scratch.zklock().arg(LOCK).child(["--default", "TSTP,CONT", "--exit-on", "INT"]));
    terminal.wait_count("ready", 1);
    terminal.press(CTRL_Z);
    terminal.press(CTRL_C);
    terminal.wait_count("signal INT", 1);
    job.wait().expect_code(0);
}
