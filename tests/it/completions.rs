//! The completions, in the shells that they are for: installed as the README says, typed into on a terminal.
//!
//! A line is typed, then the key of completion, then Enter; what the shell ran is what it had made of the line.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use crate::harness::poll;
use crate::harness::running::Running;
use crate::harness::terminal::Terminal;
use crate::harness::zklock::Zklock;
use crate::readme::install_documents;

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

/// Writes down what it was called with.
const STUB: &str = "#!/bin/sh\necho \"${0##*/} $*\" >>\"$HOME/called\"\n";

/// What is typed before the key, and the line that must come of it.
const COMPLETED: &[(&str, &str)] = &[
    ("zklock --wait-d", "zklock --wait-descendants"),
    ("zklock /l --nonb", "zklock /l --nonblock"),
    ("zklock /l swee", "zklock /l sweeper"),
    ("zklock /l -- swee", "zklock /l -- sweeper"),
    ("zklock -n -w 5 /l --signal INT swee", "zklock -n -w 5 /l --signal INT sweeper"),
    ("zklock --wait 5 /l --max-run=5 swee", "zklock --wait 5 /l --max-run=5 sweeper"),
    ("zklock -z zk1:2181/app /l swee", "zklock -z zk1:2181/app /l sweeper"),
    ("zklock /l sweeper --gen", "zklock /l sweeper --gently"),
    ("zklock /l -- sweeper --gen", "zklock /l -- sweeper --gently"),
    ("zklock -w 5 /l --dialect kazoo sweeper x --gen", "zklock -w 5 /l --dialect kazoo sweeper x --gently"),
    ("zklock sta", "zklock status"),
    ("zklock status --js", "zklock status --json"),
    ("zklock status -z zk1:2181 /l --wat", "zklock status -z zk1:2181 /l --watch"),
    ("zklock list --connect-t", "zklock list --connect-timeout"),
    ("zklock check --session-t", "zklock check --session-timeout"),
    ("zklock --dialect k", "zklock --dialect kazoo"),
    ("zklock --dialect=curator-", "zklock --dialect=curator-rw"),
    ("zklock /l --dialect curator,k", "zklock /l --dialect curator,kazoo"),
    ("zklock --dialect=kazoo,curator-", "zklock --dialect=kazoo,curator-rw"),
    ("zklock --signal WIN", "zklock --signal WINCH"),
    ("zklock /l --signal=QU", "zklock /l --signal=QUIT"),
    ("zklock --signal SIGWIN", "zklock --signal SIGWINCH"),
];

/// Lines that completion leaves as they are: neither a command nor a file belongs at the cursor, or what is typed looks
/// like an option of zklock's but comes after COMMAND.
const LEFT: &[&str] = &[
    "zklock swee",
    "zklock bi",
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
    fn start(kind: &Kind) -> Self {
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
            .env("TERM", "dumb");
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

fn completes(kind: &Kind) {
    let shell = Shell::start(kind);
    let left = LEFT.iter().map(|line| (*line, *line));
    let wrong: Vec<_> = COMPLETED
        .iter()
        .copied()
        .chain(left)
        .filter_map(|(typed, wanted)| {
            let called = shell.complete(typed);
            (called.trim_end() != wanted).then(|| format!("{typed:?} became {called:?}, not {wanted:?}"))
        })
        .collect();
    shell.end();
    assert!(wrong.is_empty(), "{}: {wrong:#?}", kind.name);
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
