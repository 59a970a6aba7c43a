//! The proxy and the stubs.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use crate::harness::client::{Client, Kind};
use crate::harness::frames::Op;
use crate::harness::poll;
use crate::harness::proxy::{Fate, Flow, Proxy};
use crate::harness::server::Server;
use crate::harness::stub::Stub;

fn proxied() -> (Proxy, Client, Client) {
    let chroot = Server::shared().chroot();
    let proxy = Proxy::zookeeper(&Server::shared().address());
    let through = chroot.by(proxy.address()).client();
    (proxy, through, chroot.client())
}

#[test]
fn a_proxy_passes_and_counts() {
    let (proxy, through, direct) = proxied();
    through.create("/a", b"", Kind::Persistent).unwrap();
    through.sync();
    assert!(direct.exists("/a"));
    assert_eq!((proxy.count(Op::Create), proxy.count(Op::Sync), proxy.count(Op::Delete)), (1, 1, 0));
    assert_eq!((proxy.accepted(), proxy.open()), (1, 1));
    let request = proxy.requests().into_iter().find(|request| request.op == Op::Create).unwrap();
    assert!(request.path.ends_with("/a") && request.connection == 0, "{request:?}");
    drop(through);
    proxy.wait_count(Op::CloseSession, 1);
    poll::until("the connection is closed", || (proxy.open() == 0).then_some(()));
}

#[test]
fn what_is_held_arrives_later() {
    let (proxy, through, direct) = proxied();
    proxy.hold();
    std::thread::scope(|scope| {
        let create = scope.spawn(|| through.create("/a", b"", Kind::Persistent));
        // The create reaches the proxy's port and no further. A request of another connection that was sent
        // later is answered, and this one is not there.
        direct.sync();
        assert!(!direct.exists("/a") && !create.is_finished());
        proxy.pass();
        assert_eq!(create.join().unwrap(), Ok("/a".to_owned()));
    });
}

#[test]
fn one_direction_can_be_held() {
    let (proxy, through, direct) = proxied();
    proxy.flows(Flow::Pass, Flow::Hold);
    std::thread::scope(|scope| {
        let create = scope.spawn(|| through.create("/a", b"", Kind::Persistent));
        poll::until("the request arrives", || direct.exists("/a").then_some(()));
        assert!(!create.is_finished(), "the reply must not have passed");
        proxy.pass();
        assert!(create.join().unwrap().is_ok());
    });
}

#[test]
fn a_delay_delays() {
    let (proxy, through, _direct) = proxied();
    let delay = Duration::from_millis(50);
    proxy.flows(Flow::Delay(delay), Flow::Delay(delay));
    let sent = Instant::now();
    through.sync();
    assert!(sent.elapsed() >= 2 * delay);
}

#[test]
fn a_reset_is_a_reset_and_new_connections_pass() {
    let proxy = Proxy::plain(Server::shared().address().parse().unwrap());
    let mut stream = TcpStream::connect(proxy.address()).unwrap();
    poll::until("the proxy has it", || (proxy.open() == 1).then_some(()));
    proxy.reset();
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let mut again = TcpStream::connect(proxy.address()).unwrap();
    again.write_all(b"ruok").unwrap();
    let mut answer = String::new();
    again.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "imok");
}

#[test]
fn a_closed_port_refuses_until_it_is_opened() {
    let (proxy, through, _direct) = proxied();
    proxy.refuse();
    assert_eq!(TcpStream::connect(proxy.address()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    proxy.accept();
    assert!(!through.exists("/a"), "the client reconnects");
    assert_eq!(proxy.accepted(), 2);
}

#[test]
fn a_lost_reply_leaves_the_node_and_no_answer() {
    let (proxy, through, direct) = proxied();
    let trap = proxy.trap_ops(Fate::Reset, &[Op::Create, Op::Create2]);
    assert!(catch_unwind(AssertUnwindSafe(|| through.create("/a", b"", Kind::Persistent))).is_err());
    trap.wait();
    assert!(direct.exists("/a"));
    assert!(through.exists("/a"), "the next connection passes");
    assert_eq!(through.create("/b", b"", Kind::Persistent), Ok("/b".to_owned()), "a trap springs once");
}

#[test]
fn silence_after_a_lost_reply() {
    let (proxy, through, direct) = proxied();
    let trap = proxy.trap(Fate::ResetAndHold, |request| request.op == Op::Delete && request.path.ends_with("/a"));
    for path in ["/a", "/b"] {
        through.create(path, b"", Kind::Persistent).unwrap();
    }
    through.delete("/b").unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| through.delete("/a"))).is_err());
    trap.wait();
    assert!(!direct.exists("/a"));
    std::thread::scope(|scope| {
        let look = scope.spawn(|| through.exists("/a"));
        poll::until("the client reconnects", || (proxy.accepted() == 2).then_some(()));
        assert!(!look.is_finished());
        proxy.pass();
        assert!(!look.join().unwrap());
    });
}

#[test]
fn a_reply_can_be_held_until_it_is_released() {
    let (proxy, through, direct) = proxied();
    let trap = proxy.trap_ops(Fate::Wait, &[Op::Create]);
    std::thread::scope(|scope| {
        let create = scope.spawn(|| through.create("/a", b"", Kind::Persistent));
        trap.wait();
        assert!(direct.exists("/a") && !create.is_finished());
        trap.release();
        assert_eq!(create.join().unwrap(), Ok("/a".to_owned()));
    });
}

#[test]
fn one_connection_can_be_silenced() {
    let (proxy, through, direct) = proxied();
    let trap = proxy.trap_ops(Fate::Blackhole, &[Op::Create]);
    std::thread::scope(|scope| {
        let create = scope.spawn(|| through.create("/a", b"", Kind::Persistent));
        trap.wait();
        assert!(direct.exists("/a"));
        // A second connection through the same proxy is answered, so the first had its chance.
        Client::connect(&proxy.address()).sync();
        assert!(!create.is_finished());
        proxy.reset();
        assert!(create.join().is_err(), "outcome unknown");
    });
}

#[test]
fn stubs_are_silent_or_speak_garbage() {
    let (silent, garbage) = (Stub::silent(), Stub::garbage());
    let mut stream = TcpStream::connect(silent.address()).unwrap();
    stream.write_all(b"ruok").unwrap();
    stream.set_nonblocking(true).unwrap();
    // Whatever the other stub was to answer has come by the time that this one is asked.
    TcpStream::connect(garbage.address()).unwrap().read_exact(&mut [0; 16 * 1024]).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}
