//! Several locks at once, when connections, sessions or nodes go before all of them are held.

use super::and_locks::{A, B, C, hold, lengths, with};
use crate::harness::client;
use crate::harness::creation::creations;
use crate::harness::frames::{Op, Request};
use crate::harness::proxy::{Fate, Proxy};
use crate::harness::running::{Running, finish, silent};
use crate::harness::scratch::{Scratch, direct};
use crate::harness::zklock::Zklock;

/// A job under these locks, named in this order, by a way that can be disturbed.
fn job(scratch: &Scratch, proxy: &Proxy, locks: &[&str]) -> Zklock {
    with(scratch.zklock_by(proxy.address()), locks).child(scratch.logged("job"))
}

/// The only contender of a lock: its path.
#[track_caller]
fn only(scratch: &Scratch, lock: &str) -> String {
    let children = scratch.client().children(lock);
    let [name] = &children[..] else { panic!("{lock}: {children:?}") };
    format!("{lock}/{name}")
}

/// Panics unless the command runs under the nodes that are there now.
#[track_caller]
fn expect_ours(scratch: &Scratch, run: &Running, locks: &[&str]) {
    let token = |lock: &&str| format!("{} {lock}", scratch.client().get(&only(scratch, lock)).unwrap().1.czxid);
    let tokens: Vec<_> = locks.iter().map(token).collect();
    let stdout = run.stdout();
    assert!(stdout.contains(&format!("ZKLOCK_TOKENS={}\n", tokens.join("\n"))), "{tokens:?}\n{stdout}");
    assert_eq!(run.variable("ZKLOCK_NODE"), only(scratch, locks[0]));
}

/// The creation of the contender for [`B`], not of a lock's own node.
fn creates_second(request: &Request) -> bool {
    creations().contains(&request.op) && request.path.contains("/locks/b/_c_")
}

/// The locks in the order in which requests of these kinds named their contender nodes.
fn order(proxy: &Proxy, ops: &[Op]) -> Vec<&'static str> {
    let requests = proxy.requests().into_iter().filter(|request| ops.contains(&request.op));
    requests
        .filter_map(|request| [A, B, C].into_iter().find(|lock| request.path.contains(&format!("{lock}/_c_"))))
        .collect()
}

/// What was created is found again. Released in reverse order, no waiter gets the first lock only to wait for the second.
#[test]
fn second_create_lost() {
    for fate in [Fate::Reset, Fate::Blackhole] {
        let scratch = Scratch::new();
        // The first try creates the contender.
        for lock in ["/locks", A, B, C] {
            scratch.client().create(lock, b"", client::Kind::Persistent).unwrap();
        }
        let proxy = Proxy::zookeeper(&direct());
        let trap = proxy.trap(fate, creates_second);
        let mut run = job(&scratch, &proxy, &[C, B, A]).env("ZKLOCK_TIMEOUT", "60").spawn();
        trap.wait();
        let created = [only(&scratch, A), only(&scratch, B)];
        proxy.pass();
        run.wait_stdout("ready");
        expect_ours(&scratch, &run, &[C, B, A]);
        assert_eq!([only(&scratch, A), only(&scratch, B)], created);
        assert_eq!(order(&proxy, creations()), [A, B, C]);
        silent(finish(&mut run));
        assert_eq!(order(&proxy, &[Op::Delete]), [C, B, A]);
        assert_eq!(lengths(&scratch), [0, 0, 0]);
    }
}

#[test]
fn second_create_lost_and_session_expired() {
    let scratch = Scratch::new();
    let proxy = Proxy::zookeeper(&direct());
    let trap = proxy.trap(Fate::ResetAndHold, creates_second);
    let mut run = job(&scratch, &proxy, &[B, A]).spawn();
    trap.wait();
    let session = scratch.client().get(&only(&scratch, A)).unwrap().1.owner;
    client::expire_session(&direct(), session);
    scratch.client().wait_count(A, 0);
    scratch.client().wait_count(B, 0);
    proxy.pass();
    run.wait_stdout("ready");
    expect_ours(&scratch, &run, &[B, A]);
    assert_ne!(run.variable("ZKLOCK_SESSION"), format!("{session:#x}"));
    finish(&mut run);
}

#[test]
fn connection_lost_at_the_second() {
    let scratch = Scratch::new();
    let proxy = Proxy::zookeeper(&direct());
    let mut stranger = hold(&scratch, "stranger", &[B]);
    let mut run = job(&scratch, &proxy, &[A, B, C]).spawn();
    scratch.client().wait_count(B, 2);
    let first = only(&scratch, A);
    proxy.refuse();
    proxy.reset();
    silent(finish(&mut stranger));
    proxy.accept();
    run.wait_stdout("ready");
    assert_eq!(only(&scratch, A), first);
    expect_ours(&scratch, &run, &[A, B, C]);
    silent(finish(&mut run));
    scratch.log().expect_no_overlap();
}

/// The first is lost with the session; or its node is, and this and the turn at the second become known in the same moment.
/// The contender behind takes it in between, as it should.
#[test]
fn first_lost_at_the_second() {
    for with_session in [true, false] {
        let scratch = Scratch::new();
        let proxy = Proxy::zookeeper(&direct());
        let mut holder = hold(&scratch, "holder", &[B]);
        let mut run = job(&scratch, &proxy, &[A, B]).spawn();
        scratch.client().wait_count(B, 2);
        let first = only(&scratch, A);
        let mut next = with(scratch.zklock(), &[A]).child(scratch.logged("next")).spawn();
        scratch.client().wait_count(A, 2);
        if with_session {
            client::expire_session(&direct(), scratch.client().get(&first).unwrap().1.owner);
        } else {
            proxy.hold();
            scratch.delete(&first);
        }
        next.wait_stdout("ready");
        silent(finish(&mut holder));
        proxy.pass();
        // It queues anew for both.
        scratch.client().wait_count(A, 2);
        scratch.client().wait_count(B, 0);
        silent(finish(&mut next));
        run.wait_stdout("ready");
        expect_ours(&scratch, &run, &[A, B]);
        finish(&mut run);
        let log = scratch.log().expect_apart(|one, two| one.name == "job" || two.name == "job");
        assert_eq!(log.order(), ["holder", "next", "job"]);
    }
}
