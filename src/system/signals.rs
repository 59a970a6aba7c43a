//! Signals at the boundary: streams of the signals that this process receives, and the signal state that it was
//! started with, which the command is to find again.

mod handover;

use std::ffi::c_int;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use libc::{
    SIGABRT, SIGBUS, SIGCHLD, SIGFPE, SIGILL, SIGKILL, SIGPIPE, SIGSEGV, SIGSTOP, SIGSYS, SIGTRAP, SIGTTIN, SIGTTOU,
};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{Pid, getpid, getsid, read};

use crate::rules::signal::Signal;

/// `si_code` of a signal that the kernel made, such as one from a terminal (sigaction(2)).
const SI_KERNEL: i32 = 0x80;

/// Of the signals that this process changes, those that were ignored when it started.
static IGNORED_AT_START: AtomicU64 = AtomicU64::new(0);
/// The signals that a command finds blocked, which are those that were when the process started.
static BLOCKED_FOR_COMMAND: AtomicU64 = AtomicU64::new(0);

/// A set of signals as the kernel has it: signal N is bit N-1. Unlike that of nix, it holds real-time signals.
#[derive(Clone, Copy, Debug)]
struct Set(u64);

impl Set {
    const NONE: Self = Self(0);
    const ALL: Self = Self(u64::MAX);

    fn of(signals: impl IntoIterator<Item = Signal>) -> Self {
        Self(signals.into_iter().fold(0, |set, signal| set | 1 << (signal.number() - 1)))
    }

    const fn has(self, signal: Signal) -> bool {
        self.0 & 1 << (signal.number() - 1) != 0
    }
}

/// Changes which signals are blocked (sigprocmask(2)). Returns those that were blocked before.
fn block(how: i32, set: Set) -> Set {
    let mut before = Set::NONE;
    #[expect(unsafe_code, reason = "the C library's sigprocmask(3) leaves out two signals")]
    // SAFETY: both sets have the size that is passed, and the call keeps no pointer. It cannot fail.
    unsafe {
        libc::syscall(libc::SYS_rt_sigprocmask, how, &raw const set.0, &raw mut before.0, size_of::<u64>());
    }
    before
}

fn action(handler: libc::sighandler_t) -> libc::sigaction {
    #[expect(unsafe_code, reason = "the type has fields that differ between systems")]
    // SAFETY: zeroes are a valid value.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action
}

/// Changes what a signal does, unless `new` is `None` (sigaction(2)). Returns what it did before.
fn exchange(signal: Signal, new: Option<&libc::sigaction>) -> libc::sigaction {
    let mut before = action(libc::SIG_DFL);
    #[expect(unsafe_code, reason = "nix's sigaction knows no real-time signals, and always sets")]
    // SAFETY: the pointers are valid or null. What is set is SIG_IGN, SIG_DFL, the handler of `handover`, or what was
    // there before. It fails cleanly for signals that nobody may change.
    unsafe {
        libc::sigaction(signal.number(), new.map_or(std::ptr::null(), std::ptr::from_ref), &raw mut before);
    }
    before
}

/// What this process does not leave as it was.
const CHANGED: [Signal; 2] = [Signal::PIPE, Signal::CHLD];

/// Records the signal state that the caller wanted. Then an output without a reader is an error, and no signal.
pub fn record_inherited() {
    IGNORED_AT_START.store(Set::of(CHANGED.into_iter().filter(is_ignored)).0, Ordering::Relaxed);
    BLOCKED_FOR_COMMAND.store(block(libc::SIG_BLOCK, Set::NONE).0, Ordering::Relaxed);
    exchange(Signal::PIPE, Some(&action(libc::SIG_IGN)));
}

/// For a command that is a program of ours, which reads its signals by itself: none is to come before that. Ctrl-Z
/// suspends it.
pub fn block_for_command() {
    BLOCKED_FOR_COMMAND.store(!Set::of([Signal::TSTP]).0, Ordering::Relaxed);
}

/// Whether this process ignores a signal, as its caller wants it.
pub fn is_ignored(signal: &Signal) -> bool {
    exchange(*signal, None).sa_sigaction == libc::SIG_IGN
}

