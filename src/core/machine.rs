//! The life of one run, as a function from events to effects.
//!
//! The supervisor turns everything that happens into an [`Event`], calls [`Machine::step`], and
//! performs the [`Effect`]s in order. To learn what happens when X comes in state Y, find the
//! match arm. Failures are events, not errors.
//!
//! What always holds, and the property tests below check:
//! - [`Effect::Spawn`] only under a lease that is long enough, and once;
//! - [`Effect::Release`] only when no command runs, and none is left that was to be killed or waited
//!   for;
//! - no signal when nothing is left of the command;
//! - [`Effect::Kill`] goes out no later than the lease allows;
//! - no command goes on undisturbed after `--max-run`;
//! - [`Effect::StartOnLost`] at most once, and only after the lock was lost, when nothing is left of
//!   the command and the release has begun;
//! - [`Effect::Finish`] once, and last.

mod ending;
mod running;

use std::num::NonZeroU32;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use self::ending::{Release, Verdict};
use self::running::{Cause, Run};
use super::lease::{Instant, NoRoom, Terms};
use super::outcome::Outcome;
use super::queue::{Dialect, Mode, Recipe};
use super::signal::Signal;

/// How long a release after a finished command waits for a server, unless the session ends sooner.
const RELEASE_PATIENCE: Duration = Duration::from_secs(10);
/// How long the contender node of someone who gives up may delay their going.
const GIVE_UP_PATIENCE: Duration = Duration::from_secs(1);
/// The same where the servers have to say at the end whether they still answer: time for two round trips.
const VERDICT_PATIENCE: Duration = Duration::from_secs(2);
/// How long once the user shows impatience.
const HURRIED_PATIENCE: Duration = Duration::from_millis(300);
/// A lease that is too short to start under is judged again this often.
const JUDGE_AGAIN: Duration = Duration::from_millis(20);
/// How many keepers may die on us before we take it for an error of our own.
const KEEPER_CRASHES: u32 = 3;

/// What the keeper tells the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Report {
    /// No server has answered yet, for this reason; the keeper goes on trying.
    Unreachable(String),
    /// The session has a connection: the first one, or a new one after the last was lost.
    Connected {
        /// The session timeout that the server granted, which may be another each time.
        timeout: Duration,
    },
    /// A new connection has a shorter timeout than the one before, and no beat over it was answered yet.
    Shortened {
        /// The session timeout that the server granted.
        timeout: Duration,
        /// From when a lease counts with it, if there is one.
        from: Option<Instant>,
    },
    /// The lock has a child that is no contender, which nobody waits for.
    Foreign {
        /// The lock.
        lock: String,
        /// The child's name, printable.
        child: String,
    },
    /// Our contender node is in the queue and others are before it.
    Waiting(View),
    /// Nobody is before us any more, but we do not hold yet: there is a further lock, or no young beat.
    Turn,
    /// No lock of a zklock above us is used, and none will be.
    Independent,
    /// Our contender node had vanished while waiting; a new one is at the tail of the queue.
    Requeued(Loss),
    /// The lock is ours.
    Held(Grant),
    /// A beat that was sent at this time has been answered by the quorum.
    Extended(Instant),
    /// The lock, or the place in the queue, is lost.
    Lost(Loss),
    /// It makes no sense to go on.
    Refused(Refusal),
    /// The contender node is gone and the session is closed.
    Released,
}

/// What a waiter can say about the queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct View {
    /// The lock that is waited for.
    pub lock: String,
    /// Our place, counted from 1.
    pub position: usize,
    /// How many contenders there are.
    pub total: usize,
    /// The first holder, printable: `db3 (ops, pid 4242, backup.sh)`, or its node's name.
    pub holder: String,
    /// Since when it holds, in milliseconds since the Unix epoch, where it says so.
    pub held_since: Option<u64>,
}

/// One lock that is ours.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// Its path.
    pub lock: String,
    /// Full path of the contender node.
    pub node: String,
    /// The fencing token: the node's czxid.
    pub token: i64,
}

/// The locks as they were granted to us.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The lock that was named first.
    pub first: Granted,
    /// The others, in the order in which they were named.
    pub and: Vec<Granted>,
    /// The session to which the first one's node belongs.
    pub session: i64,
    /// When the last request that the quorum answered was sent: the lease counts from here.
    pub sent: Instant,
}

