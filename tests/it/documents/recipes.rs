//! The recipes of docs/recipes.md, as the systems run them for which they are written. The scripts among them are run by
//! readme.rs as well.
//!
//! A directory stands in for /usr/local/bin and for that of zklock, and a server of the tests for zk1, zk2 and zk3.

use std::fs;
use std::process::Command;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::documents::readme::{Block, Place, blocks_in, only_block_of_the_readme, recipe, recipes};
use crate::documents::readme_recipes::{PATH, mail};
use crate::harness::client::{Client, Refusal};
use crate::harness::poll;
use crate::harness::process;
use crate::harness::running::{Running, finish};
use crate::harness::zklock::Zklock;

const BUSY: i32 = 75;

/// Recipes in other languages than shell. Each has a test below; no other test runs them.
const TESTED_HERE: [&str; 5] =
    ["A systemd timer on several hosts", "GitHub Actions", "GitLab CI", "Jenkins", "A Kubernetes CronJob"];

/// This one is in bash, and has its tests in hold_recipes.rs.
const HOLD: &str = "Hold a lock in a script";

#[test]
fn every_recipe_is_run() {
    let not_sh = |(heading, blocks): (&'static str, Vec<Block>)| {
        blocks.iter().any(|block| block.language != "sh").then_some(heading)
    };
    let found: Vec<_> = recipes().into_iter().filter_map(not_sh).filter(|heading| *heading != HOLD).collect();
    assert_eq!(found, TESTED_HERE);
}

impl Place {
    /// The only block of a recipe.
    fn only(&self, heading: &str) -> String {
        let [block] = <[_; 1]>::try_from(recipe(heading)).expect("one block");
        self.adapted(&block.text)
    }

    /// The script of a recipe, as an executable.
    fn script(&self, heading: &str) -> &'static str {
        self.executable("script", &format!("#!/bin/sh -e\n{}", self.only(heading)));
        "./script"
    }

    /// What a CI system runs: once the lock is free, and once it is held for longer than the job would wait. `shell`
    /// runs the text of `step`, and others see `description` meanwhile.
    fn expect_ci_step(&self, shell: &[&str], step: &str, variables: &[(&str, &str)], description: &str) {
        let run = |step: &str| {
            let shell = self.in_bare_environment(shell[0], PATH).args(&shell[1..]).arg(step).env("CI", "true");
            variables.iter().fold(shell, |shell, (name, value)| shell.env(*name, *value)).run()
        };
        assert_eq!(mail(&run(step).expect_code(0)), "");
        assert_eq!(self.calls(), "deploy.sh under /deploy/production: \n");
        let look = format!("zklock status -z {} --json /deploy/production", self.chroot);
        self.executable("deploy.sh", &format!("#!/bin/sh\n{look}\nexit 3\n"));
        let status: Value = serde_json::from_slice(&run(step).expect_code(3).stdout).expect("JSON");
        assert_eq!(status["locks"][0]["contenders"][0]["describe"], description);

        let mut holder = self.hold("/deploy/production");
        let impatient = step.replace(" -w 30m ", " -w 1s ");
        assert_ne!(impatient, step);
        assert_eq!(run(&impatient).expect_code(BUSY).stdout(), "");
        finish(&mut holder);
    }

    fn wait_calls(&self, what: &str, is_right: impl Fn(&str) -> bool) {
        poll::until(format_args!("{what}, not {:?}", self.calls()), || is_right(&self.calls()).then_some(()));
    }
}

/// A text in YAML, as JSON.
fn parse_yaml(text: &str) -> Value {
    // Debian's own Python, for which its python3-yaml is.
    let script = "import json, sys, yaml; json.dump(yaml.safe_load(sys.argv[1]), sys.stdout)";
    let output = Command::new("/usr/bin/python3").args(["-c", script, text]).output();
    let output = output.expect("python3 can be run; scripts/test installs what the tests need");
    assert!(output.status.success(), "no YAML, or python3-yaml is missing (scripts/test installs it): {text}");
    serde_json::from_slice(&output.stdout).expect("JSON")
}

