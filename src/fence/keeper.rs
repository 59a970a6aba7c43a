//! The keeper of a fence. Only this process waits for files, so that a file system that does not answer holds up nothing
//! else.

use std::future::pending;
use std::io;
use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::poll::PollFlags;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::prctl;
use nix::unistd::getppid;

use super::{Busy, Fence};
use crate::between::inheritance::KeeperInheritance;
use crate::between::wire::{Link, Received};
use crate::keeper::process::detach;
use crate::rules::fence::Holder;
use crate::rules::guard::Stage;
use crate::rules::lease::{Span, Terms};
use crate::rules::message::{Connectivity, Grant, GrantedLock, Order, Progress, QueueView, Refusal, Report, Revoker};
use crate::rules::signal::Signal;
use crate::system::clock;
use crate::system::fork::exit_now;
use crate::system::futures::or;
use crate::system::reactor::Reactor;
use crate::system::signals;

/// How long a run may take, after the grace of its command, to make way for a later holder. Then the guard kills.
const SLACK: Duration = Duration::from_secs(5);

/// How often to look for a later holder where the kernel does not tell.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

pub(crate) struct FenceKeeper<'a> {
    pub(crate) fence: &'a Fence,
    /// The process id of the supervisor.
    pub(crate) supervisor: u32,
    pub(crate) link: Link,
    pub(crate) inherited: KeeperInheritance<'a>,
}

/// Lives as a keeper until there is nothing left to keep. To be called in a fresh fork.
pub(crate) fn run(birth: &FenceKeeper<'_>) {
    if let Err(error) = detach().and_then(|()| Ok(birth.live(&Reactor::new()?)?)) {
        log::error!("keeper: {error:#}");
    }
}

impl FenceKeeper<'_> {
    fn live(&self, reactor: &Reactor) -> io::Result<()> {
        self.report(&Report::Connection(Connectivity::Connected(Span::WITHOUT_END)));
        match self.acquire() {
            Ok(()) => reactor.run(self.keep(reactor)),
            Err(refusal) => {
                self.report(&Report::Refused(refusal));
                Ok(())
            }
        }
    }

    fn report(&self, report: &Report) {
        if let Err(error) = self.link.send(report) {
            log::info!("keeper: cannot tell {report:?}: {error}");
        }
    }

    fn acquire(&self) -> Result<(), Refusal> {
        while let Err(Busy(holder)) = self.fence.try_hold(self.supervisor)? {
            let process = |holder: Holder| format!("process {}, with the token {}", holder.pid, holder.token);
            self.report(&Report::Queue(Progress::Waiting(QueueView {
                lock: self.fence.path.display().to_string(),
                place: None,
                holder: holder.map_or_else(|| "another command".to_owned(), process),
                held_since: None,
                free_at: None,
            })));
            let _ = prctl::set_name(c"lock-waiter");
            // fcntl(2) waits for the byte alone. So a signal ends this process when there is an order, or when the supervisor
            // has gone: in both cases nothing is left to do.
            let news = self.link.as_fd();
            let _ = signals::signal_at_news(news, std::process::id().cast_signed(), Signal::KILL);
            if self.link.receive::<Order>() != Received::Nothing {
                exit_now(0);
            }
            self.fence.wait_to_hold()?;
            signals::no_signal_at_news(news);
        }
        let _ = prctl::set_name(c"lock-keeper");
        Ok(())
    }

    /// Holds until the end.
    async fn keep(&self, reactor: &Reactor) {
        let now = clock::now();
        self.inherited.write_lease(Terms::span(Span::WITHOUT_END, now));
        let file = self.fence.path.display().to_string();
        let first = GrantedLock { lock: file.clone(), node: file, token: self.fence.token.cast_signed() };
        self.report(&Report::Queue(Progress::Held {
            grant: Box::new(Grant { first, and: vec![], session: 0 }),
            timeout: Span::WITHOUT_END,
            from: now,
        }));
        or(self.until_released(reactor), or(self.follow_guard(reactor), self.make_way(reactor))).await;
    }

    /// Takes the order to release, or sees that the supervisor has gone.
    async fn until_released(&self, reactor: &Reactor) {
        loop {
            match self.link.receive() {
                Received::Message(Order::Release | Order::QueueAgain) => {
                    return self.report(&Report::Released { was_busy: false });
                }
                Received::Gone => return,
                Received::Nothing => reactor.ready(&self.link, PollFlags::POLLIN).await,
            }
        }
    }

    /// Releases when nothing is left of the command, without an order: the supervisor may hang. If the guard has died,
    /// the supervisor has to kill what is left first. Never ends.
    async fn follow_guard(&self, reactor: &Reactor) {
        reactor.ready(self.inherited.guards_gone, PollFlags::POLLIN).await;
        if self.inherited.page.stage() == Stage::Empty {
            self.fence.release();
        }
        pending().await
    }

    /// Looks for a later holder, and has the command stopped if there is one. Never ends.
    async fn make_way(&self, reactor: &Reactor) {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok();
        let token = loop {
            // The watch comes before the look, so that no change is missed. It is on the file that has the name now, and that
            // file loses the name when FILE is replaced.
            let watch = inotify.as_ref().filter(|inotify| self.watch(inotify));
            match (self.later(), watch) {
                (Some(token), _) => break token,
                (None, Some(inotify)) => {
                    reactor.ready(inotify, PollFlags::POLLIN).await;
                    let _ = inotify.read_events();
                }
                (None, None) => reactor.sleep_until(clock::now() + LOOK_AGAIN).await,
            }
        };
        self.report(&Report::Revoked(Revoker::LaterHolder(token)));
        // A supervisor that is suspended would not read the report, so it is continued. Once it has died, it is no
        // parent.
        let parent = getppid().as_raw();
        if parent.cast_unsigned() == self.supervisor {
            let _ = signals::send(parent, Signal::CONT);
        }
        reactor.sleep_until(clock::now() + self.fence.kill_after.saturating_add(SLACK)).await;
        self.inherited.revoke();
        pending().await
    }

    /// Asks the kernel to tell when FILE is replaced. Returns whether it does.
    fn watch(&self, inotify: &Inotify) -> bool {
        let flags = AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_MODIFY;
        inotify.add_watch(&self.fence.path, flags).is_ok()
    }

    /// The token of a later holder, if there is one.
    fn later(&self) -> Option<u64> {
        let seen = self.fence.seen().inspect_err(|why| log::warn!("cannot look for a later holder: {why:?}"));
        seen.ok()?.later_than(self.fence.token)
    }
}
