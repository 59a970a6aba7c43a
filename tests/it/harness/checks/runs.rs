//! The child, the handle on processes, and the log that children write.

use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};

use nix::sys::signal::Signal;
use nix::unistd::{Pid, getsid};

use crate::harness::joblog::JobLog;
use crate::harness::poll;
use crate::harness::process::{self, Seat};
use crate::harness::server::Server;
use crate::harness::zklock::{Zklock, binary, child};

/// The child by itself, without zklock around it.
fn just_child<const N: usize>(args: [&str; N]) -> Zklock {
    Zklock::bare().program(child()).args(args)
}

#[test]
fn the_binary_under_test_is_there() {
    assert!(binary().is_file());
    let version = Zklock::bare().arg("--version").run().expect_code(0);
    assert!(version.stdout().starts_with("zklock "), "{version}");
}

#[test]
fn keeper_guard_and_command_of_a_run_are_found() {
    let chroot = Server::shared().chroot();
    let mut job = Zklock::at(&chroot).arg("/lock").child(["--exit-on", "TERM"]).spawn();
    job.wait_stdout("ready");
    let (keeper, command) = (process::look(job.keeper()).unwrap(), process::look(job.command()).unwrap());
    let guard = process::look(job.guard()).unwrap();
    assert_eq!((keeper.parent, guard.parent, command.parent), (job.pid(), job.pid(), guard.pid), "{job}");
    assert_eq!((keeper.name.as_str(), command.name.as_str()), ("lock-keeper", "child"));
    job.signal(Signal::SIGTERM);
    job.wait().expect_code(0);
    job.wait_until_nothing_is_left();
}

#[test]
fn the_child_exits_as_told() {
    just_child(["--exit", "3"]).run().expect_code(3);
    let dead = just_child(["--die-of", "KILL"]).run().expect_signal(Signal::SIGKILL);
    assert!(dead.elapsed < poll::PATIENCE);
    let echo = just_child(["--echo"]).stdin([0, 255, 10]).run();
    assert_eq!(echo.stdout, b"\x00\xff\nready\n");
}

#[test]
fn the_child_reports_signals_and_waits() {
    let mut job = just_child(["--name", "a", "--exit-on", "TERM", "--ignore", "USR2", "--default", "CONT"]).spawn();
    job.wait_stdout("a ready");
    for signal in [Signal::SIGHUP, Signal::SIGUSR2, Signal::SIGCONT, Signal::SIGINT, Signal::SIGTERM] {
        job.signal(signal);
        if signal == Signal::SIGHUP || signal == Signal::SIGINT {
            job.wait_stdout(&format!("a signal {}", &signal.as_str()[3..]));
        }
    }
    assert_eq!(job.wait().expect_code(0).stdout(), "a ready\na signal HUP\na signal INT\na signal TERM\n");
}

#[test]
fn the_child_waits_for_stdin_or_a_file() {
    let mut job = just_child(["--until-stdin-closes"]).open_stdin().spawn();
    job.wait_stdout("ready");
    job.write_stdin(b"not the end");
    job.signal(Signal::SIGINT);
    job.wait_stdout("signal INT");
    assert!(!job.has_ended());
    job.close_stdin();
    job.wait().expect_code(0);

    let directory = tempfile::tempdir().unwrap();
    let mut job = just_child(["--until", "now"]).directory(directory.path()).spawn();
    job.wait_stdout("ready");
    fs::write(directory.path().join("now"), "").unwrap();
    job.wait().expect_code(0);
}

#[test]
fn the_child_shows_what_it_inherited() {
    let shown = just_child(["--state", "--env"]).env("ZKLOCK_X", "1").ignoring([Signal::SIGHUP]).run().stdout();
    let lines: Vec<&str> = shown.lines().collect();
    for line in ["blocked ", "descriptors 0,1,2", "ZKLOCK_X=1"] {
        assert!(lines.contains(&line), "no {line:?} in\n{shown}");
    }
    for beginning in ["ignored HUP", "umask 0", "group "] {
        assert!(lines.iter().any(|line| line.starts_with(beginning)), "no {beginning:?} in\n{shown}");
    }
}

#[test]
fn a_run_has_the_seat_that_was_asked_for() {
    for seat in [Seat::OwnSession, Seat::OwnGroup, Seat::Inherited] {
        let job = just_child(["--wait"]).seat(seat).spawn();
        let process = process::look(job.pid()).unwrap();
        assert_eq!(process.session == job.pid(), seat == Seat::OwnSession);
        assert_eq!(process.group == job.pid(), seat != Seat::Inherited);
        assert_eq!(process.session == getsid(None).unwrap(), seat != Seat::OwnSession);
        job.end();
    }
}

