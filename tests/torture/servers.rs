//! The servers that the locks are on: three of ZooKeeper, or three of etcd.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Mutex;
use std::time::Duration;

use fastrand::Rng;
use nix::unistd::Pid;

use crate::checker::Time;
use crate::faults;
use crate::harness::client::Client;
use crate::harness::ensemble::{Chroot, Ensemble};
use crate::harness::poll;
use crate::harness::process::{self, Seat};
use crate::harness::proxy::Proxy;
use crate::harness::server::{Data, Role, Server, Settings, free_port};
use crate::record::{Record, lock};
use crate::tool::Tool;
use crate::witness;

/// Servers that disagree for this long will always disagree.
const AGREEMENT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(crate) enum Servers {
    /// With a client that no fault of the network reaches, in the same chroot as the contenders.
    ZooKeeper(Ensemble, Chroot, Client),
    /// They are not watched: all that is known comes from the contenders' commands.
    Etcd(Vec<Etcd>),
}

impl Servers {
    /// Starts the servers that the tool needs, and waits until they serve.
    pub(crate) fn start(tool: Tool, directory: &Path) -> Self {
        if tool == Tool::Etcdctl {
            return Self::Etcd(Etcd::start_three(directory));
        }
        let ensemble = Settings::default().proxied().ensemble();
        let chroot = ensemble.chroot();
        let client = chroot.client();
        Self::ZooKeeper(ensemble, chroot, client)
    }

    fn members(&self) -> Vec<&dyn Member> {
        match self {
            Self::ZooKeeper(ensemble, ..) => ensemble.servers().iter().map(|server| server as &dyn Member).collect(),
            Self::Etcd(servers) => servers.iter().map(|server| server as &dyn Member).collect(),
        }
    }

    fn addresses(&self) -> Vec<String> {
        self.members().iter().map(|server| server.address()).collect()
    }

    pub(crate) fn network(&self) -> Vec<Proxy> {
        let way = |address: &String| match self {
            Self::ZooKeeper(..) => Proxy::zookeeper(address),
            Self::Etcd(_) => Proxy::plain(address.parse().expect("an address and a port")),
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
        let ensemble = match self {
            Self::ZooKeeper(ensemble, ..) => Some(ensemble),
            Self::Etcd(_) => None,
        };
        faults::hurt_servers(&self.members(), ensemble, record, rng);
    }

    pub(crate) fn meddle(&self, locks: &[String], record: &Record, rng: &mut Rng) {
        if let Self::ZooKeeper(_, chroot, _) = self {
            faults::meddle(&chroot.client(), &self.addresses(), locks, record, rng);
        }
    }
}

/// One of the three servers, whichever tool they are for.
pub(crate) trait Member {
    fn address(&self) -> String;
    fn pid(&self) -> Pid;
    fn leads(&self) -> bool;
    /// SIGKILL. Returns when the process has ended.
    fn kill(&self);
    /// Starts it again with its data, after SIGKILL when it still runs. Returns at once.
    fn restart(&self);
    fn wait_until_serving(&self);
}

impl Member for Server {
    fn address(&self) -> String {
        self.address()
    }

    fn pid(&self) -> Pid {
        self.pid()
    }

    fn leads(&self) -> bool {
        self.role() == Some(Role::Leader)
    }

    fn kill(&self) {
        self.kill();
    }

    fn restart(&self) {
        self.restart_in_background(Data::Kept);
    }

    fn wait_until_serving(&self) {
        self.wait_until_serving();
    }
}

/// A server of etcd with its own ports and its own data directory. It is killed when this is dropped.
#[derive(Debug)]
pub(crate) struct Etcd {
    address: String,
    arguments: Vec<String>,
    log: PathBuf,
    process: Mutex<Child>,
}

impl Etcd {
    fn start_three(directory: &Path) -> Vec<Self> {
        let peers = ["etcd-1", "etcd-2", "etcd-3"].map(|name| (name, format!("http://127.0.0.1:{}", free_port())));
        let cluster = peers.each_ref().map(|(name, peer)| format!("{name}={peer}")).join(",");
        let start = |(name, peer): &(&str, String)| {
            let (address, data) = (format!("127.0.0.1:{}", free_port()), directory.join(name));
            let client = format!("http://{address}");
            let arguments = vec![
                format!("--name={name}"),
                format!("--data-dir={}", data.display()),
                format!("--listen-client-urls={client}"),
                format!("--advertise-client-urls={client}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster={cluster}"),
            ];
            let log = data.with_extension("log");
            let process = Mutex::new(launch(&arguments, &log));
            Self { address, arguments, log, process }
        };
        let servers = Vec::from(peers.each_ref().map(start));
        servers.iter().for_each(Member::wait_until_serving);
        servers
    }

    /// What `etcdctl endpoint WHAT` says about this server, if it succeeds.
    fn ask(&self, what: &str) -> Option<String> {
        let mut etcdctl = Command::new("etcdctl");
        etcdctl.env("ETCDCTL_API", "3").args(["--endpoints", &self.address, "endpoint", what]);
        let output = etcdctl.output().expect("etcdctl can be started");
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
    }
}

impl Member for Etcd {
    fn address(&self) -> String {
        self.address.clone()
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(lock(&self.process).id().try_into().expect("a process id is positive"))
    }

    /// Of the fields, only two are `true` or `false`: whether it leads, and whether it is a learner, which none is.
    fn leads(&self) -> bool {
        self.ask("status").is_some_and(|status| status.contains(", true, "))
    }

    fn kill(&self) {
        let mut process = lock(&self.process);
        process.kill().expect("a child can be killed");
        process.wait().expect("a child can be waited for");
    }

    fn restart(&self) {
        self.kill();
        *lock(&self.process) = launch(&self.arguments, &self.log);
    }

    fn wait_until_serving(&self) {
        poll::until("etcd serves", || self.ask("health"));
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        self.kill();
    }
}

fn launch(arguments: &[String], log: &Path) -> Child {
    let log = File::options().create(true).append(true).open(log).expect("a log file");
    let mut etcd = Command::new("etcd");
    etcd.args(arguments).stdin(Stdio::null()).stdout(log.try_clone().expect("a descriptor for the log")).stderr(log);
    process::spawn(etcd, Seat::OwnGroup, &[])
        .unwrap_or_else(|error| panic!("cannot run etcd ({error}): apt-get install etcd-server"))
}
