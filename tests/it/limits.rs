//! What ends a command besides itself, what may outlive it, and what follows when the lock was lost.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::harness::daemon::{LEAVES_DAEMON, left_behind, wait_until_reaped};
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::running::{Output, Running, finish};
use crate::harness::scratch::{GRACE, LASTING, LOCK, Scratch, direct};
use crate::harness::server::Server;
use crate::harness::terminal::{CTRL_C, CTRL_Z, Terminal};
use crate::harness::times::{AT_ONCE, LEASE, SHORT_SESSION};
use crate::harness::zklock::child;

/// The time in which a command starts, however slow the machine.
const MAX_RUN: &str = "3";

/// A grace that a test does not wait for, and in which it can do something.
const LONG_GRACE: [&str; 4] = ["--session-timeout", "60", "-k", "15"];

/// What is said about `--max-run`.
#[track_caller]
fn expect_ran_out(run: &mut Running, max_run: &str) -> Output {
    let output = run.wait().expect_code(124);
    let said = format!("zklock: the command has run for {max_run}, the time of --max-run; stopping it\n");
    assert_eq!(output.stderr(), said, "{output}");
    run.wait_until_nothing_is_left();
    output
}

// --max-run.

#[test]
fn after_max_run_come_the_stop_signal_then_sigkill_then_the_release() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold_with(&["--max-run", MAX_RUN, "-k", "2500ms"], &["--wait"]);
    let mut next = scratch.queue("next", 1);
    let output = expect_ran_out(&mut holder, "3s");
    assert!(output.stdout().ends_with("holder ready\nholder signal TERM\nholder signal CONT\n"), "{output}");
    // The log begins a little after the time does: what the program takes to start.
    let lived = scratch.last_alive("holder").since(scratch.begin("holder"));
    assert!(lived >= Duration::from_secs(3), "{lived:?}");
    assert!(lived <= Duration::from_millis(5500) + AT_ONCE, "{lived:?}");
    next.wait_stdout("ready");
    scratch.begin("next").expect_within(AT_ONCE, scratch.last_alive("holder"), "the next one begins");
    finish(&mut next);
    scratch.expect_tidy(&["holder", "next"]);
}

