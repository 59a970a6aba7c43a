//! The guard itself.
//!
//! The guard has one thread, blocks every signal that a C library lets it block, allocates nothing once it waits, writes to
//! no standard stream, and waits for no other process. It reads no file but those in /proc that [`tree`](super::tree) reads.

use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::prctl;
use nix::sys::signal::Signal as Named;
use nix::sys::socket::{MsgFlags, recv};
use nix::unistd::{ForkResult, Pid, getpid, getppid, pipe2, read, setpgid, setsid, write};

use super::gate::{self, GuardBirth, Passage};
use super::kernel::{self, Fuse, Timer, above};
use super::request;
use super::tree::{StartGroup, Tree};
use crate::between::page::{LeaseView, Page};
use crate::rules::guard::{Children, GuardIo, GuardReaped, GuardRules, Heard, NextTurn, Sign, Stage, Targets};
use crate::rules::instant::Instant;
use crate::rules::lease::Limits;
use crate::rules::signal::Signal;
use crate::system::clock::{self, Alarm};
use crate::system::fork::{close_all_but, exit_now, fork_bare};
use crate::system::process::reap;
use crate::system::signals::{self, Signals};

/// How often to look at everything if nothing can be waited for, in milliseconds.
const BLIND: u8 = 10;

/// What a guard has from the supervisor.
pub(super) struct Inherited<'a> {
    /// Where requests come from.
    pub(super) link: OwnedFd,
    /// Wakes the supervisor when there is something new in `page`.
    pub(super) wake: EventFd,
    /// The end of the pipe that shows that no guard is left. The kernel kills the command at that moment.
    pub(super) guards_gone: BorrowedFd<'a>,
    /// The other end of that pipe.
    pub(super) guard_alive: BorrowedFd<'a>,
    /// Readable when the keeper has changed the lease.
    pub(super) guard_wake: BorrowedFd<'a>,
    /// The pipe of the run that lends its locks; `None` once there was news. While the pipe is open, that run waits for this one.
    pub(super) lender: Option<BorrowedFd<'a>>,
    /// The end of a pipe that shows that the supervisor has died. The kernel kills the command at that moment.
    pub(super) fuse: OwnedFd,
    pub(super) page: Page,
    pub(super) lease: LeaseView,
}

/// Lives as a guard until nothing is left of the command, or until it is told to leave. If the system is short of something,
/// the guard tells the supervisor why and exits. The supervisor makes another one when the lock is held.
pub(super) fn run(birth: &GuardBirth<'_>, inherited: Inherited<'_>, passage: Passage) -> ! {
    let _ = prctl::set_name(c"lock-guard");
    // As long as there is no command, a guard dies with its supervisor even while it is suspended. Otherwise the keeper
    // would wait for it, and hold the lock.
    let _ = prctl::set_pdeathsig(Named::SIGKILL);
    if getppid() != passage.supervisor {
        passage.report.exit(&Errno::ESRCH.into());
    }
    match GuardProcess::set_up(birth, inherited, &passage) {
        // What it has open the kernel closes.
        Ok(process) => ManuallyDrop::new(process).work(),
        Err(error) => match Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO)) {
            Errno::EAGAIN | Errno::ENOMEM | Errno::EMFILE | Errno::ENFILE | Errno::ESRCH => passage.report.exit(&error),
            errno => passage.report.refused(errno),
        },
    }
    // Up to here the timer ends a guard that is suspended.
    exit_now(0)
}

struct GuardProcess<'a> {
    inherited: Inherited<'a>,
    has_lost_lender: bool,
    signals: Signals,
    alarm: Alarm,
    /// Opens the gate; `None` once it was opened.
    go: Option<OwnedFd>,
    /// The command's process, until it has been reaped.
    command: Option<Pid>,
    origin: StartGroup,
    tree: Tree,
    /// The first continues this process, the second kills it.
    timers: [Timer; 2],
    goes_first: bool,
    /// The end of the pipe that shows that no guard is left; `None` once nothing is left to answer for.
    guard_alive: Option<OwnedFd>,
    fuses: [Fuse<'a>; 2],
    /// There may be a request at the link.
    is_asked: bool,
}

