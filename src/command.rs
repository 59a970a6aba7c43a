//! The command: find it, start it, signal it and its descendants, reap it.
//!
//! A pid that may have been recycled must never be signalled. A direct child keeps its pid until we reap
//! it; everything else is signalled through a pidfd that was checked after it was opened.

use std::ffi::{CStr, OsStr, OsString};
use std::fs;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::AtFlags;
use nix::sys::prctl;
use nix::unistd::{AccessFlags, Pid, faccessat, getpid};

use crate::environment;
use crate::rules::event::{CommandEnd, Unstarted};
use crate::rules::message::{Left, Remains};
use crate::rules::signal::Signal;
use crate::signals;

pub use start::{Launch, Tie};

mod start;

/// The name of keepers' processes, as prctl(2) sets it and proc_pid_stat(5) shows it. `pkill -9 zklock` must
/// not match it: of the two processes, one has to survive.
pub const KEEPER_NAME: &CStr = c"lock-keeper";

/// The name of a keeper that uses, or may use, the locks of a zklock above it. While it lives, processes of
/// its command may be left, even if its supervisor has ended.
pub const INNER_KEEPER_NAME: &CStr = c"inner-keeper";

/// The name of a supervisor that uses, or may use, the locks of one above it.
pub const INNER_NAME: &CStr = c"zklock-inner";

/// The name of a supervisor that is about to release its locks and does not lend them any more.
pub const LEAVING_NAME: &CStr = c"zklock-leaving";

/// The name of a supervisor that may use the locks of one above it and no longer lends its own. It may still
/// be waiting for descendants of its command. For their sake the supervisor above must go on holding its
/// locks.
pub const INNER_LEAVING_NAME: &CStr = c"zklock-in-leave";

/// Names the calling thread. It has to be the first of its process: a process has the name of that one.
pub fn take_name(name: &CStr) {
    if let Err(error) = prctl::set_name(name) {
        log::info!("cannot change the process's name: {error}");
    }
}

/// How many times in a row to chase a process that forks and exits faster than we can kill it.
const CHASES: u32 = 100;

/// What an error of [`locate`], or of an attempt to start a command, means for the command.
pub fn unstarted(error: &io::Error) -> Unstarted {
    match error.kind() {
        _ if error.raw_os_error() == Some(libc::ETIME) => Unstarted::TooLate,
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Unstarted::NotFound,
        _ => Unstarted::CannotExecute,
    }
}

/// Looks for `program` as execvp(3) will, so that a typo is reported before the wait for the lock. Fails if it
/// is not there, or cannot be executed; see [`unstarted`].
pub fn locate(program: &OsStr) -> io::Result<()> {
    if program.is_empty() {
        return Err(io::ErrorKind::NotFound.into());
    }
    if program.as_bytes().contains(&b'/') {
        return check(Path::new(program));
    }
    let path = std::env::var_os("PATH").unwrap_or_else(|| OsString::from("/bin:/usr/bin"));
    let mut verdict = Err(io::ErrorKind::NotFound.into());
    for directory in std::env::split_paths(&path) {
        // An empty entry means the working directory (execvp(3)).
        let directory = if directory.as_os_str().is_empty() { PathBuf::from(".") } else { directory };
        match check(&directory.join(program)) {
            Ok(()) => return Ok(()),
            Err(error) if unstarted(&error) == Unstarted::NotFound => {}
            Err(error) => verdict = Err(error),
        }
    }
    verdict
}

