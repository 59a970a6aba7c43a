//! Several locks at once, when connections, sessions or nodes go before all of them are held.

use nix::sys::signal::Signal;

use crate::harness::client;
use crate::harness::frames::{Op, Request};
use crate::harness::lock::SOON;
use crate::harness::place::Place;
use crate::harness::proxy::{Fate, Proxy};
use crate::harness::running::Running;
use crate::harness::running::{finish, silent};
use crate::harness::scene::Moment;
use crate::harness::server::Server;
use crate::harness::zklock::Zklock;

const LOCKS: [&str; 3] = ["/a", "/b", "/c"];

/// A job under these locks, named in this order.
fn job(zklock: Zklock, place: &Place, locks: &[&str], name: &str) -> Zklock {
    let and = locks[1..].iter().flat_map(|lock| ["--and", lock]);
    zklock.arg(locks[0]).args(and).child(place.logged(name)).args(["--env", "--beat"])
}

/// A job that holds this lock alone.
#[track_caller]
fn stranger(place: &Place, lock: &str) -> Running {
    let mut stranger = job(place.zklock(), place, &[lock], "stranger").spawn();
    stranger.wait_stdout("ready");
    stranger
}

/// How many contenders each of [`LOCKS`] has.
fn counts(place: &Place) -> [usize; 3] {
    LOCKS.map(|lock| place.client().children(lock).len())
}

/// The only contender of a lock: its path.
#[track_caller]
fn only(place: &Place, lock: &str) -> String {
    let children = place.client().children(lock);
    let [name] = &children[..] else { panic!("{lock}: {children:?}") };
    format!("{lock}/{name}")
}

#[track_caller]
fn value(run: &Running, name: &str) -> String {
    let stdout = run.stdout();
    let mut values = stdout.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    values.next().unwrap_or_else(|| panic!("no {name}\n{run}")).to_owned()
}

/// The lines of `ZKLOCK_TOKENS`, as the nodes that are there now would have them.
#[track_caller]
fn tokens(place: &Place, locks: &[&str]) -> Vec<String> {
    let token = |lock: &&str| format!("{} {lock}", place.client().get(&only(place, lock)).unwrap().1.czxid);
    locks.iter().map(token).collect()
}

/// Panics unless the command runs under the nodes that are there now.
#[track_caller]
fn expect_ours(place: &Place, run: &Running, locks: &[&str]) {
    let stdout = run.stdout();
    let told: Vec<_> =
        stdout.lines().skip_while(|line| !line.starts_with("ZKLOCK_TOKENS=")).take(locks.len()).collect();
    assert_eq!(told.join("\n"), format!("ZKLOCK_TOKENS={}", tokens(place, locks).join("\n")));
    assert_eq!(value(run, "ZKLOCK_NODE"), only(place, locks[0]));
}

