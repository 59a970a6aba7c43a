//! Servers that do not know two requests which ZooKeeper has had since 3.5: to create a container, and to create a node
//! and be told its stat. zklock asks for one of them once, and then does without both.

use crate::harness::client::Kind;
use crate::harness::frames::Op;
use crate::harness::proxy::Proxy;
use crate::harness::release::{Feature, lacks};
use crate::harness::running::{finish, silent};
use crate::harness::scratch::Scratch;
use crate::harness::server::Settings;

/// A job takes both of [`LOCKS`].
#[track_caller]
fn take_both(scratch: &Scratch, proxy: &Proxy) {
    let lock = scratch.zklock_by(proxy.address()).args([LOCKS[0], "--and", LOCKS[1]]);
    let mut job = lock.child(["--env", "--exit-on", "TERM"]).spawn();
    job.wait_stdout("ready");
    let tokens = LOCKS.map(|lock| {
        let nodes = scratch.client().wait_count(lock, 1);
        let (_, stat) = scratch.client().get(&format!("{lock}/{}", nodes[0])).expect("the node is there");
        format!("{} {lock}\n", stat.czxid)
    });
    let stdout = job.stdout();
    assert!(stdout.contains(&format!("ZKLOCK_TOKENS={}", tokens.concat())), "{tokens:?}\n{stdout}");
    finish(&mut job);
}

const LOCKS: [&str; 2] = ["/a/lock", "/b/lock"];

#[test]
fn each_request_is_made_once() {
    for has_locks in [true, false] {
        let (scratch, proxy) = Scratch::proxied();
        for node in ["/a", "/b", LOCKS[0], LOCKS[1]].iter().filter(|_| has_locks) {
            scratch.client().create(node, b"", Kind::Persistent).expect("it is new");
        }
        [Op::Create2, Op::CreateContainer].into_iter().for_each(|op| proxy.make_unknown(op));
        take_both(&scratch, &proxy);
        assert_eq!(proxy.accepted(), 2, "{has_locks}");
    }
}

/// What is created instead stays.
#[test]
fn no_containers() {
    if lacks(Feature::Containers) {
        return;
    }
    let server = Settings::default().property("znode.container.checkIntervalMs=300").server();
    let scratch = Scratch::on(server.chroot());
    let proxy = Proxy::zookeeper(&server.address());
    proxy.make_unknown(Op::CreateContainer);
    silent(scratch.zklock_by(proxy.address()).args(["/stay/b/lock", "true"]).run().expect_code(0));
    silent(scratch.zklock().args(["/go/b/lock", "true"]).run().expect_code(0));
    // The first tree has no containers, is older than the second, and is still there when that has gone: so it stays.
    assert_eq!(scratch.client().wait_count("/", 1), ["stay"]);
    assert!(scratch.client().exists("/stay/b/lock"));
}