/// The variables in a map of YAML, if there is one.
fn variables(map: &Value) -> Vec<(&str, &str)> {
    let map = map.as_object().into_iter().flatten();
    map.map(|(name, value)| (name.as_str(), value.as_str().expect("a text"))).collect()
}

#[test]
fn systemd_units() {
    let place = Place::new();
    let [service, timer] = <[_; 2]>::try_from(recipe("A systemd timer on several hosts")).expect("two units");
    let readme = only_block_of_the_readme("ini");
    let units = [("report.service", service), ("report.timer", timer), ("scheduler.service", readme)]
        .map(|(name, unit)| (place.path(name), place.adapted(&unit.text)));
    units.iter().for_each(|(path, text)| fs::write(path, text).expect("a unit can be written"));
    let systemd = place.in_bare_environment("systemd-analyze", PATH).args(["verify", "--man=no"]);
    assert_eq!(mail(&systemd.args(units.iter().map(|(path, _)| path)).run().expect_code(0)), "");

    let [service, _, scheduler] = units.each_ref().map(|(_, text)| text.as_str());
    let value = |unit: &str, name: &str| {
        let setting = unit.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='));
        setting.unwrap_or_else(|| panic!("no {name} in {unit}")).to_owned()
    };
    let run = |unit: &str| {
        let exec = value(unit, "ExecStart");
        let (program, words) = exec.split_once(' ').expect("a program");
        place.in_bare_environment(program, PATH).args(words.split(' '))
    };
    // Ordered behind a target that nothing else might start, and started at boot.
    assert_eq!(value(scheduler, "Wants"), value(scheduler, "After"));
    assert_eq!(value(scheduler, "WantedBy"), "multi-user.target");
    assert_eq!(mail(&run(scheduler).run().expect_code(0)), "");
    let environment = value(service, "Environment");
    let (variable, servers) = environment.split_once('=').expect("NAME=value");
    assert_eq!(mail(&run(service).env(variable, servers).run().expect_code(0)), "");
    let mut holder = place.hold("/jobs/report");
    let busy = value(service, "SuccessExitStatus").parse().expect("a number");
    run(service).env(variable, servers).run().expect_code(busy);
    finish(&mut holder);
    assert_eq!(place.calls(), "scheduler under /services/scheduler: \nreport under /jobs/report: \n");
}

#[test]
fn github_actions() {
    let place = Place::new();
    let workflow = parse_yaml(&place.only("GitHub Actions"));
    let steps = workflow["jobs"]["deploy"]["steps"].as_array().expect("steps").clone();
    let step = steps.iter().find(|step| step["run"].is_string()).expect("a step that runs something");
    let github = [("GITHUB_ACTIONS", "true"), ("GITHUB_REPOSITORY", "ops/shop"), ("GITHUB_RUN_ID", "42")];
    let variables = [variables(&step["env"]), github.to_vec()].concat();
    let step = step["run"].as_str().unwrap();
    place.expect_ci_step(&["bash", "-e", "-c"], step, &variables, "ops/shop 42");

    // The runner signals only the shell that runs the step's file.
    place.executable("deploy.sh", "#!/bin/sh\ntrap 'exit 7' INT\necho deploys\nwhile :; do /bin/sleep 0.01; done\n");
    place.executable("step.sh", step);
    let shell = place.in_bare_environment("bash", PATH).args(["-e", "step.sh"]);
    let mut cancelled = variables.iter().fold(shell, |shell, (name, value)| shell.env(*name, *value)).spawn();
    cancelled.wait_stdout("deploys");
    cancelled.signal(Signal::SIGINT);
    cancelled.wait().expect_code(7);
}