fn check(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.is_dir() {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    faccessat(nix::fcntl::AT_FDCWD, path, AccessFlags::X_OK, AtFlags::AT_EACCESS)
        .map_err(|error| io::Error::other(error.desc()))
}

/// The command while it runs, seen from the process that started it.
#[derive(Debug)]
pub struct Command {
    pid: Pid,
    own_group: bool,
    /// The read end of a pipe, which says why the command was not executed, if it was not.
    failure: OwnedFd,
}

impl Command {
    /// The process id.
    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// Sends a signal to the command, or to its process group if it has its own. Only while the command has
    /// not been reaped.
    fn signal(&self, signal: Signal) {
        let target = if self.own_group { -self.pid.as_raw() } else { self.pid.as_raw() };
        log_failure(signals::send(target, signal), signal, target);
    }

    /// Forwards a signal to the command and to what it started in its process group. Only while the command
    /// has not been reaped.
    pub fn forward(&self, signal: Signal, family: &Family) {
        // In our own process group, which others share, only processes below us get the signal. A command
        // that is a shell with job control, or setsid(1), has left that group for its own.
        let (command, shared) = (self.pid.as_raw(), nix::unistd::getpgrp().as_raw());
        match family.addressees() {
            Ok(family) if !self.own_group => {
                for process in family
                    .iter()
                    .filter(|process| process.pid == command || process.group == command || process.group == shared)
                {
                    process.signal(signal);
                }
            }
            _ => self.signal(signal),
        }
    }
}

/// A change of state of a child, as waitpid(2) tells it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaped {
    /// It ended and is gone from the process table.
    Ended(Pid, CommandEnd),
    /// It was stopped by a signal.
    Stopped(Pid, Signal),
}

/// The next child that changed its state, if any. It reaps orphans that have come to us as well: as their
/// subreaper, only we can.
pub fn reap() -> Option<Reaped> {
    loop {
        let mut status = 0;
        #[expect(unsafe_code, reason = "nix's waitpid loses a child that a real-time signal killed")]
        // SAFETY: waitpid(2) writes to `status` and nothing else.
        let pid = unsafe { libc::waitpid(-1, &raw mut status, libc::WNOHANG | libc::WUNTRACED) };
        if pid == 0 {
            return None;
        }
        if pid < 0 {
            match Errno::last() {
                Errno::EINTR => continue,
                Errno::ECHILD => return None,
                error => {
                    log::error!("cannot wait for children: {error}");
                    return None;
                }
            }
        }
        let pid = Pid::from_raw(pid);
        if libc::WIFSTOPPED(status) {
            return Some(Reaped::Stopped(pid, Signal::new(libc::WSTOPSIG(status)).unwrap_or(Signal::STOP)));
        }
        let end = match Signal::new(libc::WTERMSIG(status)) {
            Some(signal) if libc::WIFSIGNALED(status) => CommandEnd::Signaled(signal),
            // The kernel keeps the low eight bits of exit(3)'s argument.
            _ => CommandEnd::Exited(u8::try_from(libc::WEXITSTATUS(status)).unwrap_or(u8::MAX)),
        };
        return Some(Reaped::Ended(pid, end));
    }
}

/// Reaps all children that have ended. Returns whether `child` is among them.
pub fn reaps(child: Pid) -> bool {
    let ended = |reaped: &Reaped| matches!(reaped, Reaped::Ended(pid, _) if *pid == child);
    std::iter::from_fn(reap).filter(ended).count() > 0
}

/// The processes that descend from this one, except those that do not belong to the command.
#[derive(Debug, Default)]
pub struct Family {
    strangers: Vec<Process>,
}

impl Family {
    /// Makes orphaned descendants return to this process (`PR_SET_CHILD_SUBREAPER`), so that none can
    /// leave the family. Children that exist already do not belong to it, such as background jobs of a
    /// shell that executed zklock in its own place. Fails where /proc is missing or shows another PID
    /// namespace: it could not be found out which processes descend from us.
    pub fn new() -> io::Result<Self> {
        prctl::set_child_subreaper(true)?;
        let this = getpid().as_raw();
        if fs::read_link("/proc/self")? != Path::new(&this.to_string()) {
            return Err(io::Error::other("/proc is that of another PID namespace"));
        }
        let strangers = match children() {
            Some(children) => children,
            None => processes()?.into_iter().filter(|process| process.parent == this).collect(),
        };
        Ok(Self { strangers })
    }

    /// Excludes a child of ours from the family.
    pub fn disown(&mut self, child: Pid) {
        self.strangers.extend(Process::read(child.as_raw()));
    }

