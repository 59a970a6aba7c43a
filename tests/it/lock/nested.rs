//! A zklock below the command of another: it uses the locks that are held above it, and believes nothing else.
//!
//! Curator's TestInterProcessMutexBase (testReentrant…) and TestInterProcessReadWriteLock (downgrading, upgrading) ask
//! the same of threads.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::harness::poll;
use crate::harness::process;
use crate::harness::rights::Copies;
use crate::harness::running::{Running, finish, only_line, silent};
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::terminal::Terminal;
use crate::harness::zklock::{Zklock, binary, child, is_guard};

mod killed;
mod lent;
mod unreachable;

const OTHER: &str = "/other";

/// `zklock OUTER -- zklock INNER -- child`, with the child's arguments to be added.
fn nested(scratch: &Scratch, outer: &[&str], inner: &[&str]) -> Zklock {
    scratch.zklock().args(outer).arg("--").arg(binary()).args(inner)
}

/// A zklock that runs a shell script under [`LOCK`]. In the script, `$Z` is zklock and `$C` the command of
/// tests/child/main.rs; `log` is the log of the place.
fn script(scratch: &Scratch, options: &[&str], script: &str) -> Zklock {
    let shell = scratch.zklock().env("SHELL", "/bin/sh").env("Z", binary()).env("C", child());
    shell.arg(LOCK).args(options).args(["-c", script])
}

/// The pipe by which `lender` lends its locks, as its command has been told: the number of its end, and what /proc
/// shows there. A process of the run must live that has got the variable.
#[track_caller]
fn pipe(run: &Running, lender: Pid) -> (String, String) {
    let pid = lender.to_string();
    let offer = poll::until("an offer", || {
        let environments = run.processes().into_iter().filter_map(|process| {
            let bytes = fs::read(format!("/proc/{}/environ", process.pid)).ok()?;
            Some(String::from_utf8_lossy(&bytes).split_once("\0ZKLOCK_LENDER=")?.1.to_owned())
        });
        let lines = environments.flat_map(|rest| rest.split(['\n', '\0']).map(str::to_owned).collect::<Vec<_>>());
        lines
            .map(|line| line.split(' ').map(str::to_owned).collect::<Vec<_>>())
            .find(|words| words.get(1) == Some(&pid))
    });
    (offer[5].clone(), format!("pipe:[{}]", offer[6]))
}

/// Waits until `lender`, a zklock of this run, lends its locks no more: its command has ended.
#[track_caller]
pub(super) fn wait_until_it_lends_no_more(run: &Running, lender: Pid) {
    let (number, pipe) = pipe(run, lender);
    let path = format!("/proc/{lender}/fd/{number}");
    poll::until("it lends no more", || {
        fs::read_link(&path).map_or(true, |there| *there.as_os_str() != *pipe).then_some(())
    });
}

/// The processes below a run that have its pipe open.
#[track_caller]
fn borrowers(run: &Running) -> Vec<process::Process> {
    let (_, pipe) = pipe(run, run.pid());
    let has_it = |pid: Pid| {
        let numbers = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        numbers.filter_map(|number| fs::read_link(number.path()).ok()).any(|there| *there.as_os_str() == *pipe)
    };
    run.processes().into_iter().filter(|process| process.pid != run.pid() && has_it(process.pid)).collect()
}

/// The process of this name below a run.
#[track_caller]
fn find(run: &Running, what: &str, is_it: impl Fn(&process::Process) -> bool) -> process::Process {
    poll::until(what, || run.processes().into_iter().find(|process| is_it(process)))
}

/// The guard of the zklock below `run`.
#[track_caller]
fn inner_guard(run: &Running) -> process::Process {
    let outer = run.guard();
    find(run, "the inner guard", |process| process.pid != outer && is_guard(process))
}

#[test]
fn held_above_is_used_at_once() {
    let scratch = Scratch::new();
    let mut job = nested(&scratch, &[LOCK], &["-n", LOCK]).child(["--env", "--exit-on", "TERM"]).spawn();
    job.wait_stdout("ready");
    scratch.expect_ours(&job);
    assert_eq!(job.variable("ZKLOCK_HELD"), scratch.only_contender().path);
    silent(finish(&mut job));
    assert!(scratch.client().children(LOCK).is_empty());
}

/// The inner run's end releases nothing.
#[test]
fn stays_held_when_the_inner_run_has_ended() {
    let scratch = Scratch::new();
    let script = "\"$0\" -n \"$1\" true && echo inner-done && read line";
    let job = scratch.zklock().args([LOCK, "--", "sh", "-c", script]).arg(binary()).arg(LOCK);
    let mut job = job.open_stdin().spawn();
    job.wait_stdout("inner-done");
    assert_eq!(scratch.client().children(LOCK).len(), 1);
    scratch.zklock().args(["-n", LOCK, "true"]).run().expect_code(75);
    job.write_stdin(b"\n");
    silent(job.wait().expect_code(0));
}

