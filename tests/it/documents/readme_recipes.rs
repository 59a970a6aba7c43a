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
use crate::harness::running::finish;
use crate::harness::running::{Output, Running};
use crate::harness::server::free_port;
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
    assert_eq!(plan.settings.session_timeout.as_secs(), 20);
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

/// The beginnings of scripts that hold a lock, as the README and `--help` show them, each with its shell and the line that
/// releases the lock.
fn holding_scripts() -> Vec<(&'static str, String, &'static str)> {
    let help = cli::Subcommand::Hold.command().render_long_help().to_string();
    let mut scripts = vec![];
    for text in [include_str!("../../../README.md"), &help] {
        let lines: Vec<_> = text.lines().map(str::trim).collect();
        for begin in (0..lines.len())
            .filter(|&number| lines[number].starts_with("ZKLOCK_TOKEN= ") || lines[number] == "ZKLOCK_TOKEN=")
        {
            let length =
                lines[begin..].iter().position(|line| line.starts_with("[ -n ")).expect("a script tests it") + 1;
            let script = lines[begin..][..length].join("\n").replace(" -w 10m ", " ") + "\n";
            let in_bash = script.contains("coproc");
            let (shell, close) = if in_bash { ("bash", "exec {ZK[1]}>&-") } else { ("sh", "kill $hold") };
            assert!(text.contains(&format!("{close}; wait $hold")), "{text}");
            scripts.push((shell, script, close));
        }
    }
    assert_eq!(scripts.len(), 3, "{scripts:?}");
    scripts
}

/// Runs a script, in a shell that stops at errors and at unset variables, and in one that does not.
fn in_both_ways(place: &Place, shell: &str, script: &str) -> [Output; 2] {
    ["-eu", "+e"].map(|how| {
        let shell = place.in_bare_environment(shell, PATH).args([how, "-c", script]);
        shell.env("ZKLOCK_ZOOKEEPER", place.chroot.to_string()).env("ZKLOCK_TOKEN", "1").run()
    })
}

#[test]
fn scripts_that_do_not_get_a_lock_end_with_the_status_of_hold() {
    let place = Place::new();
    let mut holder = place.hold("/deploy");
    for (shell, take, _) in holding_scripts() {
        let twice =
            take.replace(" /deploy", " /other") + "echo first\n" + &take.replace("zklock hold ", "zklock hold -n ");
        let again = format!("{twice}echo second\n");
        for output in in_both_ways(&place, shell, &take.replace("zklock hold ", "zklock hold -n ")) {
            assert!(mail(&output.expect_code(75)).starts_with("zklock: /deploy is not free"), "{take}");
        }
        // The first one has left its token in the environment, and so has an outer zklock.
        let outer = "export ZKLOCK_TOKEN; exec zklock /outer -- ".to_owned() + shell + " -c '" + &again + "'";
        for script in [&again, &outer] {
            for output in in_both_ways(&place, shell, script) {
                assert_eq!(output.expect_code(75).stdout(), "first\n", "{script}");
            }
        }
        let unreachable = format!("zklock hold -z 127.0.0.1:{} --connect-timeout 100ms ", free_port());
        for output in in_both_ways(&place, shell, &(take.replace("zklock hold ", &unreachable) + "echo went on\n")) {
            assert_eq!(output.expect_code(69).stdout(), "", "{take}");
        }
    }
    finish(&mut holder);
}

#[test]
fn scripts_that_release_a_lock_before_they_end() {
    let place = Place::new();
    for (shell, take, release) in holding_scripts() {
        let section = format!("{take}zklock -n /deploy echo nested\n{release}; wait $hold\necho released, $?\n");
        let free = "zklock status -q /deploy || echo free\nzklock -n /deploy echo alone\n";
        let script = section.clone() + free + &section;
        for output in in_both_ways(&place, shell, &script) {
            let expected = "nested\nreleased, 0\nfree\nalone\nnested\nreleased, 0\n";
            assert_eq!(mail(&output.expect_code(0)), expected, "{script}");
        }
        // With the same lock outside.
        let outer = format!("exec zklock /deploy -- {shell} -c '{section}'");
        for output in in_both_ways(&place, shell, &outer) {
            assert_eq!(mail(&output.expect_code(0)), "nested\nreleased, 0\n", "{outer}");
        }
    }
}

#[test]
fn script_that_holds_a_lock() {
    let place = Place::new();
    let text = place.adapted(&only_block_of_the_readme("bash").text);
    let run = |text: &str| {
        let script = place.in_bare_environment("bash", PATH).args(["-c", text]);
        script.env("ZKLOCK_ZOOKEEPER", place.chroot.to_string()).run()
    };
    assert_eq!(mail(&run(&text).expect_code(0)), "");
    let mut holder = place.hold("/deploy");
    assert!(mail(&run(&text.replace(" -w 10m ", " -n ")).expect_code(75)).contains("/deploy is not free"));
    finish(&mut holder);
    assert_eq!(place.calls(), "deploy.sh under /deploy: \n");
}