#[test]
fn gitlab_ci() {
    for block in [only_block_of_the_readme("yaml"), recipe("GitLab CI").remove(0)] {
        let place = Place::new();
        let job = &parse_yaml(&place.adapted(&block.text))["deploy"];
        assert!(job["retry"].is_null() || job["retry"]["exit_codes"] == serde_json::json!([69, BUSY]));
        let [step] = &job["script"].as_array().expect("a script")[..] else { panic!("one step: {job}") };
        let url = "https://ci.example/1";
        let variables = [variables(&job["variables"]), vec![("CI_JOB_URL", url)]].concat();
        place.expect_ci_step(&["sh", "-e", "-c"], step.as_str().unwrap(), &variables, url);
    }
}

#[test]
fn jenkins() {
    let place = Place::new();
    let pipeline = place.only("Jenkins");
    let count = |bracket| pipeline.matches(bracket).count();
    assert_eq!((count('{'), count('(')), (count('}'), count(')')));
    let step = pipeline.split("'''").nth(1).expect("a shell step");
    let servers = pipeline.split("ZKLOCK_ZOOKEEPER = '").nth(1).and_then(|rest| rest.split('\'').next());
    let variables = [("ZKLOCK_ZOOKEEPER", servers.expect("the servers")), ("BUILD_URL", "https://ci.example/1")];
    // As Jenkins does, but for -x, which writes to stderr.
    place.expect_ci_step(&["sh", "-e", "-c"], step, &variables, "https://ci.example/1");
}

#[test]
fn kubernetes_cron_job() {
    let place = Place::new();
    let job = parse_yaml(&place.only("A Kubernetes CronJob"));
    assert_eq!((&job["apiVersion"], &job["kind"]), (&"batch/v1".into(), &"CronJob".into()));
    let spec = &job["spec"]["jobTemplate"]["spec"]["template"]["spec"];
    let container = &spec["containers"][0];
    let [variable] = &container["env"].as_array().expect("variables")[..] else { panic!("one variable: {container}") };
    assert_eq!(variable["name"], "ZKLOCK_ZOOKEEPER");
    let servers = variable["value"].as_str().expect("the servers");
    let words = container["command"].as_array().expect("words").iter();
    let words: Vec<_> = words.map(|word| word.as_str().expect("a text")).collect();
    let run = || {
        let container = place.in_bare_environment(words[0], PATH);
        container.args(&words[1..]).env("ZKLOCK_ZOOKEEPER", servers).run()
    };
    run().expect_code(0);
    let mut holder = place.hold("/jobs/report");
    run().expect_code(0);
    finish(&mut holder);
    assert_eq!(place.calls(), "report under /jobs/report: \n", "the second pod skips the job");
}

#[test]
fn script_that_takes_its_own_lock() {
    let place = Place::new();
    place.executable("script", &place.only("A script that takes its own lock"));
    place.executable("bin/rsync", "#!/bin/sh\necho begun >>\"$CALLS\"\nsleep\necho ended >>\"$CALLS\"\n");
    // The variables are those of a lock that was released long ago.
    let stale = |zklock: Zklock| zklock.env("ZKLOCK_PATH", "/jobs/sync").env("ZKLOCK_TOKEN", "1");
    let mut one = stale(place.run("sh").arg("script")).spawn();
    place.wait_calls("the first one works", |calls| calls == "begun\n");
    let mut other = stale(place.run("./script")).spawn();
    place.chroot.client().wait_count("/jobs/sync", 2);
    fs::write(place.path("wake"), "").expect("a file can be written");
    [&mut one, &mut other].into_iter().for_each(|run| drop(run.wait().expect_code(0)));
    assert_eq!(place.calls(), "begun\nended\nbegun\nended\n");
}

/// Each host has a directory of its own, and the next program of `ssh` runs there.
const SSH: &str = r#"#!/bin/sh
unset ZKLOCK_TOKEN
HOST=$1
export HOST
shift
cd "$HOST" && exec sh -c "$*"
"#;

const SYSTEMCTL: &str = "#!/bin/sh\necho \"restart $HOST\" >>\"$CALLS\"\n[ ! -e fails ]\n";

