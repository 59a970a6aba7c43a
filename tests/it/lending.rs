//! A lock that one zklock lends to another below it: how long it is held, and who dies with whom.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::proxy::Proxy;
use crate::harness::running::{Running, finish, silent};
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::terminal::Terminal;
use crate::harness::times::{BRIEF_SESSION, SOON};
use crate::harness::zklock::{Zklock, binary, child, is_keeper};

/// The name of the process of a zklock whose command has ended.
const LEAVING: &str = "zklock-leaving";

/// A zklock that runs a shell script under [`LOCK`]. In the script, `$Z` is zklock and `$C` the command of
/// tests/child/main.rs; `log` is the log of the place.
fn script(scratch: &Scratch, options: &[&str], script: &str) -> Zklock {
    let shell = scratch.zklock().env("SHELL", "/bin/sh").env("Z", binary()).env("C", child());
    shell.arg(LOCK).args(options).args(["-c", script])
}

/// A contender for [`LOCK`] that has queued behind one other.
#[track_caller]
fn next(scratch: &Scratch) -> Running {
    let next = scratch.zklock().arg(LOCK).child(scratch.logged("next")).spawn();
    scratch.wait_queue(2);
    next
}

#[track_caller]
fn wait_for_name(run: &Running, name: impl Display) {
    let name = name.to_string();
    poll::until(&name, || process::look(run.pid()).filter(|process| process.name == name));
}

/// The process of this name below a run.
#[track_caller]
fn find(run: &Running, what: &str, is_it: impl Fn(&process::Process) -> bool) -> process::Process {
    poll::until(what, || run.processes().into_iter().find(|process| is_it(process)))
}

/// The keeper of the zklock below `run`.
#[track_caller]
fn inner_keeper(run: &Running) -> process::Process {
    let outer = run.keeper();
    find(run, "the inner keeper", |process| process.pid != outer && is_keeper(process))
}