impl Grant {
    /// All of them, the one that was named first first.
    pub fn all(&self) -> impl Iterator<Item = &Granted> {
        std::iter::once(&self.first).chain(&self.and)
    }
}

/// Why a lock, or a place in the queue, is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Loss {
    /// Someone deleted the contender node.
    NodeDeleted,
    /// No beat was answered until the end of the lease, and the command was killed.
    LeaseOver,
    /// The zklock above us whose contender node we use has gone.
    LenderGone,
    /// The session is over.
    SessionExpired,
    /// The session is over so soon that leases from before may last: an operator ended it, the servers
    /// have lost their data, or the one that we were connected to was cut off from the others.
    SessionEnded,
}

/// Why it makes no sense to go on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Refusal {
    /// An ACL forbids what was tried on this node.
    Denied(String),
    /// The chroot of the connect string does not exist.
    NoChroot,
    /// The sequence numbers of this lock are used up, or nearly so.
    Exhausted(String),
    /// A contender takes no notice of ours.
    Blind {
        /// The lock.
        lock: String,
        /// The contender's name, printable.
        contender: String,
        /// What it would take notice of.
        reads: Dialect,
    },
    /// Somebody before us counts with another number of permits.
    OtherPermits {
        /// The lock.
        lock: String,
        /// Their number.
        permits: NonZeroU32,
    },
    /// Another recipe uses the path, and its users and we would run side by side.
    OtherRecipe {
        /// The lock.
        lock: String,
        /// What it is used by.
        recipe: Recipe,
    },
    /// A zklock above us holds the lock in a way that does not include what is asked for.
    Upgrade {
        /// The lock.
        lock: String,
        /// How it is held.
        held: Mode,
    },
    /// Anything else that the server will say again if asked again.
    Server(String),
}

/// What can happen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The keeper says something.
    Keeper(Report),
    /// The servers answered something then, a beat or not.
    Answered(Instant),
    /// The keeper is gone, whatever the reason.
    KeeperGone,
    /// We got a signal.
    Signal {
        /// Which.
        signal: Signal,
        /// The terminal sent it, to the command as well if that is in our process group.
        shared: bool,
    },
    /// The command could not be started, and nothing is left of the attempt. It may take a while, as
    /// execve(2) does.
    StartFailed(Unstarted),
    /// The command itself ended and has been reaped.
    Ended(CommandEnd),
    /// The same, and zklocks that it started go on under our locks.
    EndedLending(CommandEnd),
    /// The command, or that of `--on-lost`, was stopped by this signal (Ctrl-Z).
    Stopped(Signal),
    /// The command and all its descendants have gone.
    TreeGone,
    /// The command of `--on-lost` has ended, or could not be started.
    OnLostEnded,
    /// The time that [`Machine::deadline`] named has come.
    Timer,
}

/// Whose end the machine waits for, to hear of it as [`Event::TreeGone`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Awaited {
    /// The command and all its descendants.
    Everyone,
    /// The zklocks among them that use our locks.
    Borrowers,
}

/// Why the command could not be started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unstarted {
    /// It does not exist.
    NotFound,
    /// It cannot be executed.
    CannotExecute,
    /// The machine stalled for so long that the lease was over.
    TooLate,
}

/// How the command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandEnd {
    /// With this exit status.
    Exited(u8),
    /// Killed by this signal.
    Signaled(Signal),
}

/// What is to be done, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Start a keeper; an earlier one is of no more use.
    StartKeeper,
    /// Start the command.
    Spawn {
        /// The lock that it runs under.
        grant: Grant,
        /// From here on it is too late to start it.
        until: Instant,
    },
    /// Pass a signal on to the command's process group, or to its descendants when it has ended.
    Forward(Signal),
    /// Ask the command and all its descendants to stop.
    Stop(Signal),
    /// SIGKILL the command and all its descendants; report [`Event::TreeGone`].
    Kill,
    /// Tell the keeper to delete the node and close the session.
    Release,
    /// Start the command of `--on-lost`; report [`Event::OnLostEnded`].
    StartOnLost,
    /// Pass a signal on to the command of `--on-lost`.
    ForwardToOnLost(Signal),
    /// Stop by this signal, as the shell that watches us expects when the command stops.
    StopSelf(Signal),
    /// End the keeper at once: it has had its time.
    EndKeeper,
    /// Tell the user.
    Say(Notice),
    /// The run is over.
    Finish(Outcome),
}

