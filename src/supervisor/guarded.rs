//! A guard, as the supervisor has it, and what is below.

use nix::unistd::Pid;

use crate::descendants::{self, Descendants, OwnChildren, Stranger};
use crate::guard::Guard;
use crate::rules::guard::Stage;
use crate::rules::guarded as rules;
use crate::shared::{PARTS, Part};

/// A guard and the command that it answers for.
pub(super) struct Guarded {
    pub(super) guard: Guard,
    /// Our children that are not the command's, should the guard die.
    pub(super) strangers: Vec<Stranger>,
    pub(super) state: rules::Guarded,
    /// The guard has been told to leave alone what the command has left behind.
    pub(super) leaves: bool,
    /// What the guard has to do without has been told.
    is_told: bool,
    /// The command of `--on-lost` was started. So nothing is left of the command.
    pub(super) is_followed: bool,
}

impl Guarded {
    /// A guard whose gate is closed. `strangers`: the children that we have by now.
    pub(super) fn new(guard: Guard, strangers: Vec<Stranger>) -> Self {
        let state = rules::Guarded::default();
        Self { guard, strangers, state, leaves: false, is_told: false, is_followed: false }
    }

    /// Logs what the guard has to do without, once. By the time that it has opened the gate it has tried everything.
    pub(super) fn tell_refused(&mut self) {
        if self.guard.stage() == Stage::Gated || std::mem::replace(&mut self.is_told, true) {
            return;
        }
        for part in PARTS.into_iter().filter(|part| self.guard.shared().is_refused(*part)) {
            log::info!("this system has not got {}; going on without", part.name());
        }
    }

    /// Takes note of the orphans that have come to us. As long as the guard lives, they are not the command's: those
    /// come to the guard.
    pub(super) fn find_strangers(&mut self, children: &OwnChildren) {
        let lacks_adoption = self.guard.shared().is_refused(Part::Adoption);
        if !self.state.is_guarded() || self.leaves || lacks_adoption {
            return;
        }
        let is_known = |child: Pid| child == self.guard.pid() || self.strangers.iter().any(|known| known.is(child));
        // What cannot be found out now may be at the next turn.
        let Ok(found) = children.others(is_known) else { return };
        // In this order: if the guard still adopts orphans now, it did so when these came to us.
        if !found.is_empty() && !descendants::is_exiting(self.guard.pid()) {
            self.strangers.extend(found);
        }
    }

    /// Has the guard leave alone what the command has left behind.
    pub(super) fn leave(&self) {
        if !self.state.is_reaped() {
            self.guard.leave();
        }
    }

    /// What the guard shows of the command.
    pub(super) fn shown(&self) -> rules::Shown {
        rules::Shown { stage: self.guard.stage(), ended: self.guard.ended() }
    }

    /// The command's process, if it is there, and /proc does not show it.
    pub(super) fn hidden_command(&self) -> Option<Pid> {
        let command = self.guard.shared().command().filter(|_| self.guard.ended().is_none());
        command.filter(|command| descendants::is_hidden(*command))
    }

    /// Whether nothing is left of the command, or only what is to be left alone.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.guard.stage(), Stage::Left | Stage::Empty)
    }

    /// Whether what was below the guard comes to us. A guard that has died is not ours to reap while a debugger has it.
    pub(super) fn has_fallen(&self) -> bool {
        self.state.is_reaped() || descendants::is_seen_to_exit(self.guard.pid())
    }

    pub(super) fn descendants<'a>(&self, children: &'a OwnChildren) -> Descendants<'a> {
        if self.has_fallen() {
            Descendants::of_us(children, self.strangers.clone())
        } else {
            Descendants::of_guard(self.guard.pid())
        }
    }
}
