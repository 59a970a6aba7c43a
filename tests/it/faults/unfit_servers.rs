//! Servers that have to be set up otherwise before a lock can be taken: status 78, and what to change.

use crate::harness::client::{Client, Kind};
use crate::harness::release::{Feature, lacks};
use crate::harness::running::{only_line, silent};
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::server::Settings;
use crate::harness::stub::Stub;
use crate::harness::zklock::Zklock;

/// What it says when it does not take the lock with these options.
#[track_caller]
fn refused(scratch: &Scratch, options: &[&str]) -> String {
    let output = scratch.zklock().args(options).args([LOCK, "true"]).run().expect_code(78);
    only_line(&output)
}

#[test]
fn local_sessions() {
    if lacks(Feature::LocalSessions) {
        return;
    }
    let settings = Settings::default().line("localSessionsEnabled=true").line("localSessionsUpgradingEnabled=false");
    let ensemble = settings.ensemble();
    let remedy = "localSessionsUpgradingEnabled=true";
    for server in [ensemble.followers()[0], ensemble.leader()] {
        let scratch = Scratch::on(server.chroot()).with_lock();
        // Several nodes are created in a transaction, to which followers answer that the session is over.
        for dialects in ["curator", "curator,kazoo"] {
            let said = refused(&scratch, &["--dialect", dialects]);
            assert!(said.contains(remedy), "{said}");
        }
        for lock in [&[][..], &[LOCK]] {
            let said = silent(scratch.zklock().arg("check").args(lock).run().expect_code(1)).stdout();
            assert!(said.contains("\nlocal-sessions: ") && said.contains(remedy), "{said}");
            assert!(!said.contains("lock-refused") && !said.contains("may be used"), "{said}");
        }
    }
}

/// What it says for a new session: the protocol's version, a timeout of 30 s, the session, and a password of zeros.
fn keeper(version: i32, session: i64) -> Stub {
    let start = [&37_i32.to_be_bytes()[..4], &version.to_be_bytes(), &30_000_i32.to_be_bytes()].concat();
    let rest = [&session.to_be_bytes()[..], &16_i32.to_be_bytes(), &[0; 16], &[0]].concat();
    Stub::answering([start, rest].concat())
}

/// It would close the session of a holder when it shuts down.
#[test]
fn clickhouse_keeper() {
    let no_leader = 42;
    for keeper in [keeper(0, 5), keeper(no_leader, 0)] {
        let address = keeper.address();
        let run = |args: &[&str]| Zklock::at(&address).plain().args(args).run().expect_code(78);
        let why = "is ClickHouse Keeper: it closes the sessions of its clients when it shuts down, so two commands could \
                   overlap";
        for args in [&["-w", "1m", LOCK, "true"][..], &["status", LOCK], &["list"], &["break", "--force", LOCK]] {
            assert_eq!(only_line(&run(args)), format!("{address} {why}; use ZooKeeper"), "{args:?}");
        }
        let said = silent(run(&["check", LOCK])).stdout();
        let finding = format!("\nclickhouse-keeper: {address} {why}; use ZooKeeper\n");
        assert!(said.contains(&finding) && !said.contains("may be used"), "{said}");
    }
}

#[test]
fn quota() {
    if lacks(Feature::EnforcedQuota) {
        return;
    }
    let server = Settings::default().property("zookeeper.enforceQuota=true").server();
    let scratch = Scratch::on(server.chroot()).with_lock();
    let client = Client::connect(&server.address());
    let quota = format!("/zookeeper/quota{}", scratch.chroot().path());
    let limits = "count=1,bytes=-1=;byteHardLimit=-1;countHardLimit=1";
    for (node, data) in [
        (quota.clone(), ""),
        (format!("{quota}{LOCK}"), ""),
        (format!("{quota}{LOCK}/zookeeper_limits"), limits),
        (format!("{quota}{LOCK}/zookeeper_stats"), "count=1,bytes=0"),
    ] {
        client.create(&node, data.as_bytes(), Kind::Persistent).unwrap();
    }
    let said = refused(&scratch, &[]);
    assert!(said.contains(LOCK) && said.contains("quota") && said.contains("setquota"), "{said}");
}

/// The server closes the connection over a request that is larger. What a node tells of its contender is cut.
#[test]
fn small_requests_only() {
    let server = Settings::default().property("jute.maxbuffer=2000").server();
    let scratch = Scratch::on(server.chroot()).with_lock();
    let long = "x".repeat(100_000);
    let published = ["--publish-command", LOCK, "true", &long];
    silent(scratch.zklock().args(published).run().expect_code(0));
    // Two of them are too much.
    let output = scratch.zklock().args(["--dialect", "curator,kazoo"]).args(published).run().expect_code(78);
    let said = only_line(&output);
    assert!(said.contains("closes the connection") && said.contains("jute.maxbuffer"), "{said}");
}
