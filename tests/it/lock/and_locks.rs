//! `--and`: several locks, all or none.
//!
//! Curator's TestInterProcessMultiMutex asks the same questions.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::harness::running::{Running, finish, only_line, silent};
use crate::harness::scratch::Scratch;
use crate::harness::zklock::Zklock;

pub(super) const A: &str = "/locks/a";
pub(super) const B: &str = "/locks/b";
pub(super) const C: &str = "/locks/c";

/// zklock with these locks, in this order.
pub(super) fn with(zklock: Zklock, locks: &[&str]) -> Zklock {
    let (first, others) = locks.split_first().expect("a lock");
    zklock.arg(*first).args(others.iter().flat_map(|lock| ["--and", lock]))
}

/// A holder of these locks.
#[track_caller]
pub(super) fn hold(scratch: &Scratch, name: &str, locks: &[&str]) -> Running {
    let mut job = with(scratch.zklock(), locks).child(scratch.logged(name)).spawn();
    job.wait_stdout("ready");
    job
}

/// How many contenders each lock has.
pub(super) fn lengths(scratch: &Scratch) -> [usize; 3] {
    [A, B, C].map(|lock| scratch.client().children(lock).len())
}

/// Waits until the locks have these many contenders, because the others have been deleted.
#[track_caller]
pub(super) fn wait_left(scratch: &Scratch, lengths: [usize; 3]) {
    scratch.wait_left([A, B, C], lengths);
}

#[test]
fn all_are_held_and_released() {
    let scratch = Scratch::new();
    let mut job = hold(&scratch, "all", &[B, C, A]);
    assert_eq!(lengths(&scratch), [1, 1, 1]);
    for lock in [A, B, C] {
        let output = scratch.zklock().args(["-n", lock, "true"]).run().expect_code(75);
        assert!(only_line(&output).starts_with(&format!("{lock} is not free")), "{output}");
    }
    silent(finish(&mut job));
    wait_left(&scratch, [0, 0, 0]);
}

#[test]
fn one_not_free_gives_all_back() {
    let scratch = Scratch::new();
    for taken in [A, B, C] {
        let mut holder = hold(&scratch, "holder", &[taken]);
        let output = with(scratch.zklock(), &[C, A, B]).args(["-n", "--", "true"]).run().expect_code(75);
        assert!(only_line(&output).contains(taken), "{output}");
        wait_left(&scratch, [A, B, C].map(|lock| usize::from(lock == taken)));
        silent(finish(&mut holder));
    }
}

/// One timeout over all: it does not begin anew with each lock.
#[test]
fn the_timeout_counts_once() {
    let scratch = Scratch::new();
    let mut holders = [hold(&scratch, "a", &[A]), hold(&scratch, "b", &[B])];
    let limit = Duration::from_secs(8);
    let mut waiter = with(scratch.zklock(), &[A, B]).args(["-w", "8s"]).child(["--name", "waiter"]).spawn();
    scratch.client().wait_count(A, 2);
    // Half of its time goes by at the first.
    with(scratch.zklock(), &[A]).args(["-w", "4s", "true"]).run().expect_code(75);
    silent(finish(&mut holders[0]));
    let output = waiter.wait().expect_code(75);
    assert!(only_line(&output).contains(B), "{output}");
    assert!(limit <= output.elapsed && output.elapsed < limit * 3 / 2, "{output}");
    wait_left(&scratch, [0, 1, 0]);
    silent(finish(&mut holders[1]));
}

#[test]
fn a_signal_gives_the_first_back() {
    let scratch = Scratch::new();
    let mut holder = hold(&scratch, "holder", &[B]);
    for signal in [Signal::SIGTERM, Signal::SIGKILL] {
        let mut waiter = with(scratch.zklock(), &[A, B]).bare_child().spawn();
        scratch.client().wait_count(B, 2);
        assert_eq!(lengths(&scratch), [1, 2, 0]);
        waiter.signal(signal);
        waiter.wait().expect_signal(signal);
        wait_left(&scratch, [0, 1, 0]);
        waiter.wait_until_nothing_is_left();
    }
    silent(finish(&mut holder));
}

