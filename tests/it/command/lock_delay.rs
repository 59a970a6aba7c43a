//! `--lock-delay`: after a holder that did not end cleanly, the next run waits. Times are those of ZooKeeper's clock.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::client::Kind;
use crate::harness::frames::Op;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::proxy::{Fate, Proxy};
use crate::harness::running::{Output, Running, finish, only_line, silent};
use crate::harness::schema::expect_valid;
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::terminal::Terminal;
use crate::harness::zklock::{Zklock, binary};

/// The record of [`LOCK`].
const RECORD: &str = "/lock.zklock.held";

/// `zklock --lock-delay DELAY [OPTIONS] LOCK`, with a command still to be named.
fn delaying(scratch: &Scratch, delay: &str, options: &[&str]) -> Zklock {
    scratch.zklock().args(["--lock-delay", delay]).args(options).arg(LOCK)
}

/// A run that holds until it is ended.
fn hold(scratch: &Scratch, delay: &str, options: &[&str]) -> Running {
    let mut run = delaying(scratch, delay, options).child(["--exit-on", "TERM"]).spawn();
    run.wait_stdout("ready");
    run
}

/// Leaves the record of a run that has vanished.
fn vanish(scratch: &Scratch, delay: &str) {
    let mut run = hold(scratch, delay, &[]);
    run.signal(Signal::SIGKILL);
    run.wait();
    scratch.wait_queue(0);
}

/// A run whose command says `ready`, and ends.
fn run(scratch: &Scratch, delay: &str, options: &[&str]) -> Output {
    delaying(scratch, delay, options).child([""; 0]).run()
}

#[track_caller]
fn expect_run(output: Output) {
    assert_eq!(silent(output.expect_code(0)).stdout(), "ready\n");
}

/// Whether the next run has to wait. A record that delays is left.
#[track_caller]
fn delays(scratch: &Scratch) -> bool {
    scratch.wait_queue(0);
    let output = run(scratch, "1ms", &["-n"]);
    let waits = output.stderr().contains("did not end cleanly: /lock is free in");
    output.expect_code(if waits { 75 } else { 0 });
    waits
}

fn record(scratch: &Scratch) -> Value {
    serde_json::from_slice(&scratch.client().get(RECORD).unwrap().0).unwrap()
}

fn end_delay(scratch: &Scratch) {
    scratch.client().set(RECORD, b"").unwrap();
}

