//! A waiter that has nothing to do sleeps, and a holder has no process too many.

use crate::harness::frames::Op;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::proxy::Proxy;
use crate::harness::running::finish;
use crate::harness::scratch::{LOCK, Scratch, direct};

/// How many pings of the waiter are looked at.
const PINGS: usize = 3;

/// How often a keeper wakes for each ping: when it is due, and when the answer comes.
const WAKES: usize = 2;

/// The third in the queue does not beat, and has without a terminal no status line. It pings seldom: the next in line,
/// between its beats, at least three times as often.
#[test]
fn a_waiter_wakes_for_its_pings_only() {
    let (scratch, proxy) = Scratch::proxied();
    let nearer = Proxy::zookeeper(&direct());
    let mut holder = scratch.hold();
    let mut next = scratch.start(&nearer.address(), "next", &[], &["--exit-on", "TERM"]);
    scratch.wait_queue(2);
    let mut waiter = scratch.start(&proxy.address(), "waiter", &[], &["--exit-on", "TERM"]);
    scratch.wait_queue(3);
    let keeper = waiter.keeper();
    // What it does at first is done when only the four are left, and it pings.
    poll::until("four processes", || (waiter.processes().len() == 4).then_some(()));
    let guard = waiter.guard();
    let at_gate = process::children(guard)[0].pid;
    let begin = proxy.count(Op::Ping) + 1;
    proxy.wait_count(Op::Ping, begin);

    let processes = [waiter.pid(), guard, at_gate, keeper];
    let before = processes.map(process::sleeps);
    let before_nearer = nearer.count(Op::Ping);
    proxy.wait_count(Op::Ping, begin + PINGS);
    let after = processes.map(process::sleeps);
    let pings = nearer.count(Op::Ping) - before_nearer;
    assert!(pings >= 3 * PINGS, "the next in line pinged {pings} times");
    assert_eq!(waiter.processes().len(), 4);
    assert_eq!(after[..3], before[..3], "the supervisor, the guard or the process at the gate woke");
    // The edges: one ping more.
    let woke = after[3] - before[3];
    assert!(woke <= (PINGS + 1) * WAKES, "the keeper woke {woke} times for {PINGS} pings");

    finish(&mut holder);
    finish(&mut next);
    finish(&mut waiter);
    scratch.expect_tidy(&["holder", "next", "waiter"]);
}

/// The names of servers are looked up in processes of their own.
#[test]
fn a_holder_has_no_zombies() {
    let scratch = Scratch::new();
    let by_name = direct().replace("127.0.0.1", "localhost");
    for _ in 0..20 {
        let mut holder = scratch.zklock_by(&by_name).arg(LOCK).child(["--exit-on", "TERM"]).spawn();
        holder.wait_stdout("ready");
        let keeper = holder.keeper();
        let parents = [holder.pid(), keeper, holder.guard()];
        poll::until("the processes that are needed", || {
            let mut children = parents.into_iter().flat_map(process::children);
            children.all(|child| child.state != 'Z' && child.parent != keeper).then_some(())
        });
        finish(&mut holder);
    }
}
