//! A lock that one zklock lends to another below it: how long it is held, and who dies with whom.

use std::fmt::Display;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;

use crate::harness::lock::SOON;
use crate::harness::place::{LOCK, Place};
use crate::harness::poll;
use crate::harness::process;
use crate::harness::proxy::Proxy;
use crate::harness::running::Running;
use crate::harness::running::{finish, silent};
use crate::harness::scene::Moment;
use crate::harness::server::Server;
use crate::harness::terminal::Terminal;
use crate::harness::zklock::{Zklock, binary, child, is_keeper};

/// The name of the process of a zklock whose command has ended.
const LEAVING: &str = "zklock-leaving";

/// A zklock that runs a shell script under [`LOCK`]. In the script, `$Z` is zklock and `$C` the command of
/// tests/child/main.rs; `log` is the log of the place.
fn script(place: &Place, options: &[&str], script: &str) -> Zklock {
    let shell = place.zklock().env("SHELL", "/bin/sh").env("Z", binary()).env("C", child());
    shell.arg(LOCK).args(options).args(["-c", script])
}

/// Lets a command end that waits for this file.
fn touch(place: &Place, name: &str) {
    std::fs::write(place.file(name), "").expect("a file can be created");
}

/// A contender for [`LOCK`] that has queued behind one other.
#[track_caller]
fn next(place: &Place) -> Running {
    let next = place.zklock().arg(LOCK).child(place.logged("next")).spawn();
    place.wait_queue(2);
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
    let place = Place::new();
    let (server, chroot) = (Server::shared().address(), place.chroot().path());
    let inner = format!(r#""$Z" -n -z {server} {chroot}{LOCK} -- "$C" --exit 6"#);
    silent(script(&place, &[], &inner).run().expect_code(6));
}

#[test]
fn several_locks_of_which_one_is_lent_and_one_is_busy() {
    let place = Place::new();
    let mut stranger = place.zklock().arg("/b").child(place.logged("stranger")).spawn();
    stranger.wait_stdout("ready");
    let inner = r#""$Z" -n /lock --and /a --and /b -- true; echo status $?; "$C" --name outer --until end"#;
    let mut outer = script(&place, &[], inner).spawn();
    outer.wait_stdout("status 75");
    outer.wait_stdout("outer ready");
    place.wait_left(["/a", LOCK, "/b"], [0, 1, 1]);
    touch(&place, "end");
    outer.wait().expect_code(0);
    silent(finish(&mut stranger));
}

// Who ends first.

#[test]
fn the_lock_is_held_until_a_nested_run_in_the_background_has_ended() {
    let place = Place::new();
    let background =
        r#""$Z" /lock -- "$C" --name inner --log log --beat --until go & "$C" --until end --exit 3; exit 3"#;
    let mut outer = script(&place, &[], background).spawn();
    outer.wait_stdout("inner ready");
    let mut next = next(&place);
    touch(&place, "end");
    wait_for_name(&outer, LEAVING);
    // It has decided by then.
    let decided = Moment::now().after(Duration::from_millis(100));
    poll::until("the inner one lives on", || {
        place.log().runs().iter().any(|run| run.name == "inner" && run.last > nanos(decided)).then_some(())
    });
    assert_eq!(place.client().children(LOCK).len(), 2);
    touch(&place, "go");
    outer.wait().expect_code(3);
    next.wait_stdout("ready");
    finish(&mut next);
    assert_eq!(place.log().expect_no_overlap().order(), ["inner", "next"]);
}

fn nanos(moment: Moment) -> u64 {
    u64::try_from(moment.since_boot().as_nanos()).expect("a machine is not up for centuries")
}

#[test]
fn a_daemon_beside_a_nested_run_does_not_hold_the_lock() {
    let place = Place::new();
    let both = r#""$C" --name daemon --spawn-daemon -- --name daemon --until dead
        "$Z" /lock -- "$C" --name inner --log log --beat --until go & "$C" --name outer --until end"#;
    let mut outer = script(&place, &[], both).spawn();
    outer.wait_stdout("inner ready");
    let mut next = next(&place);
    touch(&place, "end");
    wait_for_name(&outer, LEAVING);
    touch(&place, "go");
    outer.wait().expect_code(0);
    next.wait_stdout("ready");
    finish(&mut next);
    touch(&place, "dead");
    outer.wait_until_nothing_is_left();
    assert_eq!(place.log().expect_no_overlap().order(), ["inner", "next"]);
}

/// The inner command has ended, and what it left behind is waited for: by the outer zklock, too.
#[test]
fn descendants_that_a_nested_run_waits_for_hold_the_lock() {
    let place = Place::new();
    let background = r#""$Z" --wait-descendants /lock -- "$C" --spawn-daemon -- --name inner --log log --beat --until go &
        "$C" --name outer --until end"#;
    let mut outer = script(&place, &[], background).spawn();
    outer.wait_stdout("inner ready");
    let inner = find(&outer, "the inner zklock", |process| {
        process.name.starts_with("zklock-") && { process.parent != outer.pid() && process.pid != outer.pid() }
    });
    let supervisor = if inner.name.contains("keep") { inner.parent } else { inner.pid };
    poll::until("its command has ended", || {
        let children = process::children(supervisor);
        children.iter().any(|process| process.name == "child" && process.session != inner.session).then_some(())
    });
    let mut next = next(&place);
    touch(&place, "end");
    wait_for_name(&outer, LEAVING);
    let decided = Moment::now().after(Duration::from_millis(100));
    poll::until("the descendant lives on", || {
        let log = place.log();
        log.runs().iter().any(|run| run.name == "next" || run.last > nanos(decided)).then_some(())
    });
    touch(&place, "go");
    outer.wait().expect_code(0);
    next.wait_stdout("ready");
    finish(&mut next);
    let log = place.log().expect_no_overlap();
    assert!(log.runs().iter().all(|run| run.ended), "{log:?}");
    assert_eq!(log.order(), ["inner", "next"]);
}

/// The outer command ends while the inner zklock is starting: it uses the lock, and then the outer one stays, or queues
/// for one of its own.
#[test]
fn an_outer_run_that_is_just_leaving() {
    let place = Place::new();
    let names: Vec<String> = (0..16).map(|n| format!("inner{n}")).collect();
    let mut jobs: Vec<Running> = Vec::new();
    for (n, name) in names.iter().enumerate() {
        // From ending at once to ending when the inner zklock has long been there.
        let delay = format!("sleep 0.0{n:02}");
        let both = format!(r#"("$Z" /lock -- "$C" --name {name} --log log --beat) & {delay}"#);
        jobs.push(script(&place, &[], &both).spawn());
    }
    for job in &mut jobs {
        job.wait().expect_code(0);
        job.wait_until_nothing_is_left();
    }
    let log = place.log().expect_no_overlap();
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
    let place = Place::new();
    let proxy = Proxy::zookeeper(&Server::shared().address());
    proxy.hold();
    let servers = place.chroot().by(proxy.address());
    let both = format!(r#""$Z" -z {servers} /lock -- "$C" --name late --env & "$C" --env --until end"#);
    // Nothing else is to wake the outer one, but the end of its lease half a minute later.
    let mut outer = script(&place, &["--session-timeout", "60s"], &both).spawn();
    outer.wait_stdout("ready");
    find(&outer, "the nested zklock", |process| process.name == "zklock-inner");
    poll::until("it connects", || (proxy.accepted() > 0).then_some(()));
    touch(&place, "end");
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
fn nested(place: &Place) -> (Running, Running) {
    nested_by(place, script(place, &[], NESTED))
}

/// The session timeout where a session has to end by itself, or a lease: one in which a pause of three seconds still
/// disturbs nobody.
const BRIEF: Duration = Duration::from_secs(10);

/// The same under [`BRIEF`].
#[track_caller]
fn nested_briefly(place: &Place) -> (Running, Running) {
    nested_by(place, script(place, &[], NESTED).env("ZKLOCK_SESSION_TIMEOUT", BRIEF.as_secs().to_string()))
}

#[track_caller]
fn nested_by(place: &Place, outer: Zklock) -> (Running, Running) {
    let mut outer = outer.spawn();
    outer.wait_stdout("inner ready");
    let next = next(place);
    (outer, next)
}

/// The inner command is dead before the next holder's runs.
#[track_caller]
fn expect_next(place: &Place, mut next: Running) {
    next.wait_stdout("ready");
    finish(&mut next);
    assert_eq!(place.log().expect_no_overlap().order(), ["inner", "next"]);
}

#[test]
fn outer_killed_the_nested_command_is_dead_before_the_next_one_starts() {
    let place = Place::new();
    let (mut outer, next) = nested(&place);
    outer.signal(Signal::SIGKILL);
    outer.wait().expect_signal(Signal::SIGKILL);
    expect_next(&place, next);
    outer.wait_until_nothing_is_left();
}

#[test]
fn outer_killed_with_its_keeper_the_nested_command_is_dead_before_the_next_one_starts() {
    let place = Place::new();
    let (mut outer, next) = nested_briefly(&place);
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
    expect_next(&place, next);
    outer.wait_until_nothing_is_left();
    // Not only when the session of the outer one is over, which is when the next one starts.
    let log = place.log();
    let inner = log.runs().iter().find(|run| run.name == "inner").expect("it ran");
    assert!(inner.last < nanos(killed.after(BRIEF / 2)), "{log:?}");
}

#[test]
fn outer_keeper_killed_the_nested_command_is_dead_before_the_next_one_starts() {
    let place = Place::new();
    let (mut outer, next) = nested_briefly(&place);
    process::send(outer.keeper(), Signal::SIGKILL);
    outer.wait().expect_code(76);
    expect_next(&place, next);
}

#[test]
fn the_outer_node_deleted_both_commands_are_killed_at_once() {
    let place = Place::new();
    // A stop would take far longer.
    let (mut outer, next) =
        nested_by(&place, script(&place, &["--session-timeout", "60s", "--kill-after", "15s"], NESTED));
    let holder = place.wait_queue(2).remove(0);
    let deleted = Moment::now();
    place.client().delete(&format!("{LOCK}/{holder}")).unwrap();
    outer.wait().expect_code(76);
    Moment::now().expect_within(SOON, deleted, "the outer zklock has gone");
    let mut next = next;
    next.wait_stdout("ready");
    finish(&mut next);
}

#[test]
fn the_nested_keeper_killed_the_outer_run_keeps_the_lock() {
    let place = Place::new();
    let (mut outer, next) = nested_briefly(&place);
    process::send(inner_keeper(&outer).pid, Signal::SIGKILL);
    outer.wait_stdout("status 76");
    outer.wait_stdout("outer ready");
    assert_eq!(place.client().children(LOCK).len(), 2);
    touch(&place, "end");
    outer.wait().expect_code(0);
    expect_next(&place, next);
}

#[test]
fn the_nested_keeper_stopped_the_outer_run_keeps_the_lock() {
    let place = Place::new();
    let (mut outer, next) = nested_briefly(&place);
    let keeper = inner_keeper(&outer).pid;
    process::send(keeper, Signal::SIGSTOP);
    outer.wait_stdout("status 76");
    process::send(keeper, Signal::SIGCONT);
    outer.wait_stdout("outer ready");
    assert_eq!(place.client().children(LOCK).len(), 2);
    touch(&place, "end");
    outer.wait().expect_code(0);
    expect_next(&place, next);
}

#[test]
fn the_nested_zklock_killed_its_command_goes_with_it() {
    let place = Place::new();
    let (mut outer, next) = nested(&place);
    let keeper = inner_keeper(&outer);
    process::send(keeper.parent, Signal::SIGKILL);
    outer.wait_stdout("outer ready");
    assert_eq!(place.client().children(LOCK).len(), 2);
    touch(&place, "end");
    outer.wait().expect_code(0);
    expect_next(&place, next);
}

/// A shell at a terminal below a zklock, as `shell` says: `INNER` there is another zklock on the same lock. Its command is
/// a shell, whose child writes the log. The other one waits for the lock.
#[track_caller]
fn nested_at(terminal: &Terminal, place: &Place, shell: &str) -> (Running, Running) {
    let inner = r#""$Z" /lock -c '"$C" --name inner --log log --beat --wait & "$C" --name quiet --wait'"#;
    let outer = terminal.spawn(script(place, &[], &shell.replace("INNER", inner)));
    terminal.wait_count(" ready", 2);
    (outer, next(place))
}

/// There, no process group tells what belongs to whom.
#[test]
fn the_nested_zklock_killed_at_a_terminal_all_of_its_command_goes_with_it() {
    let place = Place::new();
    let terminal = Terminal::new(80);
    let (mut outer, next) = nested_at(&terminal, &place, "INNER; echo status $?");
    process::send(inner_keeper(&outer).parent, Signal::SIGKILL);
    outer.wait().expect_code(0);
    terminal.wait_count("status 137", 1);
    expect_next(&place, next);
    outer.wait_until_nothing_is_left();
}

#[test]
fn the_outer_run_keeps_the_lock_until_the_command_of_a_killed_nested_one_is_dead() {
    let place = Place::new();
    let terminal = Terminal::new(80);
    let (mut outer, next) = nested_at(&terminal, &place, "exec INNER");
    let keeper = inner_keeper(&outer);
    process::send(keeper.pid, Signal::SIGSTOP);
    poll::until("it is stopped", || process::look(keeper.pid).filter(|process| process.state == 'T'));
    process::send(keeper.parent, Signal::SIGKILL);
    wait_for_name(&outer, LEAVING);
    let decided = Moment::now().after(Duration::from_millis(100));
    poll::until("what it has started lives on", || {
        place.log().runs().iter().any(|run| run.name == "inner" && run.last > nanos(decided)).then_some(())
    });
    assert_eq!(place.client().children(LOCK).len(), 2);
    process::send(keeper.pid, Signal::SIGCONT);
    outer.wait().expect_signal(Signal::SIGKILL);
    expect_next(&place, next);
    outer.wait_until_nothing_is_left();
}

/// It has nothing to end, and nobody continues it.
#[test]
fn a_stopped_keeper_of_a_killed_nested_run_of_which_nothing_is_left_does_not_hold_the_lock() {
    let place = Place::new();
    let mut outer = script(&place, &[], r#""$Z" /lock -- "$C" --name inner --wait; "$C" --until end"#).spawn();
    outer.wait_stdout("inner ready");
    let keeper = inner_keeper(&outer);
    process::send(keeper.pid, Signal::SIGSTOP);
    poll::until("it is stopped", || process::look(keeper.pid).filter(|process| process.state == 'T'));
    process::send(keeper.parent, Signal::SIGKILL);
    touch(&place, "end");
    poll::until("the outer one has ended", || outer.has_ended().then_some(()));
    process::send(keeper.pid, Signal::SIGCONT);
    outer.wait().expect_code(0);
    outer.wait_until_nothing_is_left();
}

/// What holds for a lock that is lent holds for one that the inner run took itself.
#[test]
fn outer_killed_a_nested_run_with_another_lock_gives_that_up() {
    let place = Place::new();
    let mut outer = script(&place, &[], r#""$Z" /b --and /lock -- "$C" --name inner --log log --beat --wait"#).spawn();
    outer.wait_stdout("inner ready");
    let log: &Path = &place.file("log");
    let arguments = ["--name", "next", "--exit-on", "TERM", "--log", log.to_str().unwrap()];
    let mut next = place.zklock().arg("/b").child(arguments).spawn();
    place.client().wait_count("/b", 2);
    outer.signal(Signal::SIGKILL);
    outer.wait().expect_signal(Signal::SIGKILL);
    next.wait_stdout("ready");
    finish(&mut next);
    place.log().expect_no_overlap();
    outer.wait_until_nothing_is_left();
}
