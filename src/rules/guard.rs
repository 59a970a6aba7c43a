//! What a guard does: it reaps, obeys, and kills when the lease demands it.

use std::time::Duration;

use super::instant::Instant;
use super::lease::Limits;
use super::signal::Signal;

/// Descendants may fork while they are being killed, so SIGKILL goes out again: first after this pause, then after pauses
/// that grow up to the other one.
pub const KILL_AGAIN: Duration = Duration::from_millis(10);
pub const KILL_AGAIN_AT_MOST: Duration = Duration::from_secs(1);

/// A guard looks again after this part of what is left of the lease. So what it knows of the lease is never much older than
/// the last beat, and whatever pause a command survives, its guard survives.
const LOOKS: u32 = 8;

/// A guard looks at a lease no more often than this.
const SHORTEST_LOOK: Duration = Duration::from_millis(10);

/// A guard that kills, and does not get round to the next child for so long, is itself killed by the kernel.
const WORK_AT_MOST: Duration = Duration::from_secs(5);

/// How many times in a row to chase processes that fork and exit faster than they can be killed.
const CHASES: u32 = 100;

/// How many children to reap in a row: processes that fork all the time must not keep the guard from all else.
const REAPS: u32 = 1000;

/// How far a guard has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// There is no command: its process, if it exists, waits at the gate.
    Gated,
    /// The command has been started, and the guard answers for its processes.
    Open,
    /// The same, and the guard has begun to kill them.
    Killing,
    /// The guard has reaped the command and all processes below it.
    Empty,
    /// The command has been reaped, and the guard has left the processes below it alone, as it was told to.
    Left,
}

impl Stage {
    /// Whether the guard answers for nothing any more.
    pub fn is_over(self) -> bool {
        self >= Self::Empty
    }

    /// Whether something of the command may be left, and is the guard's to answer for.
    pub fn is_open(self) -> bool {
        matches!(self, Self::Open | Self::Killing)
    }
}

/// Which processes get a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Targets {
    /// The command, and what shares its process group or that of zklock.
    Group,
    /// Those of the command, or of what it has left behind, that have left the process group of zklock: a signal of the
    /// terminal has not reached them.
    Strayed,
    /// Everything below the guard.
    All,
}

/// What a supervisor asks of a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardRequest {
    Open,
    Signal(Signal, Targets),
    /// Send everything below this signal, and SIGCONT, so that what is stopped can act on it.
    Stop(Signal),
    /// Kill the command and all that is below.
    Kill,
    /// Leave alone what the command has left behind, and go.
    Leave,
}

/// What a guard hears from its supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Request(GuardRequest),
    /// Nothing more for now.
    Nothing,
    /// The supervisor has gone.
    Gone,
}

/// What waitpid(2) tells a guard of its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardReaped {
    /// The command has ended with this status.
    Ended(i32),
    /// The command was stopped by the signal with this number.
    Stopped(i32),
    Other,
    /// No further child has changed.
    NoMore,
    NoneLeft,
}

/// What a guard shows the supervisor and the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    Stage(Stage),
    /// The command has ended with this status of waitpid(2).
    Ended(i32),
    /// The command was stopped by the signal with this number.
    Stopped(i32),
    /// It kills the command because the lease is over, or was revoked.
    LeaseOver,
}

/// What a guard needs from outside. `guard::process` has the real thing, and the simulator of the tests another.
pub trait GuardIo {
    /// Now, on the clock that counts sleep.
    fn now(&self) -> Instant;

    /// When the lease demands SIGKILL, and when it ends.
    fn limits(&self) -> Limits;

    /// Undoes the fuses: the death of the guard, or of the supervisor, kills nothing any more.
    fn disarm(&mut self);

    /// Whether nothing has stopped the command.
    fn ended_by_itself(&self) -> bool;

    /// Has the kernel kill the guard at this instant, unless it is moved by then.
    fn set_timer(&mut self, deadline: Instant);

    fn reap(&mut self) -> GuardReaped;

    fn hear(&mut self) -> Heard;

