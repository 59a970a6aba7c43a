//! What can die or freeze, one by one and in pairs. Each test is a row of a table that says how long the command and
//! its lock outlived the fault:
//!
//!     cargo test --test it faults:: -- --nocapture | grep '^|'

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::harness::client::{self, Client, Kind};
use crate::harness::ensemble::Ensemble;
use crate::harness::fault::{DELETED, EXPIRY, Fault, KEEPER_DIED, SILENCE, UNDISTURBED};
use crate::harness::poll;
use crate::harness::process;
use crate::harness::proxy::{Flow, Proxy};
use crate::harness::running::finish;
use crate::harness::scratch::{GRACE, Scratch, direct};
use crate::harness::server::{Data, Server, Settings};
use crate::harness::times::{AT_ONCE, LEASE, SHORT_SESSION};

// One process.

#[test]
fn supervisor_killed() {
    let mut fault = Fault::minute("supervisor: KILL");
    fault.strike(Signal::SIGKILL, &[fault.supervisor]);
    fault.expect_killed(AT_ONCE);
}

#[test]
fn keeper_killed() {
    let mut fault = Fault::shared("keeper: KILL");
    fault.strike(Signal::SIGKILL, &[fault.keeper]);
    fault.expect_lost(LEASE, EXPIRY, KEEPER_DIED);
}

#[test]
fn command_killed() {
    let mut fault = Fault::minute("command: KILL");
    fault.strike(Signal::SIGKILL, &[fault.command]);
    fault.expect_killed(AT_ONCE);
}

#[test]
fn supervisor_stopped() {
    let mut fault = Fault::with(
        "supervisor: STOP past SHORT_SESSION, CONT",
        Scratch::new().with_lock(),
        &direct(),
        &[],
        &["--exit-on", "TERM"],
    );
    fault.strike(Signal::SIGSTOP, &[fault.supervisor]);
    fault.scratch.wait_alive_at("holder", fault.since.after(SHORT_SESSION + SHORT_SESSION / 4));
    process::send(fault.supervisor, Signal::SIGCONT);
    // It passes on what it was continued by.
    fault.holder.wait_stdout("signal CONT");
    let first = fault.scratch.contenders().swap_remove(0);
    assert_eq!(first.path, fault.holder.variable("ZKLOCK_NODE"));
    fault.row(UNDISTURBED);
    finish(&mut fault.holder);
    finish(&mut fault.next);
    fault.scratch.expect_tidy(&["holder", "next"]);
}

#[test]
fn keeper_stopped() {
    let mut fault = Fault::shared("keeper: STOP");
    fault.strike(Signal::SIGSTOP, &[fault.keeper]);
    fault.expect_lost(LEASE, EXPIRY, SILENCE);
}

/// A command that somebody has stopped is killed no later than another.
#[test]
fn command_stopped_and_the_network_cut() {
    let (mut fault, proxy) = Fault::proxied("command: STOP, network: cut");
    fault.strike(Signal::SIGSTOP, &[fault.command]);
    proxy.hold();
    fault.strikes();
    fault.expect_lost(LEASE, EXPIRY, SILENCE);
}

// Two processes.

/// The session ends with nobody to close it, for the keeper could.
#[test]
fn supervisor_and_keeper_killed() {
    let mut fault = Fault::shared("supervisor and keeper: KILL");
    // Neither sees the other one die.
    fault.strike(Signal::SIGSTOP, &[fault.supervisor, fault.keeper]);
    fault.strike(Signal::SIGKILL, &[fault.supervisor, fault.keeper]);
    fault.expect_killed(EXPIRY);
}

