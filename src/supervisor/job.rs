//! What runs under the lock: the guard, the command and its descendants; later the command of `--on-lost`.

use std::ffi::OsString;
use std::io;
use std::os::fd::BorrowedFd;

use nix::errno::Errno;
use nix::sys::prctl;
use nix::unistd::{Pid, getpid};

use super::guarded::Guarded;
use crate::clock;
use crate::command::{Launch, Program};
use crate::descendants::{self, Descendants, OwnChildren, Stranger};
use crate::environment::Variable;
use crate::guard::{Birth, Borrowed, Guard, Ties, Work};
use crate::plan::CommandLine;
use crate::rules::event::CommandEnd;
use crate::rules::guard::Stage;
use crate::rules::guarded::{End, Kill, News};
use crate::rules::instant::Instant;
use crate::rules::message::Grant;
use crate::rules::notice::Notice;
use crate::rules::signal::Signal;
use crate::shared::Part;
use crate::signals::{self, Inherited};
use crate::terminal::{self, Attributes};

pub(super) struct Job {
    inherited: Inherited,
    adopts_orphans: bool,
    /// Whether guards have a lifeline for the runs that borrow our locks.
    has_lifeline: bool,
    children: OwnChildren,
    guard: Option<Guarded>,
    /// Processes of guards that were dismissed, until they have been reaped.
    dismissed: Vec<Pid>,
    /// The locks that the command runs, or ran, under.
    pub(super) grant: Option<Grant>,
    /// The command of `--on-lost`, until it has been reaped.
    pub(super) on_lost: Option<Launch>,
    /// Whether commands are started in our process group.
    pub(super) shares_group: bool,
    /// The terminal as the command found it, and whether the command may have had no time to restore it.
    terminal: Option<Attributes>,
    interrupted: bool,
}

impl Job {
    /// `lends`: runs below the command may borrow our locks.
    /// An error of the kind `Other` says what this system has not got, so that nothing can be looked after here.
    pub(super) fn new(inherited: Inherited, lends: bool) -> io::Result<Self> {
        // What a guard that has died leaves behind comes to us. A system that refuses this refuses it to the guard as well.
        let adopts_orphans = prctl::set_child_subreaper(true).is_ok();
        let children = OwnChildren::open()?;
        Ok(Self {
            inherited,
            adopts_orphans,
            // Without the adoption of orphans the guard may end before one that has borrowed.
            has_lifeline: lends && adopts_orphans,
            children,
            guard: None,
            dismissed: vec![],
            grant: None,
            on_lost: None,
            shares_group: false,
            terminal: None,
            interrupted: false,
        })
    }

    /// Whether processes that have lost their parent come to the guard, or to us.
    pub(super) fn adopts_orphans(&self) -> bool {
        self.adopts_orphans
    }

    /// Tells the user if they do not.
    pub(super) fn warn_of_orphans(&self) {
        if !self.adopts_orphans {
            log::warn!(
                "warning: this system refuses the adoption of orphans (PR_SET_CHILD_SUBREAPER): if the lock is lost, \
                 processes that have left the command's process group may go on"
            );
        }
    }

    /// Makes a guard, and with it the command's process, so that the lock need not wait for them.
    pub(super) fn make_guard(&mut self, work: Work<'_>, ties: &Ties, borrowed: &Borrowed) -> io::Result<()> {
        if self.guard.as_mut().is_some_and(|guarded| !guarded.state.is_reaped() && guarded.guard.hear().is_ok()) {
            return Ok(());
        }
        // One that has died, if there is any, is still to be reaped.
        self.dismiss_guard();
        self.shares_group = terminal::is_controlled();
        let strangers = self.children.others(|_| false)?;
        let (inherited, own_group) = (self.inherited, !self.shares_group);
        let birth = Birth { work, inherited, own_group, borrowed: borrowed.clone(), has_lifeline: self.has_lifeline };
        let guard = Guard::start(&birth, ties)?;
        self.guard = Some(Guarded::new(guard, strangers));
        Ok(())
    }

    /// A child of ours that does not belong to the command.
    pub(super) fn disown(&mut self, child: Pid) {
        if let Some(guarded) = &mut self.guard {
            guarded.strangers.push(Stranger::new(child));
        }
    }

    /// Ends a guard that is not needed now.
    pub(super) fn dismiss_guard(&mut self) {
        if let Some(guarded) = self.guard.take_if(|guarded| guarded.state.is_gated())
            && !guarded.state.is_reaped()
        {
            self.disown(guarded.guard.pid());
            self.dismissed.push(guarded.guard.pid());
            self.dismissed.extend(guarded.guard.shared().command());
            guarded.guard.kill_guard();
        }
    }

    /// Looks at the terminal before the command is started.
    pub(super) fn prepare(&mut self) {
        self.terminal = Attributes::of_foreground();
    }

