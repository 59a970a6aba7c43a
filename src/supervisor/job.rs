//! What runs under the lock: the guard, the command and its descendants. The supervisor reaches the command only by requests
//! to the guard, until the guard has died.

use std::io;
use std::os::fd::{BorrowedFd, RawFd};

use nix::errno::Errno;
use nix::unistd::{Pid, getpid};

use super::orphans::Orphans;
use crate::between::inheritance::Inheritance;
use crate::cli::CommandLine;
use crate::cli::environment::Variable;
use crate::guard::program::RefusedCall;
use crate::guard::{Guard, GuardBirth};
use crate::rules::event::CommandEnd;
use crate::rules::guard::{GuardRequest, Stage, Targets};
use crate::rules::guard_view::{CommandFate, GuardView, Kill, News};
use crate::rules::instant::Instant;
use crate::rules::notice::Notice;
use crate::rules::signal::Signal;
use crate::system::terminal::{self, Attributes};
use crate::system::{clock, process};

pub(super) struct Job<'p> {
    pub(super) birth: GuardBirth<'p>,
    pub(super) orphans: Orphans,
    guard: Option<RunningGuard>,
    /// A filter has killed a guard (seccomp(2)).
    is_filtered: bool,
    /// Guards that were dismissed, until they have been reaped.
    dismissed: Vec<Pid>,
    /// That a process may not be killed has been told.
    told_denied: bool,
    /// The terminal as the command found it, and whether the command may have had no time to restore it.
    terminal: Option<Attributes>,
    interrupted: bool,
}

/// A guard and the command that it answers for.
struct RunningGuard {
    guard: Guard,
    view: GuardView,
    /// The guard has been told to leave alone what the command has left behind.
    leaves: bool,
}

impl<'p> Job<'p> {
    /// `kept_open`: descriptors that a guard keeps open for as long as something of the command is left. An error of the kind
    /// `Other` says what this system has not got, so that no command can be looked after here.
    pub(super) fn new(command: &'p CommandLine, kept_open: Vec<RawFd>) -> io::Result<Self> {
        Ok(Self {
            birth: GuardBirth { command, own_group: true, kept_open },
            orphans: Orphans::adopt()?,
            guard: None,
            is_filtered: false,
            dismissed: vec![],
            told_denied: false,
            terminal: None,
            interrupted: false,
        })
    }

    /// Makes a guard, and with the guard the command's process, so that the lock need not wait for them.
    pub(super) fn make_guard(&mut self, inherited: &Inheritance) -> io::Result<()> {
        self.birth.own_group = !terminal::is_controlled();
        self.orphans.disown_all()?;
        let guard = Guard::start(&self.birth, inherited)?;
        self.guard = Some(RunningGuard { guard, view: GuardView::default(), leaves: false });
        Ok(())
    }

    /// Whether commands are started in the process group of zklock.
    pub(super) fn shares_group(&self) -> bool {
        !self.birth.own_group
    }

    /// Ends a guard that is not needed now.
    pub(super) fn dismiss_guard(&mut self) {
        if let Some(running) = self.guard.take_if(|running| running.view.is_gated())
            && !running.view.is_reaped()
        {
            self.orphans.disown(running.guard.pid);
            self.dismissed.push(running.guard.pid);
            running.guard.kill_guard();
        }
    }

    /// Starts the command, if that is before `until`. `variables`: what is added to its environment. An
    /// error is one of fork(2), or that of a guard that has died.
    pub(super) fn start(
        &mut self,
        inherited: &mut Inheritance,
        variables: &[Variable],
        until: Instant,
    ) -> io::Result<()> {
        self.terminal = if self.shares_group() { Attributes::of_foreground() } else { None };
        let mut opened = self.open(inherited, variables, until);
        if opened.as_ref().is_err_and(|error| matches!(error.raw_os_error(), Some(libc::ECHILD | libc::EPIPE))) {
            // No guard could be made, or the guard or the command's process has died. The guard may have said why.
            let why = self.guard.as_ref().and_then(|running| self.failure_of(&running.guard));
            self.dismiss_guard();
            self.make_guard(inherited).map_err(|error| why.unwrap_or(error))?;
            opened = self.open(inherited, variables, until);
        }
        let why = self.guard.as_ref().filter(|_| opened.is_err()).and_then(|running| self.failure_of(&running.guard));
        why.map_or(opened, Err)
    }

