//! The command never runs without the lock: whatever dies, stops or is cut off, it is dead before the next one starts.
//! The plain cases are in [`faults`], with their times.
//!
//! [`faults`]: crate::faults

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::harness::client;
use crate::harness::ensemble::Ensemble;
use crate::harness::frames::Op;
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::proxy::{Fate, Flow, Proxy};
use crate::harness::running::{Running, finish};
use crate::harness::scratch::{GRACE, LASTING, LOCK, Scratch, direct};
use crate::harness::times::AT_ONCE;

/// The supervisor says for how long, the keeper that it was too long, and either may be the first.
const SILENCE: &str = "ZooKeeper has not answered ";

// Silence.

#[test]
fn a_command_that_ends_tidily_when_the_lock_is_lost_still_gives_76() {
    let (scratch, proxy) = Scratch::proxied();
    let options = [&LASTING[..], &["--signal", "USR1"]].concat();
    let mut holder = scratch.start(&proxy.address(), "holder", &options, &["--exit-on", "USR1"]);
    holder.wait_stdout("ready");
    proxy.hold();
    let output = holder.expect_lost(SILENCE);
    assert!(output.stdout().contains("\nholder signal USR1\n"), "{output}");
    assert!(scratch.log().runs()[0].ended);
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn without_a_grace_there_is_no_stop_signal() {
    let (scratch, proxy) = Scratch::proxied();
    let (mut holder, mut next) = scratch.holder_and_next(&proxy.address(), &["--kill-after", "0"]);
    proxy.hold();
    let output = scratch.expect_handover(&mut holder, &mut next, Moment::now(), SILENCE);
    assert!(output.stdout().ends_with("holder ready\n"), "{output}");
}

#[test]
fn what_left_the_commands_group_dies_with_it() {
    let (scratch, proxy) = Scratch::proxied();
    let daemon = ["--wait", "--spawn-daemon", "--", "--name", "daemon", "--wait"];
    let mut holder = scratch.start(&proxy.address(), "holder", &GRACE, &daemon);
    for _ in ["the command", "what is between", "the daemon"] {
        holder.wait_stdout(" ready");
    }
    let mut next = scratch.queue("next", 1);
    proxy.hold();
    let output = scratch.expect_handover(&mut holder, &mut next, Moment::now(), SILENCE);
    assert!(output.stdout().contains("daemon signal TERM\n"), "{output}");
}

// Silence that heals in time.

/// Breaks the holder's connection twice, and expects that zklock has noticed and the command has not. `breaks` returns
/// once zklock has noticed.
fn blip(breaks: impl Fn(&Proxy, &mut Running), heals: impl Fn(&Proxy)) {
    let (scratch, proxy) = Scratch::proxied();
    // A longer session than others have: that a loaded machine is slow is not to be taken for a loss.
    let options = ["-v", "--session-timeout", "20", "--kill-after", "0"];
    let mut holder = scratch.start(&proxy.address(), "holder", &options, &["--exit-on", "TERM"]);
    holder.wait_stdout("ready");
    let before = scratch.only_contender();
    for _ in 0..2 {
        let accepted = proxy.accepted();
        breaks(&proxy, &mut holder);
        let beats = proxy.count(Op::Multi);
        heals(&proxy);
        // The second of them was sent after the connection was whole again.
        proxy.wait_count(Op::Multi, beats + 2);
        assert!(proxy.accepted() > accepted, "another connection");
    }
    assert_eq!(scratch.only_contender().path, before.path);
    assert_eq!(scratch.only_contender().stat.owner, before.stat.owner);
    assert_eq!(holder.variable("ZKLOCK_NODE"), before.path);
    assert_eq!(holder.variable("ZKLOCK_TOKEN"), before.stat.czxid.to_string());
    assert_eq!(holder.variable("ZKLOCK_SESSION"), format!("{:#x}", before.stat.owner));
    holder.signal(Signal::SIGTERM);
    let output = holder.wait().expect_code(0);
    assert!(output.stdout().ends_with("holder ready\nholder signal TERM\n"), "{output}");
    assert_eq!(output.stderr().matches("connection to ZooKeeper restored\n").count(), 2, "{output}");
    scratch.expect_tidy(&["holder"]);
}

/// Silence until zklock says that it has noticed.
fn until_noticed(down: impl Fn(&Proxy)) -> impl Fn(&Proxy, &mut Running) {
    move |proxy, holder| {
        down(proxy);
        holder.wait_stderr("connection to ZooKeeper lost");
    }
}

#[test]
fn a_short_silence_leaves_the_command_undisturbed() {
    blip(until_noticed(Proxy::hold), Proxy::pass);
}

#[test]
fn a_short_silence_of_the_replies_leaves_the_command_undisturbed() {
    blip(until_noticed(|proxy| proxy.flows(Flow::Pass, Flow::Hold)), Proxy::pass);
}

#[test]
fn a_reset_leaves_the_command_undisturbed() {
    blip(until_noticed(Proxy::reset), |_| ());
}

#[test]
fn connections_refused_for_a_while_leave_the_command_undisturbed() {
    blip(until_noticed(Proxy::refuse), Proxy::accept);
}

/// With the grace that is there by default: it leaves the time that it takes to notice and to go to another server.
#[test]
fn our_server_falls_silent_and_another_one_answers() {
    let ensemble = Ensemble::shared();
    let scratch = Scratch::on(ensemble.chroot()).with_lock();
    let [one, two] = [0, 1].map(|number| Proxy::zookeeper(&ensemble.servers()[number].address()));
    two.refuse();
    let addresses = format!("{},{}", one.address(), two.address());
    let mut holder = scratch.start(&addresses, "holder", &["--session-timeout", "30"], &["--exit-on", "TERM"]);
    holder.wait_stdout("ready");
    let before = scratch.only_contender();
    two.accept();
    one.hold();
    two.wait_count(Op::Multi, 2);
    assert_eq!(scratch.only_contender().path, before.path);
    finish(&mut holder);
    assert_eq!(holder.stderr(), "");
    scratch.expect_tidy(&["holder"]);
}

// Processes that die or stop.

#[test]
fn supervisor_killed_the_command_dies_and_the_next_one_starts_at_once() {
    let scratch = Scratch::new().with_lock();
    let daemon = ["--wait", "--spawn-daemon", "--", "--name", "daemon", "--wait"];
    // A session that would take long to expire.
    let mut holder = scratch.start(&direct(), "holder", &["--session-timeout", "60"], &daemon);
    for _ in ["the command", "what is between", "the daemon"] {
        holder.wait_stdout(" ready");
    }
    let family = holder.processes();
    let mut next = scratch.queue("next", 1);
    let killed = Moment::now();
    holder.signal(Signal::SIGKILL);
    next.wait_stdout("ready");
    for process in family.iter().filter(|process| process.name == "child") {
        let now = process::look(process.pid);
        let lives = now.is_some_and(|now| now.started == process.started && now.state != 'Z');
        assert!(!lives, "{process} outlives the lock\n{holder}");
    }
    // 100 ms on a machine that has nothing else to do.
    scratch.begin("next").expect_within(AT_ONCE, killed, "the next one starts");
    holder.wait().expect_signal(Signal::SIGKILL);
    holder.wait_until_nothing_is_left();
    finish(&mut next);
    scratch.expect_tidy(&["holder", "next"]);
}

#[test]
fn waiting_supervisor_killed_its_place_is_given_up_at_once() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold();
    let mut victim = scratch.start(&direct(), "victim", &["--session-timeout", "60"], &[]);
    scratch.wait_queue(2);
    let killed = Moment::now();
    victim.signal(Signal::SIGKILL);
    scratch.wait_queue(1);
    Moment::now().expect_within(AT_ONCE, killed, "the node goes");
    victim.wait().expect_signal(Signal::SIGKILL);
    victim.wait_until_nothing_is_left();
    finish(&mut holder);
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn keeper_killed_the_command_may_end_by_itself() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.start(&direct(), "holder", &GRACE, &["--exit-on", "TERM"]);
    holder.wait_stdout("ready");
    let mut next = scratch.queue("next", 1);
    let killed = Moment::now();
    process::send(holder.keeper(), Signal::SIGKILL);
    let why = "the keeper process died; stopping the command";
    scratch.expect_handover(&mut holder, &mut next, killed, why);
    assert!(scratch.log().runs()[0].ended);
}