    /// Every living member except keepers.
    fn living(&self) -> io::Result<Vec<Process>> {
        let mut family = self.below(&processes()?, |_| true);
        family.retain(Process::is_running);
        Ok(family)
    }

    /// Members that may use our locks: zklocks, and the keepers of zklocks that were killed.
    fn users(&self) -> io::Result<Vec<Process>> {
        let mut family = self.below(&processes()?, |_| true);
        // When only keepers are left, they have no command to end.
        let is_over = !family.iter().any(Process::is_running);
        family.retain(|process| !is_over && process.may_borrow());
        Ok(family)
    }

    /// Every living member except keepers and those below another zklock. A zklock forwards the signals that
    /// it gets, so its command would get them twice.
    fn addressees(&self) -> io::Result<Vec<Process>> {
        let everyone = processes()?;
        let has_keeper =
            |process: &Process| everyone.iter().any(|child| child.parent == process.pid && child.is_keeper());
        let mut family = self.below(&everyone, |process| !has_keeper(process));
        family.retain(Process::is_running);
        Ok(family)
    }

    /// Those of these processes that are below us and alive. The search does not go below a process for which
    /// `is_open` is false.
    fn below(&self, everyone: &[Process], is_open: impl Fn(&Process) -> bool) -> Vec<Process> {
        let mut family: Vec<Process> = vec![];
        let mut parents = vec![getpid().as_raw()];
        while let Some(parent) = parents.pop() {
            for child in everyone.iter().filter(|process| process.parent == parent) {
                if !self.is_stranger(child) {
                    if is_open(child) {
                        parents.push(child.pid);
                    }
                    family.push(child.clone());
                }
            }
        }
        family.retain(|process| process.alive);
        family
    }

    /// Whether no member is left.
    pub fn has_gone(&self) -> bool {
        // Twice: a process that is forked while the list is read can be missed once.
        (0..2).all(|_| self.living().is_ok_and(|family| family.is_empty())) && !self.has_offspring()
    }

    /// Whether there is a child of ours that has to go or to be reaped. A process that keeps forking and
    /// exiting can be missed in the list of all processes, but not here: every process below us is a child of
    /// ours or has an ancestor that is one.
    fn has_offspring(&self) -> bool {
        let is_left = |child: &Process| !child.is_keeper() && !self.is_stranger(child);
        children().is_some_and(|children| children.iter().any(is_left))
    }

    /// Whether a zklock is left that may use our locks, or uses them.
    pub fn borrows(&self) -> bool {
        // As a rule no process is left, and a look at all processes would delay the next holder.
        if children().is_some_and(|children| children.iter().all(|child| self.is_stranger(child))) {
            return false;
        }
        // If /proc cannot be read, assume that one is left. Twice: a process whose parent ends while the list
        // is read can seem to have none.
        (0..2).any(|_| self.users().map_or(true, |users| !users.is_empty()))
    }

    /// Descriptors of the zklocks that may use our locks. One becomes readable when its zklock ends
    /// (pidfd_open(2)).
    pub fn borrowers(&self) -> Vec<OwnedFd> {
        if !self.borrows() {
            return vec![];
        }
        self.users().unwrap_or_default().iter().filter_map(|user| pidfd_open(user.pid).ok()).collect()
    }

    fn is_stranger(&self, process: &Process) -> bool {
        self.strangers.iter().any(|stranger| stranger.is_same(process))
    }

    /// Forwards a signal to every member except those below another zklock: the command itself has ended.
    pub fn forward(&self, signal: Signal) {
        match self.addressees() {
            Ok(family) => family.iter().for_each(|process| process.signal(signal)),
            Err(error) => log::error!("/proc: {error}"),
        }
    }

    /// Sends `signal` to every member except those below another zklock, and SIGCONT so that those that are
    /// stopped can act on it.
    pub fn stop(&self, signal: Signal, command: Option<&Command>) {
        match self.addressees() {
            Ok(family) => {
                for process in family {
                    process.signal(signal);
                    process.signal(Signal::CONT);
                }
            }
            Err(error) => {
                log::error!("/proc: {error}");
                if let Some(command) = command {
                    command.signal(signal);
                    command.signal(Signal::CONT);
                }
            }
        }
    }

