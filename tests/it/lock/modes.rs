//! `--shared` and `--permits`: which contenders hold together, which wait for which, and which are woken.
//!
//! What other suites have to say about the same: Curator's TestInterProcessReadWriteLock and TestInterProcessSemaphore,
//! kazoo's test_lock.py.

use serde_json::Value;

use crate::harness::poll;
use crate::harness::running::{Running, finish, silent};
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::zklock::Zklock;

mod permits;
mod readers_and_writers;

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

/// Waits until each of these nodes has the expected number of watchers: its owner, and those that wait for it.
#[track_caller]
fn wait_watchers(scratch: &Scratch, nodes: &[String], expected: &[usize]) {
    poll::until(format_args!("{expected:?} watchers"), || {
        let watchers = scratch.watchers();
        let count = |node: &String| watchers.get(&format!("{LOCK}/{node}")).copied().unwrap_or(0);
        nodes.iter().map(count).eq(expected.iter().copied()).then_some(())
    });
}

#[test]
fn told_to_the_command_and_to_others() {
    for (option, part, mode, permits) in [
        ("--exclusive", "-lock-", "exclusive", Value::Null),
        ("--shared", "-read-lock-", "shared", Value::Null),
        ("--permits=7", "-permits7-lock-", "permits:7", 7.into()),
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
