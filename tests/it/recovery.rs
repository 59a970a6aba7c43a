//! A reply is lost, a connection breaks, in every phase: there is one contender node, and it is ours.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::harness::client::{self, Kind};
use crate::harness::creation::{creates_contender, expect_one_creation, expect_watch_works, lose_creation};
use crate::harness::ensemble::Ensemble;
use crate::harness::frames::Op;
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::proxy::{Fate, Flow, Proxy};
use crate::harness::running::{Running, finish};
use crate::harness::scratch::{LASTING_VERBOSE, LOCK, Scratch, direct};
use crate::harness::times::{AT_ONCE, SHORT_SESSION};

mod several;

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

// The reply to create.

fn reply_to_create_lost(fate: Fate) {
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
    expect_sync_before_look(&proxy, Some(0));
    finish(&mut job);
    scratch.expect_tidy(&["job"]);
}

#[test]
fn reply_to_create_lost_by_a_reset() {
    reply_to_create_lost(Fate::Reset);
}

#[test]
fn reply_to_create_lost_by_silence() {
    reply_to_create_lost(Fate::Blackhole);
}

#[test]
fn reply_to_create_lost_and_nobody_answers_for_a_while() {
    reply_to_create_lost(Fate::ResetAndHold);
}

#[test]
fn reply_to_create_lost_behind_a_holder() {
    let (scratch, proxy) = Scratch::proxied();
    let mut holder = scratch.hold();
    let trap = lose_creation(&proxy, Fate::Reset);
    let mut job = scratch.start(&proxy.address(), "job", &LASTING_VERBOSE, &["--exit-on", "TERM"]);
    trap.wait();
    expect_watch_works(&scratch, &proxy, &mut holder, &mut job);
    expect_one_creation(&proxy);
}