/// What the user may be told; the sentences are in `notice.rs`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// No server yet, for this reason.
    Connecting(String),
    /// The server granted another session timeout than was asked for.
    Granted(Duration),
    /// There is a connection again, after [`Notice::Connecting`] in the queue.
    Reconnected,
    /// ZooKeeper answers again, after [`Notice::Silent`].
    Back,
    /// ZooKeeper has been silent for half of the time after which the command is stopped.
    Silent {
        /// For how long.
        silence: Duration,
        /// How much is left.
        left: Duration,
    },
    /// A silence of this length can stop the command: shorter than a third of the session timeout.
    Impatient(Terms),
    /// A lock has a child that is no contender.
    Foreign {
        /// The lock.
        lock: String,
        /// The child's name, printable.
        child: String,
    },
    /// In the queue.
    Waiting(View),
    /// The place in the queue was lost; at the tail again.
    Requeued(Loss),
    /// The lock is ours, and the command starts after this time.
    Pausing(Duration),
    /// The command starts.
    Starting {
        /// The locks that it runs under.
        grant: Grant,
        /// Since the start of the run, if others had to be waited for.
        waited: Option<Duration>,
    },
    /// Given up with `-n`.
    NotFree(View),
    /// Given up after `--timeout`.
    TimedOut(Blocker),
    /// Given up after `--connect-timeout`, for this reason.
    Unreachable(String),
    /// `--kill-after` does not fit.
    NoRoom {
        /// What would fit.
        no_room: NoRoom,
        /// The session timeout that the server granted.
        granted: Duration,
    },
    /// It makes no sense to go on.
    Refused(Refusal),
    /// The command has run for as long as `--max-run` allows, which is this.
    MaxRun(Duration),
    /// The lock was lost while the command ran.
    Lost(LostWhy),
    /// The lease was over before the command could be started.
    TooLate,
    /// Nobody confirmed the release; the lock frees itself within this time.
    NotReleased(Duration),
    /// The keeper process died too often.
    KeeperDied,
}

/// What stood in the way until `--timeout`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Blocker {
    /// The contenders before us.
    Queue(View),
    /// No server answered, for this reason if one is known.
    Servers(Option<String>),
    /// The servers had answered, but not in time, or not to the end.
    Late,
    /// Somebody may still rely on a lease from before the session ended.
    OldLease,
}

/// How the loss of a held lock was learnt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LostWhy {
    /// ZooKeeper said so; the next holder may run already.
    Told(Loss),
    /// ZooKeeper has been silent for this long.
    Silence(Duration),
    /// ZooKeeper refuses what it takes to keep the lock.
    Refused,
    /// The keeper process has gone.
    KeeperGone,
}

/// What a run was asked for, as far as the machine needs it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Give up when others are before us.
    pub nonblock: bool,
    /// `--timeout`: give up after this long.
    pub timeout: Option<Duration>,
    /// `--conflict-exit-code`.
    pub conflict_exit_code: u8,
    /// `--connect-timeout`.
    pub connect_timeout: Duration,
    /// `--session-timeout`, as asked of the server.
    pub session_timeout: Duration,
    /// `--kill-after`, when given.
    pub kill_after: Option<Duration>,
    /// `--signal`.
    pub stop_signal: Signal,
    /// `--max-run`: stop the command after this long.
    pub max_run: Option<Duration>,
    /// `--wait-descendants`: hold the lock until nothing is left of the command.
    pub wait_descendants: bool,
    /// Whether there is a command of `--on-lost`.
    pub on_lost: bool,
}