/// The kernel kills the command for us, but not what the command has started (PR_SET_PDEATHSIG(2const)).
#[test]
fn supervisor_and_keeper_killed_nobody_is_left_to_kill_the_commands_children() {
    let scratch = Scratch::new().with_lock();
    let tree = ["--wait", "--spawn", "--", "--name", "grandchild", "--wait"];
    let what = "supervisor and keeper: KILL, command with children";
    let mut fault = Fault::with(what, scratch, &direct(), &GRACE, &tree);
    // It may have been quicker than the command itself.
    poll::until("the grandchild", || fault.holder.stdout().contains("grandchild ready").then_some(()));
    fault.strike(Signal::SIGSTOP, &[fault.supervisor, fault.keeper]);
    fault.strike(Signal::SIGKILL, &[fault.supervisor, fault.keeper]);
    fault.command_dead(AT_ONCE);
    fault.holder.wait().expect_signal(Signal::SIGKILL);
    fault.next_starts(EXPIRY);
    let [left] = <[_; 1]>::try_from(fault.holder.processes()).expect("the grandchild and nobody else");
    process::send(left.pid, Signal::SIGKILL);
    fault.end("KILL, children live on");
}

/// Nobody is left to kill the command before it is too late. It is killed as soon as one of the two goes on.
#[test]
fn supervisor_and_keeper_stopped_and_the_command_not() {
    let rows = [
        "supervisor and keeper: STOP past SHORT_SESSION, supervisor: CONT",
        "supervisor and keeper: STOP past SHORT_SESSION, keeper: CONT",
    ];
    for (number, what) in rows.into_iter().enumerate() {
        let mut fault = Fault::shared(what);
        let both = [fault.supervisor, fault.keeper];
        fault.strike(Signal::SIGSTOP, &both);
        fault.next_starts(EXPIRY);
        fault.strike(Signal::SIGCONT, &both[number..=number]);
        fault.command_dead(AT_ONCE);
        process::send(fault.supervisor, Signal::SIGCONT);
        fault.lost("");
        process::send(fault.keeper, Signal::SIGCONT);
        fault.end_with_overlap("76");
    }
}

#[test]
fn supervisor_killed_and_the_command_stopped() {
    let mut fault = Fault::minute("command: STOP, supervisor: KILL");
    fault.strike(Signal::SIGSTOP, &[fault.command]);
    fault.strike(Signal::SIGKILL, &[fault.supervisor]);
    fault.expect_killed(AT_ONCE);
}

#[test]
fn supervisor_killed_and_the_keeper_stopped() {
    let mut fault = Fault::shared("keeper: STOP, supervisor: KILL");
    fault.strike(Signal::SIGSTOP, &[fault.keeper]);
    fault.strike(Signal::SIGKILL, &[fault.supervisor]);
    fault.command_dead(AT_ONCE);
    fault.holder.wait().expect_signal(Signal::SIGKILL);
    fault.next_starts(EXPIRY);
    // It finds its session over, and itself with nothing to do.
    process::send(fault.keeper, Signal::SIGCONT);
    fault.end("KILL");
}

#[test]
fn keeper_killed_and_the_supervisor_stopped_for_a_moment() {
    let mut fault = Fault::shared("supervisor: STOP, keeper: KILL, supervisor: CONT");
    fault.strike(Signal::SIGSTOP, &[fault.supervisor]);
    fault.strike(Signal::SIGKILL, &[fault.keeper]);
    process::wait_state(fault.keeper, &['Z']);
    process::send(fault.supervisor, Signal::SIGCONT);
    fault.expect_lost(LEASE, EXPIRY, KEEPER_DIED);
}

// Servers and the network.

#[test]
fn server_frozen() {
    let server = Server::start();
    let mut fault = Fault::new("server: frozen past T", Scratch::on(server.chroot()).with_lock(), &server.address());
    server.freeze();
    fault.strikes();
    fault.command_dead(LEASE);
    fault.lost(SILENCE);
    server.thaw();
    // How long it was frozen is for the test to decide.
    fault.next_starts(poll::PATIENCE);
    fault.end("76");
}

