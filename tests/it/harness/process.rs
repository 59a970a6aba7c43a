//! Starting processes so that they end with the tests, and looking at processes in /proc.

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command};
use std::sync::{Mutex, OnceLock, mpsc};
use std::thread;

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::{self, SigHandler, Signal};
use nix::unistd::{Pid, setsid};

use super::poll;

/// Which session and process group a new process belongs to, and thereby which terminal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seat {
    /// A session of its own, without a terminal: what cron, systemd and CI give.
    OwnSession,
    /// A process group of its own in the session of the tests.
    OwnGroup,
}

type Order = (Command, mpsc::Sender<io::Result<Child>>);

/// Starts `command` in `seat` with `ignored` signals set to SIG_IGN and all others to their defaults. It inherits no
/// descriptors but the standard ones. The kernel kills it when the test process dies.
///
/// PR_SET_PDEATHSIG(2const) fires when the *thread* that started the child ends, and libtest runs every test in a
/// thread of its own. So one thread that never ends starts them all.
pub(crate) fn spawn(mut command: Command, seat: Seat, ignored: &[Signal]) -> io::Result<Child> {
    static SPAWNER: OnceLock<Mutex<mpsc::Sender<Order>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (sender, orders) = mpsc::channel::<Order>();
        thread::spawn(move || {
            for (mut command, answer) in orders {
                // The receiver waits for the answer below; it cannot have gone.
                let _ = answer.send(command.spawn());
            }
        });
        Mutex::new(sender)
    });
    prepare(&mut command, seat, ignored.to_vec());
    let (answer, child) = mpsc::channel();
    spawner.lock().expect("the spawner's lock").send((command, answer)).expect("the spawner lives");
    child.recv().expect("the spawner answers")
}

#[expect(unsafe_code, reason = "what a child does between fork and exec has no safe form in std")]
fn prepare(command: &mut Command, seat: Seat, ignored: Vec<Signal>) {
    if seat == Seat::OwnGroup {
        command.process_group(0);
    }
    let tests = Pid::this();
    let before_exec = move || -> io::Result<()> {
        // What the tests were started with must not leak into what they start. std's own pipe closes on exec already.
        // SAFETY: close_range(2) with this flag closes nothing yet.
        let outcome = unsafe { libc::close_range(3, libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC.cast_signed()) };
        Errno::result(outcome)?;
        prctl::set_pdeathsig(Signal::SIGKILL)?;
        if Pid::parent() != tests {
            return Err(Errno::ESRCH.into());
        }
        if seat == Seat::OwnSession {
            setsid()?;
        }
        // A shell that runs the tests in the background has them ignore SIGINT and SIGQUIT, and nohup(1) SIGHUP.
        for signal in Signal::iterator().filter(|signal| ![Signal::SIGKILL, Signal::SIGSTOP].contains(signal)) {
            let handler = if ignored.contains(&signal) { SigHandler::SigIgn } else { SigHandler::SigDfl };
            // SAFETY: neither installs a handler, so there is no code that a signal could run.
            unsafe { signal::signal(signal, handler) }?;
        }
        Ok(())
    };
    // SAFETY: the closure makes system calls that signal-safety(7) allows after fork, and does not allocate.
    unsafe { command.pre_exec(before_exec) };
}

/// A process as /proc/PID/stat shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    pub(crate) pid: Pid,
    pub(crate) parent: Pid,
    pub(crate) group: Pid,
    pub(crate) session: Pid,
    /// Its name, at most 15 bytes.
    pub(crate) name: String,
    /// `R`, `S`, `T` (stopped), `Z` (zombie) and so on.
    pub(crate) state: char,
    /// Clock ticks from the boot to its start.
    pub(crate) started: u64,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} ({}, child of {})", self.pid, self.name, self.state, self.parent)
    }
}

/// The process with this id; `None` when there is none.
pub(crate) fn look(pid: Pid) -> Option<Process> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    let stat = String::from_utf8_lossy(&stat);
    // proc_pid_stat(5): the name stands in parentheses and may itself hold parentheses and blanks.
    let (before, after) = stat.rsplit_once(')')?;
    let name = before.split_once('(')?.1.to_owned();
    let fields: Vec<&str> = after.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse().ok().map(Pid::from_raw);
    Some(Process {
        pid,
        parent: number(1)?,
        group: number(2)?,
        session: number(3)?,
        name,
        state: fields.first()?.chars().next()?,
        started: fields.get(19)?.parse().ok()?,
    })
}

/// How often a process has gone to sleep (proc_pid_status(5)), and so how often it has woken.
pub(crate) fn sleeps(pid: Pid) -> usize {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process lives");
    let count = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
    count.and_then(|count| count.trim().parse().ok()).expect("a number")
}

pub(crate) fn all() -> Vec<Process> {
    pids().filter_map(look).collect()
}

fn pids() -> impl Iterator<Item = Pid> {
    let entries = fs::read_dir("/proc").expect("/proc is mounted").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).map(Pid::from_raw)
}

