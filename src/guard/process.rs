//! The guard itself.
//!
//! It has one thread, blocks every signal that a C library lets it block, allocates nothing once it waits, writes to no
//! inherited descriptor, and waits for no other process. It touches no file but the list of its children, and others in
//! /proc only when it has to kill once more ([`below`]).

mod outside;

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::EventFd;
use nix::sys::prctl;
use nix::sys::signal::Signal as Named;
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid, pipe2, read, setpgid, setsid};

use super::below;
use super::gate::{self, Passage};
use super::kernel::{self, DeadlineTimer, Fuse, Lenders, errno, noted};
use super::round::{Origin, Round};
use super::{Birth, Borrowed, above};
use crate::clock::Alarm;
use crate::command::exit_now;
use crate::descendants;
use crate::descriptors;
use crate::lending::Lifeline;
use crate::rules::guard::{Guard, Next, Outside};
use crate::shared::{Part, Shared};
use crate::signals::{self, ChildSignals};

/// How often to look at everything if nothing can be waited for, in milliseconds.
const BLIND: u8 = 10;

/// What a guard has from the supervisor.
pub(super) struct Inherited<'a> {
    pub(super) link: OwnedFd,
    /// Wakes the supervisor when there is something new in `shared`.
    pub(super) news: EventFd,
    /// The end of the pipe that shows that no guard is left. The kernel kills the command at that moment.
    pub(super) ended: BorrowedFd<'a>,
    /// The other end of that pipe.
    pub(super) alive: BorrowedFd<'a>,
    pub(super) bell: BorrowedFd<'a>,
    /// The end of a pipe that shows that the supervisor has died. The kernel kills the command at that moment.
    pub(super) fuse: OwnedFd,
    /// The end of a pipe that shows that the guard has died, to the runs below that use our locks. It is the only one.
    pub(super) lifeline: Option<Lifeline>,
    pub(super) shared: Shared,
}

/// Lives as a guard until nothing is left of the command, or until it is told to leave.
pub(super) fn run(birth: &Birth<'_>, inherited: Inherited<'_>, passage: Passage<'_>) -> ! {
    let mut process = Process::begin(birth, inherited, passage);
    let guard = Guard::begin(&mut process);
    process.work(guard);
    // Up to here the timer ends a guard that is stopped. What it has open the kernel closes.
    exit_now(0)
}

struct Process<'a> {
    link: OwnedFd,
    news: EventFd,
    bell: BorrowedFd<'a>,
    signals: ChildSignals,
    alarm: Alarm,
    shared: Shared,
    /// Opens the gate; `None` once it was opened.
    go: Option<OwnedFd>,
    /// The command's process, until it has been reaped.
    command: Option<Pid>,
    own_group: bool,
    /// Whether we have a real-time priority.
    goes_first: bool,
    origin: Origin,
    /// The list of our children.
    children: File,
    /// /proc, as it was before the command was started.
    proc: BorrowedFd<'static>,
    timer: Option<DeadlineTimer>,
    /// Those of our own three pipes, then those of the runs that we borrow from, if the kernel can do that.
    fuses: Vec<Fuse<'a>>,
    /// The end of a pipe of ours alone, with a fuse: to close it kills the command's process group.
    spark: Option<OwnedFd>,
    /// The other end of that pipe.
    charge: OwnedFd,
    /// What has a pledge in it from the opening of the gate on.
    pledges: Vec<BorrowedFd<'a>>,
    /// `None` if nothing is borrowed in this way, and once one of them has died.
    lenders: Option<Lenders>,
    /// The end of the pipe that shows that no guard is left; `None` once nothing is left to answer for.
    alive: Option<OwnedFd>,
    /// The end of the pipe that shows that the supervisor has died.
    fuse: OwnedFd,
    lifeline: Option<Lifeline>,
}

