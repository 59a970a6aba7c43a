//! A waiter that loses its place queues again, at the tail.

use nix::sys::signal::Signal;

use crate::harness::client;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::proxy::Proxy;
use crate::harness::running::finish;
use crate::harness::scratch::{Scratch, direct};

/// Takes its place in the queue away from the first of two waiters, and expects that it queues again behind the second.
/// Returns what it said.
fn take_place_away(take: impl Fn(&Scratch, &str)) -> String {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold();
    let mut one = scratch.queue("one", 1);
    let mut two = scratch.queue("two", 2);
    let before = scratch.contenders();
    take(&scratch, &before[1].path);
    one.wait_stderr("queueing again");
    poll::until("the first waiter stands at the tail", || {
        let after = scratch.contenders();
        let others = [&before[0], &before[2]].map(|contender| &contender.path);
        (after.len() == 3 && after[..2].iter().map(|contender| &contender.path).eq(others)).then_some(())
    });
    assert_eq!(scratch.log().order(), ["holder"]);
    for job in [&mut holder, &mut two, &mut one] {
        finish(job);
    }
    scratch.expect_tidy(&["holder", "two", "one"]);
    one.stderr()
}

const REQUEUED: &str = "zklock: lost the place in the queue for /lock: ";

#[test]
fn node_deleted() {
    let said = take_place_away(|scratch, path| scratch.delete(path));
    assert_eq!(said, format!("{REQUEUED}its node was deleted; queueing again\n"));
}

#[test]
fn session_ended() {
    let said = take_place_away(|scratch, path| {
        client::expire_session(&direct(), scratch.client().get(path).unwrap().1.owner);
    });
    // It may hear that its node is gone before it hears why.
    assert!(said.ends_with(&format!("{REQUEUED}the session ended; queueing again\n")), "{said}");
    assert!(said.lines().count() <= 2, "{said}");
}

/// The waiter's session expires while no server answers it; then it is at the tail, behind one who came meanwhile.
#[test]
fn session_expired() {
    type Act = fn(&Proxy);
    let ways: [(Act, Act); 2] = [
        (Proxy::refuse, Proxy::accept),
        (Proxy::hold, |proxy| {
            proxy.reset();
            proxy.pass();
        }),
    ];
    for (lose, find) in ways {
        let (scratch, proxy) = Scratch::proxied();
        let mut holder = scratch.hold();
        let options = ["--timeout", "60", "--session-timeout", "6"];
        let mut late = scratch.start(&proxy.address(), "late", &options, &["--exit-on", "TERM"]);
        scratch.wait_queue(2);
        let old = scratch.contenders().pop().unwrap();
        lose(&proxy);
        scratch.wait_queue(1);
        let mut other = scratch.queue("other", 1);
        find(&proxy);
        late.wait_stderr("queue");
        scratch.wait_queue(3);
        let new = scratch.contenders().pop().unwrap();
        assert_ne!(new.stat.owner, old.stat.owner);
        for job in [&mut holder, &mut other, &mut late] {
            finish(job);
        }
        assert_eq!(late.variable("ZKLOCK_NODE"), new.path);
        assert_eq!(late.stderr(), format!("{REQUEUED}the session ended; queueing again\n"));
        scratch.expect_tidy(&["holder", "other", "late"]);
    }
}

/// The lock comes and goes while the supervisor is stopped, so its command was never started.
#[test]
fn held_and_lost_before_the_supervisor_hears_of_it() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold();
    let mut waiter = scratch.start(&direct(), "waiter", &["-v"], &["--exit-on", "TERM"]);
    waiter.wait_stderr("waiting for /lock");
    process::send(waiter.pid(), Signal::SIGSTOP);
    let node = scratch.contenders().remove(1).path;
    finish(&mut holder);
    // The first beat of a holder stores that it holds. It comes after the report.
    let says_held = || String::from_utf8(scratch.client().get(&node).unwrap().0).unwrap().contains("held_since");
    poll::until("the waiter holds", || says_held().then_some(()));
    scratch.delete(&node);
    waiter.wait_stderr("the lock is lost: Lost(NodeDeleted)");
    process::send(waiter.pid(), Signal::SIGCONT);
    waiter.wait_stderr(&format!("{REQUEUED}its node was deleted; queueing again"));
    waiter.wait_stdout("ready");
    assert_ne!(waiter.variable("ZKLOCK_NODE"), node);
    scratch.expect_ours(&waiter);
    finish(&mut waiter);
    scratch.expect_tidy(&["holder", "waiter"]);
}

/// A contender that is not in the queue is not the first in it.
#[test]
fn every_node_deleted() {
    let scratch = Scratch::new().with_lock();
    let (mut holder, mut next) = scratch.holder_and_next(&direct(), &[]);
    let paths = scratch.contenders();
    scratch.wait_watched(&paths[1].path);
    for contender in paths.iter().rev() {
        scratch.delete(&contender.path);
    }
    holder.expect_lost("its node was deleted; killing the command");
    next.wait_stderr("queueing again");
    finish(&mut next);
    assert_ne!(next.variable("ZKLOCK_NODE"), paths[1].path);
    scratch.wait_queue(0);
}