const CURL: &str = "#!/bin/sh\nfor url; do :; done\necho \"$url\" >>\"$CALLS\"\n";

#[test]
fn rolling_restart() {
    let place = Place::new();
    for host in ["web1", "web2", "web3"] {
        fs::create_dir(place.path(host)).expect("a directory for a host");
    }
    for (name, text) in [("bin/ssh", SSH), ("bin/systemctl", SYSTEMCTL), ("bin/curl", CURL)] {
        place.executable(name, text);
    }
    let script = place.script("A rolling restart");
    let run = || place.run(script).run();
    let call = |host: u32| format!("restart web{host}\nhttp://web{host}:8080/health\n");
    run().expect_code(0);
    let all: String = (1..=3).map(call).collect();
    assert_eq!(place.calls(), all);
    let token = |host: &str| fs::read_to_string(place.path(host).join("web.fence")).expect("a token").trim().to_owned();
    assert_eq!((token("web1"), token("web2")), (token("web3"), token("web3")));

    // A host that does not come up again, and then one where a later holder has been.
    fs::write(place.path("web2/fails"), "").expect("a file can be written");
    run().expect_code(1);
    let until_web2 = all.clone() + &call(1) + "restart web2\n";
    assert_eq!(place.calls(), until_web2);
    fs::write(place.path("web1/web.fence"), format!("{}\n", i64::MAX)).expect("a file can be written");
    run().expect_code(76);
    assert_eq!(place.calls(), until_web2);
}

#[test]
fn leader_and_hot_standbys() {
    let place = Place::new();
    place.executable("bin/scheduler", "#!/bin/sh\necho \"$HOST leads\" >>\"$CALLS\"\nexec /bin/sleep 1000\n");
    let script = place.script("A leader and hot standbys");
    let start = |host: &str| place.run(script).env("HOST", host).spawn();
    let leads = |host: &str, times: usize| {
        let line = format!("{host} leads");
        place.wait_calls(&line, |calls| calls.lines().filter(|call| *call == line).count() == times);
    };
    let client = place.chroot.client();
    let mut one = start("one");
    leads("one", 1);
    let mut two = start("two");
    let queue = client.wait_count("/services/scheduler", 2);
    // The leader loses the lock: it stops the daemon, and goes to the end of the queue.
    fs::write(place.path("wake"), "").expect("a file can be written");
    client.delete(&format!("/services/scheduler/{}", queue[0])).expect("a node can be deleted");
    leads("two", 1);
    client.wait_count("/services/scheduler", 2);
    // It is told to end, or its zklock is killed: the script ends with that status.
    process_named(&two, "sleep", Signal::SIGTERM);
    two.wait().expect_code(143);
    leads("one", 2);
    process_named(&one, "zklock", Signal::SIGKILL);
    one.wait().expect_code(137);
    one.wait_until_nothing_is_left();
}

/// Sends a signal to the process of this name in a run.
fn process_named(run: &Running, name: &str, signal: Signal) {
    let process = run.processes().into_iter().find(|process| process.name == name);
    process::send(process.unwrap_or_else(|| panic!("no {name}: {:?}", run.processes())).pid, signal);
}

/// psql's `-1` with `-c` and `-f`: all in one transaction, up to the first error. The SQL is understood by both.
const PSQL: &str = r#"#!/bin/sh
sql="BEGIN IMMEDIATE;"
while [ $# -gt 0 ]; do
    case $1 in
        -c) sql="$sql $2;" ;;
        -f) sql="$sql $(cat "$2")" ;;
    esac
    shift
done
echo "$sql COMMIT;" | sqlite3 -bail app.db
"#;