    /// Sends every member SIGKILL.
    pub fn kill(&self, command: Option<&Command>) {
        if let Some(command) = command {
            command.signal(Signal::KILL);
        }
        for process in self.living().unwrap_or_default() {
            process.signal(Signal::KILL);
        }
        // A process whose parent has exited is a child of ours by now.
        for _ in 0..CHASES {
            let mut newest_first = children_pids().unwrap_or_default().into_iter().rev().filter_map(Process::read);
            let Some(child) = newest_first.find(|child| child.is_running() && !self.is_stranger(child)) else { break };
            // Without a pidfd, which would take time: the pid belongs to our child until we reap it.
            if signals::send(child.pid, Signal::KILL).is_err() {
                break;
            }
        }
    }
}

/// Sends SIGKILL to the command, to its process group, and to every process that carries the mark of this run
/// in the environment that it was started with.
pub fn kill_remains(remains: Remains, mark: &str) -> Left {
    // Twice: a process that is forked while the list is read may be missed once.
    match kill_remains_once(remains, mark) {
        Left::Nobody => kill_remains_once(remains, mark),
        left => left,
    }
}

fn kill_remains_once(remains: Remains, mark: &str) -> Left {
    let Remains { pid, own_group, started } = remains;
    let this = getpid().as_raw();
    let Ok(everyone) = processes() else { return Left::Somebody };
    // A pid is given to a new process only when no process and no group has it any more.
    let is_reused = everyone.iter().any(|process| process.pid == pid && process.started != started);
    let is_known = |process: &Process| !is_reused && (process.pid == pid || own_group && process.group == pid);
    // Imitations of Linux do not show where the environment is.
    let tells = environment_size(Path::new("/proc/self")).is_some();
    let mut left = Left::Nobody;
    for process in everyone.iter().filter(|process| process.is_running() && process.pid != this) {
        let carries = if is_known(process) { Some(true) } else { process.carries(mark) };
        match carries {
            Some(true) => {
                process.signal(Signal::KILL);
                left = Left::Somebody;
            }
            // It is to be looked at again, if the command can have started it.
            None if tells && process.started >= started => left = left.max(Left::Unknown),
            Some(false) | None => {}
        }
    }
    left
}

