//! `zklock fence`: runs a command, unless one with a higher token has been here, and until one comes.
//!
//! There is a guard as in the main job, but neither keeper nor lease: the guard's lease does not end.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use anyhow::Context as _;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::CLEAN_UP_PAUSE;
use super::job::Job;
use super::turn::REAPS;
use crate::clock::{self, Alarm};
use crate::command::{self, Reaped};
use crate::environment;
use crate::fence::{Entry, Fence, Found, Runner, Trouble};
use crate::guard::{Guard, Ties};
use crate::plan::{FencePlan, Verbosity};
use crate::rules::event::{CommandEnd, Unstarted};
use crate::rules::fence::Holder;
use crate::rules::guarded::{End, News};
use crate::rules::instant::Instant;
use crate::rules::lease::Span;
use crate::rules::machine::cancels;
use crate::rules::outcome::Outcome;
use crate::rules::signal::Signal;
use crate::sentences;
use crate::signals::{self, Arrival, Signals};
use crate::terminal::{self, Screen};
use crate::writer::Writer;

/// SIGKILL goes out again: first after this pause, then after pauses that grow up to the other one.
const KILL_AGAIN: Duration = Duration::from_millis(10);
const KILL_AGAIN_AT_MOST: Duration = Duration::from_secs(1);

/// Runs the command of a fence to its end.
pub fn run(plan: &FencePlan, writer: &mut Writer) -> Outcome {
    let mut screen = Screen::new(terminal::has_reader());
    let outcome = Run::begin(plan, &mut screen, writer).and_then(|mut run| {
        let outcome = run.work();
        run.clean_up();
        outcome
    });
    outcome.unwrap_or_else(|trouble| {
        let (text, outcome) = match trouble {
            Trouble::File(text) => (text, Outcome::Usage),
            Trouble::Unfit(text) => (text, Outcome::Unusable),
            Trouble::System(text) => (text, Outcome::Internal),
        };
        screen.line(&text);
        outcome
    })
}

struct Run<'r> {
    plan: &'r FencePlan,
    signals: Signals,
    alarm: Alarm,
    job: Job,
    screen: &'r mut Screen,
    writer: &'r mut Writer,
}

/// How far the end of a command has come.
#[derive(Clone, Copy)]
enum Phase {
    Running,
    /// It has got the stop signal.
    Stopping {
        kill_at: Instant,
    },
    /// It has got SIGKILL.
    Killing {
        again_at: Instant,
        pause: Duration,
    },
}

impl Phase {
    fn deadline(self) -> Option<Instant> {
        match self {
            Self::Running => None,
            Self::Stopping { kill_at: at } | Self::Killing { again_at: at, .. } => Some(at),
        }
    }
}

impl<'r> Run<'r> {
    fn begin(plan: &'r FencePlan, screen: &'r mut Screen, writer: &'r mut Writer) -> Result<Self, Trouble> {
        let signals = Signals::open().context("cannot read signals")?;
        let alarm = Alarm::new().context("cannot create a timer")?;
        let job = Job::new(signals.inherited()).map_err(|error| {
            let is_unfit = error.kind() == io::ErrorKind::Other;
            let text = format!("cannot look after what the command starts: {error}");
            if is_unfit { Trouble::Unfit(text) } else { Trouble::System(text) }
        })?;
        Ok(Self { plan, signals, alarm, job, screen, writer })
    }

    fn work(&mut self) -> Result<Outcome, Trouble> {
        let fence = Fence::open(&self.plan.file)?;
        loop {
            match fence.begin(self.plan.token, self.plan.kill_after)? {
                Entry::Begun => return self.run_command(&fence),
                Entry::Later(seen) => {
                    let (file, ours) = (self.plan.file.display(), self.plan.token);
                    self.screen.line(&format!(
                        "a later holder has been here: {file} has seen the token {seen}, and ours is {ours}; only if \
                         ZooKeeper was set up anew, so that its tokens began again, remove {file}"
                    ));
                    return Ok(Outcome::Lost);
                }
                Entry::Busy(holder) => {
                    if let Some(signal) = self.wait_for_turn(&fence, holder)? {
                        return Ok(Outcome::Interrupted(signal));
                    }
                }
            }
        }
    }

