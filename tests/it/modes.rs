//! Shared locks and permits: who holds together, who waits for whom, and who is woken.
//!
//! What other suites have to say about the same: Curator's TestInterProcessReadWriteLock and TestInterProcessSemaphore,
//! kazoo's test_lock.py.

use std::collections::BTreeMap;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::client::expire_session;
use crate::harness::joblog::{JobLog, Run};
use crate::harness::poll;
use crate::harness::running::{Running, finish, only_line, silent};
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::times::CROWD_LIMIT;
use crate::harness::zklock::Zklock;

/// A contender whose name tells its mode: `reader…`, `writer…`, or the number of permits and a dash.
fn contender(scratch: &Scratch, name: &str) -> Zklock {
    let options = match name.split_once('-') {
        _ if name.starts_with("reader") => vec!["--shared"],
        _ if name.starts_with("writer") => vec!["--exclusive"],
        Some((permits, _)) => vec!["--permits", permits],
        None => panic!("a contender of which mode is {name}?"),
    };
    scratch.zklock().arg(LOCK).args(options)
}

/// A contender, once its node is the last of `length`.
#[track_caller]
fn queue(scratch: &Scratch, name: &str, length: usize) -> Running {
    let job = contender(scratch, name).child(scratch.logged(name)).spawn();
    scratch.wait_queue(length);
    job
}

/// Contenders in this order, those before `waiting` with their commands running.
#[track_caller]
fn line_up(scratch: &Scratch, names: &[&str], waiting: usize) -> Vec<Running> {
    let mut jobs = Vec::new();
    for (n, name) in names.iter().enumerate() {
        let mut job = queue(scratch, name, n + 1);
        if n < waiting {
            job.wait_stdout("ready");
        }
        jobs.push(job);
    }
    jobs
}

/// `-n`: gets the lock at once, or not at all.
#[track_caller]
fn gets_it(scratch: &Scratch, name: &str) -> bool {
    let output = contender(scratch, name).arg("-n").child(["--name", name]).run();
    match output.status.code() {
        Some(0) => true,
        Some(75) => false,
        _ => panic!("{output}"),
    }
}

fn reads(run: &Run) -> bool {
    run.name.starts_with("reader")
}

/// Readers beside readers, and nobody else beside anybody.
#[track_caller]
fn expect_readers_together_and_writers_alone(log: JobLog) -> JobLog {
    log.expect_apart(|one, two| !(reads(one) && reads(two)))
}

/// Waits until each of these nodes has as many watchers: its owner, and those that wait for it.
#[track_caller]
fn wait_watchers(scratch: &Scratch, nodes: &[String], expected: &[usize]) {
    let mut last = Vec::new();
    let right = poll::within(poll::PATIENCE, || {
        let watchers = scratch.watchers();
        last = nodes.iter().map(|node| watchers.get(&format!("{LOCK}/{node}")).copied().unwrap_or(0)).collect();
        (last == expected).then_some(())
    });
    assert!(right.is_some(), "watchers are {last:?}, not {expected:?}");
}

// Readers and writers.

#[test]
fn readers_hold_together_and_a_writer_alone() {
    let scratch = Scratch::new();
    let mut readers = line_up(&scratch, &["reader-1", "reader-2", "reader-3"], 3);
    assert!(gets_it(&scratch, "reader-4") && !gets_it(&scratch, "writer"));
    let mut writer = queue(&scratch, "writer", 4);
    for reader in &mut readers {
        assert_eq!(writer.stdout(), "");
        silent(finish(reader));
    }
    writer.wait_stdout("ready");
    assert!(!gets_it(&scratch, "reader-4") && !gets_it(&scratch, "writer"));
    silent(finish(&mut writer));
    expect_readers_together_and_writers_alone(scratch.log());
}

