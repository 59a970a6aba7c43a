//! What runs under the lock: the command and its descendants; later the command of `--on-lost`.

use std::hash::{BuildHasher, RandomState};
use std::io;

use anyhow::Context as _;
use nix::unistd::Pid;

use super::CLEAN_UP_PAUSE;
use crate::command::{self, Command, Family, Launch, Tie};
use crate::environment::Variable;
use crate::plan::CommandLine;
use crate::rules::message::{Grant, Remains};
use crate::rules::signal::Signal;
use crate::signals::{Inherited, Signals};
use crate::terminal::{self, Attributes};

pub(super) struct Job {
    /// What tells the processes of this run from all others.
    pub(super) mark: String,
    pub(super) family: Family,
    /// The command, until it has been reaped.
    pub(super) command: Option<Command>,
    /// The locks that it runs, or ran, under.
    pub(super) grant: Option<Grant>,
    /// The command of `--on-lost`, until it has been reaped.
    pub(super) on_lost: Option<Command>,
    /// Whether commands are started in our process group.
    pub(super) shares_group: bool,
    /// The terminal as the command found it, and whether the command may have had no time to restore it.
    terminal: Option<Attributes>,
    interrupted: bool,
}

impl Job {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            mark: format!("{:016x}", RandomState::new().hash_one(())),
            family: Family::new().context("cannot look after descendants")?,
            command: None,
            grant: None,
            on_lost: None,
            shares_group: false,
            terminal: None,
            interrupted: false,
        })
    }

    pub(super) fn is_command(&self, pid: Pid) -> bool {
        self.command.as_ref().map(Command::pid) == Some(pid)
    }

    pub(super) fn is_on_lost(&self, pid: Pid) -> bool {
        self.on_lost.as_ref().map(Command::pid) == Some(pid)
    }

    /// Looks at the terminal before the command is started under these locks.
    pub(super) fn prepare(&mut self, grant: &Grant) {
        self.shares_group = terminal::is_controlled();
        self.terminal = Attributes::of_foreground();
        self.grant = Some(grant.clone());
    }

    pub(super) fn launch(
        &self,
        line: &CommandLine,
        environment: &[Variable],
        inherited: Inherited,
        tie: Tie,
        announce: impl FnOnce(Remains) -> io::Result<()>,
    ) -> io::Result<Command> {
        Command::spawn(Launch { line, environment, own_group: !self.shares_group, inherited, tie }, announce)
    }

    pub(super) fn forward(&self, signal: Signal) {
        match &self.command {
            Some(command) => command.forward(signal, &self.family),
            None => self.family.forward(signal),
        }
    }

    pub(super) fn forward_to_on_lost(&self, signal: Signal) {
        if let Some(on_lost) = &self.on_lost {
            on_lost.forward(signal, &self.family);
        }
    }

    pub(super) fn stop(&mut self, signal: Signal) {
        self.interrupted = true;
        self.family.stop(signal, self.command.as_ref());
    }

    pub(super) fn kill(&mut self) {
        self.interrupted = true;
        self.family.kill(self.command.as_ref());
    }

    /// Restores the terminal after a command that was stopped. A command that used the whole screen or asked
    /// for a password has left a terminal that is of no use to the user.
    pub(super) fn restore_terminal(&mut self) {
        if let Some(terminal) = self.terminal.take_if(|_| self.interrupted) {
            // In a pipeline, the terminal may be that of the pager behind us.
            terminal.restore(command::is_of_others);
        }
    }

    /// Kills the command if there still is one: only after the operating system has failed us in the middle
    /// of a run.
    pub(super) fn end(&mut self, signals: &Signals) {
        while let Some(command) = &self.command {
            self.family.kill(Some(command));
            if command::reaps(command.pid()) {
                return;
            }
            signals.pause(CLEAN_UP_PAUSE);
        }
    }
}