#[derive(Debug)]
enum State {
    /// No session yet. `--connect-timeout` runs only until the first session of this run.
    Connecting { until: Option<Instant>, reason: Option<String> },
    /// In the queue, or about to be. `silence`: why there is no connection now.
    Queued { terms: Terms, view: Option<View>, silence: Option<String> },
    /// The lock is ours; the command starts as soon as the lease is long enough, which is at once
    /// unless the machine stalled: then the keeper beats, and the lease is judged again.
    Held { terms: Terms, grant: Grant, judge_at: Instant },
    /// The command runs, or what it has left behind and is waited for.
    Running(Run),
    /// The stop signal has gone out, and SIGKILL follows.
    Stopping { terms: Terms, cause: Cause, kill_at: Instant },
    /// SIGKILL has gone out; it goes out again until nothing is left.
    Killing { terms: Terms, cause: Cause, again_at: Instant, pause: Duration },
    /// No command: the node is to go.
    Releasing(Release),
    /// Nothing more can be done about the node; the command of `--on-lost` still runs.
    Outlasted(Outcome),
    /// [`Effect::Finish`] has been said.
    Finished,
}

/// The life of one run.
#[derive(Debug)]
pub struct Machine {
    settings: Settings,
    state: State,
    started_at: Instant,
    /// There were others before us.
    waited: bool,
    /// When `--timeout` is over, or with `--nonblock` `--connect-timeout`, whatever happens in between.
    give_up_at: Option<Instant>,
    /// Until here somebody may hold of whom the servers know no more.
    start_at: Instant,
    crashes: u32,
}

impl Machine {
    /// A run that begins now, and its first effects.
    pub fn start(settings: Settings, now: Instant) -> (Self, Vec<Effect>) {
        let state = State::Connecting { until: Some(now + settings.connect_timeout), reason: None };
        let give_up_at = if settings.nonblock {
            // The lock is free or not, but the servers may take this long to say so.
            Some(now + settings.connect_timeout)
        } else {
            settings.timeout.map(|timeout| now + timeout)
        };
        let machine = Self { settings, state, started_at: now, waited: false, give_up_at, start_at: now, crashes: 0 };
        (machine, vec![Effect::StartKeeper])
    }

