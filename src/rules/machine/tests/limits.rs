//! What ends a command besides itself and the loss of the lock, and what comes after it.

use super::*;
use crate::rules::lease::DEFAULT_KILL_AFTER;

/// A run with `--max-run` of one minute, at the end of that minute; the lock is held by beats all the while.
fn ran_out(settings: Settings) -> Harness {
    let mut run = Harness::running(Settings { max_run: Some(Duration::from_secs(60)), ..settings });
    for _ in 0..6 {
        assert!(!run.doomed);
        run.pass(Duration::from_secs(10));
        run.beat();
    }
    assert!(run.doomed && !run.killed);
    assert!(run.said(|notice| *notice == Notice::MaxRun(Duration::from_secs(60))));
    run
}

#[test]
fn max_run_stops_then_kills_then_ends_in_124() {
    let mut run = ran_out(settings());
    run.pass(Duration::from_millis(4999));
    assert!(!run.killed);
    run.pass(Duration::from_millis(1));
    assert!(run.killed);
    run.event(Event::Command(CommandEvent::Ended(CommandEnd::Signaled(Signal::KILL))));
    assert!(!run.released, "descendants may be left");
    run.event(Event::Command(CommandEvent::TreeGone));
    assert!(run.released);
    run.event(Event::Keeper(Report::Released { was_busy: true }));
    assert_eq!(run.finished, Some(Outcome::RanOut));
    assert_eq!(run.notices.len(), 2, "that it started, and why it was stopped: {:?}", run.notices);
}

#[test]
fn a_clean_end_after_max_run_is_still_124() {
    let mut run = ran_out(settings());
    run.event(Event::Command(CommandEvent::Ended(CommandEnd::Exited(0))));
    run.event(Event::Command(CommandEvent::TreeGone));
    run.event(Event::Keeper(Report::Released { was_busy: true }));
    assert_eq!(run.finished, Some(Outcome::RanOut));
}

#[test]
fn without_a_grace_max_run_kills_at_once() {
    let settings = Settings { kill_after: Some(Duration::ZERO), max_run: Some(Duration::from_secs(1)), ..settings() };
    let mut run = Harness::running(settings);
    run.pass(Duration::from_secs(1));
    assert!(run.killed);
}

#[test]
fn signals_go_on_to_a_command_that_has_run_out() {
    let mut run = ran_out(settings());
    let now = run.now;
    let mut sent = |shared| run.machine.step(now, Event::Signal { signal: Signal::INT, shared });
    assert_eq!(sent(false), [command(Signal::INT)]);
    assert_eq!(sent(true), [outside(Signal::INT)]);
}

#[test]
fn a_loss_after_max_run_is_76() {
    let told = [Event::Keeper(Report::Lost(Loss::NodeDeleted)), Event::KeeperGone];
    for (event, killed) in told.into_iter().zip([true, false]) {
        let mut run = ran_out(settings());
        run.event(event);
        assert_eq!(run.killed, killed);
        assert!(run.said(|notice| matches!(notice, Notice::Lost(_))));
        run.pass(Duration::from_secs(5));
        assert!(run.killed);
        run.event(Event::Command(CommandEvent::Ended(CommandEnd::Signaled(Signal::KILL))));
        run.event(Event::Command(CommandEvent::TreeGone));
        run.pass(GIVE_UP_PATIENCE);
        assert_eq!(run.finished, Some(Outcome::Lost));
    }
}

#[test]
fn a_holder_that_is_asked_to_give_up_stops_then_kills_then_ends_in_76() {
    let mut run = Harness::running(settings());
    run.event(Event::Keeper(Report::Revoked(Revoker::User(Some("ops@db1".to_owned())))));
    assert!(run.doomed && !run.killed);
    // The lock is held meanwhile.
    run.beat();
    run.pass(Duration::from_millis(4999));
    assert!(!run.killed);
    run.pass(Duration::from_millis(1));
    assert!(run.killed);
    run.event(Event::Command(CommandEvent::Ended(CommandEnd::Signaled(Signal::KILL))));
    assert!(!run.released, "descendants may be left");
    run.event(Event::Command(CommandEvent::TreeGone));
    assert!(run.released);
    // The same patience as after any other command: the node is still there.
    run.pass(GIVE_UP_PATIENCE);
    assert_eq!(run.finished, None);
    run.event(Event::Keeper(Report::Released { was_busy: true }));
    assert_eq!(run.finished, Some(Outcome::Lost));
    let told = Notice::Revoked { by: Revoker::User(Some("ops@db1".to_owned())), stops: true };
    assert_eq!(run.notices[1..], [told]);
}

#[test]
fn a_loss_after_a_request_to_give_up_kills_at_once() {
    let mut run = Harness::running(settings());
    run.event(Event::Keeper(Report::Revoked(Revoker::User(None))));
    run.event(Event::Keeper(Report::Lost(Loss::NodeDeleted)));
    assert!(run.killed);
}

