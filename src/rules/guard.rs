//! What a guard does: it reaps, obeys, and kills when the lease demands it.

use std::time::Duration;

use super::instant::Instant;
use super::signal::Signal;
use calm::Calm;
use watch::{KILL_AGAIN, Verdict, Watch};

mod calm;
mod watch;

/// How many times in a row to chase processes that fork and exit faster than they can be killed, and for how long. The
/// timer has to be moved meanwhile.
const CHASES: u32 = 100;
const CHASE_AT_MOST: Duration = Duration::from_millis(50);

/// A guard that kills, and does not get round to the next child for so long, is itself killed by the kernel.
const WORK_AT_MOST: Duration = Duration::from_secs(5);

/// How many children to reap in a row: processes that fork all the time must not keep the guard from all else.
const REAPS: u32 = 1000;

/// How far a guard has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// There is no command: its process, if it exists, waits at the gate.
    Gated,
    /// The command has been started, and the guard answers for its processes.
    Open,
    /// The guard has reaped the command and all processes below it.
    Empty,
    /// The command has been reaped, and the guard has left the processes below it alone, as it was told to.
    Left,
}

/// What a supervisor asks of a guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Open the gate.
    Open,
    /// Signal the command, or its process group if it has one of its own.
    Signal(Signal),
    /// Kill the command and all that is below.
    Kill,
    /// Leave alone what the command has left behind, and go.
    Leave,
}

/// What a guard hears from its supervisor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// A request.
    Request(Request),
    /// Nothing more for now.
    Nothing,
    /// The supervisor has gone.
    Gone,
}

/// What waitpid(2) tells a guard of its children.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaped {
    /// The command has ended with this status.
    Ended(i32),
    /// The command was stopped by the signal with this number.
    Stopped(i32),
    /// It was another child.
    Other,
    /// No further child has changed.
    NoMore,
    /// There is no child.
    NoneLeft,
}

/// What a guard shows the supervisor and the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// It has come this far.
    Stage(Stage),
    /// The command has ended with this status of waitpid(2).
    Ended(i32),
    /// The command was stopped by the signal with this number.
    Stopped(i32),
    /// It kills the command because the lease is over, or was revoked.
    LeaseOver,
    /// It has sent SIGKILL once more to all that it has found.
    Killed,
}

/// What a guard needs from outside. `guard::process` has the real thing, and the simulator of the tests another.
pub trait Outside {
    /// Now, on the clock that counts sleep.
    fn now(&self) -> Instant;

    /// When the lease demands SIGKILL, and when it ends; both lie in the past where there is no lease.
    fn limits(&self) -> (Instant, Instant);

    /// Ends the lease if a process has died on which a lock that we borrow hangs. Returns whether one has.
    fn heed_lenders(&mut self) -> bool;

    /// Has the kernel kill the command's processes as soon as the guard or the supervisor dies, or such a process.
    fn lay_fuses(&mut self);

    /// Undoes [`Self::lay_fuses`]. From here on the death of the guard kills nothing else, so its timer may go on: it ends
    /// a guard that is stopped before it exits.
    fn disarm(&mut self);

    /// Whether nothing has stopped the command.
    fn ended_by_itself(&self) -> bool;

    /// Has the kernel kill the guard at this instant, unless it is moved by then.
    fn set_timer(&mut self, deadline: Instant);

    /// Whether the guard has a real-time priority.
    fn goes_first(&self) -> bool;

    /// The next child that has changed.
    fn reap(&mut self) -> Reaped;

    /// Only the command's process, if that has changed and has not been reaped.
    fn reap_command(&mut self) -> Reaped;

    /// Whether any child has not ended.
    fn has_living_child(&mut self) -> bool;

    /// The next message of the supervisor.
    fn hear(&mut self) -> Heard;

    /// Lets the runs that we borrow from know that nothing is left that needs their locks, if the supervisor has not.
    fn redeem(&mut self);

    /// Shows something for as long as the run lasts.
    fn show(&mut self, sign: Sign);

    /// Wakes the supervisor: something new is shown. Waits for nothing, not even for memory.
    fn tell(&mut self);

    /// Lets the process that waits at the gate become the command.
    fn open_gate(&mut self);

    /// Has the process that waits at the gate exit, if it still waits.
    fn close_gate(&mut self);

    /// Signals the command, unless it has been reaped.
    fn signal(&mut self, signal: Signal);

    /// SIGKILL to the command's own process group, also once the command has been reaped; or, if it has none, to the command.
    /// That is what the kernel kills if the guard dies.
    fn kill_group(&mut self);

