//! Several locks at once, when connections, sessions or nodes go before all of them are held.

use nix::sys::signal::Signal;

use crate::harness::client;
use crate::harness::creation::creations;
use crate::harness::frames::{Op, Request};
use crate::harness::moment::Moment;
use crate::harness::proxy::{Fate, Proxy};
use crate::harness::running::{Running, finish, silent};
use crate::harness::scratch::{Scratch, direct};
use crate::harness::times::SOON;
use crate::harness::zklock::Zklock;

const LOCKS: [&str; 3] = ["/a", "/b", "/c"];

/// A job under these locks, named in this order.
fn job(zklock: Zklock, scratch: &Scratch, locks: &[&str], name: &str) -> Zklock {
    let and = locks[1..].iter().flat_map(|lock| ["--and", lock]);
    zklock.arg(locks[0]).args(and).child(scratch.logged(name)).args(["--env", "--beat"])
}

/// A job that holds this lock alone.
#[track_caller]
fn stranger(scratch: &Scratch, lock: &str) -> Running {
    let mut stranger = job(scratch.zklock(), scratch, &[lock], "stranger").spawn();
    stranger.wait_stdout("ready");
    stranger
}

/// How many contenders each of [`LOCKS`] has.
fn counts(scratch: &Scratch) -> [usize; 3] {
    LOCKS.map(|lock| scratch.client().children(lock).len())
}

/// The only contender of a lock: its path.
#[track_caller]
fn only(scratch: &Scratch, lock: &str) -> String {
    let children = scratch.client().children(lock);
    let [name] = &children[..] else { panic!("{lock}: {children:?}") };
    format!("{lock}/{name}")
}

/// The lines that `ZKLOCK_TOKENS` should have, going by the nodes that are there now.
#[track_caller]
fn tokens(scratch: &Scratch, locks: &[&str]) -> Vec<String> {
    let token = |lock: &&str| format!("{} {lock}", scratch.client().get(&only(scratch, lock)).unwrap().1.czxid);
    locks.iter().map(token).collect()
}

/// Panics unless the command runs under the nodes that are there now.
#[track_caller]
fn expect_ours(scratch: &Scratch, run: &Running, locks: &[&str]) {
    let stdout = run.stdout();
    let told: Vec<_> =
        stdout.lines().skip_while(|line| !line.starts_with("ZKLOCK_TOKENS=")).take(locks.len()).collect();
    assert_eq!(told.join("\n"), format!("ZKLOCK_TOKENS={}", tokens(scratch, locks).join("\n")));
    assert_eq!(run.variable("ZKLOCK_NODE"), only(scratch, locks[0]));
}

