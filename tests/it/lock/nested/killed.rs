//! One zklock below another, or a part of one, dies or loses its lock: what goes with it.

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{find, inner_guard, inner_keeper, next, script};
use crate::harness::fault::EXPIRY;
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::process::{self, Process};
use crate::harness::running::{Running, finish};
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::terminal::Terminal;
use crate::harness::times::{BRIEF_SESSION, SHORT_SESSION, SOON};
use crate::harness::zklock::{Zklock, binary};

const NESTED: &str = r#""$Z" /lock -c '"$C" --name inner --log log --beat --wait & "$C" --name quiet --wait'
    echo status $?; "$C" --name outer --until end"#;

/// A nested run, with a command that has a child, and the next in the queue.
#[track_caller]
fn nested(scratch: &Scratch) -> (Running, Running) {
    nested_by(scratch, script(scratch, &[], NESTED))
}

/// The same under [`BRIEF_SESSION`].
#[track_caller]
fn nested_briefly(scratch: &Scratch) -> (Running, Running) {
    nested_by(scratch, script(scratch, &[], NESTED).env("ZKLOCK_SESSION_TIMEOUT", BRIEF_SESSION.as_secs().to_string()))
}

#[track_caller]
fn nested_by(scratch: &Scratch, outer: Zklock) -> (Running, Running) {
    let mut outer = outer.spawn();
    outer.wait_stdout("inner ready");
    let next = next(scratch);
    (outer, next)
}

/// The inner command is dead before the next holder's runs.
#[track_caller]
fn expect_next(scratch: &Scratch, mut next: Running) {
    finish(&mut next);
    assert_eq!(scratch.log().expect_no_overlap().order(), ["inner", "next"]);
}

#[test]
fn outer_killed() {
    let scratch = Scratch::new();
    let (mut outer, next) = nested(&scratch);
    outer.signal(Signal::SIGKILL);
    outer.wait().expect_signal(Signal::SIGKILL);
    expect_next(&scratch, next);
    outer.wait_until_nothing_is_left();
}

#[test]
fn outer_killed_with_its_keeper() {
    let scratch = Scratch::new();
    let (mut outer, next) = nested_briefly(&scratch);
    let keeper = outer.keeper();
    // Neither is to see the other one die: the supervisor would begin to stop the command.
    for pid in [outer.pid(), keeper] {
        process::send(pid, Signal::SIGSTOP);
        poll::until("it is stopped", || process::look(pid).filter(|process| process.state == 'T'));
    }
    let killed = Moment::now();
    process::send(keeper, Signal::SIGKILL);
    outer.signal(Signal::SIGKILL);
    outer.wait().expect_signal(Signal::SIGKILL);
    expect_next(&scratch, next);
    outer.wait_until_nothing_is_left();
    // Not only when the session of the outer one is over, which is when the next one starts.
    assert!(scratch.last_alive("inner") < killed.after(BRIEF_SESSION / 2), "{:?}", scratch.log());
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
    let (mut outer, next) =
        nested_by(&scratch, script(&scratch, &["--session-timeout", "60s", "--kill-after", "15s"], NESTED));
    let holder = scratch.wait_queue(2).remove(0);
    let deleted = Moment::now();
    scratch.delete(&format!("{LOCK}/{holder}"));
    outer.wait().expect_code(76);
    Moment::now().expect_within(SOON, deleted, "the outer zklock has gone");
    let mut next = next;
    finish(&mut next);
}

#[test]
fn inner_keeper_killed() {
    let scratch = Scratch::new();
    let (mut outer, next) = nested_briefly(&scratch);
    process::send(inner_keeper(&outer).pid, Signal::SIGKILL);
    outer.wait_stdout("status 76");
    outer.wait_stdout("outer ready");
    assert_eq!(scratch.client().children(LOCK).len(), 2);
    scratch.touch("end");
    outer.wait().expect_code(0);
    expect_next(&scratch, next);
}

