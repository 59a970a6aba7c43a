//! `--once-per`: a command is skipped if the last successful run under the lock was recent. Times are those of ZooKeeper's
//! clock.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::client::{self, Kind};
use crate::harness::poll;
use crate::harness::process;
use crate::harness::proxy::Proxy;
use crate::harness::running::{Output, Running, finish, only_line, silent};
use crate::harness::schema::expect_valid;
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::terminal::{CTRL_C, Terminal};
use crate::harness::zklock::{Zklock, binary};

/// The record of [`LOCK`].
const RECORD: &str = "/lock.zklock.last";

/// `zklock --once-per PERIOD [OPTIONS] LOCK`, with a command still to be named.
fn once(scratch: &Scratch, period: &str, options: &[&str]) -> Zklock {
    scratch.zklock().args(["--once-per", period]).args(options).arg(LOCK)
}

/// A run whose command says `ready`, and ends. `period`: skipped if the last run was in that time.
fn run(scratch: &Scratch, period: &str) -> Output {
    once(scratch, period, &[]).child([""; 0]).run()
}

#[track_caller]
fn expect_run(output: Output) {
    assert_eq!(silent(output.expect_code(0)).stdout(), "ready\n");
}

#[track_caller]
fn expect_skipped(output: Output) {
    assert_eq!(silent(output.expect_code(0)).stdout(), "");
}

/// Runs that are in the queue, in this order, behind a contender that then leaves. `children`: the arguments of their
/// commands.
fn behind<const N: usize>(scratch: &Scratch, children: [&[&str]; N]) -> [Output; N] {
    let first = scratch.occupy_as_db3();
    let mut queued = 1;
    let mut runs = children.map(|child| {
        let run = once(scratch, "1h", &[]).child(child).spawn();
        queued += 1;
        scratch.wait_queue(queued);
        run
    });
    scratch.delete(&first);
    runs.each_mut().map(Running::wait)
}

#[test]
fn of_hosts_that_ask_at_the_same_moment_one_runs_after_those_that_fail() {
    let scratch = Scratch::new();
    let runs = behind(&scratch, [&["--exit", "3"], &["--die-of", "SEGV"], &[], &[], &[]]);
    let [failed, killed, succeeded, skipped, last] = runs;
    failed.expect_code(3);
    killed.expect_signal(Signal::SIGSEGV);
    expect_run(succeeded);
    expect_skipped(skipped);
    expect_skipped(last);
    assert_eq!(scratch.client().children(LOCK), [""; 0]);
    expect_skipped(run(&scratch, "1h"));
}

#[test]
fn a_command_that_was_stopped_was_not_successful() {
    let scratch = Scratch::new();
    let tidy = ["--exit-on", "TERM,INT"];
    let start = |options: &[&str]| {
        let mut run = once(&scratch, "1h", options).child(tidy).spawn();
        run.wait_stdout("ready");
        run
    };
    finish(&mut start(&[]));
    start(&["--max-run", "3"]).wait().expect_code(124);
    let mut run = start(&[]);
    scratch.delete_holder();
    run.wait().expect_code(76);
    assert!(!scratch.client().exists(RECORD));
    // The terminal sends this one to the command as well.
    let terminal = Terminal::new(80);
    let mut run = terminal.spawn(once(&scratch, "1h", &[]).child(tidy));
    terminal.wait_count("ready", 1);
    terminal.press(CTRL_C);
    run.wait().expect_code(0);
    assert!(!scratch.client().exists(RECORD));
    let mut run = once(&scratch, "1h", &[]).child(["--exit-on", "USR1"]).spawn();
    run.wait_stdout("ready");
    run.signal(Signal::SIGUSR1);
    run.wait().expect_code(0);
    assert!(scratch.client().exists(RECORD), "such a signal stops no command");
}

/// What `zklock status --json` says of the last run.
#[track_caller]
fn last(scratch: &Scratch) -> Value {
    let output = silent(scratch.zklock().args(["status", "--json", LOCK]).run().expect_code(0));
    let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    expect_valid("status", &json);
    json["locks"][0]["last"].clone()
}

