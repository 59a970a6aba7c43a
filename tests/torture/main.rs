//! A crowd of contenders on a few locks, random faults of all kinds, and a checker that reads the log of the commands.
//! scripts/torture runs it; see docs/torture.md.

#[expect(dead_code, reason = "of the harness of the tests, this uses a part")]
#[path = "../it/harness"]
mod harness {
    mod authority;
    pub(crate) mod client;
    pub(crate) mod ensemble;
    pub(crate) mod frames;
    pub(crate) mod poll;
    pub(crate) mod process;
    pub(crate) mod proxy;
    mod release;
    mod secure;
    pub(crate) mod server;
    mod skipped;
}

mod checker;
mod crowd;
mod faults;
mod freezer;
mod hurt;
mod record;
mod report;
mod servers;
mod stall;
mod tool;
mod witness;
mod work;

use std::collections::BTreeMap;
use std::env;
use std::fs;
use std::path::Path;
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::Parser;
use fastrand::Rng;
use nix::sys::signal::Signal;

use crate::checker::Time;
use crate::crowd::Crowd;
use crate::faults::Network;
use crate::freezer::Freezer;
use crate::harness::proxy::Proxy;
use crate::harness::{poll, process};
use crate::hurt::Hurter;
use crate::record::{Phase, Record};
use crate::report::{Findings, Report};
use crate::servers::Servers;
use crate::tool::{LONGEST_TIMEOUT, Place, Tool};
use crate::work::Job;

const LOCKS: [&str; 4] = ["/torture-a", "/torture-b", "/torture-c", "/torture-d"];

/// How many networks there are, so that some contenders can be cut off while others are not.
const NETWORKS: usize = 6;

/// How many threads disturb networks, cut off holders, hurt holders so that only the kernel can act, and hurt processes.
const DISTURBERS: usize = 2;
const SILENCERS: usize = 1;
const STRIKERS: usize = 2;
const HURTERS: usize = 2;

/// How often to show the progress.
const STEP: Duration = Duration::from_secs(20);

/// How long it may take after the faults, on a loaded machine, until old sessions have expired and new ones are open.
const RECOVERY: Duration = Duration::from_secs(30);

/// Has a crowd of contenders take locks under random faults, and checks that no two of their commands overlap.
#[derive(Debug, Parser)]
#[command(name = "torture")]
struct Options {
    /// How many minutes to make faults for
    #[arg(long, default_value_t = 2.0)]
    minutes: f64,
    /// Make the same faults as an earlier run with this seed
    #[arg(long)]
    seed: Option<u64>,
    /// What to torture; the results of tools other than zklock are only reported, not judged
    #[arg(long, value_enum, default_value_t = Tool::Zklock)]
    tool: Tool,
    /// Give zklock this --lock-delay, in seconds: more than the longest session timeout
    #[arg(long)]
    lock_delay: Option<u64>,
    /// Keep the logs even if nothing is wrong
    #[arg(long)]
    keep: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    if Job::run_if_asked(&arguments) {
        return ExitCode::SUCCESS;
    }
    let options = Options::parse();
    let seed = options.seed.unwrap_or_else(|| fastrand::u64(..1_000_000_000));
    println!("seed {seed}");
    let directory = tempfile::Builder::new().prefix(&format!("torture-{seed}-")).tempdir().expect("a directory");
    let report = torture(&options, seed, directory.path());
    print!("{report}");
    let is_judged = options.tool == Tool::Zklock;
    let is_right = !is_judged || report.is_clean();
    let verdict = if is_judged { ["FAILED", "passed"][usize::from(is_right)] } else { "only reported" };
    println!("\n{verdict}");
    if options.keep || !is_right {
        println!("logs: {}", directory.keep().display());
    }
    if is_right {
        return ExitCode::SUCCESS;
    }
    println!("to replay: scripts/torture --minutes {} --seed {seed}", options.minutes);
    ExitCode::FAILURE
}

/// The random numbers of one lane of faults. Each lane has a seed of its own, so that the lanes do not affect each
/// other.
fn lane(seed: u64, number: u64) -> Rng {
    Rng::with_seed(seed.wrapping_add(number.wrapping_mul(0xD134_2543_DE82_EF95)))
}

