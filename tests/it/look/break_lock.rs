//! `zklock break`: a contender is asked to go, or its node is deleted; never another one than was meant.

use serde_json::Value;

use crate::harness::frames::Op;
use crate::harness::peers::{Peer, Recipe};
use crate::harness::poll;
use crate::harness::proxy::Fate;
use crate::harness::running::{Output, Running, finish, silent};
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::terminal::Terminal;
use crate::harness::zklock::Zklock;

fn breaking(scratch: &Scratch, options: &[&str]) -> Zklock {
    scratch.zklock().arg("break").args(options).arg(LOCK)
}

/// The name of the node of the contender in this place, as a script would find it.
#[track_caller]
fn node(scratch: &Scratch, place: usize) -> String {
    contenders(scratch)[place]["node"].as_str().expect("a name").to_owned()
}

#[track_caller]
fn contenders(scratch: &Scratch) -> Value {
    let output = silent(scratch.zklock().args(["status", "--json", LOCK]).run().expect_code(0));
    let mut json: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    json["locks"][0]["contenders"].take()
}

/// Since when the first contender holds, once it has said so.
#[track_caller]
fn holds_since(scratch: &Scratch) -> String {
    poll::until("the holder says since when", || contenders(scratch)[0]["held_since"].as_str().map(str::to_owned))
}

fn holder(scratch: &Scratch) -> Running {
    scratch.hold_with(&[], &["--exit-on", "TERM"])
}

#[track_caller]
fn expect_asked(output: &Output) {
    assert!(output.stderr().contains("to give up /lock (zklock break)"), "{output}");
}

#[test]
fn a_holder_that_is_named_stops_and_the_next_one_starts() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold_with(&[], &["--exit-on", "TERM"]);
    let mut next = scratch.queue("next", 1);
    silent(breaking(&scratch, &["--node", &node(&scratch, 0)]).run().expect_code(0));
    let output = holder.wait().expect_code(76);
    assert!(output.stdout().ends_with("signal TERM\n"), "{output}");
    expect_asked(&output);
    next.wait_stdout("ready");
    finish(&mut next);
    scratch.expect_tidy(&["holder", "next"]);
}

#[test]
fn a_waiter_that_is_named_leaves_and_the_holder_stays() {
    let scratch = Scratch::new().with_lock();
    let mut holder = holder(&scratch);
    let mut waiter = scratch.queue("waiter", 1);
    // By its path.
    let node = format!("{LOCK}/{}", node(&scratch, 1));
    silent(breaking(&scratch, &["--node", &node]).run().expect_code(0));
    expect_asked(&waiter.wait().expect_code(76));
    finish(&mut holder);
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn a_contender_that_has_gone_is_not_replaced_by_another() {
    let scratch = Scratch::new().with_lock();
    let mut first = holder(&scratch);
    let mut second = scratch.queue("second", 1);
    let node = node(&scratch, 0);
    finish(&mut first);
    second.wait_stdout("ready");
    for options in [&["--node", &node][..], &["--force", "--node", &node]] {
        let output = breaking(&scratch, options).run().expect_code(75);
        assert_eq!(output.stderr(), format!("zklock: {LOCK}/{node} is not there\n"));
    }
    finish(&mut second);
    scratch.expect_tidy(&["holder", "second"]);
}

/// It goes between the look that finds it and the request.
#[test]
fn a_contender_that_goes_by_itself_was_not_ended() {
    let (scratch, proxy) = Scratch::proxied();
    for options in [&[][..], &["--force"]] {
        let mut first = holder(&scratch);
        let mut second = scratch.queue("second", 1);
        let node = node(&scratch, 0);
        let looked = proxy.trap_ops(Fate::Wait, &[Op::GetData]);
        let breaking = scratch.zklock_by(proxy.address()).arg("break").args(options);
        let mut breaking = breaking.args(["--node", &node, LOCK]).spawn();
        looked.wait();
        finish(&mut first);
        second.wait_stdout("ready");
        looked.release();
        let output = breaking.wait().expect_code(75);
        assert!(output.stderr().ends_with(" is not there any more\n"), "{output}");
        finish(&mut second);
    }
    scratch.expect_tidy(&["holder", "second", "holder", "second"]);
}

/// The answer to the request is lost: what has gone by then may have gone for it.
#[test]
fn a_contender_that_may_have_been_ended_has_gone() {
    let (scratch, proxy) = Scratch::proxied();
    for (options, op) in [(&[][..], Op::SetData), (&["--force"], Op::Delete)] {
        let mut holder = holder(&scratch);
        let answer = proxy.trap_ops(Fate::Reset, &[op]);
        let breaking = scratch.zklock_by(proxy.address()).arg("break").args(options);
        silent(breaking.args(["--node", &node(&scratch, 0), LOCK]).run().expect_code(0));
        answer.wait();
        holder.wait().expect_code(76);
    }
}

#[test]
fn by_force() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold_with(&["--dialect", "curator,kazoo"], &["--wait"]);
    silent(breaking(&scratch, &["--force", "--node", &node(&scratch, 0)]).run().expect_code(0));
    scratch.wait_queue(0);
    let output = holder.wait().expect_code(76);
    assert!(output.stderr().contains("its node was deleted; killing the command"), "{output}");
}

