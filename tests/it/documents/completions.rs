//! The completions, in the shells that they are for: installed as the README says, typed into on a terminal.
//!
//! A line is typed, then the key of completion, then Enter; what the shell ran is what it had made of the line.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::documents::readme::install_documents;
use crate::harness::client::Kind as Node;
use crate::harness::poll;
use crate::harness::running::Running;
use crate::harness::scratch::Scratch;
use crate::harness::server::{Server, free_port};
use crate::harness::terminal::Terminal;
use crate::harness::zklock::{Zklock, binary};

/// How a shell is started, and what its user has in the file that it reads at the start.
#[derive(Debug)]
struct Kind {
    name: &'static str,
    settings: &'static str,
    /// Loads the completions as a login on a fresh machine does, and gives `sweeper` one option, `--gently`.
    text: &'static str,
}

const BASH: Kind = Kind {
    name: "bash",
    settings: ".bashrc",
    text: ". /usr/share/bash-completion/bash_completion\ncomplete -W --gently sweeper\n",
};
const ZSH: Kind = Kind {
    name: "zsh",
    settings: ".zshrc",
    // -u: the tests may run as root below a directory that is not root's.
    text: "fpath+=~/.zfunc\nautoload -U compinit\ncompinit -u\ncompdef \"_arguments '--gently' '*:file:_files'\" sweeper\n",
};
const FISH: Kind =
    Kind { name: "fish", settings: ".config/fish/config.fish", text: "complete -c sweeper -l gently -f\n" };

/// Writes down what it was called with. Only what the completions ask of zklock is answered by zklock.
const STUB: &str = r#"#!/bin/sh
case " $* " in *" --complete "*) exec "$ZKLOCK" "$@" ;; esac
echo "${0##*/} $*" >>"$HOME/called"
"#;

/// What is typed before the key, and the line that must come of it.
const COMPLETED: &[(&str, &str)] = &[
    ("zklock --wait-d", "zklock --wait-descendants"),
    ("zklock /l --nonb", "zklock /l --nonblock"),
    ("zklock /l swee", "zklock /l sweeper"),
    ("zklock /l -- swee", "zklock /l -- sweeper"),
    ("zklock -n -w 5 /l --signal INT swee", "zklock -n -w 5 /l --signal INT sweeper"),
    ("zklock --wait 5 /l --max-run=5 swee", "zklock --wait 5 /l --max-run=5 sweeper"),
    ("zklock /l sweeper --gen", "zklock /l sweeper --gently"),
    ("zklock /l -- sweeper --gen", "zklock /l -- sweeper --gently"),
    ("zklock -w 5 /l --dialect kazoo sweeper x --gen", "zklock -w 5 /l --dialect kazoo sweeper x --gently"),
    ("zklock sta", "zklock status"),
    ("zklock status --js", "zklock status --json"),
    ("zklock status -z zk1:2181 /l --wat", "zklock status -z zk1:2181 /l --watch"),
    ("zklock check --session-t", "zklock check --session-timeout"),
    ("zklock --dialect k", "zklock --dialect kazoo"),
    ("zklock --dialect=curator-", "zklock --dialect=curator-rw"),
    ("zklock /l --dialect curator,k", "zklock /l --dialect curator,kazoo"),
    ("zklock --dialect=kazoo,curator-", "zklock --dialect=kazoo,curator-rw"),
    ("zklock /l --signal=QU", "zklock /l --signal=QUIT"),
    ("zklock --signal SIGWIN", "zklock --signal SIGWINCH"),
];

/// Lines that completion leaves as they are: neither a command nor a file belongs at the cursor, or what is typed looks
/// like an option of zklock's but comes after COMMAND.
const LEFT: &[&str] = &[
    "zklock swee",
    "zklock -n /us",
    "zklock /l -w swee",
    "zklock status /l swee",
    "zklock list --publ",
    "zklock -n sta",
    "zklock /l sweeper --nonb",
    "zklock /l sweeper --dialect k",
];

