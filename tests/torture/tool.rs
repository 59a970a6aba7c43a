//! The tools that are tortured, and how a contender is started with each of them.

use std::env;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;
use fastrand::Rng;

use crate::work::{Job, Nature};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tool {
    Zklock,
    /// `etcdctl lock`, with servers of etcd.
    Etcdctl,
    /// A script of a few lines around kazoo's `Lock`.
    Kazoo,
}

/// Whether a contender may give up while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Give {
    /// It gives up after some time, or at once.
    Up,
    /// It never gives up.
    Never,
}

/// Where the locks are, and how to reach them.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// For each network, the addresses of the servers.
    pub(crate) networks: Vec<Vec<String>>,
    /// The part of a connect string that follows the addresses.
    pub(crate) chroot: String,
    pub(crate) locks: Vec<String>,
    /// zklock's `--lock-delay`.
    pub(crate) lock_delay: Option<Duration>,
}

/// The session timeouts that contenders ask for, in milliseconds. They are short, so that many sessions expire.
const TIMEOUTS: [u64; 4] = [2000, 2500, 3000, 4000];

/// The longest of them, in milliseconds.
pub(crate) const LONGEST_TIMEOUT: u64 = TIMEOUTS[3];

const PERMITS: &str = "3";

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) command: Command,
    pub(crate) give: Give,
    pub(crate) timeout: Duration,
    pub(crate) network: usize,
    /// Whether it limits how long its command may run.
    pub(crate) is_limited: bool,
    pub(crate) stderr_blocks: bool,
}

impl Tool {
    /// A contender that runs `job`. `rng` decides everything else.
    pub(crate) fn contender(self, place: &Place, job: Job, rng: &mut Rng) -> Entry {
        let network = rng.usize(..place.networks.len());
        let mut addresses = place.networks[network].clone();
        rng.shuffle(&mut addresses);
        if rng.u8(..3) == 0 {
            addresses.truncate(1);
        }
        let timeout = *rng.choice(&TIMEOUTS).expect("there are timeouts");
        let connect_string = format!("{}{}", addresses.join(","), place.chroot);
        let mut entry = Entry {
            command: Command::new(self.program()),
            give: Give::Never,
            timeout: Duration::from_millis(timeout),
            network,
            is_limited: false,
            stderr_blocks: false,
        };
        let command = &mut entry.command;
        match self {
            Self::Zklock => {
                zklock(&mut entry, &place.locks, &connect_string, job, rng);
                // As a variable, because runs with permits have no delay.
                let delay = place.lock_delay.map(|delay| ("ZKLOCK_LOCK_DELAY", delay.as_secs().to_string()));
                entry.command.envs(delay);
            }
            Self::Etcdctl => {
                let lock = rng.choice(&place.locks).expect("there are locks");
                command.env("ETCDCTL_API", "3").arg("--endpoints").arg(addresses.join(","));
                command.args(["lock", "--ttl", &timeout.div_ceil(1000).to_string(), "--", lock]).args(job.command());
            }
            Self::Kazoo => {
                let lock = rng.choice(&place.locks).expect("there are locks");
                command.args(["-c", KAZOO, &connect_string, &timeout.to_string(), lock]).args(job.command());
            }
        }
        entry
    }

    fn program(self) -> PathBuf {
        match self {
            Self::Zklock => binary(),
            Self::Etcdctl => "etcdctl".into(),
            Self::Kazoo => "/usr/bin/python3".into(),
        }
    }
}

/// Which locks zklock takes, and with which options.
#[derive(Debug)]
struct Claim {
    locks: Vec<String>,
    options: Vec<String>,
}

