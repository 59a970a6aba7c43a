//! One lock path, zklock and other clients: they exclude each other, in the order of their arrival.
//!
//! Here are the clients that hold a lock alone, one kind at a time; readers and writers, and several kinds on one path,
//! have modules of their own, as have programs without a queue.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::harness::client::expire_session;
use crate::harness::peers::{Peer, Recipe};
use crate::harness::process;
use crate::harness::running::{Running, finish, only_line, silent};
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::times::CROWD_LIMIT;
use crate::harness::zklock::Zklock;

/// These tests of each peer, unless it needs newer servers than there are.
macro_rules! of_peers {
    (@ [$($test:ident)+] $peer:ident $recipe:expr) => {
        mod $peer {
            use super::*;

            $(#[test]
            fn $test() {
                if !$recipe.needs_newer_servers() {
                    super::$test($recipe);
                }
            })+
        }
    };
    ($tests:tt $($peer:ident $recipe:expr;)+) => {
        $(of_peers!(@ $tests $peer $recipe);)+
    };
}

mod mixed;
mod readers;
mod recipes;
mod rules;
mod single;

/// The session timeout of a peer that is to be killed: its test waits for the expiry.
const SHORT: Duration = Duration::from_secs(4);

/// zklock, for [`LOCK`], as it is to be called beside a peer.
fn beside(scratch: &Scratch, peer: Recipe) -> Zklock {
    scratch.zklock().arg(LOCK).args(peer.options())
}

/// A waiter beside a peer, once its node is the last of `length`.
#[track_caller]
fn queue(scratch: &Scratch, peer: Recipe, name: &str, length: usize) -> Running {
    let waiter = beside(scratch, peer).child(scratch.logged(name)).spawn();
    scratch.wait_queue(length);
    waiter
}

/// A holder beside a peer.
#[track_caller]
fn hold(scratch: &Scratch, peer: Recipe) -> Running {
    let mut holder = beside(scratch, peer).child(scratch.logged("holder")).spawn();
    holder.wait_stdout("ready");
    holder
}

/// Each waits for the other, and starts as soon as the other has gone.
fn excludes_both_ways(recipe: Recipe) {
    let scratch = Scratch::new();
    let mut peer = Peer::start(&scratch, recipe);
    let mut holder = hold(&scratch, recipe);
    peer.expect_busy();
    peer.queue();
    scratch.wait_queue(2);
    silent(finish(&mut holder));
    peer.expect_acquired();

    let output = beside(&scratch, recipe).arg("-n").bare_child().run().expect_code(75);
    // It is named by the words that it stored, if it stored any. A WriteLock stores no words.
    let node = scratch.wait_queue(1).remove(0);
    let (data, _) = scratch.client().get(&format!("{LOCK}/{node}")).expect("the peer holds");
    let words = String::from_utf8(data).ok().filter(|words| !words.is_empty() && recipe != Recipe::WriteLock);
    assert!(only_line(&output).ends_with(&format!(" held by {}", words.unwrap_or(node))), "{output}");
    let mut waiter = queue(&scratch, recipe, "waiter", 2);
    peer.release();
    waiter.wait_stdout("ready");
    peer.expect_busy();
    silent(finish(&mut waiter));
    peer.acquire();
    peer.release();
    scratch.log().expect_no_overlap();
}

/// Waiters are served in the order in which they came, whatever client they are.
fn keeps_the_order(recipe: Recipe) {
    let scratch = Scratch::new();
    let mut holder = hold(&scratch, recipe);
    let mut peers = [Peer::start(&scratch, recipe), Peer::start(&scratch, recipe)];
    let mut jobs = Vec::new();
    for (n, peer) in peers.iter_mut().enumerate() {
        peer.queue();
        scratch.wait_queue(2 * n + 2);
        jobs.push(queue(&scratch, recipe, &format!("job-{n}"), 2 * n + 3));
    }
    silent(finish(&mut holder));
    for (n, (peer, job)) in peers.iter_mut().zip(&mut jobs).enumerate() {
        peer.expect_acquired();
        assert_eq!(scratch.client().children(LOCK).len(), 4 - 2 * n, "{:?}", scratch.client().children(LOCK));
        peer.release();
        job.wait_stdout("ready");
        assert_eq!(scratch.client().children(LOCK).len(), 3 - 2 * n, "{:?}", scratch.client().children(LOCK));
        silent(finish(job));
    }
    scratch.log().expect_no_overlap();
}

