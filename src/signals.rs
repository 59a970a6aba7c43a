//! Signals at the boundary: the stream of signals that this process receives, and the signal state that it was
//! started with, which the command is to find again.

mod handover;

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, SigmaskHow, Signal as Named, sigaction, sigprocmask};
use nix::sys::signalfd::{SfdFlags, SignalFd};
use nix::unistd::{Pid, getpid, getsid};

use crate::rules::signal::Signal;

/// `si_code` of a signal that the kernel made, such as one from a terminal (sigaction(2)).
const SI_KERNEL: i32 = 0x80;

/// The signals that were ignored when the process started, signal N as bit N-1.
static IGNORED_AT_START: AtomicU64 = AtomicU64::new(0);

/// Records the ignored signals before Rust's runtime starts. The runtime ignores SIGPIPE, and afterwards it
/// is unknown what the caller wanted.
extern "C" fn record_ignored() {
    let mut ignored = 0;
    for number in 1..=64 {
        #[expect(unsafe_code, reason = "nix cannot query a disposition without setting it")]
        // SAFETY: sigaction(2) with no new action only fills `old`, for which zeroes are a valid
        // value; it is called with valid pointers and fails cleanly for numbers that are no signals.
        let handler = unsafe {
            let mut old: libc::sigaction = std::mem::zeroed();
            if libc::sigaction(number, std::ptr::null(), &raw mut old) != 0 {
                continue;
            }
            old.sa_sigaction
        };
        if handler == libc::SIG_IGN {
            ignored |= 1 << (number - 1);
        }
    }
    IGNORED_AT_START.store(ignored, Ordering::Relaxed);
}

#[expect(unsafe_code, reason = "a function in .init_array runs before the runtime does")]
// SAFETY: the entry has the type that the section holds; the function calls only sigaction(2) and
// an atomic store, neither of which needs the runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static RECORD_IGNORED: extern "C" fn() = record_ignored;

/// Whether a signal was not ignored when zklock started.
pub fn is_heeded(signal: &Signal) -> bool {
    !was_ignored(signal.number())
}

fn was_ignored(number: i32) -> bool {
    IGNORED_AT_START.load(Ordering::Relaxed) & (1 << (number - 1)) != 0
}

/// The caller's signal state, to be restored for the command.
#[derive(Clone, Copy, Debug)]
pub struct Inherited {
    mask: SigSet,
}

impl Inherited {
    /// For a program of ours, which queues its signals by itself: none is to come before that.
    pub fn all_blocked() -> Self {
        Self { mask: SigSet::all() }
    }

    /// Restores mask and dispositions. It is called in the child between fork and exec, and makes only
    /// calls that are safe there (signal-safety(7)).
    pub fn restore(&self) -> io::Result<()> {
        // The standard library resets SIGPIPE in a child; SIGCHLD was changed by us.
        for signal in [Named::SIGPIPE, Named::SIGCHLD] {
            let handler = if was_ignored(signal as i32) { SigHandler::SigIgn } else { SigHandler::SigDfl };
            set_handler(signal, handler)?;
        }
        sigprocmask(SigmaskHow::SIG_SETMASK, Some(&self.mask), None)?;
        Ok(())
    }
}

/// One signal that has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Arrival {
    /// Which.
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

/// The stream of signals. While it exists, signals do not interrupt anything: they are queued.
#[derive(Debug)]
pub struct Signals {
    fd: SignalFd,
    inherited: Inherited,
}

