//! The machine under events in any order, and the stories that users know by name.

mod limits;

use proptest::prelude::*;

use super::ending::{GIVE_UP_PATIENCE, HURRIED_PATIENCE, RELEASE_PATIENCE, VERDICT_PATIENCE};
use super::*;
use crate::rules::event::{CommandEnd, CommandEvent, Unstarted};
use crate::rules::guard::Targets;
use crate::rules::last_run::LastRun;
use crate::rules::message::{Connectivity, Grant, GrantedLock, Loss, Progress, QueueView, Refusal, Remark, Revoker};
use crate::rules::notice::{Blocker, LostWhy, Notice};

const START: Instant = Instant::from_boot(Duration::from_secs(1000));
const TIMEOUT: Duration = Duration::from_secs(30);

fn settings() -> Settings {
    Settings {
        patience: Patience::Forever,
        connect_timeout: Duration::from_secs(15),
        session_timeout: TIMEOUT,
        kill_after: None,
        stop_signal: Signal::TERM,
        max_run: None,
        wait_descendants: false,
    }
}

fn terms() -> Terms {
    Terms::new(TIMEOUT, None).unwrap()
}

fn view() -> QueueView {
    QueueView { lock: "/l".to_owned(), place: Some((2, 2)), holder: "db3".to_owned(), held_since: None, free_at: None }
}

fn lease(from: Instant) -> Lease {
    Lease::new(terms(), from)
}

fn grant() -> Grant {
    let first = GrantedLock { lock: "/l".to_owned(), node: "/l/n".to_owned(), token: 7 };
    Grant { first, and: vec![], session: 1 }
}

/// A run as the supervisor drives it, which notes what the effects mean and objects to what must
/// never happen.
struct Harness {
    now: Instant,
    machine: Machine,
    /// The command process exists and has not been reaped.
    alive: bool,
    /// The child never became the command.
    unstarted: bool,
    spawned: bool,
    /// Until when it may start, as long as it waits at the gate.
    gated_until: Option<Instant>,
    /// A command that is started stays at the gate.
    gate_is_stuck: bool,
    /// Something may be left of the command.
    remains: bool,
    /// The end of `--max-run`.
    ends_at: Option<Instant>,
    /// Stop or Kill has gone out and something may be left of the command.
    doomed: bool,
    killed: bool,
    released: bool,
    finished: Option<Outcome>,
    last_beat: Option<Instant>,
    notices: Vec<Notice>,
}

impl Harness {
    fn new(settings: Settings) -> Self {
        Self {
            now: START,
            machine: Machine::start(settings, START),
            alive: false,
            unstarted: false,
            spawned: false,
            gated_until: None,
            gate_is_stuck: false,
            remains: false,
            ends_at: None,
            doomed: false,
            killed: false,
            released: false,
            finished: None,
            last_beat: None,
            notices: vec![],
        }
    }

    /// A run whose command is running.
    fn running(settings: Settings) -> Self {
        let mut run = Self::new(settings);
        run.event(Event::Keeper(Report::Connection(Connectivity::Connected(TIMEOUT))));
        run.held();
        run.pass(Duration::ZERO);
        assert!(run.alive);
        run
    }

    fn held(&mut self) {
        self.last_beat = Some(self.now);
        self.event(Event::Keeper(Report::Queue(Progress::Held {
            grant: Box::new(grant()),
            timeout: TIMEOUT,
            from: self.now,
        })));
    }

    /// The locks are lent to us, under leases that are over.
    fn lent(&mut self) {
        self.last_beat = Some(self.now);
        self.event(Event::Lent(Box::new(grant())));
    }