#[test]
fn reply_to_create_lost_and_another_server_answers() {
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
fn reply_to_create_lost_and_the_session_expires_meanwhile() {
    let (scratch, proxy) = Scratch::proxied();
    let trap = lose_creation(&proxy, Fate::ResetAndHold);
    // It starts when such a time has passed.
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
fn of_two_nodes_of_ours_the_later_one_goes() {
    let (scratch, proxy) = Scratch::proxied();
    let trap = lose_creation(&proxy, Fate::ResetAndHold);
    let mut job = scratch.start(&proxy.address(), "job", &LASTING_VERBOSE, &["--exit-on", "TERM"]);
    trap.wait();
    let first = scratch.only_contender();
    let prefix = first.path.trim_end_matches(|digit: char| digit.is_ascii_digit());
    let second = scratch.client().create(prefix, b"", Kind::EphemeralSequential).unwrap();
    proxy.pass();
    job.wait_stdout("ready");
    assert!(!scratch.client().exists(&second));
    assert_eq!(scratch.only_contender().path, first.path);
    scratch.expect_ours(&job);
    finish(&mut job);
    scratch.expect_tidy(&["job"]);
}

/// A creation that was taken for lost may still be done, even after somebody has deleted the node that was created in its
/// place. Its node lasts as long as our session, so nobody is to wait for it, we least of all.
#[test]
fn a_node_of_ours_from_before_we_queued_again_goes() {
    let (scratch, proxy) = Scratch::proxied();
    let mut holder = scratch.hold();
    let mut job = scratch.start(&proxy.address(), "job", &LASTING_VERBOSE, &["--exit-on", "TERM"]);
    scratch.wait_queue(2);
    let first = scratch.contenders()[1].path.clone();
    // The session in its name, and another random half.
    let session = &first[..first.len() - "xxxx-xxxxxxxxxxxx-lock-0000000001".len()];
    let late = scratch.client().create(&format!("{session}f000-000000000000-lock-"), b"", Kind::EphemeralSequential);
    scratch.delete(&first);
    job.wait_stderr("queueing again");
    let late = late.unwrap();
    poll::until("the late node goes", || (!scratch.client().exists(&late)).then_some(()));
    finish(&mut holder);
    job.wait_stdout("ready");
    scratch.expect_ours(&job);
    finish(&mut job);
    scratch.expect_tidy(&["holder", "job"]);
}

// The replies to looks.

/// Loses the reply to the first request of a waiter that is of this kind, and whose path ends with the holder's node or
/// does not.
fn reply_to_look_lost(op: Op, about_holder: bool, fate: Fate) {
    let (scratch, proxy) = Scratch::proxied();
    let mut holder = scratch.hold();
    let path = scratch.only_contender().path;
    let trap = proxy.trap(fate, move |request| request.op == op && request.path.ends_with(&path) == about_holder);
    let mut job = scratch.start(&proxy.address(), "job", &LASTING_VERBOSE, &["--exit-on", "TERM"]);
    trap.wait();
    proxy.pass();
    expect_watch_works(&scratch, &proxy, &mut holder, &mut job);
    expect_one_creation(&proxy);
}

#[test]
fn reply_to_the_first_list_lost() {
    reply_to_look_lost(Op::GetChildren, false, Fate::Reset);
}

#[test]
fn reply_to_the_first_list_lost_by_silence() {
    reply_to_look_lost(Op::GetChildren, false, Fate::Blackhole);
}

#[test]
fn reply_to_the_watch_on_the_holder_lost() {
    reply_to_look_lost(Op::GetData, true, Fate::Reset);
}

#[test]
fn reply_to_the_watch_on_the_holder_lost_by_silence() {
    reply_to_look_lost(Op::GetData, true, Fate::Blackhole);
}

#[test]
fn reply_to_the_watch_on_our_own_node_lost() {
    reply_to_look_lost(Op::GetData, false, Fate::Reset);
}

/// The watch on our own node is there again too: that it is deleted is noticed without a beat.
#[test]
fn own_node_deleted_after_a_reset() {
    let (scratch, proxy) = Scratch::proxied();
    let mut job = scratch.start(&proxy.address(), "job", &["-v", "--session-timeout", "60"], &["--wait"]);
    job.wait_stdout("ready");
    proxy.reset();
    job.wait_stderr("restored");
    let deleted = Moment::now();
    scratch.delete(&scratch.only_contender().path);
    job.wait().expect_code(76);
    // A beat would come after 12 s.
    scratch.last_alive("job").expect_within(AT_ONCE, deleted, "the command is dead");
    scratch.expect_tidy(&["job"]);
}

// The reply to delete.

/// Loses the reply to the deletion of a command's node after the command has ended with 7.
fn reply_to_delete_lost(fate: Fate) -> (Running, Duration) {
    let (scratch, proxy) = Scratch::proxied();
    let trap = proxy.trap_ops(fate, &[Op::Delete]);
    let mut job = scratch.start(&proxy.address(), "job", &[], &["--exit-on", "TERM", "--exit", "7"]);
    job.wait_stdout("ready");
    let told = Instant::now();
    job.signal(Signal::SIGTERM);
    trap.wait();
    scratch.wait_queue(0);
    let output = job.wait().expect_code(7);
    let took = told.elapsed();
    assert!(output.stderr().lines().count() <= 1, "{output}");
    scratch.expect_tidy(&["job"]);
    (job, took)
}

#[test]
fn reply_to_delete_lost_by_a_reset() {
    let (job, took) = reply_to_delete_lost(Fate::Reset);
    assert_eq!(job.stderr(), "", "the lock was released");
    assert!(took < SHORT_SESSION, "{took:?}");
}

#[test]
fn reply_to_delete_lost_by_silence() {
    let (job, took) = reply_to_delete_lost(Fate::Blackhole);
    assert_eq!(job.stderr(), "", "the lock was released");
    assert!(took < SHORT_SESSION, "{took:?}");
}

#[test]
fn reply_to_delete_lost_and_nobody_answers_any_more() {
    let (job, took) = reply_to_delete_lost(Fate::ResetAndHold);
    assert_eq!(
        job.stderr(),
        format!(
            "zklock: the release of {LOCK} was not confirmed; it frees itself within {}s\n",
            SHORT_SESSION.as_secs()
        )
    );
    assert!(took < SHORT_SESSION + AT_ONCE, "{took:?}");
}

// Connections break.

#[test]
fn a_reset_in_any_phase_changes_nothing() {
    let (scratch, proxy) = Scratch::proxied();
    let mut holder = scratch.hold();

    // Connecting: it is accepted, and gets no answer.
    proxy.hold();
    let mut job = scratch.start(&proxy.address(), "job", &LASTING_VERBOSE, &["--exit-on", "TERM", "--exit", "7"]);
    poll::until("it connects", || (proxy.accepted() > 0).then_some(()));
    proxy.reset();

    // Creating: the node is there, and the reply is not.
    let creation = lose_creation(&proxy, Fate::Wait);
    proxy.pass();
    creation.wait();
    proxy.reset();
    expect_reconnected(&proxy);
    scratch.wait_queue(2);

    // Waiting: the holder goes while the connection is down.
    let holders = scratch.contenders()[0].path.clone();
    poll::until("it watches the holder", || {
        proxy
            .requests()
            .iter()
            .any(|request| request.op == Op::GetData && request.path.ends_with(&holders))
            .then_some(())
    });
    proxy.refuse();
    finish(&mut holder);
    proxy.accept();

    // Holding.
    job.wait_stdout("ready");
    let beats = proxy.count(Op::Multi);
    proxy.reset();
    proxy.wait_count(Op::Multi, beats + 2);
    scratch.expect_ours(&job);

    // Releasing.
    let deletion = proxy.trap_ops(Fate::Wait, &[Op::Delete]);
    job.signal(Signal::SIGTERM);
    deletion.wait();
    proxy.reset();
    job.wait().expect_code(7);
    expect_one_creation(&proxy);
    scratch.expect_tidy(&["holder", "job"]);
}

#[track_caller]
fn expect_reconnected(proxy: &Proxy) {
    poll::until("it is connected", || (proxy.open() > 0).then_some(()));
}

#[test]
fn ten_contenders_on_a_slow_network_that_breaks_at_every_handover() {
    let (scratch, proxy) = Scratch::proxied();
    let delay = Flow::Delay(Duration::from_millis(5));
    proxy.flows(delay, delay);
    let names: Vec<String> = (0..10).map(|number| format!("job{number}")).collect();
    let mut jobs: Vec<Running> =
        names.iter().map(|name| scratch.start(&proxy.address(), name, &LASTING_VERBOSE, &["--until", name])).collect();
    for _ in &names {
        let running = poll::until("one of them runs", || {
            scratch.log().runs().iter().find(|run| !run.ended).map(|run| run.name.clone())
        });
        proxy.reset();
        scratch.touch(&running);
        proxy.reset();
        poll::until("it ends", || {
            scratch.log().runs().iter().any(|run| run.name == running && run.ended).then_some(())
        });
    }
    for job in &mut jobs {
        job.wait().expect_code(0);
    }
    let log = scratch.log().expect_no_overlap();
    assert_eq!(log.runs().len(), names.len());
    scratch.wait_queue(0);
}