    /// SIGKILL to all children.
    fn kill_children(&mut self);

    /// SIGKILL to all that can be found below the children. A child that cannot die keeps its own children from becoming
    /// the guard's.
    fn kill_below(&mut self);
}

/// A guard. It lives until nothing is left of the command, or until it is told to leave.
///
/// Its functions are not inlined, because their pages are locked in memory ([`Guard::functions`]).
#[derive(Debug)]
pub struct Guard {
    watch: Watch,
    /// The command's process has not been reaped.
    has_command: bool,
    leaves: bool,
    is_orphan: bool,
    /// There may be more children to reap.
    is_behind: bool,
    /// What is being killed has the processor until then.
    rests_until: Instant,
    calm: Calm,
}

/// What comes after a turn of a guard's loop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// The next turn, as soon as something happens, and no later than at this instant.
    Wait(Option<Instant>),
    /// The guard's process exits.
    Exit,
}

impl Guard {
    /// A guard whose command's process has just been made, and waits at the gate.
    pub fn begin(outside: &mut impl Outside) -> Self {
        outside.lay_fuses();
        Self {
            watch: Watch::default(),
            has_command: true,
            leaves: false,
            is_orphan: false,
            is_behind: false,
            rests_until: outside.now(),
            calm: Calm::new(outside.goes_first(), outside.now()),
        }
    }

    /// The functions that a guard needs to work.
    pub fn functions<O: Outside>() -> [*const (); 6] {
        [
            Self::turn::<O> as *const (),
            Self::reap::<O> as *const (),
            Self::obey::<O> as *const (),
            Self::enforce::<O> as *const (),
            Self::kill_all::<O> as *const (),
            Self::postpone::<O> as *const (),
        ]
    }

    /// Whether the supervisor is still to be heard.
    pub fn has_supervisor(&self) -> bool {
        !self.is_orphan
    }

    /// One turn of its loop.
    #[inline(never)]
    pub fn turn<O: Outside>(&mut self, outside: &mut O) -> Next {
        if self.reap(outside).is_none() {
            return self.end(outside, Stage::Empty);
        }
        self.obey(outside);
        if self.leaves {
            return self.end(outside, Stage::Left);
        }
        let wake_at = self.enforce(outside);
        // No signal tells again of children that have ended before.
        let again = self.is_behind.then(|| outside.now());
        Next::Wait(again.into_iter().chain(wake_at).min())
    }

    fn end(&self, outside: &mut impl Outside, stage: Stage) -> Next {
        // Without an opened gate there was no command, and this guard may have been replaced.
        if self.watch.is_open() {
            // What was left may have been killed by the kernel then, after the command had ended well.
            if stage == Stage::Empty && outside.heed_lenders() {
                outside.show(Sign::LeaseOver);
            }
            // What the command has left behind lives on, also where its orphans come to another process than the guard.
            let lasts = !self.watch.is_killing() && outside.now() < outside.limits().0;
            if stage == Stage::Left || lasts && outside.ended_by_itself() {
                outside.disarm();
            }
            outside.show(Sign::Stage(stage));
            // The supervisor may be dead, or die before it does so.
            outside.redeem();
        }
        outside.tell();
        Next::Exit
    }

    /// Reaps what has ended. Returns whether that was anything; `None` if nothing is left.
    #[inline(never)]
    fn reap<O: Outside>(&mut self, outside: &mut O) -> Option<bool> {
        let (mut has_news, mut has_reaped) = (false, false);
        // Until there is no more, or too many have ended for one turn.
        self.is_behind = true;
        for _ in 0..REAPS {
            let reaped = match self.is_calm(outside) {
                false => outside.reap(),
                // The command has a status, which is told in time.
                true if self.has_command => outside.reap_command(),
                true => Reaped::NoMore,
            };
            let sign = match reaped {
                // Told with the end of all: so the supervisor is woken once.
                Reaped::NoneLeft => return None,
                Reaped::NoMore => {
                    self.is_behind = false;
                    break;
                }
                Reaped::Other => {
                    has_reaped = true;
                    self.calm.count(outside.now());
                    continue;
                }
                Reaped::Ended(status) => {
                    (self.has_command, has_reaped) = (false, true);
                    // The kernel has killed it then, and that is no end of its own. What is left of it must go as well.
                    if self.watch.is_open() && outside.heed_lenders() {
                        outside.show(Sign::LeaseOver);
                    }
                    Sign::Ended(status)
                }
                Reaped::Stopped(signal) => Sign::Stopped(signal),
            };
            // Without an opened gate there is no command.
            if self.watch.is_open() {
                outside.show(sign);
                has_news = true;
            }
        }
        if has_news {
            outside.tell();
        }
        Some(has_reaped)
    }

