//! The guard: the process that is the parent of the command. It starts it, signals it, reaps it, and sees to it that
//! nothing of it outlives the lease.
//!
//! The guard is a fork of the supervisor, made while the lock is waited for, and so is the command's process, which
//! waits at a gate with everything done but execve(2). All that is below the guard belongs to the command, because it
//! adopts orphans (PR_SET_CHILD_SUBREAPER), and nothing else has ever been there: ECHILD from waitpid(2) is the proof
//! that nothing is left. What stands in for what is in `docs/architecture.md`.
//!
//! This room has both sides: [`Guard`] is what the supervisor holds of it; `process` is the guard itself, `gate` is the
//! command's process before it is the command, `kernel` what the kernel does for us when all of us are dead or stopped.

mod gate;
mod kernel;
mod process;
pub mod program;
pub mod tree;

use std::ffi::OsString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socketpair};
use nix::unistd::{ForkResult, Pid, fork, getpid, pipe2};

use self::gate::Passage;
use crate::between::lending::Lending;
use crate::between::page::Page;
use crate::between::wire::send_whole;
use crate::cli::CommandLine;
use crate::cli::environment;
use crate::guard::program::FailurePipe;
use crate::rules::event::CommandEnd;
use crate::rules::guard::{GuardRequest, Stage, Targets};
use crate::rules::instant::Instant;
use crate::rules::lease::Span;
use crate::rules::signal::Signal;
use crate::system::signals;

/// What ties a keeper and its guards together. It is made before the keeper, which inherits its part.
#[derive(Debug)]
pub struct Ties {
    pub page: Page,
    /// Readable once no guard is left, and none can come.
    ended: OwnedFd,
    /// Closed in the supervisor when the gate is opened: from then on only the guard has it.
    alive: Option<OwnedFd>,
    /// Wakes the guard when the keeper has revoked the lease, or has made it shorter.
    bell: EventFd,
    /// What other runs borrow our locks by.
    pub lent: Lending,
}

/// The keeper's part of [`Ties`].
#[derive(Debug)]
pub struct KeeperTies<'a> {
    pub page: Page,
    /// Readable (at its end) once no guard is left, and none can come.
    pub ended: BorrowedFd<'a>,
    bell: &'a EventFd,
    /// With `zklock hold`: what other runs borrow our locks by. The guard is no proof that they have gone.
    pub lent: Option<&'a Lending>,
}

impl Ties {
    /// Fails if there is no memory or no descriptor left.
    pub fn new() -> io::Result<Self> {
        let (ended, alive) = pipe2(OFlag::O_CLOEXEC)?;
        let bell = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        Ok(Self { page: Page::new()?, ended, alive: Some(alive), bell, lent: Lending::begin()? })
    }

    /// No guard will be made any more.
    pub fn end(&mut self) {
        self.alive = None;
    }

    /// The keeper's part, in the process that is to be the keeper. `is_hold`: no command is run.
    pub fn of_keeper(&self, is_hold: bool) -> KeeperTies<'_> {
        let Self { page, ended, alive: _, bell, lent } = self;
        if is_hold {
            lent.end();
        }
        KeeperTies { page: *page, ended: ended.as_fd(), bell, lent: is_hold.then_some(lent) }
    }

    pub fn descriptors_of_keeper(&self, is_hold: bool) -> Vec<RawFd> {
        let mut descriptors = vec![self.ended.as_raw_fd(), self.bell.as_fd().as_raw_fd()];
        if is_hold {
            descriptors.extend(self.lent.descriptors());
        }
        descriptors
    }
}

impl KeeperTies<'_> {
    /// The lease is this. A guard that sleeps until the end of a longer one is woken.
    pub fn show(&self, span: Span) {
        let is_shorter = span.ends_at < self.page.limits().1;
        self.page.lease(span);
        if is_shorter {
            self.ring();
        }
    }

    fn ring(&self) {
        // It fails only where the bell has been rung and was not heard yet.
        let _ = self.bell.write(1);
    }

    /// The lock is lost for sure: the guard is to kill the command now.
    pub fn revoke(&self) {
        self.page.revoke();
        self.ring();
        self.lent.into_iter().for_each(Lending::call_in);
    }
}

