//! Servers lose their data: the holder is stopped, and a waiter queues again.

use crate::harness::client::{Client, Kind};
use crate::harness::fault::Fault;
use crate::harness::poll;
use crate::harness::proxy::Proxy;
use crate::harness::running::finish;
use crate::harness::scratch::Scratch;
use crate::harness::server::{Data, Role, Server};
use crate::harness::times::LEASE;

/// No server knows the session any more, nor the queue.
#[test]
fn only_server() {
    let server = Server::start();
    let scratch = Scratch::on(server.chroot()).with_lock();
    let proxy = Proxy::zookeeper(&server.address());
    let mut holder = scratch.start(&proxy.address(), "holder", &[], &["--wait"]);
    holder.wait_stdout("ready");
    let mut next = scratch.start(&proxy.address(), "next", &[], &["--exit-on", "TERM"]);
    scratch.wait_queue(2);
    proxy.refuse();
    server.restart(Data::Wiped);
    assert_eq!(server.role(), Some(Role::Standalone));
    Client::connect(&server.address()).create(scratch.chroot().path(), b"", Kind::Persistent).unwrap();
    proxy.accept();
    holder.wait().expect_code(76);
    next.wait_stderr("queueing again");
    finish(&mut next);
    assert_eq!(next.stderr().lines().count(), 1, "{next}");
    assert_eq!(scratch.log().order(), ["holder", "next"]);
    scratch.wait_queue(0);
}

#[test]
fn all_learn_of_it() {
    server_loses_its_data(Proxy::accept);
}

/// The next one learns of it by a way of its own. It is the first that this server knows, so it need not wait for the holder's
/// command, which ends with its lease all the same.
#[track_caller]
fn server_loses_its_data(then: impl FnOnce(&Proxy)) {
    // The one without the data runs already: starting it may take longer than a session lasts.
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
    let mut fault = Fault::of(scratch, holder, next);
    [&all, &holders].into_iter().for_each(|[old, _]| old.refuse());
    fault.strikes();
    all[1].accept();
    then(&holders[1]);
    fault.next.wait_stderr("the session ended; queueing again");
    fault.command_dead(LEASE);
    // The reason is that the session is over or that no server answers: whichever it learns first.
    fault.holder.expect_lost("");
    fault.next_starts(poll::PATIENCE);
    fault.end_with_overlap();
}

/// The next one learns of it, and the holder does not.
#[test]
fn holder_is_cut_off() {
    server_loses_its_data(|_| ());
}