#[test]
fn through_many_levels() {
    let scratch = Scratch::new();
    let locks = [LOCK, OTHER, "/third"];
    let mut job = scratch.zklock().arg(LOCK);
    for lock in [OTHER, LOCK, OTHER, "/third", LOCK] {
        job = job.arg("--").arg(binary()).args(["-n", lock]);
    }
    let mut job = job.child(["--env", "--exit-on", "TERM"]).spawn();
    job.wait_stdout("ready");
    assert_eq!(locks.map(|lock| scratch.client().children(lock).len()), [1, 1, 1]);
    assert_eq!(job.variable("ZKLOCK_PATH"), LOCK);
    silent(finish(&mut job));
    assert_eq!(locks.map(|lock| scratch.client().children(lock).len()), [0, 0, 0]);
}

#[test]
fn another_lock_is_queued_for() {
    let scratch = Scratch::new();
    let mut holder = scratch.zklock().arg(OTHER).child(scratch.logged("holder")).spawn();
    holder.wait_stdout("ready");
    nested(&scratch, &[LOCK], &["-n", OTHER]).bare_child().run().expect_code(75);
    let mut job = nested(&scratch, &[LOCK], &[OTHER]).child(scratch.logged("inner")).spawn();
    scratch.client().wait_count(OTHER, 2);
    silent(finish(&mut holder));
    job.wait_stdout("ready");
    assert_eq!(scratch.client().children(LOCK).len(), 1);
    silent(finish(&mut job));
    scratch.log().expect_no_overlap();
}

#[test]
fn weaker_use_is_granted_stronger_refused() {
    let exclusive = &["--exclusive"][..];
    let shared = &["--shared"][..];
    let permits = &["--permits", "2"][..];
    for (held, wanted, granted) in [
        (exclusive, exclusive, true),
        (exclusive, shared, true),
        (exclusive, permits, true),
        (shared, shared, true),
        (permits, permits, true),
        (permits, shared, true),
        (shared, exclusive, false),
        (shared, permits, false),
        (permits, exclusive, false),
        (permits, &["--permits", "3"][..], false),
    ] {
        let scratch = Scratch::new();
        let job = nested(&scratch, &[&[LOCK], held].concat(), &[&[LOCK], wanted].concat());
        let output = job.bare_child().run();
        if granted {
            silent(output.expect_code(0));
        } else {
            // It would wait for the run above it, which waits for its end.
            let output = output.expect_code(78);
            assert!(only_line(&output).contains(" by the outer zklock,"), "{output}");
        }
        assert!(scratch.client().children(LOCK).is_empty());
    }
}

