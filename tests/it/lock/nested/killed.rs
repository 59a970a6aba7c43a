//! One zklock below another, or a part of one, dies or loses its lock: what goes with it.

use nix::sys::signal::Signal;

use super::{find, inner_guard, script};
use crate::harness::fault::EXPIRY;
use crate::harness::moment::Moment;
use crate::harness::process;
use crate::harness::running::{Running, finish};
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::terminal::Terminal;
use crate::harness::times::{BRIEF_SESSION, SHORT_SESSION, SOON};
use crate::harness::zklock::binary;

/// A zklock whose command has a child, which writes the log.
const INNER: &str = r#""$Z" /lock -c '"$C" --name inner --log log --beat --wait & "$C" --name quiet --wait'"#;

/// A nested run, and the next in the queue.
#[track_caller]
fn nested(scratch: &Scratch, options: &[&str]) -> (Running, Running) {
    let shell = format!(r#"{INNER}; echo status $?; "$C" --name outer --until end"#);
    let mut outer = script(scratch, options, &shell).spawn();
    outer.wait_stdout("inner ready");
    (outer, scratch.queue("next", 1))
}

/// The same under [`BRIEF_SESSION`].
#[track_caller]
fn nested_briefly(scratch: &Scratch) -> (Running, Running) {
    nested(scratch, &["--session-timeout", &BRIEF_SESSION.as_secs().to_string()])
}

/// The inner command is dead before the next holder's runs.
#[track_caller]
fn expect_next(scratch: &Scratch, mut next: Running) {
    finish(&mut next);
    assert_eq!(scratch.log().expect_no_overlap().order(), ["inner", "next"]);
}

#[test]
fn outer_killed() {
    for with_keeper in [false, true] {
        let scratch = Scratch::new();
        let (mut outer, next) = nested_briefly(&scratch);
        let keeper = outer.keeper();
        // Neither is to see the other one die: the supervisor would begin to stop the command.
        if with_keeper {
            [outer.pid(), keeper].into_iter().for_each(process::stop);
        }
        let killed = Moment::now();
        if with_keeper {
            process::send(keeper, Signal::SIGKILL);
        }
        outer.signal(Signal::SIGKILL);
        outer.wait().expect_signal(Signal::SIGKILL);
        expect_next(&scratch, next);
        outer.wait_until_nothing_is_left();
        // Not only when the session of the outer one is over, which is when the next one may start.
        assert!(scratch.last_alive("inner") < killed.after(BRIEF_SESSION / 2), "{:?}", scratch.log());
    }
}

#[test]
fn outer_keeper_killed() {
    let scratch = Scratch::new();
    let (mut outer, next) = nested_briefly(&scratch);
    process::send(outer.keeper(), Signal::SIGKILL);
    outer.wait().expect_code(76);
    expect_next(&scratch, next);
}

#[test]
fn outer_node_deleted() {
    let scratch = Scratch::new();
    // A stop would take far longer.
    let (mut outer, mut next) = nested(&scratch, &["--session-timeout", "60s", "--kill-after", "15s"]);
    let deleted = Moment::now();
    scratch.delete_holder();
    outer.wait().expect_code(76);
    Moment::now().expect_within(SOON, deleted, "the outer zklock has gone");
    outer.wait_until_nothing_is_left();
    finish(&mut next);
}

/// The outer run goes on, and holds the lock.
#[test]
fn inner_killed() {
    for (of_guard, status) in [(true, 70), (false, 137)] {
        let scratch = Scratch::new();
        let (mut outer, next) = nested_briefly(&scratch);
        let guard = inner_guard(&outer);
        process::send(if of_guard { guard.pid } else { guard.parent }, Signal::SIGKILL);
        outer.wait_stdout(&format!("status {status}"));
        outer.wait_stdout("outer ready");
        assert_eq!(scratch.client().children(LOCK).len(), 2);
        scratch.touch("end");
        outer.wait().expect_code(0);
        expect_next(&scratch, next);
    }
}

/// Nobody extends the lease: the inner guard, which nobody wakes, ends its command with it. In one case that guard is not in
/// the group that the kernel kills.
#[test]
fn all_of_the_outer_run_is_suspended() {
    for moves_away in ["", "setsid "] {
        let scratch = Scratch::new();
        let shell = format!(r#"{moves_away}"$Z" /lock -- "$C" --name inner --log log --beat --wait & wait"#);
        let timeout = BRIEF_SESSION.as_secs().to_string();
        let mut outer = script(&scratch, &["--session-timeout", &timeout], &shell).spawn();
        outer.wait_stdout("inner ready");
        let next = scratch.queue("next", 1);
        let processes = [outer.pid(), outer.keeper(), outer.guard(), inner_guard(&outer).parent];
        processes.into_iter().for_each(process::stop);
        expect_next(&scratch, next);
        processes.into_iter().for_each(|process| process::send(process, Signal::SIGCONT));
        outer.wait().expect_code(76);
        outer.wait_until_nothing_is_left();
    }
}

/// A nested run below a shell at a terminal, as `shell` says, where `INNER` is the inner zklock; and the next in the queue.
#[track_caller]
fn nested_at(terminal: &Terminal, scratch: &Scratch, shell: &str) -> (Running, Running) {
    let outer = terminal.spawn(script(scratch, &[], &shell.replace("INNER", INNER)));
    terminal.wait_count(" ready", 2);
    (outer, scratch.queue("next", 1))
}

/// There, no process group tells what belongs to whom.
#[test]
fn inner_killed_at_a_terminal() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    let (mut outer, next) = nested_at(&terminal, &scratch, "INNER; echo status $?");
    process::send(inner_guard(&outer).parent, Signal::SIGKILL);
    outer.wait().expect_code(0);
    terminal.wait_count("status 137", 1);
    expect_next(&scratch, next);
    outer.wait_until_nothing_is_left();
}

/// The outer guard has no time to kill what is below it. At a terminal, no process of
/// the outer command but its first is in the reach of the kernel.
#[test]
fn outer_killed_with_its_guard_at_a_terminal() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    // The outer zklock leads the session, so its death sends SIGHUP (_exit(2)). A command that ends by that, while the outer
    // guard is still there, leaves its children behind, as after any end of its own.
    let (mut outer, next) = nested_at(&terminal, &scratch, "trap '' HUP; INNER & wait");
    let guard = outer.guard();
    process::stop(guard);
    let killed = Moment::now();
    outer.signal(Signal::SIGKILL);
    process::send(guard, Signal::SIGKILL);
    outer.wait().expect_signal(Signal::SIGKILL);
    expect_next(&scratch, next);
    outer.wait_until_nothing_is_left();
    // Not only when the lease is over that the inner guard knows of.
    assert!(scratch.last_alive("inner") < killed.after(SOON), "{:?}", scratch.log());
}

