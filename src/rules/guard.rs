//! What a guard does: it reaps, obeys, and kills when the lease demands it.

use std::time::Duration;

use super::instant::Instant;
use super::lease::Limits;
use super::signal::Signal;

pub use io::{Children, GuardIo, GuardReaped, Heard, Sign};

mod io;

/// Descendants may fork while they are being killed, so SIGKILL goes out again: first after this pause, then after pauses
/// that grow up to the other one.
pub const KILL_AGAIN: Duration = Duration::from_millis(10);
pub const KILL_AGAIN_AT_MOST: Duration = Duration::from_secs(1);

/// A guard looks again after this part of what is left of the lease. So what it knows of the lease is never much older than
/// the last beat, and whatever pause a command survives, its guard survives.
const LOOKS: u32 = 8;

/// A guard looks at a lease no more often than this.
const SHORTEST_LOOK: Duration = Duration::from_millis(10);

/// If a guard that kills does not get to the next child within this time, the kernel kills the guard.
const WORK_AT_MOST: Duration = Duration::from_secs(5);

/// A guard rests for this many times as long as it has killed, because processes need the processor to die.
const RESTS: u32 = 4;

/// How many times in a row to chase processes that fork and exit faster than they can be killed.
const CHASES: u32 = 100;

/// How many children to reap in a row: processes that fork all the time must not keep the guard from everything else.
const REAPS: u32 = 1000;

/// How far a guard has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// There is no command: its process, if it exists, waits at the gate.
    Gated,
    /// The command has been started, and the guard answers for its processes.
    Open,
    /// The guard has begun to kill the command and its descendants.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuardRequest {
    Open,
    Signal(Signal, Targets),
    /// Send everything below this signal, and SIGCONT, so that what is suspended can act on it.
    Stop(Signal),
    Kill,
    /// Leave alone what the command has left behind, and go.
    Leave,
}