impl<'a> GuardProcess<'a> {
    /// Makes the command's process, and all that is needed to answer for it.
    fn set_up(birth: &GuardBirth<'_>, inherited: Inherited<'a>, passage: &Passage) -> io::Result<Self> {
        prctl::set_child_subreaper(true)?;
        // At the end of a process the kernel closes its descriptors, those with higher numbers first: `guard_alive`, which only
        // the guard has, must be closed before `fuse`, which tells the guard of the supervisor.
        let guard_alive = above(inherited.guard_alive.try_clone_to_owned()?, inherited.fuse.as_fd())?;
        let (waits, go) = pipe2(OFlag::O_CLOEXEC)?;
        let guard = getpid();
        let child = match fork_bare()? {
            ForkResult::Child => {
                let (page, lease) = (inherited.page, inherited.lease);
                // The original of `guard_alive` stays open until execve(2). The kernel kills this process with the guard
                // (PR_SET_PDEATHSIG), so that the original does not outlast the guard.
                drop((inherited, guard_alive, go));
                gate::wait(birth, passage, &waits, guard, page, lease)
            }
            ForkResult::Parent { child } => child,
        };
        drop(waits);
        let origin = StartGroup::ours(birth.own_group.then_some(child));
        let goes_first = kernel::go_first();
        if birth.own_group {
            // Also here, because the group must exist before a fuse can name it.
            let _ = setpgid(child, child);
            // The guard gets a group of its own and stays in the session: so the command's group is not orphaned, and Ctrl-Z can
            // suspend that group (setpgid(2)).
            let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
        } else {
            // Out of reach of the terminal. If the guard stayed in the session, in another group than the command, the command's
            // group would not be orphaned even where no shell can continue that group.
            let _ = setsid();
        }
        [inherited.link.as_fd()].into_iter().chain(inherited.lender).try_for_each(signals::continue_at_news)?;
        let target = if birth.own_group { -child.as_raw() } else { child.as_raw() };
        #[expect(unsafe_code, reason = "the descriptor lives as long as this process")]
        // SAFETY: nothing closes it before the process exits.
        let fuse = unsafe { BorrowedFd::borrow_raw(inherited.fuse.as_raw_fd()) };
        let process = Self {
            has_lost_lender: false,
            signals: Signals::of([Signal::CHLD])?,
            alarm: Alarm::new()?,
            go: Some(go),
            command: Some(child),
            origin,
            tree: Tree::open()?,
            timers: [Timer::new(Signal::CONT)?, Timer::new(Signal::KILL)?],
            goes_first,
            guard_alive: Some(guard_alive),
            fuses: [Fuse::lay(inherited.guards_gone, target)?, Fuse::lay(fuse, target)?],
            is_asked: false,
            inherited,
        };
        process.close_others(birth);
        kernel::lock_in_memory([process.inherited.page.lease(), process.inherited.lease].map(LeaseView::extent));
        process.tree.touch_memory();
        process.inherited.page.set_command(child);
        Ok(process)
    }

    /// Closes all descriptors but those that the guard uses or is to keep. A copy of an end that only the supervisor should have
    /// would hide the supervisor's death.
    fn close_others(&self, birth: &GuardBirth<'_>) {
        let Inherited { link, wake, guards_gone, guard_wake, lender, fuse, .. } = &self.inherited;
        let inherited = [link.as_fd(), wake.as_fd(), *guards_gone, *guard_wake, fuse.as_fd()];
        let own = [self.signals.as_fd(), self.alarm.as_fd()];
        let pipes = self.go.iter().chain(&self.guard_alive).map(AsFd::as_fd).chain(*lender);
        let all = inherited.into_iter().chain(own).chain(self.tree.descriptors()).chain(pipes);
        let kept: Vec<_> = all.map(|fd| fd.as_raw_fd()).chain(birth.kept_open.iter().copied()).collect();
        close_all_but(&kept);
    }

    fn work(&mut self) {
        let mut guard = GuardRules::default();
        let mut wake_at = None;
        loop {
            // An alarm that cannot be set leaves the kernel's timer.
            let _ = self.alarm.set(wake_at);
            self.wait(guard.has_supervisor());
            match guard.turn(self) {
                NextTurn::Wait(next) => wake_at = next,
                NextTurn::Exit => return,
            }
        }
    }

