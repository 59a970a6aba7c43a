//! The supervisor: the process that the user started. It starts the command, passes signals on,
//! minds terminal and clock, and reaps. It speaks no ZooKeeper.
//!
//! It stays single-threaded: so it may fork at any time, and the command's PR_SET_PDEATHSIG, which
//! is bound to the thread that forked, is bound to the process.
//!
//! One loop. What has come is taken in this order, each time round:
//! 1. the keeper's reports and the last answered beat: the lease is judged by the newest news;
//! 2. signals, but SIGCONT: after the report that the lock is ours, so that whatever came before that
//!    was read keeps the command from being started;
//! 3. the deadline, which starts the command, too;
//! 4. SIGCONT, the one signal that lets a command go on: by now it may have been killed;
//! 5. children that ended or stopped.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::ffi::{CStr, CString};
use std::hash::BuildHasher;
use std::io;
use std::mem::{self, Discriminant};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use anyhow::Context as _;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::unistd::{ForkResult, Pid, fork, getpid, getsid};

use crate::clock::{self, Alarm};
use crate::command::{self, Command, Family, INNER_LEAVING_NAME, INNER_NAME, LEAVING_NAME, Launch, Reaped, Tie};
use crate::environment::{self, Variable};
use crate::keeper::process::{self, Birth};
use crate::plan::{CommandLine, Plan, Verbosity};
use crate::rules::event::{Awaited, CommandEvent, Effect, Event, Unstarted};
use crate::rules::instant::Instant;
use crate::rules::machine::Machine;
use crate::rules::message::{Grant, Order, Progress, Remains, Report};
use crate::rules::notice::Notice;
use crate::rules::outcome::Outcome;
use crate::rules::signal::Signal;
use crate::sentences::{self, Weight};
use crate::signals::{self, Arrival, Signals};
use crate::terminal::{self, Screen};
use crate::wire::{Link, Received, SharedLease};

/// How often a person at a terminal sees a new waiting line, and a job log a further one.
const REFRESH_SCREEN: Duration = Duration::from_secs(5);
const REFRESH_LOG: Duration = Duration::from_secs(60);

/// How often to look whether a zklock still means to use our locks, at first and after a while. It may
/// find that it cannot, and wait for us.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
const LOOK_AGAIN_AT_LEAST: Duration = Duration::from_secs(1);

/// Between two looks for a process that is to go.
const CLEAN_UP_PAUSE: Duration = Duration::from_millis(10);

/// How long a keeper that has nothing left to do may take to exit.
const KEEPER_EXIT: Duration = Duration::from_millis(500);

/// Runs the plan to its end. An error means that the operating system refused something that a run
/// cannot do without; whatever had been started has been ended by then.
pub fn run(plan: &Plan) -> anyhow::Result<Outcome> {
    let signals = Signals::open().context("cannot read signals")?;
    let alarm = Alarm::new().context("cannot create a timer")?;
    let family = Family::found().context("cannot look after descendants")?;
    let name = nix::sys::prctl::get_name().context("cannot read the process's name")?;
    let (machine, effects) = Machine::start(plan.settings, clock::now());
    let teller = Teller::new(plan);
    let mut supervisor = Supervisor {
        plan,
        signals,
        alarm,
        family,
        machine,
        keeper: None,
        command: None,
        shares_group: false,
        settings: None,
        interrupted: false,
        grant: None,
        on_lost: None,
        borrowers: vec![],
        look_again: LOOK_AGAIN,
        mark: format!("{:016x}", RandomState::new().hash_one(())),
        inner: false,
        name,
        teller,
        outcome: None,
    };
    let outcome = supervisor.work(effects);
    supervisor.clean_up();
    outcome
}

struct Supervisor<'p> {
    plan: &'p Plan,
    signals: Signals,
    alarm: Alarm,
    family: Family,
    machine: Machine,
    keeper: Option<Keeper>,
    /// Until it has been reaped.
    command: Option<Command>,
    /// Whether the command is, or was, in our process group.
    shares_group: bool,
    /// How the terminal was set when it was started, and whether it may not have had the time to set it so
    /// again.
    settings: Option<terminal::Settings>,
    interrupted: bool,
    /// The lock that it runs, or ran, under.
    grant: Option<Grant>,
    /// The command of `--on-lost`, until it has been reaped.
    on_lost: Option<Command>,
    /// Of the zklocks that use our locks after the command has ended: what tells when they end.
    borrowers: Vec<OwnedFd>,
    /// When to look for them again, though none of them has ended.
    look_again: Duration,
    /// What tells whatever this run starts from all others.
    mark: String,
    /// Whether we may use locks of a zklock above us.
    inner: bool,
    /// The name that this process came with.
    name: CString,
    teller: Teller<'p>,
    outcome: Option<Outcome>,
}