#[test]
fn after_the_time_the_next_one_runs() {
    let scratch = Scratch::new();
    let begun = Instant::now();
    expect_run(run(&scratch, "4s"));
    expect_skipped(run(&scratch, "4s"));
    poll::until("a run is not skipped", || {
        let output = silent(run(&scratch, "4s").expect_code(0));
        (!output.stdout.is_empty()).then_some(())
    });
    assert!(begun.elapsed() >= Duration::from_secs(4), "{:?}", begun.elapsed());
}

/// A library for `LD_PRELOAD`: the wall clock is ten minutes fast.
const FAST: &str = r"
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    now->tv_sec += clock == CLOCK_REALTIME ? 600 : 0;
    return result;
}";

#[test]
fn the_clocks_of_the_hosts_do_not_matter() {
    let scratch = Scratch::new();
    let (source, shim) = (scratch.file("shim.c"), scratch.file("shim.so"));
    fs::write(&source, FAST).unwrap();
    // Rust links with cc, so it is there.
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&shim, &source]).status();
    assert!(compiled.expect("cc can be started").success());
    let fast = || once(&scratch, "5m", &[]).env("LD_PRELOAD", &shim).child([""; 0]).run();
    let right = || run(&scratch, "5m");
    expect_run(right());
    expect_skipped(fast());
    scratch.delete(RECORD);
    expect_run(fast());
    expect_skipped(right());
}

#[test]
fn a_place_that_is_lost_does_not_change_when_the_run_asked() {
    let scratch = Scratch::new().with_lock();
    let first = scratch.occupy_as_db3();
    let end = scratch.file("end");
    let mut runner = once(&scratch, "1ms", &[]).child(["--until", end.to_str().unwrap()]).spawn();
    scratch.wait_queue(2);
    let mut waiters = vec![];
    for (number, lose) in [expire, Scratch::delete].into_iter().enumerate() {
        let waiter = once(&scratch, "1ms", &[]).child([""; 0]).spawn();
        let node = format!("{LOCK}/{}", scratch.wait_queue(3 + number)[2 + number]);
        waiters.push((waiter, node, lose));
    }
    scratch.delete(&first);
    runner.wait_stdout("ready");
    // From here on a run that asks would not be skipped.
    for (waiter, node, lose) in &mut waiters {
        lose(&scratch, node);
        waiter.wait_stderr("queueing again");
    }
    scratch.wait_queue(3);
    scratch.touch("end");
    expect_run(runner.wait());
    for (mut waiter, ..) in waiters {
        assert_eq!(waiter.wait().expect_code(0).stdout(), "");
    }
    expect_run(run(&scratch, "1ms"));
}

fn expire(scratch: &Scratch, node: &str) {
    client::expire_session(&direct(), scratch.client().get(node).unwrap().1.owner);
}

#[test]
fn the_record_comes_with_the_release_and_stays() {
    let scratch = Scratch::new().with_lock();
    expect_run(run(&scratch, "1h"));
    let (data, record) = scratch.client().get(RECORD).unwrap();
    let data: Value = serde_json::from_slice(&data).unwrap();
    assert_eq!(record.owner, 0, "it outlives the session");
    assert_eq!((&data["v"], data["token"].is_i64()), (&json!(1), true), "{data}");
    assert!(data["host"].is_string() && data["user"].is_string(), "{data}");
    assert!(data["began_ms_ago"].as_u64() >= data["took_ms"].as_u64(), "{data}");
    let (_, lock) = scratch.client().get(LOCK).unwrap();
    assert_eq!(record.changed, lock.children_changed, "one transaction");
    expect_run(run(&scratch, "1ms"));
    let (_, record) = scratch.client().get(RECORD).unwrap();
    let (_, lock) = scratch.client().get(LOCK).unwrap();
    assert_eq!(record.changed, lock.children_changed, "also if there was one");
    assert_eq!(record.version, 1);
}

/// Of a run that took long enough to be told from the next one.
const OLD: &[u8] = br#"{"v":1,"began_ms_ago":7200000,"took_ms":1}"#;

