//! Real ZooKeeper servers on loopback: from Debian's package libzookeeper-java, or the ones that
//! [`release`](super::release) is told of.
//!
//! [`Server::shared`] and `Ensemble::shared` are for every test that only uses them; each test works in a
//! `Chroot` of its own there. A test that hurts a server starts one of its own. All of them end with the test
//! process, however that ends, and their directories are removed.
//!
//! A tick is 200 ms and a session lasts at least 400 ms, so tests with short sessions are quick. initLimit and
//! syncLimit are 10 s and 5 s: a follower that was cut off goes on answering its clients for 5 s, while the leader lets
//! their sessions expire.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::ensemble::Chroot;
use super::poll;
use super::process::{self, Seat};
use super::release::Release;
use super::secure::{self, Secure};

/// How to run a server, beyond what every server here has.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    lines: Vec<String>,
    properties: Vec<String>,
    pub(super) proxied: bool,
    secure: bool,
}

impl Settings {
    /// A line of zoo.cfg, such as `maxSessionTimeout=2000`. It takes precedence over the lines that are there anyway.
    pub(crate) fn line(mut self, line: impl Into<String>) -> Self {
        self.lines.push(line.into());
        self
    }

    /// A property of the virtual machine, such as `znode.container.checkIntervalMs=500`, without `-D`.
    pub(crate) fn property(mut self, property: impl fmt::Display) -> Self {
        self.properties.push(format!("-D{property}"));
        self
    }

    /// The servers of an ensemble reach each other through proxies, see [`Ensemble::link`].
    pub(crate) fn proxied(mut self) -> Self {
        self.proxied = true;
        self
    }

    /// There is another port, for TLS; see [`Server::secure_address`].
    pub(super) fn secure(mut self) -> Self {
        self.secure = true;
        self
    }

    pub(crate) fn server(&self) -> Server {
        for _ in 0..BIND_ATTEMPTS {
            let server = Server::new(1, self, "");
            server.begin();
            if server.comes_up() {
                return server;
            }
        }
        panic!("no server came up on {BIND_ATTEMPTS} different ports");
    }
}

/// A port that was free may be taken before the server binds it.
pub(super) const BIND_ATTEMPTS: usize = 5;

/// What becomes of a server's data when it is started again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Data {
    Kept,
    Wiped,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Standalone,
    Leader,
    Follower,
}

#[derive(Debug)]
pub(crate) struct Server {
    pub(super) id: usize,
    port: u16,
    secure_port: Option<u16>,
    directory: PathBuf,
    config: String,
    properties: Vec<String>,
    process: Mutex<Option<Child>>,
}

