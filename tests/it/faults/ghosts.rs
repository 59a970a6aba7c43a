//! A server differs from its leader. It misses the deletion of the node that a waiter watches (ZOOKEEPER-5010): the waiter
//! learns of it from the leader. It lacks a node that a waiter has seen at another server: the waiter asks the leader before
//! it believes that.
//!
//! A proxy in front of a sound server makes the mistake.

use crate::harness::client;
use crate::harness::creation::connections;
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::proxy::Proxy;
use crate::harness::running::{Running, finish};
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::times::SHORT_SESSION;
use crate::harness::zklock::binary;

const LACKING: &str = "exists, but this server does not show it; asking another one";
const SEEN_THROUGH: &str = "was deleted, but this server still shows it; asking another one";

/// The server behind this proxy will go on showing the node.
fn haunt(proxy: &Proxy, scratch: &Scratch, node: &str) {
    proxy.hide_deletion(format!("{}{node}", scratch.chroot().path()), true);
}

/// A job that has set its watch on `node`.
fn watching(scratch: &Scratch, addresses: &str, node: &str, options: &[&str]) -> Running {
    let job = scratch.start(addresses, "job", &[&["-v"], options].concat(), &["--exit-on", "TERM"]);
    poll::until("the job watches its predecessor", || (scratch.watchers().get(node) == Some(&1)).then_some(()));
    job
}

/// The predecessor's node is deleted, and the job starts within two session timeouts.
fn starts_within_two_timeouts(scratch: &Scratch, job: &mut Running, node: &str) {
    let queued = scratch.contenders().pop().expect("the job is in the queue");
    let deleted = Moment::now();
    scratch.delete(node);
    job.wait_stdout("ready");
    scratch.begin("job").expect_within(2 * SHORT_SESSION, deleted, "the job has started");
    assert_eq!(scratch.only_contender().stat.owner, queued.stat.owner, "the session is the same");
    assert_eq!(scratch.only_contender().path, queued.path);
    scratch.expect_ours(job);
    finish(job);
    scratch.expect_tidy(&["job"]);
}

#[test]
fn another_server_is_asked() {
    let (scratch, haunted) = Scratch::proxied();
    let (sound, holder) = (Proxy::zookeeper(&direct()), scratch.occupy(""));
    sound.refuse();
    haunt(&haunted, &scratch, &holder);
    let addresses = format!("{},{}", haunted.address(), sound.address());
    let mut job = watching(&scratch, &addresses, &holder, &[]);
    sound.accept();
    starts_within_two_timeouts(&scratch, &mut job, &holder);
    assert!(job.stderr().contains(SEEN_THROUGH), "{job}");
    assert!(haunted.accepted() == connections() && sound.accepted() > 0, "{job}");
}

/// The leader's word is enough.
#[test]
fn no_other_server_answers() {
    let (scratch, haunted) = Scratch::proxied();
    let holder = scratch.occupy("");
    haunt(&haunted, &scratch, &holder);
    let mut job = watching(&scratch, &haunted.address(), &holder, &[]);
    starts_within_two_timeouts(&scratch, &mut job, &holder);
    assert!(job.stderr().contains(SEEN_THROUGH), "{job}");
}

/// A waiter is not told that it has become the next in line, least of all by such a server.
#[test]
fn another_waiter_is_the_ghost() {
    let (scratch, haunted) = Scratch::proxied();
    let holder = scratch.occupy("");
    let ghost = scratch.occupy("");
    haunt(&haunted, &scratch, &ghost);
    let mut job = watching(&scratch, &haunted.address(), &ghost, &["--session-timeout", "5"]);
    scratch.delete(&ghost);
    scratch.delete(&holder);
    job.wait_stdout("ready");
    scratch.expect_ours(&job);
    finish(&mut job);
    scratch.expect_tidy(&["job"]);
}

/// The outer run holds, because it has asked the leader. On this server it seems to wait. If its nested run queued
/// behind it, both would wait for ever.
#[test]
fn nested_run_sees_its_outer_run_behind_the_ghost() {
    let (scratch, haunted) = Scratch::proxied();
    let ghost = scratch.occupy("");
    haunt(&haunted, &scratch, &ghost);
    let timeout = SHORT_SESSION.as_secs().to_string();
    let outer = scratch.zklock_by(haunted.address()).env("ZKLOCK_SESSION_TIMEOUT", timeout);
    let inner = outer.args([LOCK, "--"]).arg(binary()).args(["-n", LOCK]);
    let mut job = inner.child(["--env", "--exit-on", "TERM"]).spawn();
    poll::until("the job watches its predecessor", || (scratch.watchers().get(&ghost) == Some(&1)).then_some(()));
    scratch.delete(&ghost);
    job.wait_stdout("ready");
    scratch.expect_ours(&job);
    finish(&mut job);
    scratch.wait_queue(0);
}