impl Claim {
    /// On the first lock all contenders are exclusive. The second has readers and writers; the third has contenders
    /// with permits and exclusive ones; the fourth has readers and writers that use the node names of all dialects.
    /// Some contenders take two of the first three locks together, in any order.
    fn draw(locks: &[String], rng: &mut Rng) -> Self {
        let (index, dice) = (rng.usize(..locks.len()), rng.u8(..12));
        let mut claim = Self { locks: vec![locks[index].clone()], options: Vec::new() };
        let mode: &[&str] = match index {
            1 if dice < 6 => &["--shared"],
            2 if dice < 8 => &["--permits", PERMITS],
            3 if dice < 6 => &["--shared"],
            _ => &[],
        };
        let dialect: &[&str] = if index == 3 { &["--dialect", "curator,curator-rw,kazoo"] } else { &[] };
        claim.options.extend(mode.iter().chain(dialect).map(|&option| option.to_owned()));
        if claim.options.is_empty() && dice >= 9 {
            claim.locks.push(locks[(index + rng.usize(1..3)) % 3].clone());
        }
        claim
    }

    /// The arguments for zklock to take `locks`, which are some of its own or all, with its options.
    fn arguments(&self, locks: &[String]) -> Vec<String> {
        let and = locks[1..].iter().flat_map(|lock| ["--and".to_owned(), lock.clone()]);
        locks[..1].iter().chain(&self.options).cloned().chain(and).collect()
    }
}

fn zklock(entry: &mut Entry, locks: &[String], connect_string: &str, mut job: Job, rng: &mut Rng) {
    let Entry { command, timeout, .. } = entry;
    for (name, _) in env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"ZKLOCK_")) {
        command.env_remove(name);
    }
    command.env("ZKLOCK_ZOOKEEPER", connect_string);
    command.env("ZKLOCK_CONFIG", "/dev/null");
    // In the environment, so that nested runs use it as well.
    command.env("ZKLOCK_SESSION_TIMEOUT", format!("{}ms", timeout.as_millis()));
    let claim = Claim::draw(locks, rng);
    command.args(claim.arguments(&claim.locks));
    if matches!(job.nature, Nature::Nesting | Nature::Leaving) {
        let part = rng.choice(&claim.locks).expect("it takes a lock").clone();
        job.inner = claim.arguments(&[part]);
    }
    if rng.u8(..10) == 0 {
        command.args(["--kill-after", "0"]);
    }
    if rng.u8(..8) == 0 {
        command.args(["--max-run", &format!("{}ms", job.time.as_millis() / 2)]);
        entry.is_limited = true;
    }
    match rng.u8(..20) {
        0 => {
            command.arg("--nonblock");
            entry.give = Give::Up;
        }
        1..6 => {
            command.args(["--timeout", &format!("{}ms", rng.u64(500..8000))]);
            entry.give = Give::Up;
        }
        _ => {}
    }
    // The others say all they can, so that a finding can be explained.
    entry.stderr_blocks = rng.u8(..4) == 0;
    match rng.u8(..3) {
        0 if entry.stderr_blocks => {}
        1 if entry.stderr_blocks => {
            command.arg("-v");
        }
        _ => {
            command.arg("-vv");
        }
    }
    command.arg("--").args(job.command());
}

/// The zklock binary. Cargo puts it one directory above this program, which is an example.
pub(crate) fn binary() -> PathBuf {
    let program = env::current_exe().expect("the path of this program");
    let profile = program.ancestors().nth(2).expect("examples have a directory of their own");
    profile.join("zklock")
}

/// A script such as a user would write after reading kazoo's documentation.
const KAZOO: &str = r"
import os, subprocess, sys
from kazoo.client import KazooClient
hosts, timeout, path, *command = sys.argv[1:]
client = KazooClient(hosts=hosts, timeout=int(timeout) / 1000)
client.start(timeout=60)
lock = client.Lock(path)
with lock:
    node = f'{path}/{lock.node}'
    token = client.get(node)[1].czxid
    environment = dict(os.environ, TORTURE_LOCK=path, TORTURE_TOKEN=str(token), TORTURE_NODE=node)
    status = subprocess.run(command, env=environment).returncode
client.stop()
sys.exit(status if status >= 0 else 128 - status)
";
