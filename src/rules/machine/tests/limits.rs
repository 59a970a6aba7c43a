//! What ends a command besides itself and the loss of the lock, and what comes after it.

use super::*;
use crate::rules::lease::DEFAULT_KILL_AFTER;

/// A run that may last for a minute, which is over; the lock is held by beats all the while.
fn ran_out(settings: Settings) -> World {
    let mut world = World::running(Settings { max_run: Some(Duration::from_secs(60)), ..settings });
    for _ in 0..6 {
        assert!(!world.doomed);
        world.pass(Duration::from_secs(10));
        world.beat();
    }
    assert!(world.doomed && !world.killed);
    assert!(world.said(|notice| *notice == Notice::MaxRun(Duration::from_secs(60))));
    world
}

#[test]
fn after_max_run_come_the_stop_signal_then_sigkill_then_124() {
    let mut world = ran_out(settings());
    world.pass(Duration::from_millis(4999));
    assert!(!world.killed);
    world.pass(Duration::from_millis(1));
    assert!(world.killed);
    world.event(Event::Command(CommandEvent::Ended(CommandEnd::Signaled(Signal::KILL))));
    assert!(!world.released, "descendants may be left");
    world.event(Event::Command(CommandEvent::TreeGone));
    assert!(world.released);
    world.event(Event::Keeper(Report::Released));
    assert_eq!(world.finished, Some(Outcome::RanOut));
    assert_eq!(world.notices.len(), 2, "that it started, and why it was stopped: {:?}", world.notices);
}

#[test]
fn a_command_that_ends_well_on_the_stop_signal_has_run_out_all_the_same() {
    let mut world = ran_out(settings());
    world.event(Event::Command(CommandEvent::Ended(CommandEnd::Exited(0))));
    world.event(Event::Command(CommandEvent::TreeGone));
    world.event(Event::Keeper(Report::Released));
    assert_eq!(world.finished, Some(Outcome::RanOut));
}

#[test]
fn without_a_grace_max_run_kills_at_once() {
    let settings = Settings { kill_after: Some(Duration::ZERO), max_run: Some(Duration::from_secs(1)), ..settings() };
    let mut world = World::running(settings);
    world.pass(Duration::from_secs(1));
    assert!(world.killed);
}

#[test]
fn signals_go_on_to_a_command_that_has_run_out() {
    let mut world = ran_out(settings());
    let now = world.now;
    let mut sent = |shared| world.machine.step(now, Event::Signal { signal: Signal::INT, shared });
    assert_eq!(sent(false), [Effect::Forward(Signal::INT)]);
    assert_eq!(sent(true), []);
}

#[test]
fn a_lock_that_is_lost_after_max_run_is_a_lost_lock() {
    let told = [Event::Keeper(Report::Lost(Loss::NodeDeleted)), Event::KeeperGone];
    for (event, killed) in told.into_iter().zip([true, false]) {
        let mut world = ran_out(settings());
        world.event(event);
        assert_eq!(world.killed, killed);
        assert!(world.said(|notice| matches!(notice, Notice::Lost(_))));
        world.pass(Duration::from_secs(5));
        assert!(world.killed);
        world.event(Event::Command(CommandEvent::Ended(CommandEnd::Signaled(Signal::KILL))));
        world.event(Event::Command(CommandEvent::TreeGone));
        world.pass(GIVE_UP_PATIENCE);
        assert_eq!(world.finished, Some(Outcome::Lost));
    }
}

#[test]
fn the_lease_is_not_extended_by_the_grace_after_max_run() {
    // The stop signal for silence would be due half a second later.
    let max_run = lease(START).stop_at().saturating_since(START) - Duration::from_millis(500);
    let mut world = World::running(Settings { max_run: Some(max_run), ..settings() });
    world.pass(max_run);
    assert!(world.said(|notice| matches!(notice, Notice::MaxRun(_))));
    world.pass(DEFAULT_KILL_AFTER);
    assert!(world.killed && !world.said(|notice| matches!(notice, Notice::Lost(_))), "the lease lasts longer");
    // What cannot be killed outlives the lease; that is said once.
    world.pass(Duration::from_secs(60));
    assert_eq!(world.notices.iter().filter(|notice| matches!(notice, Notice::Lost(LostWhy::Silence(_)))).count(), 1);
    world.event(Event::Command(CommandEvent::Ended(CommandEnd::Signaled(Signal::KILL))));
    world.event(Event::Command(CommandEvent::TreeGone));
    world.event(Event::Keeper(Report::Released));
    assert_eq!(world.finished, Some(Outcome::Lost));
}