/// The servers have ended the session of a waiter, which queues again. This server still shows the node of that session: its
/// card names the waiter's own process, which is no run above.
#[test]
fn the_ghost_is_its_own() {
    let (scratch, haunted) = Scratch::proxied();
    let holder = scratch.occupy("");
    let mut job = watching(&scratch, &haunted.address(), &holder, &[]);
    let earlier = scratch.contenders().pop().expect("the job is in the queue");
    haunt(&haunted, &scratch, &earlier.path);
    scratch.zklock_by(haunted.address()).args(["status", "-q", LOCK]).run().expect_code(0);
    haunted.hold();
    client::expire_session(&direct(), earlier.stat.owner);
    scratch.delete(&holder);
    haunted.pass();
    job.wait_stdout("ready");
    assert!(job.stderr().contains(SEEN_THROUGH), "{job}");
    scratch.expect_ours(&job);
    finish(&mut job);
    scratch.expect_tidy(&["job"]);
}

/// The server shows the node no more, so it can be relied on. It only did not say so.
#[test]
fn lost_event() {
    let (scratch, proxy) = Scratch::proxied();
    let holder = scratch.occupy("");
    proxy.hide_deletion(format!("{}{holder}", scratch.chroot().path()), false);
    let mut job = watching(&scratch, &proxy.address(), &holder, &[]);
    starts_within_two_timeouts(&scratch, &mut job, &holder);
    assert!(!job.stderr().contains(SEEN_THROUGH), "{job}");
    assert_eq!(proxy.accepted(), connections());
}

/// A job that has set its watch on `watched`, and then lost its connection. The server behind the proxy does not show `lost`
/// any more.
fn reconnected(scratch: &Scratch, proxy: &Proxy, addresses: &str, watched: &str, lost: &str) -> Running {
    let mut job = watching(scratch, addresses, watched, &[]);
    proxy.hide_node(format!("{}{lost}", scratch.chroot().path()));
    proxy.reset();
    job.wait_stderr(LACKING);
    job
}

#[test]
fn another_server_shows_the_holder() {
    let (scratch, lacking) = Scratch::proxied();
    let (sound, holder) = (Proxy::zookeeper(&direct()), scratch.occupy(""));
    sound.refuse();
    let addresses = format!("{},{}", lacking.address(), sound.address());
    let mut job = reconnected(&scratch, &lacking, &addresses, &holder, &holder);
    sound.accept();
    scratch.wait_watched(&holder);
    assert!(scratch.log().order().is_empty(), "{job}");
    starts_within_two_timeouts(&scratch, &mut job, &holder);
}

/// There is no other server. The job asks the leader again and again.
#[test]
fn no_other_server_shows_the_holder() {
    let (scratch, lacking) = Scratch::proxied();
    let holder = scratch.occupy("");
    let address = lacking.address();
    let mut job = reconnected(&scratch, &lacking, &address, &holder, &holder);
    poll::until("another connection", || (lacking.accepted() >= 4).then_some(()));
    assert!(scratch.log().order().is_empty(), "{job}");
    starts_within_two_timeouts(&scratch, &mut job, &holder);
}

/// The waiter that it watches has gone, and the holder is not to be seen.
#[test]
fn the_holder_is_further_ahead() {
    let (scratch, lacking) = Scratch::proxied();
    let holder = scratch.occupy("");
    let waiter = scratch.occupy("");
    let address = lacking.address();
    let mut job = watching(&scratch, &address, &waiter, &[]);
    lacking.hide_node(format!("{}{holder}", scratch.chroot().path()));
    lacking.reset();
    scratch.wait_watched(&waiter);
    scratch.delete(&waiter);
    job.wait_stderr(LACKING);
    assert!(scratch.log().order().is_empty(), "{job}");
    starts_within_two_timeouts(&scratch, &mut job, &holder);
}

/// It keeps its place in the queue.
#[test]
fn another_server_shows_our_own_node() {
    let (scratch, lacking) = Scratch::proxied();
    let (sound, holder) = (Proxy::zookeeper(&direct()), scratch.occupy(""));
    sound.refuse();
    let addresses = format!("{},{}", lacking.address(), sound.address());
    let mut job = watching(&scratch, &addresses, &holder, &[]);
    let own = scratch.contenders().pop().expect("the job is in the queue").path;
    lacking.hide_node(format!("{}{own}", scratch.chroot().path()));
    lacking.reset();
    job.wait_stderr(LACKING);
    sound.accept();
    scratch.wait_watched(&own);
    starts_within_two_timeouts(&scratch, &mut job, &holder);
    assert!(!job.stderr().contains("queueing again"), "{job}");
}