    /// When [`Event::Timer`] is due, if ever.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Connecting { until: Some(until), .. } => {
                Some(self.give_up_at.map_or(*until, |give_up_at| give_up_at.min(*until)))
            }
            State::Connecting { until: None, .. } | State::Queued { .. } => self.give_up_at,
            State::Held { judge_at, .. } => Some(self.give_up_at.map_or(*judge_at, |at| at.min(*judge_at))),
            State::Running(run) => Some(run.deadline()),
            State::Stopping { terms, cause, kill_at } => Some(cause.deadline(*terms, *kill_at)),
            State::Killing { terms, cause, again_at, .. } => Some(cause.deadline(*terms, *again_at)),
            State::Releasing(release) => Some(release.until),
            State::Outlasted(_) | State::Finished => None,
        }
    }

    /// Whose end is waited for, once the command itself has ended.
    pub fn awaits(&self) -> Option<Awaited> {
        match &self.state {
            State::Running(run) if run.ended.is_none() => None,
            State::Running(_) if !self.settings.wait_descendants => Some(Awaited::Borrowers),
            State::Running(_) | State::Stopping { .. } | State::Killing { .. } => Some(Awaited::Everyone),
            _ => None,
        }
    }

    /// What happens next.
    pub fn step(&mut self, now: Instant, event: Event) -> Vec<Effect> {
        let state = std::mem::replace(&mut self.state, State::Finished);
        let (state, effects) = match state {
            State::Connecting { until, reason } => self.connecting(now, until, reason, event),
            State::Queued { terms, view, silence } => self.queued(now, terms, view, silence, event),
            State::Held { terms, grant, judge_at } => self.held(now, terms, grant, judge_at, event),
            State::Running(run) => self.running(now, run, event),
            State::Stopping { terms, cause, kill_at } => self.stopping(now, terms, cause, kill_at, event),
            State::Killing { terms, cause, again_at, pause } => self.killing(now, terms, cause, again_at, pause, event),
            State::Releasing(release) => Self::releasing(now, release, event),
            State::Outlasted(outcome) => Self::outlasted(outcome, event),
            State::Finished => (State::Finished, vec![]),
        };
        self.state = state;
        effects
    }

    fn connecting(
        &mut self,
        now: Instant,
        until: Option<Instant>,
        reason: Option<String>,
        event: Event,
    ) -> (State, Vec<Effect>) {
        match event {
            Event::Keeper(Report::Unreachable(reason)) => {
                let say = Effect::Say(Notice::Connecting(reason.clone()));
                (State::Connecting { until, reason: Some(reason) }, vec![say])
            }
            Event::Keeper(Report::Connected { timeout }) => self.connected(now, timeout),
            Event::Keeper(Report::Refused(refusal)) => refused(now, refusal),
            Event::Keeper(Report::Lost(loss)) => requeue(loss),
            Event::KeeperGone => self.keeper_crashed((State::Connecting { until, reason }, vec![Effect::StartKeeper])),
            Event::Signal { signal, .. } => match at_leisure(now, signal) {
                Some(next) => next,
                None => (State::Connecting { until, reason }, stop_self(signal)),
            },
            Event::Timer if self.give_up_at.is_some_and(|at| at <= now) => {
                self.unavailable(now, Blocker::Servers(reason))
            }
            Event::Timer if until.is_some_and(|at| at <= now) => unreachable(now, reason),
            _ => (State::Connecting { until, reason }, vec![]),
        }
    }

    fn connected(&self, now: Instant, timeout: Duration) -> (State, Vec<Effect>) {
        match Terms::new(timeout, self.settings.kill_after) {
            Ok(terms) => {
                let mut effects = vec![];
                if timeout != self.settings.session_timeout {
                    effects.push(Effect::Say(Notice::Granted(timeout)));
                }
                if terms.is_impatient() {
                    effects.push(Effect::Say(Notice::Impatient(terms)));
                }
                (State::Queued { terms, view: None, silence: None }, effects)
            }
            Err(no_room) => {
                give_up(now, Outcome::Usage, vec![Effect::Say(Notice::NoRoom { no_room, granted: timeout })])
            }
        }
    }

    fn queued(
        &mut self,
        now: Instant,
        terms: Terms,
        view: Option<View>,
        silence: Option<String>,
        event: Event,
    ) -> (State, Vec<Effect>) {
        match event {
            Event::Keeper(Report::Connected { timeout } | Report::Shortened { timeout, .. }) => {
                let back = silence.map(|_| Effect::Say(Notice::Reconnected));
                (State::Queued { terms: self.regranted(timeout), view, silence: None }, back.into_iter().collect())
            }
            // Who is before us is hearsay from now on.
            Event::Keeper(Report::Unreachable(reason)) => {
                let say = Effect::Say(Notice::Connecting(reason.clone()));
                (State::Queued { terms, view: None, silence: Some(reason) }, vec![say])
            }
            Event::Keeper(Report::Waiting(view)) if self.settings.nonblock => {
                let outcome = Outcome::NotFree(self.settings.conflict_exit_code);
                give_up(now, outcome, vec![Effect::Say(Notice::NotFree(view))])
            }
            Event::Keeper(Report::Waiting(view)) => {
                self.waited = true;
                let say = Effect::Say(Notice::Waiting(view.clone()));
                (State::Queued { terms, view: Some(view), silence: None }, vec![say])
            }
            Event::Keeper(Report::Foreign { lock, child }) => {
                (State::Queued { terms, view, silence }, vec![Effect::Say(Notice::Foreign { lock, child })])
            }
            Event::Keeper(Report::Turn) => (State::Queued { terms, view: None, silence }, vec![]),
            Event::Keeper(Report::Requeued(loss)) => {
                (State::Queued { terms, view: None, silence }, vec![Effect::Say(Notice::Requeued(loss))])
            }
            Event::Keeper(Report::Held(_)) if self.settings.nonblock && now < self.start_at => {
                self.unavailable(now, Blocker::OldLease)
            }
            // Not started at once, but when the signals that have come were heard: a command must
            // not be started into a shutdown that has begun.
            Event::Keeper(Report::Held(grant)) => {
                let pause = Some(self.start_at.saturating_since(now)).filter(|pause| !pause.is_zero());
                let say = pause.map(|pause| Effect::Say(Notice::Pausing(pause)));
                (State::Held { terms, grant, judge_at: now.max(self.start_at) }, say.into_iter().collect())
            }
            Event::Keeper(Report::Refused(refusal)) => refused(now, refusal),
            Event::Keeper(Report::Lost(loss)) => self.lost_place(now, terms, loss),
            Event::KeeperGone => self.keeper_crashed(requeue(Loss::SessionExpired)),
            Event::Signal { signal, .. } => match at_leisure(now, signal) {
                Some(next) => next,
                None => (State::Queued { terms, view, silence }, stop_self(signal)),
            },
            Event::Timer if self.give_up_at.is_some_and(|at| at <= now) => match (view, silence) {
                (Some(view), _) => give_up_for(now, view, self.settings.conflict_exit_code),
                (None, Some(reason)) => self.unavailable(now, Blocker::Servers(Some(reason))),
                (None, None) => self.unavailable(now, Blocker::Late),
            },
            _ => (State::Queued { terms, view, silence }, vec![]),
        }
    }

    fn held(
        &mut self,
        now: Instant,
        terms: Terms,
        grant: Grant,
        judge_at: Instant,
        event: Event,
    ) -> (State, Vec<Effect>) {
        match event {
            Event::Keeper(Report::Extended(sent)) => {
                let sent = sent.max(grant.sent);
                (State::Held { terms, grant: Grant { sent, ..grant }, judge_at }, vec![])
            }
            Event::Keeper(Report::Connected { timeout }) => {
                (State::Held { terms: self.regranted(timeout), grant, judge_at }, vec![])
            }
            Event::Keeper(Report::Shortened { timeout, from }) => {
                let sent = from.map_or(grant.sent, |from| from.max(grant.sent));
                (State::Held { terms: self.regranted(timeout), grant: Grant { sent, ..grant }, judge_at }, vec![])
            }
            Event::Timer if now >= judge_at && terms.worth_starting(grant.sent, now) => {
                let waited = self.waited.then(|| now.saturating_since(self.started_at));
                let say = Effect::Say(Notice::Starting { grant: grant.clone(), waited });
                let ends_at = self.settings.max_run.map(|max_run| now + max_run);
                // By then the command would have to be stopped again.
                let until = terms.stop_at(grant.sent);
                let run = Run { terms, sent: grant.sent, answered: grant.sent, ends_at, ended: None, warned: false };
                (State::Running(run), vec![Effect::Spawn { grant, until }, say])
            }
            Event::Timer if self.give_up_at.is_some_and(|at| at <= now) => {
                let blocker = if now < self.start_at { Blocker::OldLease } else { Blocker::Late };
                self.unavailable(now, blocker)
            }
            Event::Timer if now >= judge_at => (State::Held { terms, grant, judge_at: now + JUDGE_AGAIN }, vec![]),
            Event::Keeper(Report::Refused(refusal)) => refused(now, refusal),
            Event::Keeper(Report::Lost(loss)) => self.lost_place(now, terms, loss),
            Event::KeeperGone => self.keeper_crashed(requeue(Loss::SessionExpired)),
            Event::Signal { signal, .. } => match at_leisure(now, signal) {
                Some(next) => next,
                None => (State::Held { terms, grant, judge_at }, stop_self(signal)),
            },
            _ => (State::Held { terms, grant, judge_at }, vec![]),
        }
    }

    /// The terms of another session timeout than before. A `--kill-after` that does not fit it was
    /// not refused at the start, and it is too late for that.
    fn regranted(&self, timeout: Duration) -> Terms {
        Terms::new(timeout, self.settings.kill_after).unwrap_or_else(|_| Terms::with_default_grace(timeout))
    }

    /// The time to wait is over, and no live session says that somebody is before us.
    fn unavailable(&self, now: Instant, blocker: Blocker) -> (State, Vec<Effect>) {
        match blocker {
            // The servers had their own time to answer.
            Blocker::Servers(reason) if self.settings.nonblock => unreachable(now, reason),
            Blocker::Late if self.settings.nonblock => unreachable(now, None),
            blocker => give_up(now, Outcome::Unavailable, vec![Effect::Say(Notice::TimedOut(blocker))]),
        }
    }

    /// The place in the queue is lost, and a new one is taken.
    fn lost_place(&mut self, now: Instant, terms: Terms, loss: Loss) -> (State, Vec<Effect>) {
        if loss == Loss::SessionEnded {
            // Whoever held when the servers lost their data may not have learnt of it, and relies on a
            // lease that is shorter than this.
            self.start_at = self.start_at.max(now + terms.timeout());
        }
        requeue(loss)
    }

    /// The keeper died without a word before the command was started: its place in the queue, if it
    /// had one, is lost, for nobody else can release it before the session expires. `again` follows
    /// unless it has happened too often.
    fn keeper_crashed(&mut self, again: (State, Vec<Effect>)) -> (State, Vec<Effect>) {
        self.crashes += 1;
        if self.crashes < KEEPER_CRASHES {
            return again;
        }
        (State::Finished, vec![Effect::Say(Notice::KeeperDied), Effect::Finish(Outcome::Internal)])
    }
}

