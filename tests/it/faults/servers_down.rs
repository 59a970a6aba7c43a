//! All servers are down or frozen for longer than the lease: the command is dead before the next holder starts.

use nix::sys::signal::Signal;

use crate::harness::ensemble::Ensemble;
use crate::harness::fault::{Fault, KEEPER_DIED, SILENCE};
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::running::finish;
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::server::{Data, Server};
use crate::harness::times::LEASE;

#[test]
fn server_frozen() {
    let server = Server::start();
    let mut fault = Fault::new("server: frozen past T", Scratch::on(server.chroot()).with_lock(), &server.address());
    server.freeze();
    fault.strikes();
    fault.command_dead(LEASE);
    fault.lost(SILENCE);
    server.thaw();
    // No tighter limit: the next start depends on how long the test left the server frozen.
    fault.next_starts(poll::PATIENCE);
    fault.end("76");
}

#[test]
fn server_killed() {
    let server = Server::start();
    let scratch = Scratch::on(server.chroot()).with_lock();
    let (mut holder, mut next) = scratch.holder_and_next(&server.address(), &[]);
    server.kill();
    let killed = Moment::now();
    let output = holder.wait().expect_code(76);
    scratch.last_alive("holder").expect_within(LEASE, killed, "the command is dead");
    assert!(output.stderr().starts_with(&format!("zklock: lost the lock {LOCK}: ZooKeeper has not answered ")));
    server.restart(Data::Kept);
    finish(&mut next);
    scratch.expect_tidy(&["holder", "next"]);
}

#[test]
fn quorum_lost() {
    let ensemble = Ensemble::start();
    let scratch = Scratch::on(ensemble.chroot()).with_lock();
    let mut fault = Fault::new("quorum: lost past the lease", scratch, &ensemble.addresses());
    let gone = &ensemble.servers()[..2];
    gone.iter().for_each(Server::kill);
    fault.strikes();
    fault.command_dead(LEASE);
    fault.lost(SILENCE);
    gone.iter().for_each(|server| server.restart_in_background(Data::Kept));
    // How long there was none is for the test to decide.
    fault.next_starts(poll::PATIENCE);
    fault.end("76");
}

#[test]
fn server_frozen_and_keeper_stopped() {
    let server = Server::start();
    let mut fault =
        Fault::new("keeper: STOP, server: frozen", Scratch::on(server.chroot()).with_lock(), &server.address());
    fault.strike(Signal::SIGSTOP, &[fault.keeper]);
    server.freeze();
    fault.command_dead(LEASE);
    fault.lost(SILENCE);
    server.thaw();
    fault.next_starts(poll::PATIENCE);
    fault.end("76");
}

#[test]
fn server_frozen_and_keeper_killed() {
    let server = Server::start();
    let mut fault =
        Fault::new("server: frozen, keeper: KILL", Scratch::on(server.chroot()).with_lock(), &server.address());
    server.freeze();
    fault.strike(Signal::SIGKILL, &[fault.keeper]);
    fault.command_dead(LEASE);
    fault.lost(KEEPER_DIED);
    server.thaw();
    fault.next_starts(poll::PATIENCE);
    fault.end("76");
}