    fn event(&mut self, event: Event) {
        if matches!(event, Event::Command(CommandEvent::Ended(_) | CommandEvent::EndedLending(_))) {
            self.alive = false;
        }
        if matches!(event, Event::Command(CommandEvent::TreeGone) | Event::Command(CommandEvent::StartFailed(_))) {
            (self.doomed, self.remains) = (false, false);
        }
        self.unstarted |= matches!(event, Event::Command(CommandEvent::StartFailed(_)));
        let before = format!("{:?}", self.machine);
        let effects = self.machine.step(self.now, event.clone());
        let mut taken_back = None;
        for effect in effects {
            assert_eq!(self.finished, None, "{effect:?} after the end, on {event:?} in {before}");
            match effect {
                Effect::Spawn { until, .. } => {
                    assert!(!self.spawned, "a second command");
                    let lease = lease(self.last_beat.expect("a command needs a beat"));
                    assert!(until < lease.kill_at() || self.machine.settings.kill_after.is_some());
                    self.ends_at = self.machine.settings.max_run.map(|max_run| self.now + max_run);
                    assert!(lease.worth_starting(self.now), "started under a lease that is too short");
                    (self.spawned, self.alive, self.remains) = (true, true, true);
                    self.gated_until = Some(until).filter(|_| self.gate_is_stuck);
                }
                Effect::Signal { .. } | Effect::Stop(_) | Effect::Kill if taken_back.is_some() => {}
                Effect::Recall(why) => taken_back = (self.alive && self.gated_until.is_some()).then_some(why),
                Effect::Signal { signal, .. } => {
                    assert!(
                        self.alive || self.doomed || self.waited_for(),
                        "{signal} sent to a command that has been reaped"
                    );
                }
                Effect::Stop(_) => self.doomed = true,
                Effect::Kill => (self.doomed, self.killed) = (true, true),
                Effect::Release => {
                    assert!(!self.alive && !self.doomed, "released with a command, on {event:?} in {before}");
                    assert!(!self.waited_for(), "released with a descendant, on {event:?} in {before}");
                    assert!(!self.released, "released twice");
                    self.released = true;
                }
                Effect::Finish(outcome) => {
                    let ran_out = self.ends_at.is_some_and(|ends_at| self.now >= ends_at);
                    assert!(outcome != Outcome::RanOut || ran_out, "too early for --max-run");
                    assert!(!self.alive && !self.doomed && !self.waited_for(), "finished with a command");
                    self.finished = Some(outcome);
                }
                Effect::QueueAgain => assert!(!self.spawned, "another session although a gate was opened"),
                Effect::Say(notice) => self.notices.push(notice),
                Effect::SuspendSelf(_) | Effect::EndKeeper => {}
            }
        }
        if let Some(why) = taken_back {
            self.alive = false;
            return self.event(Event::Command(CommandEvent::StartFailed(why)));
        }
        if self.alive && !self.doomed && event == Event::Timer {
            let is_late = self.gated_until.is_some_and(|until| self.now > until);
            assert!(!is_late, "the lock is held for a command that cannot start, on {event:?} in {before}");
        }
        if (self.alive || self.waited_for()) && !self.killed {
            let sent = self.last_beat.expect("a command needs a beat");
            assert!(self.now < lease(sent).kill_at(), "the command outlives its lease, on {event:?} in {before}");
            let ran_out = self.ends_at.is_some_and(|ends_at| self.now >= ends_at);
            assert!(self.doomed || !ran_out, "the command outlives --max-run, on {event:?} in {before}");
        }
    }

    /// Whether something may be left of the command that is to be waited for.
    fn waited_for(&self) -> bool {
        self.remains && self.machine.settings.wait_descendants
    }

    /// A beat that is answered at once.
    fn beat(&mut self) {
        self.last_beat = Some(self.now);
        self.extend(self.now, TIMEOUT);
    }

    /// The keeper shows another lease.
    fn extend(&mut self, from: Instant, timeout: Duration) {
        for effect in self.machine.extend(self.now, Terms::span(timeout, from)).into_iter().flatten() {
            let Effect::Say(notice) = effect else { panic!("{effect:?} with a new lease") };
            self.notices.push(notice);
        }
    }

    /// Lets time pass, with the timer on time.
    fn pass(&mut self, time: Duration) {
        let target = self.now + time;
        while let Some(deadline) = self.machine.deadline().filter(|deadline| *deadline <= target) {
            self.now = self.now.max(deadline);
            self.event(Event::Timer);
        }
        self.now = target;
    }

    fn said(&self, wanted: impl Fn(&Notice) -> bool) -> bool {
        self.notices.iter().any(wanted)
    }
}

/// What may happen to a run, in any order.
#[derive(Clone, Debug)]
enum Happening {
    Pass(u64),
    /// The machine is frozen for a while: the timer comes late, but before anything else.
    Freeze(u64),
    Keeper(Report),
    Held,
    Lent,
    Beat,
    KeeperGone,
    CallerGone,
    LeaseOver,
    GuardGone,
    Signal(Signal, bool),
    StartFailed(Unstarted),
    CommandEnds(CommandEnd),
    CommandSuspended,
    TreeGone,
}