/// A request as the guard is sent it: what is wanted, with a signal's number, and who gets that, after it.
type Message = [u8; 3];

const WHOM: [Targets; 3] = [Targets::Job, Targets::Strayed, Targets::All];

fn to_message(request: GuardRequest) -> Message {
    // No system has as many signals as a byte has numbers.
    let number = |signal: Signal| u8::try_from(signal.number()).unwrap_or(0);
    match request {
        GuardRequest::Open => [1, 0, 0],
        GuardRequest::Signal(signal, whom) => [2, number(signal), whom as u8],
        GuardRequest::Stop(signal) => [3, number(signal), 0],
        GuardRequest::Kill => [4, 0, 0],
        GuardRequest::Leave => [5, 0, 0],
    }
}

fn from_message([kind, number, whom]: Message) -> Option<GuardRequest> {
    Some(match kind {
        1 => GuardRequest::Open,
        2 => GuardRequest::Signal(Signal::new(number.into())?, *WHOM.get(usize::from(whom))?),
        3 => GuardRequest::Stop(Signal::new(number.into())?),
        4 => GuardRequest::Kill,
        5 => GuardRequest::Leave,
        _ => return None,
    })
}

/// What a guard is made from.
#[derive(Debug)]
pub struct GuardBirth<'a> {
    /// What becomes of the process at the gate.
    pub command: &'a CommandLine,
    /// Whether the command gets its own process group. It belongs to ours where there is a terminal.
    pub own_group: bool,
    /// Descriptors that the guard is to keep open for as long as something of the command is left.
    pub kept: Vec<RawFd>,
}

/// A guard, as the supervisor sees it.
#[derive(Debug)]
pub struct Guard {
    pid: Pid,
    page: Page,
    /// Where the guard is sent requests; `None` once it has closed its end.
    link: Option<OwnedFd>,
    /// Readable when there is something new in [`Page`].
    news: EventFd,
    /// Where the command's process gets its environment from.
    gate: Option<OwnedFd>,
    failure: FailurePipe,
    /// The end of a pipe that only we have: when we die, the kernel kills the command.
    _fuse: OwnedFd,
}

impl Guard {
    /// Forks a guard, and that forks the command's process, which waits at the gate. This process must have one thread
    /// only. An error means that no guard could be forked. A guard that cannot fork the command's process exits.
    pub fn start(birth: &GuardBirth<'_>, ties: &Ties) -> io::Result<Self> {
        // A guard has died that had been asked to open its gate.
        let Some(alive) = &ties.alive else { return Err(Errno::ESRCH.into()) };
        ties.page.reset();
        let pair = || socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
        let (link, guards_link) = pair()?;
        let (gate, childs_gate) = pair()?;
        let news = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let (failure, report) = FailurePipe::pipe()?;
        let (guards_fuse, fuse) = pipe2(OFlag::O_CLOEXEC)?;
        // At the end of a process the kernel closes its descriptors, those with higher numbers first: ours must be
        // closed before the end that tells us of the guard.
        let fuse = above(fuse, ties.ended.as_fd())?;
        signals::continue_at_news(link.as_fd())?;
        let supervisor = getpid();
        #[expect(unsafe_code, reason = "the guard is a fork of the supervisor")]
        // SAFETY: this process has one thread, so the child may go on as any process may (fork(2)).
        let forked = unsafe { fork() };
        match forked {
            Ok(ForkResult::Child) => {
                signals::block_all();
                drop((link, gate, failure, fuse));
                let inherited = process::Inherited {
                    link: guards_link,
                    news,
                    ended: ties.ended.as_fd(),
                    alive: alive.as_fd(),
                    bell: ties.bell.as_fd(),
                    fuse: guards_fuse,
                    page: ties.page,
                };
                process::run(birth, inherited, Passage { gate: childs_gate, report, supervisor })
            }
            Ok(ForkResult::Parent { child: pid }) => {
                Ok(Self { pid, page: ties.page, link: Some(link), news, gate: Some(gate), failure, _fuse: fuse })
            }
            Err(error) => Err(error.into()),
        }
    }

