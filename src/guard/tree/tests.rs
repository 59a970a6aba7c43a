use crate::system::process::{Process, is_above, started};
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use nix::sys::prctl;
use nix::sys::wait::waitpid;
use nix::unistd::getppid;

use super::*;

/// A shell with this line, and the number of the process that it tells.
fn shell(program: &str, line: &str) -> (Child, Pid) {
    let mut command = Command::new(program);
    // setsid(1) makes a further process only if it leads a group.
    let command = if program == "sh" { command.process_group(0) } else { command.arg("sh") };
    let mut shell = command.args(["-c", line]).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut told = String::new();
    BufReader::new(shell.stdout.take().unwrap()).read_line(&mut told).unwrap();
    (shell, Pid::from_raw(told.trim().parse().unwrap()))
}

/// Children of this process that are not this one.
fn but(child: Pid) -> impl Fn(i32) -> bool {
    move |other| other != child.as_raw()
}

/// The tree of this thread: it is the one that starts the processes of its test.
fn tree() -> Tree {
    let list = format!("/proc/self/task/{}/children", nix::unistd::gettid());
    Tree { children: File::open(list).unwrap(), proc: proc::directory().unwrap(), denied: Cell::new(None) }
}

#[test]
fn names_in_proc_may_hold_anything() {
    let stat = b"42 (a) Z 1 (b) R 7 9 9 0 -1 4194304 1 0 0 0 0 0 0 0 20 0 3 0 12345 1 1 1";
    let process = Process::parse(42, stat).unwrap();
    let expected =
        Process { pid: 42, parent: 7, group: 9, started: 12345, alive: true, suspended: false, exiting: false };
    assert_eq!(process, expected);
    assert_eq!(Process::parse(42, b"42 (cut of"), None);
}

#[test]
fn we_find_ourselves_in_proc() {
    let this = Process::read(getpid().as_raw()).unwrap();
    assert_eq!(this.parent, getppid().as_raw());
    assert!(this.alive);
    assert!(proc::numbers(".").unwrap().contains(&this.pid));
}

/// The shell stands for a child that cannot die.
#[test]
fn what_is_below_a_child_is_counted_and_killed() {
    let (mut shell, sleeper) = shell("sh", "(sleep 1000; exit) & echo $!; wait $!; exit $?");
    let pid = Pid::from_raw(shell.id().cast_signed());
    while tree().count(but(pid)) < 3 {
        thread::yield_now();
    }
    let mut seen = vec![];
    tree().walk(but(pid), &mut |process, directory, is_done| {
        if is_done && process.pid != pid.as_raw() {
            directory.send(process.pid, Signal::KILL);
        }
        seen.push((process.parent, is_done));
        true
    });
    let (us, shell_pid) = (getpid().as_raw(), pid.as_raw());
    // Each one after what is below it.
    let order = [us, shell_pid, sleeper.as_raw()].map(|parent| (parent, false));
    assert_eq!(seen, [&order[..], &[2, 1, 0].map(|place: usize| (order[place].0, true))].concat());
    while started(sleeper.as_raw().cast_unsigned()).unwrap().is_some() {
        thread::yield_now();
    }
    // It was killed.
    assert_eq!(shell.wait().unwrap().code(), Some(137));
}

/// Whether a process is dead, or is about to be from this moment on.
fn is_killed(pid: Pid) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/status")) {
        Ok(status) => status.contains("State:\tZ") || !status.contains("ShdPnd:\t0000000000000000"),
        Err(_) => true,
    }
}

/// Kills the first process of a group. Returns whether that kills another one of this group.
fn kills_group(program: &str, origin: impl FnOnce(Pid) -> StartGroup) -> bool {
    let (mut shell, other) = shell(program, "sleep 600 & echo $!; wait");
    let pid = Pid::from_raw(shell.id().cast_signed());
    tree().kill_children(origin(pid), but(pid));
    // All signals of a round are sent at once.
    let killed = is_killed(other);
    shell.wait().unwrap();
    send(other.as_raw(), Signal::KILL);
    killed
}

#[test]
fn groups_of_other_sessions_are_killed_as_a_whole() {
    let ours = |_| StartGroup::ours(None);
    assert!(kills_group("setsid", ours));
    // What else is in the session or the group in which the command starts may not be its own.
    assert!(!kills_group("sh", ours));
    assert!(!kills_group("setsid", |group| StartGroup { group, ..StartGroup::ours(None) }));
    // That was made for it.
    assert!(kills_group("sh", |group| StartGroup::ours(Some(group))));
}

#[test]
fn a_subreaper_is_above_what_it_has_started_whoever_ends_in_between() {
    prctl::set_child_subreaper(true).unwrap();
    for _ in 0..100 {
        let (mut shell, sleeper) = shell("sh", "sleep 60 >/dev/null & echo $!");
        let reaped = AtomicBool::new(false);
        let is_always_above = thread::scope(|scope| {
            let looking = scope.spawn(|| {
                let mut is_always_above = true;
                while !reaped.load(Ordering::Relaxed) {
                    is_always_above &= is_above(std::process::id(), sleeper.as_raw().cast_unsigned()).unwrap();
                }
                is_always_above
            });
            shell.wait().unwrap();
            reaped.store(true, Ordering::Relaxed);
            looking.join().unwrap()
        });
        send(sleeper.as_raw(), Signal::KILL);
        waitpid(sleeper, None).unwrap();
        assert!(is_always_above);
    }
}
