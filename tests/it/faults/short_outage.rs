//! An outage that is shorter than the lease leaves the command undisturbed.

use std::time::Duration;

use crate::harness::ensemble::Ensemble;
use crate::harness::fault::Fault;
use crate::harness::frames::Op;
use crate::harness::poll;
use crate::harness::proxy::{Flow, Proxy};
use crate::harness::release::{Feature, lacks};
use crate::harness::running::{Running, finish};
use crate::harness::scratch::{LASTING_VERBOSE, Scratch, direct};
use crate::harness::server::{Data, Server};

/// Breaks the holder's connection twice, and expects that zklock has noticed and the command has not. `breaks` returns
/// once zklock has noticed.
#[track_caller]
fn blip(breaks: impl Fn(&Proxy, &mut Running), heals: impl Fn(&Proxy)) {
    if lacks(Feature::Create2) {
        return;
    }
    let (scratch, proxy) = Scratch::proxied();
    let options = [&LASTING_VERBOSE[..], &["--kill-after", "0"]].concat();
    let mut fault = Fault::with(scratch, &proxy.address(), &options, &["--exit-on", "TERM"]);
    let before = fault.scratch.contenders().swap_remove(0);
    for _ in 0..2 {
        let accepted = proxy.accepted();
        breaks(&proxy, &mut fault.holder);
        let beats = proxy.count(Op::Multi);
        heals(&proxy);
        // The second of them was sent after the connection was whole again.
        proxy.wait_count(Op::Multi, beats + 2);
        assert!(proxy.accepted() > accepted, "another connection");
        fault.holder.wait_stderr("connection to ZooKeeper restored");
    }
    let after = fault.scratch.contenders().swap_remove(0);
    assert_eq!((&after.path, after.stat.owner), (&before.path, before.stat.owner));
    assert_eq!(fault.holder.variable("ZKLOCK_TOKEN"), before.stat.czxid.to_string());
    let said = fault.holder.stderr();
    assert_eq!(said.matches("connection to ZooKeeper restored\n").count(), 2, "{said}");
    assert!(fault.holder.stdout().ends_with("holder ready\n"), "{}", fault.holder);
    fault.expect_undisturbed();
}

/// Each handshake takes longer than zklock waits before it turns to another server as well. If it asked that one for
/// the session meanwhile, the connection that it has chosen would lose the session at once, time after time.
#[test]
fn slow_network_with_several_servers() {
    let scratch = Scratch::new().with_lock();
    let ways = [0, 1, 2].map(|_| Proxy::zookeeper(&direct()));
    let slow = Duration::from_millis(250);
    ways.iter().for_each(|way| way.flows(Flow::Delay(slow), Flow::Delay(slow)));
    let addresses = ways.each_ref().map(Proxy::address).join(",");
    let fault = Fault::with(scratch, &addresses, &LASTING_VERBOSE, &["--exit-on", "TERM"]);
    let counted = || ways.iter().map(Proxy::accepted).sum::<usize>();
    let before = counted();
    ways.iter().for_each(Proxy::reset);
    let beats = || ways.iter().map(|way| way.count(Op::Multi)).sum::<usize>();
    let enough = beats() + 3;
    poll::until("three beats after the reset", || (beats() >= enough).then_some(()));
    assert!(counted() <= before + 2 * ways.len(), "{} connections", counted() - before);
    ways.iter().for_each(Proxy::pass);
    fault.expect_undisturbed();
}

/// Silence until zklock says that it has noticed.
fn until_noticed(down: impl Fn(&Proxy)) -> impl Fn(&Proxy, &mut Running) {
    move |proxy, holder| {
        down(proxy);
        holder.wait_stderr("connection to ZooKeeper lost");
    }
}

#[test]
fn network_cut() {
    blip(until_noticed(Proxy::hold), Proxy::pass);
}

#[test]
fn replies_cut() {
    blip(until_noticed(|proxy| proxy.flows(Flow::Pass, Flow::Hold)), Proxy::pass);
}

#[test]
fn network_reset() {
    blip(until_noticed(Proxy::reset), |_| ());
}

#[test]
fn connections_refused() {
    blip(until_noticed(Proxy::refuse), Proxy::accept);
}

/// With the grace that is there by default: it leaves the time that it takes to notice and to go to another server.
#[test]
fn another_server_answers() {
    let ensemble = Ensemble::shared();
    let scratch = Scratch::on(ensemble.chroot()).with_lock();
    let [one, two] = [0, 1].map(|number| Proxy::zookeeper(&ensemble.servers()[number].address()));
    two.refuse();
    let addresses = format!("{},{}", one.address(), two.address());
    let mut holder = scratch.start(&addresses, "holder", &["--session-timeout", "30"], &["--exit-on", "TERM"]);
    holder.wait_stdout("ready");
    let before = scratch.only_contender();
    two.accept();
    one.hold();
    two.wait_count(Op::Multi, 2);
    assert_eq!(scratch.only_contender().path, before.path);
    finish(&mut holder);
    assert_eq!(holder.stderr(), "");
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn quorum_lost() {
    let ensemble = Ensemble::start();
    let scratch = Scratch::on(ensemble.chroot()).with_lock();
    // Longer than servers take to start and to elect a leader.
    let options = ["-v", "--session-timeout", "90"];
    let mut fault = Fault::with(scratch, &ensemble.addresses(), &options, &["--exit-on", "TERM"]);
    let gone = &ensemble.servers()[..2];
    gone.iter().for_each(Server::kill);
    fault.holder.wait_stderr("connection to ZooKeeper lost");
    gone.iter().for_each(|server| server.restart_in_background(Data::Kept));
    fault.holder.wait_stderr("connection to ZooKeeper restored");
    fault.expect_undisturbed();
}