#[test]
fn network_cut() {
    let (mut fault, proxy) = Fault::proxied("network: cut");
    proxy.hold();
    fault.strikes();
    fault.expect_lost(LEASE, EXPIRY, SILENCE);
}

#[test]
fn network_cut_for_the_replies_only() {
    let (mut fault, proxy) = Fault::proxied("network: cut for replies only");
    proxy.flows(Flow::Pass, Flow::Hold);
    fault.strikes();
    // The servers heard from the session for longer.
    fault.expect_lost(LEASE, LEASE + EXPIRY, SILENCE);
}

#[test]
fn network_cut_for_the_requests_only() {
    let (mut fault, proxy) = Fault::proxied("network: cut for requests only");
    proxy.flows(Flow::Hold, Flow::Pass);
    fault.strikes();
    fault.expect_lost(LEASE, EXPIRY, SILENCE);
}

#[test]
fn network_reset() {
    let (scratch, proxy) = Scratch::proxied();
    let mut fault = Fault::lasting("network: reset", scratch, &proxy.address());
    proxy.reset();
    fault.holder.wait_stderr("connection to ZooKeeper restored");
    fault.expect_undisturbed();
}

#[test]
fn network_cut_for_less_than_the_lease() {
    let (scratch, proxy) = Scratch::proxied();
    let mut fault = Fault::lasting("network: cut until it is noticed", scratch, &proxy.address());
    proxy.hold();
    fault.holder.wait_stderr("connection to ZooKeeper lost");
    proxy.pass();
    fault.holder.wait_stderr("connection to ZooKeeper restored");
    fault.expect_undisturbed();
}

#[test]
fn server_restarted_with_its_data() {
    let server = Server::start();
    let mut fault =
        Fault::enduring("server: killed, restarted", Scratch::on(server.chroot()).with_lock(), &server.address());
    server.restart(Data::Kept);
    fault.holder.wait_stderr("connection to ZooKeeper restored");
    fault.expect_undisturbed();
}

#[test]
fn server_lost_its_data() {
    server_loses_its_data("server: its data lost", Proxy::accept);
}

/// The next one learns of it, and the holder does not.
#[test]
fn server_lost_its_data_and_the_network_cut() {
    server_loses_its_data("server: its data lost; network: cut", |_| ());
}

/// The next one learns of it by a way of its own, and starts when no lease can last any longer, although it is the
/// first that this server knows.
#[track_caller]
fn server_loses_its_data(what: &'static str, then: impl FnOnce(&Proxy)) {
    // The one without the data runs already: to start it may take longer than a session lasts.
    let servers = [(); 2].map(|()| Server::start());
    let scratch = servers[0].chroot();
    Client::connect(&servers[1].address()).create(scratch.path(), b"", Kind::Persistent).unwrap();
    let [all, holders] = [(); 2].map(|()| servers.each_ref().map(|server| Proxy::zookeeper(&server.address())));
    let addresses = |[old, new]: &[Proxy; 2]| format!("{},{}", old.address(), new.address());
    [&all, &holders].into_iter().for_each(|[_, new]| new.refuse());
    let scratch = Scratch::on(scratch.by(addresses(&all))).with_lock();
    let mut holder = scratch.start(&addresses(&holders), "holder", &[], &["--wait"]);
    holder.wait_stdout("holder ready");
    let next = scratch.start(&addresses(&all), "next", &[], &["--exit-on", "TERM"]);
    scratch.wait_queue(2);
    let mut fault = Fault::of(what, scratch, holder, next);
    [&all, &holders].into_iter().for_each(|[old, _]| old.refuse());
    fault.strikes();
    all[1].accept();
    then(&holders[1]);
    fault.next.wait_stderr("the session ended before its time; queueing again");
    fault.command_dead(LEASE);
    // That the session is over, or that no server answers: whatever it learns first.
    fault.lost("");
    fault.next_starts(poll::PATIENCE);
    assert!(fault.next_began >= SHORT_SESSION, "started after {:?}", fault.next_began);
    fault.end("76");
}