/// Ignores these signals no longer, whatever the caller wants.
pub fn unignore(signals: impl IntoIterator<Item = Signal>) {
    for signal in signals {
        exchange(signal, Some(&action(libc::SIG_DFL)));
    }
}

/// Gives a command the signal state that it is to find. It is called in the child between fork and exec, and makes only
/// calls that are safe there (signal-safety(7)).
pub fn restore() {
    let ignored = Set(IGNORED_AT_START.load(Ordering::Relaxed));
    for signal in CHANGED {
        exchange(signal, Some(&action(if ignored.has(signal) { libc::SIG_IGN } else { libc::SIG_DFL })));
    }
    block(libc::SIG_SETMASK, Set(BLOCKED_FOR_COMMAND.load(Ordering::Relaxed)));
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    pub signal: Signal,
    /// The kernel made it, as it does for Ctrl-C.
    pub from_kernel: bool,
}

impl Arrival {
    /// Whether a terminal sent it to its whole foreground process group, rather than the kernel to us alone
    /// (as for alarm(2)).
    pub fn went_to_foreground(self) -> bool {
        self.from_kernel
            && match self.signal {
                Signal::INT | Signal::QUIT | Signal::TSTP | Signal::WINCH => true,
                // When a terminal is closed, only the leader of its session gets these two (`__tty_hangup`);
                // the foreground group gets them when that leader has died.
                Signal::HUP | Signal::CONT => getsid(None) != Ok(getpid()),
                _ => false,
            }
    }
}

/// A stream of signals: they interrupt nothing, but are queued, and read one after the other.
#[derive(Debug)]
pub struct Signals(OwnedFd);

impl Signals {
    /// Queues these signals from now on. Those that are ignored stay so.
    pub fn of(signals: impl IntoIterator<Item = Signal>) -> io::Result<Self> {
        let set = Set::of(signals);
        block(libc::SIG_BLOCK, set);
        #[expect(unsafe_code, reason = "the C library's sets leave out two signals")]
        // SAFETY: the set has the size that is passed. A result that is not negative is a new descriptor, and nothing
        // else owns it.
        unsafe {
            let flags = libc::SFD_CLOEXEC | libc::SFD_NONBLOCK;
            let fd = Errno::result(libc::syscall(libc::SYS_signalfd4, -1, &raw const set.0, size_of::<u64>(), flags))?;
            Ok(Self(OwnedFd::from_raw_fd(fd as RawFd)))
        }
    }

    /// Queues SIGCHLD.
    pub fn of_children() -> io::Result<Self> {
        // If SIGCHLD were ignored, the kernel would reap our children, and their status would be lost
        // (wait(2)). flock(1) and timeout(1) used to hang because of that.
        leave_children_to_the_kernel(false);
        if handover::is_needed() {
            handover::install(Signal::CHLD);
        }
        Self::of([Signal::CHLD])
    }

    /// Queues what a run passes on. What was ignored when zklock started stays so.
    pub fn of_run() -> io::Result<Self> {
        // In the background, a line after `stty tostop` or a change of the terminal's settings would suspend us
        // (termios(3)).
        block(libc::SIG_BLOCK, Set::of([Signal::TTOU]));
        let signals = Self::of(passed_on())?;
        if handover::is_needed() {
            passed_on().filter(|signal| !is_ignored(signal)).for_each(handover::install);
        }
        Ok(signals)
    }

    pub fn drain(&self) -> Vec<Arrival> {
        let mut arrivals = vec![];
        self.each(|arrival| arrivals.push(arrival));
        arrivals
    }

    /// Drops the signals that have come. Returns whether there were any. Takes no memory.
    pub fn clear(&self) -> bool {
        let mut has_come = false;
        self.each(|_| has_come = true);
        has_come
    }

    fn each(&self, mut take: impl FnMut(Arrival)) {
        let mut infos = [[0; INFO]; 8];
        loop {
            let length = read(&self.0, infos.as_flattened_mut()).unwrap_or(0);
            infos[..length / INFO].iter().filter_map(arrival).for_each(&mut take);
            if length < size_of_val(&infos) {
                return;
            }
        }
    }

