//! All servers are down or frozen for longer than the lease: the command is dead before the next holder starts.

use crate::harness::ensemble::Ensemble;
use crate::harness::fault::{Fault, SILENCE};
use crate::harness::poll;
use crate::harness::scratch::Scratch;
use crate::harness::server::{Data, Server};
use crate::harness::times::LEASE;

#[test]
fn server_frozen() {
    let server = Server::start();
    let mut fault = Fault::new(Scratch::on(server.chroot()).with_lock(), &server.address());
    server.freeze();
    fault.strikes();
    fault.command_dead(LEASE);
    fault.holder.expect_lost(SILENCE);
    server.thaw();
    // No tighter limit: the next start depends on how long the test left the server frozen.
    fault.next_starts(poll::PATIENCE);
    fault.end();
}

#[test]
fn server_killed() {
    let server = Server::start();
    let mut fault = Fault::new(Scratch::on(server.chroot()).with_lock(), &server.address());
    server.kill();
    fault.strikes();
    fault.command_dead(LEASE);
    fault.holder.expect_lost(SILENCE);
    server.restart(Data::Kept);
    fault.next_starts(poll::PATIENCE);
    fault.end();
}

#[test]
fn quorum_lost() {
    let ensemble = Ensemble::start();
    let scratch = Scratch::on(ensemble.chroot()).with_lock();
    let mut fault = Fault::new(scratch, &ensemble.addresses());
    let gone = &ensemble.servers()[..2];
    gone.iter().for_each(Server::kill);
    fault.strikes();
    fault.command_dead(LEASE);
    fault.holder.expect_lost(SILENCE);
    gone.iter().for_each(|server| server.restart_in_background(Data::Kept));
    // How long there was none is for the test to decide.
    fault.next_starts(poll::PATIENCE);
    fault.end();
}