/// The children of `parent`, zombies included, the oldest first.
pub(crate) fn children(parent: Pid) -> Vec<Process> {
    let mut children: Vec<_> = all().into_iter().filter(|process| process.parent == parent).collect();
    children.sort_by_key(|process| (process.started, process.pid));
    children
}

/// The living processes that were started with `NAME=value` in their environment, as `first` was. Zombies have none and are
/// not listed.
///
/// If none is returned, there was a moment at which none lived: /proc is listed until no new process shows up, so a
/// process whose parent has ended meanwhile is not missed. A process in the middle of execve(2), which shows no
/// environment, is looked at again.
pub(crate) fn marked(name: &str, value: &str, first: Pid) -> Vec<Process> {
    let mark = format!("{name}={value}");
    let mut listed = BTreeSet::new();
    loop {
        let new: Vec<Pid> = pids().filter(|&pid| listed.insert(pid)).collect();
        let decided = |pid| poll::until(format_args!("the environment of {pid}"), || carries(pid, &mark, first));
        let carriers = new.iter().copied().filter(|&pid| decided(pid)).filter_map(look);
        let living: Vec<Process> = carriers.filter(|process| process.state != 'Z').collect();
        if new.is_empty() || !living.is_empty() {
            return living;
        }
    }
}

/// Whether `mark` is in the environment that this process was started with. `None`: that cannot be told now, because
/// the process is in the middle of execve(2), which replaces all of it.
fn carries(pid: Pid, mark: &str, first: Pid) -> Option<bool> {
    let environment = match fs::read(format!("/proc/{pid}/environ")) {
        Ok(environment) => environment,
        // It leaves no core, or belongs to another user, and we are not root with all rights. It has what its parent has.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let above = |process: Process| carries(process.parent, mark, first);
            return if pid == first { Some(true) } else { look(pid).map_or(Some(false), above) };
        }
        // It has just gone.
        Err(_) => return Some(false),
    };
    if environment.split(|&byte| byte == 0).any(|entry| OsStr::from_bytes(entry) == mark) {
        return Some(true);
    }
    let Ok(stat) = fs::read(format!("/proc/{pid}/stat")) else { return Some(false) };
    let stat = String::from_utf8_lossy(&stat);
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    let number = |index: usize| fields.get(index)?.parse::<usize>().ok();
    // proc_pid_stat(5): vsize, startcode, env_start and env_end.
    match (number(20)?, number(23)?) {
        // One of the kernel's, or one that has ended.
        (0, _) => Some(false),
        // execve(2) sets the address of the program's code last, so 0 means that it is not done; 1 is no address
        // either.
        (_, 0 | 1) => None,
        _ => (number(48)?.checked_sub(number(47)?)? == environment.len()).then_some(false),
    }
}

/// Sends `signal`; that the process has gone meanwhile is no error, anything else is.
#[track_caller]
pub(crate) fn send(pid: Pid, signal: Signal) {
    match signal::kill(pid, signal) {
        Ok(()) | Err(Errno::ESRCH) => {}
        Err(error) => panic!("cannot send {signal} to {pid}: {error}"),
    }
}

/// SIGSTOP. Returns when the process has stopped.
#[track_caller]
pub(crate) fn stop(pid: Pid) {
    send(pid, Signal::SIGSTOP);
    wait_state(pid, &['T']);
}

#[track_caller]
pub(crate) fn wait_dead(pid: Pid) {
    wait_state(pid, &['Z', 'X']);
}

/// Waits until the process is in one of these states; `X`: gone.
#[track_caller]
pub(crate) fn wait_state(pid: Pid, states: &[char]) {
    poll::until(format_args!("{pid} is in one of the states {states:?}"), || {
        let state = look(pid).map_or('X', |process| process.state);
        states.contains(&state).then_some(())
    });
}

/// Whether `signal` has been sent to a process that cannot take it now.
pub(crate) fn is_pending(pid: Pid, signal: Signal) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("ShdPnd:")).map_or("0", str::trim);
    let mask = u64::from_str_radix(mask, 16).expect("a mask in hexadecimal");
    mask & (1 << (signal as i32 - 1)) != 0
}

#[track_caller]
pub(crate) fn expect_dead(family: &[Process]) {
    for process in family {
        let now = look(process.pid).filter(|now| now.started == process.started);
        assert!(now.is_none_or(|now| now.state == 'Z'), "{process} lives");
    }
}

/// The child of `zklock`'s guard that has the name of a command in /proc.
#[track_caller]
pub(crate) fn command(zklock: Pid) -> Pid {
    poll::until("the command", || below_guard(zklock).into_iter().find(|process| process.name == "child")).pid
}

/// The children of the guards of `zklock`, zombies included.
pub(crate) fn below_guard(zklock: Pid) -> Vec<Process> {
    let guards = children(zklock).into_iter().filter(|process| process.name == "lock-guard");
    guards.flat_map(|guard| children(guard.pid)).collect()
}