/// Or writers would starve where readers come and go.
#[test]
fn a_reader_behind_a_waiting_writer_waits() {
    let scratch = Scratch::new();
    let mut jobs = line_up(&scratch, &["reader-1", "writer", "reader-2"], 1);
    assert!(!gets_it(&scratch, "reader-3"));
    silent(finish(&mut jobs[0]));
    jobs[1].wait_stdout("ready");
    assert_eq!(scratch.client().children(LOCK).len(), 2);
    silent(finish(&mut jobs[1]));
    jobs[2].wait_stdout("ready");
    silent(finish(&mut jobs[2]));
    assert_eq!(expect_readers_together_and_writers_alone(scratch.log()).order(), ["reader-1", "writer", "reader-2"]);
}

#[test]
fn a_writers_release_starts_all_readers_up_to_the_next_writer() {
    let scratch = Scratch::new();
    let names = ["writer-1", "reader-1", "reader-2", "reader-3", "writer-2", "reader-4"];
    let mut jobs = line_up(&scratch, &names, 1);
    // The readers all wait for the writer before them, and for nobody else; the writer for the nearest before it.
    let nodes = scratch.wait_queue(6);
    wait_watchers(&scratch, &nodes, &[4, 1, 1, 2, 2, 1]);
    silent(finish(&mut jobs[0]));
    for reader in &mut jobs[1..4] {
        reader.wait_stdout("ready");
    }
    // That woke nobody who had to go on waiting.
    wait_watchers(&scratch, &nodes[1..], &[1, 1, 2, 2, 1]);
    // The order in which they leave is their own affair.
    for n in [2, 1, 3] {
        silent(finish(&mut jobs[n]));
    }
    for n in [4, 5] {
        jobs[n].wait_stdout("ready");
        silent(finish(&mut jobs[n]));
    }
    let log = expect_readers_together_and_writers_alone(scratch.log());
    assert_eq!(log.order().len(), names.len());
    assert_eq!(log.order()[4..], ["writer-2", "reader-4"]);
}

/// A waiting writer that leaves lets the readers behind it join those before it.
#[test]
fn a_writer_that_gives_up_lets_the_readers_behind_it_in() {
    let scratch = Scratch::new();
    let mut jobs = line_up(&scratch, &["reader-1", "writer", "reader-2"], 1);
    jobs[1].signal(Signal::SIGTERM);
    jobs[1].wait().expect_signal(Signal::SIGTERM);
    jobs[2].wait_stdout("ready");
    silent(finish(&mut jobs[0]));
    silent(finish(&mut jobs[2]));
    assert_eq!(scratch.log().order(), ["reader-1", "reader-2"]);
}

#[test]
fn a_reader_that_is_killed_does_not_keep_the_writer_waiting() {
    let scratch = Scratch::new();
    let mut jobs = line_up(&scratch, &["reader-1", "reader-2", "writer"], 2);
    jobs[0].signal(Signal::SIGKILL);
    jobs[0].wait().expect_signal(Signal::SIGKILL);
    jobs[0].wait_until_nothing_is_left();
    scratch.wait_queue(2);
    silent(finish(&mut jobs[1]));
    jobs[2].wait_stdout("ready");
    silent(finish(&mut jobs[2]));
}

#[test]
fn a_crowd_of_readers_and_writers_keeps_apart_and_all_run() {
    let scratch = Scratch::new();
    let log = scratch.file("log");
    let script = "for turn in 1 2 3 4 5 6 7 8; do \"$@\" || exit; done";
    let mut shells: Vec<Running> = (0..12)
        .map(|n| {
            let name = if n % 3 == 0 { "writer" } else { "reader" };
            let job = contender(&scratch, name).run_by(["sh", "-c", script, "sh"]);
            job.child(["--name", name, "--log"]).arg(&log).spawn()
        })
        .collect();
    for shell in &mut shells {
        silent(shell.wait_at_most(CROWD_LIMIT).expect_code(0));
    }
    let log = expect_readers_together_and_writers_alone(scratch.log());
    assert_eq!((log.count("writer"), log.count("reader")), (32, 64));
}

// Permits.