impl Signals {
    /// Blocks the signals that a run reacts to or passes on, and queues them instead. Those that
    /// were ignored when zklock started stay so.
    pub fn open() -> nix::Result<Self> {
        let set = set_of(awaited_numbers());
        let mut mask = SigSet::empty();
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), Some(&mut mask))?;
        // If SIGCHLD were ignored, the kernel would reap our children, and their status would be lost
        // (wait(2)). flock(1) and timeout(1) used to hang because of that.
        set_handler(Named::SIGCHLD, SigHandler::SigDfl)?;
        if handover::is_needed() {
            handover::install(awaited_numbers());
        }
        let fd = SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK)?;
        Ok(Self { fd, inherited: Inherited { mask } })
    }

    /// What to restore for the command.
    pub fn inherited(&self) -> Inherited {
        self.inherited
    }

    /// Waits for a signal, such as SIGCHLD, but no longer than `time`, and drops what has come.
    pub fn pause(&self, time: Duration) {
        let mut fds = [PollFd::new(self.fd.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO));
        let _ = self.drain();
    }

    /// All signals that have come since the last call, SIGCHLD among them.
    pub fn drain(&self) -> nix::Result<Vec<Arrival>> {
        let mut arrivals = vec![];
        loop {
            match self.fd.read_signal() {
                Ok(Some(info)) => {
                    // What the kernel has continued us by (F_SETSIG) is for nobody else.
                    let signal = i32::try_from(info.ssi_signo).ok().and_then(Signal::new);
                    let signal = signal
                        .filter(|signal| *signal != Signal::CONT || info.ssi_code <= 0 || info.ssi_code == SI_KERNEL);
                    let from_kernel = [SI_KERNEL, handover::code(SI_KERNEL)].contains(&info.ssi_code);
                    arrivals.extend(signal.map(|signal| Arrival { signal, from_kernel }));
                }
                Ok(None) => return Ok(arrivals),
                Err(Errno::EINTR) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

impl AsFd for Signals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// The signals that end a subcommand, or what stands in for a command.
#[derive(Debug)]
pub struct Queue(SignalFd);

impl Queue {
    /// For a process that has something to do before it ends. Ctrl-Z stops it.
    pub fn of(ending: impl IntoIterator<Item = Signal>) -> nix::Result<Self> {
        let set = set_of(ending.into_iter().map(Signal::number));
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), None)?;
        sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&SigSet::from(Named::SIGTSTP)), None)?;
        SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map(Self)
    }

    /// The next one that has come.
    pub fn take(&self) -> Option<Signal> {
        let info = self.0.read_signal().ok().flatten()?;
        i32::try_from(info.ssi_signo).ok().and_then(Signal::new)
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The signal that the size of the terminal has changed.
#[derive(Debug)]
pub struct Resizes(SignalFd);

impl Resizes {
    /// Queues it from now on.
    pub fn open() -> nix::Result<Self> {
        let set = SigSet::from(Named::SIGWINCH);
        sigprocmask(SigmaskHow::SIG_BLOCK, Some(&set), None)?;
        SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map(Self)
    }

    /// Drops what has come.
    pub fn take(&self) {
        while let Ok(Some(_)) = self.0.read_signal() {}
    }
}

impl AsFd for Resizes {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Blocks every signal that can be blocked, until the value that is returned is dropped. Not the two that the C
/// library keeps for its threads (32 and 33 on Linux): they end the process, as SIGKILL does.
pub fn block_all() -> nix::Result<AllBlocked> {
    let mut before = SigSet::empty();
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::all()), Some(&mut before))?;
    Ok(AllBlocked { before })
}

/// All signals are blocked.
#[derive(Debug)]
pub struct AllBlocked {
    before: SigSet,
}

impl Drop for AllBlocked {
    fn drop(&mut self) {
        let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&self.before), None);
    }
}

/// Becomes readable when a child has ended or stopped. For a process that blocks all signals.
#[derive(Debug)]
pub struct ChildSignals(SignalFd);

impl ChildSignals {
    /// Fails if there is no descriptor left.
    pub fn new() -> nix::Result<Self> {
        let set = SigSet::from(Named::SIGCHLD);
        SignalFd::with_flags(&set, SfdFlags::SFD_CLOEXEC | SfdFlags::SFD_NONBLOCK).map(Self)
    }

    /// Drops what has come.
    pub fn clear(&self) {
        while let Ok(Some(_)) = self.0.read_signal() {}
    }
}

impl AsFd for ChildSignals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Drops the signals that came to this process, which is about to become the command, while it waited with all signals
/// blocked. What these `senders` have sent is meant for the command and stays. So do signals that end a
/// program: had they come before the command was to be started, it would not be started.
pub fn drop_stale(senders: &[Pid]) {
    let ending = [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::ALRM, Signal::XCPU];
    let stale = |number: &i32| !Signal::new(*number).is_some_and(|signal| ending.contains(&signal));
    let at_once = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    let mut meant = vec![];
    #[expect(unsafe_code, reason = "nix has no sigtimedwait(2)")]
    // SAFETY: sigemptyset(3) initialises the set before anything reads it, zeroes are a valid siginfo, and the numbers
    // are signals; the pid is read from a signal that kill(2) has made.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for number in (1..=31).chain(libc::SIGRTMIN()..=libc::SIGRTMAX()).filter(stale) {
            libc::sigaddset(&raw mut set, number);
        }
        let mut info: libc::siginfo_t = std::mem::zeroed();
        loop {
            let number = libc::sigtimedwait(&raw const set, &raw mut info, &raw const at_once);
            if number < 0 {
                break;
            }
            if info.si_code == libc::SI_USER && senders.contains(&Pid::from_raw(info.si_pid())) {
                meant.extend(Signal::new(number));
            }
        }
    }
    for signal in meant {
        let _ = send(std::process::id().cast_signed(), signal);
    }
}

/// SIGCHLD and everything that a caller may send. That leaves out signals that report a fault of our own,
/// those that cannot be caught, SIGPIPE, SIGTTIN and SIGTTOU, which answer what we do ourselves, and the two
/// that glibc reserves for its threads.
fn awaited_numbers() -> impl Iterator<Item = i32> {
    const NOT: &[i32] = &[
        libc::SIGILL,
        libc::SIGTRAP,
        libc::SIGABRT,
        libc::SIGBUS,
        libc::SIGFPE,
        libc::SIGSEGV,
        libc::SIGSYS,
        libc::SIGKILL,
        libc::SIGSTOP,
        libc::SIGPIPE,
        libc::SIGTTIN,
        libc::SIGTTOU,
    ];
    let numbers = (1..=31).chain(libc::SIGRTMIN()..=libc::SIGRTMAX());
    numbers.filter(|n| !NOT.contains(n) && (*n == libc::SIGCHLD || !was_ignored(*n)))
}