#[test]
fn a_contender_without_a_command_that_is_asked_to_give_up_leaves() {
    for holds in [false, true] {
        let mut run = Harness::new(settings());
        run.event(Event::Keeper(Report::Connection(Connectivity::Connected(TIMEOUT))));
        if holds {
            run.held();
        } else {
            run.event(Event::Keeper(Report::Queue(Progress::Waiting(view()))));
        }
        run.event(Event::Keeper(Report::Revoked(Revoker::User(None))));
        assert!(run.released && !run.spawned);
        run.event(Event::Keeper(Report::Released { was_busy: true }));
        assert_eq!(run.finished, Some(Outcome::Lost));
        assert!(run.said(|notice| *notice == Notice::Revoked { by: Revoker::User(None), stops: false }));
    }
}

#[test]
fn the_grace_of_max_run_extends_no_lease() {
    // The stop signal for silence would be due half a second later.
    let max_run = lease(START).stop_at().saturating_since(START) - Duration::from_millis(500);
    let mut run = Harness::running(Settings { max_run: Some(max_run), ..settings() });
    run.pass(max_run);
    assert!(run.said(|notice| matches!(notice, Notice::MaxRun(_))));
    run.pass(DEFAULT_KILL_AFTER);
    assert!(run.killed && !run.said(|notice| matches!(notice, Notice::Lost(_))), "the lease lasts longer");
    // What cannot be killed outlives the lease; that is said once.
    run.pass(Duration::from_secs(60));
    assert_eq!(run.notices.iter().filter(|notice| matches!(notice, Notice::Lost(LostWhy::Silence { .. }))).count(), 1);
    run.event(Event::Command(CommandEvent::Ended(CommandEnd::Signaled(Signal::KILL))));
    run.event(Event::Command(CommandEvent::TreeGone));
    run.event(Event::Keeper(Report::Released { was_busy: true }));
    assert_eq!(run.finished, Some(Outcome::Lost));
}

#[test]
fn the_end_of_the_lease_cuts_the_grace() {
    let terms = Terms::new(TIMEOUT, Some(Duration::from_secs(10))).unwrap();
    let kill_after = Some(terms.kill_after());
    let max_run = Lease::new(terms, START).stop_at().saturating_since(START) - Duration::from_millis(1);
    let mut run = Harness::running(Settings { kill_after, max_run: Some(max_run), ..settings() });
    run.pass(max_run);
    // A server grants less than before.
    run.extend(START, TIMEOUT / 2);
    run.pass(Duration::from_secs(1));
    assert!(run.killed);
    assert!(run.said(|notice| matches!(notice, Notice::Lost(LostWhy::Silence { .. }))));
}

/// As in [`a_silence_is_as_long_as_nothing_was_answered`](super), while the command is being stopped.
#[test]
fn a_silence_after_max_run_is_as_long() {
    let max_run = lease(START).stop_at().saturating_since(START) - Duration::from_millis(1);
    let answered = Duration::from_secs(3);
    let mut run = Harness::running(Settings { max_run: Some(max_run), ..settings() });
    run.pass(answered);
    run.machine.answer(run.now);
    run.pass(max_run - answered);
    assert!(run.doomed && !run.killed);
    // With what a server grants now, the lease is over.
    run.extend(START, TIMEOUT / 2);
    run.pass(Duration::ZERO);
    let lost = Notice::Lost(LostWhy::Silence { silence: max_run - answered, age: max_run });
    assert!(run.said(|notice| *notice == lost), "{:?}", run.notices);
}

#[test]
fn a_shorter_timeout_comes_with_its_lease() {
    // By now a lease that still counted from START would be over under the new timeout. So the timeout and
    // the new start must come together: the timeout alone would stop the command at once.
    let (timeout, from) = (Duration::from_secs(6), START + Duration::from_secs(8));
    let mut run = Harness::running(settings());
    run.pass(Duration::from_secs(9));
    run.extend(from, timeout);
    let remaining = Lease::new(Terms::new(timeout, None).unwrap(), from).stop_at().saturating_since(run.now);
    run.pass(remaining - Duration::from_millis(1));
    assert!(!run.doomed);
    run.pass(Duration::from_millis(1));
    assert!(run.doomed);
}

/// It is no answer to a beat.
#[test]
fn a_shorter_timeout_ends_no_silence() {
    let mut run = Harness::running(settings());
    run.pass(lease(START).warn_at().saturating_since(START));
    assert!(run.said(|notice| matches!(notice, Notice::Silent { .. })), "{:?}", run.notices);
    run.extend(run.now, TIMEOUT / 2);
    assert!(!run.said(|notice| *notice == Notice::Back));
    run.extend(run.now, TIMEOUT / 2);
    assert!(run.said(|notice| *notice == Notice::Back));
}

#[test]
fn a_shorter_timeout_shortens_the_grace() {
    // By now the beats have stopped for long enough that the command was asked to end.
    let (timeout, stop_at) = (Duration::from_secs(2), lease(START).stop_at());
    let mut run = Harness::running(settings());
    run.pass(stop_at.saturating_since(START));
    assert!(run.doomed && !run.killed);
    let from = stop_at - Duration::from_millis(500);
    let kill_at = Lease::new(Terms::new(timeout, None).unwrap(), from).kill_at();
    assert!(kill_at < lease(START).kill_at());
    // A later lease does not give back what the stop signal has taken.
    for from in [from, stop_at] {
        run.extend(from, timeout);
    }
    run.pass(kill_at.saturating_since(stop_at) - Duration::from_millis(1));
    assert!(!run.killed);
    run.pass(Duration::from_millis(1));
    assert!(run.killed);
}