#[test]
fn inner_keeper_stopped() {
    let scratch = Scratch::new();
    let (mut outer, next) = nested_briefly(&scratch);
    let keeper = inner_keeper(&outer).pid;
    process::send(keeper, Signal::SIGSTOP);
    outer.wait_stdout("status 76");
    process::send(keeper, Signal::SIGCONT);
    outer.wait_stdout("outer ready");
    assert_eq!(scratch.client().children(LOCK).len(), 2);
    scratch.touch("end");
    outer.wait().expect_code(0);
    expect_next(&scratch, next);
}

#[test]
fn inner_zklock_killed() {
    let scratch = Scratch::new();
    let (mut outer, next) = nested(&scratch);
    let keeper = inner_keeper(&outer);
    process::send(keeper.parent, Signal::SIGKILL);
    outer.wait_stdout("outer ready");
    assert_eq!(scratch.client().children(LOCK).len(), 2);
    scratch.touch("end");
    outer.wait().expect_code(0);
    expect_next(&scratch, next);
}

/// A shell at a terminal below a zklock, as `shell` says: `INNER` there is another zklock on the same lock. Its command
/// is a shell, whose child writes the log. The other one waits for the lock.
#[track_caller]
fn nested_at(terminal: &Terminal, scratch: &Scratch, shell: &str) -> (Running, Running) {
    let inner = r#""$Z" /lock -c '"$C" --name inner --log log --beat --wait & "$C" --name quiet --wait'"#;
    let outer = terminal.spawn(script(scratch, &[], &shell.replace("INNER", inner)));
    terminal.wait_count(" ready", 2);
    (outer, next(scratch))
}

/// There, no process group tells what belongs to whom.
#[test]
fn inner_zklock_killed_at_a_terminal() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    let (mut outer, next) = nested_at(&terminal, &scratch, "INNER; echo status $?");
    process::send(inner_keeper(&outer).parent, Signal::SIGKILL);
    outer.wait().expect_code(0);
    terminal.wait_count("status 137", 1);
    expect_next(&scratch, next);
    outer.wait_until_nothing_is_left();
}