/// The keeper's process, seen from here, until it has been reaped.
struct Keeper {
    pid: Pid,
    /// `None` once the other end is closed.
    link: Option<Link>,
    lease: SharedLease,
    from: Option<Instant>,
    answered: Option<Instant>,
    reaped: bool,
}

impl Supervisor<'_> {
    fn work(&mut self, effects: Vec<Effect>) -> anyhow::Result<Outcome> {
        self.perform(effects)?;
        loop {
            if let Some(outcome) = self.outcome {
                return Ok(outcome);
            }
            self.wait()?;
            self.hear_keeper()?;
            let arrivals = self.signals.drain().context("cannot read signals")?;
            let (continues, others): (Vec<_>, Vec<_>) =
                arrivals.into_iter().partition(|arrival| arrival.signal == Signal::CONT);
            self.pass_on(others)?;
            if self.machine.deadline().is_some_and(|deadline| deadline <= clock::now()) {
                self.happen(Event::Timer)?;
            }
            self.pass_on(continues)?;
            self.reap()?;
        }
    }

    /// Sleeps until a signal, a report or the deadline comes.
    fn wait(&mut self) -> anyhow::Result<()> {
        self.alarm.set(self.machine.deadline()).context("cannot set the timer")?;
        let mut fds = vec![
            PollFd::new(self.signals.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.alarm.as_fd(), PollFlags::POLLIN),
        ];
        let link = self.keeper.as_ref().and_then(|keeper| keeper.link.as_ref());
        fds.extend(link.map(|link| PollFd::new(link.as_fd(), PollFlags::POLLIN)));
        let mut limit = PollTimeout::NONE;
        if self.machine.awaits() == Some(Awaited::Borrowers) {
            fds.extend(self.borrowers.iter().map(|pidfd| PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)));
            limit = PollTimeout::try_from(self.look_again).unwrap_or(PollTimeout::ZERO);
        }
        match poll(&mut fds, limit) {
            Ok(0) => {
                self.look_again = (self.look_again * 2).min(LOOK_AGAIN_AT_LEAST);
                Ok(())
            }
            Ok(_) | Err(Errno::EINTR) => Ok(()),
            Err(error) => Err(error).context("cannot wait for events"),
        }
    }

    fn pass_on(&mut self, arrivals: Vec<Arrival>) -> anyhow::Result<()> {
        for Arrival { signal, from_kernel } in arrivals {
            if signal == Signal::CHLD {
                continue;
            }
            let shared = from_kernel && self.shares_group && goes_to_foreground(signal);
            self.happen(Event::Signal { signal, shared })?;
        }
        Ok(())
    }

    fn hear_keeper(&mut self) -> anyhow::Result<()> {
        while let Some(link) = self.keeper.as_ref().and_then(|keeper| keeper.link.as_ref()) {
            match link.receive() {
                Received::Message(report) => {
                    if report == Report::Queue(Progress::Independent) {
                        self.inner = false;
                        self.take_name(None);
                    }
                    self.happen(Event::Keeper(report))?;
                }
                Received::Nothing => break,
                Received::Gone => {
                    if let Some(keeper) = &mut self.keeper {
                        keeper.link = None;
                    }
                    self.happen(Event::KeeperGone)?;
                }
            }
        }
        if let Some(keeper) = &mut self.keeper {
            let answered = keeper.lease.answered();
            if let Some(answered) = answered.filter(|_| answered > keeper.answered) {
                keeper.answered = Some(answered);
                self.happen(Event::Answered(answered))?;
            }
        }
        if let Some(keeper) = &mut self.keeper {
            let from = keeper.lease.from();
            if let Some(from) = from.filter(|_| from > keeper.from) {
                keeper.from = Some(from);
                self.happen(Event::Extended(from))?;
            }
        }
        Ok(())
    }

    /// Before an end is told, the keeper is heard once more: it reports a loss, then kills. What it has
    /// killed since we last listened must not pass for what ended by itself.
    fn reap(&mut self) -> anyhow::Result<()> {
        while let Some(reaped) = command::reap() {
            let command = self.command.as_ref().map(Command::pid);
            let on_lost = self.on_lost.as_ref().map(Command::pid);
            match reaped {
                Reaped::Ended(pid, end) if Some(pid) == command => {
                    if let Some(error) = self.command.take().and_then(|command| command.failure()) {
                        self.hear_keeper()?;
                        self.not_started(&error)?;
                        continue;
                    }
                    self.take_name(Some(if self.inner { INNER_LEAVING_NAME } else { LEAVING_NAME }));
                    let lent = self.family.borrows();
                    self.hear_keeper()?;
                    self.happen(if lent {
                        Event::Command(CommandEvent::EndedLending(end))
                    } else {
                        Event::Command(CommandEvent::Ended(end))
                    })?;
                }
                Reaped::Ended(pid, end) if Some(pid) == on_lost => {
                    log::info!("--on-lost: {end:?}");
                    let failure = self.on_lost.take().and_then(|on_lost| on_lost.failure());
                    self.on_lost_ended(failure.as_ref())?;
                }
                // Without a terminal no shell waits for the job to stop, and whoever continues the
                // command does not know that we would have to be continued, too.
                Reaped::Stopped(pid, signal) if self.shares_group && (Some(pid) == command || Some(pid) == on_lost) => {
                    self.happen(Event::Command(CommandEvent::Stopped(signal)))?;
                }
                Reaped::Ended(pid, end) => {
                    if let Some(keeper) = self.keeper.as_mut().filter(|keeper| keeper.pid == pid) {
                        // What it has said last, and that it is gone, its socket tells.
                        log::debug!("keeper {pid}: {end:?}");
                        keeper.reaped = true;
                    }
                }
                Reaped::Stopped(..) => {}
            }
        }
        let gone = match self.machine.awaits() {
            _ if self.command.is_some() => false,
            None => false,
            Some(Awaited::Everyone) => self.family.has_gone(),
            Some(Awaited::Borrowers) => {
                self.borrowers = self.family.borrowers();
                !self.family.borrows()
            }
        };
        if gone {
            self.hear_keeper()?;
            self.happen(Event::Command(CommandEvent::TreeGone))?;
        }
        Ok(())
    }

    fn happen(&mut self, event: Event) -> anyhow::Result<()> {
        log::debug!("event {event:?}");
        let effects = self.machine.step(clock::now(), event);
        self.perform(effects)
    }

    fn perform(&mut self, effects: Vec<Effect>) -> anyhow::Result<()> {
        for effect in effects {
            log::debug!("effect {effect:?}");
            match effect {
                Effect::StartKeeper => self.start_keeper()?,
                Effect::Spawn { grant, until } => self.spawn(&grant, until)?,
                Effect::Forward(signal) => match &self.command {
                    Some(command) => command.forward(signal, &self.family),
                    None => self.family.forward(signal),
                },
                Effect::Stop(signal) => {
                    self.interrupted = true;
                    self.family.stop(signal, self.command.as_ref());
                }
                Effect::Kill => {
                    self.interrupted = true;
                    self.family.kill(self.command.as_ref());
                }
                Effect::Release => {
                    self.order(Order::Release);
                    self.teller.screen.keep();
                    self.restore_terminal();
                }
                Effect::StartOnLost => self.start_on_lost()?,
                Effect::ForwardToOnLost(signal) => {
                    if let Some(on_lost) = &self.on_lost {
                        on_lost.forward(signal, &self.family);
                    }
                }
                Effect::StopSelf(signal) => {
                    self.teller.screen.clear();
                    signals::stop_by(signal).context("cannot stop")?;
                }
                Effect::EndKeeper => self.kill_keeper(),
                Effect::Say(notice) => self.teller.say(&notice),
                Effect::Finish(outcome) => self.outcome = Some(outcome),
            }
        }
        Ok(())
    }

    /// A command that fills the screen, or asks for a password, and was stopped, has left a terminal that
    /// nobody can use.
    fn restore_terminal(&mut self) {
        if let Some(settings) = self.settings.take_if(|_| self.interrupted) {
            // In a pipeline, the terminal may be that of the pager behind us.
            settings.restore(command::is_of_others);
        }
    }

    fn order(&self, order: Order) {
        // A keeper that has gone is told nothing; that it has gone is an event of its own.
        if let Some(link) = self.keeper.as_ref().and_then(|keeper| keeper.link.as_ref())
            && let Err(error) = link.send(&order)
        {
            log::info!("cannot tell the keeper {order:?}: {error}");
        }
    }

    /// Shows others what we are about; `None`: nothing special. See [`command::lends`].
    fn take_name(&self, name: Option<&CStr>) {
        if let Err(error) = nix::sys::prctl::set_name(name.unwrap_or(&self.name)) {
            log::info!("cannot change the process's name: {error}");
        }
    }

    fn start_keeper(&mut self) -> anyhow::Result<()> {
        self.kill_keeper();
        if !self.plan.request.held.is_empty() {
            self.inner = true;
            self.take_name(Some(INNER_NAME));
        }
        let (ours, theirs) = Link::pair().context("cannot create a socket pair")?;
        let lease = SharedLease::new().context("cannot share memory")?;
        let (supervisor, mark) = (std::process::id(), self.mark.as_str());
        #[expect(unsafe_code, reason = "the keeper is a fork of the supervisor")]
        // SAFETY: this process has one thread, so the child may go on as any process may (fork(2)).
        match unsafe { fork() }.context("cannot fork")? {
            ForkResult::Child => {
                // Both ends would keep the socket open when the supervisor dies.
                drop(ours);
                let refresh = self.teller.refresh();
                process::run(Birth { plan: self.plan, supervisor, mark, refresh, link: theirs, lease });
                std::process::exit(0);
            }
            ForkResult::Parent { child } => {
                self.family.disown(child);
                self.keeper =
                    Some(Keeper { pid: child, link: Some(ours), lease, from: None, answered: None, reaped: false });
                Ok(())
            }
        }
    }

    fn kill_keeper(&self) {
        // While it has not been reaped, the pid is its own.
        if let Some(keeper) = self.keeper.as_ref().filter(|keeper| !keeper.reaped) {
            let _ = signals::send(keeper.pid.as_raw(), Signal::KILL);
        }
    }

    fn spawn(&mut self, grant: &Grant, until: Instant) -> anyhow::Result<()> {
        self.teller.screen.clear();
        self.shares_group = terminal::is_controlled();
        self.settings = terminal::Settings::of_foreground();
        self.grant = Some(grant.clone());
        let mut environment = environment::describe(grant, self.plan.request.mode);
        environment.push(environment::held(grant, &self.plan.request.held));
        environment.push(environment::run(&self.mark));
        // Without a keeper there is no lock.
        let Some(keeper) = &self.keeper else {
            return self.happen(Event::Command(CommandEvent::StartFailed(Unstarted::TooLate)));
        };
        let announce = |remains| {
            self.order(Order::Started(remains));
            // If the child was stopped before this, the keeper may have looked for it in vain.
            if keeper.lease.is_revoked() { Err(Errno::ETIME.into()) } else { Ok(()) }
        };
        match self.launch(&self.plan.command, &environment, Tie::Lock(until), announce) {
            Ok(command) => {
                self.command = Some(command);
                self.teller.screen.share();
                Ok(())
            }
            Err(error) => self.not_started(&error),
        }
    }

    fn not_started(&mut self, error: &io::Error) -> anyhow::Result<()> {
        self.teller.screen.keep();
        if error.raw_os_error() == Some(libc::ETIME) {
            return self.happen(Event::Command(CommandEvent::StartFailed(Unstarted::TooLate)));
        }
        let program = self.plan.command.program.display();
        self.teller.screen.line(&format!("{program}: {error}"));
        let why = match error.kind() {
            io::ErrorKind::NotFound => Unstarted::NotFound,
            _ => Unstarted::CannotExecute,
        };
        self.happen(Event::Command(CommandEvent::StartFailed(why)))
    }

    fn start_on_lost(&mut self) -> anyhow::Result<()> {
        let (Some(line), Some(grant)) = (&self.plan.on_lost, &self.grant) else {
            return self.happen(Event::OnLostEnded);
        };
        // It does not hold the lock, and the keeper kills whoever carries the mark.
        match self.launch(line, &environment::describe(grant, self.plan.request.mode), Tie::None, |_| Ok(())) {
            Ok(on_lost) => {
                self.on_lost = Some(on_lost);
                Ok(())
            }
            Err(error) => self.on_lost_ended(Some(&error)),
        }
    }

    fn on_lost_ended(&mut self, failure: Option<&io::Error>) -> anyhow::Result<()> {
        if let (Some(error), Some(line)) = (failure, &self.plan.on_lost) {
            self.teller.screen.line(&format!("--on-lost: {}: {error}", line.program.display()));
        }
        self.happen(Event::OnLostEnded)
    }

    fn launch(
        &self,
        line: &CommandLine,
        environment: &[Variable],
        tie: Tie,
        announce: impl FnOnce(Remains) -> io::Result<()>,
    ) -> io::Result<Command> {
        let (own_group, inherited) = (!self.shares_group, self.signals.inherited());
        Command::spawn(Launch { line, environment, own_group, inherited, tie }, announce)
    }

    /// Leaves no process behind. After a run that ended as it should, only a keeper that exits.
    fn clean_up(&mut self) {
        self.teller.screen.clear();
        while self.command.is_some() {
            // Only after an error of the operating system in the middle of a run.
            self.family.kill(self.command.as_ref());
            while let Some(reaped) = command::reap() {
                if let Reaped::Ended(pid, _) = reaped {
                    self.command.take_if(|command| command.pid() == pid);
                }
            }
            self.pause(CLEAN_UP_PAUSE);
        }
        let Some(keeper) = self.keeper.take_if(|keeper| !keeper.reaped) else { return };
        // It goes by itself when its socket closes.
        drop(keeper.link);
        let until = clock::now() + KEEPER_EXIT;
        let mut killed = false;
        loop {
            while let Some(reaped) = command::reap() {
                if matches!(reaped, Reaped::Ended(pid, _) if pid == keeper.pid) {
                    return;
                }
            }
            let left = until.saturating_since(clock::now());
            if left.is_zero() && !killed {
                let _ = signals::send(keeper.pid.as_raw(), Signal::KILL);
                killed = true;
            }
            self.pause(left.max(CLEAN_UP_PAUSE));
        }
    }

    /// Waits for a signal, SIGCHLD for one, but no longer than this.
    fn pause(&self, time: Duration) {
        let mut fds = [PollFd::new(self.signals.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut fds, PollTimeout::try_from(time).unwrap_or(PollTimeout::ZERO));
        let _ = self.signals.drain();
    }
}