    /// Waits until no other fence has its turn, and stops one with a lower token. Returns the signal that ends the wait.
    fn wait_for_turn(&mut self, fence: &Fence, holder: Option<Holder>) -> Result<Option<Signal>, Trouble> {
        let mut stopping = holder.and_then(|holder| self.stop_runner(fence, &holder));
        let waiter = fence.wait_in_child().context("cannot fork")?;
        self.show_wait(holder);
        loop {
            self.sleep(stopping.as_ref().map(|(_, deadline)| *deadline))?;
            for Arrival { signal, .. } in self.signals.drain().context("cannot read signals")? {
                if cancels(signal) {
                    let _ = signals::send(waiter.as_raw(), Signal::KILL);
                    return Ok(Some(signal));
                }
                if signal == Signal::TSTP {
                    self.stop_self(signal)?;
                    self.show_wait(holder);
                }
            }
            if let Some((runner, _)) = stopping.take_if(|(_, deadline)| *deadline <= clock::now()) {
                let file = self.plan.file.display();
                self.screen.line(&match runner.map(|runner| runner.kill()) {
                    Some(Ok(())) => format!("the zklock that uses {file} did not stop its command in time; killed it"),
                    _ => format!("{file} is still in use by a command with a lower token; waiting until it has ended"),
                });
            }
            while let Some(reaped) = command::reap() {
                match reaped {
                    Reaped::Ended(pid, CommandEnd::Exited(0)) if pid == waiter => {
                        self.screen.clear();
                        return Ok(None);
                    }
                    Reaped::Ended(pid, end) if pid == waiter => {
                        return Err(anyhow::anyhow!("what waited for the lock has ended: {end:?}").into());
                    }
                    Reaped::Ended(pid, _) => self.writer.ended(pid),
                    Reaped::Stopped(..) => {}
                }
            }
        }
    }

    /// Asks a fence to make way, if its token is lower than ours. Returns it with the time that it has for that; without
    /// it where nobody has been asked.
    fn stop_runner(&mut self, fence: &Fence, holder: &Holder) -> Option<(Option<Runner>, Instant)> {
        let deadline = clock::now() + holder.makes_way(self.plan.token)?;
        let asked = match fence.find(holder) {
            // Its guard is about to kill what is left, or it has not said yet that it is its turn: then it finds our token.
            Found::Gone => return Some((None, deadline)),
            Found::Runner(runner) => runner.ask().map(|()| runner).ok(),
            Found::OutOfReach => None,
        };
        if asked.is_none() {
            self.screen.line(&format!(
                "{} is in use by process {} of another user, with a lower token; it cannot be stopped from here, so \
                 waiting until it has ended",
                self.plan.file.display(),
                holder.pid
            ));
        }
        asked.map(|runner| (Some(runner), deadline))
    }

    fn show_wait(&mut self, holder: Option<Holder>) {
        let who = holder.map_or_else(
            || "another command runs".to_owned(),
            |holder| format!("process {} runs a command, with the token {}", holder.pid, holder.token),
        );
        let text = format!("waiting for {}: {who}", self.plan.file.display());
        match self.plan.messages.verbosity {
            Verbosity::Normal if terminal::has_reader() && terminal::can_rewrite() => self.screen.status(text),
            Verbosity::Normal if terminal::has_reader() => self.screen.line(&text),
            _ => log::info!("{text}"),
        }
    }

    /// Runs the command until nothing is left of it.
    fn run_command(&mut self, fence: &Fence) -> Result<Outcome, Trouble> {
        let mut ties = Ties::new().context("cannot make pipes and shared memory")?;
        let lease = Span::without_end(clock::now());
        ties.shared.lease(lease);
        self.job.prepare();
        let variables = |_: &Guard| vec![(environment::TOKEN, self.plan.token.to_string().into())];
        let kept = [fence.descriptor()];
        if let Err(error) = self.job.start(&self.plan.command, &mut ties, &kept, &variables, lease.kill_at) {
            return Ok(self.not_started(&error));
        }
        self.screen.share();
        let (mut phase, mut outcome, mut cause, mut is_behind) = (Phase::Running, None, None, false);
        loop {
            if !self.job.has_command() && self.job.has_gone() {
                // Whatever the command made of its stop signal.
                return Ok(cause.or(outcome).unwrap_or(Outcome::Internal));
            }
            self.sleep(if is_behind { Some(clock::now()) } else { phase.deadline() })?;
            for arrival in self.signals.drain().context("cannot read signals")? {
                let later = self.later(fence, arrival.signal);
                // The guard, or what waits at its gate, may be stopped. What has not begun does not begin any more.
                if later.is_none() && cancels(arrival.signal) && self.job.recall() {
                    return Ok(Outcome::Interrupted(arrival.signal));
                }
                if let Some(later) = later.filter(|_| cause.is_none() && !self.job.is_emptied()) {
                    let has_begun = !self.job.recall();
                    if has_begun {
                        phase = self.make_way();
                    }
                    cause = Some(Outcome::Lost);
                    let file = self.plan.file.display();
                    let what = if has_begun { "stopping the command" } else { "the command was not started" };
                    self.screen.line(&format!("a later holder has come, with the token {later} for {file}: {what}"));
                }
                if later.is_none() {
                    self.pass_on(arrival)?;
                }
            }
            if phase.deadline().is_some_and(|deadline| deadline <= clock::now()) {
                phase = self.kill(phase);
            }
            is_behind = self.reap();
            let News { stopped, guard_gone, ended } = self.job.news();
            if guard_gone {
                phase = self.kill(phase);
                cause.get_or_insert(Outcome::Internal);
                self.screen.line(sentences::guard_died(ended.is_none() && !self.job.has_command()));
            }
            if let Some(signal) = stopped {
                self.stop_self(signal)?;
            }
            if let Some(ended) = ended {
                // That the guard has died is told after that, and no more wakes us.
                is_behind = true;
                let failure = self.job.failure(ended);
                outcome = Some(failure.map_or_else(|| ended.outcome(), |error| self.not_started(&error)));
                if ended == End::Stillborn {
                    // What waited at the gate may be stopped for ever. It never becomes a command.
                    return Ok(cause.or(outcome).unwrap_or(Outcome::Internal));
                }
            }
        }
    }