/// A shell at a terminal, in a home of its own.
#[derive(Debug)]
struct Shell {
    home: tempfile::TempDir,
    terminal: Terminal,
    running: Running,
}

impl Shell {
    /// `servers`: what the user has in ZKLOCK_ZOOKEEPER.
    fn start(kind: &Kind, servers: Option<&str>) -> Self {
        let home = tempfile::tempdir().expect("a home");
        fs::set_permissions(home.path(), PermissionsExt::from_mode(0o700)).expect("it is ours");
        install_documents(home.path());
        let path = |name: &str| home.path().join(name);
        fs::create_dir(path("bin")).expect("a directory for programs");
        for name in ["zklock", "sweeper"] {
            fs::write(path("bin").join(name), STUB).expect("a program can be written");
            fs::set_permissions(path("bin").join(name), PermissionsExt::from_mode(0o755)).expect("it is ours");
        }
        fs::write(path(kind.settings), kind.text).expect("the settings can be written");
        let terminal = Terminal::new(200);
        let shell = Zklock::bare()
            .cleared()
            .program(kind.name)
            .arg("-i")
            .directory(home.path())
            .env("HOME", home.path())
            // fish makes /tmp/fish.USER where this is not there, or may be read by others.
            .env("XDG_RUNTIME_DIR", home.path())
            .env("PATH", format!("{}:/usr/bin:/bin", path("bin").display()))
            // No colours and no cursor movements: what is shown is not looked at.
            .env("TERM", "dumb")
            .env("ZKLOCK", binary());
        let shell = servers.into_iter().fold(shell, |shell, servers| shell.env("ZKLOCK_ZOOKEEPER", servers));
        let running = terminal.spawn(shell);
        Self { home, terminal, running }
    }

    fn called(&self) -> PathBuf {
        self.home.path().join("called")
    }

    /// Types `line`, the key of completion, and Enter. Returns what was run.
    #[track_caller]
    fn complete(&self, line: &str) -> String {
        self.terminal.enter(&format!("{line}\t"));
        let called = poll::within(poll::PATIENCE, || {
            let text = fs::read_to_string(self.called()).unwrap_or_default();
            text.strip_suffix('\n').map(str::to_owned)
        });
        let called = called.unwrap_or_else(|| panic!("{line:?} was not run; shown is {:#?}", self.terminal.lines()));
        fs::remove_file(self.called()).expect("it is ours");
        called
    }

    fn end(mut self) {
        self.terminal.enter("exit");
        self.running.wait();
        self.terminal.close();
    }
}

/// Types these lines into one shell. What the completions print of their own is a fault as well.
fn expect(kind: &Kind, servers: Option<&str>, completed: &[(&str, &str)], left: &[&str]) {
    let shell = Shell::start(kind, servers);
    let left = left.iter().map(|line| (*line, *line));
    // On a loaded machine the servers' answer may be too late for a shell that waits for it.
    let tries = if servers.is_some() { 5 } else { 1 };
    let wrong: Vec<_> = completed
        .iter()
        .copied()
        .chain(left)
        .filter_map(|(typed, wanted)| {
            let mut called = String::new();
            let is_right = (0..tries).any(|_| {
                called = shell.complete(typed);
                called.trim_end() == wanted
            });
            (!is_right).then(|| format!("{typed:?} became {called:?}, not {wanted:?}"))
        })
        .collect();
    let said: Vec<_> = shell.terminal.lines().into_iter().filter(|line| line.starts_with("zklock: ")).collect();
    shell.end();
    assert!(wrong.is_empty() && said.is_empty(), "{}: {wrong:#?} {said:#?}", kind.name);
}

