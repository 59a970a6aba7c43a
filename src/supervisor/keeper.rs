//! The keeper's process, as the supervisor sees it.

use std::os::fd::{AsFd as _, AsRawFd as _, RawFd};
use std::path::Path;
use std::time::Duration;

use anyhow::Context as _;
use nix::unistd::Pid;

use crate::between::inheritance::{Inheritance, KeeperInheritance};
use crate::between::lending::Lender;
use crate::between::wire::{Link, Received};
use crate::cli::Plan;
use crate::fence::{Fence, keeper as fence_keeper};
use crate::keeper::process;
use crate::rules::event::{CommandEnd, Event};
use crate::rules::loans::Seen;
use crate::rules::message::{Grant, Order};
use crate::rules::process_identity::ProcessIdentity;
use crate::rules::signal::Signal;
use crate::system::fork::{Life, fork};
use crate::system::proc;
use crate::system::signals;
use crate::system::writer;

pub(super) struct KeeperProcess {
    /// `None`: a run above us has the locks, and its keeper keeps them.
    pub(super) pid: Option<Pid>,
    /// `None` once the other end is closed.
    pub(super) link: Option<Link>,
    pub(super) inherited: Inheritance,
    pub(super) reaped: bool,
    /// It was reaped, and had not exited by itself.
    pub(super) died: bool,
    /// What a run above lends, until the machine hears of it.
    grant_on_loan: Option<Grant>,
}

impl KeeperProcess {
    /// Makes the keeper of locks in ZooKeeper. `seen`: what the runs above us lend, which is nothing that we want.
    pub(super) fn start(plan: &Plan, refresh: Option<Duration>, seen: Vec<Seen>) -> anyhow::Result<Self> {
        let is_hold = plan.hold.is_some();
        let file = plan.access.login.file.as_deref().and_then(descriptor_of);
        Self::fork(is_hold, file, |supervisor, link, inherited| {
            process::run(plan, supervisor, refresh, seen, link, inherited);
        })
    }

    pub(super) fn of_fence(fence: &Fence) -> anyhow::Result<Self> {
        Self::fork(false, [fence.descriptor()], |supervisor, link, inherited| {
            fence_keeper::run(&fence_keeper::FenceKeeper { fence, supervisor: supervisor.pid, link, inherited });
        })
    }

    /// `is_hold`: no command is run. `files`: descriptors of files that the keeper needs. `live`: what the keeper does. The
    /// supervisor must have one thread only.
    fn fork(
        is_hold: bool,
        files: impl IntoIterator<Item = RawFd>,
        live: impl FnOnce(ProcessIdentity, Link, KeeperInheritance<'_>),
    ) -> anyhow::Result<Self> {
        let (ours, theirs) = Link::pair().context("cannot create a socket pair")?;
        let inherited = Inheritance::new(None).context("cannot make pipes and shared memory")?;
        let supervisor = inherited.lending.lender();
        let mut keep = inherited.descriptors_of_keeper(is_hold);
        keep.extend([libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO, theirs.as_fd().as_raw_fd()]);
        keep.extend(writer::descriptor());
        keep.extend(proc::directory().map(|proc| proc.as_raw_fd()));
        keep.extend(files);
        let forked =
            fork(c"lock-keeper", Life::Parents, &keep, || live(supervisor, theirs, inherited.of_keeper(is_hold)));
        let pid = forked.context("cannot fork")?;
        Ok(Self { pid: Some(pid), link: Some(ours), inherited, reaped: false, died: false, grant_on_loan: None })
    }

    /// In place of a keeper: a run above us lends us its locks.
    pub(super) fn of_lender(lender: Lender, grant: Grant) -> anyhow::Result<Self> {
        let inherited = Inheritance::new(Some(lender)).context("cannot make pipes and shared memory")?;
        Ok(Self { pid: None, link: None, inherited, reaped: true, died: false, grant_on_loan: Some(grant) })
    }

    /// Whether there is something to hear although the socket may not be readable: the keeper was reaped, and another process
    /// may have a copy of its end of the socket.
    pub(super) fn has_news(&self) -> bool {
        self.grant_on_loan.is_some() || self.reaped && self.link.is_some()
    }

    pub(super) fn hear(&mut self) -> Option<Event> {
        if let Some(grant) = self.grant_on_loan.take() {
            return Some(Event::Lent(Box::new(grant)));
        }
        match self.link.as_ref()?.receive() {
            Received::Message(report) => Some(Event::Keeper(report)),
            Received::Nothing if !self.reaped => None,
            Received::Nothing | Received::Gone => {
                self.link = None;
                Some(Event::KeeperGone)
            }
        }
    }

    /// Does nothing if the keeper has gone: that is an event of its own.
    pub(super) fn order(&self, order: Order) {
        if let Some(link) = &self.link
            && let Err(error) = link.send(&order)
        {
            log::info!("cannot tell the keeper {order:?}: {error}");
            // There is no command: the lock is to be released, which the shared page and the end of the socket can say.
            self.inherited.page.release();
            link.hang_up();
        }
    }

    pub(super) fn kill(&self) {
        // Until it has been reaped, the pid belongs to it.
        if let Some(pid) = self.pid.filter(|_| !self.reaped) {
            let _ = signals::send(pid.as_raw(), Signal::KILL);
        }
    }

    /// The keeper has been reaped. Its last reports may still be in the socket.
    pub(super) fn ended(&mut self, end: CommandEnd) {
        log::debug!("keeper: {end:?}");
        self.reaped = true;
        self.died = end != CommandEnd::Exited(0);
    }
}

/// The descriptor that a path names, such as that of a shell's `<(...)`.
fn descriptor_of(path: &Path) -> Option<RawFd> {
    let folder = ["/dev/fd", "/proc/self/fd"].into_iter().find_map(|folder| path.strip_prefix(folder).ok());
    folder?.to_str()?.parse().ok()
}