impl Server {
    /// The standalone server that all tests share. Not to be hurt.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<Server> = OnceLock::new();
        SHARED.get_or_init(Self::start)
    }

    pub(crate) fn start() -> Self {
        Settings::default().server()
    }

    pub(super) fn new(id: usize, settings: &Settings, peers: &str) -> Self {
        let port = free_port();
        let directory = scratch().join(format!("{port}"));
        fs::create_dir(&directory).expect("a directory for a server");
        fs::write(directory.join("myid"), id.to_string()).expect("myid can be written");
        let secure_port = settings.secure.then(free_port);
        let secure = secure_port
            .map_or_else(String::new, |port| format!("secureClientPort={port}\nsecureClientPortAddress=127.0.0.1\n"));
        // Those that serve TLS on a port of its own have certificates of their own.
        let switched = Secure::used().filter(|_| !settings.secure).map_or_else(String::new, Secure::lines);
        let config = format!(
            "tickTime=200\nminSessionTimeout=400\nmaxSessionTimeout=120000\ninitLimit=50\nsyncLimit=25\n\
             dataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n\
             4lw.commands.whitelist=*\nmaxClientCnxns=0\n{secure}{switched}{peers}{}\n",
            directory.display(),
            settings.lines.join("\n"),
        );
        let properties = settings.properties.clone();
        Self { id, port, secure_port, directory, config, properties, process: Mutex::new(None) }
    }

    pub(crate) fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    pub(crate) fn secure_address(&self, host: &str) -> String {
        format!("{host}:{}", self.secure_port.expect("a server with a port for TLS"))
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    pub(crate) fn chroot(&self) -> Chroot {
        Chroot::create(self.address())
    }

    /// The process of the server. Panics when it is not running.
    #[track_caller]
    pub(crate) fn pid(&self) -> Pid {
        self.running_pid().expect("the server is running")
    }

    fn running_pid(&self) -> Option<Pid> {
        let process = self.lock();
        process.as_ref().map(|child| Pid::from_raw(child.id().try_into().expect("a process id is positive")))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<Child>> {
        // A test that panicked while it held the lock has left nothing half done.
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// SIGSTOP. Returns when the server has stopped; connections stay open and are not answered.
    #[track_caller]
    pub(crate) fn freeze(&self) {
        process::stop(self.pid());
    }

    #[track_caller]
    pub(crate) fn thaw(&self) {
        process::send(self.pid(), Signal::SIGCONT);
    }

    /// SIGKILL. Returns when the server has gone.
    pub(crate) fn kill(&self) {
        let Some(pid) = self.running_pid() else { return };
        process::send(pid, Signal::SIGKILL);
        poll::until("the server ends", || {
            let mut process = self.lock();
            if process.as_mut()?.try_wait().expect("a child can be waited for").is_some() {
                *process = None;
            }
            process.is_none().then_some(())
        });
    }

    /// Starts it again on the same port, after SIGKILL when it still runs. Returns when it serves.
    #[track_caller]
    pub(crate) fn restart(&self, data: Data) {
        self.restart_in_background(data);
        self.wait_until_serving();
    }

    /// Like [`Server::restart`], but returns at once.
    pub(crate) fn restart_in_background(&self, data: Data) {
        self.kill();
        if data == Data::Wiped {
            fs::remove_dir_all(self.directory.join("version-2")).expect("the data can be removed");
        }
        self.begin();
    }

    /// Waits until the server answers `srvr` with its mode: standalone, or part of an ensemble that has a leader.
    #[track_caller]
    pub(crate) fn wait_until_serving(&self) {
        assert!(self.comes_up(), "server {} ended:\n{}", self.id, self.log());
    }

    pub(super) fn begin(&self) {
        let path = self.directory.join("zoo.cfg");
        fs::write(&path, &self.config).expect("zoo.cfg can be written");
        let log = File::options().create(true).append(true).open(self.directory.join("log")).expect("a log file");
        let release = Release::used();
        let mut java = Command::new("java");
        java.args(["-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"])
            // Nothing left in /tmp/hsperfdata_USER.
            .arg("-XX:-UsePerfData")
            // 3.5 and 3.6 take the names of containers for the locale's, and would not remove one with an umlaut.
            .arg("-Dfile.encoding=UTF-8")
            // Nothing here needs to outlive a power cut, and a test machine's disk may be slow.
            .args(["-Dzookeeper.forceSync=no", "-Dzookeeper.preAllocSize=1024"])
            // Containers stay where they are, unless a test is about that.
            .arg("-Dznode.container.checkIntervalMs=86400000")
            .args(&self.properties)
            .args(["-cp", &release.class_path, &release.main])
            .arg(path)
            .stdin(Stdio::null())
            .stdout(log.try_clone().expect("a descriptor for the log"))
            .stderr(log);
        let child = process::spawn(java, Seat::OwnGroup, &[])
            .unwrap_or_else(|error| panic!("cannot run java ({error}): apt-get install default-jre-headless"));
        *self.lock() = Some(child);
    }

    /// Waits until it serves; false when it ends instead, as it does when its port is taken.
    pub(super) fn comes_up(&self) -> bool {
        poll::until(format_args!("server {} serves; see {}", self.id, self.directory.display()), || {
            // It listens on the port for TLS a moment after it answers on the other one.
            if self.role().is_some() && self.secure_port.is_none_or(listens) {
                return Some(true);
            }
            let mut process = self.lock();
            let ended = process.as_mut().is_none_or(|child| child.try_wait().is_ok_and(|status| status.is_some()));
            ended.then(|| {
                *process = None;
                false
            })
        })
    }

    pub(crate) fn log(&self) -> String {
        fs::read(self.directory.join("log")).map(|log| String::from_utf8_lossy(&log).into_owned()).unwrap_or_default()
    }

    /// The answer to one of ZooKeeper's four-letter words: `srvr`, `mntr`, `cons`, `wchp`, `wchc`, `dump` and so on.
    ///
    /// # Errors
    /// When the server does not answer within two seconds, or at all.
    pub(crate) fn ask(&self, word: &str) -> io::Result<String> {
        let limit = Duration::from_secs(2);
        let mut stream = TcpStream::connect_timeout(&SocketAddr::from((Ipv4Addr::LOCALHOST, self.port)), limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(secure::word(word).as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        Ok(answer)
    }

    /// Like [`Server::ask`], again and again until there is an answer.
    #[track_caller]
    pub(crate) fn tell(&self, word: &str) -> String {
        poll::until(format_args!("an answer to {word}"), || self.ask(word).ok())
    }

    pub(crate) fn sessions(&self) -> BTreeSet<i64> {
        let dump = self.tell("dump");
        let ids = dump.lines().filter_map(|line| line.trim().strip_prefix("0x"));
        ids.filter_map(|digits| u64::from_str_radix(digits.trim_end_matches(':'), 16).ok())
            .map(u64::cast_signed)
            .collect()
    }

    /// One figure of `mntr`, such as `zk_watch_count` or `zk_packets_received`.
    #[track_caller]
    pub(crate) fn figure(&self, name: &str) -> i64 {
        let answer = self.tell("mntr");
        let value = answer.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        value.unwrap_or_else(|| panic!("no {name} in:\n{answer}"))
    }

    pub(crate) fn role(&self) -> Option<Role> {
        let answer = self.ask("srvr").ok()?;
        let mode = answer.lines().find_map(|line| line.strip_prefix("Mode: "))?;
        Release::used().expect_in(&answer);
        match mode {
            "standalone" => Some(Role::Standalone),
            "leader" => Some(Role::Leader),
            "follower" => Some(Role::Follower),
            other => panic!("unknown mode {other:?}"),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.kill();
        // When this fails, the janitor tries again.
        let _ = fs::remove_dir_all(&self.directory);
    }
}

fn listens(port: u16) -> bool {
    TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_ok()
}

/// A port that nothing listens on, never given twice to this process.
///
/// It is below the range from which Linux takes ports for outgoing connections (ip_local_port_range, ip(7)): no client
/// can sit on it while a server restarts, and none can connect to itself while nothing listens.
pub(crate) fn free_port() -> u16 {
    listener().0
}

/// The same, and something listens on it.
pub(crate) fn listener() -> (u16, TcpListener) {
    static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());
    let mut given = GIVEN.lock().unwrap_or_else(PoisonError::into_inner);
    poll::until("a free port", || {
        let port = fastrand::u16(15_000..32_000);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).ok()?;
        given.insert(port).then_some((port, listener))
    })
}

/// The directory for this process's servers. It is removed when the process ends, however it ends.
pub(super) fn scratch() -> &'static Path {
    // A shared server is a static, and statics are not dropped. So a janitor waits for the end of a pipe that only
    // this process holds, and cleans up then.
    static SCRATCH: OnceLock<(PathBuf, ChildStdin)> = OnceLock::new();
    let (path, _pipe) = SCRATCH.get_or_init(|| {
        let path = tempfile::Builder::new().prefix("zklock-test-").tempdir().expect("a temporary directory").keep();
        // The servers die at the same moment as this process; one that is not quite dead may still write.
        let script = r#"cat; for try in 1 2 3 4 5 6 7 8 9; do rm -rf -- "$1" && break; sleep 1; done"#;
        let janitor = Command::new("sh")
            .args(["-c", script, "janitor"])
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn();
        (path, janitor.expect("sh can be started").stdin.expect("a pipe was asked for"))
    });
    path
}