/// Begins again with a new session, at the tail of the queue. `--timeout` goes on counting;
/// `--connect-timeout` does not come back, for a server had answered.
fn requeue(loss: Loss) -> (State, Vec<Effect>) {
    let effects = vec![Effect::Say(Notice::Requeued(loss)), Effect::StartKeeper];
    (State::Connecting { until: None, reason: None }, effects)
}

/// No server has answered in time.
fn unreachable(now: Instant, reason: Option<String>) -> (State, Vec<Effect>) {
    let notice = Notice::Unreachable(reason.unwrap_or_else(|| "no answer".to_owned()));
    give_up(now, Outcome::Unavailable, vec![Effect::Say(notice)])
}

fn refused(now: Instant, refusal: Refusal) -> (State, Vec<Effect>) {
    let outcome = match refusal {
        Refusal::Denied(_) => Outcome::Denied,
        Refusal::NoChroot
        | Refusal::Exhausted(_)
        | Refusal::Blind { .. }
        | Refusal::OtherPermits { .. }
        | Refusal::OtherRecipe { .. }
        | Refusal::Upgrade { .. } => Outcome::Unusable,
        Refusal::Server(_) => Outcome::Internal,
    };
    give_up(now, outcome, vec![Effect::Say(Notice::Refused(refusal))])
}

