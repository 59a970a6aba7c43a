//! Servers, and the client that looks at them.

use std::fs;
use std::io::ErrorKind;
use std::net::TcpStream;
use std::panic::catch_unwind;

use crate::harness::client::{self, Client, Kind, Refusal, Stat};
use crate::harness::ensemble::Ensemble;
use crate::harness::poll;
use crate::harness::server::{Data, Role, Server, Settings};

#[test]
fn chroots_are_empty_and_separate() {
    let (one, two) = (Server::shared().chroot(), Server::shared().chroot());
    one.client().create("/a", b"", Kind::Persistent).unwrap();
    assert_eq!(one.client().children("/"), ["a"]);
    assert!(two.client().children("/").is_empty());
    assert!(Client::connect(&Server::shared().address()).exists(one.path()));
    assert_eq!(Server::shared().role(), Some(Role::Standalone));
}

#[test]
fn freeze_and_thaw() {
    let server = Server::start();
    server.freeze();
    assert!(server.ask("srvr").is_err());
    server.thaw();
    server.wait_until_serving();
}

#[test]
fn restart_with_data_or_without() {
    let server = Server::start();
    let chroot = server.chroot();
    server.stop();
    assert_eq!(TcpStream::connect(server.address()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    server.restart(Data::Kept);
    assert!(Client::connect(&server.address()).exists(chroot.path()));
    server.restart(Data::Wiped);
    assert!(!Client::connect(&server.address()).exists(chroot.path()));
}

#[test]
fn settings_reach_the_server() {
    let server = Settings::default().line("maxSessionTimeout=1200").property("zookeeper.superUser=x").server();
    assert!(server.tell("conf").contains("maxSessionTimeout=1200\n"));
    let command_line = fs::read_to_string(format!("/proc/{}/cmdline", server.pid())).unwrap();
    assert!(command_line.contains("-Dzookeeper.superUser=x"));
}

#[test]
fn shared_ensemble() {
    let ensemble = Ensemble::shared();
    assert_eq!(ensemble.leader().role(), Some(Role::Leader));
    poll::until("two followers", || (ensemble.leader().figure("zk_synced_followers") == 2).then_some(()));
    assert_eq!(ensemble.servers().iter().map(Server::address).collect::<Vec<_>>().join(","), ensemble.addresses());
    let chroot = ensemble.chroot();
    chroot.client().create("/a", b"", Kind::Persistent).unwrap();
    for follower in ensemble.followers() {
        let client = chroot.by(follower.address()).client();
        client.sync();
        assert!(client.exists("/a"));
    }
}

#[test]
fn the_leader_says_what_it_has() {
    let ensemble = Ensemble::shared();
    let chroot = ensemble.chroot();
    for server in ensemble.servers() {
        let client = chroot.by(server.address()).client();
        client.create("/a", b"", Kind::Persistent).unwrap();
        assert!(client.leader_has("/a"));
        client.delete("/a").unwrap();
        assert!(!client.leader_has("/a"));
    }
}

#[test]
fn an_ensemble_outlives_its_leader() {
    let ensemble = Ensemble::start();
    let client = ensemble.chroot().client();
    client.create("/a", b"", Kind::Persistent).unwrap();
    let old = ensemble.leader();
    old.kill();
    assert_ne!(ensemble.leader().address(), old.address());
    assert!(client.exists("/a"));
    old.restart_in_background(Data::Kept);
    ensemble.wait_until_serving();
    assert_eq!(ensemble.followers().len(), 2);
}

/// The case that a ping does not notice: the follower is cut off, its clients are connected, their sessions expire.
#[test]
fn follower_cut_from_the_leader() {
    // A follower that has heard nothing for syncLimit ticks lets its clients go: here 20 s.
    let settings = Settings::default().line("maxSessionTimeout=5000").line("syncLimit=100");
    let ensemble = settings.proxied().ensemble();
    let (leader, [follower, _]) = (ensemble.leader(), ensemble.followers());
    let chroot = ensemble.chroot();
    let (cut, whole) = (chroot.by(follower.address()).client(), chroot.by(leader.address()).client());
    cut.create("/a", b"", Kind::Ephemeral).unwrap();
    ensemble.link(follower, leader).hold();
    poll::until("the session expires", || (!whole.exists("/a")).then_some(()));
    assert!(cut.exists("/a"), "the follower has not heard of it, and answers");
    ensemble.link(follower, leader).pass();
    poll::until("the follower hears of it", || (!cut.exists("/a")).then_some(()));
}

#[test]
fn a_client_sees_and_changes_nodes() {
    let chroot = Server::shared().chroot();
    let (one, two) = (chroot.client(), chroot.client());
    assert_eq!(one.create("/lock", b"old", Kind::Persistent), Ok("/lock".to_owned()));
    assert_eq!(one.create("/lock", b"", Kind::Persistent), Err(Refusal::NODE_EXISTS));
    one.set("/lock", b"new").unwrap();
    let (data, Stat { czxid, version, owner, .. }) = one.get("/lock").unwrap();
    assert_eq!((data.as_slice(), version, owner), (&b"new"[..], 1, 0));
    let late = one.create("/lock/a-", b"", Kind::EphemeralSequential).unwrap();
    let early = two.create("/lock/b-", b"", Kind::EphemeralSequential).unwrap();
    assert_eq!((late.as_str(), early.as_str()), ("/lock/a-0000000000", "/lock/b-0000000001"));
    assert!(one.get(&late).unwrap().1.czxid > czxid);
    assert_eq!(one.get(&early).unwrap().1.owner, two.session());
    one.create("/lock/0-foreign", b"", Kind::Persistent).unwrap();
    assert_eq!(one.wait_count("/lock", 3), ["a-0000000000", "b-0000000001", "0-foreign"]);
    drop(two);
    assert_eq!(one.wait_count("/lock", 2), ["a-0000000000", "0-foreign"]);
    assert_eq!(one.delete("/none"), Err(Refusal::NO_NODE));
    one.remove(&early);
    assert_eq!(one.delete(&early), Err(Refusal::NO_NODE));
    one.delete(&late).unwrap();
    assert!(one.children("/none").is_empty());
}

#[test]
fn a_session_can_be_expired_from_outside() {
    let ensemble = Ensemble::shared();
    let chroot = ensemble.chroot();
    let (victim, witness) = (chroot.client(), chroot.client());
    victim.create("/a", b"", Kind::Ephemeral).unwrap();
    client::expire_session(&ensemble.leader().address(), victim.session());
    witness.sync();
    poll::until("its node goes", || (!witness.exists("/a")).then_some(()));
    assert!(catch_unwind(|| client::expire_session(&ensemble.leader().address(), victim.session())).is_err());
}
