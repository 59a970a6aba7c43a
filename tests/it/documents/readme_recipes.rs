//! The recipes of the README, each run with nothing in its environment but what cron, a CI
//! system, systemd or a script has there.
//!
//! A directory stands in for /usr/local/bin and for that of zklock, and a server of the tests for zk1, zk2 and zk3.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use zklock::cli::{self, Surroundings, Unread};

use crate::documents::readme::{Place, blocks_in, only_block_of_the_readme};
use crate::harness::proxy::Proxy;
use crate::harness::running::{Output, Running, finish};
use crate::harness::server::{Server, free_port};
use crate::harness::zklock::Zklock;

impl Place {
    pub(super) fn adapted(&self, text: &str) -> String {
        assert!(!text.contains("/usr/local/bin/zklock"), "the package has /usr/bin/zklock: {text}");
        let bin = self.path("bin/");
        let bin = bin.to_str().expect("UTF-8");
        let text = text.replace("/usr/bin/zklock ", &format!("{bin}zklock ")).replace("/usr/local/bin/", bin);
        text.replace("zk1,zk2,zk3", &self.chroot.to_string()).replace("/var/lib/", "")
    }

    /// `program` with this `PATH` and what the programs that recipes call need.
    pub(super) fn in_bare_environment(&self, program: &str, path: &str) -> Zklock {
        Zklock::bare()
            .cleared()
            .program(program)
            .directory(self.directory.path())
            .env("PATH", self.adapted(path))
            .env("CALLS", self.path("calls"))
    }

    /// A command line as cron(8) runs it.
    fn cron(&self, variables: &[(&str, &str)], command: &str) -> Zklock {
        let sh = self.in_bare_environment("/bin/sh", "/usr/bin:/bin").args(["-c", command]).env("SHELL", "/bin/sh");
        let sh = sh.env("HOME", self.directory.path()).env("LOGNAME", "ops");
        variables.iter().fold(sh, |sh, (name, value)| sh.env(name, value))
    }

    /// A zklock that holds `lock`.
    pub(super) fn hold(&self, lock: &str) -> Running {
        let mut holder = Zklock::at(&self.chroot).arg(lock).child(["--exit-on", "TERM"]).spawn();
        holder.wait_stdout("ready");
        holder
    }
}

/// The `PATH` of a service of systemd, in part.
pub(super) const PATH: &str = "/usr/local/bin/:/usr/bin:/bin";

/// What cron would mail.
pub(super) fn mail(output: &Output) -> String {
    output.stdout() + &output.stderr()
}

/// The system's configuration file and that of a user.
struct Files(String, String);

impl Surroundings for Files {
    fn variable(&self, name: &str) -> Option<OsString> {
        (name == "HOME").then(|| "/home/ops".into())
    }

    fn file(&self, path: &Path) -> Result<Vec<u8>, Unread> {
        let Self(systems, users) = self;
        if path == Path::new(cli::SYSTEMS) {
            return Ok(systems.clone().into());
        }
        assert_eq!(path, Path::new("/home/ops/.config/zklock.toml"));
        Ok(users.clone().into())
    }
}

/// Fails unless these are the settings that the README shows.
fn expect_settings(files: &Files) {
    let plan = cli::job(["zklock", "/l", "true"].map(OsString::from), files).expect("a plan");
    assert_eq!(plan.access.servers.to_string(), "zk1:2281,zk2:2281,zk3:2281/prod");
    assert_eq!(plan.settings.session_timeout.as_secs(), 40);
    let tls = plan.access.tls.expect("TLS");
    assert_eq!(tls.ca.as_deref(), Some(Path::new("/etc/zklock/ca.pem")));
    let own = tls.own.expect("a certificate");
    assert_eq!(own.certificate, Path::new("/home/ops/.config/zklock/client.pem"));
    assert_eq!(own.key(), Path::new("/home/ops/.config/zklock/client.key"));
    assert_eq!(plan.access.login.file.as_deref(), Some(Path::new("/home/ops/.config/zklock/login")));
}

#[test]
fn configuration_file_of_the_package() {
    let text = include_str!("../../../packaging/zklock.toml");
    assert!(text.lines().all(|line| line.is_empty() || line.starts_with('#')), "it sets something");
    // A comment has a blank behind the sign.
    let settings = |part: &str| part.replace("\n#", "\n").replace("\n ", "\n# ");
    let (systems, users) = text.split_once("\n# In ~/").expect("two parts");
    expect_settings(&Files(settings(systems), settings(&format!("#{users}"))));
}