/// Locks in ZooKeeper: one that is held and has a record beside it, one that is free, one with another below it, and names
/// that shells would cut.
fn with_locks() -> Scratch {
    let scratch = Scratch::new();
    let create = |node: &str, kind| drop(scratch.client().create(node, b"", kind).expect("a node can be created"));
    let jobs = ["/jobs", "/jobs/backup", "/jobs/report", "/jobs/with space", "/jobs/with:colon", "/jobs/x$(odd)"];
    for node in jobs.into_iter().chain(["/jobs/backup.zklock.last", "/nest", "/nest/outer", "/nest/outer/inner"]) {
        create(node, Node::Persistent);
    }
    create("/jobs/backup/mine-lock-", Node::EphemeralSequential);
    create("/nest/outer/mine-lock-", Node::EphemeralSequential);
    create("/jobs/member", Node::Ephemeral);
    scratch
}

/// What is typed of a path, and what must come of it.
const PATHS: &[(&str, &str)] = &[
    ("zklock /jobs/ba", "zklock /jobs/backup"),
    ("zklock -n -w 5 /jobs/ba", "zklock -n -w 5 /jobs/backup"),
    // It goes on from there.
    ("zklock /jo", "zklock /jobs/"),
    ("zklock /jo\tba", "zklock /jobs/backup"),
    // A lock, and the way to another.
    ("zklock /nest/ou", "zklock /nest/outer"),
    ("zklock /nest/outer/", "zklock /nest/outer/inner"),
    ("zklock --and /jobs/re", "zklock --and /jobs/report"),
    ("zklock /l --and /jobs/re", "zklock /l --and /jobs/report"),
    ("zklock /l --and=/jobs/re", "zklock /l --and=/jobs/report"),
    ("zklock status /jobs/backup /jobs/re", "zklock status /jobs/backup /jobs/report"),
    ("zklock list /jo", "zklock list /jobs/"),
    ("zklock break --force -w 5 /jobs/ba", "zklock break --force -w 5 /jobs/backup"),
    ("zklock check /jobs/re", "zklock check /jobs/report"),
    // Where the shell has not put the path in yet.
    ("~/bin/zklock /jobs/ba", "zklock /jobs/backup"),
    ("$HOME/bin/zklock status /jobs/ba", "zklock status /jobs/backup"),
];

/// What is typed has nothing to go on with: what a shell would cut, nodes that are no locks, and places without a LOCK.
const NO_PATHS: &[&str] = &[
    "zklock /jobs/with",
    "zklock /jobs/x",
    "zklock /jobs/mem",
    "zklock /jobs/backup/mine",
    "zklock /nowhere/jo",
    "zklock //jo",
    "zklock /l /jobs/ba",
    "zklock /l sweeper /jobs/ba",
    "zklock fence /jobs/ba",
];

#[track_caller]
fn completes(kind: &Kind) {
    expect(kind, None, COMPLETED, LEFT);
    let scratch = with_locks();
    let servers = scratch.chroot().to_string();
    expect(kind, Some(&servers), PATHS, NO_PATHS);
    // On the line they take precedence, and without any, no server is asked.
    let nowhere = format!("127.0.0.1:{}", free_port());
    let (address, chroot) = servers.split_once('/').expect("a chroot");
    let ways = [format!("-z {servers}"), format!("-z{servers}"), format!("--zookeeper={servers}")];
    let typed = ways.map(|way| (format!("zklock {way} /jobs/ba"), format!("zklock {way} /jobs/backup")));
    let typed: Vec<_> = typed.iter().map(|(typed, wanted)| (typed.as_str(), wanted.as_str())).collect();
    let own = [format!("zklock -z {address} /zookee"), format!("zklock status -z {address} /{chroot}x")];
    expect(kind, Some(&nowhere), &typed, &own.each_ref().map(String::as_str));
}

#[test]
fn bash_completes() {
    completes(&BASH);
}

#[test]
fn zsh_completes() {
    completes(&ZSH);
}

#[test]
fn fish_completes() {
    completes(&FISH);
}

/// The line is as it was, and the shell goes on.
#[test]
fn servers_that_are_frozen_leave_the_line_as_it_is() {
    let server = Server::start();
    server.freeze();
    for kind in [&BASH, &ZSH, &FISH] {
        expect(kind, Some(&server.address()), &[], &["zklock /jo", "zklock status /jo"]);
    }
    server.thaw();
}