impl<'a> Process<'a> {
    /// Makes the command's process, and all that is needed to answer for it. If the system is short of something, the
    /// supervisor is told why, and there is no guard: another may have more luck.
    fn begin(birth: &Birth<'_>, inherited: Inherited<'a>, passage: Passage<'_>) -> Self {
        let Passage { gate, report, supervisor, lent } = passage;
        let Inherited { link, news, ended, alive, bell, fuse, lifeline, shared } = inherited;
        let _ = prctl::set_name(c"lock-guard");
        // As long as there is no command, a guard dies with its supervisor even while it is stopped. Otherwise the
        // keeper would wait for it, and hold the lock.
        let _ = prctl::set_pdeathsig(Named::SIGKILL);
        if getppid() != supervisor {
            report.exit(&Errno::ESRCH.into());
        }
        let first = || {
            noted(shared, Part::Adoption, prctl::set_child_subreaper(true))?;
            // At the end of a process the kernel closes its descriptors, those with higher numbers first: the end that
            // only we have must be closed before the end that tells us of the supervisor.
            let alive = above(alive.try_clone_to_owned().map_err(|_| Errno::EMFILE)?, fuse.as_fd())?;
            nix::Result::Ok((pipe2(OFlag::O_CLOEXEC)?, alive))
        };
        let ((waits, go), alive) = match first() {
            Ok(made) => made,
            Err(error) => report.exit(&error.into()),
        };
        let guard = getpid();
        #[expect(unsafe_code, reason = "the command's process is a fork of this one")]
        // SAFETY: this process has one thread, so the child may go on as any process may (fork(2)).
        let child = match unsafe { fork() } {
            Ok(ForkResult::Child) => {
                drop((link, fuse, lifeline, alive, go));
                gate::wait(birth, Passage { gate, report, supervisor, lent }, &waits, guard, shared)
            }
            Ok(ForkResult::Parent { child }) => child,
            Err(error) => report.exit(&error.into()),
        };
        drop((waits, gate));
        let origin = Origin::ours(birth.own_group.then_some(child));
        kernel::go_first();
        if birth.own_group {
            // Also here, because the group must exist before a fuse can name it.
            let _ = setpgid(child, child);
            // In a group of our own, but in the session: so the command's group is not orphaned, and Ctrl-Z can
            // stop it (setpgid(2)).
            let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
        } else {
            // Out of reach of the terminal. If we stayed in its session, in another group than the command, the
            // command's group would not be orphaned even where no shell can continue it.
            let _ = setsid();
        }
        #[expect(unsafe_code, reason = "the descriptors live as long as this process")]
        // SAFETY: they are inherited, or owned by the value that is returned; either way this process keeps them open.
        let kept = |fds: &[RawFd]| fds.iter().map(|fd| unsafe { BorrowedFd::borrow_raw(*fd) }).collect::<Vec<_>>();
        let (pledges, lifelines) = (kept(&birth.borrowed.pledges), kept(&birth.borrowed.lifelines));
        let second = || {
            let pipe = pipe2(OFlag::O_CLOEXEC)?;
            let children = descendants::own_list().map_err(errno)?;
            let timer = noted(shared, Part::Timer, DeadlineTimer::new())?;
            let proc = descendants::proc().map_err(errno)?;
            let lenders = Lenders::watch(lifelines.iter().copied())?;
            nix::Result::Ok((pipe, children, timer, proc, lenders, ChildSignals::new()?, Alarm::new()?))
        };
        let ((charge, spark), children, timer, proc, lenders, signals, alarm) = match second() {
            Ok(made) => made,
            Err(error) => report.exit(&error.into()),
        };
        drop(report);
        let own_pipes = kept(&[ended.as_raw_fd(), fuse.as_raw_fd(), charge.as_raw_fd()]);
        let shared_pipes = lifelines.iter().copied().filter(|_| kernel::tells_ends_apart());
        let fuses = own_pipes.into_iter().chain(shared_pipes).map(Fuse::new).collect();
        let process = Self {
            link,
            news,
            bell,
            signals,
            alarm,
            shared,
            go: Some(go),
            command: Some(child),
            own_group: birth.own_group,
            goes_first: kernel::priority() > 0,
            origin,
            children,
            proc,
            timer,
            fuses,
            spark: Some(spark),
            charge,
            pledges,
            lenders,
            alive: Some(alive),
            fuse,
            lifeline,
        };
        process.close_others(ended, &birth.borrowed);
        let own = [
            Self::work as *const (),
            Self::wait as *const (),
            <Self as Outside>::reap as *const (),
            <Self as Outside>::reap_command as *const (),
            <Self as Outside>::has_living_child as *const (),
            <Self as Outside>::hear as *const (),
            <Self as Outside>::heed_lenders as *const (),
            Lenders::has_lost_one as *const (),
            <Self as Outside>::kill_group as *const (),
            <Self as Outside>::kill_children as *const (),
            <Self as Outside>::kill_below as *const (),
            Round::kill as *const (),
            signals::send as *const (),
        ];
        kernel::lock_in_memory(shared, &[&own[..], &below::functions(), &Guard::functions::<Self>()].concat());
        process.rehearse(child);
        process
    }

