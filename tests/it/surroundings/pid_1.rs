//! PID namespaces: zklock as PID 1 of a container, `docker stop`, and commands that enter another namespace.

use nix::sys::signal::Signal;

use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::rights::{self, Right, refused};
use crate::harness::running::{finish, only_line};
use crate::harness::scratch::{BRIEF, LOCK, Scratch, direct};
use crate::harness::times::SOON;
use crate::harness::zklock::Zklock;

fn as_pid_1(zklock: Zklock) -> Zklock {
    zklock.run_by(rights::as_pid_1())
}

#[test]
fn status_comes_back() {
    if refused([Right::PidNamespaces]) {
        return;
    }
    let scratch = Scratch::new();
    let script = r#"read -r name </proc/1/comm; test $name = zklock || exit 9; cat; exit "$0""#;
    let job = |status: &str| {
        as_pid_1(scratch.zklock().arg(LOCK).args(["--", "sh", "-c", script, status])).stdin("words").run()
    };
    for status in ["0", "3"] {
        let output = job(status).expect_code(status.parse().unwrap());
        assert_eq!((output.stdout(), output.stderr()), ("words".to_owned(), String::new()));
    }
    // No signal that it sends itself can kill it (pid_namespaces(7)).
    for (signal, status) in [("TERM", 143), ("KILL", 137), ("ABRT", 134)] {
        as_pid_1(scratch.zklock().arg(LOCK).child(["--die-of", signal])).run().expect_code(status);
    }
}

#[test]
fn signals_reach_the_command() {
    if refused([Right::PidNamespaces]) {
        return;
    }
    let scratch = Scratch::new();
    let mut job = as_pid_1(scratch.zklock().arg(LOCK).child(["--exit-on", "TERM", "--exit", "5"])).spawn();
    job.wait_stdout("ready");
    for name in ["HUP", "INT", "USR1", "TERM"] {
        process::send(job.zklock(), format!("SIG{name}").parse().unwrap());
        job.wait_stdout(&format!("signal {name}"));
    }
    let output = job.wait().expect_code(5);
    assert_eq!(output.stdout().lines().count(), 5, "each came once\n{output}");
}

#[test]
fn signal_ends_the_wait() {
    if refused([Right::PidNamespaces]) {
        return;
    }
    let scratch = Scratch::new();
    let holder = scratch.occupy("");
    for (signal, status) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let mut job = as_pid_1(scratch.zklock().arg(LOCK).bare_child()).spawn();
        scratch.wait_queue(2);
        process::send(job.zklock(), signal);
        job.wait().expect_code(status);
        scratch.wait_left([LOCK], [1]);
    }
    scratch.delete(&holder);
}

/// Where zklock does not see its own processes in /proc, or each of them would be in a namespace of its own.
#[test]
fn refused_without_a_namespace_of_its_own() {
    if refused([Right::PidNamespaces]) {
        return;
    }
    let scratch = Scratch::new().with_lock();
    for (options, why) in [
        (
            &["--pid", "--fork", "--kill-child"][..],
            "/proc is that of another PID namespace; mount its own there, as unshare --mount-proc does",
        ),
        (&["--pid"], "its processes would be in a PID namespace of their own; give --fork to unshare"),
    ] {
        let zklock = scratch.job(&direct(), "holder", &[], &[]).run_by(rights::unshare(options));
        let line = only_line(&zklock.run().expect_code(78));
        assert!(line.ends_with(why), "{line}");
    }
    scratch.expect_tidy(&[]);
}

#[test]
fn reaps_orphans() {
    if refused([Right::PidNamespaces]) {
        return;
    }
    let scratch = Scratch::new();
    let daemon = ["--exit-on", "TERM", "--spawn-daemon", "--", "--name", "daemon", "--exit-on", "USR1"];
    let mut job = as_pid_1(scratch.zklock().arg(LOCK).child(daemon)).spawn();
    job.wait_stdout("daemon ready");
    let first = job.zklock();
    // The command leads its group; the daemon is in that of what is between, which has ended.
    let is_orphan = |process: &process::Process| process.name == "child" && process.pid != process.group;
    let orphan = poll::until("an orphan", || process::below_guard(first).into_iter().find(is_orphan)).pid;
    process::send(orphan, Signal::SIGUSR1);
    poll::until("the daemon is reaped", || process::look(orphan).is_none().then_some(()));
    process::send(first, Signal::SIGTERM);
    job.wait().expect_code(0);
}

#[test]
fn what_is_left_behind_ends() {
    if refused([Right::PidNamespaces]) {
        return;
    }
    let scratch = Scratch::new();
    let daemon = ["--exit-on", "TERM", "--spawn-daemon", "--", "--name", "daemon", "--wait"];
    let mut job = as_pid_1(scratch.zklock().arg(LOCK).child(daemon)).spawn();
    job.wait_stdout("daemon ready");
    process::send(job.zklock(), Signal::SIGTERM);
    let output = job.wait().expect_code(0);
    let said = "zklock: a process that the command left behind ends with zklock, which is PID 1\n";
    assert_eq!(output.stderr(), said);
    job.wait_until_nothing_is_left();
}

#[test]
fn whole_tree_goes_with_the_lock() {
    if refused([Right::PidNamespaces]) {
        return;
    }
    let scratch = Scratch::new().with_lock();
    let daemon = ["--wait", "--spawn-daemon", "--", "--name", "daemon", "--wait"];
    // A stop would take far longer.
    let options = ["--session-timeout", "60", "--kill-after", "15s"];
    let mut job = as_pid_1(scratch.job(&direct(), "holder", &options, &daemon)).spawn();
    for _ in ["the command", "what is between", "the daemon"] {
        job.wait_stdout(" ready");
    }
    let deleted = Moment::now();
    scratch.delete(&scratch.only_contender().path);
    let output = job.wait().expect_code(76);
    scratch.last_alive("holder").expect_within(SOON, deleted, "the command is dead");
    assert_eq!(output.stderr(), "zklock: lost the lock /lock: its node was deleted; killing the command\n");
    job.wait_until_nothing_is_left();
    scratch.wait_queue(0);
}

/// `docker stop`: TERM for PID 1, and KILL after a grace. With PID 1 the kernel kills all of its namespace, the keeper
/// too, so that the session has to expire.
#[test]
fn docker_stop() {
    if refused([Right::PidNamespaces]) {
        return;
    }
    let scratch = Scratch::new().with_lock();
    let mut job = as_pid_1(scratch.job(&direct(), "holder", &BRIEF, &["--wait"])).spawn();
    job.wait_stdout("ready");
    let mut next = scratch.queue("next", 1);
    process::send(job.zklock(), Signal::SIGTERM);
    job.wait_stdout("signal TERM");
    let killed = Moment::now();
    process::send(job.zklock(), Signal::SIGKILL);
    job.wait();
    job.wait_until_nothing_is_left();
    next.wait_stdout("ready");
    scratch.begin("next").expect_within(2 * SOON, killed, "the next one starts");
    finish(&mut next);
    scratch.expect_tidy(&["holder", "next"]);
}
