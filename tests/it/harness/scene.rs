//! One lock, the contenders for it, and a witness: what the tests of loss, recovery and outage have in common.
//!
//! Every command of a scene writes to one log, every few milliseconds while it lives. So the log tells when a command
//! was last alive, however it died, and whether two of them ever overlapped.

use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;
use nix::time::{ClockId, clock_gettime};
use tempfile::TempDir;

use super::client::{Client, Kind, Refusal, Stat};
use super::ensemble::Chroot;
use super::joblog::JobLog;
use super::poll;
use super::proxy::Proxy;
use super::running::Running;
use super::server::Server;
use super::zklock::Zklock;

/// The path of the lock.
pub(crate) const LOCK: &str = "/lock";

/// The session timeout of a scene's contenders, unless they are given another. Long enough that a machine that stalls for
/// two seconds loses nobody the lock.
pub(crate) const T: Duration = Duration::from_secs(8);

/// How long a lease lasts from the last answered beat, under [`T`].
pub(crate) const LEASE: Duration = Duration::from_millis(5200);

/// Options of a holder of which the stop signal is to be seen, under [`T`]: time for its command to say that it got it,
/// and for zklock to be late without the keeper being first. The lease leaves less of it than zklock recommends, about
/// which it is to be quiet.
pub(crate) const GRACE: [&str; 3] = ["--quiet", "--kill-after", "1300ms"];

/// Options of a holder that nothing is to happen to, however slow the machine.
pub(crate) const LASTING: [&str; 2] = ["--session-timeout", "20"];

/// What may pass on a loaded machine before something that happens "at once" has happened. Where it would happen by
/// itself in the end, as when a session expires, that takes longer.
pub(crate) const AT_ONCE: Duration = Duration::from_secs(5);

/// The session timeout of [plain] contenders: long enough not to lose the lock on a machine that is slow for seconds.
///
/// [plain]: Scene::start_plain
const PLAIN: Duration = Duration::from_secs(20);

const SESSION_TIMEOUT: &str = "ZKLOCK_SESSION_TIMEOUT";

/// How late a loaded machine may be with what has its time. Without the margins of the lease a command would live for
/// longer than that.
const LATE: Duration = Duration::from_secs(1);

/// One lock.
#[derive(Debug)]
pub(crate) struct Scene {
    place: Chroot,
    /// Looks at the lock by a way that is not disturbed.
    pub(crate) witness: Client,
    directory: TempDir,
}

/// A contender's node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Contender {
    /// Its path, as commands see it in `ZKLOCK_NODE`.
    pub(crate) path: String,
    /// What the server knows of it.
    pub(crate) stat: Stat,
}

impl Scene {
    /// In a chroot. The lock's node exists, and stays.
    #[track_caller]
    pub(crate) fn new(place: Chroot) -> Self {
        let witness = place.client();
        witness.create(LOCK, b"", Kind::Persistent).expect("the lock can be created");
        Self { place, witness, directory: tempfile::tempdir().expect("a temporary directory") }
    }

    /// On the shared server.
    #[track_caller]
    pub(crate) fn shared() -> Self {
        Self::new(Server::shared().chroot())
    }

    /// On the shared server, with a way to it that can be disturbed.
    #[track_caller]
    pub(crate) fn proxied() -> (Self, Proxy) {
        (Self::shared(), Proxy::zookeeper(&Server::shared().address()))
    }

    /// Starts a contender that reaches the servers by `addresses`, with these options of zklock. Its command is the
    /// child of tests/child/main.rs, by the name `name` and with these further arguments.
    #[track_caller]
    pub(crate) fn start(&self, addresses: &str, name: &str, options: &[&str], child: &[&str]) -> Running {
        self.job(addresses, name, options, child).spawn()
    }

    /// Like [`Scene::start`], without starting it.
    pub(crate) fn job(&self, addresses: &str, name: &str, options: &[&str], child: &[&str]) -> Zklock {
        self.job_at(&self.place.by(addresses), name, options, child).env(SESSION_TIMEOUT, T.as_secs().to_string())
    }

    /// A contender whose command is `program`, of which the log tells nothing.
    pub(crate) fn program(&self, addresses: &str, options: &[&str], program: &Path) -> Zklock {
        let job = Zklock::at(self.place.by(addresses)).arg(LOCK).args(options).arg("--").arg(program);
        job.env(SESSION_TIMEOUT, T.as_secs().to_string())
    }

    fn job_at(&self, place: &Chroot, name: &str, options: &[&str], child: &[&str]) -> Zklock {
        let log = self.directory.path().join("log");
        Zklock::at(place)
            .arg(LOCK)
            .args(options)
            .directory(self.directory.path())
            .child(["--name", name, "--env", "--beat", "--log", log.to_str().expect("a path in UTF-8")])
            .args(child)
    }

    /// Starts a contender of which nothing special is wanted: it reaches the servers by an undisturbed way, and its
    /// command ends on SIGTERM.
    #[track_caller]
    pub(crate) fn start_plain(&self, name: &str) -> Running {
        let job = self.job_at(&self.place, name, &[], &["--exit-on", "TERM"]);
        job.env(SESSION_TIMEOUT, PLAIN.as_secs().to_string()).spawn()
    }

    /// A [plain] contender whose command runs.
    ///
    /// [plain]: Scene::start_plain
    #[track_caller]
    pub(crate) fn hold(&self) -> Running {
        let mut holder = self.start_plain("holder");
        holder.wait_stdout("ready");
        holder
    }