#[test]
fn a_nested_run_finds_the_lock_under_another_chroot() {
    let scratch = Scratch::new();
    let (server, chroot) = (direct(), scratch.chroot().path());
    let inner = format!(r#""$Z" -n -z {server} {chroot}{LOCK} -- "$C" --exit 6"#);
    silent(script(&scratch, &[], &inner).run().expect_code(6));
}

#[test]
fn several_locks_of_which_one_is_lent_and_one_is_busy() {
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

// Who ends first.

#[test]
fn the_lock_is_held_until_a_nested_run_in_the_background_has_ended() {
    let scratch = Scratch::new();
    let background =
        r#""$Z" /lock -- "$C" --name inner --log log --beat --until go & "$C" --until end --exit 3; exit 3"#;
    let mut outer = script(&scratch, &[], background).spawn();
    outer.wait_stdout("inner ready");
    let mut next = next(&scratch);
    scratch.touch("end");
    wait_for_name(&outer, LEAVING);
    // It has decided by then.
    let decided = Moment::now().after(Duration::from_millis(100));
    scratch.wait_alive_at("inner", decided);
    assert_eq!(scratch.client().children(LOCK).len(), 2);
    scratch.touch("go");
    outer.wait().expect_code(3);
    next.wait_stdout("ready");
    finish(&mut next);
    assert_eq!(scratch.log().expect_no_overlap().order(), ["inner", "next"]);
}

#[test]
fn a_daemon_beside_a_nested_run_does_not_hold_the_lock() {
    let scratch = Scratch::new();
    let both = r#""$C" --name daemon --spawn-daemon -- --name daemon --until dead
        "$Z" /lock -- "$C" --name inner --log log --beat --until go & "$C" --name outer --until end"#;
    let mut outer = script(&scratch, &[], both).spawn();
    outer.wait_stdout("inner ready");
    let mut next = next(&scratch);
    scratch.touch("end");
    wait_for_name(&outer, LEAVING);
    scratch.touch("go");
    outer.wait().expect_code(0);
    next.wait_stdout("ready");
    finish(&mut next);
    scratch.touch("dead");
    outer.wait_until_nothing_is_left();
    assert_eq!(scratch.log().expect_no_overlap().order(), ["inner", "next"]);
}

/// The inner command has ended, and what it left behind is waited for: by the outer zklock, too.
#[test]
fn descendants_that_a_nested_run_waits_for_hold_the_lock() {
    let scratch = Scratch::new();
    let background = r#""$Z" --wait-descendants /lock -- "$C" --spawn-daemon -- --name inner --log log --beat --until go &
        "$C" --name outer --until end"#;
    let mut outer = script(&scratch, &[], background).spawn();
    outer.wait_stdout("inner ready");
    let inner = find(&outer, "the inner zklock", |process| {
        process.name.starts_with("zklock-") && { process.parent != outer.pid() && process.pid != outer.pid() }
    });
    let supervisor = if inner.name.contains("keep") { inner.parent } else { inner.pid };
    poll::until("its command has ended", || {
        let children = process::children(supervisor);
        children.iter().any(|process| process.name == "child" && process.session != inner.session).then_some(())
    });
    let mut next = next(&scratch);
    scratch.touch("end");
    wait_for_name(&outer, LEAVING);
    let decided = Moment::now().after(Duration::from_millis(100));
    poll::until("the descendant lives on", || {
        let log = scratch.log();
        let lives = |name: &str| scratch.last_alive(name) > decided;
        log.runs().iter().any(|run| run.name == "next" || lives("inner")).then_some(())
    });
    scratch.touch("go");
    outer.wait().expect_code(0);
    next.wait_stdout("ready");
    finish(&mut next);
    let log = scratch.log().expect_no_overlap();
    assert!(log.runs().iter().all(|run| run.ended), "{log:?}");
    assert_eq!(log.order(), ["inner", "next"]);
}

/// The outer command ends while the inner zklock is starting: it uses the lock, and then the outer one stays, or queues
/// for one of its own.
#[test]
fn an_outer_run_that_is_just_leaving() {
    let scratch = Scratch::new();
    let names: Vec<String> = (0..16).map(|n| format!("inner{n}")).collect();
    let mut jobs: Vec<Running> = Vec::new();
    for (n, name) in names.iter().enumerate() {
        // From ending at once to ending when the inner zklock has long been there.
        let delay = format!("sleep 0.0{n:02}");
        let both = format!(r#"("$Z" /lock -- "$C" --name {name} --log log --beat) & {delay}"#);
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

/// A zklock that may still use the lock when the outer command ends, and then finds that it may not any more, is not
/// waited for: it waits for us.
#[test]
fn a_nested_run_that_comes_too_late_queues_for_itself() {
    let scratch = Scratch::new();
    let proxy = Proxy::zookeeper(&direct());
    proxy.hold();
    let servers = scratch.chroot().by(proxy.address());
    let both = format!(r#""$Z" -z {servers} /lock -- "$C" --name late --env & "$C" --env --until end"#);
    // Nothing else is to wake the outer one, but the end of its lease half a minute later.
    let mut outer = script(&scratch, &["--session-timeout", "60s"], &both).spawn();
    outer.wait_stdout("ready");
    find(&outer, "the nested zklock", |process| process.name == "zklock-inner");
    poll::until("it connects", || (proxy.accepted() > 0).then_some(()));
    scratch.touch("end");
    wait_for_name(&outer, LEAVING);
    proxy.pass();
    outer.wait_stdout_at_most(SOON, "late ready");
    let stdout = outer.wait().expect_code(0).stdout();
    let nodes: Vec<_> = stdout.lines().filter(|line| line.starts_with("ZKLOCK_NODE=")).collect();
    assert!(nodes.len() == 2 && nodes[0] != nodes[1], "{nodes:?}");
    outer.wait_until_nothing_is_left();
}

// Who dies with whom.

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
    next.wait_stdout("ready");
    finish(&mut next);
    assert_eq!(scratch.log().expect_no_overlap().order(), ["inner", "next"]);
}

#[test]
fn outer_killed_the_nested_command_is_dead_before_the_next_one_starts() {
    let scratch = Scratch::new();
    let (mut outer, next) = nested(&scratch);
    outer.signal(Signal::SIGKILL);
    outer.wait().expect_signal(Signal::SIGKILL);
    expect_next(&scratch, next);
    outer.wait_until_nothing_is_left();
}

#[test]
fn outer_killed_with_its_keeper_the_nested_command_is_dead_before_the_next_one_starts() {
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
fn outer_keeper_killed_the_nested_command_is_dead_before_the_next_one_starts() {
    let scratch = Scratch::new();
    let (mut outer, next) = nested_briefly(&scratch);
    process::send(outer.keeper(), Signal::SIGKILL);
    outer.wait().expect_code(76);
    expect_next(&scratch, next);
}

#[test]
fn the_outer_node_deleted_both_commands_are_killed_at_once() {
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
    next.wait_stdout("ready");
    finish(&mut next);
}

#[test]
fn the_nested_keeper_killed_the_outer_run_keeps_the_lock() {
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
fn the_nested_keeper_stopped_the_outer_run_keeps_the_lock() {
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
fn the_nested_zklock_killed_its_command_goes_with_it() {
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

/// A shell at a terminal below a zklock, as `shell` says: `INNER` there is another zklock on the same lock. Its command is
/// a shell, whose child writes the log. The other one waits for the lock.
#[track_caller]
fn nested_at(terminal: &Terminal, scratch: &Scratch, shell: &str) -> (Running, Running) {
    let inner = r#""$Z" /lock -c '"$C" --name inner --log log --beat --wait & "$C" --name quiet --wait'"#;
    let outer = terminal.spawn(script(scratch, &[], &shell.replace("INNER", inner)));
    terminal.wait_count(" ready", 2);
    (outer, next(scratch))
}

/// There, no process group tells what belongs to whom.
#[test]
fn the_nested_zklock_killed_at_a_terminal_all_of_its_command_goes_with_it() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    let (mut outer, next) = nested_at(&terminal, &scratch, "INNER; echo status $?");
    process::send(inner_keeper(&outer).parent, Signal::SIGKILL);
    outer.wait().expect_code(0);
    terminal.wait_count("status 137", 1);
    expect_next(&scratch, next);
    outer.wait_until_nothing_is_left();
}

#[test]
fn the_outer_run_keeps_the_lock_until_the_command_of_a_killed_nested_one_is_dead() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    let (mut outer, next) = nested_at(&terminal, &scratch, "exec INNER");
    let keeper = inner_keeper(&outer);
    process::send(keeper.pid, Signal::SIGSTOP);
    poll::until("it is stopped", || process::look(keeper.pid).filter(|process| process.state == 'T'));
    process::send(keeper.parent, Signal::SIGKILL);
    wait_for_name(&outer, LEAVING);
    let decided = Moment::now().after(Duration::from_millis(100));
    scratch.wait_alive_at("inner", decided);
    assert_eq!(scratch.client().children(LOCK).len(), 2);
    process::send(keeper.pid, Signal::SIGCONT);
    outer.wait().expect_signal(Signal::SIGKILL);
    expect_next(&scratch, next);
    outer.wait_until_nothing_is_left();
}

/// It has nothing to end, and nobody continues it.
#[test]
fn a_stopped_keeper_of_a_killed_nested_run_of_which_nothing_is_left_does_not_hold_the_lock() {
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

/// What holds for a lock that is lent holds for one that the inner run took itself.
#[test]
fn outer_killed_a_nested_run_with_another_lock_gives_that_up() {
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
    next.wait_stdout("ready");
    finish(&mut next);
    scratch.log().expect_no_overlap();
    outer.wait_until_nothing_is_left();
}
