use std::io::{BufRead, BufReader};
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use nix::sys::prctl;
use nix::sys::wait::{WaitStatus, waitpid};
use nix::unistd::{ForkResult, fork, getppid};

use super::*;
use crate::command::exit_now;

#[test]
fn names_in_proc_may_hold_anything() {
    let stat = b"42 (a) Z 1 (b) R 7 9 9 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 3 0 12345 1 1 1";
    let process = Process::parse(42, stat).unwrap();
    let expected =
        Process { pid: 42, parent: 7, group: 9, started: 12345, alive: true, stopped: false, exiting: false };
    assert_eq!(process, expected);
    assert_eq!(Process::parse(42, b"42 (cut of"), None);
}

#[test]
fn we_find_ourselves_in_proc() {
    let this = Process::read(getpid().as_raw()).unwrap();
    assert_eq!(this.parent, getppid().as_raw());
    assert!(this.alive);
    assert!(proc::numbers(".").unwrap().contains(&this.pid));
    assert!(!is_child_of_ours(this.pid));
}

/// In a process of its own, because other tests have children as well.
#[test]
fn children_that_have_ended_do_not_live() {
    let looked = in_a_fork(|| {
        let [sleeper, ended] = [60, 0].map(|seconds| {
            in_a_fork(|| {
                thread::sleep(Duration::from_secs(seconds));
                0
            })
        });
        let wait = |child| waitid(Id::Pid(child), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT).unwrap();
        wait(ended);
        let before = has_living_child();
        signals::send(sleeper.as_raw(), Signal::KILL).unwrap();
        wait(sleeper);
        i32::from(!before || has_living_child())
    });
    assert_eq!(waitpid(looked, None), Ok(WaitStatus::Exited(looked, 0)));
}

/// Does this in a fork, and exits with the status that it returns.
fn in_a_fork(act: impl FnOnce() -> i32) -> Pid {
    #[expect(unsafe_code, reason = "programs have no such children")]
    // SAFETY: `act` does what the fork of a process with several threads may do (fork(2)).
    match unsafe { fork() }.unwrap() {
        ForkResult::Child => exit_now(act()),
        ForkResult::Parent { child } => child,
    }
}

#[test]
fn a_subreaper_is_above_what_it_has_started_whoever_ends_in_between() {
    prctl::set_child_subreaper(true).unwrap();
    for _ in 0..100 {
        let mut sh = std::process::Command::new("sh");
        sh.args(["-c", "sleep 60 >/dev/null & echo $!"]).stdout(Stdio::piped());
        let mut shell = sh.spawn().unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let sleeper: i32 = line.trim().parse().unwrap();
        let reaped = AtomicBool::new(false);
        let is_always_above = thread::scope(|scope| {
            let looking = scope.spawn(|| {
                let mut is_always_above = true;
                while !reaped.load(Ordering::Relaxed) {
                    is_always_above &= is_above(std::process::id(), sleeper.cast_unsigned()).unwrap();
                }
                is_always_above
            });
            shell.wait().unwrap();
            reaped.store(true, Ordering::Relaxed);
            looking.join().unwrap()
        });
        signals::send(sleeper, Signal::KILL).unwrap();
        waitpid(Pid::from_raw(sleeper), None).unwrap();
        assert!(is_always_above);
    }
}
