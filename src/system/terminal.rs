//! The terminal, if there is one: who uses it, its attributes, and the line on it that is rewritten while waiting.

use std::env;
use std::io::{IsTerminal, stderr, stdin, stdout};
use std::os::fd::{AsFd, OwnedFd};

use nix::errno::Errno;
use nix::fcntl::{OFlag, open};
use nix::sys::stat::Mode;
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcgetsid, tcsetattr};
use nix::unistd::{Pid, getpgrp, tcgetpgrp};

use super::writer;
use crate::rules::text::{Legible, fitting};

/// Whether this process has a controlling terminal.
pub fn is_controlled() -> bool {
    open_controlling().is_some()
}

/// The controlling terminal: /dev/tty can be opened if there is one (tty(4)). In a jail /dev/tty may be missing: then the
/// terminal is found if zklock was started on it.
fn open_controlling() -> Option<OwnedFd> {
    match open("/dev/tty", OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC, Mode::empty()) {
        Ok(terminal) => Some(terminal),
        Err(Errno::ENXIO) => None,
        Err(_) => [stdin().as_fd(), stdout().as_fd(), stderr().as_fd()]
            .into_iter()
            .find(|fd| tcgetsid(fd).is_ok())
            .and_then(|fd| fd.try_clone_to_owned().ok()),
    }
}

/// The terminal's attributes (termios(3)) as a command found them.
#[derive(Debug)]
pub struct Attributes(Termios);

impl Attributes {
    /// Those of the controlling terminal, if our process group is in its foreground: otherwise they belong
    /// to another job.
    pub fn of_foreground() -> Option<Self> {
        let terminal = open_controlling()?;
        let is_ours = tcgetpgrp(&terminal) == Ok(getpgrp());
        is_ours.then(|| tcgetattr(&terminal).ok().map(Self)).flatten()
    }

    /// Gives the terminal these attributes again, unless it `is_taken` by the process group that is in its
    /// foreground now.
    pub fn restore(&self, is_taken: impl FnOnce(Pid) -> bool) {
        let Some(terminal) = open_controlling() else { return };
        if tcgetpgrp(&terminal).is_ok_and(is_taken) {
            return;
        }
        // The foreground may still be the process group of a command that has died. SIGTTOU is blocked.
        if let Err(error) = tcsetattr(&terminal, SetArg::TCSANOW, &self.0) {
            log::info!("cannot restore the terminal: {error}");
        }
    }
}

/// Whether what is written to standard error may be seen as a line of its own: not when it is a terminal that another job
/// uses now.
pub fn is_in_foreground() -> bool {
    // A terminal that is not ours to control is used by no job of ours.
    tcgetpgrp(stderr()).map_or(true, |foreground| foreground == getpgrp())
}

/// Whether a person is likely to read standard error as it is written.
pub fn has_reader() -> bool {
    stderr().is_terminal()
}

/// Whether a terminal of ours knows escape sequences. Where nothing says so, as in an editor's window, it has lines only.
pub fn can_rewrite() -> bool {
    env::var_os("TERM").is_some_and(|term| !term.is_empty() && term != "dumb")
}

/// Writes a line to standard error, in one piece: the lines of two runs do not mix. Nothing is lost if it is closed.
pub fn say(text: &str) {
    Screen::default().line(text);
}

/// Text on standard error: whole lines, and one that is rewritten in place.
#[derive(Debug, Default)]
pub struct Screen {
    /// Asked once: of a file on a server that is dead, the answer may never come.
    is_terminal: bool,
    status: Option<Legible>,
    shared: bool,
}

/// Back to the start of the line, and erase it (console_codes(4)).
const ERASE: &str = "\r\x1b[K";

impl Screen {
    pub fn new(is_terminal: bool) -> Self {
        Self { is_terminal, status: None, shared: false }
    }

    /// Writes a line that stays.
    pub fn line(&mut self, text: &str) {
        let line = ours(text);
        let mut said = Legible::default();
        match &self.status {
            _ if self.shared && self.is_terminal => said.control("\r\n").append(&line).control("\r\n"),
            None => said.append(&line).control("\n"),
            Some(status) => said.control(ERASE).append(&line).control("\n").push(fitted(status)),
        };
        writer::say(&said);
    }

    /// Rewrites the line that does not stay. Only on a terminal.
    pub fn status(&mut self, text: &str) {
        let status = ours(text);
        writer::say(Legible::default().control(ERASE).push(fitted(&status)));
        self.status = Some(status);
    }

    /// From now on a command also writes to the terminal, and people type. When we write next, a line may be
    /// half full, and a line feed may not return the carriage (raw mode).
    pub fn share(&mut self) {
        self.shared = true;
    }

    pub fn keep(&mut self) {
        self.shared = false;
    }

    /// Removes the line that does not stay. Returns whether there was one.
    pub fn clear(&mut self) -> bool {
        let status = self.status.take();
        if status.is_some() {
            writer::say(Legible::default().control(ERASE));
        }
        status.is_some()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.clear();
    }
}

/// A line without its end. It begins as each line of this program does.
pub fn ours(text: &str) -> Legible {
    Legible::new(&format!("zklock: {text}"))
}

/// A status as the terminal has room for it: a line that wraps cannot be rewritten.
fn fitted(status: &Legible) -> &str {
    let width = terminal_size::terminal_size_of(stderr()).map_or(80, |(width, _)| usize::from(width.0));
    fitting(status.as_str(), width.saturating_sub(1))
}