#[test]
fn a_command_that_exits_by_itself_delays_nobody() {
    let scratch = Scratch::new();
    for status in [0, 3, 255] {
        let output = delaying(&scratch, "1h", &[]).child(["--exit", &status.to_string()]).run();
        assert_eq!(output.expect_code(status).stderr(), "");
        assert_eq!(record(&scratch)["state"], "released");
        assert!(!delays(&scratch));
    }
    let mut hold = scratch.zklock().args(["hold", "--lock-delay", "1h", LOCK]).open_stdin().spawn();
    hold.wait_stdout("ZKLOCK_HELD=");
    assert_eq!(record(&scratch)["state"], "held");
    hold.close_stdin();
    hold.wait().expect_code(0);
    assert!(!delays(&scratch));
    // It has not passed the gate.
    let missing = scratch.file("missing");
    let mut waiter = {
        let mut holder = scratch.hold();
        scratch.touch("missing");
        std::fs::set_permissions(&missing, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let waiter = delaying(&scratch, "1h", &[]).arg(&missing).spawn();
        scratch.wait_queue(2);
        std::fs::remove_file(&missing).unwrap();
        finish(&mut holder);
        waiter
    };
    waiter.wait().expect_code(127);
    assert!(!delays(&scratch));
}

#[test]
fn every_other_end_delays_the_next_run() {
    let scratch = Scratch::new().with_lock();
    type End = fn(&Scratch, &mut Running);
    let ends: [(&str, End); 7] = [
        ("a signal that is passed on", |_, run| run.signal(Signal::SIGTERM)),
        ("the command is killed", |_, run| process::send(run.command(), Signal::SIGKILL)),
        ("zklock is killed", |_, run| run.signal(Signal::SIGKILL)),
        ("the guard is killed", |_, run| process::send(run.guard(), Signal::SIGKILL)),
        ("the node is deleted", |scratch, _| scratch.delete_holder()),
        ("zklock break", |scratch, run| {
            let node = run.variable("ZKLOCK_NODE");
            scratch.zklock().args(["break", "--node", &node, LOCK]).run().expect_code(0);
        }),
        ("--max-run", |_, _| {}),
    ];
    for (what, end) in ends {
        let options: &[&str] = if what == "--max-run" { &["--max-run", "1"] } else { &[] };
        let mut run = delaying(&scratch, "1h", options).child(["--env", "--exit-on", "TERM"]).spawn();
        run.wait_stdout("ready");
        end(&scratch, &mut run);
        run.wait();
        assert!(delays(&scratch), "{what}");
        end_delay(&scratch);
    }
    let mut hold = scratch.zklock().args(["hold", "--lock-delay", "1h", LOCK]).open_stdin().spawn();
    hold.wait_stdout("ZKLOCK_HELD=");
    hold.signal(Signal::SIGTERM);
    hold.wait();
    assert!(delays(&scratch), "hold");
}

#[test]
fn the_longer_delay_is_waited_out_and_told() {
    let (short, long) = ("1ms", "2s");
    for (holders, own) in [(long, short), (short, long)] {
        let scratch = Scratch::new();
        vanish(&scratch, holders);
        let begun = Instant::now();
        let output = run(&scratch, own, &["-v"]).expect_code(0);
        assert!(begun.elapsed() >= Duration::from_secs(2), "{output}");
        let line = output.stderr().lines().find(|line| line.contains("did not end cleanly")).map(str::to_owned);
        let line = line.unwrap_or_default();
        assert!(
            line.contains(", pid ")
                && [2, 3]
                    .iter()
                    .any(|left| line
                        .ends_with(&format!(") did not end cleanly: /lock is free in {left}s (--lock-delay)"))),
            "{output}"
        );
        assert!(!delays(&scratch));
    }
}

#[test]
fn who_asks_for_no_delay_neither_records_nor_waits() {
    let scratch = Scratch::new();
    vanish(&scratch, "1h");
    let version = || scratch.client().get(RECORD).unwrap().1.version;
    let before = version();
    expect_run(run(&scratch, "0", &[]));
    expect_run(scratch.zklock().arg(LOCK).child([""; 0]).run());
    assert_eq!(version(), before);
    expect_run(delaying(&scratch, "0", &[]).env("ZKLOCK_LOCK_DELAY", "1h").child([""; 0]).run());
    scratch.zklock().env("ZKLOCK_LOCK_DELAY", "1h").args(["-n", LOCK]).child([""; 0]).run().expect_code(75);
}

/// As a crontab does that starts a run every ten minutes.
#[test]
fn runs_that_do_not_wait_get_the_lock_after_one_delay() {
    let scratch = Scratch::new();
    vanish(&scratch, "3s");
    let begun = Instant::now();
    poll::until("a run gets the lock", || {
        let output = run(&scratch, "1ms", &["-n", "-E", "0"]).expect_code(0);
        (output.stdout() == "ready\n").then_some(())
    });
    assert!(begun.elapsed() >= Duration::from_secs(3), "{:?}", begun.elapsed());
}

#[test]
fn a_waiter_that_dies_restarts_no_delay() {
    let scratch = Scratch::new().with_lock();
    vanish(&scratch, "1h");
    let mark = || {
        let record = scratch.client().get(RECORD).unwrap().1;
        (record.version, record.changed)
    };
    let mut first = None;
    for signal in [Signal::SIGKILL, Signal::SIGTERM] {
        let mut waiter = delaying(&scratch, "1ms", &["-v"]).child([""; 0]).spawn();
        waiter.wait_stderr("did not end cleanly");
        assert_eq!(*first.get_or_insert(mark()), mark());
        waiter.signal(signal);
        waiter.wait();
        scratch.wait_queue(0);
    }
    let output = run(&scratch, "1ms", &["-w", "5"]).expect_code(75);
    let line = only_line(&output);
    assert!(line.starts_with("gave up waiting for /lock after 5s: ") && line.ends_with("(--lock-delay)"), "{line}");
    assert_eq!(first, Some(mark()));
}

#[test]
fn readers_wait_once_and_delay_nobody() {
    let scratch = Scratch::new();
    vanish(&scratch, "2s");
    let begun = Instant::now();
    let mut reader = hold(&scratch, "1ms", &["--shared"]);
    assert!(begun.elapsed() >= Duration::from_secs(2));
    // By the clock of the next one, the delay may be over a little later.
    poll::until("a reader that does not wait starts", || {
        (run(&scratch, "2s", &["--shared", "-n"]).stdout() == "ready\n").then_some(())
    });
    assert_eq!(record(&scratch)["state"], "vanished", "a later run may ask for a longer delay");
    reader.signal(Signal::SIGKILL);
    reader.wait();
    assert!(!delays(&scratch));
}

#[test]
fn all_locks_of_a_run_have_a_record() {
    let scratch = Scratch::new();
    let both = |delay: &str| scratch.zklock().args(["--lock-delay", delay, "-n", LOCK, "--and", "/before"]);
    let mut run = both("1h").child(["--exit-on", "TERM"]).spawn();
    run.wait_stdout("ready");
    run.signal(Signal::SIGTERM);
    run.wait();
    for lock in [LOCK, "/before"] {
        scratch.zklock().args(["--lock-delay", "1ms", "-n", lock]).child([""; 0]).run().expect_code(75);
    }
    for lock in [LOCK, "/before"] {
        scratch.client().set(&format!("{lock}.zklock.held"), b"").unwrap();
    }
    expect_run(both("1h").child([""; 0]).run());
    expect_run(both("1h").child([""; 0]).run());
}

#[test]
fn what_is_no_record_costs_one_delay_and_a_line() {
    let scratch = Scratch::new();
    scratch.client().create(RECORD, b"\xff", Kind::Persistent).unwrap();
    let begun = Instant::now();
    let output = run(&scratch, "2s", &[]).expect_code(0);
    assert!(begun.elapsed() >= Duration::from_secs(2));
    let line = "/lock.zklock.held is no record of a holder; waiting out --lock-delay once";
    assert_eq!(output.stderr(), format!("zklock: {line}\n"));
    assert!(!delays(&scratch));
}

#[test]
fn modes_without_a_delay_refuse_it() {
    let scratch = Scratch::new();
    for (options, other) in [(&["--permits", "2"][..], "--permits"), (&["--dialect", "single"], "--dialect single")] {
        let output = run(&scratch, "1s", options).expect_code(64);
        let line = format!("--lock-delay and {other} exclude each other; leave out one of the two");
        assert_eq!(only_line(&output), line);
        let by_variable = scratch.zklock().env("ZKLOCK_LOCK_DELAY", "1s").args(options).arg(LOCK);
        expect_run(by_variable.child([""; 0]).run());
    }
    let output = run(&scratch, "61m", &[]).expect_code(64);
    assert_eq!(only_line(&output), "--lock-delay '61m': longer than the longest delay; write at most 1h");
    scratch.zklock().args(["fence", "--lock-delay", "1s"]).run().expect_code(64);
    assert!(!scratch.client().exists(RECORD));
}

#[test]
fn a_record_that_may_not_be_written_refuses_the_run() {
    let scratch = Scratch::new().with_lock();
    let (read, admin) = (1, 16);
    scratch.client().create("/jobs", b"", Kind::Persistent).unwrap();
    scratch.client().create("/jobs/lock", b"", Kind::Persistent).unwrap();
    scratch.client().allow("/jobs", read + admin).unwrap();
    let output = scratch.zklock().args(["--lock-delay", "1s", "/jobs/lock"]).child([""; 0]).run().expect_code(77);
    let line = "an ACL forbids creating children of /jobs: the permission c is missing; ";
    assert!(only_line(&output).starts_with(line), "{output}");
    scratch.client().make_open("/jobs").unwrap();
    scratch.client().create(RECORD, b"", Kind::Persistent).unwrap();
    scratch.client().allow(RECORD, read + admin).unwrap();
    let output = run(&scratch, "1s", &[]).expect_code(77);
    let line = "an ACL forbids writing /lock.zklock.held: the permission w is missing; ";
    assert!(only_line(&output).starts_with(line), "{output}");
    scratch.client().make_open(RECORD).unwrap();
    let mut holder = hold(&scratch, "1h", &[]);
    scratch.client().allow(RECORD, read + admin).unwrap();
    process::send(holder.command(), Signal::SIGTERM);
    let line = "/lock.zklock.held could not be written: not permitted; the next run waits out --lock-delay";
    assert_eq!(holder.wait().expect_code(0).stderr(), format!("zklock: {line}\n"));
    scratch.client().make_open(RECORD).unwrap();
    scratch.client().make_unreadable(RECORD).unwrap();
    let line = only_line(&run(&scratch, "1s", &[]).expect_code(77));
    assert!(line.starts_with("access to /lock.zklock.held denied"), "{line}");
    scratch.client().make_open(RECORD).unwrap();
}

/// The replies to the record, to the mark, and to the release.
#[test]
fn replies_are_lost() {
    for fate in [Fate::Reset, Fate::Blackhole] {
        for lost in ["record", "mark", "release"] {
            let scratch = Scratch::new().with_lock();
            if lost == "mark" {
                vanish(&scratch, "1ms");
            }
            let proxy = Proxy::zookeeper(&direct());
            let servers = scratch.chroot().by(proxy.address()).to_string();
            let (seen, which) = (AtomicUsize::new(0), usize::from(lost == "release"));
            let trap = proxy
                .trap(fate, move |request| request.op == Op::Multi && seen.fetch_add(1, Ordering::SeqCst) == which);
            let mut run = delaying(&scratch, "1ms", &["-z", &servers]).child([""; 0]).spawn();
            trap.wait();
            proxy.pass();
            assert_eq!(run.wait().expect_code(0).stdout(), "ready\n", "{lost}");
            assert_eq!(record(&scratch)["state"], "released", "{lost}");
            assert!(!delays(&scratch));
        }
    }
}

/// The record is written, and its reply is under way, when the run is told to end.
#[test]
fn a_run_that_ends_before_its_command_begins_delays_nobody() {
    for by_signal in [false, true] {
        let scratch = Scratch::new().with_lock();
        let proxy = Proxy::zookeeper(&direct());
        let servers = scratch.chroot().by(proxy.address()).to_string();
        let trap = proxy.trap(Fate::Wait, |request| request.op == Op::Multi);
        let options: &[&str] = if by_signal { &["-z", &servers] } else { &["-z", &servers, "-w", "3"] };
        let mut run = delaying(&scratch, "1h", options).child([""; 0]).spawn();
        trap.wait();
        if by_signal {
            run.signal(Signal::SIGTERM);
        }
        // The release: the run has been told to end.
        proxy.wait_count(Op::Multi, 2);
        trap.release();
        assert_eq!(run.wait().stdout(), "");
        assert!(!delays(&scratch));
    }
}

/// The reply to the release is lost, and by then the next run has recorded itself. Also if the lock that is named first is not
/// the first in the order in which they are taken.
#[test]
fn a_release_whose_reply_is_lost_costs_no_line() {
    for other in ["/before", "/other"] {
        let scratch = Scratch::new().with_lock();
        let proxy = Proxy::zookeeper(&direct());
        let servers = scratch.chroot().by(proxy.address()).to_string();
        let options = ["-z", &servers, "--and", other];
        let mut run = delaying(&scratch, "1ms", &options).child(["--until", "end"]).spawn();
        run.wait_stdout("ready");
        let trap = proxy.trap(Fate::ResetAndHold, |request| request.op == Op::Multi);
        scratch.touch("end");
        trap.wait();
        scratch.wait_queue(0);
        let mut next = hold(&scratch, "1ms", &[]);
        proxy.pass();
        silent(run.wait().expect_code(0));
        finish(&mut next);
    }
}

#[test]
fn a_holder_of_another_library_holds_while_nobody_has_marked_the_record() {
    let scratch = Scratch::new().with_lock();
    vanish(&scratch, "1h");
    let node = scratch.occupy("10.0.0.1");
    let status = || scratch.zklock().args(["status", LOCK]).run().expect_code(0).stdout();
    assert!(status().starts_with("/lock: 1 holds\n"), "{}", status());
    scratch.delete(&node);
}

#[test]
fn what_it_costs() {
    let scratch = Scratch::new().with_lock();
    let ops = |options: &[&str]| {
        let proxy = Proxy::zookeeper(&direct());
        let servers = scratch.chroot().by(proxy.address()).to_string();
        let args = ["--zookeeper", &servers].into_iter().chain(options.iter().copied());
        expect_run(scratch.zklock().args(args).arg(LOCK).child([""; 0]).run());
        let count = |op| proxy.count(op);
        (count(Op::Multi), count(Op::GetData), count(Op::Delete), proxy.requests().len())
    };
    // On a machine that stalls, a run may send a beat more.
    poll::until("a run costs what it should", || {
        let (without, with_none, with) = (ops(&[]), ops(&["--lock-delay", "0"]), ops(&["--lock-delay", "1m"]));
        let (multis, reads, deletions, all) = without;
        // The record is read and written before the start. At the end, it is written with the deletion.
        (with_none == without && with == (multis + 2, reads + 1, deletions - 1, all + 2)).then_some(())
    });
}

#[test]
fn a_nested_run_takes_part_in_nothing() {
    let scratch = Scratch::new();
    let inner = scratch.zklock().args(["--lock-delay", "1h", LOCK, "--"]).arg(binary());
    expect_run(inner.args(["--lock-delay", "1h", LOCK]).child([""; 0]).run());
    assert_eq!(
        (record(&scratch)["state"].clone(), scratch.client().get(RECORD).unwrap().1.version),
        (json!("released"), 1)
    );
}

#[test]
fn status_tells_of_a_delay_and_break_ends_it() {
    let scratch = Scratch::new().with_lock();
    let shown = || {
        let output = silent(scratch.zklock().args(["status", "--json", LOCK]).run().expect_code(0));
        let json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
        expect_valid("status", &json);
        json["locks"][0]["vanished"].clone()
    };
    let text = || silent(scratch.zklock().args(["status", LOCK]).run().expect_code(0)).stdout();
    let breaking = || scratch.zklock().args(["break", LOCK]);
    assert_eq!(shown(), Value::Null);
    vanish(&scratch, "1h");
    let line = ") did not end cleanly: the next run waits out a delay of 1h\n";
    assert!(text().starts_with("/lock: free\n  ") && text().ends_with(line), "{}", text());
    assert_eq!((&shown()["delay_ms"], &shown()["until"]), (&json!(3_600_000), &Value::Null));
    let mut waiter = delaying(&scratch, "1ms", &["-v"]).child([""; 0]).spawn();
    waiter.wait_stderr("did not end cleanly: /lock is free in 1h");
    let until = shown()["until"].as_str().expect("a time")[..19].to_owned();
    assert!(text().starts_with("/lock: 0 hold, 1 waits\n  1  waits"), "{}", text());
    assert!(
        text().ends_with(&format!(") did not end cleanly: the next run waits out a delay until {until}Z\n")),
        "{}",
        text()
    );
    breaking().run().expect_code(64);
    let terminal = Terminal::new(120);
    for (number, (answer, code)) in [("n", 1), ("y", 0)].into_iter().enumerate() {
        let mut breaking = terminal.spawn(breaking());
        terminal.wait_count("End the delay? Its work elsewhere may still run. [y/N]", number + 1);
        assert!(!waiter.has_ended());
        terminal.enter(answer);
        breaking.wait().expect_code(code);
    }
    waiter.wait().expect_code(0);
    assert_eq!(shown(), Value::Null);
    let mut free = terminal.spawn(breaking());
    free.wait().expect_code(75);
    terminal.close();
}
