//! Other recipes of Curator and kazoo that put children under a path: those that are contenders by another name, and
//! those with which no other client can take turns.

use nix::sys::signal::Signal;

use super::{beside, excludes_both_ways, queue};
use crate::harness::client::Kind;
use crate::harness::peers::{Peer, Recipe};
use crate::harness::running::{Output, finish, only_line, silent};
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::terminal::Terminal;

#[test]
fn a_leader_selector_is_a_mutex() {
    excludes_both_ways(Recipe::CuratorLeaderSelector);
}

#[test]
fn a_multi_lock_is_several_mutexes() {
    excludes_both_ways(Recipe::CuratorMultiLock);
}

#[test]
fn an_election_is_a_lock_of_kazoo() {
    excludes_both_ways(Recipe::KazooElection);
}

/// Panics unless `output` is a refusal that names the recipe by these words.
#[track_caller]
fn expect_refused(output: &Output, words: &str) {
    let line = only_line(output);
    let expected = format!("{LOCK} is used by {words}");
    assert!(line.starts_with(&expected) && line.ends_with(": use another path"), "{output}");
}

/// The other was there first: nothing starts, and nothing of ours stays.
fn is_refused_when_it_came_first(recipe: Recipe, words: &str) {
    if recipe.needs_newer_servers() {
        return;
    }
    let scratch = Scratch::new();
    let mut peer = Peer::start(&scratch, recipe);
    peer.acquire();
    let before = scratch.client().children(LOCK);
    for options in [&[][..], &["-n"], &["--quiet"], &["--dialect", "kazoo"]] {
        expect_refused(&scratch.zklock().args(options).arg(LOCK).bare_child().run().expect_code(78), words);
    }
    assert_eq!(scratch.client().children(LOCK), before);
    peer.release();
}

/// The other came later, and takes no notice of us. A holder goes on; a waiter is refused with the next list;
/// and so is any contender that comes later still.
fn is_refused_when_it_came_later(recipe: Recipe, words: &str) {
    if recipe.needs_newer_servers() {
        return;
    }
    let scratch = Scratch::new();
    let mut holder = scratch.hold();
    // With a beat, it would list the queue and be refused itself.
    let between = beside(&scratch, recipe).args(["--session-timeout", "2m"]).child(scratch.logged("between"));
    let mut between = between.spawn();
    scratch.wait_queue(2);
    let mut waiter = queue(&scratch, recipe, "waiter", 3);
    let mut peer = Peer::start(&scratch, recipe);
    peer.acquire();
    expect_refused(&scratch.zklock().arg(LOCK).bare_child().run().expect_code(78), words);

    between.signal(Signal::SIGTERM);
    between.wait().expect_signal(Signal::SIGTERM);
    expect_refused(&waiter.wait().expect_code(78), words);
    silent(finish(&mut holder));
    peer.release();
}

/// Runs the tests above for a recipe.
macro_rules! refused {
    ($peer:ident, $recipe:expr, $words:expr) => {
        mod $peer {
            use super::*;

            #[test]
            fn is_refused_when_it_came_first() {
                super::is_refused_when_it_came_first($recipe, $words);
            }

            #[test]
            fn is_refused_when_it_came_later() {
                super::is_refused_when_it_came_later($recipe, $words);
            }
        }
    };
}

const SEMAPHORE: &str = "Curator's InterProcessSemaphoreMutex or InterProcessSemaphoreV2 (children locks and leases)";

refused!(curator_semaphore_mutex, Recipe::CuratorSemaphoreMutex, SEMAPHORE);
refused!(curator_semaphore, Recipe::CuratorSemaphore, SEMAPHORE);
refused!(curator_leader_latch, Recipe::CuratorLeaderLatch, "Curator's LeaderLatch");
refused!(kazoo_semaphore, Recipe::KazooSemaphore, "kazoo's Semaphore");
refused!(kazoo_lease, Recipe::KazooLease, "kazoo's NonBlockingLease");

/// A waiter at a terminal lists the queue for its user, and sees it there although no event wakes it.
#[test]
fn waiter_at_a_terminal_is_refused() {
    if Recipe::CuratorSemaphoreMutex.needs_newer_servers() {
        return;
    }
    let scratch = Scratch::new();
    let client = scratch.client();
    client.create(LOCK, b"", Kind::Persistent).unwrap();
    let holder = client.create(&format!("{LOCK}/lock-"), b"", Kind::EphemeralSequential).unwrap();
    let terminal = Terminal::new(120);
    let mut waiter = terminal.spawn(scratch.zklock().arg(LOCK).bare_child());
    terminal.wait("the waiting line", |lines| lines.iter().any(|line| line.contains("2nd of 2")));
    let mut peer = Peer::start(&scratch, Recipe::CuratorSemaphoreMutex);
    peer.acquire();
    waiter.wait().expect_code(78);
    terminal.wait("the refusal", |lines| lines.iter().any(|line| line.contains("InterProcessSemaphoreMutex")));
    client.delete(&holder).unwrap();
    peer.release();
}

/// The one of the names without the other, which may be a lock of ours.
#[test]
fn lock_below_named_locks_or_leases() {
    let scratch = Scratch::new();
    scratch.client().create(LOCK, b"", Kind::Persistent).unwrap();
    for name in ["locks", "leases"] {
        let below = format!("{LOCK}/{name}");
        scratch.client().create(&below, b"", Kind::Persistent).unwrap();
        silent(scratch.zklock().args(["-n", LOCK, "true"]).run().expect_code(0));
        scratch.delete(&below);
    }
}