/// It waits for no one above it, and not as long as the queue: the readers of one lock in one tree, too.
#[test]
fn queue_behind_the_outer_lock() {
    for mode in ["--exclusive", "--shared"] {
        let scratch = Scratch::new();
        let shell = format!(r#"echo outer; "$C" --until go; exec "$Z" {mode} {LOCK} -- "$C" --name inner"#);
        let mut job = script(&scratch, &[mode], &shell).spawn();
        job.wait_stdout("outer");
        scratch.wait_queue(1);
        let mut waiters = [scratch.queue("one", 1), scratch.queue("two", 2)];
        scratch.touch("go");
        job.wait_stdout("inner ready");
        silent(job.wait_at_most(Duration::from_secs(10)).expect_code(0));
        waiters.iter_mut().for_each(|waiter| drop(silent(finish(waiter))));
        assert_eq!(scratch.log().expect_no_overlap().order(), ["one", "two"]);
    }
}

/// The environment of a zklock may hold anything: what was copied from a holder that we do not descend from, the node of a
/// waiter, nonsense.
#[test]
fn copied_or_forged_is_not_believed() {
    let scratch = Scratch::new();
    let mut holder = scratch.hold();
    let [held, lender] = ["ZKLOCK_HELD", "ZKLOCK_LENDER"].map(|name| holder.variable(name));
    let with = |held: &OsStr| scratch.zklock().env("ZKLOCK_HELD", held).env("ZKLOCK_LENDER", &lender);
    let mut waiter = with(held.as_ref()).arg(LOCK).child(scratch.logged("waiter")).spawn();
    let waiting = format!("{LOCK}/{}", scratch.wait_queue(2)[1]);
    with(held.as_ref()).args(["-n", LOCK, "true"]).run().expect_code(75);
    let own = format!("{LOCK}/_c_00000000-0000-0000-0000-000000000000-lock-0000000000");
    let many = "/lock/x\n".repeat(2000);
    let forged = [waiting.as_bytes(), own.as_bytes(), LOCK.as_bytes(), b"\n\n/\n", b"\xff\xfe/\xff", many.as_bytes()];
    for held in forged {
        let output = with(OsStr::from_bytes(held)).args(["-n", LOCK, "true"]).run().expect_code(75);
        assert!(output.stderr().contains("/lock is not free"), "{output}");
    }
    silent(finish(&mut holder));
    finish(&mut waiter);
}

/// The outer run's lock has gone, and another contender holds: the daemon that was left behind queues like any other.
#[test]
fn held_once_is_not_believed() {
    let scratch = Scratch::new();
    let daemon =
        r#"setsid sh -c '"$C" --name left --until go; exec "$Z" /lock -- "$C" --name daemon' & "$C" --until end"#;
    let mut job = script(&scratch, &[], daemon).spawn();
    job.wait_stdout("left ready");
    scratch.touch("end");
    job.wait().expect_code(0);
    let mut other = scratch.hold();
    scratch.touch("go");
    scratch.wait_queue(2);
    assert!(!job.stdout().contains("daemon ready"), "{job}");
    silent(finish(&mut other));
    job.wait_stdout("daemon ready");
    job.wait_until_nothing_is_left();
}

/// The same node name, but on a server that knows nothing of it.
#[test]
fn held_elsewhere_is_not_believed() {
    let (here, elsewhere) = (Scratch::new(), Scratch::new());
    let mut busy = elsewhere.hold();
    let inner = ["-z", &elsewhere.chroot().to_string(), "-n", LOCK];
    nested(&here, &[LOCK], &inner).bare_child().run().expect_code(75);
    silent(finish(&mut busy));
    silent(nested(&here, &[LOCK], &inner).bare_child().run().expect_code(0));
}

#[test]
fn signal_passes_through_both() {
    let scratch = Scratch::new();
    let mut job = nested(&scratch, &[LOCK], &[LOCK]).child(["--exit-on", "TERM", "--exit", "9"]).spawn();
    job.wait_stdout("ready");
    job.signal(Signal::SIGTERM);
    let output = job.wait().expect_code(9);
    assert_eq!(output.stdout().matches("signal TERM").count(), 1, "{output}");
}

/// The other lock would be queued for, with the first one held.
#[test]
fn one_of_two_locks_is_held_above() {
    let scratch = Scratch::new();
    let output = nested(&scratch, &[LOCK], &[OTHER, "--and", LOCK]).bare_child().run().expect_code(78);
    let advice = "write zklock /lock -- zklock /other COMMAND";
    assert!(only_line(&output).ends_with(advice), "{output}");
    assert!(scratch.client().children(LOCK).is_empty());
    let both = nested(&scratch, &[LOCK, "--and", OTHER], &[OTHER, "--and", LOCK]);
    silent(both.bare_child().run().expect_code(0));
    // By two runs.
    let two = nested(&scratch, &[LOCK], &[OTHER]).arg("--").arg(binary()).args([LOCK, "--and", OTHER]);
    let output = two.bare_child().run().expect_code(78);
    assert!(only_line(&output).ends_with(advice), "{output}");
}

/// The same servers, in another order, one of them twice. Otherwise named, they may be others.
#[test]
fn servers_named_in_another_way() {
    let scratch = Scratch::new();
    let chroot = scratch.chroot();
    let (server, path) = (direct(), chroot.path());
    let dead = "127.0.0.1:1";
    let run = |outer: String, inner: String| {
        let outer = scratch.zklock().args(["-z", &outer, LOCK, "--"]).arg(binary());
        outer.args(["-n", "-z", &inner, LOCK]).bare_child().run()
    };
    silent(run(format!("{server},{dead}{path}"), format!("{dead},{server},{dead}{path}")).expect_code(0));
    let output = run(format!("{server},{dead}{path}"), format!("{server}{path}")).expect_code(78);
    assert!(only_line(&output).ends_with("which cannot be reached: give both the same --zookeeper"), "{output}");
    scratch.wait_queue(0);
}

/// All three are in one process group there.
#[test]
fn signal_at_a_terminal() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    let mut job = terminal.spawn(nested(&scratch, &[LOCK], &[LOCK]).child(["--exit-on", "TERM", "--exit", "9"]));
    terminal.wait_count("ready", 1);
    for count in 1..=5 {
        job.signal(Signal::SIGUSR1);
        terminal.wait_count("signal USR1", count);
    }
    job.signal(Signal::SIGTERM);
    terminal.wait_count("signal TERM", 1);
    job.wait().expect_code(9);
    let lines = terminal.lines();
    assert_eq!(lines.iter().filter(|line| line.contains("signal")).count(), 6, "{lines:#?}");
}

/// The inner run passes the stop signal on, also if it is installed elsewhere.
#[test]
fn stop_signal_reaches_the_command_once() {
    let (scratch, copies) = (Scratch::new(), Copies::new());
    for inner in [binary().to_owned(), copies.add(binary(), 0o755)] {
        let run = |max_run: &str| {
            let outer = scratch.zklock().args([LOCK, "--max-run", max_run, "-k", "3s", "--"]);
            outer.arg(&inner).arg(LOCK).child(["--wait"]).run().expect_code(124)
        };
        // The shortest `--max-run` under which the inner command had time to start.
        let started = ["300ms", "1s", "3s", "10s"].into_iter().map(run);
        let output = started.into_iter().find(|output| output.stdout().contains("ready"));
        let output = output.expect("the inner command starts");
        assert_eq!(output.stdout().matches("signal TERM").count(), 1, "{output}");
    }
}
