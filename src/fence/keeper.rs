//! The keeper of a fence. Only this process waits for files, so that a file system that does not answer holds up nothing
//! else.

use std::os::fd::AsFd as _;
use std::time::Duration;

use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use nix::sys::prctl;
use nix::unistd::getppid;

use super::{Busy, Fence};
use crate::between::ties::KeeperTies;
use crate::between::wire::{Link, Received};
use crate::keeper::process::detach;
use crate::rules::fence::Holder;
use crate::rules::guard::Stage;
use crate::rules::lease::Span;
use crate::rules::message::{Connectivity, Grant, GrantedLock, Order, Progress, QueueView, Refusal, Report};
use crate::rules::signal::Signal;
use crate::system::clock;
use crate::system::fork::exit_now;
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
    pub(crate) ties: KeeperTies<'a>,
}

/// Lives as a keeper until there is nothing left to keep. To be called in a fresh fork.
pub(crate) fn run(birth: &FenceKeeper<'_>) {
    if let Err(error) = detach() {
        log::error!("keeper: {error:#}");
        return;
    }
    birth.report(&Report::Connection(Connectivity::Connected(Span::WITHOUT_END)));
    match birth.take_turn() {
        Ok(()) => birth.keep(),
        Err(refusal) => birth.report(&Report::Refused(refusal)),
    }
}

impl FenceKeeper<'_> {
    fn report(&self, report: &Report) {
        if let Err(error) = self.link.send(report) {
            log::info!("keeper: cannot tell {report:?}: {error}");
        }
    }

    fn take_turn(&self) -> Result<(), Refusal> {
        while let Err(Busy(holder)) = self.fence.begin(self.supervisor)? {
            let process = |holder: Holder| format!("process {}, with the token {}", holder.pid, holder.token);
            self.report(&Report::Queue(Progress::Waiting(QueueView {
                lock: self.fence.path.display().to_string(),
                position: 0,
                total: 0,
                next_in_line: true,
                holder: holder.map_or_else(|| "another command".to_owned(), process),
                held_since: None,
            })));
            let _ = prctl::set_name(c"lock-waiter");
            // fcntl(2) waits for nothing else. There is nothing to be done before this process ends.
            let news = self.link.as_fd();
            let _ = signals::signal_at_news(news, std::process::id().cast_signed(), Signal::KILL);
            if self.link.receive::<Order>() != Received::Nothing {
                exit_now(0);
            }
            self.fence.wait_for_turn()?;
            signals::no_signal_at_news(news);
        }
        let _ = prctl::set_name(c"lock-keeper");
        Ok(())
    }

    /// It is our turn.
    fn keep(&self) {
        let now = clock::now();
        self.ties.write_lease(Span::without_end(now));
        let file = self.fence.path.display().to_string();
        let first = GrantedLock { lock: file.clone(), node: file, token: self.fence.token.cast_signed() };
        self.report(&Report::Queue(Progress::Held {
            grant: Grant { first, and: vec![], session: 0, own_session: 0 },
            from: now,
        }));
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).ok();
        let (mut later, mut kill_at, mut has_guard) = (None, None, true);
        loop {
            // Watched before it is read: FILE is replaced, and the one that was there loses its name.
            let is_watched = later.is_none() && inotify.as_ref().is_some_and(|inotify| self.watch(inotify));
            if later.is_none() {
                later = self.later();
                kill_at = later.map(|_| clock::now() + self.fence.kill_after.saturating_add(SLACK));
            }
            if kill_at.take_if(|at| *at <= clock::now()).is_some() {
                self.ties.revoke();
            }
            let mut fds = vec![PollFd::new(self.link.as_fd(), PollFlags::POLLIN)];
            fds.extend(inotify.iter().map(|inotify| PollFd::new(inotify.as_fd(), PollFlags::POLLIN)));
            fds.extend(has_guard.then(|| PollFd::new(self.ties.guards_gone.as_fd(), PollFlags::POLLIN)));
            let look_again = (later.is_none() && !is_watched).then_some(LOOK_AGAIN);
            let pause = kill_at.map(|at| at.saturating_since(clock::now())).or(look_again);
            let pause = pause.map_or(PollTimeout::NONE, |pause| pause.try_into().unwrap_or(PollTimeout::MAX));
            let _ = poll(&mut fds, pause);
            let is_over = has_guard && fds.last().and_then(PollFd::any) == Some(true);
            let _ = inotify.as_ref().map(Inotify::read_events);
            match self.link.receive() {
                Received::Message(Order::Release) => return self.report(&Report::Released { was_busy: false }),
                Received::Gone => return,
                Received::Nothing => {}
            }
            if is_over {
                has_guard = false;
                // The supervisor may hang. If the guard has died, it is to kill what is left.
                if self.ties.page.stage() == Stage::Empty {
                    self.fence.end_turn();
                }
            }
        }
    }

    /// Whether the kernel tells when FILE is replaced.
    fn watch(&self, inotify: &Inotify) -> bool {
        let flags = AddWatchFlags::IN_ATTRIB | AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_MODIFY;
        inotify.add_watch(&self.fence.path, flags).is_ok()
    }

    /// Looks for a later holder, and has the command stopped if there is one.
    fn later(&self) -> Option<u64> {
        let seen = self.fence.seen().inspect_err(|why| log::warn!("cannot look for a later holder: {why:?}")).ok()?;
        let later = seen.later_than(self.fence.token)?;
        self.report(&Report::Revoked(Some(later.to_string())));
        // A supervisor that is stopped would not read the report, so it is continued.
        let _ = signals::send(getppid().as_raw(), Signal::CONT);
        Some(later)
    }
}
