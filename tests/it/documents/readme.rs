//! The README and the pages with further examples: the examples are run, the tables are compared with the program.
//!
//! A `console` block is a session: what it shows is what must come. A `sh` block is a script that must succeed.
//! readme_recipes.rs and recipes.rs run the others.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::time::Duration;

use zklock::cli;
use zklock::rules::lease::Terms;
use zklock::rules::outcome::EXIT_STATUS;

use crate::documents::generated::documents;
use crate::documents::pages::{SESSION_TIMEOUTS, in_tenths};
use crate::harness::ensemble::Chroot;
use crate::harness::server::Server;
use crate::harness::zklock::{Zklock, binary};

pub(super) const README: &str = include_str!("../../../README.md");
const PROMISES: &str = include_str!("../../../docs/promises.md");
pub(super) const RECIPES: &str = include_str!("../../../docs/recipes.md");
const CONFIGURATION: &str = include_str!("../../../docs/configuration.md");
const OPERATIONS: &str = include_str!("../../../docs/operations.md");
pub(super) const COMPARISON: &str = include_str!("../../../docs/comparison.md");

/// A program that the examples call: it tells on which lock, and with which arguments.
const STUB: &str = "#!/bin/sh\necho \"${0##*/} under ${ZKLOCK_PATH:-nothing}: $*\" >> \"$CALLS\"\n";

/// As if the other host had the same programs, and the user's home were here. It passes on no fencing token.
const SSH: &str = "#!/bin/sh\nunset ZKLOCK_TOKEN\nshift\nexec sh -c \"$*\"\n";

/// An hour of sleep that ends when the file `wake` is there.
const SLEEP: &str = "#!/bin/sh\nuntil [ -e \"$WAKE\" ]; do /bin/sleep 0.01; done\n";

/// A fenced block of a page.
#[derive(Debug)]
pub(super) struct Block {
    pub(super) language: &'static str,
    pub(super) text: String,
}

/// The blocks of all pages.
fn blocks() -> Vec<Block> {
    [README, PROMISES, RECIPES, CONFIGURATION, OPERATIONS].into_iter().flat_map(blocks_of).collect()
}

fn blocks_of(page: &'static str) -> Vec<Block> {
    let parts: Vec<_> = page.split("\n```").collect();
    assert!(parts.len() % 2 == 1, "a block does not end");
    let block = |part: &&'static str| {
        let (language, text) = part.split_once('\n').expect("a block has lines");
        Block { language, text: format!("{text}\n") }
    };
    parts.iter().skip(1).step_by(2).map(block).collect()
}

/// The blocks of docs/recipes.md below this heading.
pub(super) fn recipe(heading: &str) -> Vec<Block> {
    recipes().into_iter().find(|(found, _)| *found == heading).unwrap_or_else(|| panic!("no recipe {heading:?}")).1
}

/// The headings of docs/recipes.md, each with its blocks.
pub(super) fn recipes() -> Vec<(&'static str, Vec<Block>)> {
    let sections = RECIPES.split("\n## ").skip(1);
    sections.map(|section| (section.lines().next().expect("a heading"), blocks_of(section))).collect()
}

/// The only block of the README in this language.
pub(super) fn only_block_of_the_readme(language: &str) -> Block {
    let blocks = blocks_of(README).into_iter().filter(|block| block.language == language).collect::<Vec<_>>();
    let [block] = <[_; 1]>::try_from(blocks).expect("one block");
    block
}

pub(super) fn blocks_in(language: &str) -> Vec<Block> {
    let found: Vec<_> = blocks().into_iter().filter(|block| block.language == language).collect();
    assert!(!found.is_empty(), "no block in {language}");
    found
}

/// A directory to run an example in, with the repository's documents and the programs that examples call.
pub(super) struct Place {
    pub(super) directory: tempfile::TempDir,
    pub(super) chroot: Chroot,
}