    /// Waits for one, such as SIGCHLD, but no longer than `time`, and drops what has come.
    pub fn pause(&self, time: Duration) {
        let mut fds = [PollFd::new(self.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO));
        self.clear();
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The length of a signalfd_siginfo (signalfd(2)).
const INFO: usize = 128;

/// Reads a signalfd_siginfo, which begins with the signal's number, an errno and the code. `None`: nobody waits for it.
fn arrival(info: &[u8; INFO]) -> Option<Arrival> {
    let word = |at: usize| info[at..].first_chunk().map_or(0, |word| i32::from_ne_bytes(*word));
    let (signal, code) = (Signal::new(word(0))?, word(8));
    // What the kernel has continued us by (F_SETSIG).
    let is_wake = signal == Signal::CONT && code > 0 && code != SI_KERNEL;
    // The kernel queues a signal that is blocked even if it is ignored.
    let is_wanted = signal == Signal::CHLD || !is_ignored(&signal);
    let from_kernel = [SI_KERNEL, handover::KERNELS].contains(&code);
    (!is_wake && is_wanted).then_some(Arrival { signal, from_kernel })
}

/// Everything that a caller may send. That leaves out signals that report a fault of our own, those that cannot be caught,
/// SIGPIPE, SIGTTIN and SIGTTOU, which answer what we do ourselves, and the two that the C library reserves for its threads.
fn passed_on() -> impl Iterator<Item = Signal> {
    const NOT: [i32; 13] = [
        SIGILL, SIGTRAP, SIGABRT, SIGBUS, SIGFPE, SIGSEGV, SIGSYS, SIGKILL, SIGSTOP, SIGPIPE, SIGTTIN, SIGTTOU, SIGCHLD,
    ];
    let is_reserved = |number| (32..libc::SIGRTMIN()).contains(&number);
    Signal::all().filter(move |signal| !NOT.contains(&signal.number()) && !is_reserved(signal.number()))
}

/// Blocks every signal that can be blocked. For a process that ends by its own decision, or by SIGKILL.
pub fn block_all() {
    block(libc::SIG_SETMASK, Set::ALL);
}

/// Whether the kernel reaps the children of this process as soon as they end (wait(2)).
pub fn leave_children_to_the_kernel(reaps: bool) {
    exchange(Signal::CHLD, Some(&action(if reaps { libc::SIG_IGN } else { libc::SIG_DFL })));
}

/// Drops the signals that came to this process, which is about to become the command, while it waited with all signals
/// blocked. What these `senders` have sent is meant for the command and stays. So do signals that end a
/// program: had they come before the command was to be started, it would not be started.
pub fn drop_stale(senders: &[Pid]) {
    let stale = Set(!Set::of(Signal::ENDING).0);
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mut meant = vec![];
    #[expect(unsafe_code, reason = "nix has no sigtimedwait(2)")]
    // SAFETY: the set has the size that is passed, and zeroes are a valid siginfo. The pid is read from a signal that
    // kill(2) has made.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let (set, time, size) = (&raw const stale.0, &raw const at_once, size_of::<u64>());
        while libc::syscall(libc::SYS_rt_sigtimedwait, set, &raw mut info, time, size) > 0 {
            if info.si_code == libc::SI_USER && senders.contains(&Pid::from_raw(info.si_pid())) {
                meant.extend(Signal::new(info.si_signo));
            }
        }
    }
    for signal in meant {
        let _ = send(getpid().as_raw(), signal);
    }
}

/// fcntl(2), which the crate `libc` does not have.
const F_SETSIG: c_int = 10;

/// Has the kernel continue this process, if it is suspended, when something comes by this socket or pipe, or when the
/// process at its other end has died. Without that a suspended process learns of neither.
pub fn continue_at_news(fd: BorrowedFd<'_>) -> nix::Result<()> {
    signal_at_news(fd, std::process::id().cast_signed(), Signal::CONT)
}

/// Has the kernel send a signal to this process, or to this group if the number is negative, when something comes by this
/// socket or pipe, or when its other end is closed. The kernel holds a reference to the process or the group. Reading
/// from it does not wait after that.
pub fn signal_at_news(fd: BorrowedFd<'_>, target: i32, signal: Signal) -> nix::Result<()> {
    control(fd, libc::F_SETOWN, target)?;
    control(fd, F_SETSIG, signal.number())?;
    control(fd, libc::F_SETFL, libc::O_ASYNC | libc::O_NONBLOCK)
}

/// Takes [`signal_at_news`] back. That cannot fail where this has not failed.
pub fn no_signal_at_news(fd: BorrowedFd<'_>) {
    let _ = control(fd, libc::F_SETFL, libc::O_NONBLOCK);
}

/// fcntl(2) for a command that takes a number.
fn control(fd: BorrowedFd<'_>, command: c_int, argument: c_int) -> nix::Result<()> {
    #[expect(unsafe_code, reason = "nix's fcntl knows neither F_SETSIG nor F_SETOWN")]
    // SAFETY: the descriptor is open, and these commands take a number.
    let result = unsafe { libc::fcntl(fd.as_raw_fd(), command, argument) };
    Errno::result(result).map(drop)
}

/// Sends a signal to a process, or to a group when `pid` is negative (kill(2)).
pub fn send(pid: i32, signal: Signal) -> io::Result<()> {
    #[expect(unsafe_code, reason = "nix's kill cannot send real-time signals")]
    // SAFETY: kill(2) touches no memory.
    let result = unsafe { libc::kill(pid, signal.number()) };
    Ok(Errno::result(result).map(drop)?)
}

/// Suspends this process by `signal`, so that a shell tells the user the same as it would without zklock. Returns when
/// the process has been continued, or at once where no shell could continue it (an orphaned process group, setpgid(2)).
pub fn suspend_by(signal: Signal) -> io::Result<()> {
    // In an orphaned group SIGSTOP would suspend this process too, and whoever continues the command does not know of
    // it.
    let is_uncaught = signal == Signal::STOP;
    let signal = if is_uncaught { Signal::TSTP } else { signal };
    // SIGTSTP may be ignored, as after `trap '' TSTP`. That does not keep SIGSTOP from suspending the command.
    let suspends = is_uncaught || !is_ignored(&signal);
    let action = exchange(signal, suspends.then_some(&action(libc::SIG_DFL)));
    let blocked = block(libc::SIG_UNBLOCK, Set::of([signal]));
    let result = send(getpid().as_raw(), signal);
    block(libc::SIG_SETMASK, blocked);
    exchange(signal, Some(&action));
    result
}

/// Dies of `signal`, without a core dump of our own: the command has left one if there was to be one.
/// Returns only where the kernel does not let us die of it, as for PID 1 of a container.
pub fn die_of(signal: Signal) {
    // Not dumpable rather than RLIMIT_CORE, which a core_pattern with a pipe ignores (core(5)).
    let _ = nix::sys::prctl::set_dumpable(false);
    exchange(signal, Some(&action(libc::SIG_DFL)));
    let _ = send(getpid().as_raw(), signal);
    // No other: of several signals that wait, the kernel delivers the lowest first.
    block(libc::SIG_UNBLOCK, Set::of([signal]));
}

#[cfg(test)]
mod tests {
    use nix::sys::wait::{WaitStatus, waitpid};
    use nix::unistd::ForkResult;

    use super::*;
    use crate::system::fork::{exit_now, fork_bare};

    #[test]
    fn dies_of_the_signal_that_was_meant() {
        let child = match fork_bare().unwrap() {
            ForkResult::Child => {
                // A Ctrl-C has come meanwhile.
                block(libc::SIG_BLOCK, Set::of([Signal::INT, Signal::TERM]));
                exchange(Signal::INT, Some(&action(libc::SIG_DFL)));
                let _ = send(getpid().as_raw(), Signal::INT);
                die_of(Signal::TERM);
                exit_now(1);
            }
            ForkResult::Parent { child } => child,
        };
        assert_eq!(waitpid(child, None), Ok(WaitStatus::Signaled(child, nix::sys::signal::SIGTERM, false)));
    }
}