    /// Starts the command, if that is before `until`. `variables`: what is added to its environment below this guard. An
    /// error is one of fork(2), or that of a guard that has died.
    pub(super) fn start(
        &mut self,
        work: Work<'_>,
        ties: &mut Ties,
        borrowed: &Borrowed,
        variables: &dyn Fn(&Guard) -> Vec<Variable>,
        until: Instant,
    ) -> io::Result<()> {
        self.make_guard(work, ties, borrowed)?;
        let mut opened = self.open(ties, variables, until);
        if opened.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::EPIPE)) {
            // What waited at the gate has been killed.
            self.dismiss_guard();
            self.make_guard(work, ties, borrowed)?;
            opened = self.open(ties, variables, until);
        }
        let why = self.guard.as_ref().filter(|_| opened.is_err()).and_then(|guarded| guarded.guard.failure());
        why.map_or(opened, Err)
    }

    /// Takes the command back, unless it has passed the gate. Guard and gate may be stopped: nothing of the user's runs
    /// there.
    pub(super) fn recall(&mut self) -> bool {
        let Some(guarded) = self.guard.as_mut().filter(|guarded| guarded.state.has_command()) else { return false };
        if !guarded.guard.shared().recall() {
            return false;
        }
        guarded.state.recall();
        self.dismiss_guard();
        true
    }

    /// The same for a command that has ended: whether it ended at the gate.
    pub(super) fn take_back_dead(&mut self) -> bool {
        let Some(guarded) = self.guard.as_mut().filter(|guarded| guarded.guard.shared().recall()) else { return false };
        guarded.state.recall();
        self.dismiss_guard();
        true
    }

    fn open(&mut self, ties: &mut Ties, variables: &dyn Fn(&Guard) -> Vec<Variable>, until: Instant) -> io::Result<()> {
        let guarded = self.guard.as_mut().ok_or(Errno::ECHILD)?;
        let variables = variables(&guarded.guard);
        guarded.guard.open(ties, &variables, until)?;
        guarded.state.start();
        Ok(())
    }

    /// One of these becomes readable when there may be news.
    pub(super) fn awaited(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.guard.iter().flat_map(|guarded| guarded.guard.awaited())
    }

    /// Whether the command has been started, and its end has not been told.
    pub(super) fn has_command(&self) -> bool {
        self.guard.as_ref().is_some_and(|guarded| guarded.state.has_command())
    }

    /// A child of ours has ended; perhaps it was one of the job's.
    pub(super) fn reaped(&mut self, pid: Pid, end: CommandEnd) {
        self.dismissed.retain(|dismissed| *dismissed != pid);
        let Some(guarded) = &mut self.guard else { return };
        // From here on the number may be that of a process of the command.
        guarded.strangers.retain(|stranger| !stranger.is(pid));
        if pid == guarded.guard.pid() {
            log::debug!("guard {pid}: {end:?}");
            guarded.state.guard_reaped();
            // What waited at its gate dies with it, unless it was stopped before it could see to that.
            let gated = guarded.guard.shared().command().filter(|_| guarded.guard.stage() == Stage::Gated);
            if let Some(gated) = gated.filter(|gated| self.children.has(*gated)) {
                let _ = signals::send(gated.as_raw(), Signal::KILL);
            }
        } else if guarded.guard.shared().command() == Some(pid) {
            guarded.state.command_reaped(end);
        }
    }

    /// Whether the guard has killed the command because the lease was over.
    pub(super) fn is_lease_over(&self) -> bool {
        self.guard.as_ref().is_some_and(|guarded| guarded.guard.shared().is_lease_over())
    }

    /// Whether the guard has reaped the command, and that has not been told.
    pub(super) fn has_ended(&self) -> bool {
        let ended = |guarded: &Guarded| guarded.state.has_command() && guarded.guard.ended().is_some();
        self.guard.as_ref().is_some_and(ended)
    }

    /// Whether what runs needs the locks that are borrowed. `waits`: whether any processes are waited for.
    pub(super) fn uses_loans(&self, waits: bool) -> bool {
        self.guard.as_ref().is_some_and(|guarded| guarded.state.uses_loans(guarded.shown(), waits))
    }

    /// Whether the guard has reaped the command and all that was below it.
    pub(super) fn is_emptied(&self) -> bool {
        self.guard.as_ref().is_some_and(|guarded| guarded.guard.stage() == Stage::Empty)
    }

    /// What has become of the command.
    pub(super) fn news(&mut self) -> News {
        let Some(guarded) = &mut self.guard else { return News::default() };
        let _ = guarded.guard.hear();
        guarded.find_strangers(&self.children);
        guarded.tell_refused();
        let shared = guarded.guard.shared();
        let command = shared.command();
        // Without a terminal no shell waits for the job to stop, and whoever continues the command does not know that
        // we would have to be continued as well. If we were stopped with the command, we hear of it when we have been
        // continued with it: then the stop is over.
        let is_stopped = |command| descendants::is_hidden(command) || descendants::is_stopped(command);
        let stopped = shared.take_stopped().filter(|_| self.shares_group && command.is_some_and(is_stopped));
        let shown = guarded.shown();
        guarded.state.news(shown, stopped, || command.is_some_and(|command| !self.children.lack(command)))
    }

    /// We have been continued. If our group has, a command that /proc does not show is stopped no more, as far as we know.
    pub(super) fn continued(&self) {
        if let Some(guarded) = self.guard.as_ref().filter(|guarded| guarded.hidden_command().is_some()) {
            guarded.guard.shared().take_stopped();
        }
    }

    /// Why the program was not executed, if it was not, once this end has been told.
    pub(super) fn failure(&self, end: End) -> Option<io::Error> {
        match end {
            End::Reaped(_) => self.guard.as_ref()?.guard.failure(),
            End::Stillborn => {
                let guard = self.guard.as_ref().map(|guarded| &guarded.guard);
                // The timer of a guard that is to open its gate after the lease ends that guard.
                if guard.is_some_and(|guard| guard.shared().limits().0 <= clock::now()) {
                    return Some(Errno::ETIME.into());
                }
                guard.and_then(Guard::failure).or(Some(Errno::ESRCH.into()))
            }
        }
    }

    /// Whether nothing is left of the command.
    pub(super) fn has_gone(&self) -> bool {
        let Some(guarded) = &self.guard else { return true };
        guarded.state.has_gone(guarded.guard.stage(), || guarded.descendants(&self.children).have_gone())
    }

    /// Forwards a signal to the command, or to its descendants once it has ended.
    /// `waits`: its descendants are waited for, so they get the signal even if its end has not been told yet.
    pub(super) fn forward(&self, signal: Signal, waits: bool) {
        let Some(guarded) = self.guard.as_ref().filter(|guarded| !guarded.is_over()) else { return };
        match guarded.guard.shared().command() {
            _ if !guarded.state.has_command() || waits && guarded.guard.ended().is_some() => {
                if !guarded.descendants(&self.children).forward(signal) {
                    // Nothing can be seen in /proc, or nothing is left.
                    guarded.guard.signal(signal);
                }
            }
            // The guard may not have made it yet; it opens the gate before it signals.
            None => guarded.guard.signal(signal),
            Some(_) if !guarded.state.is_reaped() && guarded.guard.has_own_group() => guarded.guard.signal(signal),
            Some(command) => {
                let is_any_seen = guarded.descendants(&self.children).forward_in_group(signal, command);
                if guarded.hidden_command().is_some() || !is_any_seen {
                    guarded.guard.signal(signal);
                }
            }
        }
    }

    /// Forwards a signal of the terminal to the command if it has not reached that, because it has left our process group, as
    /// timeout(1) does. Once the command has ended: to those of its descendants that it has not reached.
    pub(super) fn forward_outside(&self, signal: Signal) {
        let Some(guarded) = self.guard.as_ref().filter(|guarded| !guarded.is_over()) else { return };
        let command = guarded.guard.shared().command().filter(|_| guarded.state.has_command());
        // The guard is in another session, so for the kernel such a group is orphaned, and TSTP stops none of it (setpgid(2)).
        let signal = if command.is_some() && signal == Signal::TSTP { Signal::STOP } else { signal };
        guarded.descendants(&self.children).forward_outside(signal, command);
    }

    pub(super) fn forward_to_on_lost(&self, signal: Signal) {
        let Some(on_lost) = &self.on_lost else { return };
        if on_lost.own_group {
            let _ = signals::send(-on_lost.pid.as_raw(), signal);
        } else {
            let strangers = self.guard.as_ref().map(|guarded| guarded.strangers.clone());
            Descendants::of_us(&self.children, strangers.unwrap_or_default()).forward_in_group(signal, on_lost.pid);
        }
    }

    pub(super) fn stop(&mut self, signal: Signal) {
        self.interrupted = true;
        let Some(guarded) = self.guard.as_ref().filter(|guarded| !guarded.is_over()) else { return };
        guarded.guard.shared().spoil();
        if !guarded.state.is_reaped() {
            // Among the zombies that a stopped guard leaves, what follows takes long.
            guarded.guard.cont();
        }
        let hidden = guarded.hidden_command();
        let told = hidden.filter(|_| guarded.guard.has_own_group());
        let is_any_seen = guarded.descendants(&self.children).stop(signal, told);
        if hidden.is_some() || !is_any_seen {
            guarded.guard.signal(signal);
            guarded.guard.signal(Signal::CONT);
        }
    }

    pub(super) fn kill(&mut self) {
        self.interrupted = true;
        let Some(guarded) = self.guard.as_mut().filter(|guarded| !guarded.is_over()) else { return };
        guarded.guard.shared().spoil();
        let kills = guarded.guard.shared().kills();
        match guarded.state.kill(kills) {
            Kill::AskGuard => guarded.guard.kill(),
            Kill::KillGuard => guarded.guard.kill_guard(),
            Kill::KillChildren => {}
        }
        let has_fallen = guarded.has_fallen();
        if has_fallen {
            guarded.descendants(&self.children).kill_children();
        }
        if has_fallen || guarded.state.kills_below(kills) {
            guarded.descendants(&self.children).kill();
        }
    }

    /// The lock is about to be released. What is left of the command by now is meant to live on.
    pub(super) fn leave(&mut self) {
        self.dismiss_guard();
        if let Some(guarded) = &mut self.guard {
            guarded.leaves = true;
            guarded.leave();
        }
    }

    /// Whether the command has left a zklock behind. One that has used our locks may be about to exit.
    pub(super) fn has_left_runs(&self) -> bool {
        let left = self.guard.as_ref().filter(|guarded| guarded.leaves && !guarded.is_followed);
        left.is_some_and(|guarded| {
            guarded.guard.stage() != Stage::Empty && guarded.descendants(&self.children).have_runs()
        })
    }

    /// What has become of what the command has left behind, if that was anything.
    pub(super) fn left_behind(&self) -> Vec<Notice> {
        let left = |guarded: &&Guarded| guarded.leaves && !guarded.is_followed;
        let Some(guarded) = self.guard.as_ref().filter(left) else { return vec![] };
        let stage = guarded.guard.stage();
        let number = match stage {
            // Without an opened gate there was no command.
            Stage::Gated | Stage::Empty => 0,
            Stage::Open | Stage::Left => guarded.descendants(&self.children).count(),
        };
        // The fuses were laid when the guard died, and nobody has wanted it to kill.
        let shared = guarded.guard.shared();
        let has_died_late = stage == Stage::Open && guarded.guard.has_own_group();
        let is_killed = has_died_late && !shared.is_spoiled() && !shared.is_refused(Part::Fuse);
        let killed = is_killed.then_some(Notice::LeftKilled);
        let end_with_us = getpid().as_raw() == 1;
        let left = (number > 0).then_some(Notice::LeftBehind { number, end_with_us });
        killed.into_iter().chain(left).collect()
    }

    /// Restores the terminal after a command that was stopped. A command that used the whole screen or asked
    /// for a password has left a terminal that is of no use to the user.
    pub(super) fn restore_terminal(&mut self) {
        if let Some(terminal) = self.terminal.take_if(|_| self.interrupted) {
            // In a pipeline, the terminal may be that of the pager behind us.
            terminal.restore(descendants::is_of_others);
        }
    }

    /// Starts the command of `--on-lost`.
    pub(super) fn start_on_lost(&mut self, line: &CommandLine, variables: &[Variable]) -> io::Result<()> {
        let program = Program { line, inherited: self.inherited };
        let variables = variables.iter().map(|(name, value)| (OsString::from(name), value.clone()));
        self.on_lost = Some(Launch::new(program, !self.shares_group, variables)?);
        self.guard.iter_mut().for_each(|guarded| guarded.is_followed = true);
        Ok(())
    }

    /// At the end of a run: whether a process is left that must not outlive us. As a rule that is a guard that is about
    /// to exit. If the operating system has failed us in the middle of a run, it is the command, and is killed.
    pub(super) fn is_left(&mut self) -> bool {
        self.dismiss_guard();
        // The process that waited at the gate comes to us only if it outlives its guard.
        let dismissed = self.dismissed.clone();
        let is_ours = |parent: Pid| parent == getpid() || dismissed.contains(&parent);
        let is_child = |pid: Pid| descendants::is_child_of_ours(pid.as_raw());
        self.dismissed.retain(|pid| descendants::parent(*pid).map_or_else(|| is_child(*pid), is_ours));
        let Some(guarded) = &self.guard else { return !self.dismissed.is_empty() };
        let (stage, reaped) = (guarded.guard.stage(), guarded.state.is_reaped());
        if !reaped && guarded.is_over() {
            // It has nothing left to do, and may be stopped.
            guarded.guard.kill_guard();
        }
        if guarded.leaves {
            // Once more: if it was stopped, its socket may have been full.
            guarded.leave();
            return !reaped || !self.dismissed.is_empty();
        }
        if matches!(stage, Stage::Gated | Stage::Open) && !(reaped && self.has_gone()) {
            self.kill();
            return true;
        }
        !reaped || !self.dismissed.is_empty()
    }
}