/// All that is below the outer guard goes with it, also a daemon that has left group and session; and the keeper of the inner
/// run as well, whose session expires. That of the outer run would take long.
#[test]
fn inner_lock_is_another() {
    for outer_is_killed in [true, false] {
        let scratch = Scratch::new();
        let outer = scratch.zklock().env("ZKLOCK_SESSION_TIMEOUT", "60").arg(LOCK).arg("--").arg(binary());
        let daemon = ["--spawn-daemon", "--"].map(str::to_owned).into_iter().chain(scratch.logged("daemon"));
        let short = SHORT_SESSION.as_secs().to_string();
        let zklock = outer.args(["--session-timeout", &short, "/inner"]);
        let mut outer = zklock.child(scratch.logged("inner").into_iter().chain(daemon)).spawn();
        for _ in ["the command", "what is between", "the daemon"] {
            outer.wait_stdout(" ready");
        }
        let (_, family) = outer.family(3);
        let mut next = scratch.zklock().arg("/inner").child(scratch.logged("next")).spawn();
        scratch.client().wait_count("/inner", 2);
        let begin = Moment::now();
        if outer_is_killed {
            outer.signal(Signal::SIGKILL);
            outer.wait().expect_signal(Signal::SIGKILL);
        } else {
            scratch.delete_holder();
            outer.wait().expect_code(76);
        }
        next.wait_stdout("ready");
        process::expect_dead(&family);
        Moment::now().expect_within(EXPIRY, begin, "the inner node has gone");
        outer.wait_until_nothing_is_left();
        finish(&mut next);
        scratch.log().expect_apart(|one, two| one.name == "next" || two.name == "next");
    }
}

/// What the outer command leaves behind goes on if each inner run has seen the end of its own command, or had none.
#[test]
fn what_is_left_beside_an_inner_run_goes_on() {
    for inner_is_killed in [false, true] {
        let scratch = Scratch::new();
        let inner = if inner_is_killed { r#""$C" --name inner --wait"# } else { "true" };
        let shell = format!(
            r#""$C" --spawn-daemon -- --name daemon --wait; "$Z" /lock -- {inner} 2>inner; "$C" --name outer --until end"#
        );
        let mut outer = script(&scratch, &[], &shell).spawn();
        if inner_is_killed {
            outer.wait_stdout("inner ready");
            process::send(inner_guard(&outer).parent, Signal::SIGKILL);
        }
        outer.wait_stdout("outer ready");
        scratch.touch("end");
        let output = outer.wait().expect_code(0);
        // The keeper of an inner run that was killed may be counted as well.
        let stderr = output.stderr();
        assert!(stderr.ends_with(" on without the lock\n") && stderr.lines().count() == 1, "{output}");
        process::send(find(&outer, "the daemon", |process| process.name == "child").pid, Signal::SIGKILL);
        outer.wait_until_nothing_is_left();
    }
}