/// In every order, over and over: two runs that waited for each other would wait for ever.
#[test]
fn any_order_without_a_deadlock() {
    let scratch = Scratch::new();
    let log = scratch.file("log");
    let orders: [&[&str]; 8] = [&[A, B, C], &[C, B, A], &[B, C, A], &[B, A], &[A, C], &[C, B], &[C, A], &[A, B]];
    let script = "for turn in 1 2 3 4 5 6; do \"$@\" || exit; done";
    let mut shells: Vec<Running> = orders
        .iter()
        .map(|locks| {
            let name: String = locks.iter().map(|lock| &lock[lock.len() - 1..]).collect();
            with(scratch.zklock(), locks)
                .run_by(["sh", "-c", script, "sh"])
                .child(["--name", &name, "--log"])
                .arg(&log)
                .spawn()
        })
        .collect();
    for shell in &mut shells {
        silent(shell.wait().expect_code(0));
    }
    let log = scratch.log().expect_apart(|one, two| one.name.contains(|lock| two.name.contains(lock)));
    assert_eq!(log.runs().len(), 48);
    assert_eq!(lengths(&scratch), [0, 0, 0]);
}

#[test]
fn losing_one_is_losing_all() {
    for lost in [A, B, C] {
        let scratch = Scratch::new();
        let mut job = hold(&scratch, "job", &[B, A, C]);
        let node = &scratch.client().children(lost)[0];
        scratch.delete(&format!("{lost}/{node}"));
        let output = job.wait().expect_code(76);
        // Which one it was is not known.
        let lost = format!(
            "zklock: lost the locks {B} and {A} and {C}: one of their nodes was deleted; killing the command\n"
        );
        assert_eq!(output.stderr(), lost, "{output}");
        wait_left(&scratch, [0, 0, 0]);
    }
}

#[test]
fn mode_and_dialect_are_those_of_all() {
    let scratch = Scratch::new();
    let shared = |locks: &[&str]| with(scratch.zklock(), locks).arg("--shared");
    let mut one = shared(&[A, B]).child(["--exit-on", "TERM"]).spawn();
    one.wait_stdout("ready");
    silent(shared(&[B, A]).arg("-n").bare_child().run().expect_code(0));
    with(scratch.zklock(), &[B]).args(["-n", "true"]).run().expect_code(75);
    silent(finish(&mut one));

    let mut all =
        with(scratch.zklock(), &[A, B]).args(["--dialect", "curator-rw,kazoo"]).child(["--exit-on", "TERM"]).spawn();
    all.wait_stdout("ready");
    assert_eq!(lengths(&scratch), [2, 2, 0]);
    silent(finish(&mut all));
    assert_eq!(lengths(&scratch), [0, 0, 0]);
}

#[test]
fn command_is_told_all_tokens_and_nodes() {
    let scratch = Scratch::new();
    let mut job = with(scratch.zklock(), &[C, A, B]).child(["--env", "--exit-on", "TERM"]).spawn();
    job.wait_stdout("ready");
    let stdout = job.stdout();
    let nodes: BTreeMap<&str, (String, i64)> = [A, B, C]
        .into_iter()
        .map(|lock| {
            let node = format!("{lock}/{}", scratch.client().children(lock)[0]);
            let (_, stat) = scratch.client().get(&node).unwrap();
            (lock, (node, stat.czxid))
        })
        .collect();
    let [a, b, c] = [A, B, C].map(|lock| &nodes[lock]);
    // The lock that was named first stands for all where there is room for one.
    assert!(stdout.contains(&format!("ZKLOCK_PATH={C}\n")), "{stdout}");
    assert!(stdout.contains(&format!("ZKLOCK_NODE={}\n", c.0)), "{stdout}");
    assert!(stdout.contains(&format!("ZKLOCK_TOKEN={}\n", c.1)), "{stdout}");
    let tokens = format!("ZKLOCK_TOKENS={} {C}\n{} {A}\n{} {B}\n", c.1, a.1, b.1);
    assert!(stdout.contains(&tokens), "{stdout}");
    assert!(stdout.contains(&format!("ZKLOCK_HELD={}\n{}\n{}\n", c.0, a.0, b.0)), "{stdout}");
    silent(finish(&mut job));
}