#[test]
fn database_migration() {
    let place = Place::new();
    let sql = |text: &str| {
        let sqlite = place.in_bare_environment("sqlite3", PATH).arg("app.db").arg(text);
        sqlite.run().expect_code(0).stdout().trim().to_owned()
    };
    sql("CREATE TABLE fence (token bigint NOT NULL); INSERT INTO fence VALUES (0)");
    place.executable("bin/psql", PSQL);
    let migration = "CREATE TABLE IF NOT EXISTS customer (name text);\n\
                     INSERT INTO customer SELECT 'first' WHERE NOT EXISTS (SELECT * FROM customer);\n";
    fs::write(place.path("migrate.sql"), migration).expect("a file can be written");
    let script = place.script("A database migration");
    let run = || -> Zklock { place.run(script).env("SHELL", "/bin/sh") };
    let mut instances: Vec<Running> = (0..3).map(|_| run().spawn()).collect();
    instances.iter_mut().for_each(|instance| drop(instance.wait().expect_code(0)));
    assert_eq!(sql("SELECT count(*) FROM customer"), "1");
    assert!(sql("SELECT token FROM fence").parse::<i64>().is_ok_and(|token| token > 0));

    // A later holder has been there.
    sql(&format!("UPDATE fence SET token = {}; DELETE FROM customer", i64::MAX));
    run().run().expect_code(1);
    assert_eq!(sql("SELECT count(*) FROM customer"), "0");
    assert_eq!(sql("SELECT token FROM fence"), i64::MAX.to_string());
}

/// The nodes of docs/configuration.md for several users: these may only queue there, and an administrator may do all.
#[test]
fn nodes_for_several_users() {
    let place = Place::new();
    let is_it = |text: &String| text.contains("create /jobs/backup ");
    let block = blocks_in("text").into_iter().map(|block| block.text).find(is_it).expect("the nodes");
    let (login, _) = block.split_once('\n').expect("a login, and then the nodes");
    let page = include_str!("../../../man/zklock.7.in");
    assert!(
        block.lines().all(|line| page.contains(line)),
        "the login, the nodes above the lock, the lock, and its records"
    );
    let administrator = |lines: &str| {
        let jars = "/usr/share/java/zookeeper.jar:/usr/share/java/slf4j-nop.jar";
        let java = place.in_bare_environment("java", PATH).args(["-XX:-UsePerfData", "-cp", jars]);
        let java = java.args(["org.apache.zookeeper.ZooKeeperMain", "-server", &place.chroot.to_string()]);
        java.stdin(lines).run()
    };
    administrator(&block);

    let zklock = |user: &str| Zklock::at(&place.chroot).plain().env("ZKLOCK_AUTH", format!("digest:{user}:hidden"));
    let run = |user: &str, options: &[&str]| {
        zklock(user).args(options).args(["/jobs/backup", "echo", "ran"]).run().expect_code(0)
    };
    let once = ["--once-per", "1h"];
    assert_eq!(mail(&run("alice", &once)), "ran\n");
    assert_eq!((mail(&run("bob", &once)).as_str(), mail(&run("bob", &[])).as_str()), ("", "ran\n"));
    for user in ["alice", "bob"] {
        assert_eq!(mail(&run(user, &["--lock-delay", "1h"])), "ran\n");
    }

    let mut holder = zklock("alice").arg("/jobs/backup").child(["--exit-on", "TERM"]).spawn();
    holder.wait_stdout("ready");
    let client = Client::connect(&place.chroot.to_string());
    client.log_in("digest:bob:hidden");
    let node = format!("/jobs/backup/{}", client.children("/jobs/backup").remove(0));
    for node in [&node, "/jobs/backup.zklock.last", "/jobs/backup.zklock.held"] {
        assert_eq!(client.delete(node), Err(Refusal::NO_AUTH), "{node}");
    }
    // As docs/operations.md says it, and what is to be done at the end.
    for node in ["/jobs/backup.zklock.last", "/jobs/backup.zklock.held", &node, "/jobs/backup"] {
        administrator(&format!("{login}\ndelete {node}\n"));
        assert!(!client.exists(node), "{node}");
        if node.contains("/jobs/backup/") {
            holder.wait().expect_code(76);
        }
    }
}
