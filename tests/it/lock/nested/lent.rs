//! A lock that one zklock lends to another below it: how long it is held.

use std::time::Duration;

use super::{borrowers, find, script, wait_until_it_lends_no_more};
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::running::{finish, silent};
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::times::{SOON, expect_once_below};

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

/// Also where it is no child of the outer command, and in no session of its: nothing but the pipe tells of it.
#[test]
fn held_until_the_inner_run_has_ended() {
    for moves_away in ["", "setsid --fork "] {
        let scratch = Scratch::new();
        let background = format!(
            r#"{moves_away}"$Z" /lock -- "$C" --name inner --log log --beat --until go & "$C" --until end --exit 3; exit 3"#
        );
        let mut outer = script(&scratch, &["--session-timeout", "60s"], &background).spawn();
        outer.wait_stdout("inner ready");
        let mut next = scratch.queue("next", 1);
        scratch.touch("end");
        wait_until_it_lends_no_more(&outer, outer.pid());
        // It has decided by then.
        scratch.wait_alive_at("inner", Moment::now().after(Duration::from_millis(100)));
        assert_eq!(scratch.client().children(LOCK).len(), 2);
        scratch.touch("go");
        silent(outer.wait_at_most(SOON).expect_code(3));
        finish(&mut next);
        assert_eq!(scratch.log().expect_no_overlap().order(), ["inner", "next"]);
    }
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

/// The outer command ends while the inner zklock is starting: either it uses the lock, and the outer one stays until it
/// is done, or it queues on its own.
#[test]
fn outer_run_that_is_just_leaving() {
    let scratch = Scratch::new();
    let start = |n: usize| {
        let command = format!(r#"sleep 0.02 | "$C" --name {n:02} --log log --beat --until-stdin-closes"#);
        // From ending at once to ending when the inner zklock has long been there.
        script(&scratch, &[], &format!(r#""$Z" /lock -c '{command}' & sleep 0.0{n:02}"#)).spawn()
    };
    for mut job in (0..24).map(start).collect::<Vec<_>>() {
        job.wait().expect_code(0);
        job.wait_until_nothing_is_left();
    }
    let log = scratch.log().expect_no_overlap();
    let mut order = log.order();
    order.sort_unstable();
    assert_eq!(order, (0..24).map(|n| format!("{n:02}")).collect::<Vec<_>>());
}

/// A run that wants a lock of its own borrows nothing, so it is not waited for.
#[test]
fn inner_run_that_uses_nothing() {
    let (scratch, proxy) = Scratch::proxied();
    proxy.hold();
    let servers = scratch.chroot().by(proxy.address());
    let both = format!(r#""$Z" -z {servers} /own -- "$C" --name late --until go & "$C" --env --until end"#);
    let mut outer = script(&scratch, &["--session-timeout", "60s"], &both).spawn();
    outer.wait_stdout("ready");
    poll::until("it connects", || (proxy.accepted() > 0).then_some(()));
    assert_eq!(borrowers(&outer).len(), 0);
    scratch.touch("end");
    outer.wait_at_most(SOON).expect_code(0);
    proxy.pass();
    outer.wait_stdout("late ready");
    scratch.touch("go");
    outer.wait_until_nothing_is_left();
}

/// It asks nobody: neither for a session nor for the end of one.
#[test]
fn no_server_answers() {
    let (scratch, proxy) = Scratch::proxied();
    let servers = scratch.chroot().by(proxy.address()).to_string();
    let shell = r#""$C" --until go; exec "$Z" -n /lock -- "$C" --name inner --exit 6"#;
    let outer = script(&scratch, &["--session-timeout", "60s"], shell).env("ZKLOCK_ZOOKEEPER", servers);
    let mut outer = outer.spawn();
    outer.wait_stdout("ready");
    proxy.hold();
    let accepted = proxy.accepted();
    scratch.touch("go");
    outer.wait_stdout_at_most(SOON, "inner ready");
    proxy.pass();
    silent(outer.wait().expect_code(6));
    assert_eq!(proxy.accepted(), accepted);
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
    wait_until_it_lends_no_more(&outer, outer.pid());
    scratch.touch("late");
    scratch.wait_queue(2);
    assert_eq!(borrowers(&outer).len(), 2, "the first one's supervisor and guard");
    scratch.touch("go");
    outer.wait().expect_code(0);
    outer.wait_stdout("second ready");
    outer.wait_until_nothing_is_left();
    assert_eq!(scratch.log().expect_no_overlap().order(), ["first", "second"]);
}