/// Leaves without having run a command.
fn give_up(now: Instant, outcome: Outcome, mut effects: Vec<Effect>) -> (State, Vec<Effect>) {
    effects.push(Effect::Release);
    (State::Releasing(Release::of(Verdict::Known(outcome), now + GIVE_UP_PATIENCE)), effects)
}

/// Leaves at the end of `--timeout` because of those before us, if the session lives: nobody knows before
/// the servers have confirmed the release.
fn give_up_for(now: Instant, view: View, conflict_exit_code: u8) -> (State, Vec<Effect>) {
    let verdict = Verdict::NotFreeIfConfirmed { view, conflict_exit_code };
    (State::Releasing(Release::of(verdict, now + VERDICT_PATIENCE)), vec![Effect::Release])
}

/// Leaves after a command. `frees_within`: what to tell the user when nobody confirms.
fn release(now: Instant, outcome: Outcome, frees_within: Option<Duration>) -> (State, Vec<Effect>) {
    let patience = frees_within.map_or(GIVE_UP_PATIENCE, |timeout| timeout.min(RELEASE_PATIENCE));
    let release = Release { frees_within, ..Release::of(Verdict::Known(outcome), now + patience) };
    (State::Releasing(release), vec![Effect::Release])
}

/// A signal while there is no command: some cancel the wait, the rest have nobody to go to.
fn at_leisure(now: Instant, signal: Signal) -> Option<(State, Vec<Effect>)> {
    cancels(signal).then(|| give_up(now, Outcome::Interrupted(signal), vec![]))
}

/// Whether a signal ends the wait for a lock, as it would end a program that knows nothing of it.
fn cancels(signal: Signal) -> bool {
    [Signal::HUP, Signal::INT, Signal::QUIT, Signal::TERM, Signal::ALRM, Signal::XCPU].contains(&signal)
}

fn stop_self(signal: Signal) -> Vec<Effect> {
    if signal == Signal::TSTP { vec![Effect::StopSelf(signal)] } else { vec![] }
}

#[cfg(test)]
mod tests;