/// The signals with these numbers.
fn set_of(numbers: impl Iterator<Item = i32>) -> SigSet {
    #[expect(unsafe_code, reason = "nix's SigSet cannot hold real-time signals")]
    // SAFETY: sigemptyset(3) initialises the set before anything reads it; the numbers are signals.
    unsafe {
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        for number in numbers {
            libc::sigaddset(&raw mut set, number);
        }
        SigSet::from_sigset_t_unchecked(set)
    }
}

/// Makes this process ignore every signal that a terminal, a service manager or a job runner sends to
/// a whole group. For the keeper, which ends by its own decision, and for the writer, which ends after all others.
pub fn turn_deaf() -> nix::Result<()> {
    let own = [libc::SIGPIPE, libc::SIGTTIN, libc::SIGTTOU];
    for number in awaited_numbers().filter(|number| *number != libc::SIGCHLD).chain(own) {
        #[expect(unsafe_code, reason = "nix's sigaction knows no real-time signals")]
        // SAFETY: SIG_IGN is no handler function; the numbers are signals that can be ignored.
        unsafe {
            libc::signal(number, libc::SIG_IGN);
        }
    }
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None)
}

/// Whether the kernel reaps the children of this process as soon as they end (wait(2)).
pub fn leave_children_to_the_kernel(is_so: bool) -> nix::Result<()> {
    set_handler(Named::SIGCHLD, if is_so { SigHandler::SigIgn } else { SigHandler::SigDfl }).map(drop)
}

/// Sends a signal to a process, or to a group when `pid` is negative (kill(2)).
pub fn send(pid: i32, signal: Signal) -> io::Result<()> {
    #[expect(unsafe_code, reason = "nix's kill cannot send real-time signals")]
    // SAFETY: kill(2) touches no memory.
    let result = unsafe { libc::kill(pid, signal.number()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Stops this process by `signal`, so that a shell tells the user the same as it would without zklock; by SIGTSTP in
/// place of SIGSTOP.
/// Returns when the process has been continued, or at once where the kernel does not let it stop
/// because no shell could continue it (an orphaned process group, setpgid(2)).
pub fn stop_by(signal: Signal) -> io::Result<()> {
    // SIGSTOP would stop us there as well, and whoever continues the command does not know of us.
    let is_uncaught = signal == Signal::STOP;
    let signal = if is_uncaught { Signal::TSTP } else { signal };
    let Ok(named) = Named::try_from(signal.number()) else { return Ok(()) };
    let mut set = SigSet::empty();
    set.add(named);
    let mut before = SigSet::empty();
    // SIGTSTP may be ignored, as after `trap '' TSTP`. That does not keep the command from being stopped by SIGSTOP.
    let action =
        if is_uncaught || !was_ignored(signal.number()) { Some(set_handler(named, SigHandler::SigDfl)?) } else { None };
    sigprocmask(SigmaskHow::SIG_UNBLOCK, Some(&set), Some(&mut before))?;
    let result = send(std::process::id().cast_signed(), signal);
    sigprocmask(SigmaskHow::SIG_SETMASK, Some(&before), None)?;
    if let Some(action) = action {
        set_action(named, &action)?;
    }
    result
}

/// Dies of `signal`, without a core dump of our own: the command has left one if there was to be one.
/// Returns only where the kernel does not let us die of it, as for PID 1 of a container.
pub fn die_of(signal: Signal) {
    // Not dumpable rather than RLIMIT_CORE, which a core_pattern with a pipe ignores (core(5)).
    let _ = nix::sys::prctl::set_dumpable(false);
    #[expect(unsafe_code, reason = "nix's sigaction knows no real-time signals")]
    // SAFETY: SIG_DFL is no handler function.
    unsafe {
        libc::signal(signal.number(), libc::SIG_DFL);
    }
    let _ = send(std::process::id().cast_signed(), signal);
    let _ = sigprocmask(SigmaskHow::SIG_SETMASK, Some(&SigSet::empty()), None);
}

/// Returns the action before.
fn set_handler(signal: Named, handler: SigHandler) -> nix::Result<SigAction> {
    set_action(signal, &SigAction::new(handler, SaFlags::empty(), SigSet::empty()))
}

fn set_action(signal: Named, action: &SigAction) -> nix::Result<SigAction> {
    #[expect(unsafe_code, reason = "sigaction(2) can install handlers that do harm")]
    // SAFETY: only SIG_IGN and SIG_DFL are installed, or what was there before.
    unsafe {
        sigaction(signal, action)
    }
}
