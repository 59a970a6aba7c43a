//! The node of a holder is deleted by others: the command is killed at once.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::harness::client::Kind;
use crate::harness::fault::{DELETED, Fault};
use crate::harness::frames::Op;
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::proxy::Fate;
use crate::harness::running::finish;
use crate::harness::scratch::{LASTING, LOCK, Scratch};
use crate::harness::times::AT_ONCE;

/// The next holder learns of it when we do: there can be an instant in which both run.
#[test]
fn node_deleted() {
    let mut fault = Fault::minute();
    fault.delete_node();
    fault.expect_taken(DELETED);
}

#[test]
fn supervisor_stopped() {
    let mut fault = Fault::minute();
    fault.strike(Signal::SIGSTOP, &[fault.supervisor]);
    fault.delete_node();
    fault.command_dead(AT_ONCE);
    fault.next_starts(AT_ONCE);
    process::send(fault.supervisor, Signal::SIGCONT);
    fault.holder.expect_lost(DELETED);
    fault.end_with_overlap();
}

/// The holder is cut off. When it is back, there is a node at its path, which is not its own.
#[test]
fn created_anew() {
    for kind in [Kind::Ephemeral, Kind::Persistent] {
        let (scratch, proxy) = Scratch::proxied();
        let mut holder = scratch.start(&proxy.address(), "holder", &LASTING, &["--wait"]);
        holder.wait_stdout("ready");
        let node = scratch.only_contender();
        proxy.refuse();
        scratch.delete(&node.path);
        scratch.client().create(&node.path, b"", kind).unwrap();
        proxy.accept();
        holder.expect_lost(DELETED);
        holder.wait_until_nothing_is_left();
        assert_ne!(scratch.only_contender().stat.czxid, node.stat.czxid);
        scratch.delete(&node.path);
        scratch.expect_tidy(&["holder"]);
    }
}

/// A supervisor that was told of the lock and then stopped must not start the command when it goes on: its keeper has
/// reconnected within the session since, and the node had been deleted before that.
#[test]
fn starts_nothing_after_a_reconnection() {
    let (scratch, proxy) = Scratch::proxied();
    let mut holder = scratch.hold();
    let mut late = scratch.start(&proxy.address(), "late", &["--session-timeout", "16"], &["--exit-on", "TERM"]);
    scratch.wait_queue(2);
    let node = scratch.contenders().pop().unwrap().path;
    let (supervisor, keeper) = (late.pid(), late.keeper());
    process::stop(supervisor);
    finish(&mut holder);
    poll::until("the keeper holds, and has said so", || {
        let (data, _) = scratch.client().get(&node).unwrap();
        String::from_utf8_lossy(&data).contains("held_since\":1").then_some(())
    });
    process::stop(keeper);
    let stopped = Moment::now();
    proxy.refuse();
    proxy.reset();
    scratch.delete(&node);
    let mut next = scratch.contend("next");
    next.wait_stdout("ready");
    // The old lease becomes too old to start a command under, but the session still lives: only the clock shows the
    // difference.
    let old = stopped.after(Duration::from_secs(6));
    poll::until("the lease is old", || (Moment::now() > old).then_some(()));
    // The proxy holds back the first reply about a node, so the keeper learns only that there is a quorum.
    let trap = proxy.trap_ops(Fate::Wait, &[Op::GetData]);
    let looks = || proxy.count(Op::GetData) + proxy.count(Op::CloseSession);
    let before = looks();
    proxy.accept();
    process::send(keeper, Signal::SIGCONT);
    poll::until("the keeper has reconnected", || (looks() > before).then_some(()));
    process::send(supervisor, Signal::SIGCONT);
    poll::until("the one that came late has queued again, or runs", || {
        (scratch.client().children(LOCK).len() == 2 || late.stdout().contains("ready")).then_some(())
    });
    assert_eq!(scratch.log().order(), ["holder", "next"]);
    trap.release();
    finish(&mut next);
    finish(&mut late);
    scratch.expect_tidy(&["holder", "next", "late"]);
}