#[test]
fn leader_killed() {
    let ensemble = Ensemble::start();
    let mut fault =
        Fault::enduring("leader: killed", Scratch::on(ensemble.chroot()).with_lock(), &ensemble.addresses());
    ensemble.leader().kill();
    fault.holder.wait_stderr("connection to ZooKeeper restored");
    fault.expect_undisturbed();
}

#[test]
fn leader_killed_and_the_supervisor_stopped() {
    let ensemble = Ensemble::start();
    let scratch = Scratch::on(ensemble.chroot()).with_lock();
    let mut fault =
        Fault::enduring("supervisor: STOP, leader: killed, supervisor: CONT", scratch, &ensemble.addresses());
    fault.strike(Signal::SIGSTOP, &[fault.supervisor]);
    ensemble.leader().kill();
    // It is the keeper that says so.
    fault.holder.wait_stderr("connection to ZooKeeper restored");
    process::send(fault.supervisor, Signal::SIGCONT);
    fault.holder.wait_stdout("signal CONT");
    fault.expect_undisturbed();
}

#[test]
fn quorum_lost_for_less_than_the_lease() {
    let ensemble = Ensemble::start();
    let mut fault = Fault::enduring(
        "quorum: lost until it is noticed",
        Scratch::on(ensemble.chroot()).with_lock(),
        &ensemble.addresses(),
    );
    let gone = &ensemble.servers()[..2];
    gone.iter().for_each(Server::kill);
    fault.holder.wait_stderr("connection to ZooKeeper lost");
    gone.iter().for_each(|server| server.restart_in_background(Data::Kept));
    fault.holder.wait_stderr("connection to ZooKeeper restored");
    fault.expect_undisturbed();
}