    /// Shows something for as long as the run lasts.
    fn show(&mut self, sign: Sign);

    /// Wakes the supervisor: something new is shown. Waits for nothing, not even for memory.
    fn tell(&mut self);

    /// Lets the process that waits at the gate become the command.
    fn open_gate(&mut self);

    /// Has the process that waits at the gate exit, if it still waits.
    fn close_gate(&mut self);

    fn signal(&mut self, signal: Signal, whom: Targets);

    /// SIGKILL to the command, to all children, and to those of their process groups that are the command's.
    fn kill_children(&mut self);

    /// SIGKILL to all that can be found below the children. A child that cannot die keeps its own children from becoming
    /// the guard's.
    fn kill_below(&mut self);
}

/// A guard. It lives until nothing is left of the command, or until it is told to leave.
#[derive(Debug, Default)]
pub struct GuardRules {
    /// The gate was opened: from here on the lease counts.
    is_open: bool,
    /// The command has been reaped.
    is_reaped: bool,
    leaves: bool,
    is_orphan: bool,
    killing: Option<Killing>,
    /// There may be more children to reap.
    is_behind: bool,
    /// What has been killed has the processor until then: it needs that to die.
    rests_until: Option<Instant>,
}

#[derive(Clone, Copy, Debug)]
struct Killing {
    /// When SIGKILL goes out again to all that can be found; `None` before the first time.
    again_at: Option<Instant>,
    /// The pause that comes after that.
    pause: Duration,
}

/// What comes after a turn of a guard's loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextTurn {
    /// The next turn, as soon as something happens, and no later than at this instant.
    Wait(Option<Instant>),
    Exit,
}

impl GuardRules {
    /// Whether the supervisor is still to be heard.
    pub fn has_supervisor(&self) -> bool {
        !self.is_orphan
    }

    /// One turn of its loop. Before the first, the fuses are laid, and the command's process waits at the gate.
    pub fn turn(&mut self, outside: &mut impl GuardIo) -> NextTurn {
        if self.reap(outside).is_none() {
            return self.end(outside, Stage::Empty);
        }
        self.obey(outside);
        if self.leaves {
            return self.end(outside, Stage::Left);
        }
        let wake_at = self.enforce(outside);
        // No signal comes again for children that have ended already, so the next turn is at once.
        let again = self.is_behind.then(|| outside.now());
        NextTurn::Wait(again.into_iter().chain(wake_at).min())
    }

    fn end(&self, outside: &mut impl GuardIo, stage: Stage) -> NextTurn {
        // Without an opened gate there was no command, and this guard may have been replaced.
        if self.is_open {
            // What the command has left behind lives on, also where its orphans come to another process than the guard.
            let lasts = self.killing.is_none() && outside.now() < outside.limits().kill_at;
            if stage == Stage::Left || lasts && outside.ended_by_itself() {
                outside.disarm();
            }
            outside.show(Sign::Stage(stage));
        }
        outside.tell();
        NextTurn::Exit
    }

    /// Reaps what has ended. Returns whether that was anything; `None` if nothing is left.
    fn reap(&mut self, outside: &mut impl GuardIo) -> Option<bool> {
        let (mut has_news, mut has_reaped) = (false, false);
        // Until there is no more, or too many have ended for one turn.
        self.is_behind = true;
        for _ in 0..REAPS {
            let sign = match outside.reap() {
                // Told with the end of all: so the supervisor is woken once.
                GuardReaped::NoneLeft => return None,
                GuardReaped::NoMore => {
                    self.is_behind = false;
                    break;
                }
                GuardReaped::Other => {
                    has_reaped = true;
                    continue;
                }
                GuardReaped::Ended(status) => {
                    (self.is_reaped, has_reaped) = (true, true);
                    Sign::Ended(status)
                }
                GuardReaped::Stopped(signal) => Sign::Stopped(signal),
            };
            // Without an opened gate there is no command.
            if self.is_open {
                outside.show(sign);
                has_news = true;
            }
        }
        if has_news {
            outside.tell();
        }
        Some(has_reaped)
    }