#[test]
fn configuration_file() {
    let [systems, users] = <[_; 2]>::try_from(blocks_in("toml")).expect("two files");
    expect_settings(&Files(systems.text, users.text));

    let place = Place::new();
    let crontab = place.adapted(&only_block_of_the_readme("crontab").text);
    let job = crontab.lines().find(|line| line.contains("/jobs/prune")).expect("the job");
    let job = job.splitn(6, ' ').nth(5).expect("five fields and a command").trim();
    let file = place.path("zklock.toml");
    fs::write(&file, format!("zookeeper = '{}'", place.chroot)).expect("a file can be written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).expect("it is ours");
    let file = file.to_str().expect("UTF-8");
    assert_eq!(mail(&place.cron(&[("ZKLOCK_CONFIG", file)], job).run().expect_code(0)), "");
    assert_eq!(place.calls(), "prune under /jobs/prune: \n");
}

/// A text without its figures and the width of its columns.
fn as_words(text: &str) -> String {
    let text = text.replace(|c: char| c.is_ascii_digit() || c == '.', "");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The container of the block opens its port when the block has been waiting for it.
#[test]
fn quick_start() {
    let (place, server) = (Place::new(), Proxy::zookeeper(&Server::shared().address()));
    server.refuse();
    let is_it = |text: &String| text.contains("zklock check ");
    let block = blocks_in("text").into_iter().map(|block| block.text).find(is_it).expect("the quick start");
    let block = block.replace("localhost:2181", &server.address());
    let mut paste = place.in_bare_environment("bash", PATH).args(["-ec", &block]).spawn();
    paste.wait_stderr(&format!("waiting up to 15s for a ZooKeeper server: {}: Connection refused", server.address()));
    server.accept();
    let output = paste.wait().expect_code(0);
    // The page has its own server and figures.
    let shown =
        blocks_in("text").into_iter().map(|block| block.text).find(|text| text.starts_with("server ")).expect("it");
    for line in shown.lines().filter(|line| !line.starts_with("localhost:2181 ")) {
        assert!(as_words(&output.stdout()).contains(&as_words(line)), "{line}\n{output}");
    }
    let docker = "docker under nothing: run --detach --publish 127.0.0.1:2181:2181 zookeeper:3.9\n";
    assert_eq!(place.calls(), docker);
}

#[test]
fn crontab() {
    let place = Place::new();
    let crontab = place.adapted(&only_block_of_the_readme("crontab").text);
    let lines = crontab.lines().filter(|line| !line.starts_with('#'));
    let (jobs, variables): (Vec<_>, Vec<_>) = lines.partition(|line| line.starts_with(['*', '0']));
    let variables: Vec<_> = variables.into_iter().map(|line| line.split_once('=').expect("NAME=value")).collect();
    let commands: Vec<_> = jobs
        .iter()
        .map(|job| job.splitn(6, [' ', '\t']).nth(5).expect("five fields and a command").trim_start())
        .collect();
    let [waiting, nightly, hourly, skipping] = commands[..] else { panic!("four jobs: {commands:?}") };
    for job in [waiting, nightly, hourly, skipping] {
        assert_eq!(mail(&place.cron(&variables, job).run().expect_code(0)), "");
    }
    // Both halves of the gap, and a night without servers.
    let half =
        |job: &str, option: &str| job.split(option).nth(1).and_then(|rest| rest.split(' ').next().map(str::to_owned));
    for job in [nightly, hourly] {
        assert_eq!(half(job, " --once-per "), half(job, " -w "), "{job}");
    }
    assert!([waiting, nightly].iter().all(|job| job.contains(" --connect-timeout ")));
    let once = "backup under /jobs/backup: \nprune under /jobs/prune: \nreport under /jobs/report: \nfetch under /jobs/fetch: \n";
    assert_eq!(place.calls(), once);

    let mut holder = place.hold("/jobs/fetch");
    for job in [nightly, hourly, skipping] {
        assert_eq!(mail(&place.cron(&variables, job).run().expect_code(0)), "");
    }
    finish(&mut holder);
    assert_eq!(place.calls(), once, "the second host skips these jobs");
}

#[test]
fn script_tells_busy_from_unreachable() {
    let place = Place::new();
    let is_it = |text: &String| text.contains("migrated");
    let script = blocks_in("sh").into_iter().map(|block| block.text).find(is_it).expect("the script");
    let run = |servers: &str, options: &str| {
        let text = script.replace(" -w 10s ", options);
        assert_ne!(text, script);
        place.executable("script", &format!("#!/bin/sh -e\n{text}"));
        let script = place.in_bare_environment("./script", PATH);
        script.env("ZKLOCK_ZOOKEEPER", servers).run()
    };
    let chroot = place.chroot.to_string();
    assert_eq!(run(&chroot, " -w 1m ").expect_code(0).stdout(), "migrated\n");
    assert_eq!(place.calls(), "migrate.sh under /ops/migrate: \n");

    let mut holder = place.hold("/ops/migrate");
    let busy = run(&chroot, " -w 1s ").expect_code(0);
    finish(&mut holder);
    assert_eq!((busy.stdout().as_str(), busy.stderr().as_str()), ("another host is migrating\n", ""));

    let unused = format!("127.0.0.1:{}", free_port());
    let unknown = run(&unused, " -w 1m --connect-timeout 100ms ").expect_code(69);
    assert!(unknown.stdout().starts_with("ZooKeeper cannot be reached"), "{unknown}");
    assert!(unknown.stderr().contains(&unused), "{unknown}");

    place.executable("migrate.sh", "#!/bin/sh\nexit 3\n");
    assert_eq!(run(&chroot, " -w 1m ").expect_code(3).stdout(), "");
}