impl Place {
    pub(super) fn new() -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let place = Self { directory, chroot: Server::shared().chroot() };
        fs::create_dir(place.path("bin")).expect("a directory for stubs");
        symlink(binary(), place.path("bin/zklock")).expect("a link");
        let in_path = "backup curl docker fetch prune psql report rsync scheduler systemctl".split(' ');
        for program in
            in_path.map(|name| format!("bin/{name}")).chain(["apply", "deploy.sh", "migrate.sh"].map(Into::into))
        {
            place.executable(&program, STUB);
        }
        place.executable("bin/sleep", SLEEP);
        place.executable("bin/ssh", SSH);
        for folder in ["man", "completions"] {
            let target = Path::new(env!("CARGO_MANIFEST_DIR")).join(folder);
            symlink(target, place.path(folder)).expect("a link");
        }
        place
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(super) fn executable(&self, name: &str, text: &str) {
        let path = self.path(name);
        fs::write(&path, text).expect("a script can be written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("a script can be made executable");
    }

    /// `program` here, with zklock and the stubs in its PATH.
    pub(super) fn run(&self, program: impl Into<OsString>) -> Zklock {
        Zklock::at(&self.chroot)
            .cleared()
            .program(program)
            .directory(self.directory.path())
            .env("PATH", format!("{}:/usr/bin:/bin", self.path("bin").display()))
            // The page shows a holder that has not said yet when it began to hold, as it does after a fifth of this.
            .env("ZKLOCK_SESSION_TIMEOUT", "2m")
            .env("HOME", self.path("home"))
            .env("CALLS", self.path("calls"))
            .env("WAKE", self.path("wake"))
    }

    /// What the stubs told, one line a call.
    pub(super) fn calls(&self) -> String {
        fs::read_to_string(self.path("calls")).unwrap_or_default()
    }
}

/// Installs manual pages and completions in this home directory as the page says, from an empty environment.
pub(super) fn install_documents(home: &Path) {
    documents();
    let block = blocks_in("sh").into_iter().find(|block| block.text.contains("install ")).expect("how to install");
    let sh = Zklock::bare().cleared().program("sh").args(["-e", "-c", &block.text]).env("HOME", home);
    sh.directory(env!("CARGO_MANIFEST_DIR")).run().expect_code(0);
}

#[test]
fn man_finds_the_pages_where_the_binary_is_found() {
    let home = tempfile::tempdir().expect("a home");
    install_documents(home.path());
    let bin = home.path().join(".cargo/bin");
    fs::create_dir_all(&bin).expect("cargo's directory");
    let path = format!("{}:/usr/bin:/bin", bin.display());
    for page in documents().iter().filter_map(|(path, _)| path.strip_prefix("man/")) {
        let (name, section) = page.rsplit_once('.').expect("a section");
        let man = Zklock::bare().cleared().program("man").args(["-w", section, name]).env("HOME", home.path());
        let found = man.env("PATH", &path).run().expect_code(0).stdout();
        let wanted = home.path().join(format!(".cargo/share/man/man{section}/{page}"));
        assert_eq!(Path::new(found.trim_end()), wanted);
    }
}

/// The holder's host, user and process id, as the page has them.
fn as_on_the_page(line: &str) -> String {
    let Some((before, after)) = line.split_once("held by ") else { return line.to_owned() };
    let (_, after) = after.split_once("pid ").expect("the holder's pid");
    let (_, after) = after.split_once(", ").expect("the holder's command");
    format!("{before}held by db1 (ops, pid 4242, {after}")
}

#[test]
fn sessions_show_what_happens() {
    for block in blocks_in("console") {
        let place = Place::new();
        let mut shell = place.run("bash").arg("--norc").open_stdin().spawn();
        shell.write_stdin(b"exec 2>&1\n");
        let client = place.chroot.client();
        let mut expected = Vec::new();
        let mut lines = block.text.lines().peekable();
        let mut step = 0;
        while let Some(command) = lines.next() {
            let command = command.strip_prefix("$ ").expect("a command");
            step += 1;
            let end = format!("-- end of step {step}");
            shell.write_stdin(format!("{{ {command}\n}} </dev/null; echo '{end}'\n").as_bytes());
            let shown: Vec<_> = std::iter::from_fn(|| lines.next_if(|line| !line.starts_with("$ "))).collect();
            if command.ends_with('&') {
                // What comes at once is shown here, what comes later further below.
                shown.iter().for_each(|line| drop(shell.wait_stdout(line)));
            } else {
                if !command.contains(" -n ") {
                    // It waits for the one in the background, which sleeps until now.
                    client.wait_count("/jobs/backup", 2);
                    fs::write(place.path("wake"), "").expect("a file can be written");
                }
                shell.wait_stdout(&end);
            }
            expected.extend(shown);
        }
        shell.close_stdin();
        let output = shell.wait().expect_code(0).stdout();
        shell.wait_until_nothing_is_left();
        let happened: Vec<_> = output.lines().filter(|line| !line.starts_with("-- end")).map(as_on_the_page).collect();
        assert_eq!(happened, expected);
    }
}

#[test]
fn scripts_succeed_and_work_under_the_lock() {
    for block in blocks_in("sh") {
        let place = Place::new();
        let interpreter = if block.text.starts_with("#!") { "" } else { "#!/bin/sh -e\n" };
        place.executable("example", &format!("{interpreter}{}", place.adapted(&block.text)));
        // Of the user who works there.
        fs::create_dir(place.path("sync")).unwrap();
        place.run(place.path("example")).run().expect_code(0);
        let calls = place.calls();
        assert_eq!(!calls.is_empty(), block.text.contains("zklock /") || block.text.contains("zklock -"), "{block:?}");
        for call in calls.lines() {
            assert!(call.contains(" under /"), "{call}\n{block:?}");
        }
        if block.text.contains("$ZKLOCK_TOKEN") {
            let fence = block.text.split_whitespace().find(|word| word.starts_with("/var/lib/"));
            let told = fence.map_or(calls.clone(), |file| {
                fs::read_to_string(place.path(file.trim_start_matches("/var/lib/"))).expect("a token")
            });
            let token = told.rsplit("token <= ").next().and_then(|rest| rest.split_whitespace().next()?.parse().ok());
            assert!(token.is_some_and(|token: i64| token > 0), "{told}");
        }
    }
}

#[test]
fn every_block_is_of_a_kind_that_is_run() {
    let known = ["bash", "console", "crontab", "ini", "sh", "text", "toml", "yaml"];
    let unknown = [README, PROMISES].into_iter().flat_map(blocks_of).find(|block| !known.contains(&block.language));
    assert!(unknown.is_none(), "{unknown:?}");
}

/// Panics with the table as it should be unless the page has it.
#[track_caller]
fn assert_has<const N: usize>(page: &str, heading: [&str; N], rows: impl IntoIterator<Item = [String; N]>) {
    let rows = [heading.map(str::to_owned), heading.map(|_| "---".to_owned())].into_iter().chain(rows);
    let table: String = rows.map(|row| format!("| {} |\n", row.join(" | "))).collect();
    assert!(page.contains(&format!("\n\n{table}\n")), "the page should have this table:\n\n{table}");
}

#[test]
fn session_timeouts_hold_what_they_say() {
    let outage = "longest outage that the command is sure to survive";
    let row = |timeout| {
        let terms = Terms::new(timeout, None).expect("the default always fits");
        let longest = Terms::new(timeout, Some(timeout)).expect_err("it never fits").longest;
        [timeout, terms.patience(), terms.kill_after(), longest].map(in_tenths)
    };
    let rows = SESSION_TIMEOUTS.map(Duration::from_secs).map(row);
    assert_has(PROMISES, ["`--session-timeout`", outage, "stop signal to SIGKILL", "longest `--kill-after`"], rows);
    let plan = cli::job(["zklock", "/l", "true"].map(OsString::from), &|_: &str| None).expect("a plan");
    let outage = in_tenths(Terms::with_default_grace(plan.settings.session_timeout).patience());
    assert!(README.contains(&format!("an outage of {outage} ")), "{outage}");
}

#[test]
fn exit_statuses_are_those_of_the_program() {
    // One row is enough for those that a user looks up only after a mistake.
    let others = "64, 70, 126, 127";
    let rows = EXIT_STATUS.iter().filter(|(status, _)| others.split(", ").all(|other| other != *status));
    let others = format!("| {others} |");
    let shown: Vec<_> = README.lines().filter(|line| !line.starts_with(&others)).collect();
    assert_eq!(shown.len() + 1, README.lines().count(), "{others}");
    let rows = rows.map(|(status, meaning)| [status, meaning].map(|&text| text.to_owned()));
    assert_has(&(shown.join("\n") + "\n"), ["status", "meaning"], rows);
}

#[test]
fn each_test_that_keeps_a_decision_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/decisions.md")).expect("text");
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let tests: Vec<_> = words
        .split("Kept by: `")
        .skip(1)
        .filter_map(|text| text.split_once("`: `").filter(|(file, _)| !file.contains(' ')))
        .map(|(file, rest)| (file, rest.split('`').next().expect("a function")))
        .collect();
    assert!(tests.len() > 50, "{} tests", tests.len());
    let missing: Vec<_> = tests.iter().filter(|(file, function)| !has_function(file, function)).collect();
    assert!(missing.is_empty(), "named, but not there: {missing:#?}");
}

fn has_function(file: &str, function: &str) -> bool {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(file)).unwrap_or_default();
    ['(', '<'].iter().any(|bracket| text.contains(&format!("fn {function}{bracket}")))
}

#[test]
fn what_keeps_a_guarantee_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |file: &str| fs::read_to_string(root.join(file)).expect("text");
    let (page, mutants) = (read("docs/design/guarantees.md"), read("scripts/mutants"));
    let (mut file, mut named, mut missing) = ("", [0; 3], vec![]);
    // Code spans: every second part. One with a space is a command.
    for word in page.split('`').skip(1).step_by(2).filter(|word| !word.contains(' ')) {
        let (kind, is_there) = if word.contains('/') {
            file = word;
            (0, root.join(word).exists())
        } else if word.contains('-') {
            (1, mutants.contains(&format!("\nmutant {word} ")))
        } else {
            (2, has_function(file, word))
        };
        named[kind] += 1;
        missing.extend((!is_there).then(|| format!("{file}: {word}")));
    }
    let [files, faults, functions] = named;
    assert!(files > 40 && faults > 30 && functions > 50, "{named:?}");
    assert!(missing.is_empty(), "named, but not there: {missing:#?}");
}
