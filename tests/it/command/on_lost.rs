//! `--on-lost`: what is run when the lock was lost and the command has been stopped.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::harness::daemon::left_behind;
use crate::harness::moment::Moment;
use crate::harness::process;
use crate::harness::running::{Output, Running, finish};
use crate::harness::scratch::{LASTING, Scratch, direct};
use crate::harness::times::{AT_ONCE, SHORT_SESSION};
use crate::harness::zklock::child;

/// A command line for `--on-lost`: the child, named `after`, with these arguments.
fn after(arguments: &str) -> String {
    format!("exec '{}' --name after --beat --log log {arguments}", child().display())
}

/// A holder whose command nothing but SIGKILL ends, and what is to run when it has been stopped.
#[track_caller]
fn with_after(scratch: &Scratch, options: &[&str], after: &str) -> Running {
    scratch.hold_with(&[options, &["--on-lost", after]].concat(), &["--wait"])
}

/// zklock ended with the status of a lost lock after `after` had run, once and not beside the command.
#[track_caller]
fn expect_after(scratch: &Scratch, run: &mut Running) -> Output {
    let output = run.wait().expect_code(76);
    let log = scratch.log();
    assert_eq!(log.order().iter().filter(|name| **name == "after").count(), 1, "{log:?}\n{output}");
    assert!(scratch.last_alive("holder") < scratch.begin("after"), "{log:?}\n{output}");
    assert_eq!(output.stderr().lines().count(), 1, "{output}");
    run.wait_until_nothing_is_left();
    output
}

#[test]
fn told_which_lock_was_lost() {
    let scratch = Scratch::new().with_lock();
    let mut run = with_after(&scratch, &[], &after("--env"));
    let names = ["ZKLOCK_PATH", "ZKLOCK_NODE", "ZKLOCK_TOKEN", "ZKLOCK_SESSION", "ZKLOCK_MODE"];
    let wanted: Vec<_> = names.iter().map(|name| format!("{name}={}", run.variable(name))).collect();
    scratch.delete_holder();
    let output = expect_after(&scratch, &mut run).stdout();
    let (_, told) = output.split_once("holder ready\n").expect("the command was ready");
    for line in wanted {
        assert!(told.lines().any(|told| told == line), "{line}\n{output}");
    }
    assert!(!told.contains("ZKLOCK_HELD") && !told.contains("ZKLOCK_LENDER"), "{output}");
}

#[test]
fn run_when_nothing_is_left_of_the_command() {
    let scratch = Scratch::new().with_lock();
    let daemon = ["--exit-on", "TERM", "--spawn-daemon", "--", "--name", "daemon", "--wait", "--beat", "--log", "log"];
    let mut run = scratch.start(&direct(), "holder", &["--on-lost", &after("")], &daemon);
    run.wait_stdout("daemon ready");
    process::send(run.keeper(), Signal::SIGKILL);
    let output = expect_after(&scratch, &mut run);
    assert!(output.stderr().contains("the keeper process died"), "{output}");
    assert!(scratch.last_alive("daemon") < scratch.begin("after"));
    // Only the server can remove the node.
    scratch.wait_queue(0);
}

#[test]
fn run_for_descendants() {
    let scratch = Scratch::new().with_lock();
    let mut run = left_behind(&scratch, &["--wait-descendants", "--on-lost", &after("")], &[]);
    scratch.delete_holder();
    expect_after(&scratch, &mut run);
    assert!(scratch.last_alive("daemon") < scratch.begin("after"));
}

#[test]
fn not_run_without_a_loss() {
    let scratch = Scratch::new().with_lock();
    let script = after("");
    let on_lost = |options: &[&str], child: &[&str]| {
        scratch.start(&direct(), "other", &[&LASTING[..], &["--on-lost", &script], options].concat(), child)
    };
    on_lost(&[], &["--exit", "76"]).wait().expect_code(76);
    on_lost(&[], &["--die-of", "KILL"]).wait().expect_signal(Signal::SIGKILL);
    on_lost(&["--max-run", "300ms"], &["--exit-on", "TERM"]).wait().expect_code(124);
    let mut holder = scratch.hold();
    on_lost(&["-n"], &[]).wait().expect_code(75);
    on_lost(&["-w", "2s"], &[]).wait().expect_code(75);
    // A waiter loses its place, not the lock.
    let mut waiter = on_lost(&[], &[]);
    scratch.wait_queue(2);
    let path = &scratch.contenders()[1].path;
    scratch.wait_watched(path);
    scratch.delete(path);
    waiter.wait_stderr("queueing again");
    finish(&mut holder);
    waiter.wait().expect_code(0);
    assert!(!scratch.log().order().contains(&"after"), "{:?}", scratch.log());
}

#[test]
fn does_not_delay_the_release_and_gets_each_signal_once() {
    let scratch = Scratch::new().with_lock();
    let mut run = with_after(&scratch, &[], &after("--exit-on TERM"));
    let mut next = scratch.queue("next", 1);
    scratch.delete_holder();
    run.wait_stdout("after ready");
    next.wait_stdout("ready");
    // Longer than any lease of the lock that was lost.
    scratch.wait_alive_at("after", Moment::now().after(SHORT_SESSION + Duration::from_secs(1)));
    assert!(!run.has_ended());
    run.signal(Signal::SIGUSR1);
    run.wait_stdout("after signal USR1");
    run.signal(Signal::SIGTERM);
    let output = expect_after(&scratch, &mut run).stdout();
    assert!(output.ends_with("after ready\nafter signal USR1\nafter signal TERM\n"), "{output}");
    finish(&mut next);
}

#[test]
fn does_not_wait_for_the_release() {
    let (scratch, proxy) = Scratch::proxied();
    let on_lost = after("--exit 5");
    let mut run = scratch.start(&proxy.address(), "holder", &["-k", "0", "--on-lost", &on_lost], &["--wait"]);
    run.wait_stdout("holder ready");
    proxy.hold();
    expect_after(&scratch, &mut run);
    scratch.begin("after").expect_within(AT_ONCE, scratch.last_alive("holder"), "it begins at once");
    // The node goes with the session.
    scratch.wait_queue(0);
}

#[test]
fn outlives_a_killed_zklock() {
    let scratch = Scratch::new().with_lock();
    let mut run = with_after(&scratch, &[], &after("--until end"));
    scratch.delete_holder();
    run.wait_stdout("after ready");
    run.signal(Signal::SIGKILL);
    run.wait().expect_signal(Signal::SIGKILL);
    scratch.wait_alive_at("after", Moment::now().after(Duration::from_secs(1)));
    scratch.touch("end");
    run.wait_until_nothing_is_left();
    assert!(scratch.log().runs()[1].ended, "it was not killed");
}

#[test]
fn missing_shell_is_one_line() {
    let scratch = Scratch::new().with_lock();
    let job = scratch.job(&direct(), "holder", &["--on-lost", "true"], &["--wait"]).env("SHELL", "/no/such/shell");
    let mut run = job.spawn();
    run.wait_stdout("holder ready");
    scratch.delete_holder();
    let output = run.wait().expect_code(76);
    let said = output.stderr();
    let [lost, shell] = said.lines().collect::<Vec<_>>()[..] else { panic!("{output}") };
    assert!(lost.contains("lost the lock"), "{output}");
    assert!(shell.starts_with("zklock: --on-lost: /no/such/shell: No such file"), "{output}");
}