#[test]
fn a_silence_that_ends_the_lease_kills_before_the_grace_after_max_run_is_over() {
    let terms = Terms::new(TIMEOUT, Some(Duration::from_secs(10))).unwrap();
    let kill_after = Some(terms.kill_after());
    let max_run = Lease::new(terms, START).stop_at().saturating_since(START) - Duration::from_millis(1);
    let mut world = World::running(Settings { kill_after, max_run: Some(max_run), ..settings() });
    world.pass(max_run);
    // A server grants less than before.
    world.event(Event::Keeper(Report::Connected { timeout: TIMEOUT / 2 }));
    world.pass(Duration::from_secs(1));
    assert!(world.killed);
    assert!(world.said(|notice| matches!(notice, Notice::Lost(LostWhy::Silence(_)))));
}

#[test]
fn a_shorter_timeout_comes_with_its_lease() {
    // Later than the lease under the new terms would have ended: the one without the other stops the command at once.
    let (timeout, from) = (Duration::from_secs(6), START + Duration::from_secs(8));
    let mut world = World::running(settings());
    world.pass(Duration::from_secs(9));
    world.event(Event::Keeper(Report::Shortened { timeout, from: Some(from) }));
    let left = Lease::new(Terms::new(timeout, None).unwrap(), from).stop_at().saturating_since(world.now);
    world.pass(left - Duration::from_millis(1));
    assert!(!world.doomed);
    world.pass(Duration::from_millis(1));
    assert!(world.doomed);
}

#[test]
fn a_shorter_timeout_leaves_a_command_that_is_being_stopped_less_time() {
    // By now the beats have stopped for long enough that the command was asked to end.
    let (timeout, stop_at) = (Duration::from_secs(2), lease(START).stop_at());
    let mut world = World::running(settings());
    world.pass(stop_at.saturating_since(START));
    assert!(world.doomed && !world.killed);
    let from = stop_at - Duration::from_millis(500);
    let kill_at = Lease::new(Terms::new(timeout, None).unwrap(), from).kill_at();
    assert!(kill_at < lease(START).kill_at());
    // A later lease does not give back what the stop signal has taken.
    for from in [from, stop_at] {
        world.event(Event::Keeper(Report::Shortened { timeout, from: Some(from) }));
    }
    world.pass(kill_at.saturating_since(stop_at) - Duration::from_millis(1));
    assert!(!world.killed);
    world.pass(Duration::from_millis(1));
    assert!(world.killed);
}

/// A run that waits for descendants, whose command has ended with status 3.
fn left_behind(settings: Settings) -> World {
    let mut world = World::running(Settings { wait_descendants: true, ..settings });
    world.event(Event::Command(CommandEvent::Ended(CommandEnd::Exited(3))));
    assert!(!world.released && world.machine.awaits().is_some());
    world
}

#[test]
fn descendants_that_are_waited_for_keep_the_lock_and_change_no_status() {
    let mut world = left_behind(settings());
    for _ in 0..10 {
        world.pass(Duration::from_secs(19));
        world.beat();
    }
    assert!(!world.doomed && !world.released);
    world.event(Event::Command(CommandEvent::TreeGone));
    assert!(world.released);
    world.event(Event::Keeper(Report::Released));
    assert_eq!(world.finished, Some(Outcome::Exited(3)));
}

#[test]
fn descendants_that_are_not_waited_for_do_not_keep_the_lock() {
    let mut world = World::running(settings());
    world.event(Event::Command(CommandEvent::Ended(CommandEnd::Exited(3))));
    assert!(world.released);
}

