//! A free lock is taken, held while the command runs, and released when that has ended.

use std::time::Instant;

use nix::sys::signal::Signal;

use crate::harness::fault::Fault;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::proxy::Proxy;
use crate::harness::running::{finish, silent};
use crate::harness::scratch::{LASTING, LOCK, Scratch};
use crate::harness::times::{AT_ONCE, LONG_SESSION, SHORT_SESSION};

#[test]
fn free_lock_runs_the_command() {
    let scratch = Scratch::new();
    let output = silent(scratch.zklock().arg(LOCK).child(["--exit", "7"]).run().expect_code(7));
    assert_eq!(output.stdout(), "ready\n");
    // Not in a moment, but when zklock has exited.
    assert!(scratch.client().children(LOCK).is_empty());
}

#[test]
fn command_killed() {
    let mut fault = Fault::minute();
    fault.strike(Signal::SIGKILL, &[fault.command]);
    fault.expect_killed(AT_ONCE);
}

/// Nothing is left of the command: no process has to be waited for, and the status is the command's. The same where the
/// command's own end had been told before, and what it has left behind ends while zklock is stopped.
#[test]
fn supervisor_stopped() {
    let until = r#"until [ -e "$0" ]; do sleep 0.1; done"#;
    for (options, script) in [
        (&[][..], format!("echo begun; {until}; exit 7")),
        (&["--wait-descendants"], format!("({until}) & echo begun; exit 7")),
    ] {
        let scratch = Scratch::new();
        let job = scratch.zklock().args(["--session-timeout", "8s", LOCK]).args(options);
        let mut holder = job.args(["--", "sh", "-c", &script]).arg(scratch.file("done")).spawn();
        holder.wait_stdout("begun");
        let guard = holder.guard();
        poll::until("the command is reaped, and what it has left is the guard's", || {
            let mut shells = process::below_guard(holder.pid()).into_iter().filter(|process| process.name == "sh");
            shells.all(|shell| shell.parent == guard).then_some(())
        });
        let mut next = scratch.queue("next", 1);
        holder.signal(Signal::SIGSTOP);
        scratch.touch("done");
        next.wait_stdout("ready");
        let ended = Instant::now();
        // The lease is not extended any more, and does not matter any more.
        poll::until("the lease would be over", || (ended.elapsed() > SHORT_SESSION).then_some(()));
        holder.signal(Signal::SIGCONT);
        silent(holder.wait().expect_code(7));
        finish(&mut next);
    }
}

/// The command ends before the lease does, and its status is what counts. The lock frees itself.
#[test]
fn ends_without_an_answer() {
    type Act = fn(&Proxy);
    let ways: [(Act, Act); 2] = [(Proxy::refuse, Proxy::accept), (Proxy::hold, Proxy::pass)];
    for (lose, find) in ways {
        let (scratch, proxy) = Scratch::proxied();
        let mut job = scratch.start(&proxy.address(), "job", &LASTING, &["--until", "done", "--exit", "7"]);
        job.wait_stdout("ready");
        let mut next = scratch.queue("next", 1);
        lose(&proxy);
        scratch.touch("done");
        let told = Instant::now();
        let output = job.wait().expect_code(7);
        let took = told.elapsed();
        assert!(took < LONG_SESSION, "{took:?}");
        let line = format!("zklock: the release of {LOCK} was not confirmed; it frees itself within 20s\n");
        assert_eq!(output.stderr(), line);
        job.wait_until_nothing_is_left();
        find(&proxy);
        finish(&mut next);
        scratch.expect_tidy(&["job", "next"]);
    }
}