#[test]
fn one_that_does_not_go_in_time() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold_with(&["-k", "4s"], &["--wait"]);
    let since = holds_since(&scratch);
    let output = breaking(&scratch, &["-w", "100ms", "--node", &node(&scratch, 0)]).run().expect_code(75);
    assert!(output.stderr().ends_with(" has not left /lock within 100ms; --force deletes its node\n"), "{output}");
    assert_eq!(output.stderr().lines().count(), 1, "{output}");
    // It was asked all the same, and that is no new beginning.
    assert_eq!(holds_since(&scratch), since);
    holder.wait().expect_code(76);
}

#[test]
fn curator() {
    for (recipe, options) in [(Recipe::CuratorRevocable, &[][..]), (Recipe::CuratorMutex, &["-w", "200ms"])] {
        if recipe.needs_newer_servers() {
            return;
        }
        let scratch = Scratch::new();
        let mut peer = Peer::start(&scratch, recipe);
        peer.acquire();
        let node = node(&scratch, 0);
        let mut breaking = breaking(&scratch, &[options, &["--node", &node]].concat()).spawn();
        if recipe == Recipe::CuratorRevocable {
            peer.expect_asked();
            peer.release();
            silent(breaking.wait().expect_code(0));
        } else {
            let output = breaking.wait().expect_code(75);
            assert!(output.stderr().contains("; a lock that is not revocable does not react; --force"), "{output}");
            peer.release();
        }
    }
}

#[test]
fn clients_that_cannot_be_asked() {
    for recipe in [Recipe::KazooLock, Recipe::WriteLock] {
        let scratch = Scratch::new().with_lock();
        let mut peer = Peer::start(&scratch, recipe);
        peer.acquire();
        let node = node(&scratch, 0);
        let output = breaking(&scratch, &["--node", &node]).run().expect_code(78);
        assert!(output.stderr().ends_with(" cannot be asked to leave /lock; --force deletes its node\n"), "{output}");
        silent(breaking(&scratch, &["--force", "--node", &node]).run().expect_code(0));
        scratch.wait_queue(0);
    }
}

#[test]
fn without_a_terminal_it_must_be_named() {
    let scratch = Scratch::new().with_lock();
    let free = breaking(&scratch, &[]).run().expect_code(75);
    assert_eq!(free.stderr(), "zklock: /lock is free\n");
    let mut holder = holder(&scratch);
    let output = breaking(&scratch, &[]).run().expect_code(64);
    let line = "zklock: there is no terminal, so zklock cannot ask: name the contender with --node (field node of zklock status \
                --json /lock)\n";
    assert_eq!(output.stderr(), line);
    let output = breaking(&scratch, &["--node", "/other/x"]).run().expect_code(64);
    assert!(output.stderr().contains("not a node of /lock"), "{output}");
    finish(&mut holder);
}

#[test]
fn a_person_is_asked() {
    let scratch = Scratch::new().with_lock();
    let terminal = Terminal::new(100);
    let mut free = terminal.spawn(breaking(&scratch, &[]));
    free.wait().expect_code(75);
    terminal.wait("free", |lines| lines.iter().any(|line| line == "zklock: /lock is free"));

    let mut holder = holder(&scratch);
    let question = "Ask it to stop its command and to release the lock? [y/N]";
    for (number, (answer, code)) in [("n", 1), ("", 1), ("y", 0)].into_iter().enumerate() {
        let mut breaking = terminal.spawn(breaking(&scratch, &[]));
        terminal.wait_count(question, number + 1);
        terminal.enter(answer);
        breaking.wait().expect_code(code);
    }
    holder.wait().expect_code(76);
    terminal.close();
}

#[test]
fn one_of_several_holders_must_be_named() {
    let scratch = Scratch::new().with_lock();
    let terminal = Terminal::new(100);
    let reader = |name: &str| {
        let mut run = scratch.zklock().args(["--shared", LOCK]).child(["--name", name, "--exit-on", "TERM"]).spawn();
        run.wait_stdout("ready");
        run
    };
    let (mut first, mut second) = (reader("first"), reader("second"));
    terminal.spawn(breaking(&scratch, &[])).wait().expect_code(64);
    terminal.wait("a refusal", |lines| lines.iter().any(|line| line.contains("has 2 holders: name the contender")));
    breaking(&scratch, &["--node", &node(&scratch, 1)]).run().expect_code(0);
    expect_asked(&second.wait().expect_code(76));
    assert!(!first.has_ended());
    finish(&mut first);
    terminal.close();
}

#[test]
fn a_holder_that_ends_before_the_answer_is_not_replaced_by_the_next() {
    let scratch = Scratch::new().with_lock();
    let terminal = Terminal::new(100);
    for (number, options) in [&[][..], &["--force"]].into_iter().enumerate() {
        let mut first = holder(&scratch);
        let mut second = scratch.queue("second", 1);
        let mut breaking = terminal.spawn(breaking(&scratch, options));
        terminal.wait_count("[y/N]", number + 1);
        finish(&mut first);
        second.wait_stdout("ready");
        terminal.enter("y");
        breaking.wait().expect_code(75);
        terminal.wait_count(" is not there any more", number + 1);
        finish(&mut second);
    }
    scratch.expect_tidy(&["holder", "second", "holder", "second"]);
    terminal.close();
}