    /// The token of a later holder, if that is what this signal is about.
    fn later(&self, fence: &Fence, signal: Signal) -> Option<u64> {
        if signal != Signal::TERM {
            return None;
        }
        match fence.seen() {
            Ok(seen) => seen.later_than(self.plan.token),
            Err(trouble) => {
                log::warn!("cannot look for a later holder: {trouble:?}");
                None
            }
        }
    }

    /// As in the main job: a terminal has sent a signal to the command as well.
    fn pass_on(&mut self, arrival: Arrival) -> Result<(), Trouble> {
        let Arrival { signal, .. } = arrival;
        if signal == Signal::CHLD {
            return Ok(());
        }
        if !(self.job.shares_group && arrival.went_to_foreground()) {
            self.job.forward(signal, true);
        } else if signal == Signal::TSTP && !self.job.has_command() {
            self.stop_self(signal)?;
        } else {
            self.job.forward_outside(signal);
        }
        Ok(())
    }

    fn make_way(&mut self) -> Phase {
        if self.plan.kill_after.is_zero() {
            return self.kill(Phase::Running);
        }
        self.job.stop(Signal::TERM);
        Phase::Stopping { kill_at: clock::now() + self.plan.kill_after }
    }

    fn kill(&mut self, phase: Phase) -> Phase {
        self.job.kill();
        let pause = match phase {
            Phase::Killing { pause, .. } => (pause * 2).min(KILL_AGAIN_AT_MOST),
            Phase::Running | Phase::Stopping { .. } => KILL_AGAIN,
        };
        Phase::Killing { again_at: clock::now() + pause, pause }
    }

    fn not_started(&mut self, error: &std::io::Error) -> Outcome {
        self.screen.keep();
        self.screen.line(&command::describe(&self.plan.command.program, error));
        match command::unstarted(error) {
            Unstarted::NotFound => Outcome::NotFound,
            Unstarted::CannotExecute => Outcome::CannotExecute,
            Unstarted::NoProcess | Unstarted::TooLate | Unstarted::Interrupted(_) | Unstarted::Lost(_) => {
                Outcome::Internal
            }
        }
    }

    fn stop_self(&mut self, signal: Signal) -> Result<(), Trouble> {
        if self.screen.clear() {
            self.start_writer();
            self.writer.flush();
        }
        Ok(signals::stop_by(signal).context("cannot stop")?)
    }

    /// Sleeps until a signal, news of the command, the deadline or a text that has no writer comes.
    fn sleep(&mut self, deadline: Option<Instant>) -> Result<(), Trouble> {
        self.start_writer();
        let wake_at = deadline.into_iter().chain(self.writer.again_at()).min();
        self.alarm.set(wake_at).context("cannot set the timer")?;
        let own = [self.signals.as_fd(), self.alarm.as_fd()];
        let awaited = own.into_iter().chain(self.job.awaited()).chain(self.writer.awaited());
        let mut fds: Vec<_> = awaited.map(|fd: BorrowedFd<'_>| PollFd::new(fd, PollFlags::POLLIN)).collect();
        match poll(&mut fds, PollTimeout::NONE) {
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(anyhow::Error::from(error).context("cannot wait for events").into()),
        }
    }

    fn start_writer(&mut self) {
        if let Some(writer) = self.writer.start_if_due() {
            self.job.disown(writer);
        }
    }

    /// Returns whether there may be more: no signal tells of those again.
    fn reap(&mut self) -> bool {
        for _ in 0..REAPS {
            match command::reap() {
                Some(Reaped::Ended(pid, end)) => {
                    self.writer.ended(pid);
                    self.job.reaped(pid, end);
                }
                Some(Reaped::Stopped(..)) => {}
                None => return false,
            }
        }
        true
    }

    /// Leaves neither command nor guard behind.
    fn clean_up(&mut self) {
        self.screen.keep();
        self.screen.clear();
        self.start_writer();
        self.job.restore_terminal();
        while self.job.is_left() {
            self.signals.pause(CLEAN_UP_PAUSE);
            self.reap();
        }
    }
}