/// A run that waits for descendants, whose command has ended with status 3.
fn left_behind(settings: Settings) -> Harness {
    let mut run = Harness::running(Settings { wait_descendants: true, ..settings });
    run.event(Event::Command(CommandEvent::Ended(CommandEnd::Exited(3))));
    assert!(!run.released && run.machine.awaits().is_some());
    run
}

#[test]
fn wait_descendants_keeps_the_lock() {
    let mut run = left_behind(settings());
    for _ in 0..10 {
        run.pass(Duration::from_secs(19));
        run.beat();
    }
    assert!(!run.doomed && !run.released);
    run.event(Event::Command(CommandEvent::TreeGone));
    assert!(run.released);
    run.event(Event::Keeper(Report::Released { was_busy: true }));
    assert_eq!(run.finished, Some(Outcome::Exited(3)));
}

#[test]
fn descendants_do_not_keep_the_lock_by_default() {
    let mut run = Harness::running(settings());
    run.event(Event::Command(CommandEvent::Ended(CommandEnd::Exited(3))));
    assert!(run.released);
}

#[test]
fn descendants_are_killed_with_the_lease() {
    let mut run = left_behind(settings());
    run.pass(TIMEOUT);
    assert!(run.killed && !run.released);
    run.event(Event::Command(CommandEvent::TreeGone));
    run.event(Event::Keeper(Report::Released { was_busy: true }));
    assert_eq!(run.finished, Some(Outcome::Lost));
}

#[test]
fn max_run_covers_descendants() {
    let mut run = left_behind(Settings { max_run: Some(Duration::from_secs(15)), ..settings() });
    run.pass(Duration::from_secs(15));
    assert!(run.doomed);
    run.event(Event::Command(CommandEvent::TreeGone));
    run.event(Event::Keeper(Report::Released { was_busy: true }));
    assert_eq!(run.finished, Some(Outcome::RanOut));
}

#[test]
fn signals_reach_descendants_after_the_command() {
    let mut run = left_behind(settings());
    let now = run.now;
    let mut sent = |signal, shared| run.machine.step(now, Event::Signal { signal, shared });
    assert_eq!(sent(Signal::TERM, false), [command(Signal::TERM)]);
    assert_eq!(sent(Signal::INT, true), [outside(Signal::INT)]);
    assert_eq!(sent(Signal::TSTP, true), [Effect::SuspendSelf(Signal::TSTP)]);
    assert_eq!(sent(Signal::TSTP, false), [command(Signal::TSTP)]);
}

#[test]
fn a_command_that_is_to_stop_at_the_gate_never_begins() {
    let max_run = Some(Duration::from_secs(1));
    let lost = Event::Keeper(Report::Lost(Loss::NodeDeleted));
    let revoked = Event::Keeper(Report::Revoked(Revoker::User(None)));
    let ends = [
        (Event::Timer, Outcome::RanOut),
        (Event::KeeperGone, Outcome::Lost),
        (Event::Command(CommandEvent::LeaseOver), Outcome::Lost),
        (lost, Outcome::Lost),
        (revoked, Outcome::Lost),
    ];
    for (event, outcome) in ends {
        for kill_after in [None, Some(Duration::ZERO)] {
            let mut run = Harness::new(Settings { max_run, kill_after, ..settings() });
            run.gate_is_stuck = true;
            run.event(Event::Keeper(Report::Connection(Connectivity::Connected(TIMEOUT))));
            run.held();
            run.pass(Duration::ZERO);
            if event == Event::Timer {
                run.pass(Duration::from_secs(1));
            } else {
                run.event(event.clone());
            }
            assert!(run.unstarted && !run.doomed && run.released);
            // Why it was to stop, and that it had not begun.
            assert_eq!(run.notices.len(), 3, "{:?}", run.notices);
            assert_eq!(run.notices[2], Notice::NotBegun);
            run.event(Event::Keeper(Report::Released { was_busy: true }));
            assert_eq!(run.finished, Some(outcome));
        }
    }
}

#[test]
fn a_start_that_came_too_late_is_a_loss() {
    // The child that was to become the command is heard of before the end of the lease, after it, or after SIGKILL.
    let silence = lease(START).stop_at().saturating_since(START);
    for silence in [Duration::ZERO, silence, silence + DEFAULT_KILL_AFTER] {
        let mut run = Harness::running(settings());
        run.pass(silence);
        run.alive = false;
        run.event(Event::Command(CommandEvent::StartFailed(Unstarted::TooLate)));
        // If a loss has been told before, no second reason is.
        let told = if silence.is_zero() { Notice::TooLate } else { Notice::NotBegun };
        assert!(run.released && run.said(|notice| *notice == told));
        run.event(Event::Keeper(Report::Released { was_busy: true }));
        assert_eq!(run.finished, Some(Outcome::Lost));
    }
}
