//! A contender is asked to give up, by the data of its node: by `zklock break`, or by Curator's `Revoker`.

use nix::sys::signal::Signal;
use serde_json::json;

use crate::harness::peers::{Peer, Recipe};
use crate::harness::process;
use crate::harness::running::{Running, finish};
use crate::harness::scratch::{LOCK, Scratch};

/// Asks the contender with this node to give up, as `zklock break` does.
fn ask(scratch: &Scratch, node: &str, seen: &str) {
    let name = node.rsplit('/').next().unwrap_or_default();
    let mut card = scratch.card(name);
    card["revoke"] = json!({ "seen": seen, "by": "ops@db1" });
    scratch.client().set(node, card.to_string().as_bytes()).expect("the node exists");
}

fn holder(scratch: &Scratch, options: &[&str]) -> (Running, String) {
    let holder = scratch.hold_with(options, &["--exit-on", "TERM"]);
    (holder, scratch.contenders()[0].path.clone())
}

#[test]
fn a_holder_ignores_what_is_meant_for_a_waiter_and_what_means_nothing() {
    let scratch = Scratch::new().with_lock();
    let (mut holder, node) = holder(&scratch, &[]);
    ask(&scratch, &node, "waiter");
    for data in ["", "__revoke__", r#"{"v":1,"revoke":true}"#, "stop"] {
        scratch.client().set(&node, data.as_bytes()).expect("the node exists");
    }
    // It has seen all of it: it learns of the deletion of the node by the same watch.
    scratch.wait_watched(&node);
    assert!(!holder.has_ended());
    assert!(!holder.stdout().contains("signal"), "{holder}");
    finish(&mut holder);
}

/// A supervisor that is stopped hears of the request only when the command has ended, and the lock is released.
#[test]
fn a_request_that_comes_too_late_changes_nothing() {
    let scratch = Scratch::new().with_lock();
    let (mut holder, node) = holder(&scratch, &[]);
    process::send(holder.pid(), Signal::SIGSTOP);
    process::wait_state(holder.pid(), &['T']);
    ask(&scratch, &node, "holder");
    scratch.wait_watched(&node);
    process::send(holder.command(), Signal::SIGTERM);
    scratch.wait_queue(0);
    process::send(holder.pid(), Signal::SIGCONT);
    let output = holder.wait().expect_code(0);
    assert!(output.stderr().is_empty(), "{output}");
}

/// A holder that had to wait stores since when it holds. What was stored in its node before that stays.
#[test]
fn what_others_have_written_is_not_overwritten() {
    let scratch = Scratch::new().with_lock();
    let (mut first, _) = holder(&scratch, &[]);
    let mut second = scratch.lasting(&["-v"], &["--exit-on", "TERM"]).spawn();
    scratch.wait_queue(2);
    let node = scratch.contenders()[1].path.clone();
    scratch.client().set(&node, b"stays").expect("the node exists");
    finish(&mut first);
    second.wait_stderr("has been changed, and is left as it is");
    assert_eq!(scratch.client().get(&node).expect("the node exists").0, b"stays");
    finish(&mut second);
}

#[test]
fn curators_revoker_is_obeyed() {
    let scratch = Scratch::new().with_lock();
    let (mut holder, node) = holder(&scratch, &[]);
    let mut peer = Peer::start(&scratch, Recipe::CuratorMutex);
    peer.revoke(&node);
    let output = holder.wait().expect_code(76);
    assert_eq!(output.stderr(), format!("zklock: asked to give up {LOCK} (zklock break): stopping the command\n"));
    if !Recipe::CuratorMutex.needs_newer_servers() {
        peer.acquire();
        peer.release();
    }
}

/// All nodes of a contender of several dialects count, and those of each lock of `--and`.
#[test]
fn any_node_of_a_contender_will_do() {
    for (options, which) in [(["--dialect", "curator,kazoo"], 1), (["--and", "/another"], 0)] {
        let scratch = Scratch::new().with_lock();
        let (mut holder, _) = holder(&scratch, &options);
        ask(&scratch, &scratch.contenders()[which].path, "holder");
        holder.wait_stdout("signal TERM");
        holder.wait().expect_code(76);
        scratch.wait_queue(0);
    }
}

/// The outer run's node is not the nested one's to give up: the outer run stops its command, and the nested one with it.
#[test]
fn a_nested_run_leaves_it_to_the_outer_one() {
    let scratch = Scratch::new().with_lock();
    let inner = format!(
        "exec {} {LOCK} -- sh -c 'echo inner; trap \"echo stopped; exit 7\" TERM; sleep 60 & wait'",
        env!("CARGO_BIN_EXE_zklock")
    );
    let mut outer = scratch.zklock().args([LOCK, "-c", &inner]).spawn();
    outer.wait_stdout("inner");
    ask(&scratch, &scratch.contenders()[0].path, "holder");
    let output = outer.wait().expect_code(76);
    assert!(output.stdout().contains("stopped"), "{output}");
    assert_eq!(output.stderr().matches("asked by").count(), 1, "{output}");
    scratch.wait_queue(0);
}