/// Whether a signal that the kernel made is one that a terminal sends to its whole foreground process
/// group, and not, as an alarm of alarm(2), to us alone.
fn goes_to_foreground(signal: Signal) -> bool {
    match signal {
        Signal::INT | Signal::QUIT | Signal::TSTP | Signal::WINCH => true,
        // When a terminal is closed, the leader of its session gets these two, and nobody else
        // (`__tty_hangup`); the foreground group does when that leader has died.
        Signal::HUP | Signal::CONT => getsid(None) != Ok(getpid()),
        _ => false,
    }
}

/// Tells the user what they want to know, where they look.
struct Teller<'p> {
    plan: &'p Plan,
    screen: Screen,
    audience: Audience,
    /// When a job log last got a line about each kind of thing.
    logged: HashMap<Discriminant<Notice>, Instant>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Audience {
    /// A person at a terminal.
    Reader,
    /// The log of a CI job, which people read to learn why it takes so long.
    JobLog,
    /// Cron and the like: every line is a mail.
    Nobody,
}

impl<'p> Teller<'p> {
    fn new(plan: &'p Plan) -> Self {
        let in_ci = std::env::var_os("CI").is_some_and(|value| !value.is_empty() && value != "false" && value != "0");
        let audience = match plan.verbosity {
            Verbosity::Quiet => Audience::Nobody,
            // Log lines would break up the line that is rewritten.
            Verbosity::Verbose(_) => Audience::JobLog,
            Verbosity::Normal if terminal::has_reader() => Audience::Reader,
            Verbosity::Normal if in_ci => Audience::JobLog,
            Verbosity::Normal => Audience::Nobody,
        };
        Self { plan, screen: Screen::default(), audience, logged: HashMap::new() }
    }

    fn refresh(&self) -> Option<Duration> {
        match self.audience {
            Audience::Reader => Some(REFRESH_SCREEN),
            Audience::JobLog => Some(REFRESH_LOG),
            Audience::Nobody => None,
        }
    }

    fn say(&mut self, notice: &Notice) {
        let (weight, text) = sentences::sentence(notice, self.plan, clock::wall_millis());
        match (weight, self.audience) {
            (Weight::Error, _) => self.screen.line(&text),
            (Weight::Notable, _) if self.plan.verbosity != Verbosity::Quiet => self.screen.line(&text),
            (Weight::News | Weight::Hint, Audience::Reader) => self.screen.line(&text),
            (Weight::Status, Audience::Reader) => self.screen.status(text),
            (Weight::Status | Weight::News | Weight::Progress, Audience::JobLog) => {
                // Waiting is news to whoever has read of connecting; but a network that comes and goes
                // must not fill the log.
                let (now, kind) = (clock::now(), mem::discriminant(notice));
                if self.logged.get(&kind).is_none_or(|at| now.saturating_since(*at) >= REFRESH_LOG) {
                    self.logged.insert(kind, now);
                    self.screen.line(&text);
                }
            }
            _ => log::info!("{text}"),
        }
    }
}
