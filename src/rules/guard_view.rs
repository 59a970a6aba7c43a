//! What a supervisor knows of a guard and of the command that the guard answers for, and what follows from it.

use super::event::{CommandEnd, CommandEvent, Event};
use super::guard::Stage;
use super::signal::Signal;

/// A guard that has not begun to kill when it is asked this many times, within 310 ms, does not run, though each request
/// continues it.
const KILLS_BY_GUARD: u32 = 6;

#[derive(Debug, Default)]
pub struct GuardView {
    command: Command,
    /// How the command ended, if the supervisor has reaped it because the guard had died.
    adopted_end: Option<CommandEnd>,
    /// How often the guard has been asked to kill.
    kills: u32,
    /// The guard has been reaped. From then on the processes that it has left are below the supervisor.
    is_reaped: bool,
    /// The death of the guard has been told.
    told_gone: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Command {
    /// It has not been started.
    #[default]
    Gated,
    Started,
    /// Its end has been told.
    Over,
}

/// What has become of the command since this was last asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct News {
    pub suspended: Option<Signal>,
    /// The guard has died with the command still to be answered for.
    pub guard_gone: bool,
    pub ended: Option<CommandFate>,
    /// The command had ended when the guard died.
    pub ended_first: bool,
}

impl News {
    /// What the machine is to be told, in this order. `end`: what the end of the command means.
    pub fn events(self, end: impl FnOnce(CommandFate) -> CommandEvent) -> Vec<Event> {
        let suspended = self.suspended.map(|signal| Event::Command(CommandEvent::Suspended(signal)));
        let gone = self.guard_gone.then_some(Event::Command(CommandEvent::GuardGone));
        let ended = self.ended.map(|ended| Event::Command(end(ended)));
        let [first, second] = if self.ended_first { [ended, gone] } else { [gone, ended] };
        [suspended, first, second].into_iter().flatten().collect()
    }
}

/// How a command can end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CommandFate {
    /// Its process has ended like this, perhaps before it was the command.
    Reaped(CommandEnd),
    /// Its process has not passed the gate: it could not be made, or was killed there.
    Stillborn,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kill {
    AskGuard,
    /// The guard does not run. With its death the kernel kills the command, and the other processes come to the supervisor.
    KillGuard,
    /// The guard has gone: its children are the supervisor's.
    KillChildren,
}

impl GuardView {
    /// The guard was asked to open the gate.
    pub fn start(&mut self) {
        self.command = Command::Started;
    }

    /// The command has been taken back, and will not pass the gate.
    pub fn recall(&mut self) {
        self.command = Command::Gated;
    }

    pub fn is_gated(&self) -> bool {
        self.command == Command::Gated
    }

    /// Whether the command has been started, and its end has not been told.
    pub fn has_command(&self) -> bool {
        self.command == Command::Started
    }

    pub fn guard_reaped(&mut self) {
        self.is_reaped = true;
    }

    pub fn is_reaped(&self) -> bool {
        self.is_reaped
    }

    /// The supervisor has reaped the command's process, because the guard had died.
    pub fn command_reaped(&mut self, end: CommandEnd) {
        self.adopted_end = Some(end);
    }

    /// What is new. `ended`: how the command has ended, if the guard has reaped it. `is_our_child`: whether the command's process
    /// is a child of the supervisor now, alive or not.
    pub fn news(
        &mut self,
        stage: Stage,
        ended: Option<CommandEnd>,
        suspended: Option<Signal>,
        is_our_child: impl FnOnce() -> bool,
    ) -> News {
        if self.is_gated() {
            return News::default();
        }
        let has_fallen = self.is_reaped && stage.is_open();
        let mut news = News { suspended, guard_gone: has_fallen && !self.told_gone, ..News::default() };
        if self.has_command() {
            // What the guard has reaped ended before it died.
            news.ended_first = ended.is_some();
            // An end that the supervisor has seen counts once the guard has gone and has shown none. If neither has seen the end,
            // the guard has reaped the command and died before it could show that.
            let unseen = || (!is_our_child()).then_some(CommandEnd::Signaled(Signal::KILL));
            let end = ended.or_else(|| if has_fallen { self.adopted_end.or_else(unseen) } else { None });
            let stillborn = self.is_reaped && stage == Stage::Gated;
            news.ended = end.map(CommandFate::Reaped).or(stillborn.then_some(CommandFate::Stillborn));
            if news.ended.is_some() {
                self.command = Command::Over;
            }
        }
        self.told_gone |= news.guard_gone;
        news
    }

