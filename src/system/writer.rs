//! Standard error, and the process that writes to it.
//!
//! A write to standard error can take for ever: the terminal is paused, the pipe is full, the file system of the
//! log is frozen, or its server is dead. poll(2) says that a file is ready even in the last two cases, and write(2)
//! then sleeps where no signal reaches it. So no process of a run writes there. They put their texts into a socket, which
//! never blocks them and drops what it has no room for. The *writer* copies the texts: a process with nothing else to do.
//! A thread that sleeps would keep a dead process from closing its descriptors, by which others see its death.

use std::io::stderr;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd, RawFd};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::{Signal, kill};
use nix::sys::socket::{AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, recv, send, shutdown, socketpair};
use nix::unistd::{Pid, setpgid, write};

use super::clock;
use super::fork::{Life, fork};
use crate::rules::text::Legible;

/// How long a run waits for its writer in the end, in milliseconds. On a busy machine the writer may be late.
const LAST_TEXTS: u16 = 1000;

/// How long a run waits for its writer before something that has to come after the text on the screen.
const PATIENCE: Duration = Duration::from_millis(50);

/// The longest message. A socket has room for more by default (wmem_default, socket(7)).
const LONGEST_MESSAGE: usize = 32 << 10;

/// The way to the writer, for every process of this run. `None` before a run and after it, when nothing is at stake:
/// then texts are written directly.
static WAY: Mutex<Option<OwnedFd>> = Mutex::new(None);

fn way() -> MutexGuard<'static, Option<OwnedFd>> {
    WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Writes a sentence or a log record, or rewrites the status line. Never blocks during a run.
pub fn say(text: &Legible) {
    let text = text.as_str().as_bytes();
    match &*way() {
        Some(way) => text.chunks(LONGEST_MESSAGE).for_each(|piece| {
            // If there is no room, it is dropped.
            let _ = send(way.as_raw_fd(), piece, MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL);
        }),
        None => write_all(text),
    }
}

/// The way to the writer, which a fork that is to speak must keep.
pub fn descriptor() -> Option<RawFd> {
    way().as_ref().map(|way| way.as_raw_fd())
}

#[derive(Debug)]
pub struct Writer {
    /// The other end of the way. It stays open here, so that a text can be seen before there is a writer.
    texts: OwnedFd,
    process: Option<Pid>,
    is_tried: bool,
}

impl Writer {
    /// From now on texts go to the writer. There is no process yet.
    pub fn open() -> nix::Result<Self> {
        let (texts, ours) = socketpair(AddressFamily::Unix, SockType::SeqPacket, None, SockFlag::SOCK_CLOEXEC)?;
        *way() = Some(ours);
        Ok(Self { texts, process: None, is_tried: false })
    }

    /// What to wait on: it becomes readable when a writer has to be started.
    pub fn awaited(&self) -> Option<BorrowedFd<'_>> {
        (!self.is_tried).then(|| self.texts.as_fd())
    }

    /// Starts a writer if there is a first text. Returns its process, which must not be taken for one of the command.
    pub fn start_if_due(&mut self) -> Option<Pid> {
        if self.is_tried || !self.has_texts() {
            return None;
        }
        self.start()
    }

    fn start(&mut self) -> Option<Pid> {
        self.is_tried = true;
        let keep = [self.texts.as_raw_fd(), libc::STDERR_FILENO];
        let writer = fork(c"lock-writer", Life::Own, &keep, || while copy(&self.texts) {}).ok()?;
        // In a group of its own, the writer does not count as a process that uses the terminal.
        let _ = setpgid(writer, writer);
        self.process = Some(writer);
        self.process
    }

    /// A child has been reaped, perhaps this one.
    pub fn ended(&mut self, child: Pid) {
        self.process.take_if(|process| *process == child);
    }

    /// Waits for a moment until all texts are written.
    pub fn flush(&self) {
        let until = clock::now() + PATIENCE;
        while self.process.is_some() && self.has_texts() && clock::now() < until {
            let _ = poll(&mut [], 1_u8);
        }
    }

    /// Lets the writer write what is left, and waits for a moment until it has. One that takes longer is left behind if
    /// `leaves` is true, and ends by itself; otherwise it is killed, so that it does not count as a descendant of whatever
    /// started us. It may be in a wait that cannot be killed, so it is not waited for.
    pub fn finish(mut self, leaves: bool) {
        // It was killed, or there were too many processes. The last text is often the reason why a run has failed.
        if self.process.is_none() && self.has_texts() && self.start().is_none() {
            while self.has_texts() && copy(&self.texts) {}
        }
        let Some(way) = way().take() else { return };
        drop(self.texts);
        let _ = shutdown(way.as_raw_fd(), Shutdown::Write);
        // It hangs up when the writer exits.
        let is_left =
            self.process.filter(|_| poll(&mut [PollFd::new(way.as_fd(), PollFlags::empty())], LAST_TEXTS) == Ok(0));
        if let Some(process) = is_left.filter(|_| !leaves) {
            let _ = kill(process, Signal::SIGKILL);
        }
    }

    fn has_texts(&self) -> bool {
        poll(&mut [PollFd::new(self.texts.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1)
    }
}

/// Copies one message. It stays in the socket until it is written. Returns false when no other process has the other end.
fn copy(texts: &OwnedFd) -> bool {
    let mut message = vec![0; LONGEST_MESSAGE];
    match recv(texts.as_raw_fd(), &mut message, MsgFlags::MSG_PEEK) {
        Ok(length @ 1..) => {
            write_all(&message[..length]);
            recv(texts.as_raw_fd(), &mut [], MsgFlags::empty()).is_ok()
        }
        end => end == Err(Errno::EINTR),
    }
}

/// Writes to standard error for as long as that takes. Errors are ignored: they cannot be told.
fn write_all(mut text: &[u8]) {
    while !text.is_empty() {
        match write(stderr(), text) {
            Ok(count) => text = &text[count..],
            Err(Errno::EINTR) => {}
            // Another process that has it open wants it not to block.
            Err(Errno::EAGAIN) => {
                let _ = poll(&mut [PollFd::new(stderr().as_fd(), PollFlags::POLLOUT)], PollTimeout::NONE);
            }
            Err(_) => return,
        }
    }
}