fn patience() -> impl Strategy<Value = Patience> {
    prop_oneof![
        Just(Patience::Forever),
        Just(Patience::NoWait),
        (1u64..100_000).prop_map(|millis| Patience::AtMost(Duration::from_millis(millis))),
    ]
}

fn happening() -> impl Strategy<Value = Happening> {
    let signals = [Signal::TERM, Signal::INT, Signal::HUP, Signal::USR1, Signal::CONT, Signal::TSTP];
    let reports = prop_oneof![
        Just(Report::Connection(Connectivity::Unreachable("refused".to_owned()))),
        Just(Report::Connection(Connectivity::Connected(TIMEOUT))),
        Just(Report::Queue(Progress::Waiting(view()))),
        Just(Report::Remark(Remark::Misrecorded("/l".to_owned()))),
        Just(Report::Remark(Remark::Beside(Refusal::NoChroot))),
        Just(Report::Queue(Progress::Turn)),
        Just(Report::Requeued { loss: Loss::NodeDeleted, pause: Duration::ZERO }),
        Just(Report::Lost(Loss::LenderGone)),
        Just(Report::Lost(Loss::NodeDeleted)),
        Just(Report::Lost(Loss::SessionOver)),
        Just(Report::Refused(Refusal::NoChroot)),
        Just(Report::Revoked(Revoker::User(None))),
        Just(Report::Released { was_busy: true }),
    ];
    prop_oneof![
        8 => (0u64..8000).prop_map(Happening::Pass),
        1 => (0u64..60_000).prop_map(Happening::Freeze),
        3 => Just(Happening::Keeper(Report::Connection(Connectivity::Connected(TIMEOUT)))),
        6 => Just(Happening::Held),
        2 => Just(Happening::Lent),
        6 => Just(Happening::Beat),
        3 => reports.prop_map(Happening::Keeper),
        1 => Just(Happening::KeeperGone),
        1 => Just(Happening::CallerGone),
        1 => prop_oneof![Just(Happening::LeaseOver), Just(Happening::GuardGone)],
        3 => (proptest::sample::select(signals.to_vec()), any::<bool>()).prop_map(|(s, k)| Happening::Signal(s, k)),
        1 => Just(Happening::StartFailed(Unstarted::NotFound)),
        1 => Just(Happening::StartFailed(Unstarted::TooLate)),
        1 => Just(Happening::CommandEnds(CommandEnd::Exited(3))),
        1 => Just(Happening::CommandEnds(CommandEnd::Signaled(Signal::KILL))),
        1 => Just(Happening::CommandSuspended),
        3 => Just(Happening::TreeGone),
    ]
}