    /// How to kill the command now. `stage`: how far the guard has come.
    pub fn kill(&mut self, stage: Stage) -> Kill {
        self.kills += 1;
        match stage {
            _ if self.is_reaped => Kill::KillChildren,
            Stage::Gated | Stage::Open if self.kills >= KILLS_BY_GUARD => Kill::KillGuard,
            _ => Kill::AskGuard,
        }
    }

    /// Whether nothing is left of the command. `have_gone`: whether the supervisor has no child left that was the guard's.
    pub fn has_gone(&self, stage: Stage, have_gone: impl FnOnce() -> bool) -> bool {
        // The children of a guard that has died come to the supervisor before the guard is reaped.
        stage == Stage::Empty || (self.is_reaped && have_gone())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KILLED: CommandEnd = CommandEnd::Signaled(Signal::KILL);

    fn started() -> GuardView {
        let mut view = GuardView::default();
        view.start();
        view
    }

    fn died() -> GuardView {
        let mut view = started();
        view.guard_reaped();
        view
    }

    #[test]
    fn an_end_that_the_guard_has_seen_is_told_once() {
        for (mut view, events) in [(started(), 1), (died(), 2)] {
            let end = CommandEnd::Exited(3);
            let news = view.news(Stage::Open, Some(end), None, || false);
            assert_eq!((news.ended_first, news.ended), (true, Some(CommandFate::Reaped(end))));
            assert_eq!(news.events(|_| CommandEvent::Ended(end)).len(), events);
            assert_eq!(view.news(Stage::Empty, Some(end), None, || false), News::default());
        }
    }

    #[test]
    fn a_guard_that_has_died_is_told_once() {
        let mut view = died();
        let news = view.news(Stage::Open, None, None, || true);
        assert_eq!(news, News { guard_gone: true, ..News::default() });
        assert_eq!(view.news(Stage::Open, None, None, || true), News::default());
        view.command_reaped(CommandEnd::Exited(1));
        let news = view.news(Stage::Open, None, None, || false);
        assert_eq!(news, News { ended: Some(CommandFate::Reaped(CommandEnd::Exited(1))), ..News::default() });
    }

    #[test]
    fn an_end_that_was_seen_by_neither_is_a_kill() {
        let news = died().news(Stage::Open, None, None, || false);
        assert_eq!(news, News { guard_gone: true, ended: Some(CommandFate::Reaped(KILLED)), ..News::default() });
    }

    #[test]
    fn a_command_that_has_not_passed_the_gate_is_stillborn() {
        let news = died().news(Stage::Gated, None, None, || false);
        assert_eq!(news, News { ended: Some(CommandFate::Stillborn), ..News::default() });
        // As long as the guard lives, it may still open the gate.
        assert_eq!(started().news(Stage::Gated, None, None, || false), News::default());
        let mut gated = GuardView::default();
        gated.guard_reaped();
        assert_eq!(gated.news(Stage::Gated, None, None, || false), News::default());
    }

    #[test]
    fn a_guard_that_never_kills_is_killed() {
        let mut view = started();
        for _ in 1..KILLS_BY_GUARD {
            assert_eq!(view.kill(Stage::Open), Kill::AskGuard);
        }
        assert_eq!((view.kill(Stage::Killing), view.kill(Stage::Open)), (Kill::AskGuard, Kill::KillGuard));
        view.guard_reaped();
        assert_eq!(view.kill(Stage::Killing), Kill::KillChildren);
    }

    #[test]
    fn nothing_is_left_when_it_was_reaped() {
        assert!(started().has_gone(Stage::Empty, || false));
        assert!(!started().has_gone(Stage::Open, || true));
        assert!(died().has_gone(Stage::Open, || true));
        assert!(!died().has_gone(Stage::Open, || false));
    }
}
