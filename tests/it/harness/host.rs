//! Hosts with systemd as their first process, and a server that both of them know as zk1, zk2 and zk3.
//!
//! A host is this machine's /usr in namespaces of its own; [host.sh](host.sh) makes it in half a second. It has root's
//! rights, which a container would not have, and its loopback is its only network. There a listener of ours takes the
//! connections to port 2181, so each host has a network that a test can cut.

use std::fs::{self, File, Permissions};
use std::net::{Ipv4Addr, TcpListener};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;

use nix::sched::{CloneFlags, setns};
use nix::sys::signal::Signal;
use nix::unistd::{Pid, geteuid};
use serde_json::Value;
use tempfile::TempDir;

use super::client::Client;
use super::joblog::JobLog;
use super::moment::Moment;
use super::poll;
use super::process;
use super::proxy::Proxy;
use super::rights::{does, mounted};
use super::running::Running;
use super::secure::{Secure, say_plain};
use super::server::{Server, Settings};
use super::zklock::{Zklock, binary, child};

const SYSTEMD: &str = "/usr/lib/systemd/systemd";

/// The port of ZooKeeper for those who name none.
const PORT: u16 = 2181;

/// A directory as the hosts' /shared, a server, and two hosts.
///
/// What [`Host::write_logged`] writes tells in the log /shared/log when it runs.
#[derive(Debug)]
pub(crate) struct Site {
    pub(crate) a: Host,
    pub(crate) b: Host,
    pub(crate) server: Server,
    directory: TempDir,
}

impl Site {
    #[track_caller]
    pub(crate) fn new(settings: &Settings) -> Self {
        if Secure::used().is_some() {
            say_plain();
        }
        let directory = tempfile::tempdir().expect("a temporary directory");
        let server = settings.server();
        let [a, b] = ["a", "b"].map(|name| Host::boot(name, directory.path(), &server));
        Self { a, b, server, directory }
    }

    pub(crate) fn hosts(&self) -> [&Host; 2] {
        [&self.a, &self.b]
    }

    /// A file that the hosts have as /shared/NAME.
    pub(crate) fn shared(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn log(&self) -> JobLog {
        JobLog::read(self.shared("log"))
    }

    /// Waits until commands that write to the log have begun on these hosts, in this order, and on no others. None of
    /// them may have run beside another.
    #[track_caller]
    pub(crate) fn wait_begun(&self, order: &[&str]) {
        poll::until(format_args!("{order:?} have begun"), || (self.log().order().len() >= order.len()).then_some(()));
        let log = self.log();
        assert_eq!(log.order(), order);
        assert!(log.overlaps().is_empty(), "these ran at the same time: {:#?}", log.overlaps());
    }

    /// When the command on this host began that has begun last.
    #[track_caller]
    pub(crate) fn begin(&self, host: &str) -> Moment {
        Moment(self.log().runs().iter().rfind(|run| run.name == host).expect("it has run").begin)
    }

    /// Waits until the contenders for `lock` are on these hosts, in this order.
    #[track_caller]
    pub(crate) fn wait_queue(&self, lock: &str, hosts: &[&str]) {
        let client = Client::connect(&self.server.address());
        let host = |node: String| {
            let (card, _) = client.get(&format!("{lock}/{node}")).ok()?;
            Some(serde_json::from_slice::<Value>(&card).ok()?["host"].as_str()?.to_owned())
        };
        poll::until(format_args!("the queue of {lock} is {hosts:?}"), || {
            let queue = client.exists(lock).then(|| client.children(lock))?;
            (queue.into_iter().map(host).collect::<Option<Vec<_>>>()? == hosts).then_some(())
        });
    }
}

/// A host that has booted. Dropping it cuts its power; if the test has failed, its journal is shown before.
#[derive(Debug)]
pub(crate) struct Host {
    name: &'static str,
    /// unshare(1), which waits for systemd.
    running: Running,
    systemd: Pid,
    network: Proxy,
    cgroup: String,
}

impl Host {
    #[track_caller]
    fn boot(name: &'static str, directory: &Path, server: &Server) -> Self {
        let cgroup = new_cgroup(name);
        let mut words = words(directory, name, &cgroup).into_iter();
        let first = Zklock::bare().program(words.next().expect("a program")).args(words);
        let mut running = first.args([SYSTEMD, "--show-status=no"]).spawn();
        let systemd = poll::until(format_args!("host {name} has systemd"), || {
            assert!(!running.has_ended(), "host {name} does not boot\n{running}");
            process::children(running.pid()).pop().filter(|first| first.name == "systemd")
        });
        let network = Proxy::behind(listener_in(systemd.pid), &server.address());
        let host = Self { name, running, systemd: systemd.pid, network, cgroup };
        host.wait_for("systemctl is-system-running", "running\n");
        host
    }

    /// The way to the server.
    pub(crate) fn network(&self) -> &Proxy {
        &self.network
    }

    /// Has the network accept connections again, after [`Proxy::refuse`].
    #[track_caller]
    pub(crate) fn accept(&self) {
        self.network.accept_by(listener_in(self.systemd));
    }

    /// A file of this host.
    pub(crate) fn path(&self, path: &str) -> PathBuf {
        PathBuf::from(format!("/proc/{}/root{path}", self.systemd))
    }

    #[track_caller]
    pub(crate) fn write(&self, path: &str, mode: u32, text: &str) {
        let file = self.path(path);
        fs::create_dir_all(file.parent().expect("a file")).expect("a directory can be created");
        fs::write(&file, text).expect("a file can be written");
        fs::set_permissions(&file, Permissions::from_mode(mode)).expect("a file of ours");
    }