    /// Takes the command back, unless it has passed the gate. Guard and command's process may be suspended: nothing of
    /// the user runs in them.
    pub(super) fn recall(&mut self) -> bool {
        let is_back = |running: &RunningGuard| running.view.has_command() && running.guard.page.recall();
        let Some(running) = self.guard.as_mut().filter(|running| is_back(running)) else { return false };
        running.view.recall();
        self.dismiss_guard();
        true
    }

    fn open(&mut self, inherited: &mut Inheritance, variables: &[Variable], until: Instant) -> io::Result<()> {
        let running = self.guard.as_mut().ok_or(Errno::ECHILD)?;
        running.guard.open(inherited, variables, until)?;
        running.view.start();
        Ok(())
    }

    /// One of these becomes readable when there may be news.
    pub(super) fn awaited(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.guard.iter().flat_map(|running| running.guard.awaited())
    }

    /// Whether the command has been started, and its end has not been told.
    pub(super) fn has_command(&self) -> bool {
        self.guard.as_ref().is_some_and(|running| running.view.has_command())
    }

    /// A child has ended. It may be any child of the supervisor.
    pub(super) fn reaped(&mut self, pid: Pid, end: CommandEnd) {
        let is_guard =
            self.dismissed.contains(&pid) || self.guard.as_ref().is_some_and(|running| running.guard.pid == pid);
        self.is_filtered |= is_guard && end == CommandEnd::Signaled(Signal::SYS);
        self.dismissed.retain(|dismissed| *dismissed != pid);
        self.orphans.reaped(pid);
        let Some(running) = &mut self.guard else { return };
        if pid == running.guard.pid {
            log::debug!("guard {pid}: {end:?}");
            running.view.guard_reaped();
        } else if running.guard.page.command() == Some(pid) {
            running.view.command_reaped(end);
        }
    }

    /// Whether no command has been started.
    pub(super) fn is_gated(&self) -> bool {
        self.guard.as_ref().is_none_or(|running| running.view.is_gated())
    }

    /// What has become of the command. `hears`: the guard has given a sign.
    pub(super) fn command_news(&mut self, hears: bool) -> News {
        let shares_group = self.shares_group();
        let Some(running) = &mut self.guard else { return News::default() };
        if hears {
            running.guard.hear();
        }
        let page = running.guard.page;
        let command = page.command();
        // Without a terminal no shell waits for a job that is suspended, and whoever continues the command does not
        // know that zklock would have to be continued as well. If zklock was suspended with the command, it hears of
        // that when both have been continued.
        let suspended = page.take_suspended().filter(|_| shares_group && command.is_some_and(process::is_suspended));
        let (stage, ended, orphans) = (running.guard.page.stage(), running.guard.ended(), &self.orphans);
        running.view.news(stage, ended, suspended, || {
            orphans.may_have(|child| command.is_some_and(|command| command.as_raw() == child))
        })
    }

    /// Why the program was not executed, if it was not. `kill_at`: when the lease demands SIGKILL.
    pub(super) fn failure(&self, end: CommandFate, kill_at: Instant) -> Option<io::Error> {
        let guard = self.guard.as_ref().map(|running| &running.guard);
        match end {
            CommandFate::Reaped(_) => guard?.failure.read(),
            // The timer of a guard that is to open its gate after the lease ends that guard.
            CommandFate::Stillborn if kill_at <= clock::now() => Some(Errno::ETIME.into()),
            CommandFate::Stillborn => guard.and_then(|guard| self.failure_of(guard)).or(Some(Errno::ESRCH.into())),
        }
    }

    fn failure_of(&self, guard: &Guard) -> Option<io::Error> {
        let filtered = self.is_filtered.then(|| io::Error::other(RefusedCall::Kills));
        filtered.or_else(|| guard.failure.read())
    }

    /// Whether nothing is left of the command.
    pub(super) fn has_gone(&self) -> bool {
        let Some(running) = &self.guard else { return true };
        let none_left = || !self.orphans.may_have(|child| !self.orphans.is_stranger(child));
        running.view.has_gone(running.guard.page.stage(), none_left)
    }

    /// The guard, for as long as it answers for something.
    fn answering(&self) -> Option<&RunningGuard> {
        self.guard.as_ref().filter(|running| !running.guard.page.stage().is_over())
    }