    /// Does what the supervisor asks. When the supervisor has gone, all is killed.
    fn obey(&mut self, outside: &mut impl GuardIo) {
        while !self.is_orphan && !self.leaves {
            match outside.hear() {
                Heard::Nothing => return,
                Heard::Request(GuardRequest::Open) => self.open(outside),
                Heard::Request(GuardRequest::Signal(signal, whom)) => outside.signal(signal, whom),
                Heard::Request(GuardRequest::Stop(signal)) => {
                    outside.signal(signal, Targets::All);
                    outside.signal(Signal::CONT, Targets::All);
                }
                Heard::Request(GuardRequest::Kill) => self.begin_to_kill(outside),
                Heard::Request(GuardRequest::Leave) => self.leaves = self.is_reaped,
                Heard::Gone => {
                    self.is_orphan = true;
                    self.begin_to_kill(outside);
                }
            }
        }
    }

    fn open(&mut self, outside: &mut impl GuardIo) {
        if self.killing.is_none() && !std::mem::replace(&mut self.is_open, true) {
            outside.set_timer(outside.limits().ends_at);
            // Before the command can do anything: from here on we answer for it.
            outside.show(Sign::Stage(Stage::Open));
            // A command's process that has gone already is reaped next.
            outside.open_gate();
        }
    }

    fn begin_to_kill(&mut self, outside: &mut impl GuardIo) {
        if self.killing.is_none() {
            outside.close_gate();
            self.killing = Some(Killing { again_at: None, pause: KILL_AGAIN });
            if self.is_open {
                outside.show(Sign::Stage(Stage::Killing));
            }
        }
    }

    /// Kills what is to be killed. Returns when to look again: long before the end of the lease, so that a guard that is
    /// scheduled late has moved its timer in time.
    fn enforce(&mut self, outside: &mut impl GuardIo) -> Option<Instant> {
        let (now, Limits { kill_at, ends_at }) = (outside.now(), outside.limits());
        let lasts = now < kill_at;
        let next_look = now + (ends_at.saturating_since(now) / LOOKS).max(SHORTEST_LOOK);
        if self.killing.is_none() {
            if !self.is_open {
                return None;
            }
            if lasts {
                outside.set_timer(ends_at);
                return Some(kill_at.min(next_look));
            }
            // Before the kill: a command that we killed must not pass for one that ended by itself.
            outside.show(Sign::LeaseOver);
            outside.tell();
            self.begin_to_kill(outside);
        }
        if let Some(until) = self.rests_until.filter(|until| now < *until) {
            Self::postpone(outside);
            return Some(until);
        }
        self.kill(outside);
        let Killing { again_at, pause } = self.killing?;
        let again_at = match again_at {
            Some(at) if now < at => at,
            again_at => {
                if again_at.is_some() {
                    outside.kill_below();
                    Self::postpone(outside);
                }
                let at = now + pause;
                self.killing = Some(Killing { again_at: Some(at), pause: (pause * 2).min(KILL_AGAIN_AT_MOST) });
                at
            }
        };
        let ended = outside.now();
        self.rests_until = Some(ended + ended.saturating_since(now).min(KILL_AGAIN));
        Some(if lasts { again_at.min(next_look) } else { again_at })
    }

    /// Kills again for as long as what has been killed ends meanwhile, because what was below it has come up then.
    fn kill(&mut self, outside: &mut impl GuardIo) {
        for _ in 0..CHASES {
            outside.kill_children();
            Self::postpone(outside);
            if self.reap(outside) != Some(true) {
                return;
            }
        }
    }

    /// Moves the timer of a guard that kills. What its death would kill has had its SIGKILL by now. What had left the command's
    /// group may take longer to die than the rest of the lease, and it comes up to this guard only.
    fn postpone(outside: &mut impl GuardIo) {
        let (Limits { kill_at, ends_at }, now) = (outside.limits(), outside.now());
        outside.set_timer(if now < kill_at { ends_at } else { now + WORK_AT_MOST });
    }
}

#[cfg(test)]
mod tests;
