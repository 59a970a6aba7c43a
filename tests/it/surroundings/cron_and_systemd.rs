//! What cron mails, and what `systemctl stop` does.

use nix::sys::signal::Signal;

use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::running::{Running, finish};
use crate::harness::scratch::{BRIEF, LOCK, Scratch, direct};
use crate::harness::times::SOON;

/// Cron mails what is written, to stdout or to stderr: on success what the command writes, and nothing else.
#[test]
fn cron_mails_the_commands_output_only() {
    let scratch = Scratch::new();
    // The variables of crontab(5), those of the test, and no others.
    let cron = r#"exec env -i HOME=/ LOGNAME=root SHELL=/bin/sh PATH=/usr/bin:/bin \
        ZKLOCK_TEST="$ZKLOCK_TEST" ZKLOCK_CONFIG=/dev/null ZKLOCK_ZOOKEEPER="$ZKLOCK_ZOOKEEPER" "$@" 2>&1"#;
    let run = |command: &str| scratch.zklock().arg(LOCK).args(["-c", command]).run_by(["sh", "-c", cron, "sh"]).run();
    assert_eq!(run("echo done").expect_code(0).stdout(), "done\n");
    assert_eq!(run("exit 4").expect_code(4).stdout(), "");
    let holder = scratch.occupy("");
    let busy = scratch
        .zklock()
        .arg(LOCK)
        .args(["-n", "-c", "echo done"])
        .run_by(["sh", "-c", cron, "sh"])
        .run()
        .expect_code(75);
    assert_eq!(busy.stdout().lines().count(), 1, "{busy}");
    scratch.delete(&holder);
}

/// What the man page says of a command that takes sockets or has a watchdog (sd_listen_fds(3), sd_watchdog_enabled(3)).
#[test]
fn service_manager_means_the_command() {
    let manual = include_str!("../../../man/zklock.1.in");
    let line = manual.lines().find_map(|line| line.strip_prefix(r#".B "\-c \(aq"#)).expect("a line for -c");
    // systemd replaces this itself (systemd.service(5)).
    let line = line.split_once(r"\fICOMMAND").expect("a command").0.replace("$$", "$");
    let look = format!("{line} sh -c 'echo $$ $LISTEN_PID $WATCHDOG_PID'");
    let unit = r#"LISTEN_PID=$$; WATCHDOG_PID=$$; export LISTEN_PID WATCHDOG_PID; exec "$@""#;
    let scratch = Scratch::new();
    let job = scratch.zklock().env("SHELL", "/bin/sh").args([LOCK, "-c", &look]).run_by(["sh", "-c", unit, "sh"]);
    let shown = job.run().expect_code(0).stdout();
    let [own, sockets, watchdog] = shown.split_whitespace().collect::<Vec<_>>()[..] else { panic!("{shown}") };
    assert_eq!((sockets, watchdog), (own, own));
}

/// Sends a signal to every process of a run, the keeper too, as `systemctl stop` does to those of a unit.
fn signal_unit(run: &Running, signal: Signal) {
    run.processes().iter().for_each(|process| process::send(process.pid, signal));
}

#[test]
fn systemctl_stop_of_a_command_that_ends() {
    let scratch = Scratch::new().with_lock();
    let options = ["--session-timeout", "60"];
    let child = ["--exit-on", "TERM", "--spawn", "--", "--name", "grandchild", "--exit-on", "TERM"];
    let mut job = scratch.start(&direct(), "holder", &options, &child);
    job.wait_stdout("holder ready");
    poll::until("the grandchild", || job.stdout().contains("grandchild ready").then_some(()));
    let mut next = scratch.queue("next", 1);
    let told = Moment::now();
    signal_unit(&job, Signal::SIGTERM);
    let output = job.wait().expect_code(0);
    assert_eq!(output.stderr(), "");
    next.wait_stdout("ready");
    scratch.begin("next").expect_within(SOON, told, "the next one starts");
    job.wait_until_nothing_is_left();
    finish(&mut next);
    scratch.expect_tidy(&["holder", "next"]);
}

#[test]
fn systemctl_stop_of_a_waiter() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold();
    let mut waiter = scratch.start(&direct(), "waiter", &["--session-timeout", "60"], &[]);
    scratch.wait_queue(2);
    let told = Moment::now();
    signal_unit(&waiter, Signal::SIGTERM);
    waiter.wait().expect_signal(Signal::SIGTERM);
    scratch.wait_queue(1);
    Moment::now().expect_within(SOON, told, "the node goes");
    waiter.wait_until_nothing_is_left();
    finish(&mut holder);
    scratch.expect_tidy(&["holder"]);
}

/// After `TimeoutStopSec`, every process gets KILL. None is left to release the lock, and the session expires.
#[test]
fn systemctl_stop_of_an_endless_command() {
    let scratch = Scratch::new().with_lock();
    let child = ["--wait", "--spawn", "--", "--name", "grandchild", "--wait"];
    let mut job = scratch.start(&direct(), "holder", &BRIEF, &child);
    job.wait_stdout("grandchild ready");
    let mut next = scratch.queue("next", 1);
    signal_unit(&job, Signal::SIGTERM);
    poll::until("both have heard", || (job.stdout().matches("signal TERM").count() >= 2).then_some(()));
    let killed = Moment::now();
    signal_unit(&job, Signal::SIGKILL);
    job.wait().expect_signal(Signal::SIGKILL);
    job.wait_until_nothing_is_left();
    next.wait_stdout("ready");
    scratch.begin("next").expect_within(2 * SOON, killed, "the next one starts");
    finish(&mut next);
    scratch.expect_tidy(&["holder", "next"]);
}
