//! The nodes above a lock, which zklock creates, and the chroot, which it does not.

use crate::harness::frames::Op;
use crate::harness::proxy::{Fate, Proxy};
use crate::harness::release::{Feature, lacks};
use crate::harness::running::{finish, only_line, silent};
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::server::{Server, Settings};

/// A server that soon removes containers that have become empty.
fn reaper() -> Server {
    Settings::default().property("znode.container.checkIntervalMs=300").server()
}

#[test]
fn deep_lock_and_its_parents() {
    let server = reaper();
    let scratch = Scratch::on(server.chroot());
    let mut job = scratch.zklock().arg("/jobs/über nacht/漢字/lock").child(["--exit-on", "TERM"]).spawn();
    job.wait_stdout("ready");
    assert_eq!(scratch.client().children("/jobs/über nacht/漢字"), ["lock"]);
    finish(&mut job);
    if !lacks(Feature::Containers) {
        scratch.client().wait_count("/", 0);
    }
}

#[test]
fn parents_that_go_are_created_again() {
    let scratch = Scratch::new();
    let proxy = Proxy::zookeeper(&direct());
    let op = if Feature::Containers.is_there() { Op::CreateContainer } else { Op::Create };
    let trap = proxy.trap(Fate::Wait, move |request| request.op == op && request.path.ends_with("/a/lock"));
    let mut job = scratch.zklock_by(proxy.address()).arg("/a/lock").child(["--exit-on", "TERM"]).spawn();
    trap.wait();
    for node in ["/a/lock", "/a"] {
        scratch.delete(node);
    }
    trap.release();
    job.wait_stdout("ready");
    silent(finish(&mut job));
}

#[test]
fn missing_chroot_is_named() {
    let scratch = Scratch::new();
    for lock in [LOCK, "/deep/lock"] {
        let chroot = format!("{}/missing", scratch.chroot());
        let output = scratch.zklock().args(["-z", &chroot, lock, "true"]).run().expect_code(78);
        let path = format!("the chroot {}/missing does not exist", scratch.chroot().path());
        assert!(only_line(&output).starts_with(&path), "{output}");
    }
    assert!(!scratch.client().exists("/missing"));
}