/// A peer that is killed holds the lock until its session expires; one that waited is not waited for.
fn outlives_a_killed_peer(recipe: Recipe) {
    let scratch = Scratch::new();
    let [mut first, mut second] = [(); 2].map(|()| Peer::with_session_timeout(&scratch, recipe, SHORT));
    first.acquire();
    second.queue();
    scratch.wait_queue(2);
    let mut waiter = queue(&scratch, recipe, "waiter", 3);
    second.kill();
    // The waiter's predecessor goes, and the holder is still there.
    scratch.wait_queue(2);
    first.kill();
    waiter.wait_stdout("ready");
    assert_eq!(scratch.client().children(LOCK).len(), 1);
    silent(finish(&mut waiter));
    scratch.log().expect_no_overlap();
}

/// When an administrator ends the session of the one, the other starts. (The one learns of it too late to be fenced.)
fn outlives_an_expired_session(recipe: Recipe) {
    let scratch = Scratch::new();
    let server = direct();
    let mut peer = Peer::start(&scratch, recipe);
    peer.acquire();
    let mut waiter = queue(&scratch, recipe, "waiter", 2);
    assert_eq!(scratch.log().runs().len(), 1, "the waiter waits");
    expire_session(&server, peer.session());
    waiter.wait_stdout("ready");

    let mut other = Peer::start(&scratch, recipe);
    other.queue();
    let nodes = scratch.wait_queue(2);
    let (_, stat) = scratch.client().get(&format!("{LOCK}/{}", nodes[0])).expect("the holder's node");
    expire_session(&server, stat.owner);
    other.expect_acquired();
    waiter.wait().expect_code(76);
    other.release();
}

/// When zklock is killed, its command goes first and its node then, at once: the peer need not wait for an expiry.
fn killed_zklock_lets_the_peer_in(recipe: Recipe) {
    let scratch = Scratch::new();
    let mut peer = Peer::start(&scratch, recipe);
    let mut holder = hold(&scratch, recipe);
    let command = holder.command();
    peer.queue();
    scratch.wait_queue(2);
    holder.signal(Signal::SIGKILL);
    peer.expect_acquired();
    assert!(process::look(command).is_none_or(|process| process.state == 'Z'));
    holder.wait().expect_signal(Signal::SIGKILL);
    holder.wait_until_nothing_is_left();
    peer.release();
}

fn shares_with_a_crowd(recipe: Recipe) {
    crowd(recipe, 15, 75);
}

/// Contenders of zklock and contenders of one peer, with as many turns for each.
fn crowd(recipe: Recipe, size: usize, turns: usize) {
    let scratch = Scratch::new();
    let mut peer = Peer::start(&scratch, recipe);
    peer.crowd(size, turns);
    let mut shells: Vec<Running> =
        (0..size).map(|_| take_turns(&scratch, beside(&scratch, recipe), "zklock", turns / size)).collect();
    for shell in &mut shells {
        shell.wait_at_most(CROWD_LIMIT).expect_code(0);
    }
    peer.expect_crowd_done();
    let log = scratch.log().expect_no_overlap();
    assert_eq!((log.count("zklock"), log.count(recipe.word())), (turns, turns));
}

/// A shell that calls zklock a number of times, with a command that has this name in the log.
fn take_turns(scratch: &Scratch, zklock: Zklock, name: &str, turns: usize) -> Running {
    let script = format!("for turn in $(seq {turns}); do \"$@\" || exit; done");
    let log = scratch.file("log").into_os_string();
    zklock.run_by(["sh", "-c", &script, "sh"]).child(["--name", name, "--log"]).arg(log).spawn()
}

of_peers! {
    [excludes_both_ways keeps_the_order outlives_a_killed_peer outlives_an_expired_session killed_zklock_lets_the_peer_in
        shares_with_a_crowd]
    curator_mutex Recipe::CuratorMutex;
    write_lock Recipe::WriteLock;
    curator_writer Recipe::CuratorWriter;
    kazoo_lock_beside_curator Recipe::KazooLockBesideCurator;
    kazoo_lock Recipe::KazooLock;
    kazoo_writer Recipe::KazooWriter;
}
