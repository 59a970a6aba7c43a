//! The network is cut for longer than the lease: the command is dead before the next holder starts.

use nix::sys::signal::Signal;

use crate::harness::ensemble::Ensemble;
use crate::harness::fault::{EXPIRY, Fault, SILENCE};
use crate::harness::process;
use crate::harness::proxy::Flow;
use crate::harness::scratch::Scratch;
use crate::harness::server::{Server, Settings};
use crate::harness::times::LEASE;

#[test]
fn network_cut() {
    let (mut fault, proxy) = Fault::proxied();
    proxy.hold();
    fault.strikes();
    fault.expect_lost(LEASE, EXPIRY, SILENCE);
}

#[test]
fn replies_cut() {
    let (mut fault, proxy) = Fault::proxied();
    proxy.flows(Flow::Pass, Flow::Hold);
    fault.strikes();
    // The servers heard from the session for longer.
    fault.expect_lost(LEASE, LEASE + EXPIRY, SILENCE);
}

#[test]
fn requests_cut() {
    let (mut fault, proxy) = Fault::proxied();
    proxy.flows(Flow::Hold, Flow::Pass);
    fault.strikes();
    fault.expect_lost(LEASE, EXPIRY, SILENCE);
}

/// It answers pings until it notices for itself, after syncLimit.
#[test]
fn our_server_cut_from_the_leader() {
    lose_follower(|ensemble, follower, leader| {
        ensemble.link(follower, leader).hold();
    });
}

#[track_caller]
fn lose_follower(hurt: impl FnOnce(&Ensemble, &Server, &Server)) {
    // The follower itself is to notice when all is over.
    let ensemble = Settings::default().line("syncLimit=100").proxied().ensemble();
    let (leader, [follower, _]) = (ensemble.leader(), ensemble.followers());
    let scratch = Scratch::on(ensemble.chroot().by(leader.address())).with_lock();
    let mut fault = Fault::new(scratch, &follower.address());
    hurt(&ensemble, follower, leader);
    fault.strikes();
    fault.expect_lost(LEASE, EXPIRY, SILENCE);
}

#[test]
fn our_server_frozen() {
    lose_follower(|_, follower, _| follower.freeze());
}

#[test]
fn network_cut_and_supervisor_stopped() {
    let (mut fault, proxy) = Fault::proxied();
    fault.strike(Signal::SIGSTOP, &[fault.supervisor]);
    proxy.hold();
    fault.strikes();
    fault.command_dead(LEASE);
    fault.next_starts(EXPIRY);
    process::send(fault.supervisor, Signal::SIGCONT);
    fault.holder.expect_lost("ZooKeeper has not answered in time");
    fault.end();
}
