//! `--and`: several locks, all or none.
//!
//! Curator's TestInterProcessMultiMutex has the same questions.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::harness::client::expire_session;
use crate::harness::frames::Op;
use crate::harness::place::Place;
use crate::harness::proxy::Proxy;
use crate::harness::running::Running;
use crate::harness::running::{finish, only_line, silent};
use crate::harness::server::Server;
use crate::harness::zklock::Zklock;

const A: &str = "/locks/a";
const B: &str = "/locks/b";
const C: &str = "/locks/c";

/// zklock with these locks, in this order.
fn with(place: &Place, locks: &[&str]) -> Zklock {
    let (first, others) = locks.split_first().expect("a lock");
    place.zklock().arg(*first).args(others.iter().flat_map(|lock| ["--and", lock]))
}

/// A holder of these locks.
#[track_caller]
fn hold(place: &Place, name: &str, locks: &[&str]) -> Running {
    let mut job = with(place, locks).child(place.logged(name)).spawn();
    job.wait_stdout("ready");
    job
}

/// How many contenders each lock has.
fn lengths(place: &Place) -> [usize; 3] {
    [A, B, C].map(|lock| place.client().children(lock).len())
}

/// Waits until the locks have these many contenders, because the others have been deleted.
#[track_caller]
fn wait_left(place: &Place, lengths: [usize; 3]) {
    place.wait_left([A, B, C], lengths);
}

#[test]
fn all_are_held_while_the_command_runs_and_none_afterwards() {
    let place = Place::new();
    let mut job = hold(&place, "all", &[B, C, A]);
    assert_eq!(lengths(&place), [1, 1, 1]);
    for lock in [A, B, C] {
        let output = place.zklock().args(["-n", lock, "true"]).run().expect_code(75);
        assert!(only_line(&output).starts_with(&format!("{lock} is not free")), "{output}");
    }
    silent(finish(&mut job));
    wait_left(&place, [0, 0, 0]);
}

#[test]
fn when_one_is_not_free_all_are_given_back() {
    let place = Place::new();
    for taken in [A, B, C] {
        let mut holder = hold(&place, "holder", &[taken]);
        let give_up = |limit: &[&str]| {
            let output = with(&place, &[C, A, B]).args(limit).args(["--", "true"]).run().expect_code(75);
            wait_left(&place, [A, B, C].map(|lock| usize::from(lock == taken)));
            only_line(&output)
        };
        // Long enough to come to that lock, on any machine.
        for limit in [&["-n"][..], &["-w", "4s"]] {
            let line = give_up(limit);
            assert!(line.contains(taken), "{line}");
        }
        silent(finish(&mut holder));
    }
}

/// One timeout over all: it does not begin anew with each lock.
#[test]
fn the_timeout_counts_once() {
    let place = Place::new();
    let mut holders = [hold(&place, "a", &[A]), hold(&place, "b", &[B])];
    let limit = Duration::from_secs(8);
    let mut waiter = with(&place, &[A, B]).args(["-w", "8s"]).child(["--name", "waiter"]).spawn();
    place.client().wait_count(A, 2);
    // Half of its time goes by at the first.
    with(&place, &[A]).args(["-w", "4s", "true"]).run().expect_code(75);
    silent(finish(&mut holders[0]));
    let output = waiter.wait().expect_code(75);
    assert!(only_line(&output).contains(B), "{output}");
    assert!(limit <= output.elapsed && output.elapsed < limit * 3 / 2, "{output}");
    silent(finish(&mut holders[1]));
}

#[test]
fn a_signal_while_waiting_for_the_second_gives_the_first_back() {
    let place = Place::new();
    let mut holder = hold(&place, "holder", &[B]);
    let mut waiter = with(&place, &[A, B]).child(["--name", "waiter"]).spawn();
    place.client().wait_count(B, 2);
    assert_eq!(lengths(&place), [1, 2, 0]);
    waiter.signal(Signal::SIGTERM);
    waiter.wait().expect_signal(Signal::SIGTERM);
    wait_left(&place, [0, 1, 0]);
    silent(finish(&mut holder));
}

/// In every order, over and over: whoever waited for somebody that waits for it would wait for ever.
#[test]
fn in_whatever_order_they_are_named_nobody_waits_for_ever() {
    let place = Place::new();
    let log = place.file("log");
    let orders: [&[&str]; 8] = [&[A, B, C], &[C, B, A], &[B, C, A], &[B, A], &[A, C], &[C, B], &[C, A], &[A, B]];
    let script = "for turn in 1 2 3 4 5 6; do \"$@\" || exit; done";
    let mut shells: Vec<Running> = orders
        .iter()
        .map(|locks| {
            let name: String = locks.iter().map(|lock| &lock[lock.len() - 1..]).collect();
            with(&place, locks).run_by(["sh", "-c", script, "sh"]).child(["--name", &name, "--log"]).arg(&log).spawn()
        })
        .collect();
    for shell in &mut shells {
        silent(shell.wait().expect_code(0));
    }
    let log = place.log().expect_apart(|one, two| one.name.contains(|lock| two.name.contains(lock)));
    assert_eq!(log.runs().len(), 48);
    assert_eq!(lengths(&place), [0, 0, 0]);
}