    pub fn pid(&self) -> Pid {
        self.pid
    }

    /// One of these becomes readable when there is something new, or when the guard has gone. None once that was heard.
    pub fn awaited(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.link.iter().flat_map(|link| [link.as_fd(), self.news.as_fd()])
    }

    /// Lets the command start with this environment added to ours, if that is before `until`. Fails if the guard, or
    /// the command's process, has gone.
    pub fn open(&mut self, ties: &mut Ties, variables: &[environment::Variable], until: Instant) -> io::Result<()> {
        let Some(gate) = self.gate.take() else { return Err(Errno::EPIPE.into()) };
        let message = gate::Opening { until, variables: variables.iter().map(owned).collect() }.to_bytes();
        send_whole(gate.as_fd(), &message)?;
        // Before the command can start: a copy of this end would hide the guard's death from the kernel.
        ties.alive = None;
        self.request(GuardRequest::Open)?;
        Ok(())
    }

    /// Asks something of it. That continues a guard that is stopped. If it has gone, there is no command to ask it for.
    pub fn ask(&self, request: GuardRequest) {
        let _ = self.request(request);
    }

    /// Kills a guard whose gate was never opened, or that does not do what it is asked to. The kernel then kills the
    /// command (PR_SET_PDEATHSIG). Only while the guard has not been reaped.
    pub fn kill_guard(&self) {
        let _ = signals::send(self.pid.as_raw(), Signal::KILL);
    }

    /// Whether it has not been heard that the guard has gone.
    pub fn is_linked(&self) -> bool {
        self.link.is_some()
    }

    /// Takes note that there was something new. Fails once the guard has gone.
    pub fn hear(&mut self) -> io::Result<()> {
        // Reading fails if there is nothing new, which does no harm.
        let _ = self.news.read();
        let Some(link) = &self.link else { return Err(Errno::EPIPE.into()) };
        loop {
            match recv(link.as_raw_fd(), &mut [0], MsgFlags::MSG_DONTWAIT) {
                Err(Errno::EINTR) => {}
                Err(Errno::EAGAIN) => return Ok(()),
                // A guard sends nothing, so anything else here means that it has gone.
                gone => {
                    self.link = None;
                    return Err(gone.err().unwrap_or(Errno::EPIPE).into());
                }
            }
        }
    }

    /// How the command has ended, if the guard has reaped it.
    pub fn ended(&self) -> Option<CommandEnd> {
        self.page.ended().map(program::end_of)
    }

    /// Why the program was not executed, once the command's process has ended.
    pub fn failure(&self) -> Option<io::Error> {
        self.failure.read()
    }

    pub fn page(&self) -> Page {
        self.page
    }

    pub fn stage(&self) -> Stage {
        self.page.stage()
    }

    fn request(&self, request: GuardRequest) -> io::Result<()> {
        let Some(link) = &self.link else { return Err(Errno::EPIPE.into()) };
        Ok(send_whole(link.as_fd(), &to_message(request))?)
    }
}

/// The same descriptor under a number that is higher than that of `other`.
fn above(fd: OwnedFd, other: BorrowedFd<'_>) -> nix::Result<OwnedFd> {
    if fd.as_raw_fd() > other.as_raw_fd() {
        return Ok(fd);
    }
    let raised = fcntl(&fd, FcntlArg::F_DUPFD_CLOEXEC(other.as_raw_fd() + 1))?;
    #[expect(unsafe_code, reason = "fcntl(2) returns a number")]
    // SAFETY: F_DUPFD_CLOEXEC has just made this descriptor, so it is owned here alone.
    Ok(unsafe { OwnedFd::from_raw_fd(raised) })
}

fn owned((name, value): &environment::Variable) -> (OsString, OsString) {
    (name.into(), value.clone())
}
