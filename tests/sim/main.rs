//! The simulator: several machines that run zklock, a network and an ensemble, all in memory and on a virtual clock.
//!
//! The keepers, the supervisors' loops and the guards are the product's own code. `docs/simulator.md` says what is imitated
//! and what is left out.
//!
//! `ZKLOCK_SIM_SEED=N` replays one run and prints what happened; `ZKLOCK_SIM_RUNS=N` makes N runs, from the seed
//! `ZKLOCK_SIM_FIRST` on if that is set.

mod chance;
mod checks;
mod coverage;
mod faults;
mod guard;
mod hold;
mod host;
mod liar;
mod lock_delay;
mod nested;
mod network;
mod once_per;
mod run;
mod servers;
mod state;
mod systematic;
mod tree;
mod wire;
mod world;

use std::ffi::OsString;
use std::fmt::Write as _;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use zklock::cli::{self, Plan};

use crate::coverage::Coverage;
use crate::faults::lock_path;

/// How many runs to make unless `ZKLOCK_SIM_RUNS` says otherwise.
const RUNS: u64 = 20_000;

fn plans() -> Vec<Plan> {
    (0..2)
        .map(|lock| {
            let args = ["zklock", &lock_path(lock), "true"].map(OsString::from);
            cli::job(args, &|_: &str| None).expect("a plan")
        })
        .collect()
}

fn variable(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|error| panic!("{name}={text}: {error}")))
}

/// The trace of a run, and why it failed if it did.
fn story(seed: u64, plans: &[Plan]) -> String {
    let report = run::run(seed, plans, true);
    let mut text = report.trace.join("\n");
    let _ = match report.failure {
        Some(failure) => write!(text, "\nZKLOCK_SIM_SEED={seed}: {failure}"),
        None => write!(text, "\nZKLOCK_SIM_SEED={seed}: nothing wrong"),
    };
    text
}

#[test]
fn no_command_runs_without_the_lock() {
    let plans = plans();
    if let Some(seed) = variable("ZKLOCK_SIM_SEED") {
        let text = story(seed, &plans);
        println!("{text}");
        assert!(text.ends_with("nothing wrong"), "the run failed, see above");
        return;
    }
    let runs = variable("ZKLOCK_SIM_RUNS").unwrap_or(RUNS);
    let first = variable("ZKLOCK_SIM_FIRST").unwrap_or_else(|| fastrand::u64(..));
    let next = AtomicU64::new(0);
    let failed = AtomicBool::new(false);
    let total = Mutex::new((Coverage::default(), Vec::<(u64, String)>::new()));
    let threads = std::thread::available_parallelism().map_or(2, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                let mut coverage = Coverage::default();
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= runs || failed.load(Ordering::Relaxed) {
                        break;
                    }
                    let seed = first.wrapping_add(number);
                    let report = run::run(seed, &plans, false);
                    coverage.add(&report.coverage);
                    if let Some(failure) = report.failure {
                        failed.store(true, Ordering::Relaxed);
                        total.lock().unwrap().1.push((seed, failure));
                    }
                }
                total.lock().unwrap().0.add(&coverage);
            });
        }
    });
    let (coverage, failures) = total.into_inner().unwrap();
    println!("{runs} runs from seed {first}: {}", coverage.table());
    if let Some((seed, failure)) = failures.first() {
        let made = next.into_inner().min(runs);
        panic!("{}\nseed {seed}: {failure}\nfound in {made} runs", story(*seed, &plans));
    }
    if runs >= RUNS {
        assert_eq!(coverage.missing(), [], "these never happened in any run");
    }
}