#[test]
fn descendants_are_found_wherever_they_went() {
    let args = ["--spawn", "--", "--name", "b", "--spawn-daemon", "--", "--name", "c", "--wait"];
    let mut job = just_child(args).spawn();
    job.wait_stdout("c ready");
    job.wait().expect_code(0);
    let left = poll::until("only the daemon is left", || <[_; 1]>::try_from(job.processes()).ok());
    assert_ne!(left[0].session, getsid(None).unwrap());
    process::send(left[0].pid, Signal::SIGKILL);
    job.wait_until_nothing_is_left();
}

#[test]
fn a_process_in_the_middle_of_execve_is_found() {
    let script = r#"exec sh -c "$0" "$0""#;
    let job = Zklock::bare().program("sh").args(["-c", script, script]).spawn();
    for _ in 0..500 {
        assert_eq!(job.processes().iter().map(|process| process.pid).collect::<Vec<_>>(), [job.pid()]);
    }
    job.end();
}

#[test]
fn what_is_left_behind_is_killed_and_told() {
    let mut job = just_child(["--wait", "--spawn", "--", "--name", "b", "--wait"]).spawn();
    job.wait_stdout("b ready");
    let grandchild = process::children(job.pid()).first().expect("a grandchild").pid.as_raw();
    let message = catch_unwind(AssertUnwindSafe(|| drop(job))).unwrap_err();
    let message = message.downcast_ref::<String>().unwrap();
    assert!(message.starts_with("left behind and killed: ") && message.contains(&grandchild.to_string()), "{message}");
    assert!(process::look(Pid::from_raw(grandchild)).is_none_or(|process| process.state == 'Z'));
}

#[test]
fn panic_of_a_child_fails_the_test() {
    let mut job = Zklock::bare().program("sh").args(["-c", r#""$0" --unheard-of; true"#]).arg(child()).spawn();
    job.wait().expect_code(0);
    let message = catch_unwind(AssertUnwindSafe(|| drop(job))).unwrap_err();
    let message = message.downcast_ref::<String>().unwrap();
    assert!(message.starts_with("a child panicked: ") && message.contains("what is --unheard-of?"), "{message}");
}

#[test]
fn line_that_never_comes() {
    let mut job = just_child(["--name", "seen"]).spawn();
    let message = catch_unwind(AssertUnwindSafe(|| job.wait_stdout("other"))).unwrap_err();
    let message = message.downcast_ref::<String>().unwrap();
    assert!(message.contains("ended without \"other\"") && message.contains("seen ready"), "{message}");
}

#[test]
fn both_streams_can_be_waited_on() {
    let script = "echo one; echo two >&2; echo three; exit 4";
    let mut shell = Zklock::bare().program("sh").args(["-c", script]).spawn();
    assert_eq!(shell.wait_stdout("t"), "three");
    assert_eq!(shell.wait_stderr("t"), "two");
    let output = shell.wait_at_most(poll::PATIENCE).expect_code(4);
    assert_eq!((output.stdout().as_str(), output.stderr().as_str()), ("one\nthree\n", "two\n"));
    assert_eq!((shell.stdout(), shell.stderr()), (output.stdout(), output.stderr()));
}

#[test]
fn a_log_tells_overlaps_and_order() {
    let log = JobLog::parse("begin 10 1 a\nend 20 1 a\nbegin 30 2 b\nbegin 40 3 c\nalive 50 2 b\nend 60 3 c\nbegin 7");
    assert_eq!(log.order(), ["a", "b", "c"]);
    assert_eq!(log.most_at_once(), 2);
    let pairs: Vec<_> = log.overlaps().into_iter().map(|(one, two)| (one.pid, two.pid)).collect();
    assert_eq!(pairs, [(2, 3)]);
    assert!(!log.runs()[1].ended && log.runs()[2].ended, "b was killed");
    let parts = |text| catch_unwind(move || JobLog::parse(text).expect_no_overlap()).is_ok();
    assert!(!parts("begin 30 2 b\nbegin 40 3 c\nalive 50 2 b\n"));
    assert!(parts("begin 30 2 b\nalive 35 2 b\nbegin 40 3 c\n"));
    assert!(!parts("") && !parts("begin 30 2 b\n"), "nothing could overlap");
}

#[test]
fn the_child_writes_the_log_that_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let job = |name: &str| just_child(["--name", name, "--log", log.to_str().unwrap()]);
    job("a").run();
    let mut b = job("b").args(["--wait", "--beat"]).spawn();
    b.wait_stdout("b ready");
    poll::until("a beat", || JobLog::read(&log).runs().get(1).filter(|run| run.last > run.begin).map(drop));
    b.signal(Signal::SIGKILL);
    b.wait().expect_signal(Signal::SIGKILL);
    job("c").run();
    assert_eq!(JobLog::read(&log).expect_no_overlap().order(), ["a", "b", "c"]);
}