#[test]
fn descendants_are_killed_with_the_lease_that_they_keep() {
    let mut world = left_behind(settings());
    world.pass(TIMEOUT);
    assert!(world.killed && !world.released);
    world.event(Event::Command(CommandEvent::TreeGone));
    world.event(Event::Keeper(Report::Released));
    assert_eq!(world.finished, Some(Outcome::Lost));
}

#[test]
fn max_run_counts_on_while_descendants_are_waited_for() {
    let mut world = left_behind(Settings { max_run: Some(Duration::from_secs(15)), ..settings() });
    world.pass(Duration::from_secs(15));
    assert!(world.doomed);
    world.event(Event::Command(CommandEvent::TreeGone));
    world.event(Event::Keeper(Report::Released));
    assert_eq!(world.finished, Some(Outcome::RanOut));
}

#[test]
fn signals_go_on_to_descendants_and_ctrl_z_stops_us_with_them() {
    let mut world = left_behind(settings());
    let now = world.now;
    let mut sent = |signal, shared| world.machine.step(now, Event::Signal { signal, shared });
    assert_eq!(sent(Signal::TERM, false), [Effect::Forward(Signal::TERM)]);
    assert_eq!(sent(Signal::INT, true), []);
    assert_eq!(sent(Signal::TSTP, true), [Effect::StopSelf(Signal::TSTP)]);
    assert_eq!(sent(Signal::TSTP, false), [Effect::Forward(Signal::TSTP)]);
}

/// A run with a command for `--on-lost`, which runs.
fn lost(settings: Settings) -> World {
    let mut world = World::running(settings);
    world.has_on_lost = true;
    world.event(Event::Keeper(Report::Lost(Loss::NodeDeleted)));
    world.event(Event::Command(CommandEvent::Ended(CommandEnd::Signaled(Signal::KILL))));
    assert!(!world.on_lost, "descendants may be left");
    world.event(Event::Command(CommandEvent::TreeGone));
    assert!(world.on_lost_runs);
    world
}

#[test]
fn on_lost_is_waited_for_and_changes_no_status() {
    let mut world = lost(settings());
    world.event(Event::Keeper(Report::Released));
    world.pass(Duration::from_secs(3600));
    assert_eq!(world.finished, None);
    world.event(Event::OnLostEnded);
    assert_eq!(world.finished, Some(Outcome::Lost));
}

#[test]
fn an_end_of_on_lost_before_that_of_the_release_ends_nothing() {
    let mut world = lost(settings());
    world.event(Event::OnLostEnded);
    assert_eq!(world.finished, None);
    world.event(Event::KeeperGone);
    assert_eq!(world.finished, Some(Outcome::Lost));
}

#[test]
fn signals_reach_the_command_of_on_lost_while_the_release_lasts_and_after_it() {
    let mut world = lost(settings());
    let now = world.now;
    for report in [Report::Requeued(Loss::NodeDeleted), Report::Released] {
        world.event(Event::Keeper(report));
        let mut sent = |event| world.machine.step(now, event);
        let signal = Signal::TERM;
        assert_eq!(sent(Event::Signal { signal, shared: false }), [Effect::ForwardToOnLost(signal)]);
        assert_eq!(sent(Event::Signal { signal: Signal::TSTP, shared: true }), []);
        assert_eq!(sent(Event::Command(CommandEvent::Stopped(Signal::TSTP))), [Effect::StopSelf(Signal::TSTP)]);
    }
}

#[test]
fn a_command_that_could_not_be_started_in_time_was_not_stopped_for_a_loss() {
    // The child that was to become the command is heard of before the end of the lease, after it, or after SIGKILL.
    let silence = lease(START).stop_at().saturating_since(START);
    for silence in [Duration::ZERO, silence, silence + DEFAULT_KILL_AFTER] {
        let mut world = World::running(settings());
        world.has_on_lost = true;
        world.pass(silence);
        world.alive = false;
        world.event(Event::Command(CommandEvent::StartFailed(Unstarted::TooLate)));
        assert!(world.released && !world.on_lost && world.said(|notice| matches!(notice, Notice::TooLate)));
        world.event(Event::Keeper(Report::Released));
        assert_eq!(world.finished, Some(Outcome::Lost));
    }
}
