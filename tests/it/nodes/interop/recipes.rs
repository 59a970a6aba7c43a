//! Other recipes of Curator and kazoo that put children under a path: those that are contenders by another name, and
//! those with which no other client can take turns.

use nix::sys::signal::Signal;

use super::{beside, excludes_both_ways, queue};
use crate::harness::peers::{Peer, Recipe};
use crate::harness::running::{Output, finish, only_line, silent};
use crate::harness::scratch::{LOCK, Scratch};

of_peers! {
    [excludes_both_ways]
    curator_leader_selector Recipe::CuratorLeaderSelector;
    curator_multi_lock Recipe::CuratorMultiLock;
    kazoo_election Recipe::KazooElection;
}

/// Panics unless `output` is a refusal that names the recipe.
#[track_caller]
fn expect_refused(output: &Output, recipe: Recipe) {
    let words = match recipe {
        Recipe::CuratorLeaderLatch => "Curator's LeaderLatch",
        Recipe::KazooSemaphore => "kazoo's Semaphore",
        Recipe::KazooLease => "kazoo's NonBlockingLease",
        _ => "Curator's InterProcessSemaphoreMutex or InterProcessSemaphoreV2 (children locks and leases)",
    };
    let line = only_line(output);
    let expected = format!("{LOCK} is used by {words}");
    assert!(line.starts_with(&expected) && line.ends_with(": use another path"), "{output}");
}

/// The other was there first: nothing starts, and nothing of ours stays.
fn is_refused_when_it_came_first(recipe: Recipe) {
    let scratch = Scratch::new();
    let mut peer = Peer::start(&scratch, recipe);
    peer.acquire();
    let before = scratch.client().children(LOCK);
    for options in [&[][..], &["-n"], &["--quiet"], &["--dialect", "kazoo"]] {
        expect_refused(&scratch.zklock().args(options).arg(LOCK).bare_child().run().expect_code(78), recipe);
    }
    assert_eq!(scratch.client().children(LOCK), before);
    peer.release();
}

/// The other came later, and takes no notice of us. A holder goes on; a waiter is refused with the next list;
/// and so is any contender that comes later still.
fn is_refused_when_it_came_later(recipe: Recipe) {
    let scratch = Scratch::new();
    // With a beat, the holder would list the queue and warn; the next in line would list it and be refused itself.
    let long = ["--session-timeout", "2m"];
    let mut holder = scratch.zklock().args(long).arg(LOCK).child(scratch.logged("holder")).spawn();
    holder.wait_stdout("ready");
    let mut between = beside(&scratch, recipe).args(long).child(scratch.logged("between")).spawn();
    scratch.wait_queue(2);
    let mut waiter = queue(&scratch, recipe, "waiter", 3);
    let mut peer = Peer::start(&scratch, recipe);
    peer.acquire();
    expect_refused(&scratch.zklock().arg(LOCK).bare_child().run().expect_code(78), recipe);

    between.signal(Signal::SIGTERM);
    between.wait().expect_signal(Signal::SIGTERM);
    expect_refused(&waiter.wait().expect_code(78), recipe);
    silent(finish(&mut holder));
    peer.release();
}

of_peers! {
    [is_refused_when_it_came_first is_refused_when_it_came_later]
    curator_semaphore_mutex Recipe::CuratorSemaphoreMutex;
    curator_semaphore Recipe::CuratorSemaphore;
    curator_leader_latch Recipe::CuratorLeaderLatch;
    kazoo_semaphore Recipe::KazooSemaphore;
    kazoo_lease Recipe::KazooLease;
}