/// No list of the processes shows it for certain, nor does it live for long enough to be looked at and then killed.
#[test]
fn whoever_goes_on_in_a_new_process_all_the_time_is_stopped_after_max_run() {
    const SOURCE: &str = "
        #include <signal.h>
        #include <stdio.h>
        #include <stdlib.h>
        #include <time.h>
        #include <unistd.h>
        int main(void) {
            time_t end = time(NULL) + 60;
            signal(SIGTERM, SIG_IGN);
            puts(\"restless ready\");
            fflush(stdout);
            if (fork()) for (;;) pause();
            setsid();
            while (time(NULL) < end) if (fork()) _exit(0);
            return 0;
        }";
    let directory = tempfile::tempdir().expect("a directory");
    let (source, restless) = (directory.path().join("restless.c"), directory.path().join("restless"));
    std::fs::write(&source, SOURCE).expect("a file can be written");
    // Static: the less there is to copy, the faster it is.
    let compiler = std::process::Command::new("cc").args(["-O1", "-static", "-o"]).args([&restless, &source]).status();
    assert!(compiler.expect("a C compiler").success());
    for _ in 0..3 {
        let scratch = Scratch::new();
        let options = ["--max-run", MAX_RUN, "-k", "100ms", "--"];
        let mut run = scratch.zklock().arg(LOCK).args(options).arg(&restless).spawn();
        run.wait_stdout("restless ready");
        run.wait().expect_code(124);
        // Each look may miss it.
        assert!((0..50).all(|_| run.processes().is_empty()), "{run}");
    }
}

#[test]
fn a_command_that_ends_tidily_after_max_run_gives_124_at_once() {
    let scratch = Scratch::new().with_lock();
    let options = [&LONG_GRACE[..], &["--max-run", MAX_RUN, "--signal", "USR1"]].concat();
    let mut holder = scratch.hold_with(&options, &["--exit-on", "USR1"]);
    let output = expect_ran_out(&mut holder, "3s");
    assert!(output.stdout().ends_with("holder ready\nholder signal USR1\n"), "{output}");
    assert!(output.elapsed < Duration::from_secs(15), "the grace is not waited for\n{output}");
    assert!(scratch.log().runs()[0].ended);
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn whatever_the_command_has_started_is_stopped_after_max_run() {
    let scratch = Scratch::new().with_lock();
    let daemon = ["--exit-on", "TERM", "--spawn-daemon", "--", "--name", "daemon", "--wait"];
    let mut holder = scratch.hold_with(&["--max-run", "6", "-k", "2"], &daemon);
    let output = expect_ran_out(&mut holder, "6s");
    assert!(output.stdout().contains("daemon signal TERM\n"), "{output}");
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn a_command_that_is_quick_enough_does_not_notice_max_run() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold_with(&["--max-run", "20"], &["--exit", "3"]);
    let output = holder.wait().expect_code(3);
    assert_eq!(output.stderr(), "", "{output}");
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn waiting_for_the_lock_does_not_count_as_running() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold();
    let options = [&LASTING[..], &["--max-run", "6"]].concat();
    let mut next = scratch.start(&direct(), "next", &options, &["--exit-on", "TERM"]);
    scratch.wait_queue(2);
    scratch.wait_alive_at("holder", Moment::now().after(Duration::from_secs(7)));
    finish(&mut holder);
    next.wait_stdout("ready");
    finish(&mut next);
    scratch.expect_tidy(&["holder", "next"]);
}

#[test]
fn the_shortest_max_run_is_no_loss_of_the_lock() {
    let scratch = Scratch::new().with_lock();
    // It is over before the command is there: a microsecond.
    let mut run = scratch.start(&direct(), "holder", &["--max-run", "0.000001", "-q"], &["--wait"]);
    expect_ran_out(&mut run, "0ms");
    scratch.wait_queue(0);
}

#[test]
fn a_command_that_is_stopped_runs_out_of_time_all_the_same() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold_with(&["--max-run", MAX_RUN, "-k", "2"], &["--wait"]);
    process::send(holder.command(), Signal::SIGSTOP);
    let output = expect_ran_out(&mut holder, "3s");
    assert!(output.stdout().contains("holder signal TERM\n"), "it was continued for the stop signal\n{output}");
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn a_zklock_that_is_stopped_ends_the_run_when_it_is_continued() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold_with(&["--max-run", MAX_RUN], &["--exit-on", "TERM"]);
    holder.signal(Signal::SIGSTOP);
    scratch.wait_alive_at("holder", scratch.begin("holder").after(Duration::from_millis(3300)));
    holder.signal(Signal::SIGCONT);
    expect_ran_out(&mut holder, "3s");
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn signals_reach_a_command_that_has_run_out_of_time() {
    let scratch = Scratch::new().with_lock();
    let options = [&LONG_GRACE[..], &["--max-run", MAX_RUN]].concat();
    let mut holder = scratch.hold_with(&options, &["--exit-on", "INT"]);
    holder.wait_stdout("holder signal CONT");
    holder.signal(Signal::SIGINT);
    let output = expect_ran_out(&mut holder, "3s");
    assert!(output.stdout().ends_with("holder signal TERM\nholder signal CONT\nholder signal INT\n"), "{output}");
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn a_lock_that_is_lost_after_max_run_is_a_lost_lock() {
    let scratch = Scratch::new().with_lock();
    let options = [&LONG_GRACE[..], &["--max-run", MAX_RUN]].concat();
    let mut holder = scratch.hold_with(&options, &["--wait"]);
    holder.wait_stdout("holder signal TERM");
    scratch.delete_holder();
    let output = holder.wait().expect_code(76);
    let said = output.stderr();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].contains("--max-run") && lines[1].contains("its node was deleted"), "{output}");
    assert_eq!(lines.len(), 2, "{output}");
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn silence_after_max_run_does_not_extend_the_lease() {
    let (scratch, proxy) = Scratch::proxied();
    let mut holder = scratch.start(&proxy.address(), "holder", &["--max-run", MAX_RUN, "-k", "1750ms"], &["--wait"]);
    holder.wait_stdout("holder ready");
    proxy.hold();
    let silence = Moment::now();
    let mut next = scratch.queue("next", 1);
    // Whichever of the two came first, the command is dead within the lease.
    let output = holder.wait();
    assert!([Some(76), Some(124)].contains(&output.status.code()), "{output}");
    scratch.last_alive("holder").expect_within(LEASE, silence, "the holder's command is dead");
    finish(&mut next);
    scratch.expect_tidy(&["holder", "next"]);
}

// --wait-descendants.

#[test]
fn a_daemon_does_not_hold_the_lock() {
    let scratch = Scratch::new().with_lock();
    let mut holder = left_behind(&scratch, &[], &[]);
    let output = holder.wait().expect_code(3);
    assert_eq!(output.stderr(), "", "{output}");
    let mut next = scratch.contend("next");
    next.wait_stdout("ready");
    scratch.wait_alive_at("daemon", scratch.begin("next"));
    finish(&mut next);
    scratch.touch("end");
    holder.wait_until_nothing_is_left();
}

#[test]
fn a_daemon_that_is_waited_for_holds_the_lock() {
    let scratch = Scratch::new().with_lock();
    let short = SHORT_SESSION.as_secs().to_string();
    let mut holder = left_behind(&scratch, &["--wait-descendants", "--session-timeout", &short], &[]);
    let node = scratch.only_contender().path;
    let mut next = scratch.queue("next", 1);
    // Beats go on: the daemon lives for longer than a lease without them.
    scratch.wait_alive_at("daemon", Moment::now().after(LEASE + LEASE / 2));
    assert_eq!(scratch.contenders()[0].path, node);
    assert!(!holder.has_ended());
    scratch.touch("end");
    let output = holder.wait().expect_code(3);
    assert_eq!(output.stderr(), "", "{output}");
    next.wait_stdout("ready");
    scratch.begin("next").expect_within(AT_ONCE, scratch.last_alive("daemon"), "the next one begins");
    finish(&mut next);
    let log = scratch.log();
    assert_eq!(log.order(), ["holder", "daemon", "next"]);
    assert!(log.runs()[1].last < log.runs()[2].begin, "{log:?}");
    scratch.wait_queue(0);
}

#[test]
fn waiting_for_descendants_when_there_are_none_takes_no_time() {
    let scratch = Scratch::new().with_lock();
    let mut run = scratch.hold_with(&["--wait-descendants"], &["--die-of", "USR1"]);
    let output = run.wait().expect_signal(Signal::SIGUSR1);
    assert_eq!(output.stderr(), "", "{output}");
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn each_signal_reaches_the_descendants_that_are_waited_for_once() {
    let scratch = Scratch::new().with_lock();
    let mut holder = left_behind(&scratch, &["--wait-descendants"], &[]);
    for name in ["TERM", "HUP", "USR1", "CONT"] {
        holder.signal(format!("SIG{name}").parse().expect("a signal"));
        holder.wait_stdout(&format!("daemon signal {name}"));
    }
    scratch.touch("end");
    let output = holder.wait().expect_code(3);
    assert_eq!(output.stdout().matches("daemon signal").count(), 4, "{output}");
    scratch.wait_queue(0);
}

#[test]
fn descendants_that_are_waited_for_are_killed_when_the_lock_is_lost() {
    let scratch = Scratch::new().with_lock();
    let mut holder = left_behind(&scratch, &["--wait-descendants"], &[]);
    scratch.delete_holder();
    let output = holder.wait().expect_code(76);
    assert!(output.stderr().contains("its node was deleted"), "{output}");
    holder.wait_until_nothing_is_left();
    scratch.wait_queue(0);
}

#[test]
fn descendants_that_are_waited_for_die_within_the_lease() {
    let server = Server::start();
    let scratch = Scratch::on(server.chroot()).with_lock();
    let daemon = [&LEAVES_DAEMON[..], &["end"]].concat();
    let options = [&GRACE[..], &["--wait-descendants"]].concat();
    let mut holder = scratch.start(&server.address(), "holder", &options, &daemon);
    holder.wait_stdout("daemon ready");
    wait_until_reaped(&scratch);
    server.freeze();
    let frozen = Moment::now();
    let output = holder.wait().expect_code(76);
    assert!(output.stdout().contains("daemon signal TERM\n"), "{output}");
    scratch.last_alive("daemon").expect_within(LEASE, frozen, "the daemon is dead");
    holder.wait_until_nothing_is_left();
    server.thaw();
}

#[test]
fn descendants_that_are_waited_for_die_with_zklock_before_the_release() {
    let scratch = Scratch::new().with_lock();
    let mut holder = left_behind(&scratch, &["--wait-descendants"], &[]);
    let mut next = scratch.queue("next", 1);
    holder.signal(Signal::SIGKILL);
    let killed = Moment::now();
    holder.wait().expect_signal(Signal::SIGKILL);
    next.wait_stdout("ready");
    scratch.begin("next").expect_within(AT_ONCE, killed, "the next one begins");
    assert!(scratch.last_alive("daemon") < scratch.begin("next"));
    holder.wait_until_nothing_is_left();
    finish(&mut next);
}

#[test]
fn max_run_counts_on_while_descendants_are_waited_for() {
    let scratch = Scratch::new().with_lock();
    let mut holder = left_behind(&scratch, &["--wait-descendants", "--max-run", "6", "-k", "2"], &[]);
    let output = expect_ran_out(&mut holder, "6s");
    assert!(output.stdout().contains("daemon signal TERM\n"), "{output}");
    scratch.wait_queue(0);
}

#[test]
fn at_a_terminal_ctrl_z_stops_what_is_waited_for_and_zklock_with_it() {
    let scratch = Scratch::new().with_lock();
    let terminal = Terminal::new(80);
    let child = ["--spawn", "--", "--name", "left", "--default", "TSTP,CONT", "--exit-on", "INT"];
    let job = scratch.job(&direct(), "holder", &[&LASTING[..], &["--wait-descendants"]].concat(), &child);
    // A shell that waits for a line when its job has stopped, and continues it.
    let mut shell = terminal.spawn_by(r#""$@"; echo "stopped $?"; read; fg >/dev/null; echo "ended $?""#, job);
    terminal.wait_count("left ready", 1);
    wait_until_reaped(&scratch);
    terminal.press(CTRL_Z);
    terminal.wait_count("stopped", 1);
    assert_eq!(scratch.contenders().len(), 1);
    terminal.enter("");
    // The shell has given the terminal to its job when it continues it.
    poll::until("it goes on", || {
        let is_left = |process: &process::Process| process.session == shell.pid() && process.name == "child";
        process::all().into_iter().find(|process| is_left(process) && process.state != 'T')
    });
    terminal.press(CTRL_C);
    terminal.wait_count("left signal INT", 1);
    terminal.wait_count("ended 0", 1);
    shell.wait().expect_code(0);
    assert_eq!(terminal.lines().iter().filter(|line| line.contains("left signal")).count(), 1, "{terminal:?}");
    scratch.wait_queue(0);
}

// --on-lost.

/// What --on-lost is to run: the child, as `after`, with these arguments.
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
fn on_lost_is_told_which_lock_was_lost_and_that_it_is_not_held() {
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
    assert!(!told.contains("ZKLOCK_HELD"), "{output}");
}

#[test]
fn on_lost_is_run_when_nothing_is_left_of_the_command() {
    let scratch = Scratch::new().with_lock();
    let daemon = ["--exit-on", "TERM", "--spawn-daemon", "--", "--name", "daemon", "--wait", "--beat", "--log", "log"];
    let mut run = scratch.start(&direct(), "holder", &["--on-lost", &after("")], &daemon);
    run.wait_stdout("daemon ready");
    process::send(run.keeper(), Signal::SIGKILL);
    let output = expect_after(&scratch, &mut run);
    assert!(output.stderr().contains("the keeper process died"), "{output}");
    assert!(scratch.last_alive("daemon") < scratch.begin("after"));
    // Nobody but the server can remove the node.
    scratch.wait_queue(0);
}

#[test]
fn on_lost_is_run_while_the_servers_are_silent() {
    let server = Server::start();
    let scratch = Scratch::on(server.chroot()).with_lock();
    let options = ["--on-lost", &after("--exit 5")];
    let mut run = scratch.start(&server.address(), "holder", &options, &["--exit-on", "TERM"]);
    run.wait_stdout("holder ready");
    server.freeze();
    let output = expect_after(&scratch, &mut run);
    assert!(output.stderr().contains("ZooKeeper has not answered"), "{output}");
    server.thaw();
}

#[test]
fn on_lost_is_run_when_the_lock_is_lost_after_max_run_or_with_descendants_only() {
    let scratch = Scratch::new().with_lock();
    let after = after("");
    let options = [&LONG_GRACE[..], &["--max-run", MAX_RUN, "--on-lost", &after]].concat();
    let mut run = scratch.hold_with(&options, &["--wait"]);
    run.wait_stdout("holder signal TERM");
    scratch.delete_holder();
    run.wait().expect_code(76);
    assert_eq!(scratch.log().order(), ["holder", "after"]);

    let scratch = Scratch::new().with_lock();
    let mut run = left_behind(&scratch, &["--wait-descendants", "--on-lost", &after], &[]);
    scratch.delete_holder();
    expect_after(&scratch, &mut run);
    assert!(scratch.last_alive("daemon") < scratch.begin("after"));
}

#[test]
fn on_lost_is_not_run_when_the_lock_was_not_lost_under_a_command() {
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
    scratch.delete(&scratch.contenders()[1].path);
    waiter.wait_stderr("queueing again");
    finish(&mut holder);
    waiter.wait().expect_code(0);
    assert!(!scratch.log().order().contains(&"after"), "{:?}", scratch.log());
}

#[test]
fn on_lost_does_not_delay_the_release_and_is_left_alone() {
    let scratch = Scratch::new().with_lock();
    let mut run = with_after(&scratch, &[], &after("--until end"));
    let mut next = scratch.queue("next", 1);
    scratch.delete_holder();
    run.wait_stdout("after ready");
    next.wait_stdout("ready");
    // Longer than any lease of the lock that was lost.
    scratch.wait_alive_at("after", Moment::now().after(SHORT_SESSION + Duration::from_secs(1)));
    assert!(!run.has_ended());
    scratch.touch("end");
    expect_after(&scratch, &mut run);
    assert!(scratch.log().runs().iter().all(|run| run.name != "after" || run.ended), "nobody has killed it");
    finish(&mut next);
}

#[test]
fn on_lost_does_not_wait_for_the_release() {
    let (scratch, proxy) = Scratch::proxied();
    let on_lost = after("");
    let mut run = scratch.start(&proxy.address(), "holder", &["-k", "0", "--on-lost", &on_lost], &["--wait"]);
    run.wait_stdout("holder ready");
    proxy.hold();
    expect_after(&scratch, &mut run);
    scratch.begin("after").expect_within(AT_ONCE, scratch.last_alive("holder"), "it begins at once");
    // The node goes with the session.
    scratch.wait_queue(0);
}

#[test]
fn signals_reach_the_command_of_on_lost_once() {
    let scratch = Scratch::new().with_lock();
    let mut run = with_after(&scratch, &[], &after("--exit-on TERM"));
    scratch.delete_holder();
    run.wait_stdout("after ready");
    run.signal(Signal::SIGUSR1);
    run.wait_stdout("after signal USR1");
    run.signal(Signal::SIGTERM);
    let output = expect_after(&scratch, &mut run).stdout();
    assert!(output.ends_with("after ready\nafter signal USR1\nafter signal TERM\n"), "{output}");
}

#[test]
fn on_lost_outlives_a_zklock_that_is_killed() {
    let scratch = Scratch::new().with_lock();
    let mut run = with_after(&scratch, &[], &after("--until end"));
    scratch.delete_holder();
    run.wait_stdout("after ready");
    run.signal(Signal::SIGKILL);
    run.wait().expect_signal(Signal::SIGKILL);
    scratch.wait_alive_at("after", Moment::now().after(Duration::from_secs(1)));
    scratch.touch("end");
    run.wait_until_nothing_is_left();
    assert!(scratch.log().runs()[1].ended, "nobody has killed it");
}

#[test]
fn a_shell_for_on_lost_that_is_not_there_is_said_in_one_line() {
    let scratch = Scratch::new().with_lock();
    let job = scratch.job(&direct(), "holder", &["--on-lost", "true"], &["--wait"]).env("SHELL", "/no/such/shell");
    let mut run = job.spawn();
    run.wait_stdout("holder ready");
    scratch.delete_holder();
    let output = run.wait().expect_code(76);
    let said = output.stderr();
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].contains("lost the lock"), "{output}");
    assert!(lines[1].starts_with("zklock: --on-lost: /no/such/shell: No such file"), "{output}");
    assert_eq!(lines.len(), 2, "{output}");
}

#[test]
fn at_a_terminal_ctrl_c_reaches_the_command_of_on_lost_once() {
    let scratch = Scratch::new().with_lock();
    let terminal = Terminal::new(80);
    let job = scratch.job(&direct(), "holder", &["--on-lost", &after("--exit-on INT")], &["--wait"]);
    let mut run = terminal.spawn(job);
    terminal.wait_count("holder ready", 1);
    scratch.delete_holder();
    terminal.wait_count("after ready", 1);
    terminal.press(CTRL_C);
    terminal.wait_count("after signal INT", 1);
    run.wait().expect_code(76);
    assert_eq!(terminal.lines().iter().filter(|line| line.contains("after signal")).count(), 1, "{terminal:?}");
}