#[test]
fn a_record_that_cannot_be_written_costs_one_line() {
    let scratch = Scratch::new().with_lock();
    scratch.client().create(RECORD, OLD, Kind::Persistent).unwrap();
    let (read, admin) = (1, 16);
    scratch.client().allow(RECORD, read + admin).unwrap();
    let output = run(&scratch, "1h").expect_code(0);
    assert_eq!(output.stdout(), "ready\n");
    let line = "zklock: /lock.zklock.last could not be written: not permitted; the next run will not be skipped because of \
                this one; this login has to be able to create and to write that node\n";
    assert_eq!(output.stderr(), line);
    assert_eq!(scratch.client().children(LOCK), [""; 0]);
    let output = once(&scratch, "1h", &[]).child(["--exit", "3"]).run().expect_code(3);
    assert_eq!(output.stderr(), "", "nothing is recorded of a run that failed");
    scratch.client().make_unreadable(RECORD).unwrap();
    let output = run(&scratch, "1h").expect_code(77);
    assert!(only_line(&output).starts_with("access to /lock.zklock.last denied"), "{output}");
    scratch.client().make_open(RECORD).unwrap();
}

/// The command ends well while its keeper is cut off, or stopped, and by then the session is over.
#[test]
fn a_success_that_is_lost_with_the_session_costs_one_line() {
    for is_stopped in [false, true] {
        let scratch = Scratch::new().with_lock();
        let proxy = Proxy::zookeeper(&direct());
        let servers = scratch.chroot().by(proxy.address()).to_string();
        let mut run = once(&scratch, "1h", &["-z", &servers]).child(["--env", "--until", "end"]).spawn();
        run.wait_stdout("ready");
        let (command, keeper) = (run.command(), run.keeper());
        if is_stopped {
            process::stop(keeper)
        } else {
            proxy.refuse()
        }
        expire(&scratch, &run.variable("ZKLOCK_NODE"));
        scratch.touch("end");
        process::wait_dead(command);
        if is_stopped {
            process::send(keeper, Signal::SIGCONT)
        } else {
            proxy.accept()
        }
        let line = "zklock: /lock.zklock.last could not be written: the lock was lost before that; the next run will not \
                    be skipped because of this one\n";
        assert_eq!(run.wait().expect_code(0).stderr(), line);
    }
}

/// As for a job of cron: what may run it twice is mailed.
#[test]
fn a_success_whose_release_is_not_confirmed_is_told_in_spite_of_quiet() {
    for (status, told) in [("3", false), ("0", true)] {
        let (scratch, proxy) = Scratch::proxied();
        let servers = scratch.chroot().by(proxy.address()).to_string();
        let child = ["--until", "end", "--exit", status];
        let mut run = once(&scratch, "1h", &["-q", "-z", &servers]).child(child).spawn();
        run.wait_stdout("ready");
        let command = run.command();
        proxy.hold();
        scratch.touch("end");
        process::wait_dead(command);
        // It waits for the servers no more.
        run.signal(Signal::SIGTERM);
        let output = run.wait().expect_code(status.parse().unwrap());
        let line = "zklock: the release of /lock was not confirmed; it frees itself within 20s; --once-per may not know of \
                    this run, and run it again\n";
        assert_eq!(output.stderr(), if told { line } else { "" });
        proxy.pass();
        scratch.wait_queue(0);
    }
}

/// A person who starts the job by hand is told why it does not run, and where it did.
#[test]
fn a_skip_is_told_at_a_terminal() {
    let scratch = Scratch::new();
    expect_run(run(&scratch, "1h"));
    let terminal = Terminal::new(100);
    let mut run = terminal.spawn(once(&scratch, "1h", &[]).child([""; 0]));
    run.wait().expect_code(0);
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    terminal.wait_count("zklock: skipped: the last successful run under /lock began at 2", 1);
    terminal.wait_count(&format!("Z on {host}"), 1);
}

#[test]
fn where_a_node_may_not_be_deleted_it_is_recorded_before_the_session_ends() {
    let scratch = Scratch::new().with_lock();
    let (read, write, create, admin) = (1, 2, 4, 16);
    scratch.client().allow(LOCK, read + write + create + admin).unwrap();
    expect_run(run(&scratch, "1h"));
    assert_eq!(scratch.client().children(LOCK), [""; 0]);
    expect_skipped(run(&scratch, "1h"));
    scratch.client().make_open(LOCK).unwrap();
}

