//! `--dialect single` beside a program that takes the lock by one ephemeral node, named and filled as zk-flock does it.

use nix::sys::signal::Signal;

use super::{SHORT, beside, crowd, hold};
use crate::harness::client::expire_session;
use crate::harness::peers::{Peer, Recipe};
use crate::harness::poll;
use crate::harness::process;
use crate::harness::running::{Running, finish, only_line, silent};
use crate::harness::scratch::{Scratch, direct};

const NODE: &str = "/lock/lock";

/// Waits until so many sessions watch the node. A zklock that holds watches it, and the peer does not.
#[track_caller]
fn wait_watched(scratch: &Scratch, count: usize) {
    poll::until(format_args!("{count} watch {NODE}"), || (scratch.watchers().get(NODE) == Some(&count)).then_some(()));
}

/// A zklock that waits for a peer.
#[track_caller]
fn wait(scratch: &Scratch) -> Running {
    let waiter = beside(scratch, Recipe::KazooSingle).child(scratch.logged("waiter")).spawn();
    wait_watched(scratch, 1);
    waiter
}

/// Each waits for the other, and starts as soon as the other has gone.
#[test]
fn excludes_both_ways() {
    let scratch = Scratch::new();
    let mut peer = Peer::start(&scratch, Recipe::KazooSingle);
    let mut holder = hold(&scratch, Recipe::KazooSingle);
    wait_watched(&scratch, 1);
    peer.queue();
    wait_watched(&scratch, 2);
    assert_eq!(scratch.log().order(), ["holder"]);
    silent(finish(&mut holder));
    peer.expect_acquired();

    let output = beside(&scratch, Recipe::KazooSingle).arg("-n").bare_child().run().expect_code(75);
    let (data, _) = scratch.client().get(NODE).expect("the peer holds");
    let words = String::from_utf8(data).expect("a host and a UUID");
    assert_eq!(only_line(&output), format!("/lock is not free: held by {words}"));
    let mut waiter = wait(&scratch);
    peer.release();
    waiter.wait_stdout("ready");
    peer.expect_busy();
    silent(finish(&mut waiter));
    peer.acquire();
    peer.release();
    assert_eq!(scratch.log().expect_no_overlap().order(), ["holder", "single", "waiter", "single"]);
}

#[test]
fn outlives_a_killed_peer() {
    let scratch = Scratch::new();
    let mut peer = Peer::with_session_timeout(&scratch, Recipe::KazooSingle, SHORT);
    peer.acquire();
    let mut waiter = wait(&scratch);
    peer.kill();
    waiter.wait_stdout("ready");
    silent(finish(&mut waiter));
    scratch.log().expect_no_overlap();
}

/// When zklock is killed, or has lost its session, the peer starts.
#[test]
fn lets_the_peer_in() {
    let scratch = Scratch::new();
    let mut peer = Peer::start(&scratch, Recipe::KazooSingle);
    for is_killed in [true, false] {
        let mut holder = hold(&scratch, Recipe::KazooSingle);
        let command = holder.command();
        peer.queue();
        wait_watched(&scratch, 2);
        if is_killed {
            holder.signal(Signal::SIGKILL);
            peer.expect_acquired();
            assert!(process::look(command).is_none_or(|process| process.state == 'Z'));
            holder.wait().expect_signal(Signal::SIGKILL);
            holder.wait_until_nothing_is_left();
        } else {
            expire_session(&direct(), scratch.only_contender().stat.owner);
            peer.expect_acquired();
            holder.wait().expect_code(76);
        }
        peer.release();
    }
}

#[test]
fn shares_with_a_crowd() {
    crowd(Recipe::KazooSingle, 5, 50);
}
