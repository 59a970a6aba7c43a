//! The terminal, if there is one: who uses it, its attributes, and the line on it that is rewritten while waiting.

use std::io::{self, IsTerminal, Write, stderr};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use nix::fcntl::{OFlag, open};
use nix::poll::{PollFd, PollFlags, poll};
use nix::sys::signal::{SigSet, SigmaskHow, Signal};
use nix::sys::stat::Mode;
use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use nix::unistd::{Pid, getpgrp, tcgetpgrp};

/// Whether this process has a controlling terminal: /dev/tty can then be opened (tty(4)).
pub fn is_controlled() -> bool {
    open_controlling().is_ok()
}

fn open_controlling() -> nix::Result<OwnedFd> {
    open("/dev/tty", OFlag::O_RDWR | OFlag::O_NOCTTY | OFlag::O_CLOEXEC, Mode::empty())
}

/// The terminal's attributes (termios(3)) as a command found them.
#[derive(Debug)]
pub struct Attributes(Termios);

impl Attributes {
    /// Those of the controlling terminal, if our process group is in its foreground: otherwise they belong
    /// to another job.
    pub fn of_foreground() -> Option<Self> {
        let terminal = open_controlling().ok()?;
        let is_ours = tcgetpgrp(&terminal) == Ok(getpgrp());
        is_ours.then(|| tcgetattr(&terminal).ok().map(Self)).flatten()
    }

    /// Gives the terminal these attributes again, unless it `is_taken` by the process group that is in its
    /// foreground now.
    pub fn restore(&self, is_taken: impl FnOnce(Pid) -> bool) {
        let Ok(terminal) = open_controlling() else { return };
        if tcgetpgrp(&terminal).is_ok_and(is_taken) {
            return;
        }
        // The foreground may still be the process group of a command that has died. Then we are in the
        // background, and the change would get us a SIGTTOU if that were not blocked (tcsetattr(3)).
        let ttou = SigSet::from(Signal::SIGTTOU);
        let restored = ttou.thread_block().and_then(|()| tcsetattr(&terminal, SetArg::TCSANOW, &self.0));
        let unblocked = ttou.thread_unblock();
        if let Err(error) = restored.and(unblocked) {
            log::info!("cannot restore the terminal: {error}");
        }
    }
}

/// Whether a person is likely to read standard error as it is written.
pub fn has_reader() -> bool {
    stderr().is_terminal()
}

/// Text on standard error: whole lines, and one that is rewritten in place.
///
/// Write errors are ignored: they cannot be told, and the command matters more.
#[derive(Debug, Default)]
pub struct Screen {
    status: Option<String>,
    shared: bool,
}

impl Screen {
    /// Writes a line that stays.
    pub fn line(&mut self, text: &str) {
        if self.shared && stderr().is_terminal() {
            return write(&format!("\r\nzklock: {text}\r\n"));
        }
        let status = self.status.take();
        if status.is_some() {
            write("\r\x1b[K");
        }
        write(&format!("zklock: {text}\n"));
        if let Some(status) = status {
            self.status(status);
        }
    }

    /// Rewrites the line that does not stay. Only on a terminal.
    pub fn status(&mut self, text: String) {
        let width = terminal_size::terminal_size_of(stderr()).map_or(80, |(width, _)| usize::from(width.0));
        // A line that wraps cannot be rewritten.
        let shown: String = format!("zklock: {text}").chars().take(width.saturating_sub(1)).collect();
        write(&format!("\r\x1b[K{shown}"));
        self.status = Some(text);
    }

    /// From now on a command also writes to the terminal, and people type. When we write next, a line may be
    /// half full, and a line feed may not return the carriage (raw mode).
    pub fn share(&mut self) {
        self.shared = true;
    }

    /// The command writes to the terminal no more.
    pub fn keep(&mut self) {
        self.shared = false;
    }

    /// Removes the line that does not stay.
    pub fn clear(&mut self) {
        if self.status.take().is_some() {
            write("\r\x1b[K");
        }
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.clear();
    }
}

fn write(text: &str) {
    let _ = Patient.write_all(text.as_bytes());
}

/// How long one write waits for the reader, in milliseconds. Until the reader is back, further writes do not
/// wait at all.
const PATIENCE: u16 = 100;

/// Standard error that does not hold us up when a terminal is paused (Ctrl-S) or a pipe is full: the
/// command must be stopped in time all the same. What cannot be written in a moment is dropped.
#[derive(Clone, Copy, Debug)]
pub struct Patient;

impl Write for Patient {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        static STUCK: AtomicBool = AtomicBool::new(false);
        let mut stderr = stderr();
        let mut fds = [PollFd::new(stderr.as_fd(), PollFlags::POLLOUT)];
        let patience = if STUCK.load(Ordering::Relaxed) { 0 } else { PATIENCE };
        let stuck = poll(&mut fds, patience) == Ok(0);
        STUCK.store(stuck, Ordering::Relaxed);
        if stuck {
            return Ok(bytes.len());
        }
        // In the background, after `stty tostop`, a line of ours would stop us and the command, with the lock
        // held; a process that blocks the signal may write (termios(3)).
        let ttou = SigSet::from(Signal::SIGTTOU);
        let mask = ttou.thread_swap_mask(SigmaskHow::SIG_BLOCK);
        let written = stderr.write(bytes);
        if let Ok(mask) = mask {
            let _ = mask.thread_set_mask();
        }
        written
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