#[test]
fn an_empty_record_was_made_for_the_first_run() {
    let scratch = Scratch::new().with_lock();
    scratch.client().create(RECORD, b"", Kind::Persistent).unwrap();
    expect_run(run(&scratch, "1h"));
    expect_skipped(run(&scratch, "1h"));
}

#[test]
fn a_record_that_makes_no_sense_counts_for_nothing() {
    let scratch = Scratch::new().with_lock();
    scratch.client().create(RECORD, b"\xff", Kind::Persistent).unwrap();
    let output = run(&scratch, "1h").expect_code(0);
    assert_eq!(output.stdout(), "ready\n");
    let line = "/lock.zklock.last is no record of a run; continuing as if there were none";
    assert_eq!(output.stderr(), format!("zklock: {line}\n"));
    expect_skipped(run(&scratch, "1h"));
}

#[test]
fn without_waiting_a_lock_that_is_held_is_busy() {
    let scratch = Scratch::new();
    let end = scratch.file("end");
    let mut holder = once(&scratch, "1h", &[]).child(["--until", end.to_str().unwrap()]).spawn();
    holder.wait_stdout("ready");
    once(&scratch, "1h", &["-n"]).child([""; 0]).run().expect_code(75);
    scratch.touch("end");
    expect_run(holder.wait());
    expect_skipped(once(&scratch, "1h", &["-n"]).child([""; 0]).run());
    expect_run(scratch.zklock().arg(LOCK).child([""; 0]).run());
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let output = once(&scratch, "1h", &["-v"]).child([""; 0]).run().expect_code(0);
    let said = output.stderr();
    let line = said.lines().find(|line| line.contains("skipped: the last successful run under /lock began at 2"));
    assert!(line.is_some_and(|line| line.ends_with(&format!("Z on {host}"))), "{output}");
}

#[test]
fn of_several_locks_the_first_has_the_record() {
    let scratch = Scratch::new();
    let both =
        |period: &str| scratch.zklock().args(["--once-per", period, LOCK, "--and", "/before"]).child([""; 0]).run();
    expect_run(both("1h"));
    assert!(!scratch.client().exists("/before.zklock.last"));
    expect_skipped(both("1h"));
    expect_skipped(run(&scratch, "1h"));
    expect_run(both("1ms"));
    expect_run(scratch.zklock().args(["--once-per", "1h", "/before", "--and", LOCK]).child([""; 0]).run());
}

#[test]
fn below_a_run_that_holds_the_lock_it_is_refused() {
    let scratch = Scratch::new();
    let inner = |lock: &str| {
        let run = scratch.zklock().args([LOCK, "--"]).arg(binary()).args(["--once-per", "1h", lock]);
        run.child([""; 0]).run()
    };
    let line = only_line(&inner(LOCK).expect_code(78));
    assert_eq!(line, "/lock is held by the run that started this one: give --once-per to that run");
    expect_run(inner("/other"));
    expect_skipped(inner("/other"));
}

#[test]
fn status_tells_of_the_last_run() {
    let scratch = Scratch::new();
    assert_eq!(last(&scratch), Value::Null);
    expect_run(run(&scratch, "1h"));
    let shown = last(&scratch);
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    assert_eq!(shown["host"], host);
    let text = || silent(scratch.zklock().args(["status", LOCK]).run().expect_code(0)).stdout();
    let began = &shown["started"].as_str().unwrap()[..19];
    let line = format!("  last success on {host}: began {began}Z, took ");
    assert!(text().starts_with(&format!("/lock: free\n{line}")), "{}", text());
    let mut holder = scratch.hold();
    assert!(text().lines().last().unwrap().starts_with(&line), "{}", text());
    let output = silent(scratch.zklock().args(["list", "--json"]).run().expect_code(0));
    let list: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!((list["locks"].as_array().unwrap().len(), &list["locks"][0]["path"]), (1, &json!(LOCK)), "{list}");
    finish(&mut holder);
    scratch.client().set(RECORD, b"{}").unwrap();
    assert_eq!(last(&scratch), Value::Null);
}
