//! What is tortured: how a contender is started with each tool, and on which servers.

use std::env;
use std::path::PathBuf;
use std::process::Command;

use clap::ValueEnum;
use fastrand::Rng;

use crate::work::Job;

/// What takes the locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tool {
    /// The program of this repository.
    Zklock,
    /// `etcdctl lock`, on one server of etcd.
    Etcdctl,
    /// A script of a few lines around kazoo's `Lock`.
    Kazoo,
}

/// Whether a contender gives up by itself while it waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Give {
    /// After some time, or at once.
    Up,
    /// Never.
    Never,
}

/// Where the locks are, and the ways there.
#[derive(Clone, Debug)]
pub(crate) struct Place {
    /// The addresses of the servers, by each network.
    pub(crate) networks: Vec<Vec<String>>,
    /// What follows the addresses in a connect string.
    pub(crate) chroot: String,
    /// The paths of the locks.
    pub(crate) locks: Vec<String>,
}

/// The session timeouts that contenders ask for, in milliseconds. Short, so that many are lost.
const TIMEOUTS: [u64; 4] = [2000, 2500, 3000, 4000];

/// The longest of them, in milliseconds.
pub(crate) const LONGEST_TIMEOUT: u64 = TIMEOUTS[3];

impl Tool {
    /// A contender that runs `job`, other things being decided by `rng`.
    pub(crate) fn contender(self, place: &Place, job: &Job, rng: &mut Rng) -> (Command, Give) {
        let lock = rng.choice(&place.locks).expect("there are locks");
        let mut addresses = rng.choice(&place.networks).expect("there are networks").clone();
        rng.shuffle(&mut addresses);
        if rng.u8(..3) == 0 {
            addresses.truncate(1);
        }
        let timeout = *rng.choice(&TIMEOUTS).expect("there are timeouts");
        let connect_string = format!("{}{}", addresses.join(","), place.chroot);
        match self {
            Self::Zklock => zklock(lock, &connect_string, timeout, job, rng),
            Self::Etcdctl => {
                let mut command = Command::new("etcdctl");
                command.env("ETCDCTL_API", "3").arg("--endpoints").arg(addresses.join(","));
                command.args(["lock", "--ttl", &timeout.div_ceil(1000).to_string(), "--", lock]).args(job.command());
                (command, Give::Never)
            }
            Self::Kazoo => {
                let mut command = Command::new("/usr/bin/python3");
                command.args(["-c", KAZOO, &connect_string, &timeout.to_string(), lock]).args(job.command());
                (command, Give::Never)
            }
        }
    }
}

fn zklock(lock: &str, connect_string: &str, timeout: u64, job: &Job, rng: &mut Rng) -> (Command, Give) {
    let mut command = Command::new(binary());
    for (name, _) in env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"ZKLOCK_")) {
        command.env_remove(name);
    }
    command.env("ZKLOCK_ZOOKEEPER", connect_string).env("ZKLOCK_LOG", "zklock=debug");
    command.args([lock, "--session-timeout", &format!("{}", timeout as f64 / 1000.0)]);
    if rng.u8(..10) == 0 {
        command.args(["--kill-after", "0"]);
    }
    let give = match rng.u8(..20) {
        0 => {
            command.arg("--nonblock");
            Give::Up
        }
        1..6 => {
            command.args(["--timeout", &format!("{}ms", rng.u64(500..8000))]);
            Give::Up
        }
        _ => Give::Never,
    };
    command.arg("--").args(job.command());
    (command, give)
}

/// The binary beside this program's directory: cargo puts examples into one of their own.
pub(crate) fn binary() -> PathBuf {
    let program = env::current_exe().expect("the path of this program");
    let profile = program.ancestors().nth(2).expect("examples have a directory of their own");
    profile.join("zklock")
}

/// What one writes who follows kazoo's documentation.
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
