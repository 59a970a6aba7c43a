//! How to run the built binary: a builder. What it starts is a [`Running`].

use std::env;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs;
use std::io::{Seek, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::Instant;

use nix::sys::signal::Signal;
use nix::unistd::Pid;

use super::process::{self, Process, Seat};
use super::running::{Capture, Output, Running};
use super::secure::{Secure, say_plain};

/// The environment variable by which whatever a [`Zklock`] started is found again. Its value is the path of a file,
/// which is there once a child of tests/child/main.rs has panicked.
pub(crate) const MARK: &str = "ZKLOCK_TEST";

/// Whether it is a guard, or a process that waits at a guard's gate to become the command.
pub(crate) fn is_guard(process: &Process) -> bool {
    process.name == "lock-guard"
}

pub(crate) fn binary() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_zklock"))
}

/// Makes a copy that can be executed. A process of its own writes it: a child that another test forks meanwhile would
/// inherit a file of ours that is open for writing, and execve(2) fails as long as there is one (ETXTBSY).
pub(crate) fn copy_program(program: impl AsRef<Path>, copy: impl AsRef<Path>) {
    let copied = Command::new("cp").arg(program.as_ref()).arg(copy.as_ref()).status().expect("cp can be run");
    assert!(copied.success(), "{} is copied", program.as_ref().display());
}

/// The command for zklock to run, tests/child/main.rs.
///
/// `cargo test` builds it with the other examples. `cargo test --test it` builds no examples, so it is built here when
/// it is missing or older than its source.
pub(crate) fn child() -> &'static Path {
    static CHILD: OnceLock<PathBuf> = OnceLock::new();
    CHILD.get_or_init(|| {
        let profile = binary().parent().expect("the binary is in a directory");
        let child = profile.join("examples/child");
        let package = Path::new(env!("CARGO_MANIFEST_DIR"));
        let modified = |path: &Path| fs::metadata(path).and_then(|data| data.modified()).ok();
        if modified(&child) >= modified(&package.join("tests/child/main.rs")) {
            return child;
        }
        let mut build = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        build.current_dir(package).args(["build", "--quiet", "--example", "child", "--target-dir"]);
        build.arg(profile.parent().expect("the profile is in the target directory"));
        if profile.ends_with("release") {
            build.arg("--release");
        }
        let status = build.status().expect("cargo can be started");
        assert!(status.success() && child.exists(), "{} is not built: run `cargo build --examples`", child.display());
        child
    })
}

/// What the process reads as its stdin.
#[derive(Debug, Default)]
enum Input {
    #[default]
    Null,
    Bytes(Vec<u8>),
    Pipe,
    Descriptor(OwnedFd),
}

/// A run of zklock to be.
///
/// Without further words it has the environment of the tests except `ZKLOCK_*` and the variables by which CI systems
/// make themselves known, no configuration file, an empty stdin, and a session of its own, as from cron.
#[derive(Debug)]
pub(crate) struct Zklock {
    program: OsString,
    args: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    directory: Option<PathBuf>,
    input: Input,
    ignored: Vec<Signal>,
    is_cleared: bool,
}

impl Zklock {
    /// Against the servers of this connect string, given in `ZKLOCK_ZOOKEEPER`.
    pub(crate) fn at(servers: impl fmt::Display) -> Self {
        Self::bare().env("ZKLOCK_ZOOKEEPER", servers.to_string())
    }

    pub(crate) fn bare() -> Self {
        Self {
            program: binary().into(),
            args: Vec::new(),
            environment: Secure::used().map_or_else(Vec::new, Secure::environment),
            directory: None,
            input: Input::Null,
            ignored: Vec::new(),
            is_cleared: false,
        }
    }

    /// Starts `program` instead, for example a shell script that calls zklock.
    pub(crate) fn program(mut self, program: impl Into<OsString>) -> Self {
        self.program = program.into();
        self
    }

    /// Has it started by another program, to which it is given as the last arguments: `nohup`, `sh -c …`.
    pub(crate) fn run_by<I: IntoIterator<Item: Into<OsString>>>(mut self, words: I) -> Self {
        let mut words = words.into_iter().map(Into::into);
        let program = std::mem::replace(&mut self.program, words.next().expect("the name of a program"));
        self.args.splice(..0, words.chain([program]));
        self
    }

    pub(crate) fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    pub(crate) fn args<I: IntoIterator<Item: Into<OsString>>>(mut self, args: I) -> Self {
        self.args.extend(args.into_iter().map(Into::into));
        self
    }