    /// Passes on a signal to the command, or to its descendants once the command has ended. `waits`: the descendants are waited
    /// for, so they get the signal even if the machine has not been told yet that the command has ended.
    pub(super) fn forward(&self, signal: Signal, waits: bool) {
        if let Some(running) = self.answering() {
            let has_ended = !running.view.has_command() || waits && running.guard.ended().is_some();
            running.guard.ask(GuardRequest::Signal(signal, if has_ended { Targets::All } else { Targets::Group }));
        }
    }

    /// Passes on a signal of the terminal to the processes that have left the process group of zklock, as timeout(1) does: the
    /// terminal has not sent it to them.
    pub(super) fn forward_to_strayed(&self, signal: Signal) {
        if let Some(running) = self.answering() {
            // The guard is in another session, so for the kernel such a group is orphaned, and TSTP suspends none of
            // it (setpgid(2)).
            let suspends = signal == Signal::TSTP && running.view.has_command();
            running.guard.ask(GuardRequest::Signal(if suspends { Signal::STOP } else { signal }, Targets::Strayed));
        }
    }

    /// Asks the command and all its descendants to stop.
    pub(super) fn stop(&mut self, signal: Signal) {
        self.interrupted = true;
        if let Some(running) = self.answering() {
            running.guard.ask(GuardRequest::Stop(signal));
        }
    }

    /// Has the command killed, and all its descendants.
    pub(super) fn kill(&mut self) {
        self.interrupted = true;
        let shares_group = self.shares_group();
        let Some(running) = self.guard.as_mut().filter(|running| !running.guard.page.stage().is_over()) else { return };
        match running.view.kill(running.guard.page.stage()) {
            Kill::AskGuard => running.guard.ask(GuardRequest::Kill),
            Kill::KillGuard => running.guard.kill_guard(),
            Kill::KillChildren => self.orphans.kill(running.guard.page.command().filter(|_| !shares_group)),
        }
    }

    /// The lock is about to be released. What the command has left behind is meant to live on.
    pub(super) fn leave(&mut self) {
        self.dismiss_guard();
        if let Some(running) = &mut self.guard {
            running.leaves = true;
            if running.guard.page.stage().is_open() && !running.view.is_reaped() {
                running.guard.ask(GuardRequest::Leave);
            }
        }
    }

    /// That a process may not be killed, which is told once.
    pub(super) fn denied(&mut self) -> Option<Notice> {
        let shown = self.guard.as_ref().and_then(|running| running.guard.page.denied());
        let process = shown.or_else(|| self.orphans.tree.take_denied()).filter(|_| !self.told_denied)?;
        self.told_denied = true;
        Some(Notice::Denied(process))
    }

    /// What the user is to be told of the processes that the command has left behind, if there are any. The guard has been
    /// reaped, so they have come to the supervisor.
    pub(super) fn left_behind(&self) -> Option<Notice> {
        let has_left = self.guard.as_ref().is_some_and(|running| running.guard.page.stage() == Stage::Left);
        let number = if has_left { self.orphans.count() } else { 0 };
        (number > 0).then_some(Notice::LeftBehind { number, end_with_us: getpid().as_raw() == 1 })
    }

    /// Restores the terminal after a command that was stopped. A command that used the whole screen or asked
    /// for a password has left a terminal that is of no use to the user.
    pub(super) fn restore_terminal(&mut self) {
        if let Some(terminal) = self.terminal.take_if(|_| self.interrupted) {
            // In a pipeline, the pager behind zklock may use the terminal.
            terminal.restore(process::is_of_others);
        }
    }

    /// At the end of a run: whether a process remains that must not outlive the supervisor. Usually this is a guard
    /// that is about to exit. If the operating system has failed the run in its middle, it is the command, which is
    /// killed.
    pub(super) fn remains(&mut self) -> bool {
        self.dismiss_guard();
        let Some(RunningGuard { guard, view, leaves }) = &self.guard else { return !self.dismissed.is_empty() };
        let is_reaped = view.is_reaped();
        if guard.page.stage().is_over() {
            if !is_reaped {
                // This guard has only to exit, and a suspended one cannot.
                guard.kill_guard();
            }
        } else if *leaves {
            // Once more: while the guard was suspended, its socket may have been full.
            guard.ask(GuardRequest::Leave);
        } else if !(is_reaped && self.has_gone()) {
            guard.page.spoil();
            self.kill();
            return true;
        }
        !is_reaped || !self.dismissed.is_empty()
    }
}