impl Harness {
    fn apply(&mut self, happening: Happening) {
        match happening {
            Happening::Pass(millis) => self.pass(Duration::from_millis(millis)),
            Happening::Freeze(millis) => {
                let frozen = (self.alive || self.waited_for()) && !self.killed;
                self.now = self.now + Duration::from_millis(millis);
                // Nothing can be done while frozen; what counts is that it is done first afterwards.
                if self.machine.deadline().is_some_and(|deadline| deadline <= self.now) {
                    if frozen && self.last_beat.is_some_and(|sent| self.now >= lease(sent).kill_at()) {
                        self.last_beat = Some(self.now);
                        self.event(Event::Timer);
                        assert!(self.killed || self.unstarted, "woke up past the lease and did not kill");
                    } else {
                        self.event(Event::Timer);
                    }
                }
            }
            Happening::Keeper(report) => self.event(Event::Keeper(report)),
            Happening::Held => {
                if !self.spawned {
                    self.held();
                }
            }
            Happening::Lent => {
                if !self.spawned {
                    self.lent();
                    self.beat();
                }
            }
            Happening::Beat => {
                // The answer may come late; the lease counts from the question.
                let sent = self.last_beat.map_or(self.now, |last| last.max(self.now - Duration::from_millis(700)));
                if self.last_beat.is_some() {
                    self.last_beat = Some(sent);
                }
                self.extend(sent, TIMEOUT);
            }
            Happening::KeeperGone => self.event(Event::KeeperGone),
            Happening::CallerGone => self.event(Event::CallerGone),
            Happening::LeaseOver if self.spawned => self.event(Event::Command(CommandEvent::LeaseOver)),
            Happening::GuardGone if self.spawned => self.event(Event::Command(CommandEvent::GuardGone)),
            Happening::LeaseOver | Happening::GuardGone => {}
            Happening::Signal(signal, shared) => self.event(Event::Signal { signal, shared }),
            Happening::StartFailed(why) => {
                // In answer to Spawn, but a stop may have come before.
                if self.alive {
                    self.alive = false;
                    self.event(Event::Command(CommandEvent::StartFailed(why)));
                }
            }
            Happening::CommandEnds(end) => {
                if self.alive {
                    self.event(Event::Command(CommandEvent::Ended(end)));
                }
            }
            Happening::CommandSuspended => {
                if self.alive {
                    self.event(Event::Command(CommandEvent::Suspended(Signal::TSTP)));
                }
            }
            Happening::TreeGone => {
                if !self.alive && self.machine.awaits().is_some() {
                    self.event(Event::Command(CommandEvent::TreeGone));
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn nothing_forbidden_happens_and_every_run_ends(
        patience in patience(),
        max_run in proptest::option::of(1u64..60_000),
        wait_descendants: bool,
        gate_is_stuck: bool,
        happenings in proptest::collection::vec(happening(), 1..60),
    ) {
        let max_run = max_run.map(Duration::from_millis);
        let mut run = Harness::new(Settings { patience, max_run, wait_descendants, ..settings() });
        run.gate_is_stuck = gate_is_stuck;
        for happening in happenings {
            if run.finished.is_some() {
                break;
            }
            run.apply(happening);
        }
        // The keeper dies, the command ends, time passes: that ends every run.
        for _ in 0..10 {
            run.event(Event::KeeperGone);
            run.pass(Duration::from_secs(40));
            run.apply(Happening::CommandEnds(CommandEnd::Exited(0)));
            run.apply(Happening::TreeGone);
        }
        prop_assert!(run.finished.is_some(), "still {:?}", run.machine);
    }
}

/// A lender may have been silent for long.
#[test]
fn a_lease_that_is_lent_is_waited_for() {
    let five_seconds = Patience::AtMost(Duration::from_secs(5));
    for (patience, given_up_after) in [(Patience::NoWait, 0), (five_seconds, 5), (Patience::Forever, u64::MAX)] {
        let mut run = Harness::new(Settings { patience, ..settings() });
        run.lent();
        run.pass(Duration::ZERO);
        assert_eq!(run.released, given_up_after == 0);
        run.pass(Duration::from_secs(6));
        assert_eq!(run.released, given_up_after < 6);
        if run.released {
            run.event(Event::Keeper(Report::Released { was_busy: false }));
            assert_eq!(run.finished, Some(Outcome::NotFree));
            assert!(run.said(|notice| *notice == Notice::TimedOut(Blocker::Lender)));
            continue;
        }
        run.beat();
        run.pass(Duration::from_millis(20));
        assert!(run.alive);
    }
}

#[test]
fn a_lender_that_goes_before_the_command_starts() {
    let mut run = Harness::new(settings());
    run.lent();
    run.event(Event::Keeper(Report::Lost(Loss::LenderGone)));
    run.event(Event::Keeper(Report::Released { was_busy: false }));
    assert!(run.said(|notice| *notice == Notice::LenderGone));
    assert_eq!(run.finished, Some(Outcome::Lost));
}

#[test]
fn the_status_of_the_command_is_kept() {
    let mut run = Harness::running(settings());
    run.event(Event::Command(CommandEvent::Ended(CommandEnd::Exited(3))));
    assert!(run.released);
    run.event(Event::Keeper(Report::Released { was_busy: true }));
    assert_eq!(run.finished, Some(Outcome::Exited(3)));
}

#[test]
fn silence_stops_then_kills_then_ends_in_76() {
    let mut run = Harness::running(settings());
    run.pass(Duration::from_millis(19_719));
    assert!(!run.doomed);
    run.pass(Duration::from_millis(1));
    assert!(run.doomed && !run.killed, "the stop signal comes --kill-after before SIGKILL");
    assert!(run.said(|notice| matches!(notice, Notice::Lost(LostWhy::Silence { .. }))));
    run.pass(Duration::from_secs(5));
    assert!(run.killed);
    run.event(Event::Command(CommandEvent::Ended(CommandEnd::Exited(0))));
    assert!(!run.released, "descendants may be left");
    run.event(Event::Command(CommandEvent::TreeGone));
    assert!(run.released);
    run.event(Event::Keeper(Report::Released { was_busy: true }));
    assert_eq!(run.finished, Some(Outcome::Lost));
}

#[test]
fn a_beat_in_time_is_all_it_takes() {
    let mut run = Harness::running(settings());
    for _ in 0..100 {
        run.pass(Duration::from_secs(19));
        run.beat();
    }
    assert!(!run.doomed);
}

/// With a lock, it is for what stands in for the command to end.
#[test]
fn a_caller_that_goes_ends_the_wait() {
    let mut run = Harness::new(settings());
    run.event(Event::CallerGone);
    assert!(run.said(|notice| *notice == Notice::CallerGone));
    run.event(Event::Keeper(Report::Released { was_busy: true }));
    assert_eq!(run.finished, Some(Outcome::NotFree));
    let mut run = Harness::running(settings());
    run.event(Event::CallerGone);
    assert!(run.alive && !run.doomed && !run.released);
}

#[test]
fn after_ctrl_z_it_is_told_again_what_is_waited_for() {
    let mut run = Harness::new(settings());
    run.event(Event::Keeper(Report::Connection(Connectivity::Connected(TIMEOUT))));
    run.event(Event::Keeper(Report::Queue(Progress::Waiting(view()))));
    run.event(Event::Signal { signal: Signal::TSTP, shared: false });
    assert_eq!(run.notices, [Notice::Waiting(view()), Notice::Waiting(view())]);
}

#[test]
fn a_deleted_node_kills_at_once() {
    for loss in [Loss::NodeDeleted, Loss::StoodStill, Loss::SessionOver] {
        let mut run = Harness::running(settings());
        run.event(Event::Keeper(Report::Lost(loss)));
        assert!(run.killed);
    }
}

/// What was below a guard that was suspended has not been killed yet, and may fork.
#[test]
fn death_of_the_guard_begins_the_killing_anew() {
    let mut run = Harness::running(settings());
    run.event(Event::Keeper(Report::Lost(Loss::NodeDeleted)));
    run.pass(Duration::from_millis(310));
    for pause in [0, 10, 20].map(Duration::from_millis) {
        run.now = run.now + pause;
        let event = if pause.is_zero() { Event::Command(CommandEvent::GuardGone) } else { Event::Timer };
        assert_eq!(run.machine.step(run.now, event), [Effect::Kill]);
    }
}

#[test]
fn waking_past_the_lease_kills_at_once() {
    let mut run = Harness::running(settings());
    run.now = run.now + Duration::from_secs(3600);
    let effects = run.machine.step(run.now, Event::Timer);
    // As if the guard had said so, which wakes at the same time.
    let say = Effect::Say(Notice::Lost(LostWhy::Told(Loss::LeaseOver)));
    assert_eq!(effects, [Effect::Recall(Unstarted::TooLate), Effect::Kill, say]);
}

#[test]
fn a_dead_keeper_leaves_the_time_of_its_lease() {
    let mut run = Harness::running(settings());
    run.event(Event::KeeperGone);
    assert!(run.doomed && !run.killed);
    run.pass(Duration::from_secs(5));
    assert!(run.killed);
}

fn command(signal: Signal) -> Effect {
    Effect::Signal { signal, whom: Targets::Group }
}

fn outside(signal: Signal) -> Effect {
    Effect::Signal { signal, whom: Targets::Strayed }
}

#[test]
fn signals_of_the_terminal_go_to_what_has_not_had_them() {
    let mut run = Harness::running(settings());
    let now = run.now;
    assert_eq!(run.machine.step(now, Event::Signal { signal: Signal::USR1, shared: false }), [command(Signal::USR1)]);
    assert_eq!(run.machine.step(now, Event::Signal { signal: Signal::USR1, shared: true }), [outside(Signal::USR1)]);
    for signal in [Signal::TERM, Signal::INT] {
        // Until then the command may still be at the gate.
        let recall = Effect::Recall(Unstarted::Interrupted(signal));
        for (shared, effect) in [(false, command(signal)), (true, outside(signal))] {
            assert_eq!(run.machine.step(now, Event::Signal { signal, shared }), [recall.clone(), effect]);
        }
    }
    for _ in 0..5 {
        run.pass(Duration::from_secs(5));
        run.beat();
    }
    let now = run.now;
    for signal in [Signal::TERM, Signal::INT] {
        assert_eq!(run.machine.step(now, Event::Signal { signal, shared: false }), [command(signal)]);
        assert_eq!(run.machine.step(now, Event::Signal { signal, shared: true }), [outside(signal)]);
    }
    assert_eq!(
        run.machine.step(now, Event::Command(CommandEvent::Suspended(Signal::TSTP))),
        [Effect::SuspendSelf(Signal::TSTP)]
    );
}

#[test]
fn a_second_signal_hurries_the_release() {
    let mut run = Harness::new(settings());
    run.event(Event::Signal { signal: Signal::INT, shared: true });
    assert!(run.released);
    run.event(Event::Signal { signal: Signal::INT, shared: true });
    run.pass(HURRIED_PATIENCE);
    assert_eq!(run.finished, Some(Outcome::Interrupted(Signal::INT)));
}

#[test]
fn a_shutdown_that_has_begun_starts_nothing() {
    let mut run = Harness::new(settings());
    run.event(Event::Keeper(Report::Connection(Connectivity::Connected(TIMEOUT))));
    run.held();
    // In the same round of the loop: the report was read before the timer was judged.
    run.event(Event::Signal { signal: Signal::TERM, shared: false });
    run.pass(Duration::from_secs(5));
    assert!(!run.spawned);
    assert_eq!(run.finished, Some(Outcome::Interrupted(Signal::TERM)));
}

#[test]
fn the_timeout_counts_once_over_everything() {
    let patience = Patience::AtMost(Duration::from_secs(60));
    let mut run = Harness::new(Settings { patience, ..settings() });
    run.pass(Duration::from_secs(10));
    run.event(Event::Keeper(Report::Connection(Connectivity::Connected(TIMEOUT))));
    run.event(Event::Keeper(Report::Queue(Progress::Waiting(view()))));
    run.pass(Duration::from_secs(20));
    run.event(Event::Keeper(Report::Lost(Loss::SessionOver)));
    // For longer than --connect-timeout no server answers; but that limit applies to the first session only.
    run.pass(Duration::from_secs(25));
    run.event(Event::Keeper(Report::Connection(Connectivity::Connected(TIMEOUT))));
    run.event(Event::Keeper(Report::Queue(Progress::Waiting(view()))));
    run.pass(Duration::from_millis(4999));
    assert!(!run.released);
    run.pass(Duration::from_millis(1));
    assert!(run.released);
    run.event(Event::Keeper(Report::Released { was_busy: true }));
    assert!(run.said(|notice| matches!(notice, Notice::TimedOut(Blocker::Queue(_)))));
    assert_eq!(run.finished, Some(Outcome::NotFree));
}

/// A waiter whose time is over.
fn waited_in_vain() -> Harness {
    let mut run = Harness::new(Settings { patience: Patience::AtMost(Duration::from_secs(60)), ..settings() });
    run.event(Event::Keeper(Report::Connection(Connectivity::Connected(TIMEOUT))));
    run.event(Event::Keeper(Report::Queue(Progress::Waiting(view()))));
    run.pass(Duration::from_secs(60));
    assert!(run.released);
    run
}

#[track_caller]
fn expect_unavailable(run: &Harness, reason: Option<&str>) {
    assert_eq!(run.finished, Some(Outcome::Unavailable));
    let blocker = reason.map_or(Blocker::Late, |reason| Blocker::Servers(Some(reason.to_owned())));
    assert_eq!(run.notices.last(), Some(&Notice::TimedOut(blocker)));
}

#[test]
fn silent_servers_do_not_make_a_lock_busy() {
    let mut run = waited_in_vain();
    run.pass(VERDICT_PATIENCE);
    expect_unavailable(&run, None);
    let requeued = Report::Requeued { loss: Loss::SessionOver, pause: Duration::ZERO };
    for last in [Event::KeeperGone, Event::Keeper(Report::Lost(Loss::SessionOver)), Event::Keeper(requeued)] {
        let mut run = waited_in_vain();
        run.event(last);
        expect_unavailable(&run, None);
    }
}

#[test]
fn a_turn_that_came_is_not_a_busy_lock() {
    let mut run = Harness::new(Settings { patience: Patience::AtMost(Duration::from_secs(60)), ..settings() });
    run.event(Event::Keeper(Report::Connection(Connectivity::Connected(TIMEOUT))));
    run.event(Event::Keeper(Report::Queue(Progress::Waiting(view()))));
    run.event(Event::Keeper(Report::Queue(Progress::Turn)));
    run.pass(Duration::from_secs(60));
    run.event(Event::Keeper(Report::Released { was_busy: true }));
    expect_unavailable(&run, None);
}

#[test]
fn a_signal_ends_the_wait_for_a_verdict() {
    let mut run = waited_in_vain();
    run.event(Event::Signal { signal: Signal::INT, shared: false });
    run.event(Event::Keeper(Report::Released { was_busy: true }));
    assert_eq!(run.finished, Some(Outcome::Interrupted(Signal::INT)));
    assert!(!run.said(|notice| matches!(notice, Notice::TimedOut(_))));
}

#[test]
fn a_silence_is_as_long_as_nothing_was_answered() {
    let mut run = Harness::running(settings());
    run.pass(Duration::from_secs(3));
    run.machine.answer(run.now);
    run.pass(lease(START).stop_at().saturating_since(run.now));
    let age = lease(START).stop_at().saturating_since(START);
    let why = |answered| LostWhy::Silence { silence: age - answered, age };
    assert!(run.said(|notice| *notice == Notice::Lost(why(Duration::from_secs(3)))), "{:?}", run.notices);
}

#[test]
fn a_lost_connection_does_not_make_a_lock_busy() {
    let mut run = Harness::new(Settings { patience: Patience::AtMost(Duration::from_secs(60)), ..settings() });
    run.event(Event::Keeper(Report::Connection(Connectivity::Connected(TIMEOUT))));
    run.event(Event::Keeper(Report::Queue(Progress::Waiting(view()))));
    run.event(Event::Keeper(Report::Connection(Connectivity::Unreachable("refused".to_owned()))));
    run.pass(Duration::from_secs(60));
    run.event(Event::Keeper(Report::Released { was_busy: true }));
    expect_unavailable(&run, Some("refused"));
}

#[test]
fn each_silence_is_told_once() {
    let mut run = Harness::running(settings());
    // One beat interval, plus half of the longest silence that is harmless even if it begins just before a
    // beat.
    let half = terms().beat + terms().patience() / 2;
    for _ in 0..2 {
        let before = run.notices.len();
        run.pass(half - Duration::from_millis(1));
        assert_eq!(run.notices.len(), before);
        run.pass(Duration::from_millis(1));
        let remaining = terms().patience() - terms().patience() / 2;
        assert_eq!(run.notices[before..], [Notice::Silent { silence: half, age: half, remaining }]);
        run.beat();
        assert_eq!(run.notices[before + 1..], [Notice::Back]);
        run.beat();
        assert_eq!(run.notices.len(), before + 2);
    }
    assert!(!run.doomed);
}

/// The servers may take a lock away that was reported as held before the command is started.
#[test]
fn a_loss_before_the_start_is_the_loss_of_a_place() {
    let mut run = Harness::new(settings());
    run.event(Event::Keeper(Report::Connection(Connectivity::Connected(TIMEOUT))));
    run.held();
    let effects = run.machine.step(run.now, Event::Keeper(Report::Lost(Loss::SessionOver)));
    assert_eq!(effects, [Effect::QueueAgain]);
    run.event(Event::Keeper(Report::Requeued { loss: Loss::SessionOver, pause: Duration::ZERO }));
    assert!(run.said(|notice| matches!(notice, Notice::Requeued { loss: Loss::SessionOver, .. })));
    run.event(Event::Keeper(Report::Connection(Connectivity::Connected(TIMEOUT))));
    run.held();
    run.pass(Duration::ZERO);
    assert!(run.alive);
}

#[test]
fn a_lender_that_has_gone_ends_the_wait() {
    for is_held in [false, true] {
        let mut run = Harness::new(settings());
        run.event(Event::Keeper(Report::Connection(Connectivity::Connected(TIMEOUT))));
        if is_held {
            run.held();
        }
        run.event(Event::Keeper(Report::Lost(Loss::LenderGone)));
        assert!(run.released && run.said(|notice| *notice == Notice::LenderGone));
        run.event(Event::Keeper(Report::Released { was_busy: false }));
        assert_eq!(run.finished, Some(Outcome::Lost));
    }
}

#[test]
fn silence_until_connect_timeout_ends_in_69() {
    let mut run = Harness::new(settings());
    run.event(Event::Keeper(Report::Connection(Connectivity::Unreachable("refused".to_owned()))));
    run.pass(Duration::from_secs(15));
    run.event(Event::Keeper(Report::Released { was_busy: true }));
    assert_eq!(run.finished, Some(Outcome::Unavailable));
    assert!(run.said(|notice| *notice == Notice::Unreachable("refused".to_owned())));
}

#[test]
fn nonblock_gives_up_on_the_first_look() {
    let mut run = Harness::new(Settings { patience: Patience::NoWait, ..settings() });
    run.event(Event::Keeper(Report::Connection(Connectivity::Connected(TIMEOUT))));
    run.event(Event::Keeper(Report::Queue(Progress::Waiting(view()))));
    run.event(Event::Keeper(Report::Released { was_busy: true }));
    assert_eq!(run.finished, Some(Outcome::NotFree));
}

#[test]
fn kill_after_beyond_the_granted_timeout_is_64() {
    let mut run = Harness::new(Settings { kill_after: Some(Duration::from_secs(5)), ..settings() });
    run.event(Event::Keeper(Report::Connection(Connectivity::Connected(Duration::from_secs(6)))));
    run.event(Event::Keeper(Report::Released { was_busy: true }));
    assert_eq!(run.finished, Some(Outcome::Usage));
}

#[test]
fn a_keeper_that_dies_before_the_command_is_an_internal_error() {
    for is_held in [false, true] {
        let mut run = Harness::new(settings());
        if is_held {
            run.event(Event::Keeper(Report::Connection(Connectivity::Connected(TIMEOUT))));
            run.held();
        }
        run.event(Event::KeeperGone);
        assert_eq!(run.finished, Some(Outcome::Internal));
    }
}

#[test]
fn an_unconfirmed_release_is_bounded_and_told() {
    let mut run = Harness::running(settings());
    run.event(Event::Command(CommandEvent::Ended(CommandEnd::Exited(0))));
    run.pass(RELEASE_PATIENCE);
    assert_eq!(run.finished, Some(Outcome::Exited(0)));
    assert!(run.said(|notice| *notice == Notice::NotReleased { within: TIMEOUT, after_success: true }));
}

/// As for `zklock fence`: there is no lock.
#[test]
fn a_lease_without_end_is_not_said_to_end() {
    let mut run = Harness::running(settings());
    run.machine.extend(run.now, Terms::span(Span::WITHOUT_END, run.now)).unwrap();
    run.event(Event::Command(CommandEvent::Ended(CommandEnd::Exited(0))));
    run.pass(GIVE_UP_PATIENCE);
    assert_eq!(run.finished, Some(Outcome::Exited(0)));
    assert!(!run.said(|notice| matches!(notice, Notice::NotReleased { .. })));
}

#[test]
fn a_command_that_is_skipped_is_a_success() {
    let mut run = Harness::new(settings());
    let last = LastRun { started: 0, took: Duration::ZERO, host: None, token: None };
    run.event(Event::Keeper(Report::Connection(Connectivity::Connected(TIMEOUT))));
    run.event(Event::Keeper(Report::Queue(Progress::Skipped(last))));
    assert!(run.released && !run.spawned);
    run.event(Event::Keeper(Report::Released { was_busy: true }));
    assert_eq!(run.finished, Some(Outcome::Exited(0)));
}

#[test]
fn a_run_that_could_not_be_recorded_keeps_its_status() {
    // The keeper may release the lock before the supervisor has heard of the end of the command.
    let unrecorded = Remark::Unrecorded(Some("why".to_owned()));
    for hears_first in [true, false] {
        let mut run = Harness::running(settings());
        let events = [
            Event::Keeper(Report::Remark(unrecorded.clone())),
            Event::Command(CommandEvent::Ended(CommandEnd::Exited(0))),
        ];
        let (first, second) = if hears_first { (0, 1) } else { (1, 0) };
        run.event(events[first].clone());
        run.event(events[second].clone());
        run.event(Event::Keeper(Report::Released { was_busy: true }));
        assert_eq!(run.finished, Some(Outcome::Exited(0)));
        assert!(run.said(|notice| *notice == Notice::Remark(unrecorded.clone())));
    }
}