    /// Whether no child but the command is reaped now.
    #[inline(always)] // Its page is then that of its caller, which is locked in memory.
    fn is_calm<O: Outside>(&mut self, outside: &mut O) -> bool {
        if !self.calm.holds(outside.now(), outside.limits().0) {
            return false;
        }
        let is_any_alive = outside.has_living_child();
        if !is_any_alive {
            // Nothing is left that could fork, or could have to be killed. The last end has woken us.
            self.calm.end();
        }
        is_any_alive
    }

    /// Does what the supervisor asks. When the supervisor has gone, all is killed.
    #[inline(never)]
    fn obey<O: Outside>(&mut self, outside: &mut O) {
        while !self.is_orphan && !self.leaves {
            match outside.hear() {
                Heard::Nothing => return,
                Heard::Request(Request::Open) => self.open(outside),
                Heard::Request(Request::Signal(signal)) => outside.signal(signal),
                Heard::Request(Request::Kill) => self.kill(outside),
                Heard::Request(Request::Leave) => self.leaves = !self.has_command,
                Heard::Gone => {
                    self.is_orphan = true;
                    self.kill(outside);
                }
            }
        }
    }

    fn open(&mut self, outside: &mut impl Outside) {
        if self.watch.open() {
            outside.set_timer(outside.limits().1);
            // Before the command can do anything: from here on we answer for it.
            outside.show(Sign::Stage(Stage::Open));
            // A command's process that has gone already is reaped next.
            outside.open_gate();
        }
    }

    fn kill(&mut self, outside: &mut impl Outside) {
        outside.close_gate();
        self.watch.kill();
    }

    /// Kills what is to be killed. Returns when to look again.
    #[inline(never)]
    fn enforce<O: Outside>(&mut self, outside: &mut O) -> Option<Instant> {
        // What waits at the gate is killed by the kernel. Its keeper may go on with a lock of its own.
        if self.watch.is_open() {
            outside.heed_lenders();
        }
        if outside.now() < self.rests_until {
            Self::postpone(outside);
            return Some(self.rests_until);
        }
        let (kill_at, ends_at) = outside.limits();
        match self.watch.judge(outside.now(), kill_at, ends_at) {
            Verdict::Idle => None,
            Verdict::Watch { look_at, deadline } => {
                outside.set_timer(deadline);
                Some(look_at)
            }
            Verdict::Kill { lease_over, again, wake_at, deadline } => {
                if let Some(deadline) = deadline {
                    outside.set_timer(deadline);
                }
                if lease_over && self.watch.is_open() {
                    // Before the kill: a command that we killed must not pass for one that ended by itself.
                    outside.show(Sign::LeaseOver);
                    outside.tell();
                }
                let began = outside.now();
                self.kill_all(outside);
                if again {
                    outside.kill_below();
                    Self::postpone(outside);
                    self.rest(outside, began);
                }
                outside.show(Sign::Killed);
                Some(wake_at)
            }
        }
    }

    /// Kills again for as long as what has been killed ends meanwhile, because what was below it has come up then. If
    /// nothing ends, it may need the processor that we are on.
    #[inline(never)]
    fn kill_all<O: Outside>(&mut self, outside: &mut O) {
        outside.kill_group();
        Self::postpone(outside);
        let began = outside.now();
        let mut from = began;
        for _ in 0..CHASES {
            outside.kill_children();
            Self::postpone(outside);
            if self.reap(outside) != Some(true) {
                return self.rest(outside, from);
            }
            from = outside.now();
            if from >= began + CHASE_AT_MOST {
                return;
            }
        }
    }

    /// Rests for as long as it has worked since then.
    fn rest(&mut self, outside: &impl Outside, from: Instant) {
        let now = outside.now();
        self.rests_until = now + now.saturating_since(from).min(KILL_AGAIN);
    }

    /// Moves the timer of a guard that works. What the death of the guard would kill has had its SIGKILL by now. What had
    /// left the command's group may take longer to die than the rest of the lease, and it comes up to this guard only.
    #[inline(never)]
    fn postpone<O: Outside>(outside: &mut O) {
        let ((kill_at, ends_at), now) = (outside.limits(), outside.now());
        outside.set_timer(if now < kill_at { ends_at } else { now + WORK_AT_MOST });
    }
}

#[cfg(test)]
mod tests;