#[test]
fn of_three_permits_never_more_than_three_are_taken_and_never_fewer_while_someone_waits() {
    const CONTENDERS: usize = 20;
    let scratch = Scratch::new();
    let names: Vec<String> = (0..CONTENDERS).map(|n| format!("3-{n}")).collect();
    let mut jobs: BTreeMap<&str, Running> = names
        .iter()
        .map(|name| (name.as_str(), contender(&scratch, name).child(scratch.logged(name)).spawn()))
        .collect();
    scratch.wait_queue(CONTENDERS);
    for ended in 0..CONTENDERS {
        let expected = CONTENDERS.min(ended + 3);
        let running = poll::until(format_args!("{expected} have begun"), || {
            let log = scratch.log();
            let running: Vec<_> = log.runs().iter().filter(|run| !run.ended).map(|run| run.name.clone()).collect();
            (log.runs().len() == expected && running.len() == expected - ended).then_some(running)
        });
        assert_eq!(scratch.client().children(LOCK).len(), CONTENDERS - ended);
        let chosen = &running[fastrand::usize(..running.len())];
        silent(finish(jobs.get_mut(chosen.as_str()).expect("each runs once")));
    }
    assert_eq!(scratch.log().most_at_once(), 3);
}

/// Of those who wait, only as many as there are permits can become holders by one release.
#[test]
fn a_release_wakes_no_more_than_it_has_to() {
    let scratch = Scratch::new();
    let mut jobs = line_up(&scratch, &["2-a", "2-b", "2-c", "2-d", "2-e"], 2);
    let nodes = scratch.wait_queue(5);
    wait_watchers(&scratch, &nodes, &[2, 3, 3, 2, 1]);
    silent(finish(&mut jobs[0]));
    jobs[2].wait_stdout("ready");
    wait_watchers(&scratch, &nodes[1..], &[2, 3, 2, 1]);
    silent(finish(&mut jobs[1]));
    jobs[3].wait_stdout("ready");
    silent(finish(&mut jobs[2]));
    jobs[4].wait_stdout("ready");
    silent(finish(&mut jobs[3]));
    silent(finish(&mut jobs[4]));
    assert_eq!(scratch.log().most_at_once(), 2);
}

#[test]
fn a_permit_is_free_again_when_its_holder_is_killed_gives_up_or_loses_its_session() {
    let scratch = Scratch::new();
    let mut jobs = line_up(&scratch, &["2-a", "2-b", "2-c", "2-d"], 2);
    jobs[0].signal(Signal::SIGKILL);
    jobs[2].wait_stdout("ready");
    jobs[0].wait_until_nothing_is_left();
    let nodes = scratch.wait_queue(3);
    let (_, stat) = scratch.client().get(&format!("{LOCK}/{}", nodes[0])).unwrap();
    expire_session(&direct(), stat.owner);
    jobs[3].wait_stdout("ready");
    jobs[1].wait().expect_code(76);
    let mut late = queue(&scratch, "2-e", 3);
    late.signal(Signal::SIGINT);
    late.wait().expect_signal(Signal::SIGINT);
    late.wait_until_nothing_is_left();
    assert!(!gets_it(&scratch, "2-f"));
    silent(finish(&mut jobs[2]));
    assert!(gets_it(&scratch, "2-f"));
    silent(finish(&mut jobs[3]));
    assert!(scratch.client().children(LOCK).is_empty());
}

#[test]
fn a_single_permit_is_a_lock_and_more_permits_than_contenders_let_all_in() {
    let scratch = Scratch::new();
    let mut only = line_up(&scratch, &["1-a"], 1);
    assert!(!gets_it(&scratch, "1-b"));
    silent(finish(&mut only[0]));
    let mut all = line_up(&scratch, &["4294967295-a", "4294967295-b", "4294967295-c"], 3);
    assert!(all.iter_mut().all(|job| finish(job).status.success()));
}