/// One process as /proc shows it (proc_pid_stat(5)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    pid: i32,
    parent: i32,
    group: i32,
    /// In clock ticks since boot; together with the pid it identifies a process for ever.
    started: u64,
    alive: bool,
    name: Vec<u8>,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
        Self::parse(pid, &stat)
    }

    fn parse(pid: i32, stat: &[u8]) -> Option<Self> {
        let before_name = stat.iter().position(|byte| *byte == b'(')? + 1;
        let after_name = stat.iter().rposition(|byte| *byte == b')')?;
        let fields = fields(stat)?;
        let number = |index: usize| fields.get(index)?.parse::<i64>().ok();
        let threads = number(17)?;
        Some(Self {
            pid,
            parent: i32::try_from(number(1)?).ok()?,
            group: i32::try_from(number(2)?).ok()?,
            started: u64::try_from(number(19)?).ok()?,
            // A zombie does not run, unless only its first thread has ended.
            alive: !matches!(fields.first()?, &"Z" | &"X") || threads > 1,
            name: stat.get(before_name..after_name)?.to_vec(),
        })
    }

    fn is_same(&self, other: &Self) -> bool {
        self.pid == other.pid && self.started == other.started
    }

    /// Whether it runs and is not the keeper of a zklock that the command has started. A keeper runs nothing
    /// of the user's, and ends by itself after its supervisor, but has a node to delete first.
    fn is_running(&self) -> bool {
        self.alive && !self.is_keeper()
    }

    fn is_keeper(&self) -> bool {
        self.is_named(&[KEEPER_NAME, INNER_KEEPER_NAME])
    }

    fn may_borrow(&self) -> bool {
        self.is_named(&[INNER_NAME, INNER_LEAVING_NAME, INNER_KEEPER_NAME])
    }

    fn is_leaving(&self) -> bool {
        self.is_named(&[LEAVING_NAME, INNER_LEAVING_NAME])
    }

    fn is_named(&self, names: &[&CStr]) -> bool {
        names.iter().any(|name| self.name == name.to_bytes())
    }

    /// Whether it was started below the run of this mark ([`environment::RUN`]). `None`: it is
    /// just executing a program and does not show its environment yet.
    fn carries(&self, mark: &str) -> Option<bool> {
        let directory = PathBuf::from(format!("/proc/{}", self.pid));
        match shows(&directory, mark) {
            // Only its first thread has ended.
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => {
                let threads = fs::read_dir(directory.join("task"));
                let mut threads = threads.into_iter().flatten().flatten();
                threads.find_map(|thread| shows(&thread.path(), mark).ok()).unwrap_or(Some(false))
            }
            shown => shown.unwrap_or(Some(false)),
        }
    }

    fn signal(&self, signal: Signal) {
        log_failure(self.try_signal(signal), signal, self.pid);
    }

    fn try_signal(&self, signal: Signal) -> io::Result<()> {
        let pidfd = match pidfd_open(self.pid) {
            Ok(pidfd) => Some(pidfd),
            // A sandbox that does not know the call: only the check below is left.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOSYS | libc::EPERM)) => None,
            Err(error) => return Err(error),
        };
        // If it is alive with the same start after the descriptor was opened, the descriptor is its own.
        if !Self::read(self.pid).is_some_and(|now| now.is_same(self)) {
            return Ok(());
        }
        match pidfd {
            Some(pidfd) => pidfd_send_signal(&pidfd, signal),
            None => signals::send(self.pid, signal),
        }
    }
}

/// The fields of /proc/PID/stat from the third on (proc_pid_stat(5)). The second is the name, in
/// parentheses, and may contain anything, even parentheses.
fn fields(stat: &[u8]) -> Option<Vec<&str>> {
    let after_name = stat.iter().rposition(|byte| *byte == b')')? + 1;
    Some(str::from_utf8(&stat[after_name..]).ok()?.split_ascii_whitespace().collect())
}

/// Whether the environment in this directory of /proc has this mark. `None`: it is empty or cut off, in
/// the middle of an execve(2).
fn shows(directory: &Path, mark: &str) -> io::Result<Option<bool>> {
    let environ = fs::read(directory.join("environ"))?;
    if environment::is_of_run(&environ, mark) {
        return Ok(Some(true));
    }
    Ok((environment_size(directory) == Some(environ.len())).then_some(false))
}

/// How long the environment in this directory of /proc is. `None` in the middle of an execve(2), and
/// where the kernel does not say.
fn environment_size(directory: &Path) -> Option<usize> {
    let Ok(stat) = fs::read(directory.join("stat")) else { return Some(0) };
    let fields = fields(&stat)?;
    let number = |index: usize| fields.get(index).and_then(|field| field.parse::<usize>().ok());
    let (memory, code, start, end) = (number(20)?, number(23)?, number(47)?, number(48)?);
    match (memory, code) {
        // A kernel thread, or a process that has ended.
        (0, _) => Some(0),
        // execve(2) sets the address of the program's code last, so 0 means that it is not done. 1 is what
        // the kernel shows to those who may not see it.
        (_, 0 | 1) => None,
        _ => end.checked_sub(start),
    }
}

/// Our children. `None` where the kernel lacks the list (CONFIG_PROC_CHILDREN).
fn children() -> Option<Vec<Process>> {
    Some(children_pids()?.into_iter().filter_map(Process::read).collect())
}

/// The pids of our children, in the order in which they became our children.
fn children_pids() -> Option<Vec<i32>> {
    let this = getpid().as_raw();
    let children = fs::read_to_string(format!("/proc/{this}/task/{this}/children")).ok()?;
    Some(children.split_whitespace().filter_map(|pid| pid.parse().ok()).collect())
}