    /// `-- child ARGS`: the command that prints `ready`, see tests/child/main.rs.
    pub(crate) fn child<I: IntoIterator<Item: Into<OsString>>>(self, args: I) -> Self {
        self.arg("--").arg(child()).args(args)
    }

    /// `-- child`: the command that prints `ready` and exits.
    pub(crate) fn bare_child(self) -> Self {
        self.child::<[&str; 0]>([])
    }

    pub(crate) fn env(mut self, name: impl Into<OsString>, value: impl Into<OsString>) -> Self {
        self.environment.push((name.into(), value.into()));
        self
    }

    /// Without the environment of the tests: nothing but what [`Zklock::env`] gives.
    pub(crate) fn cleared(mut self) -> Self {
        self.is_cleared = true;
        self
    }

    /// Without TLS and without a login, even when the whole suite is run [with both](Secure): the test is about plain
    /// connections, or about a TLS or a login of its own.
    pub(crate) fn plain(self) -> Self {
        if Secure::used().is_some() {
            say_plain();
        }
        self.without(Secure::environment)
    }

    /// Without the TLS that the whole suite may be run [with](Secure): what the test has is its own.
    pub(crate) fn own_tls(self) -> Self {
        self.without(Secure::tls)
    }

    /// Without the login that the whole suite may be run [with](Secure), and without the certificate, which is an
    /// identity as well.
    pub(crate) fn anonymous(self) -> Self {
        self.without(Secure::identity)
    }

    fn without(mut self, what: fn(&Secure) -> Vec<(OsString, OsString)>) -> Self {
        let ours = Secure::used().map_or_else(Vec::new, what);
        self.environment.retain(|variable| !ours.contains(variable));
        self
    }

    pub(crate) fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// These bytes as stdin, then its end.
    pub(crate) fn stdin(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.input = Input::Bytes(bytes.into());
        self
    }

    /// A pipe as stdin, open until [`Running::close_stdin`].
    pub(crate) fn open_stdin(mut self) -> Self {
        self.input = Input::Pipe;
        self
    }

    pub(crate) fn stdin_from(mut self, descriptor: impl Into<OwnedFd>) -> Self {
        self.input = Input::Descriptor(descriptor.into());
        self
    }

    /// Started with these signals ignored, as by nohup(1).
    pub(crate) fn ignoring<I: IntoIterator<Item = Signal>>(mut self, signals: I) -> Self {
        self.ignored.extend(signals);
        self
    }

    /// Runs it to its end. Panics when that takes longer than [`PATIENCE`] or when it leaves a process behind.
    #[track_caller]
    pub(crate) fn run(self) -> Output {
        self.spawn().wait()
    }

    #[track_caller]
    pub(crate) fn spawn(self) -> Running {
        let mark = format!("{}/{}-{:016x}", env!("CARGO_TARGET_TMPDIR"), Pid::this(), fastrand::u64(..));
        let mut command = Command::new(&self.program);
        command.args(&self.args);
        for (name, _) in env::vars_os() {
            if self.is_cleared || is_cleared(&name) {
                command.env_remove(name);
            }
        }
        // Whatever this machine or this user has. A test of these files has an empty variable, which counts as unset.
        command.env("ZKLOCK_CONFIG", "/dev/null");
        if !self.is_cleared {
            command.env("TERM", "xterm");
        }
        command.envs(self.environment).env(MARK, &mark);
        if let Some(directory) = self.directory {
            command.current_dir(directory);
        }
        let stdout = Capture::new();
        let stderr = Capture::new();
        command.stdin(self.input.stdio()).stdout(stdout.stdio()).stderr(stderr.stdio());
        let what = format!("{command:?}");
        let started = Instant::now();
        let child = process::spawn(command, Seat::OwnSession, &self.ignored)
            .unwrap_or_else(|error| panic!("cannot start {}: {error}", self.program.display()));
        Running { child, what, mark, started, ended: None, stdout, stderr }
    }
}

fn is_cleared(name: &OsStr) -> bool {
    name.as_encoded_bytes().starts_with(b"ZKLOCK_")
        || ["CI", "GITHUB_ACTIONS", "GITLAB_CI", "BUILD_NUMBER"].iter().any(|ci| name == *ci)
}

impl Input {
    fn stdio(self) -> Stdio {
        match self {
            Self::Null => Stdio::null(),
            Self::Pipe => Stdio::piped(),
            Self::Descriptor(descriptor) => descriptor.into(),
            Self::Bytes(bytes) => {
                let mut file = tempfile::tempfile().expect("a temporary file");
                file.write_all(&bytes).and_then(|()| file.rewind()).expect("a temporary file can be written");
                file.into()
            }
        }
    }
}
