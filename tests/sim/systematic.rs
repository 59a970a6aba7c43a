//! A systematic search: one hand-over between two contenders, with each fault before each event. If `ZKLOCK_SIM_PAIRS`
//! is set, each two faults before each two events, of a hand-over with fewer events and of fewer kinds. Chance decides
//! nothing.

use std::fmt::Write as _;
use std::ops::Range;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use zklock::cli::Plan;
use zklock::rules::mode::Mode;
use zklock::rules::settings::{Patience, Settings};
use zklock::rules::signal::Signal;

use crate::chance::Chance;
use crate::coverage::{Kind, list};
use crate::faults::Fault;
use crate::host::{Host, Script};
use crate::run::play;
use crate::servers::Servers;
use crate::state::{Event, MS, State, Time};

/// The session timeout, and the tick of the servers.
const TIMEOUT: Time = 4000 * MS;
const TICK: Time = 2000 * MS;

/// A fault that lasts is tried for a moment, and for longer than the session timeout.
const MOMENT: Time = 30 * MS;
const LONG: Time = TIMEOUT * 3 / 2;

/// Faults that last, and faults that do not.
const LASTING: &[Kind] = list! {
    Cut CutUp CutDown Crash Isolate Elect Lacking Restore FreezeServer Lag Rack FreezeSupervisor FreezeKeeper
    FreezeGuard FreezeAndCut FreezeAll Sleep CtrlZ RemakeNode
};
const INSTANT: &[Kind] = list! {
    Break Ghost KillSupervisor KillKeeper KillGuard KillCommand DeleteNode ExpireSession SetData Revoke
    Terminate ReapParent
};

/// The faults of which two are made. Those that last do so for long.
const PAIRED: &[Kind] = list! {
    Cut CutDown Crash FreezeServer FreezeSupervisor FreezeKeeper FreezeGuard Sleep CtrlZ Break KillSupervisor
    KillKeeper KillGuard KillCommand DeleteNode ExpireSession Terminate
};

/// Two contenders for one exclusive lock. The second one waits until the first one's command has ended.
#[derive(Clone, Copy)]
struct Scene {
    servers: usize,
    /// How long the first command runs.
    length: Time,
}

impl Scene {
    fn state(self, traced: bool) -> State {
        let Self { servers: count, length } = self;
        let phases: Vec<Time> = (0..count).map(|server| TICK * server as Time / count as Time).collect();
        let servers = Servers::new(TIMEOUT, TICK, &phases, &vec![TIMEOUT; count]);
        let hosts = [length, 50 * MS].map(|length| {
            let settings = Settings {
                patience: Patience::Forever,
                connect_timeout: Duration::from_secs(3600),
                session_timeout: Duration::from_micros(TIMEOUT),
                kill_after: None,
                stop_signal: Signal::TERM,
                max_run: None,
                wait_descendants: false,
            };
            let script =
                Script { length, children: 2, stubborn: true, forks: 1, leaves_group: true, ..Script::default() };
            Host::new(0, Mode::Exclusive, settings, script, count)
        });
        let mut state = State::new(Chance::Fixed(0), servers, hosts.into(), traced);
        state.after(0, Event::Start(0));
        state.after(10 * MS, Event::Start(1));
        state
    }
}

/// A fault before the event with this number.
type Strike = (u32, Fault);

/// Each of these faults before each of these events.
fn strikes(events: Range<u32>, faults: &[(Kind, Time)]) -> impl Iterator<Item = Strike> {
    let faults = faults.iter().flat_map(|(kind, time)| [0, 1].map(|host| Fault { kind: *kind, host, time: *time }));
    events.flat_map(move |number| faults.clone().map(move |fault| (number, fault)))
}

/// The runs of a search.
struct Search<'p> {
    plans: &'p [Plan],
    scene: Scene,
    runs: AtomicU64,
    failed: AtomicBool,
    failures: Mutex<Vec<Vec<Strike>>>,
}

impl Search<'_> {
    /// Makes a run with these faults. Returns how many events it had, unless the faults are not possible.
    fn run(&self, strikes: &[Strike]) -> Option<u32> {
        let report = play(self.scene.state(false), self.plans, strikes)?;
        self.runs.fetch_add(1, Ordering::Relaxed);
        if report.failure.is_some() {
            self.failed.store(true, Ordering::Relaxed);
            self.failures.lock().unwrap().push(strikes.to_vec());
        }
        Some(report.events)
    }

    /// What happened in the run with these faults, and why it failed.
    fn story(&self, strikes: &[Strike]) -> String {
        let Some(report) = play(self.scene.state(true), self.plans, strikes) else { return String::new() };
        let mut text = report.trace.join("\n");
        let _ = write!(text, "\nFAULTS {strikes:?}: {}", report.failure.unwrap_or_default());
        text
    }
}

/// Makes each of these faults before each event, or each two of them.
fn search(scene: Scene, faults: &[(Kind, Time)], in_pairs: bool) {
    let plans = &crate::plans();
    let (runs, failed) = (AtomicU64::new(0), AtomicBool::new(false));
    let search = Search { plans, scene, runs, failed, failures: Mutex::default() };
    let events = search.run(&[]).expect("a run without faults");
    let firsts: Vec<Strike> = strikes(0..events, faults).collect();
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, usize::from) {
            scope.spawn(|| {
                while let Some(first) = firsts.get(next.fetch_add(1, Ordering::Relaxed))
                    && !search.failed.load(Ordering::Relaxed)
                {
                    let Some(events) = search.run(&[*first]) else { continue };
                    if in_pairs {
                        for second in strikes(first.0..events, faults) {
                            search.run(&[*first, second]);
                        }
                    }
                }
            });
        }
    });
    if let Some(strikes) = search.failures.lock().unwrap().first() {
        panic!("{}", search.story(strikes));
    }
    println!("{events} events, {} faults at two hosts, {} runs", faults.len(), search.runs.into_inner());
}

#[test]
fn every_fault_at_every_step() {
    let lasting = LASTING.iter().flat_map(|kind| [(*kind, MOMENT), (*kind, LONG)]);
    let faults: Vec<_> = lasting.chain(INSTANT.iter().map(|kind| (*kind, 0))).collect();
    // The first command runs for long enough to see a beat.
    search(Scene { servers: 3, length: TIMEOUT / 4 }, &faults, false);
}

#[test]
fn pairs_of_faults_at_every_two_steps() {
    if std::env::var_os("ZKLOCK_SIM_PAIRS").is_some() {
        let faults: Vec<_> = PAIRED.iter().map(|kind| (*kind, LONG)).collect();
        search(Scene { servers: 1, length: 50 * MS }, &faults, true);
    }
}
