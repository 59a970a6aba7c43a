//! The servers that the locks are on: an ensemble of ZooKeeper, or one etcd.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use fastrand::Rng;
use nix::sys::signal::Signal;
use nix::unistd::Pid;

use crate::checker::Time;
use crate::faults;
use crate::harness::client::Client;
use crate::harness::ensemble::{Chroot, Ensemble};
use crate::harness::poll;
use crate::harness::process::{self, Seat};
use crate::harness::proxy::Proxy;
use crate::harness::server::{Settings, free_port};
use crate::record::{Record, lock};
use crate::tool::Tool;
use crate::witness;

/// Servers that disagree for this long will always disagree.
const AGREEMENT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) enum Servers {
    /// With a client that no fault of the network reaches, in the same chroot as the contenders.
    ZooKeeper(Ensemble, Chroot, Client),
    /// One server, which is not watched: all that is known comes from the contenders' commands.
    Etcd(Etcd),
}

impl Servers {
    /// Starts the servers that the tool needs, and waits until they serve.
    pub(crate) fn start(tool: Tool, directory: &Path) -> Self {
        if tool == Tool::Etcdctl {
            return Self::Etcd(Etcd::start(directory));
        }
        let ensemble = Settings::default().proxied().ensemble();
        let chroot = ensemble.chroot();
        let client = chroot.client();
        Self::ZooKeeper(ensemble, chroot, client)
    }

    fn addresses(&self) -> Vec<String> {
        match self {
            Self::ZooKeeper(ensemble, ..) => ensemble.servers().iter().map(|server| server.address()).collect(),
            Self::Etcd(etcd) => vec![etcd.address()],
        }
    }

    pub(crate) fn network(&self) -> Vec<Proxy> {
        let way = |address: &String| match self {
            Self::ZooKeeper(..) => Proxy::zookeeper(address),
            Self::Etcd(etcd) => Proxy::plain(SocketAddr::from((Ipv4Addr::LOCALHOST, etcd.port))),
        };
        self.addresses().iter().map(way).collect()
    }

    /// The part of a connect string that follows the addresses.
    pub(crate) fn chroot(&self) -> String {
        match self {
            Self::ZooKeeper(_, chroot, _) => chroot.path().to_owned(),
            Self::Etcd(_) => String::new(),
        }
    }

    /// Watches the nodes until the torture is over. Returns when each was seen to be gone.
    pub(crate) fn watch(&self, locks: &[String], record: &Record) -> BTreeMap<String, Time> {
        match self {
            Self::ZooKeeper(.., client) => witness::watch(client, locks, record),
            Self::Etcd(_) => BTreeMap::new(),
        }
    }

    /// The paths of the contenders' nodes; none with etcd, where they are not watched.
    pub(crate) fn nodes(&self, locks: &[String]) -> Vec<String> {
        match self {
            Self::ZooKeeper(.., client) => witness::nodes(client, locks).into_iter().collect(),
            Self::Etcd(_) => Vec::new(),
        }
    }

    /// The nodes below the locks that some servers have and others do not, although they have had time to agree. When
    /// leaders are killed one after the other, ZooKeeper 3.8.0 may keep a node on one server that the others have
    /// deleted.
    pub(crate) fn disputed(&self, locks: &[String]) -> Vec<String> {
        let Self::ZooKeeper(_, chroot, _) = self else { return Vec::new() };
        let clients: Vec<Client> = self.addresses().into_iter().map(|address| chroot.by(address).client()).collect();
        let mut disputed = Vec::new();
        poll::within(AGREEMENT, || {
            let views: Vec<_> = clients.iter().map(|client| witness::nodes(client, locks)).collect();
            let all: BTreeSet<_> = views.iter().flatten().cloned().collect();
            disputed = all.into_iter().filter(|node| !views.iter().all(|view| view.contains(node))).collect();
            disputed.is_empty().then_some(())
        });
        disputed
    }

    pub(crate) fn hurt(&self, record: &Record, rng: &mut Rng) {
        match self {
            Self::ZooKeeper(ensemble, ..) => faults::hurt_ensemble(ensemble, record, rng),
            Self::Etcd(etcd) => faults::hurt_etcd(etcd, record, rng),
        }
    }

    pub(crate) fn meddle(&self, locks: &[String], record: &Record, rng: &mut Rng) {
        if let Self::ZooKeeper(_, chroot, _) = self {
            faults::meddle(&chroot.client(), &self.addresses(), locks, record, rng);
        }
    }
}

/// An etcd with its own ports and its own data directory. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Etcd {
    port: u16,
    peer_port: u16,
    directory: PathBuf,
    process: Mutex<Child>,
}

impl Etcd {
    fn start(directory: &Path) -> Self {
        let (port, peer_port, directory) = (free_port(), free_port(), directory.join("etcd"));
        let process = Mutex::new(launch(port, peer_port, &directory));
        let etcd = Self { port, peer_port, directory, process };
        etcd.wait_until_serving();
        etcd
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    fn send(&self, signal: Signal) {
        let pid = lock(&self.process).id();
        process::send(Pid::from_raw(pid.try_into().expect("a process id is positive")), signal);
    }

    pub(crate) fn freeze(&self) {
        self.send(Signal::SIGSTOP);
    }

    pub(crate) fn thaw(&self) {
        self.send(Signal::SIGCONT);
    }

    /// SIGKILL. Returns when the process has ended.
    pub(crate) fn kill(&self) {
        self.send(Signal::SIGKILL);
        lock(&self.process).wait().expect("a child can be waited for");
    }

    /// Starts it again with its data, after [`Etcd::kill`].
    pub(crate) fn restart(&self) {
        *lock(&self.process) = launch(self.port, self.peer_port, &self.directory);
    }

    pub(crate) fn wait_until_serving(&self) {
        poll::until("etcd serves", || {
            let mut health = Command::new("etcdctl");
            health.env("ETCDCTL_API", "3").args(["--endpoints", &self.address(), "endpoint", "health"]);
            let status = health.stdout(Stdio::null()).stderr(Stdio::null()).status().expect("etcdctl can be started");
            status.success().then_some(())
        });
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn launch(port: u16, peer_port: u16, directory: &Path) -> Child {
    let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{peer_port}"));
    let log = File::options().create(true).append(true).open(directory.with_extension("log")).expect("a log file");
    let mut etcd = Command::new("etcd");
    etcd.args(["--name", "torture", "--data-dir"]).arg(directory);
    etcd.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
    etcd.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
    etcd.args(["--initial-cluster", &format!("torture={peer}")]);
    etcd.stdin(Stdio::null()).stdout(log.try_clone().expect("a descriptor for the log")).stderr(log);
    process::spawn(etcd, Seat::OwnGroup, &[])
        .unwrap_or_else(|error| panic!("cannot run etcd ({error}): apt-get install etcd-server"))
}
