//! A lock that one zklock lends to another below it: how long it is held.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::{
    borrower, borrowers, environment, find, has, inner_guard, next, pipe, script, wait_until_it_lends_no_more,
};
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::proxy::Proxy;
use crate::harness::running::{Running, finish, silent};
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::times::{BRIEF_SESSION, SOON, expect_once_below};

/// A run that has nothing of its own to release closes its session at once, not with the next ping (after 3.75 s here).
#[test]
fn inner_run_ends_at_once() {
    let scratch = Scratch::new();
    expect_once_below(Duration::from_secs(3), || {
        let run = script(&scratch, &[], r#""$Z" "$LOCK" -- true"#).env("LOCK", LOCK);
        run.env("ZKLOCK_SESSION_TIMEOUT", "60").run().expect_code(0).elapsed
    });
}

#[test]
fn found_under_another_chroot() {
    let scratch = Scratch::new();
    let (server, chroot) = (direct(), scratch.chroot().path());
    let inner = format!(r#""$Z" -n -z {server} {chroot}{LOCK} -- "$C" --exit 6"#);
    silent(script(&scratch, &[], &inner).run().expect_code(6));
}

/// All nodes of the dialect `single` have the same name.
#[test]
fn two_locks_of_the_dialect_single() {
    let scratch = Scratch::new();
    let third =
        r#"echo "$ZKLOCK_HELD"; for lock in /lock /b; do "$Z" -n --dialect single $lock -- "$C" --name $lock; done"#;
    let inner = format!(r#"export THIRD='{third}'; "$Z" -n --dialect single /b -c "$THIRD""#);
    let output = silent(script(&scratch, &["--dialect", "single"], &inner).run().expect_code(0));
    assert_eq!(output.stdout(), "/lock/lock\n/b/lock\n/lock ready\n/b ready\n");
}

#[test]
fn beside_a_busy_lock() {
    let scratch = Scratch::new();
    let mut stranger = scratch.zklock().arg("/b").child(scratch.logged("stranger")).spawn();
    stranger.wait_stdout("ready");
    let inner = r#""$Z" -n /lock --and /a --and /b -- true; echo status $?; "$C" --name outer --until end"#;
    let mut outer = script(&scratch, &[], inner).spawn();
    outer.wait_stdout("status 75");
    outer.wait_stdout("outer ready");
    scratch.wait_left(["/a", LOCK, "/b"], [0, 1, 1]);
    scratch.touch("end");
    outer.wait().expect_code(0);
    silent(finish(&mut stranger));
}

#[test]
fn held_until_the_inner_run_has_ended() {
    let scratch = Scratch::new();
    let background =
        r#""$Z" /lock -- "$C" --name inner --log log --beat --until go & "$C" --until end --exit 3; exit 3"#;
    let mut outer = script(&scratch, &[], background).spawn();
    outer.wait_stdout("inner ready");
    let mut next = next(&scratch);
    scratch.touch("end");
    wait_until_it_lends_no_more(&outer);
    // It has decided by then.
    let decided = Moment::now().after(Duration::from_millis(100));
    scratch.wait_alive_at("inner", decided);
    assert_eq!(scratch.client().children(LOCK).len(), 2);
    scratch.touch("go");
    silent(outer.wait().expect_code(3));
    finish(&mut next);
    assert_eq!(scratch.log().expect_no_overlap().order(), ["inner", "next"]);
}

/// The command has ended, and a descendant that the outer run waits for starts an inner one: it would wait for itself
/// if it queued.
#[test]
fn borrowed_by_a_descendant_that_is_waited_for() {
    let scratch = Scratch::new();
    let late = r#"("$C" --name left --log log --beat --until go; exec "$Z" -n /lock -- "$C" --name inner --exit 6) & "$C" --until end"#;
    let mut outer = script(&scratch, &["--wait-descendants"], late).spawn();
    outer.wait_stdout("left ready");
    let command = find(&outer, "the command", |process| process.name == "sh" && process.parent == outer.guard());
    scratch.touch("end");
    poll::until("the command has ended", || process::look(command.pid).is_none().then_some(()));
    // It has been told by then.
    scratch.wait_alive_at("left", Moment::now().after(Duration::from_millis(100)));
    scratch.touch("go");
    outer.wait_stdout("inner ready");
    silent(outer.wait().expect_code(0));
}

#[test]
fn daemon_beside_an_inner_run() {
    let scratch = Scratch::new();
    let both = r#""$C" --name daemon --spawn-daemon -- --name daemon --until dead
        "$Z" /lock -- "$C" --name inner --log log --beat --until go & "$C" --name outer --until end"#;
    let mut outer = script(&scratch, &[], both).spawn();
    outer.wait_stdout("inner ready");
    let mut next = next(&scratch);
    scratch.touch("end");
    wait_until_it_lends_no_more(&outer);
    scratch.touch("go");
    outer.wait().expect_code(0);
    finish(&mut next);
    scratch.touch("dead");
    outer.wait_until_nothing_is_left();
    assert_eq!(scratch.log().expect_no_overlap().order(), ["inner", "next"]);
}

/// The inner command has ended, and has left a process behind: the outer zklock waits for that as well.
#[test]
fn descendants_of_the_inner_run() {
    let scratch = Scratch::new();
    let background = r#""$Z" --wait-descendants /lock -- "$C" --spawn-daemon -- --name inner --log log --beat --until go &
        "$C" --name outer --until end"#;
    let mut outer = script(&scratch, &[], background).spawn();
    outer.wait_stdout("inner ready");
    let inner = borrower(&outer);
    poll::until("its command has ended", || {
        let children = process::children(inner.pid);
        children.iter().any(|process| process.name == "child" && process.session != inner.session).then_some(())
    });
    let mut next = next(&scratch);
    scratch.touch("end");
    wait_until_it_lends_no_more(&outer);
    let decided = Moment::now().after(Duration::from_millis(100));
    poll::until("the descendant lives on", || {
        let log = scratch.log();
        let lives = |name: &str| scratch.last_alive(name) > decided;
        log.runs().iter().any(|run| run.name == "next" || lives("inner")).then_some(())
    });
    scratch.touch("go");
    outer.wait().expect_code(0);
    finish(&mut next);
    let log = scratch.log().expect_no_overlap();
    assert!(log.runs().iter().all(|run| run.ended), "{log:?}");
    assert_eq!(log.order(), ["inner", "next"]);
}

/// The outer command ends while the inner zklock is starting: either it uses the lock, and the outer one stays until it
/// is done, or it queues on its own.
#[test]
fn outer_run_that_is_just_leaving() {
    let scratch = Scratch::new();
    let names: Vec<String> = (0..24).map(|n| format!("inner{n}")).collect();
    let mut jobs: Vec<Running> = Vec::new();
    for (n, name) in names.iter().enumerate() {
        // From ending at once to ending when the inner zklock has long been there.
        let delay = format!("sleep 0.0{n:02}");
        let command = format!(r#"sleep 0.02 | "$C" --name {name} --log log --beat --until-stdin-closes"#);
        let both = format!(r#""$Z" /lock -c '{command}' & {delay}"#);
        jobs.push(script(&scratch, &[], &both).spawn());
    }
    for job in &mut jobs {
        job.wait().expect_code(0);
        job.wait_until_nothing_is_left();
    }
    let log = scratch.log().expect_no_overlap();
    let mut order = log.order();
    order.sort_unstable();
    let mut expected: Vec<&str> = names.iter().map(String::as_str).collect();
    expected.sort_unstable();
    assert_eq!(order, expected);
}

/// A zklock that starts behind a proxy which holds back all that it says. It is there when the outer command ends.
#[track_caller]
fn behind_a_proxy(scratch: &Scratch, lock: &str) -> (Proxy, Running) {
    let proxy = Proxy::zookeeper(&direct());
    proxy.hold();
    let servers = scratch.chroot().by(proxy.address());
    let both = format!(r#""$Z" -z {servers} {lock} -- "$C" --name late --env --until go & "$C" --env --until end"#);
    // Nothing else is to wake the outer one, but the end of its lease half a minute later.
    let mut outer = script(scratch, &["--session-timeout", "60s"], &both).spawn();
    outer.wait_stdout("ready");
    borrower(&outer);
    poll::until("it connects", || (proxy.accepted() > 0).then_some(()));
    scratch.touch("end");
    wait_until_it_lends_no_more(&outer);
    (proxy, outer)
}

fn nodes(stdout: &str) -> Vec<&str> {
    stdout.lines().filter(|line| line.starts_with("ZKLOCK_NODE=")).collect()
}

/// What was borrowed in time is used, even if the servers are asked when the outer command has ended.
#[test]
fn inner_run_that_is_slow() {
    let scratch = Scratch::new();
    let (proxy, mut outer) = behind_a_proxy(&scratch, LOCK);
    proxy.pass();
    outer.wait_stdout_at_most(SOON, "late ready");
    assert!(!outer.has_ended());
    scratch.touch("go");
    let stdout = outer.wait().expect_code(0).stdout();
    let nodes = nodes(&stdout);
    assert!(nodes.len() == 2 && nodes[0] == nodes[1], "{nodes:?}");
    outer.wait_until_nothing_is_left();
}

/// A zklock that finds that nothing is lent to it is not waited for any longer.
#[test]
fn inner_run_with_a_lock_of_its_own() {
    let scratch = Scratch::new();
    let (proxy, mut outer) = behind_a_proxy(&scratch, "/own");
    assert!(!outer.has_ended());
    let passed = Moment::now();
    proxy.pass();
    outer.wait_at_most(SOON).expect_code(0);
    Moment::now().expect_within(SOON, passed, "the outer zklock has gone");
    outer.wait_stdout("late ready");
    scratch.touch("go");
    outer.wait_until_nothing_is_left();
    let stdout = outer.stdout();
    let nodes = nodes(&stdout);
    assert!(nodes.len() == 2 && nodes[0] != nodes[1], "{nodes:?}");
}

/// A zklock elsewhere that has got a copy of the command's environment looks whether it may use the lock, and is stopped.
#[test]
fn run_elsewhere_with_the_same_environment() {
    for options in [&[] as &[&str], &["--wait-descendants"]] {
        let scratch = Scratch::new();
        let proxy = Proxy::zookeeper(&direct());
        proxy.hold();
        let timeout = BRIEF_SESSION.as_secs().to_string();
        let waits = r#"exec "$C" --until end --exit 3"#;
        let mut outer = script(&scratch, options, waits).env("ZKLOCK_SESSION_TIMEOUT", timeout).spawn();
        outer.wait_stdout("ready");
        let (_, pipe) = pipe(&outer);
        let copied = environment(outer.command()).expect("an environment");
        let servers = scratch.chroot().by(proxy.address()).to_string();
        let mut elsewhere = scratch.zklock().args(["-z", &servers, "/other"]);
        for name in ["ZKLOCK_HELD", "ZKLOCK_LENDER"] {
            let (_, rest) = copied.split_once(&format!("\0{name}=")).expect("a variable of a run that lends");
            elsewhere = elsewhere.env(name, rest.split('\0').next().unwrap_or_default());
        }
        let mut elsewhere = elsewhere.child(["--exit", "0"]).spawn();
        poll::until("it looks", || has(elsewhere.zklock(), &pipe).then_some(()));
        process::stop(elsewhere.zklock());
        scratch.touch("end");
        silent(outer.wait_at_most(SOON).expect_code(3));
        process::send(elsewhere.zklock(), Signal::SIGCONT);
        proxy.pass();
        elsewhere.wait().expect_code(0);
    }
}

/// The outer command has ended, but another inner run still uses the lock.
#[test]
fn inner_run_that_comes_too_late() {
    let scratch = Scratch::new();
    let both = r#""$Z" /lock -- "$C" --name first --log log --beat --until go &
        ("$C" --name waits --until late; exec "$Z" /lock -- "$C" --name second --log log --beat) & "$C" --until end"#;
    let mut outer = script(&scratch, &["--session-timeout", "60s"], both).spawn();
    outer.wait_stdout("first ready");
    scratch.touch("end");
    wait_until_it_lends_no_more(&outer);
    scratch.touch("late");
    scratch.wait_queue(2);
    assert_eq!(borrowers(&outer).len(), 2, "the first one's supervisor and guard");
    scratch.touch("go");
    outer.wait().expect_code(0);
    outer.wait_stdout("second ready");
    outer.wait_until_nothing_is_left();
    assert_eq!(scratch.log().expect_no_overlap().order(), ["first", "second"]);
}

/// It is no child of the outer command, and in no session of its: nothing but the pipe tells of it.
#[test]
fn inner_run_that_has_moved_away() {
    let scratch = Scratch::new();
    let away = r#"setsid --fork "$Z" /lock -- "$C" --name inner --log log --beat --until go; "$C" --until inner"#;
    let mut outer = script(&scratch, &["--session-timeout", "60s"], away).spawn();
    outer.wait_stdout("inner ready");
    let mut next = next(&scratch);
    scratch.touch("inner");
    wait_until_it_lends_no_more(&outer);
    scratch.wait_alive_at("inner", Moment::now().after(Duration::from_millis(100)));
    assert!(!outer.has_ended());
    scratch.touch("go");
    outer.wait_at_most(SOON).expect_code(0);
    finish(&mut next);
    assert_eq!(scratch.log().expect_no_overlap().order(), ["inner", "next"]);
}

/// A keeper outlives its run for as long as no server answers, so it must not have the pipe open.
#[test]
fn supervisor_and_guard_have_the_pipe() {
    let scratch = Scratch::new();
    let script = script(&scratch, &[], r#""$Z" /other --and /lock -- "$C" --name inner --until end"#);
    let mut outer = script.spawn();
    outer.wait_stdout("inner ready");
    let guard = inner_guard(&outer);
    let mut have_it: Vec<_> = borrowers(&outer).into_iter().map(|process| process.pid).collect();
    have_it.sort();
    let mut expected = [guard.parent, guard.pid];
    expected.sort();
    assert_eq!(have_it, expected);
    scratch.touch("end");
    outer.wait().expect_code(0);
}
