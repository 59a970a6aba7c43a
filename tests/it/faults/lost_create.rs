//! The reply to the creation of a contender's node is lost: there is one node, and it is ours.

use crate::harness::client;
use crate::harness::creation::{
    connections, creates_contender, expect_one_creation, expect_watch_works, lose_creation,
};
use crate::harness::ensemble::Ensemble;
use crate::harness::frames::Op;
use crate::harness::poll;
use crate::harness::proxy::{Fate, Proxy};
use crate::harness::running::finish;
use crate::harness::scratch::{LASTING_VERBOSE, Scratch, direct};

mod in_all_dialects;

/// On the connections after number `after`, the node was looked for on a server that had caught up with the leader: a
/// sync, then a list, and then the node itself. What was under way when the connection broke may be sent again before.
#[track_caller]
fn expect_sync_before_look(proxy: &Proxy, after: Option<usize>) {
    let requests = proxy.requests();
    let later = requests.iter().filter(|request| after.is_none_or(|after| request.connection > after));
    let steps: Vec<Op> =
        later.map(|request| request.op).filter(|op| [Op::Sync, Op::GetChildren, Op::GetData].contains(op)).collect();
    let sync = steps.iter().position(|op| *op == Op::Sync);
    let then = sync.and_then(|sync| steps.get(sync..sync + 3));
    assert_eq!(then, Some(&[Op::Sync, Op::GetChildren, Op::GetData][..]), "{steps:?}");
    assert_eq!(steps.iter().position(|op| *op == Op::GetData), sync.map(|sync| sync + 2), "{steps:?}");
}

#[test]
fn the_node_is_ours() {
    for fate in [Fate::Reset, Fate::Blackhole, Fate::ResetAndHold] {
        reply_to_create_lost(fate);
    }
}

#[track_caller]
fn reply_to_create_lost(fate: Fate) {
    println!("{fate:?}");
    let (scratch, proxy) = Scratch::proxied();
    let trap = lose_creation(&proxy, fate);
    let mut job = scratch.start(&proxy.address(), "job", &LASTING_VERBOSE, &["--exit-on", "TERM"]);
    trap.wait();
    let created = scratch.only_contender();
    proxy.pass();
    job.wait_stdout("ready");
    scratch.expect_ours(&job);
    assert_eq!(job.variable("ZKLOCK_NODE"), created.path);
    expect_one_creation(&proxy);
    expect_sync_before_look(&proxy, Some(connections() - 1));
    finish(&mut job);
    scratch.expect_tidy(&["job"]);
}

#[test]
fn behind_a_holder() {
    let (scratch, proxy) = Scratch::proxied();
    let mut holder = scratch.hold();
    let trap = lose_creation(&proxy, Fate::Reset);
    let mut job = scratch.start(&proxy.address(), "job", &LASTING_VERBOSE, &["--exit-on", "TERM"]);
    trap.wait();
    expect_watch_works(&scratch, &proxy, &mut holder, &mut job);
    expect_one_creation(&proxy);
}

#[test]
fn and_another_server_answers() {
    let ensemble = Ensemble::shared();
    let scratch = Scratch::on(ensemble.chroot()).with_lock();
    let [one, two] = [0, 1].map(|number| Proxy::zookeeper(&ensemble.servers()[number].address()));
    let trap = lose_creation(&one, Fate::ResetAndHold);
    two.refuse();
    let addresses = format!("{},{}", one.address(), two.address());
    let mut job = scratch.start(&addresses, "job", &LASTING_VERBOSE, &["--exit-on", "TERM"]);
    trap.wait();
    two.accept();
    job.wait_stdout("ready");
    scratch.client().sync();
    scratch.expect_ours(&job);
    expect_one_creation(&one);
    assert!(!two.requests().iter().any(creates_contender));
    expect_sync_before_look(&two, None);
    finish(&mut job);
    scratch.expect_tidy(&["job"]);
}

#[test]
fn and_the_session_expires() {
    let (scratch, proxy) = Scratch::proxied();
    let trap = lose_creation(&proxy, Fate::ResetAndHold);
    let mut job = scratch.start(&proxy.address(), "job", &["-v"], &["--exit-on", "TERM"]);
    trap.wait();
    let lost = scratch.only_contender();
    client::expire_session(&direct(), lost.stat.owner);
    scratch.wait_queue(0);
    proxy.pass();
    job.wait_stderr("queueing again");
    job.wait_stdout("ready");
    scratch.expect_ours(&job);
    assert_ne!(scratch.only_contender().stat.owner, lost.stat.owner);
    finish(&mut job);
    scratch.expect_tidy(&["job"]);
}

#[test]
fn of_two_nodes_the_later_one_goes() {
    let (scratch, proxy) = Scratch::proxied();
    let trap = lose_creation(&proxy, Fate::ResetAndHold);
    let mut job = scratch.start(&proxy.address(), "job", &LASTING_VERBOSE, &["--exit-on", "TERM"]);
    trap.wait();
    let first = scratch.only_contender();
    let prefix = first.path.trim_end_matches(|digit: char| digit.is_ascii_digit());
    let second = scratch.create_late(first.stat.owner, prefix);
    proxy.pass();
    job.wait_stdout("ready");
    assert!(!scratch.client().exists(&second));
    assert_eq!(scratch.only_contender().path, first.path);
    scratch.expect_ours(&job);
    finish(&mut job);
    scratch.expect_tidy(&["job"]);
}

/// A creation that was taken for lost may still be done, even after the deletion of the node that was created in
/// its place. Its node lasts as long as our session, so no contender may wait for it, and least of all we.
#[test]
fn node_from_before_queueing_again_goes() {
    let (scratch, proxy) = Scratch::proxied();
    let mut holder = scratch.hold();
    let mut job = scratch.start(&proxy.address(), "job", &LASTING_VERBOSE, &["--exit-on", "TERM"]);
    scratch.wait_queue(2);
    let first = scratch.contenders().remove(1);
    // The session in its name, and another random half.
    let session = &first.path[..first.path.len() - "xxxx-xxxxxxxxxxxx-lock-0000000001".len()];
    let late = scratch.create_late(first.stat.owner, &format!("{session}f000-000000000000-lock-"));
    scratch.delete(&first.path);
    job.wait_stderr("queueing again");
    poll::until("the late node goes", || (!scratch.client().exists(&late)).then_some(()));
    finish(&mut holder);
    job.wait_stdout("ready");
    scratch.expect_ours(&job);
    finish(&mut job);
    scratch.expect_tidy(&["holder", "job"]);
}
