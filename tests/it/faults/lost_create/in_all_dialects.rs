//! The same with contenders that have several nodes, one for each dialect.

use super::expect_sync_before_look;
use crate::harness::frames::{Op, Request};
use crate::harness::poll;
use crate::harness::proxy::{Fate, Proxy};
use crate::harness::running::{Running, finish};
use crate::harness::scratch::{Contender, Scratch, direct};

const ALL: [&str; 5] = ["-v", "--session-timeout", "20", "--dialect", "curator,curator-rw,kazoo"];

/// The transaction that creates the nodes of a contender. A beat is also a transaction, but names a node with its
/// number.
fn creates_all(request: &Request) -> bool {
    request.op == Op::Multi && request.path.ends_with("-lock-")
}

/// The contenders are the nodes of one transaction, and what the running command was told of.
#[track_caller]
fn expect_three_of_one(scratch: &Scratch, job: &Running) {
    let nodes = scratch.contenders();
    assert_eq!(nodes.len(), 3, "{nodes:?}");
    assert!(nodes.iter().all(|node| node.stat.czxid == nodes[0].stat.czxid), "{nodes:?}");
    assert_eq!(job.variable("ZKLOCK_NODE"), nodes[0].path);
    assert_eq!(job.variable("ZKLOCK_TOKEN"), nodes[0].stat.czxid.to_string());
    assert_eq!(job.variable("ZKLOCK_SESSION"), format!("{:#x}", nodes[0].stat.owner));
}

/// A job whose nodes have been created, and the reply to that was lost.
#[track_caller]
fn reply_lost(fate: Fate) -> (Scratch, Proxy, Running, Vec<Contender>) {
    let (scratch, proxy) = Scratch::proxied();
    let trap = proxy.trap(fate, creates_all);
    let job = scratch.start(&proxy.address(), "job", &ALL, &["--exit-on", "TERM"]);
    trap.wait();
    let created = scratch.contenders();
    (scratch, proxy, job, created)
}

#[test]
fn by_a_reset() {
    let (scratch, proxy, mut job, created) = reply_lost(Fate::Reset);
    job.wait_stdout("ready");
    expect_three_of_one(&scratch, &job);
    assert_eq!(scratch.contenders(), created);
    assert_eq!(proxy.requests().iter().filter(|request| creates_all(request)).count(), 1);
    expect_sync_before_look(&proxy, Some(0));
    finish(&mut job);
    scratch.expect_tidy(&["job"]);
}

/// From a second transaction that was taken for lost and came late.
#[test]
fn of_two_sets_the_later_one_goes() {
    let (scratch, proxy, mut job, created) = reply_lost(Fate::ResetAndHold);
    for node in &created {
        let prefix = node.path.trim_end_matches(|digit: char| digit.is_ascii_digit());
        scratch.create_late(node.stat.owner, prefix);
    }
    proxy.pass();
    job.wait_stdout("ready");
    expect_three_of_one(&scratch, &job);
    assert_eq!(scratch.contenders(), created);
    finish(&mut job);
    scratch.expect_tidy(&["job"]);
}

/// A contender with half of its nodes is not used: some kind of client would not see it. The other half goes as well.
#[test]
fn set_that_has_lost_a_node() {
    for n in 0..3 {
        let (scratch, proxy, mut job, created) = reply_lost(Fate::ResetAndHold);
        scratch.delete(&created[n].path);
        proxy.pass();
        job.wait_stdout("ready");
        expect_three_of_one(&scratch, &job);
        assert!(scratch.contenders().iter().all(|node| !created.contains(node)), "{created:?}");
        finish(&mut job);
        scratch.expect_tidy(&["job"]);
    }
}

/// While waiting, any of the nodes.
#[test]
fn waiter_that_loses_one_node() {
    for n in 0..3 {
        let scratch = Scratch::new().with_lock();
        let mut holder = scratch.start(&direct(), "holder", &ALL, &["--exit-on", "TERM"]);
        holder.wait_stdout("ready");
        let mut job = scratch.start(&direct(), "job", &ALL, &["--exit-on", "TERM"]);
        scratch.wait_queue(6);
        let queued = scratch.contenders().split_off(3);
        scratch.delete(&queued[n].path);
        poll::until("it has queued anew", || {
            let now = scratch.contenders();
            (now.len() == 6 && now[3..].iter().all(|node| !queued.contains(node))).then_some(())
        });
        finish(&mut holder);
        job.wait_stdout("ready");
        expect_three_of_one(&scratch, &job);
        finish(&mut job);
        scratch.expect_tidy(&["holder", "job"]);
    }
}

/// The beat checks all nodes: one that goes while the connection is away is noticed by the first beat after it.
#[test]
fn node_that_goes_while_disconnected() {
    for n in 0..3 {
        let (scratch, proxy) = Scratch::proxied();
        let mut job = scratch.start(&proxy.address(), "job", &ALL, &["--exit-on", "TERM"]);
        job.wait_stdout("ready");
        proxy.hold();
        proxy.reset();
        let nodes = scratch.contenders();
        scratch.delete(&nodes[n].path);
        proxy.pass();
        job.wait().expect_code(76);
        scratch.wait_queue(0);
    }
}
