//! The keeper's process, as the supervisor sees it.

use std::fs::File;
use std::time::Duration;

use anyhow::Context as _;
use nix::sys::wait::{Id, WaitPidFlag, WaitStatus, waitid};
use nix::unistd::{ForkResult, Pid, fork};

use crate::command::exit_now;
use crate::fence::Fence;
use crate::guard::{KeeperTies, Ties};
use crate::keeper::fence;
use crate::keeper::process::{self, Birth};
use crate::lending::Borrowing;
use crate::plan::Plan;
use crate::rules::event::{CommandEnd, Event};
use crate::rules::instant::Instant;
use crate::rules::last_run::Asked;
use crate::rules::lender::Lender;
use crate::rules::message::Order;
use crate::rules::signal::Signal;
use crate::signals;
use crate::wire::{Link, Received};

pub(super) struct Keeper {
    pub(super) pid: Pid,
    /// `None` once the other end is closed.
    pub(super) link: Option<Link>,
    pub(super) ties: Ties,
    pub(super) reaped: bool,
    /// It was reaped, and had not exited by itself.
    died: bool,
}

impl Keeper {
    /// Forks a keeper of a session.
    pub(super) fn start(
        plan: &Plan,
        credentials: Option<&File>,
        refresh: Option<Duration>,
        asked: Option<Asked>,
        queue_at: Instant,
        borrowing: &mut Borrowing,
    ) -> anyhow::Result<Self> {
        let is_hold = plan.hold().is_some();
        Self::fork(is_hold, |supervisor, link, ties| {
            // It may outlive the command for as long as no server answers.
            let loans = borrowing.without_pipes();
            borrowing.give_back();
            process::run(Birth { plan, credentials, supervisor, refresh, asked, queue_at, loans, link, ties });
        })
    }

    /// Forks a keeper of a fence.
    pub(super) fn of_fence(fence: &Fence) -> anyhow::Result<Self> {
        let supervisor = Pid::this();
        Self::fork(false, |_, link, ties| fence::run(&fence::Birth { fence, supervisor, link, ties }))
    }

    /// Forks a process that lives like this. `is_hold`: no command is run. This process must have one thread only.
    fn fork(is_hold: bool, live: impl FnOnce(Lender, Link, KeeperTies)) -> anyhow::Result<Self> {
        let (ours, theirs) = Link::pair().context("cannot create a socket pair")?;
        let ties = Ties::new().context("cannot make pipes and shared memory")?;
        let supervisor = ties.lent.lender();
        #[expect(unsafe_code, reason = "the keeper is a fork of the supervisor")]
        // SAFETY: this process has one thread, so the child may go on as any process may (fork(2)).
        match unsafe { fork() }.context("cannot fork")? {
            ForkResult::Child => {
                // If we kept the supervisor's end too, we would not see the socket close when the supervisor
                // dies.
                drop(ours);
                live(supervisor, theirs, ties.into_keeper(is_hold));
                exit_now(0);
            }
            ForkResult::Parent { child: pid } => Ok(Self { pid, link: Some(ours), ties, reaped: false, died: false }),
        }
    }

    /// Whether it has gone, and did not exit by itself.
    pub(super) fn has_died(&self) -> bool {
        let by_itself = [WaitStatus::StillAlive, WaitStatus::Exited(self.pid, 0)];
        let look = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        let has_failed = || waitid(Id::Pid(self.pid), look).is_ok_and(|end| !by_itself.contains(&end));
        if self.reaped { self.died } else { has_failed() }
    }

    /// It was reaped, and that it has gone is still to be heard. As a rule its socket tells, but another process may have
    /// a copy of that.
    pub(super) fn has_news(&self) -> bool {
        self.reaped && self.link.is_some()
    }

    /// Its next message, or that it has gone.
    pub(super) fn hear(&mut self) -> Option<Event> {
        match self.link.as_ref()?.receive() {
            Received::Message(report) => Some(Event::Keeper(report)),
            Received::Nothing if !self.reaped => None,
            Received::Nothing | Received::Gone => {
                self.link = None;
                Some(Event::KeeperGone)
            }
        }
    }

    /// Tells it something, unless it has gone: that is an event of its own.
    pub(super) fn order(&self, order: Order) {
        if let Some(link) = &self.link
            && let Err(error) = link.send(&order)
        {
            log::info!("cannot tell the keeper {order:?}: {error}");
            // There is no other order.
            self.ties.shared.release();
            link.end();
        }
    }

    pub(super) fn kill(&self) {
        // Until it has been reaped, the pid belongs to it.
        if !self.reaped {
            let _ = signals::send(self.pid.as_raw(), Signal::KILL);
        }
    }

    /// It has been reaped. What it said last, and that it has gone, is still to be read from the socket.
    pub(super) fn ended(&mut self, end: CommandEnd) {
        log::debug!("keeper {}: {end:?}", self.pid);
        self.reaped = true;
        self.died = end != CommandEnd::Exited(0);
    }
}
