//! Servers restart, one after the other or the only one: the holder is undisturbed, and all waiters keep their places.

use crate::harness::client::Kind;
use crate::harness::ensemble::Ensemble;
use crate::harness::moment::Moment;
use crate::harness::running::{Running, finish};
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::server::{Data, Server};
use crate::harness::times::SHORT_SESSION;

/// Three waiters behind a holder, all of whom know all servers.
fn crowd(scratch: &Scratch, ensemble: &Ensemble) -> Vec<Running> {
    let mut jobs = Vec::new();
    for (before, name) in ["holder", "one", "two", "three"].into_iter().enumerate() {
        // Longer than a server takes to start, or an election, on a loaded machine.
        let options = ["--session-timeout", "90"];
        jobs.push(scratch.start(&ensemble.addresses(), name, &options, &["--exit-on", "TERM"]));
        scratch.wait_queue(before + 1);
    }
    jobs[0].wait_stdout("ready");
    jobs
}

/// The holder was undisturbed, the waiters are woken in their order, and the tokens rise.
#[track_caller]
fn expect_drained(scratch: &Scratch, mut jobs: Vec<Running>, nodes: &[String]) {
    let now: Vec<_> = scratch.contenders().into_iter().map(|contender| contender.path).collect();
    assert_eq!(now, nodes, "all have kept their places");
    assert_eq!(scratch.log().order(), ["holder"]);
    for job in &mut jobs {
        finish(job);
        assert_eq!(job.stderr(), "");
    }
    let told = |name: &str| jobs.iter().map(|job| job.variable(name)).collect::<Vec<_>>();
    assert_eq!(told("ZKLOCK_NODE"), nodes);
    let tokens: Vec<i64> = told("ZKLOCK_TOKEN").iter().map(|token| token.parse().expect("a decimal number")).collect();
    assert!(tokens.is_sorted_by(|one, two| one < two), "{tokens:?}");
    scratch.expect_tidy(&["holder", "one", "two", "three"]);
}

fn nodes(scratch: &Scratch) -> Vec<String> {
    scratch.contenders().into_iter().map(|contender| contender.path).collect()
}

#[test]
fn leader_killed() {
    let ensemble = Ensemble::start();
    let scratch = Scratch::on(ensemble.chroot()).with_lock();
    let jobs = crowd(&scratch, &ensemble);
    let before = nodes(&scratch);
    let old = ensemble.leader();
    old.kill();
    assert_ne!(ensemble.leader().address(), old.address());
    expect_drained(&scratch, jobs, &before);
}

#[test]
fn all_one_after_the_other() {
    let ensemble = Ensemble::start();
    let scratch = Scratch::on(ensemble.chroot()).with_lock();
    let jobs = crowd(&scratch, &ensemble);
    let before = nodes(&scratch);
    for server in ensemble.servers() {
        server.restart(Data::Kept);
        ensemble.wait_until_serving();
        assert_eq!(ensemble.followers().len(), 2);
    }
    expect_drained(&scratch, jobs, &before);
}

#[test]
fn only_server() {
    let server = Server::start();
    let scratch = Scratch::on(server.chroot()).with_lock();
    let options = ["--session-timeout", "90"];
    let mut holder = scratch.start(&server.address(), "holder", &options, &["--exit-on", "TERM"]);
    holder.wait_stdout("ready");
    let mut next = scratch.start(&server.address(), "next", &options, &["--exit-on", "TERM"]);
    scratch.wait_queue(2);
    let before = nodes(&scratch);
    server.restart(Data::Kept);
    assert_eq!(nodes(&scratch), before);
    for job in [&mut holder, &mut next] {
        finish(job);
        assert_eq!(job.stderr(), "");
    }
    scratch.expect_tidy(&["holder", "next"]);
}

#[test]
fn waiter_outlives_a_long_outage() {
    let server = Server::start();
    let scratch = Scratch::on(server.chroot()).with_lock();
    let prefix = format!("{LOCK}/_c_{:032x}-lock-", 1);
    let holder = scratch.client().create(&prefix, b"", Kind::EphemeralSequential).unwrap();
    let mut waiter = scratch.start(&server.address(), "waiter", &[], &["--exit-on", "TERM"]);
    scratch.wait_queue(2);
    let before = scratch.contenders();
    server.kill();
    Moment::now().after(SHORT_SESSION + SHORT_SESSION / 4).wait_past();
    server.restart(Data::Kept);
    // Its session, which no one renews, would be over by then.
    Moment::now().after(SHORT_SESSION + SHORT_SESSION / 4).wait_past();
    assert_eq!(scratch.contenders(), before);
    scratch.delete(&holder);
    waiter.wait_stdout("ready");
    assert_eq!(waiter.variable("ZKLOCK_NODE"), before[1].path);
    finish(&mut waiter);
    assert_eq!(waiter.stderr(), "");
    scratch.expect_tidy(&["waiter"]);
}