    fn wait(&mut self, has_supervisor: bool) {
        let Inherited { link, guard_wake, lender, .. } = &self.inherited;
        let mut fds = [
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.alarm.as_fd(), PollFlags::POLLIN),
            PollFd::new(*guard_wake, PollFlags::POLLIN),
            PollFd::new(lender.unwrap_or(*guard_wake), PollFlags::POLLIN),
            PollFd::new(link.as_fd(), PollFlags::POLLIN),
        ];
        // Once the supervisor has gone, its socket is always readable.
        let waits_for = if has_supervisor { 5 } else { 4 };
        let polled = poll(&mut fds[..waits_for], PollTimeout::NONE);
        if polled == Err(Errno::EINVAL) {
            // Someone has made RLIMIT_NOFILE smaller than the number of `fds` (poll(2)). The guard must not use a whole processor.
            let _ = poll(&mut [], BLIND);
        }
        let [has_child, _, is_rung, of_lender, is_asked] = fds.map(|fd| polled.is_err() || fd.any().unwrap_or(true));
        if has_child {
            self.signals.clear();
        }
        if of_lender && polled.is_ok() {
            // The pipe is always readable from now on. It stays open, because the lender still waits for this run.
            self.has_lost_lender |= self.inherited.lender.take().is_some();
        }
        if is_rung {
            let _ = read(self.inherited.guard_wake, &mut [0; 8]);
        }
        self.is_asked = is_asked;
    }

    fn show_denied(&mut self) {
        if let Some(denied) = self.tree.take_denied()
            && self.inherited.page.deny(denied)
        {
            self.wake_supervisor();
        }
    }
}

impl GuardIo for GuardProcess<'_> {
    fn now(&self) -> Instant {
        clock::now()
    }

    fn limits(&self) -> Limits {
        self.inherited.lease.limits()
    }

    fn has_lost_lender(&self) -> bool {
        self.has_lost_lender
    }

    fn disarm(&mut self) {
        self.fuses.iter().for_each(Fuse::remove);
    }

    fn ended_by_itself(&self) -> bool {
        !self.inherited.page.is_spoiled()
    }

    fn set_timers(&mut self, continue_at: Instant, kill_at: Instant) {
        let [continues, kills] = &mut self.timers;
        continues.set(continue_at);
        kills.set(kill_at);
    }

    fn reap(&mut self) -> GuardReaped {
        match reap(libc::WUNTRACED) {
            // The proof that nothing is left.
            Err(Errno::ECHILD) => GuardReaped::NoneLeft,
            Err(_) | Ok(None) => GuardReaped::NoMore,
            Ok(Some((pid, _))) if self.command != Some(pid) => GuardReaped::Other,
            Ok(Some((_, status))) if libc::WIFSTOPPED(status) => GuardReaped::Suspended(libc::WSTOPSIG(status)),
            Ok(Some((_, status))) => {
                self.command = None;
                GuardReaped::Ended(status)
            }
        }
    }

    fn share_processor(&mut self, shares: bool) {
        match shares {
            _ if !self.goes_first => {}
            true => kernel::share_processor(),
            // The right may have been taken away meanwhile.
            false => self.goes_first = kernel::go_first(),
        }
    }

    fn hear(&mut self) -> Heard {
        if !self.is_asked {
            return Heard::Nothing;
        }
        let mut message = [0; 3];
        loop {
            match recv(self.inherited.link.as_raw_fd(), &mut message, MsgFlags::MSG_DONTWAIT) {
                Ok(3) => {
                    if let Some(request) = request::from_bytes(message) {
                        return Heard::Request(request);
                    }
                }
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Heard::Nothing,
                _ => return Heard::Gone,
            }
        }
    }

    fn show(&mut self, sign: Sign) {
        self.inherited.page.show(sign);
        if let Sign::Stage(Stage::Empty | Stage::Left) = sign {
            // The keeper learns by this pipe that nothing is left. At the exit of the guard, the kernel would free the guard's
            // memory before it closes the pipe.
            self.guard_alive = None;
        }
    }

    fn wake_supervisor(&mut self) {
        // Not by the socket: for a message the kernel needs memory, and where memory is short it may first wait for a disk.
        // This fails only if the supervisor has not read for ages. Then it is awake already, or wakes once it is continued.
        let _ = self.inherited.wake.write(1);
    }

    fn open_gate(&mut self) {
        if let Some(go) = self.go.take() {
            // From here on the guard outlives the supervisor: it has to kill the command.
            let _ = prctl::set_pdeathsig(None);
            let _ = write(&go, &[1]);
        }
    }

    fn close_gate(&mut self) {
        self.go = None;
    }

    fn signal(&mut self, signal: Signal, whom: Targets) {
        self.tree.signal(signal, whom, self.command, self.origin);
    }

    fn kill_children(&mut self) -> Children {
        let found = self.tree.kill_children(self.origin, |_| false);
        self.show_denied();
        found
    }

    fn kill_below(&mut self) {
        self.tree.kill_below(|_| false);
        self.show_denied();
    }
}