#[test]
fn quorum_lost_for_longer_than_the_session() {
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

/// It answers pings until it notices for itself, after syncLimit.
#[test]
fn our_server_cut_from_the_leader() {
    lose_follower("our follower: cut from the leader, not from us", |ensemble, follower, leader| {
        ensemble.link(follower, leader).hold();
    });
}

#[test]
fn our_server_frozen_and_the_others_not() {
    lose_follower("our follower: frozen", |_, follower, _| follower.freeze());
}

#[track_caller]
fn lose_follower(what: &'static str, hurt: impl FnOnce(&Ensemble, &Server, &Server)) {
    // The follower itself is to notice when all is over.
    let ensemble = Settings::default().line("syncLimit=100").proxied().ensemble();
    let (leader, [follower, _]) = (ensemble.leader(), ensemble.followers());
    let scratch = Scratch::on(ensemble.chroot().by(leader.address())).with_lock();
    let mut fault = Fault::new(what, scratch, &follower.address());
    hurt(&ensemble, follower, leader);
    fault.strikes();
    fault.expect_lost(LEASE, EXPIRY, SILENCE);
}

// A process and the servers.

#[test]
fn keeper_stopped_and_the_server_frozen() {
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
fn keeper_killed_and_the_server_frozen() {
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

/// The keeper cannot say good-bye, and the session ends by itself.
#[test]
fn supervisor_killed_and_the_network_cut() {
    let (mut fault, proxy) = Fault::proxied("network: cut, supervisor: KILL");
    proxy.hold();
    fault.strike(Signal::SIGKILL, &[fault.supervisor]);
    fault.expect_killed(EXPIRY);
}

#[test]
fn supervisor_stopped_and_the_network_cut() {
    let (mut fault, proxy) = Fault::proxied("supervisor: STOP, network: cut");
    fault.strike(Signal::SIGSTOP, &[fault.supervisor]);
    proxy.hold();
    fault.strikes();
    fault.command_dead(LEASE);
    fault.next_starts(EXPIRY);
    process::send(fault.supervisor, Signal::SIGCONT);
    fault.lost("ZooKeeper has not answered in time");
    fault.end("76");
}

// Somebody else takes the lock away.

/// The next holder learns of it when we do: there can be an instant in which both run.
#[test]
fn node_deleted() {
    let mut fault = Fault::minute("node: deleted");
    fault.delete_node();
    fault.expect_taken(DELETED);
}

#[test]
fn session_closed() {
    let mut fault = Fault::minute("session: closed by an administrator");
    let session = fault.scratch.contenders()[0].stat.owner;
    fault.strikes();
    client::expire_session(&direct(), session);
    fault.expect_taken("");
}

#[test]
fn node_deleted_and_the_supervisor_stopped() {
    let mut fault = Fault::minute("supervisor: STOP, node: deleted");
    fault.strike(Signal::SIGSTOP, &[fault.supervisor]);
    fault.delete_node();
    fault.command_dead(AT_ONCE);
    fault.next_starts(AT_ONCE);
    process::send(fault.supervisor, Signal::SIGCONT);
    fault.lost(DELETED);
    fault.end_with_overlap("76");
}

#[test]
fn node_deleted_and_the_supervisor_killed() {
    let mut fault = Fault::minute("supervisor: STOP, node: deleted, supervisor: KILL");
    fault.strike(Signal::SIGSTOP, &[fault.supervisor]);
    fault.delete_node();
    process::send(fault.supervisor, Signal::SIGKILL);
    fault.command_dead(AT_ONCE);
    fault.holder.wait().expect_signal(Signal::SIGKILL);
    fault.next_starts(AT_ONCE);
    fault.end_with_overlap("KILL");
}

/// Nobody is left to notice, and the command has its grace.
#[test]
fn node_deleted_after_the_keeper_was_killed() {
    let mut fault = Fault::shared("keeper: KILL, node: deleted");
    fault.strike(Signal::SIGKILL, &[fault.keeper]);
    fault.holder.wait_stdout("signal TERM");
    fault.scratch.delete(&fault.scratch.contenders()[0].path);
    fault.command_dead(LEASE);
    fault.lost(KEEPER_DIED);
    fault.next_starts(LEASE);
    fault.end_with_overlap("76");
}

// The machine sleeps.

/// Supervisor and keeper each end the command, whether or not the other goes on, too.
#[test]
fn everything_stopped_past_the_session() {
    for (what, last) in [
        ("supervisor, keeper and command: STOP past SHORT_SESSION, CONT", None),
        ("supervisor, keeper and command: STOP past SHORT_SESSION, CONT, supervisor last", Some(1)),
        ("supervisor, keeper and command: STOP past SHORT_SESSION, CONT, keeper last", Some(2)),
    ] {
        let mut fault = Fault::shared(what);
        let all = [fault.command, fault.supervisor, fault.keeper];
        fault.strike(Signal::SIGSTOP, &all);
        fault.next_starts(EXPIRY);
        // From here on: the command first, the others have no head start.
        let first: Vec<Pid> = (0..3).filter(|&number| Some(number) != last).map(|number| all[number]).collect();
        fault.strike(Signal::SIGCONT, &first);
        fault.command_dead(AT_ONCE);
        all.iter().for_each(|&pid| process::send(pid, Signal::SIGCONT));
        // That the lease is over, or that the session is: whatever the supervisor learns first.
        fault.lost("");
        assert!(!fault.holder.stdout().contains("signal TERM"), "no time for a stop signal");
        fault.end_with_overlap("76");
    }
}

#[test]
fn everything_stopped_for_less_than_the_lease() {
    let scratch = Scratch::new().with_lock();
    let mut fault = Fault::lasting("supervisor, keeper and command: STOP, CONT", scratch, &direct());
    let all = [fault.command, fault.supervisor, fault.keeper];
    fault.strike(Signal::SIGSTOP, &all);
    fault.strike(Signal::SIGCONT, &all);
    fault.holder.wait_stdout("signal CONT");
    fault.expect_undisturbed();
}