    /// Looks for what is to be killed, so that what it takes is in memory. The process at the gate has no children.
    fn rehearse(&self, gated: Pid) {
        let _ = Self::each_child(&self.children, |_| {});
        let mut budget = below::MOST;
        below::kill(self.proc, gated.as_raw(), &mut budget);
    }

    /// Closes all descriptors but ours and those that a guard is to keep. A copy of an end that only the supervisor
    /// should have would hide the supervisor's death.
    fn close_others(&self, ended: BorrowedFd<'_>, borrowed: &Borrowed) {
        let mut ours = vec![
            self.link.as_raw_fd(),
            self.news.as_fd().as_raw_fd(),
            self.bell.as_raw_fd(),
            self.signals.as_fd().as_raw_fd(),
            self.alarm.as_fd().as_raw_fd(),
            self.fuse.as_raw_fd(),
            self.charge.as_raw_fd(),
            ended.as_raw_fd(),
            self.children.as_raw_fd(),
            self.proc.as_raw_fd(),
        ];
        ours.extend(self.go.iter().chain(&self.alive).chain(&self.spark).map(AsRawFd::as_raw_fd));
        ours.extend(self.lifeline.iter().map(AsRawFd::as_raw_fd));
        ours.extend(self.lenders.as_ref().map(|lenders| lenders.as_fd().as_raw_fd()));
        ours.extend(borrowed.pipes.iter().chain(&borrowed.lifelines));
        descriptors::close_all_but(&mut ours);
    }

    // Not inlined, nor are the functions that it calls: their pages are locked in memory.
    #[inline(never)]
    fn work(&mut self, mut guard: Guard) {
        // From here on the supervisor can signal the command.
        self.command.into_iter().for_each(|command| self.shared.set_command(command));
        self.tell();
        while let Next::Wait(wake_at) = guard.turn(self) {
            // An alarm that cannot be set leaves the kernel's timer.
            let _ = self.alarm.set(wake_at);
            self.wait(guard.has_supervisor());
        }
    }

    #[inline(never)]
    fn wait(&self, has_supervisor: bool) {
        // What waits at the gate is killed by the kernel.
        let lenders = self.lenders.as_ref().filter(|_| self.go.is_none()).map_or(self.bell, |lenders| lenders.as_fd());
        let mut fds = [
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.alarm.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.bell, PollFlags::POLLIN),
            PollFd::new(lenders, PollFlags::POLLIN),
            PollFd::new(self.link.as_fd(), PollFlags::POLLIN),
        ];
        // Once the supervisor has gone, its socket is always readable.
        let waits_for = if has_supervisor { 5 } else { 4 };
        if poll(&mut fds[..waits_for], PollTimeout::NONE) == Err(Errno::EINVAL) {
            // RLIMIT_NOFILE is smaller than their number by now (poll(2)). At its priority it must not ask all the time.
            let _ = poll(&mut [], BLIND);
        }
        self.signals.clear();
        let _ = read(self.bell, &mut [0; 8]);
    }
}