/// The keeper has nothing to end, and it is not continued.
#[test]
fn inner_zklock_killed_and_its_keeper_stopped() {
    let scratch = Scratch::new();
    let mut outer = script(&scratch, &[], r#""$Z" /lock -- "$C" --name inner --wait; "$C" --until end"#).spawn();
    outer.wait_stdout("inner ready");
    let keeper = inner_keeper(&outer);
    process::send(keeper.pid, Signal::SIGSTOP);
    poll::until("it is stopped", || process::look(keeper.pid).filter(|process| process.state == 'T'));
    process::send(keeper.parent, Signal::SIGKILL);
    scratch.touch("end");
    poll::until("the outer one has ended", || outer.has_ended().then_some(()));
    process::send(keeper.pid, Signal::SIGCONT);
    outer.wait().expect_code(0);
    outer.wait_until_nothing_is_left();
}

/// The same for a lock that the inner run took itself.
#[test]
fn outer_killed_inner_has_another_lock() {
    let scratch = Scratch::new();
    let mut outer =
        script(&scratch, &[], r#""$Z" /b --and /lock -- "$C" --name inner --log log --beat --wait"#).spawn();
    outer.wait_stdout("inner ready");
    let log: &Path = &scratch.file("log");
    let arguments = ["--name", "next", "--exit-on", "TERM", "--log", log.to_str().unwrap()];
    let mut next = scratch.zklock().arg("/b").child(arguments).spawn();
    scratch.client().wait_count("/b", 2);
    outer.signal(Signal::SIGKILL);
    outer.wait().expect_signal(Signal::SIGKILL);
    finish(&mut next);
    scratch.log().expect_no_overlap();
    outer.wait_until_nothing_is_left();
}

/// The lock that the inner one of two takes.
const INNER: &str = "/inner";

/// `zklock LOCK -- zklock INNER -- child`, and a daemon of the child's that has left group and session. All of them run.
/// The outer session takes long to expire.
#[track_caller]
fn with_daemon(scratch: &Scratch) -> Running {
    let outer = scratch.zklock().env("ZKLOCK_SESSION_TIMEOUT", "60").arg(LOCK).arg("--").arg(binary());
    let daemon = ["--beat", "--spawn-daemon", "--"].map(str::to_owned).into_iter().chain(scratch.logged("daemon"));
    let short = SHORT_SESSION.as_secs().to_string();
    let mut run = outer
        .args(["--session-timeout", &short, INNER])
        .child(scratch.logged("inner").into_iter().chain(daemon))
        .spawn();
    for _ in ["the command", "what is between", "the daemon"] {
        run.wait_stdout(" ready");
    }
    run
}

/// All that is below the outer guard goes with it, and the keeper of the inner run as well: its session expires.
#[test]
fn outer_killed_inner_has_another() {
    let scratch = Scratch::new();
    let mut outer = with_daemon(&scratch);
    let (_, family) = outer.family(3);
    let mut next = scratch.zklock().arg(LOCK).child(scratch.logged("next")).spawn();
    scratch.wait_queue(2);
    let killed = Moment::now();
    outer.signal(Signal::SIGKILL);
    next.wait_stdout("ready");
    process::expect_dead(&family);
    scratch.client().wait_count(INNER, 0);
    Moment::now().expect_within(EXPIRY, killed, "the inner node has gone");
    outer.wait().expect_signal(Signal::SIGKILL);
    outer.wait_until_nothing_is_left();
    finish(&mut next);
}

#[test]
fn outer_lock_lost_inner_has_another() {
    let scratch = Scratch::new();
    let mut outer = with_daemon(&scratch);
    let (_, family) = outer.family(3);
    let [node] = <[_; 1]>::try_from(scratch.wait_queue(1)).expect("one contender");
    let deleted = Moment::now();
    scratch.delete(&format!("{LOCK}/{node}"));
    outer.wait().expect_code(76);
    process::expect_dead(&family);
    scratch.client().wait_count(INNER, 0);
    Moment::now().expect_within(EXPIRY, deleted, "the inner node has gone");
    outer.wait_until_nothing_is_left();
}

/// Kills an inner zklock together with its guard, which has no time to kill what is below it.
#[track_caller]
fn kill_pair(guard: &Process) {
    process::stop(guard.pid);
    process::send(guard.parent, Signal::SIGKILL);
    process::send(guard.pid, Signal::SIGKILL);
}

/// `zklock LOCK`, with a nested run that no signal to the group of its command reaches. Nothing of the inner one but its
/// keeper asks the servers, and that may be stopped.
#[track_caller]
fn nested_elsewhere(scratch: &Scratch, timeout: Duration) -> Running {
    let timeout = format!("{}s", timeout.as_secs());
    let inner = r#"setsid "$Z" --session-timeout 60s /lock -- "$C" --name inner --log log --beat --wait"#;
    let mut outer = script(scratch, &["--session-timeout", &timeout], &format!("{inner} & wait")).spawn();
    outer.wait_stdout("inner ready");
    outer
}

/// The outer guard has no time to kill what is below it, and the inner keeper cannot see that.
#[test]
fn outer_zklock_killed_with_its_guard() {
    let scratch = Scratch::new();
    let mut outer = nested_elsewhere(&scratch, Duration::from_secs(60));
    let (inner, keeper) = (inner_guard(&outer), inner_keeper(&outer));
    process::stop(keeper.pid);
    let command = process::children(inner.pid)[0].pid;
    let killed = Moment::now();
    kill_pair(&find(&outer, "the outer guard", |process| process.pid == outer.guard()));
    process::wait_dead(command);
    Moment::now().expect_within(SOON, killed, "the inner command is dead");
    process::send(keeper.pid, Signal::SIGCONT);
    outer.wait().expect_signal(Signal::SIGKILL);
    outer.wait_until_nothing_is_left();
    let nodes = scratch.wait_queue(1);
    scratch.delete(&format!("{LOCK}/{}", nodes[0]));
}

/// The same at a terminal, where no process of the outer command but its first is in the reach of the kernel.
#[test]
fn outer_zklock_killed_with_its_guard_at_a_terminal() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    // The outer zklock leads the session, so its death sends SIGHUP (_exit(2)). A command that ends by that, while the outer
    // guard is still there, leaves its children behind, as after any end of its own.
    let (mut outer, next) = nested_at(&terminal, &scratch, "trap '' HUP; INNER & wait");
    let keeper = inner_keeper(&outer).pid;
    process::stop(keeper);
    let killed = Moment::now();
    kill_pair(&find(&outer, "the outer guard", |process| process.pid == outer.guard()));
    outer.wait().expect_signal(Signal::SIGKILL);
    expect_next(&scratch, next);
    process::send(keeper, Signal::SIGCONT);
    outer.wait_until_nothing_is_left();
    // Not only when the lease is over that the inner guard knows of.
    assert!(scratch.last_alive("inner") < killed.after(SOON), "{:?}", scratch.log());
}

/// What happens to the inner run.
type Act = fn(&Running);

/// What the outer command leaves behind goes on if each inner run has seen the end of its own command, or had none.
#[test]
fn what_is_left_beside_an_inner_run_goes_on() {
    let inner_is_killed: Act = |outer| process::send(inner_guard(outer).parent, Signal::SIGKILL);
    let guard_is_killed: Act = |outer| process::send(inner_guard(outer).pid, Signal::SIGKILL);
    let keeper_is_killed: Act = |outer| process::send(inner_keeper(outer).pid, Signal::SIGKILL);
    let waiter_is_killed: Act = |outer| process::send(inner_keeper(outer).parent, Signal::SIGKILL);
    let cases: [(_, &str, Act); 6] = [
        ("ends", r#""$Z" /lock true"#, |_| ()),
        ("fails", r#""$Z" /lock -- "$C" --exit 3"#, |_| ()),
        ("zklock is killed", r#""$Z" /lock -- "$C" --name inner --wait"#, inner_is_killed),
        ("guard is killed", r#""$Z" /lock -- "$C" --name inner --wait"#, guard_is_killed),
        ("keeper is killed", r#""$Z" /lock -- "$C" --name inner --wait"#, keeper_is_killed),
        ("waits, and is killed", r#""$Z" /lock --and /other -- "$C" --name inner"#, waiter_is_killed),
    ];
    for (what, inner, act) in cases {
        let scratch = Scratch::new();
        let mut other = scratch.zklock().arg("/other").child(scratch.logged("other")).spawn();
        other.wait_stdout("ready");
        let shell = format!(r#"setsid "$C" --name daemon --wait & {inner} 2>inner; "$C" --name outer --until end"#);
        let mut outer = script(&scratch, &["--session-timeout", "10"], &shell).spawn();
        let is_ready = |name: &str| outer.stdout().contains(&format!("{name} ready\n")).then_some(());
        poll::until("the daemon", || is_ready("daemon"));
        if inner.ends_with("--wait") {
            poll::until("the inner command", || is_ready("inner"));
        } else if inner.contains("/other") {
            scratch.client().wait_count("/other", 2);
        }
        act(&outer);
        outer.wait_stdout("outer ready");
        scratch.touch("end");
        let output = outer.wait().expect_code(0);
        // The keeper of an inner run that was killed may be counted as well.
        let stderr = output.stderr();
        assert!(stderr.ends_with(" on without the lock\n") && stderr.lines().count() == 1, "{what}: {output}");
        let daemon = outer.processes().into_iter().filter(|process| process.name == "child");
        daemon.for_each(|daemon| process::send(daemon.pid, Signal::SIGKILL));
        outer.wait_until_nothing_is_left();
        finish(&mut other);
    }
}