fn creates(lock: &'static str) -> impl Fn(&Request) -> bool + Send + Sync + 'static {
    let part = format!("{lock}/_c_");
    move |request| creations().contains(&request.op) && request.path.contains(&part)
}

/// The locks in the order in which requests of these kinds named their contender nodes, as the proxy saw
/// them.
fn order(scratch: &Scratch, proxy: &Proxy, ops: &[Op]) -> Vec<String> {
    let requests = proxy.requests().into_iter().filter(|request| ops.contains(&request.op));
    let lock = |request: Request| {
        let path = request.path.strip_prefix(scratch.chroot().path())?;
        Some(path.split_once("/_c_")?.0.to_owned())
    };
    requests.filter_map(lock).collect()
}

#[test]
fn killed_waiter_gives_all_up() {
    let scratch = Scratch::new();
    let mut stranger = stranger(&scratch, "/c");
    let mut waiter = job(scratch.zklock(), &scratch, &LOCKS, "waiter").spawn();
    scratch.client().wait_count("/c", 2);
    let killed = Moment::now();
    waiter.signal(Signal::SIGKILL);
    waiter.wait().expect_signal(Signal::SIGKILL);
    scratch.client().wait_count("/c", 1);
    scratch.client().wait_count("/a", 0);
    Moment::now().expect_within(SOON, killed, "the nodes have gone");
    silent(finish(&mut stranger));
}

/// The reply to the creation of the second of three contenders is lost.
fn reply_to_the_second_creation_lost(fate: Fate) {
    let scratch = Scratch::new();
    let proxy = Proxy::zookeeper(&direct());
    let trap = proxy.trap(fate, creates("/b"));
    let mut run = job(scratch.zklock_by(proxy.address()), &scratch, &["/c", "/b", "/a"], "job");
    // The locks' own nodes are there already, so that the first try creates the contender.
    for lock in LOCKS {
        scratch.client().create(lock, b"", client::Kind::Persistent).unwrap();
    }
    run = run.env("ZKLOCK_TIMEOUT", "60");
    let mut run = run.spawn();
    trap.wait();
    let created = [only(&scratch, "/a"), only(&scratch, "/b")];
    proxy.pass();
    run.wait_stdout("ready");
    expect_ours(&scratch, &run, &["/c", "/b", "/a"]);
    assert_eq!([only(&scratch, "/a"), only(&scratch, "/b")], created);
    assert_eq!(order(&scratch, &proxy, creations()), ["/a", "/b", "/c"]);
    silent(finish(&mut run));
    assert_eq!(counts(&scratch), [0, 0, 0]);
}

#[test]
fn second_create_lost_by_a_reset() {
    reply_to_the_second_creation_lost(Fate::Reset);
}

#[test]
fn second_create_lost_by_silence() {
    reply_to_the_second_creation_lost(Fate::Blackhole);
}

#[test]
fn second_create_lost_and_session_expired() {
    let scratch = Scratch::new();
    let proxy = Proxy::zookeeper(&direct());
    let trap = proxy.trap(Fate::ResetAndHold, creates("/b"));
    let mut run = job(scratch.zklock_by(proxy.address()), &scratch, &["/b", "/a"], "job").spawn();
    trap.wait();
    let session = scratch.client().get(&only(&scratch, "/a")).unwrap().1.owner;
    client::expire_session(&direct(), session);
    scratch.client().wait_count("/a", 0);
    scratch.client().wait_count("/b", 0);
    proxy.pass();
    run.wait_stdout("ready");
    expect_ours(&scratch, &run, &["/b", "/a"]);
    assert_ne!(run.variable("ZKLOCK_SESSION"), format!("{session:#x}"));
    finish(&mut run);
}

#[test]
fn connection_lost_at_the_second() {
    let scratch = Scratch::new();
    let proxy = Proxy::zookeeper(&direct());
    let mut stranger = stranger(&scratch, "/b");
    let mut run = job(scratch.zklock_by(proxy.address()), &scratch, &LOCKS, "job").spawn();
    scratch.client().wait_count("/b", 2);
    let first = only(&scratch, "/a");
    proxy.refuse();
    proxy.reset();
    silent(finish(&mut stranger));
    proxy.accept();
    run.wait_stdout("ready");
    assert_eq!(only(&scratch, "/a"), first);
    expect_ours(&scratch, &run, &LOCKS);
    silent(finish(&mut run));
    scratch.log().expect_no_overlap();
}

#[test]
fn session_expired_at_the_second() {
    let scratch = Scratch::new();
    let mut holder = stranger(&scratch, "/b");
    let mut run = job(scratch.zklock(), &scratch, &LOCKS, "job").spawn();
    scratch.client().wait_count("/b", 2);
    let first = only(&scratch, "/a");
    // The contender behind it takes the first lock in between, as it should.
    let mut next = job(scratch.zklock(), &scratch, &["/a"], "next").spawn();
    scratch.client().wait_count("/a", 2);
    let session = scratch.client().get(&first).unwrap().1.owner;
    client::expire_session(&direct(), session);
    next.wait_stdout("ready");
    silent(finish(&mut holder));
    scratch.client().wait_count("/a", 2);
    finish(&mut next);
    run.wait_stdout("ready");
    expect_ours(&scratch, &run, &LOCKS);
    finish(&mut run);
    let log = scratch.log();
    assert_eq!(log.order(), ["stranger", "next", "job"]);
    assert!(log.overlaps().iter().all(|(one, two)| [one, two].iter().all(|run| run.name != "job")), "{log:?}");
}

/// The turn at the second lock and the loss of the first become known in the same moment.
#[test]
fn first_lost_at_the_second() {
    let scratch = Scratch::new();
    let proxy = Proxy::zookeeper(&direct());
    let mut holder = stranger(&scratch, "/b");
    let mut run = job(scratch.zklock_by(proxy.address()), &scratch, &["/a", "/b"], "job").spawn();
    scratch.client().wait_count("/b", 2);
    let first = only(&scratch, "/a");
    let mut next = job(scratch.zklock(), &scratch, &["/a"], "next").spawn();
    scratch.client().wait_count("/a", 2);
    proxy.hold();
    scratch.delete(&first);
    next.wait_stdout("ready");
    silent(finish(&mut holder));
    proxy.pass();
    // It queues anew for both.
    scratch.client().wait_count("/a", 2);
    scratch.client().wait_count("/b", 0);
    silent(finish(&mut next));
    run.wait_stdout("ready");
    expect_ours(&scratch, &run, &["/a", "/b"]);
    finish(&mut run);
    let log = scratch.log();
    assert_eq!(log.order(), ["stranger", "next", "job"]);
    assert!(log.overlaps().iter().all(|(one, two)| [one, two].iter().all(|run| run.name != "job")), "{log:?}");
}