/// A guard. It lives until nothing is left of the command, or until it is told to leave.
#[derive(Debug, Default)]
pub struct GuardRules {
    /// The gate was opened: from here on the lease counts.
    is_open: bool,
    /// The command has been reaped.
    is_reaped: bool,
    /// waitpid(2) has said that no child is left (ECHILD).
    has_no_child: bool,
    leaves: bool,
    is_orphan: bool,
    killing: Option<Killing>,
    /// There may be more children to reap.
    is_behind: bool,
    /// Until then the guard rests.
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
        self.obey(outside);
        if self.killing.is_none() && self.reap(outside) {
            return self.exit(outside, Stage::Empty);
        }
        if self.leaves {
            return self.exit(outside, Stage::Left);
        }
        let look_at = self.watch(outside);
        let Some(killing) = self.killing else {
            // No signal comes again for children that have ended already, so the next turn is at once.
            let again = self.is_behind.then(|| outside.now());
            return NextTurn::Wait(again.into_iter().chain(look_at).min());
        };
        match self.kill(outside, killing) {
            Some(again_at) => NextTurn::Wait(look_at.into_iter().chain([again_at]).min()),
            None => self.exit(outside, Stage::Empty),
        }
    }

    fn exit(&self, outside: &mut impl GuardIo, stage: Stage) -> NextTurn {
        assert!(stage != Stage::Empty || self.has_no_child, "only ECHILD proves that nothing is left of the command");
        // Without an opened gate there was no command, and this guard may have been replaced.
        if self.is_open {
            // What the command has left behind lives on, also where its orphans come to another process than the guard.
            let lasts =
                self.killing.is_none() && outside.now() < outside.limits().kill_at && !outside.has_lost_lender();
            if stage == Stage::Left || lasts && outside.ended_by_itself() {
                outside.disarm();
            }
            outside.show(Sign::Stage(stage));
        }
        outside.wake_supervisor();
        NextTurn::Exit
    }

    /// Reaps what has ended. Returns whether nothing is left.
    fn reap(&mut self, outside: &mut impl GuardIo) -> bool {
        let mut has_news = false;
        // Until there is no more, or too many have ended for one turn.
        self.is_behind = true;
        for _ in 0..REAPS {
            if self.killing.is_some() {
                Self::postpone(outside);
            }
            let sign = match outside.reap() {
                // The guard is about to exit, and wakes the supervisor then.
                GuardReaped::NoneLeft => {
                    self.has_no_child = true;
                    return true;
                }
                GuardReaped::NoMore => {
                    self.is_behind = false;
                    break;
                }
                GuardReaped::Other => continue,
                GuardReaped::Ended(status) => {
                    self.is_reaped = true;
                    Sign::Ended(status)
                }
                GuardReaped::Suspended(signal) => Sign::Suspended(signal),
            };
            // Without an opened gate there is no command.
            if self.is_open {
                outside.show(sign);
                has_news = true;
            }
        }
        if has_news {
            outside.wake_supervisor();
        }
        false
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
            let limits = outside.limits();
            outside.set_timers(limits.kill_at, limits.ends_at);
            // Before the command can do anything: from here on the guard answers for it.
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

    /// Begins to kill when the lease demands it. Until then, returns when to look again: long before the end of the lease, so
    /// that a guard that is scheduled late has moved its timers in time.
    fn watch(&mut self, outside: &mut impl GuardIo) -> Option<Instant> {
        if !self.is_open && self.killing.is_none() {
            return None;
        }
        let (now, Limits { kill_at, ends_at }) = (outside.now(), outside.limits());
        if now < kill_at && !outside.has_lost_lender() {
            let next_look = now + (ends_at.saturating_since(now) / LOOKS).max(SHORTEST_LOOK);
            if self.killing.is_some() {
                return Some(next_look);
            }
            outside.set_timers(kill_at, ends_at);
            return Some(kill_at.min(next_look));
        }
        if self.killing.is_none() {
            // Before the kill: a command that the guard has killed must not pass for one that ended by itself.
            outside.show(Sign::LeaseOver);
            outside.wake_supervisor();
            self.begin_to_kill(outside);
        }
        None
    }

    /// One round of killing. Returns when the next one is due; `None` if nothing is left.
    fn kill(&mut self, outside: &mut impl GuardIo, killing: Killing) -> Option<Instant> {
        let began = outside.now();
        if let Some(until) = self.rests_until.filter(|until| began < *until) {
            Self::postpone(outside);
            return Some(until);
        }
        let Killing { again_at, pause } = killing;
        let found = outside.kill_children();
        Self::postpone(outside);
        let goes_below = again_at.is_none_or(|at| at <= began);
        if goes_below {
            // Now, because what is below a process of another PID namespace does not come up when that process dies.
            outside.kill_below();
            Self::postpone(outside);
            let again_at = Some(began + pause);
            self.killing = Some(Killing { again_at, pause: (pause * 2).min(KILL_AGAIN_AT_MOST) });
        }
        let have_ended = Self::chase(outside, found);
        let ended = outside.now();
        self.rests_until = Some(ended + (ended.saturating_since(began) * RESTS).min(KILL_AGAIN));
        // By then, what is left cannot be killed.
        let is_slow = goes_below && pause == KILL_AGAIN_AT_MOST;
        if have_ended || is_slow {
            // The kernel may wait here for a thread that has not quite ended, with the processor that the thread needs.
            outside.share_processor(true);
            let is_empty = self.reap(outside);
            outside.share_processor(false);
            if is_empty {
                return None;
            }
        }
        let again_at = self.killing.and_then(|killing| killing.again_at);
        again_at.into_iter().chain(self.rests_until.filter(|_| self.is_behind)).min()
    }

    /// Kills again for as long as children come up, because what was above them has ended. Returns whether all have ended:
    /// what was below them has come up by then.
    fn chase(outside: &mut impl GuardIo, mut before: Children) -> bool {
        for _ in 0..CHASES {
            let now = outside.kill_children();
            Self::postpone(outside);
            if now.number == before.number {
                return before.have_ended;
            }
            before = now;
        }
        false
    }

    /// Moves the timers of a guard that kills. The processes that the death of the guard would kill have got SIGKILL by now.
    /// Processes outside the command's group may take longer to die than the lease lasts, and only this guard can kill them.
    fn postpone(outside: &mut impl GuardIo) {
        let (Limits { kill_at, ends_at }, now) = (outside.limits(), outside.now());
        outside.set_timers(now + KILL_AGAIN, if now < kill_at { ends_at } else { now + WORK_AT_MOST });
    }
}

#[cfg(test)]
mod tests;