#[test]
fn a_waiter_whose_keeper_dies_queues_again() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold();
    // Nobody but the server removes the node of a keeper that was killed.
    let mut waiter = scratch.start(&direct(), "waiter", &[], &["--exit-on", "TERM"]);
    scratch.wait_queue(2);
    let first = scratch.contenders().pop().unwrap();
    process::send(waiter.keeper(), Signal::SIGKILL);
    waiter.wait_stderr(&format!("{REQUEUED}the session ended; queueing again"));
    scratch.client().wait_children(LOCK, "a new contender in the old one's place", |names| {
        names.len() == 2 && names.iter().all(|name| !first.path.ends_with(name.as_str()))
    });
    finish(&mut holder);
    finish(&mut waiter);
    scratch.expect_tidy(&["holder", "waiter"]);
}

#[test]
fn only_the_command_and_its_supervisor_wake_past_the_session() {
    let scratch = Scratch::new().with_lock();
    let (mut holder, mut next) = scratch.holder_and_next(&direct(), &[]);
    let (supervisor, keeper, command) = (holder.pid(), holder.keeper(), holder.command());
    [supervisor, keeper, command].into_iter().for_each(process::stop);
    next.wait_stdout("ready");
    let woken = Moment::now();
    [command, supervisor].into_iter().for_each(|pid| process::send(pid, Signal::SIGCONT));
    process::wait_dead(command);
    scratch.last_alive("holder").expect_within(AT_ONCE, woken, "the command is dead");
    holder.expect_lost(SILENCE);
    next.signal(Signal::SIGTERM);
    next.wait().expect_code(0);
    scratch.wait_queue(0);
}