    /// Writes a program into /usr/local/bin.
    #[track_caller]
    pub(crate) fn write_program(&self, name: &str, script: &str) {
        self.write(&format!("/usr/local/bin/{name}"), 0o755, &format!("#!/bin/sh -e\n{script}\n"));
    }

    /// A command that writes to the log under the name of its host, until SIGTERM unless these further arguments of
    /// tests/child/main.rs say otherwise.
    #[track_caller]
    pub(crate) fn write_logged(&self, name: &str, arguments: &str) {
        let host = self.name;
        self.write_program(name, &format!("exec child --name {host} --beat --log /shared/log {arguments}"));
    }

    /// Writes a unit and has systemd read it.
    #[track_caller]
    pub(crate) fn write_unit(&self, name: &str, text: &str) {
        self.write(&format!("/etc/systemd/system/{name}"), 0o644, text);
        self.sh("systemctl daemon-reload");
    }

    /// What a script of shell, run by root of this host, writes to stdout and to stderr. The script must succeed.
    #[track_caller]
    pub(crate) fn sh(&self, script: &str) -> String {
        let output = self.try_sh(script);
        let said = both(&output);
        assert!(output.status.success(), "{script}: {}\n{said}", output.status);
        said
    }

    fn try_sh(&self, script: &str) -> Output {
        let mut command = Command::new("nsenter");
        command.args(["--all", "--target", &self.systemd.to_string(), "timeout", "60", "sh", "-euc", script]);
        command.env_clear().env("PATH", "/usr/local/bin:/usr/sbin:/usr/bin");
        command.output().expect("nsenter can be run")
    }

    /// Waits until a script of shell writes exactly this.
    #[track_caller]
    pub(crate) fn wait_for(&self, script: &str, expected: &str) {
        let mut said = String::new();
        let there = poll::within(poll::PATIENCE, || {
            said = both(&self.try_sh(script));
            (said == expected).then_some(())
        });
        assert!(there.is_some(), "{script} on host {}: {said:?}, not {expected:?}", self.name);
    }

    /// A property of a unit, as systemd shows it.
    #[track_caller]
    pub(crate) fn property(&self, unit: &str, name: &str) -> String {
        self.sh(&format!("systemctl show --value --property={name} {unit}")).trim_end().to_owned()
    }

    #[track_caller]
    pub(crate) fn wait_property(&self, unit: &str, name: &str, value: &str) {
        self.wait_for(&format!("systemctl show --value --property={name} {unit}"), &format!("{value}\n"));
    }

    /// Ends all of its processes at once. Returns when none is left.
    #[track_caller]
    pub(crate) fn cut_power(&mut self) {
        if !self.running.has_ended() {
            process::send(self.systemd, Signal::SIGKILL);
        }
        self.running.wait();
    }

    /// Returns when it has shut down by itself.
    #[track_caller]
    pub(crate) fn power_off(&mut self) {
        // It also says that it misses logind, which could have asked who objects.
        self.try_sh("systemctl poweroff");
        self.running.wait();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if thread::panicking() && !self.running.has_ended() {
            let journal = self.try_sh("journalctl --boot --output=short-monotonic --no-pager");
            println!("--- journal of host {}:\n{}", self.name, both(&journal));
        }
        self.cut_power();
        let removed = poll::within(poll::PATIENCE, || remove_cgroup(&self.cgroup).then_some(()));
        assert!(removed.is_some() || thread::panicking(), "the cgroup {} is left", self.cgroup);
    }
}

fn both(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

/// Words that run a program as the first process of a host.
fn words(directory: &Path, name: &str, cgroup: &str) -> Vec<String> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/it/harness/host.sh");
    let spaces = ["--mount", "--pid", "--uts", "--ipc", "--net"];
    let paths = [binary(), child()].map(|path| path.to_str().expect("UTF-8"));
    let directory = directory.to_str().expect("UTF-8");
    let words = [
        &["unshare", "--propagation", "private", "--fork", "--kill-child"],
        &spaces[..],
        &["sh", script, directory, name, cgroup],
        &paths,
    ];
    words.concat().into_iter().map(str::to_owned).collect()
}

/// Whether this machine can have hosts.
pub(super) fn can_boot() -> bool {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let cgroup = new_cgroup("probe");
    let boots = geteuid().is_root() && does(words(directory.path(), "probe", &cgroup), &["true"]);
    boots && remove_cgroup(&cgroup)
}

/// A listener on port 2181 of the network of this process.
#[track_caller]
fn listener_in(process: Pid) -> TcpListener {
    let network = File::open(format!("/proc/{process}/ns/net")).expect("the process lives");
    // setns(2) is about one thread.
    let bound = thread::spawn(move || {
        setns(network, CloneFlags::CLONE_NEWNET).expect("root may go there");
        TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT)).expect("the port is free")
    });
    bound.join().expect("a thread that does not panic")
}

/// A name for the cgroup that host.sh creates.
fn new_cgroup(host: &str) -> String {
    format!("zklock-test-{:08x}-{host}", fastrand::u32(..))
}

/// Removes it and what systemd has made below it. False while a process is left there.
fn remove_cgroup(name: &str) -> bool {
    let script = format!("cd /mnt && [ ! -e {name} ] || find {name} -depth -type d -exec rmdir {{}} +");
    does(mounted("mount -t cgroup2 cgroup /mnt"), &["sh", "-c", &script])
}