#[test]
fn a_lock_that_is_named_twice_is_taken_once() {
    let place = Place::new();
    let mut job = hold(&place, "job", &[A, B, A, B, A]);
    assert_eq!(lengths(&place), [1, 1, 0]);
    silent(finish(&mut job));
}

#[test]
fn losing_one_is_losing_all() {
    for lost in [A, B, C] {
        let place = Place::new();
        let mut job = hold(&place, "job", &[B, A, C]);
        let node = &place.client().children(lost)[0];
        place.client().delete(&format!("{lost}/{node}")).unwrap();
        job.wait().expect_code(76);
        wait_left(&place, [0, 0, 0]);
    }
}

#[test]
fn the_end_of_the_session_is_the_end_of_all() {
    let place = Place::new();
    let mut job = hold(&place, "job", &[A, B]);
    let mut next = with(&place, &[B, A]).child(place.logged("next")).spawn();
    place.client().wait_count(A, 2);
    let node = &place.client().children(B)[0];
    let (_, stat) = place.client().get(&format!("{B}/{node}")).unwrap();
    expire_session(&Server::shared().address(), stat.owner);
    job.wait().expect_code(76);
    next.wait_stdout("ready");
    silent(finish(&mut next));
}

/// Also one that has been won already while the next is waited for.
#[test]
fn a_node_that_is_deleted_while_another_is_waited_for_is_queued_anew() {
    let place = Place::new();
    let mut holder = hold(&place, "holder", &[B]);
    let mut waiter = with(&place, &[A, B]).child(place.logged("waiter")).spawn();
    place.client().wait_count(B, 2);
    let queued = place.client().wait_count(A, 1).remove(0);
    place.client().delete(&format!("{A}/{queued}")).unwrap();
    place.client().wait_children(A, "another contender", |nodes| nodes.len() == 1 && nodes[0] != queued);
    place.client().wait_count(B, 2);
    silent(finish(&mut holder));
    waiter.wait_stdout("ready");
    finish(&mut waiter);
    place.log().expect_no_overlap();
}

/// So that nobody who waits for the first gets it only to wait for the second.
#[test]
fn they_are_released_in_the_reverse_of_the_order_in_which_they_were_taken() {
    let place = Place::new();
    let proxy = Proxy::zookeeper(&Server::shared().address());
    let locks = [C, A, B];
    let job = place.zklock_by(proxy.address()).args([locks[0], "--and", locks[1], "--and", locks[2]]);
    silent(job.bare_child().run().expect_code(0));
    let of = |ops: &[Op]| -> Vec<String> {
        let requests = proxy.requests().into_iter().filter(|request| ops.contains(&request.op));
        let lock =
            |path: String| [A, B, C].into_iter().find(|lock| path.contains(&format!("{lock}/"))).map(str::to_owned);
        requests.filter_map(|request| lock(request.path)).collect()
    };
    let deleted = of(&[Op::Delete]);
    assert_eq!(deleted, [C, B, A]);
}

/// Somebody has taken away the right to delete below one of them: its node goes with the session, and the others as ever.
#[test]
fn one_that_cannot_be_deleted_does_not_keep_the_others() {
    let place = Place::new();
    let mut job = hold(&place, "job", &[A, B, C]);
    place.client().make_read_only(B).unwrap();
    finish(&mut job);
    assert_eq!(lengths(&place), [0, 0, 0]);
}

#[test]
fn the_mode_and_the_dialect_are_those_of_all() {
    let place = Place::new();
    let mut reader = hold(&place, "reader", &[A, B]);
    silent(finish(&mut reader));
    let shared = |locks: &[&str]| with(&place, locks).arg("--shared");
    let mut one = shared(&[A, B]).child(["--exit-on", "TERM"]).spawn();
    one.wait_stdout("ready");
    silent(shared(&[B, A]).arg("-n").bare_child().run().expect_code(0));
    with(&place, &[B]).args(["-n", "true"]).run().expect_code(75);
    silent(finish(&mut one));

    let mut all = with(&place, &[A, B]).args(["--dialect", "curator-rw,kazoo"]).child(["--exit-on", "TERM"]).spawn();
    all.wait_stdout("ready");
    assert_eq!(lengths(&place), [2, 2, 0]);
    silent(finish(&mut all));
    assert_eq!(lengths(&place), [0, 0, 0]);
}

#[test]
fn the_command_is_told_all_tokens_and_all_nodes() {
    let place = Place::new();
    let mut job = with(&place, &[C, A, B]).child(["--env", "--exit-on", "TERM"]).spawn();
    job.wait_stdout("ready");
    let stdout = job.stdout();
    let nodes: BTreeMap<&str, (String, i64)> = [A, B, C]
        .into_iter()
        .map(|lock| {
            let node = format!("{lock}/{}", place.client().children(lock)[0]);
            let (_, stat) = place.client().get(&node).unwrap();
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

#[test]
fn each_of_them_is_checked_as_the_first_is() {
    for (lock, part) in [
        ("relative", "--and 'relative'"),
        ("/", "--and '/'"),
        ("/a/", "--and '/a/'"),
        ("/a/../b", "--and '/a/../b'"),
        ("/zookeeper/x", "--and '/zookeeper/x'"),
        ("", "--and ''"),
    ] {
        let output = Zklock::bare().args([A, "--and", lock, "--", "true"]).run().expect_code(64);
        assert!(only_line(&output).contains(part), "{output}");
    }
}