/// What a supervisor was told before it was stopped is no reason to start when it goes on: its keeper has reconnected
/// within the session since, and the node had been deleted before that.
#[test]
fn a_deleted_node_starts_nothing_after_a_reconnection() {
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
    // The lease of before is too old to start a command under, and the session lasts: nothing shows that but the clock.
    let old = stopped.after(Duration::from_secs(6));
    poll::until("the lease is old", || (Moment::now() > old).then_some(()));
    // Of what the keeper asks, nothing is answered but whether the quorum is there.
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

// The node is deleted, the session ended by an administrator.

fn end_session(id: i64) {
    client::expire_session(&direct(), id);
}

/// Takes its place in the queue away from the first of two waiters, and expects that it queues again behind the second.
/// Gives what it said.
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

const REQUEUED: &str = "zklock: lost our place in the queue for /lock: ";

#[test]
fn own_node_deleted_while_waiting() {
    let said = take_place_away(|scratch, path| scratch.delete(path));
    assert_eq!(said, format!("{REQUEUED}our node was deleted; queueing again\n"));
}

#[test]
fn own_session_ended_while_waiting() {
    let said = take_place_away(|scratch, path| end_session(scratch.client().get(path).unwrap().1.owner));
    // It may hear that its node is gone before it hears why.
    let why = "the session ended before its time";
    assert!(said.ends_with(&format!("{REQUEUED}{why}; queueing again\n")), "{said}");
    assert!(said.lines().count() <= 2, "{said}");
}

/// "Nobody before us" is not to be concluded from a queue in which we are not.
#[test]
fn every_node_deleted_while_waiting() {
    let scratch = Scratch::new().with_lock();
    let (mut holder, mut next) = scratch.holder_and_next(&direct(), &[]);
    let paths = scratch.contenders();
    for contender in paths.iter().rev() {
        scratch.delete(&contender.path);
    }
    holder.expect_lost("its node was deleted; killing the command");
    next.wait_stderr("queueing again");
    finish(&mut next);
    assert_ne!(next.variable("ZKLOCK_NODE"), paths[1].path);
    scratch.wait_queue(0);
}