#[test]
fn another_number_of_permits_is_refused_while_the_lock_is_in_use() {
    let scratch = Scratch::new();
    let mut holder = line_up(&scratch, &["3-a"], 1);
    for name in ["2-b", "4-b"] {
        let output = contender(&scratch, name).child(["--name", name]).run().expect_code(78);
        assert_eq!(only_line(&output), "/lock is used with --permits 3: use the same number");
    }
    assert_eq!(scratch.client().children(LOCK).len(), 1);
    assert!(gets_it(&scratch, "3-b"));
    silent(finish(&mut holder[0]));
    assert!(gets_it(&scratch, "4-b"));
}

#[test]
fn permits_exclude_writers_and_readers_take_permits_from_those_behind_them() {
    let scratch = Scratch::new();
    let mut jobs = line_up(&scratch, &["2-a", "writer", "2-b"], 1);
    assert!(!gets_it(&scratch, "writer") && !gets_it(&scratch, "reader"));
    silent(finish(&mut jobs[0]));
    jobs[1].wait_stdout("ready");
    silent(finish(&mut jobs[1]));
    jobs[2].wait_stdout("ready");
    assert!(gets_it(&scratch, "reader"));
    let mut reader = queue(&scratch, "reader", 2);
    reader.wait_stdout("ready");
    assert!(!gets_it(&scratch, "2-c"));
    silent(finish(&mut reader));
    assert!(gets_it(&scratch, "2-c"));
    silent(finish(&mut jobs[2]));
    scratch.log().expect_apart(|one, two| one.name == "writer" || two.name == "writer");
}

// What is told about the mode.

#[test]
fn the_mode_is_told_to_the_command_and_to_others() {
    for (option, part, mode, permits) in [
        ("--exclusive", "-lock-", "exclusive", Value::Null),
        ("-x", "-lock-", "exclusive", Value::Null),
        ("--shared", "-read-lock-", "shared", Value::Null),
        ("-s", "-read-lock-", "shared", Value::Null),
        ("--permits=7", "-permits7-lock-", "permits:7", 7.into()),
        ("-p7", "-permits7-lock-", "permits:7", 7.into()),
    ] {
        let scratch = Scratch::new();
        let mut job = scratch.zklock().args([option, LOCK]).child(["--env", "--exit-on", "TERM"]).spawn();
        job.wait_stdout("ready");
        assert!(job.stdout().contains(&format!("ZKLOCK_MODE={mode}\n")), "{job}");
        let node = &scratch.wait_queue(1)[0];
        assert!(node.contains(part), "{node}");
        let card = scratch.card(node);
        assert_eq!((&card["mode"], &card["permits"]), (&mode.into(), &permits), "{card}");
        silent(finish(&mut job));
    }
}

#[test]
fn modes_that_exclude_each_other_or_make_no_sense_are_refused() {
    let exclude = "--exclusive, --shared and --permits exclude each other; write one of them";
    let number = "write a number from 1 to 4294967295";
    for (options, part) in [
        (&["-s", "-x"][..], exclude),
        (&["-s", "-p", "2"], exclude),
        (&["-x", "-p", "2"], exclude),
        (&["-p", "0"], number),
        (&["-p", "-1"], number),
        (&["-p", "+1"], number),
        (&["-p", "two"], number),
        (&["-p", "4294967296"], number),
        (&["-p", ""], number),
        (&["-p", "2", "--dialect", "kazoo"], "--permits works in the dialect curator alone"),
        (&["-p", "2", "--dialect", "curator,curator-rw"], "--permits works in the dialect curator alone"),
        (&["--dialect", "zookeeper"], "write one or several of curator, curator-rw, kazoo, separated by commas"),
        (&["--dialect", ""], "write one or several of curator, curator-rw, kazoo, separated by commas"),
    ] {
        let output = Zklock::bare().args([LOCK]).args(options).args(["--", "true"]).run().expect_code(64);
        assert!(only_line(&output).contains(part), "{options:?}\n{output}");
    }
}