fn torture(options: &Options, seed: u64, directory: &Path) -> Report {
    let tool = options.tool;
    let servers = Servers::start(tool, directory);
    let networks: Vec<Network> = (0..NETWORKS).map(|number| Network::new(number, servers.network())).collect();
    let locks = LOCKS.map(str::to_owned);
    let place = Place {
        networks: networks.iter().map(|ways| ways.proxies.iter().map(Proxy::address).collect()).collect(),
        chroot: servers.chroot(),
        locks: locks.to_vec(),
        lock_delay: options.lock_delay.map(Duration::from_secs),
    };
    let delay = place.lock_delay;
    let crowd = Crowd::new(tool, place, directory, seed);
    let freezer = Freezer::find();
    if let Err(why) = &freezer {
        println!("{}", report::not_frozen(why));
    }
    let record = Record::new(&directory.join("faults"));
    let findings = thread::scope(|scope| {
        let (crowd, record, networks) = (&crowd, &record, &networks);
        let (servers, locks, freezer) = (&servers, &locks, freezer.as_ref().ok());
        let witness = scope.spawn(|| servers.watch(locks, record));
        let contenders = scope.spawn(|| crowd.run(record));
        for processor in stall::processors() {
            scope.spawn(move || stall::watch(processor, record));
        }
        let mut lanes = vec![scope.spawn(|| servers.hurt(record, &mut lane(seed, 1)))];
        lanes.push(scope.spawn(|| servers.meddle(locks, record, &mut lane(seed, 2))));
        for number in (10..).take(DISTURBERS) {
            lanes.push(scope.spawn(move || faults::disturb_networks(networks, tool, record, &mut lane(seed, number))));
        }
        for number in (30..).take(SILENCERS) {
            let mut rng = lane(seed, number);
            lanes.push(scope.spawn(move || faults::silence_holders(crowd, networks, record, &mut rng)));
        }
        let hurter = Hurter { crowd, freezer, record };
        for number in (20..).take(HURTERS) {
            lanes.push(scope.spawn(move || hurter.hurt_anyone(tool, &mut lane(seed, number))));
        }
        for number in (40..).take(if tool == Tool::Zklock { STRIKERS } else { 0 }) {
            lanes.push(scope.spawn(move || hurter.strike_holders(&mut lane(seed, number))));
        }
        let time = Duration::from_secs_f64(options.minutes * 60.0);
        scope.spawn(move || show_progress(crowd, record));
        record.pause(time);
        record.enter(Phase::Drain);
        for lane in lanes {
            lane.join().expect("a lane of faults does not panic");
        }
        record.note("all faults are repaired");
        let starving = drain(crowd, delay.unwrap_or_default());
        let nodes = left_nodes(servers, locks);
        let disputed = if starving.is_empty() && nodes.is_empty() { Vec::new() } else { servers.disputed(locks) };
        record.enter(Phase::Over);
        contenders.join().expect("the crowd does not panic");
        let gone: BTreeMap<String, Time> = witness.join().expect("the witness does not panic");
        Findings { gone, starving, nodes, disputed, processes: left_processes(crowd) }
    });
    let log = fs::read_to_string(crowd.log()).unwrap_or_default();
    Report::new(&log, &crowd, &record, findings, delay, freezer.err())
}

/// Shows the progress on stdout, because nothing else is printed for minutes.
fn show_progress(crowd: &Crowd, record: &Record) {
    while !record.is_over_within(STEP) {
        let faults: usize = record.faults().values().sum();
        let (all, alive) = (crowd.all().len(), crowd.alive().len());
        println!("{:?}: {faults} faults, {all} contenders, of which {alive} have not ended", record.phase());
    }
}

/// Waits until all contenders have ended. Returns those that have not, after all the time that they may need.
fn drain(crowd: &Crowd, delay: Duration) -> Vec<String> {
    let work: Duration = crowd.alive().iter().map(|contender| contender.time).sum();
    // The processes as well: a command may have left a nested run behind.
    poll::within(2 * work + RECOVERY + 4 * delay, || {
        (crowd.alive().is_empty() && crowd.processes().is_empty()).then_some(())
    });
    crowd.alive().iter().map(|contender| format!("contender {}: {}", contender.number, contender.what)).collect()
}

/// Waits until no node is left below the locks. Returns those that are left when every session has had time to expire.
fn left_nodes(servers: &Servers, locks: &[String]) -> Vec<String> {
    let time = 2 * Duration::from_millis(LONGEST_TIMEOUT);
    poll::within(time, || servers.nodes(locks).is_empty().then_some(()));
    servers.nodes(locks)
}

/// Waits a little for processes that are about to exit. Kills those that are left, and returns them.
fn left_processes(crowd: &Crowd) -> Vec<String> {
    poll::within(RECOVERY / 10, || crowd.processes().is_empty().then_some(()));
    let left = crowd.processes();
    left.iter().for_each(|process| process::send(process.pid, Signal::SIGKILL));
    left.iter().map(ToString::to_string).collect()
}