fn creates(lock: &'static str) -> impl Fn(&Request) -> bool + Send + Sync + 'static {
    let part = format!("{lock}/_c_");
    move |request| [Op::Create, Op::Create2].contains(&request.op) && request.path.contains(&part)
}

/// The locks of the contender nodes that passing requests of these kinds were about.
fn order(place: &Place, proxy: &Proxy, ops: &[Op]) -> Vec<String> {
    let requests = proxy.requests().into_iter().filter(|request| ops.contains(&request.op));
    let lock = |request: Request| {
        let path = request.path.strip_prefix(place.chroot().path())?;
        Some(path.split_once("/_c_")?.0.to_owned())
    };
    requests.filter_map(lock).collect()
}

#[test]
fn a_waiter_that_is_killed_gives_the_others_up() {
    let place = Place::new();
    let mut stranger = stranger(&place, "/c");
    let mut waiter = job(place.zklock(), &place, &LOCKS, "waiter").spawn();
    place.client().wait_count("/c", 2);
    let killed = Moment::now();
    waiter.signal(Signal::SIGKILL);
    waiter.wait().expect_signal(Signal::SIGKILL);
    place.client().wait_count("/c", 1);
    place.client().wait_count("/a", 0);
    Moment::now().expect_within(SOON, killed, "the nodes have gone");
    silent(finish(&mut stranger));
}

/// The reply to the creation of the second of three contenders is lost.
fn reply_to_the_second_creation_lost(fate: Fate) {
    let place = Place::new();
    let proxy = Proxy::zookeeper(&Server::shared().address());
    let trap = proxy.trap(fate, creates("/b"));
    let mut run = job(place.zklock_by(proxy.address()), &place, &["/c", "/b", "/a"], "job");
    // So that the first try creates it.
    for lock in LOCKS {
        place.client().create(lock, b"", client::Kind::Persistent).unwrap();
    }
    run = run.env("ZKLOCK_TIMEOUT", "60");
    let mut run = run.spawn();
    trap.wait();
    let created = [only(&place, "/a"), only(&place, "/b")];
    proxy.pass();
    run.wait_stdout("ready");
    expect_ours(&place, &run, &["/c", "/b", "/a"]);
    assert_eq!([only(&place, "/a"), only(&place, "/b")], created);
    assert_eq!(order(&place, &proxy, &[Op::Create, Op::Create2]), ["/a", "/b", "/c"]);
    silent(finish(&mut run));
    assert_eq!(counts(&place), [0, 0, 0]);
}

#[test]
fn reply_to_the_second_creation_lost_by_a_reset() {
    reply_to_the_second_creation_lost(Fate::Reset);
}

#[test]
fn reply_to_the_second_creation_lost_by_silence() {
    reply_to_the_second_creation_lost(Fate::Blackhole);
}

#[test]
fn reply_to_the_second_creation_lost_and_the_session_expires_meanwhile() {
    let place = Place::new();
    let proxy = Proxy::zookeeper(&Server::shared().address());
    let trap = proxy.trap(Fate::ResetAndHold, creates("/b"));
    let mut run = job(place.zklock_by(proxy.address()), &place, &["/b", "/a"], "job").spawn();
    trap.wait();
    let session = place.client().get(&only(&place, "/a")).unwrap().1.owner;
    client::expire_session(&Server::shared().address(), session);
    place.client().wait_count("/a", 0);
    place.client().wait_count("/b", 0);
    proxy.pass();
    run.wait_stdout("ready");
    expect_ours(&place, &run, &["/b", "/a"]);
    assert_ne!(value(&run, "ZKLOCK_SESSION"), format!("{session:#x}"));
    finish(&mut run);
}

#[test]
fn the_connection_lost_while_the_second_is_waited_for() {
    let place = Place::new();
    let proxy = Proxy::zookeeper(&Server::shared().address());
    let mut stranger = stranger(&place, "/b");
    let mut run = job(place.zklock_by(proxy.address()), &place, &LOCKS, "job").spawn();
    place.client().wait_count("/b", 2);
    let first = only(&place, "/a");
    proxy.refuse();
    proxy.reset();
    silent(finish(&mut stranger));
    proxy.accept();
    run.wait_stdout("ready");
    assert_eq!(only(&place, "/a"), first);
    expect_ours(&place, &run, &LOCKS);
    silent(finish(&mut run));
    place.log().expect_no_overlap();
}

#[test]
fn the_session_expired_while_the_second_is_waited_for() {
    let place = Place::new();
    let mut holder = stranger(&place, "/b");
    let mut run = job(place.zklock(), &place, &LOCKS, "job").spawn();
    place.client().wait_count("/b", 2);
    let first = only(&place, "/a");
    // Whoever is behind it takes the first lock in between, as it should.
    let mut next = job(place.zklock(), &place, &["/a"], "next").spawn();
    place.client().wait_count("/a", 2);
    let session = place.client().get(&first).unwrap().1.owner;
    client::expire_session(&Server::shared().address(), session);
    next.wait_stdout("ready");
    silent(finish(&mut holder));
    place.client().wait_count("/a", 2);
    finish(&mut next);
    run.wait_stdout("ready");
    expect_ours(&place, &run, &LOCKS);
    finish(&mut run);
    let log = place.log();
    assert_eq!(log.order(), ["stranger", "next", "job"]);
    assert!(log.overlaps().iter().all(|(one, two)| [one, two].iter().all(|run| run.name != "job")), "{log:?}");
}

/// The turn at the second lock and the loss of the first become known in the same moment.
#[test]
fn the_first_lost_while_the_second_is_waited_for() {
    let place = Place::new();
    let proxy = Proxy::zookeeper(&Server::shared().address());
    let mut holder = stranger(&place, "/b");
    let mut run = job(place.zklock_by(proxy.address()), &place, &["/a", "/b"], "job").spawn();
    place.client().wait_count("/b", 2);
    let first = only(&place, "/a");
    let mut next = job(place.zklock(), &place, &["/a"], "next").spawn();
    place.client().wait_count("/a", 2);
    proxy.hold();
    place.client().delete(&first).unwrap();
    next.wait_stdout("ready");
    silent(finish(&mut holder));
    proxy.pass();
    // It queues anew for both.
    place.client().wait_count("/a", 2);
    place.client().wait_count("/b", 0);
    silent(finish(&mut next));
    run.wait_stdout("ready");
    expect_ours(&place, &run, &["/a", "/b"]);
    finish(&mut run);
    let log = place.log();
    assert_eq!(log.order(), ["stranger", "next", "job"]);
    assert!(log.overlaps().iter().all(|(one, two)| [one, two].iter().all(|run| run.name != "job")), "{log:?}");
}
