//! What the supervisor has of a guard.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, recv, socketpair};
use nix::unistd::{ForkResult, Pid, getpid, pipe2};

use super::gate::{self, GuardBirth, Passage};
use super::kernel::above;
use super::process;
use super::program::{self, FailurePipe};
use super::request;
use crate::between::inheritance::Inheritance;
use crate::between::page::Page;
use crate::between::wire::send_whole;
use crate::cli::environment;
use crate::rules::event::CommandEnd;
use crate::rules::guard::GuardRequest;
use crate::rules::instant::Instant;
use crate::rules::signal::Signal;
use crate::system::fork::fork_bare;
use crate::system::signals;

/// A guard that the supervisor has forked.
#[derive(Debug)]
pub struct Guard {
    pub pid: Pid,
    /// What the guard shows.
    pub page: Page,
    /// Where the guard is sent requests; `None` once it has closed its end.
    link: Option<OwnedFd>,
    /// Readable when there is something new in [`Page`].
    wake: EventFd,
    /// Where the command's process gets its environment from.
    gate: Option<OwnedFd>,
    /// Why the program was not executed, once the command's process has ended.
    pub failure: FailurePipe,
    /// The end of a pipe that only the supervisor has: when the supervisor dies, the kernel kills the command.
    _fuse: OwnedFd,
}

impl Guard {
    /// Forks a guard, which forks the command's process. An error means that no guard could be forked. A guard that cannot fork
    /// the command's process exits.
    pub fn start(birth: &GuardBirth<'_>, inherited: &Inheritance) -> io::Result<Self> {
        let Some([guards_gone, guard_alive, guard_wake]) = inherited.of_guard() else {
            return Err(Errno::ESRCH.into());
        };
        inherited.page.reset();
        let pair = || socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC);
        let (link, guards_link) = pair()?;
        let (gate, childs_gate) = pair()?;
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let (failure, report) = FailurePipe::pipe()?;
        let (guards_fuse, fuse) = pipe2(OFlag::O_CLOEXEC)?;
        // At the end of a process the kernel closes its descriptors, those with higher numbers first: `fuse` must be
        // closed before `guards_gone`, which tells the supervisor of the guard.
        let fuse = above(fuse, guards_gone)?;
        signals::continue_at_news(link.as_fd())?;
        let supervisor = getpid();
        match fork_bare() {
            Ok(ForkResult::Child) => {
                signals::block_all();
                drop((link, gate, failure, fuse));
                let inherited = process::Inherited {
                    link: guards_link,
                    wake,
                    guards_gone,
                    guard_alive,
                    guard_wake,
                    lender: inherited.lender.as_ref().map(|lender| lender.pipe.as_fd()),
                    fuse: guards_fuse,
                    page: inherited.page,
                    lease: inherited.lease,
                };
                process::run(birth, inherited, Passage { gate: childs_gate, report, supervisor })
            }
            Ok(ForkResult::Parent { child: pid }) => {
                Ok(Self { pid, page: inherited.page, link: Some(link), wake, gate: Some(gate), failure, _fuse: fuse })
            }
            Err(error) => Err(error.into()),
        }
    }

    /// One of these becomes readable when there is something new, or when the guard has gone. There are none once the
    /// supervisor has heard that the guard has gone.
    pub fn awaited(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.link.iter().flat_map(|link| [link.as_fd(), self.wake.as_fd()])
    }

    /// Lets the command start with this environment added to ours, if that is before `until`. Fails if the guard, or
    /// the command's process, has gone.
    pub fn open(
        &mut self,
        inherited: &mut Inheritance,
        variables: &[environment::Variable],
        until: Instant,
    ) -> io::Result<()> {
        let Some(gate) = self.gate.take() else { return Err(Errno::EPIPE.into()) };
        let message = gate::Opening { until, variables: variables.to_vec() }.to_bytes();
        send_whole(gate.as_fd(), &message)?;
        // Before the command can start: a copy of this end would hide the guard's death from the kernel.
        inherited.close_guard_alive();
        self.request(GuardRequest::Open)
    }

    /// Sends a request, which continues a guard that is suspended. A guard that has gone has nothing left to do.
    pub fn ask(&self, request: GuardRequest) {
        let _ = self.request(request);
    }

    /// Kills a guard whose gate was never opened, or that does not do what it is asked to. The kernel then kills the
    /// command (PR_SET_PDEATHSIG). Only while the guard has not been reaped.
    pub fn kill_guard(&self) {
        let _ = signals::send(self.pid.as_raw(), Signal::KILL);
    }

    /// Takes note that the guard has shown something new, or has gone.
    pub fn hear(&mut self) {
        // Reading fails if there is nothing new, which does no harm.
        let _ = self.wake.read();
        let answer = self.link.as_ref().map(|link| recv(link.as_raw_fd(), &mut [0], MsgFlags::MSG_DONTWAIT));
        // A guard sends nothing, so any other answer means that the guard has gone.
        if !matches!(answer, Some(Err(Errno::EAGAIN | Errno::EINTR))) {
            self.link = None;
        }
    }

    /// How the command has ended, if the guard has reaped it.
    pub fn ended(&self) -> Option<CommandEnd> {
        self.page.ended().map(program::end_of)
    }

    fn request(&self, request: GuardRequest) -> io::Result<()> {
        let Some(link) = &self.link else { return Err(Errno::EPIPE.into()) };
        Ok(send_whole(link.as_fd(), &request::to_bytes(request))?)
    }
}
