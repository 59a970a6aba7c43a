//! PID namespaces: zklock as PID 1 of a container, `docker stop`, and commands that enter another namespace.

use std::process::Command;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

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
}

/// No signal that it sends itself can kill it (pid_namespaces(7)).
#[test]
fn death_by_a_signal_is_128_and_more() {
    if refused([Right::PidNamespaces]) {
        return;
    }
    let scratch = Scratch::new();
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

/// /proc then shows the processes of another namespace, whose numbers mean other processes here. So the descendants of
/// the command could not be found.
#[test]
fn refused_without_a_proc_of_its_own() {
    if refused([Right::PidNamespaces]) {
        return;
    }
    let scratch = Scratch::new().with_lock();
    let by = rights::unshare(&["--pid", "--fork", "--kill-child"]);
    let output = scratch.job(&direct(), "holder", &[], &[]).run_by(by).run().expect_code(78);
    assert_eq!(output.stdout(), "");
    let stderr = output.stderr();
    assert!(
        stderr.starts_with("zklock: ")
            && stderr.ends_with(
                "/proc is that of another PID namespace; mount its own there, as unshare --mount-proc does\n"
            ),
        "{output}"
    );
    scratch.expect_tidy(&[]);
}

/// As `unshare --pid` without `--fork` starts it: every process that it makes would be in a namespace of its own.
#[test]
fn refused_where_its_processes_would_be_elsewhere() {
    if refused([Right::PidNamespaces]) {
        return;
    }
    let scratch = Scratch::new().with_lock();
    let zklock = scratch.job(&direct(), "holder", &[], &[]).run_by(rights::unshare(&["--pid"]));
    let why = "its processes would be in a PID namespace of their own; give --fork to unshare";
    assert!(only_line(&zklock.run().expect_code(78)).ends_with(why));
    scratch.expect_tidy(&[]);
}

/// What the command has left behind elsewhere is in its process group, and its orphans never come to the guard.
#[test]
fn what_is_left_in_another_namespace_lives_on() {
    if refused([Right::Root, Right::PidNamespaces]) {
        return;
    }
    let scratch = Scratch::new();
    let mut other = Command::new("unshare").args(["--pid", "--fork", "--kill-child", "sleep", "600"]).spawn().unwrap();
    let unshare = Pid::from_raw(other.id().try_into().expect("a process id"));
    let first = poll::until("its first process", || {
        process::children(unshare).into_iter().find(|process| process.name == "sleep").map(|process| process.pid)
    });
    let (target, script) = (first.to_string(), "sleep 600 </dev/null >/dev/null 2>&1 & exit 0");
    let command = ["nsenter", "--target", &target, "--pid", "sh", "-c", script];
    let mut job = scratch.zklock().args([LOCK, "--"]).args(command).spawn();
    job.wait().expect_code(0);
    let left = process::children(first);
    let lives = |process: &process::Process| process.state != 'Z' && !process::is_pending(process.pid, Signal::SIGKILL);
    let is_left = left.len() == 1 && lives(&left[0]);
    other.kill().expect("it lives");
    other.wait().expect("it is a child of ours");
    job.wait_until_nothing_is_left();
    scratch.wait_queue(0);
    assert!(is_left, "{left:?}");
}