    /// A [plain] contender that has queued behind `before` others.
    ///
    /// [plain]: Scene::start_plain
    #[track_caller]
    pub(crate) fn queue(&self, name: &str, before: usize) -> Running {
        let waiter = self.start_plain(name);
        self.witness.wait_count(LOCK, before + 1);
        waiter
    }

    /// A holder that reaches the servers by `addresses`, and whose command nothing but SIGKILL ends, and a [plain]
    /// waiter behind it.
    ///
    /// [plain]: Scene::start_plain
    #[track_caller]
    pub(crate) fn holder_and_next(&self, addresses: &str, options: &[&str]) -> (Running, Running) {
        let mut holder = self.start(addresses, "holder", options, &["--wait"]);
        holder.wait_stdout("ready");
        (holder, self.queue("next", 1))
    }

    /// Creates a file in the directory of the commands.
    pub(crate) fn touch(&self, name: &str) {
        std::fs::write(self.directory.path().join(name), "").expect("a file can be created");
    }

    /// The text of a file in the directory of the commands.
    #[track_caller]
    pub(crate) fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.directory.path().join(name)).expect("a file that can be read")
    }

    /// What the commands have written.
    pub(crate) fn log(&self) -> JobLog {
        JobLog::read(self.directory.path().join("log"))
    }

    /// Waits until the command `name` has been alive at `when`.
    #[track_caller]
    pub(crate) fn wait_alive_at(&self, name: &str, when: Moment) {
        poll::until(format_args!("{name} is alive {:?} from now", when.since(Moment::now())), || {
            self.log().runs().iter().any(|run| run.name == name && run.last >= when.0).then_some(())
        });
    }

    /// When the command `name` was last alive.
    #[track_caller]
    pub(crate) fn last_alive(&self, name: &str) -> Moment {
        let log = self.log();
        Moment(log.runs().iter().rfind(|run| run.name == name).unwrap_or_else(|| panic!("{name} never ran")).last)
    }

    /// When the command `name` began.
    #[track_caller]
    pub(crate) fn begin(&self, name: &str) -> Moment {
        let log = self.log();
        Moment(log.runs().iter().rfind(|run| run.name == name).unwrap_or_else(|| panic!("{name} never ran")).begin)
    }

    /// The contenders, in their order.
    #[track_caller]
    pub(crate) fn contenders(&self) -> Vec<Contender> {
        let paths = self.witness.children(LOCK).into_iter().map(|name| format!("{LOCK}/{name}"));
        let stat = |path: &str| match self.witness.get(path) {
            Ok((_, stat)) => Some(stat),
            Err(Refusal::NO_NODE) => None,
            Err(refusal) => panic!("{path}: {refusal}"),
        };
        paths.filter_map(|path| stat(&path).map(|stat| Contender { path, stat })).collect()
    }

    /// The only contender. Panics when there is another number of them.
    #[track_caller]
    pub(crate) fn only_contender(&self) -> Contender {
        let [contender] = <[_; 1]>::try_from(self.contenders()).unwrap_or_else(|all| panic!("not one: {all:?}"));
        contender
    }

    /// Waits until the command of `job` runs, lets it end by SIGTERM, and waits for the end of zklock.
    #[track_caller]
    pub(crate) fn finish(&self, job: &mut Running) {
        if !job.stdout().contains(" ready\n") {
            job.wait_stdout("ready");
        }
        job.signal(Signal::SIGTERM);
        job.wait().expect_code(0);
    }

    /// Panics unless the commands ran in this order, none beside another. Waits until no contender is left. That no
    /// process is left, each [`Running`] sees to when it is dropped.
    #[track_caller]
    pub(crate) fn expect_tidy(&self, order: &[&str]) {
        let log = self.log();
        assert_eq!(log.order(), order);
        if order.len() > 1 {
            log.expect_no_overlap();
        }
        self.witness.wait_count(LOCK, 0);
    }
}

/// What zklock told the command that runs, as [`child --env`] shows it.
///
/// [`child --env`]: Scene::start
#[track_caller]
pub(crate) fn variable(job: &Running, name: &str) -> String {
    let stdout = job.stdout();
    let value = stdout.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
    value.unwrap_or_else(|| panic!("no {name}\n{job}")).to_owned()
}

/// A time by CLOCK_BOOTTIME, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(u64);

impl Moment {
    /// This moment.
    pub(crate) fn now() -> Self {
        let now = Duration::from(clock_gettime(ClockId::CLOCK_BOOTTIME).expect("the clock can be read"));
        Self(now.as_nanos().try_into().expect("a machine is not up for centuries"))
    }

    /// This long after it.
    pub(crate) fn after(self, time: Duration) -> Self {
        Self(self.0 + u64::try_from(time.as_nanos()).expect("a short time"))
    }

    /// The same as a time since the boot.
    pub(crate) fn since_boot(self) -> Duration {
        Duration::from_nanos(self.0)
    }

    /// How long after `earlier` this was; zero when it was before.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// Panics unless this was at most `limit` after `earlier`.
    #[track_caller]
    pub(crate) fn expect_within(self, limit: Duration, earlier: Self, what: &str) {
        let took = self.since(earlier);
        assert!(took <= limit + LATE, "{what}: after {took:?}, not {limit:?}");
    }
}