fn processes() -> io::Result<Vec<Process>> {
    let mut processes = vec![];
    for entry in fs::read_dir("/proc")? {
        let pid = entry?.file_name().to_str().and_then(|name| name.parse().ok());
        // A process that cannot be read has just gone.
        processes.extend(pid.and_then(Process::read));
    }
    if processes.is_empty() {
        // Not even ourselves.
        return Err(io::ErrorKind::NotFound.into());
    }
    Ok(processes)
}

/// Whether the process `ancestor` is above the process `pid`. If `ancestor` is a supervisor, this stays true
/// for as long as both live, even if processes in between end: it is the subreaper of what it started.
pub fn is_above(ancestor: u32, pid: u32) -> bool {
    let (Ok(ancestor), Ok(pid)) = (i32::try_from(ancestor), i32::try_from(pid)) else { return false };
    // Several times: a process can end just after it was seen to be a parent, and then its own parent is not seen.
    (0..5).any(|_| leads_up(ancestor, pid))
}

/// Whether the parents of `pid`, looked at one after the other, lead to `ancestor`.
fn leads_up(ancestor: i32, mut pid: i32) -> bool {
    while let Some(process) = Process::read(pid) {
        if process.parent == ancestor {
            return Process::read(ancestor).is_some_and(|ancestor| ancestor.is_running());
        }
        pid = process.parent;
    }
    false
}

/// Whether a process group has members that may be using the terminal. Not counted are this process and, in
/// our own group, those above us, such as a script. Processes above us in another group count: they are
/// shells.
pub fn is_of_others(group: Pid) -> bool {
    let (this, own) = (getpid(), nix::unistd::getpgrp());
    let is_script =
        |process: &Process| group == own && is_above(process.pid.cast_unsigned(), this.as_raw().cast_unsigned());
    // If /proc cannot be read, assume that there are some.
    processes().map_or(true, |processes| {
        let members = processes.iter().filter(|process| process.group == group.as_raw() && process.alive);
        members.filter(|process| process.pid != this.as_raw()).any(|process| !is_script(process))
    })
}

/// Whether the supervisor `lender`, which is above us, has not begun to release its locks.
///
/// A supervisor that begins to release takes a name that says so, and only then looks for [`INNER_NAME`]
/// below itself. A zklock below takes that name first, and only then looks here. So at least one of the two
/// sees the other.
pub fn lends(lender: u32) -> bool {
    let lender = i32::try_from(lender).ok().and_then(Process::read);
    lender.is_some_and(|lender| !lender.is_leaving())
}

fn pidfd_open(pid: i32) -> io::Result<OwnedFd> {
    #[expect(unsafe_code, reason = "neither nix nor std has pidfd_open(2)")]
    // SAFETY: the call touches no memory; a result that is not negative is a new descriptor
    // that is owned here alone, closed on exec.
    unsafe {
        let result = libc::syscall(libc::SYS_pidfd_open, pid, 0);
        match i32::try_from(result) {
            Ok(fd) if fd >= 0 => Ok(OwnedFd::from_raw_fd(fd)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

fn pidfd_send_signal(pidfd: &OwnedFd, signal: Signal) -> io::Result<()> {
    let nothing = std::ptr::null::<libc::siginfo_t>();
    #[expect(unsafe_code, reason = "neither nix nor std has pidfd_send_signal(2)")]
    // SAFETY: the descriptor is open; with no siginfo the call reads no memory of ours.
    let result = unsafe { libc::syscall(libc::SYS_pidfd_send_signal, pidfd.as_raw_fd(), signal.number(), nothing, 0) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// It is no failure if the process has just gone.
fn log_failure(result: io::Result<()>, signal: Signal, pid: i32) {
    match result {
        Err(error) if error.raw_os_error() != Some(libc::ESRCH) => log::info!("cannot send {signal} to {pid}: {error}"),
        _ => {}
    }
}

#[cfg(test)]
mod tests;
