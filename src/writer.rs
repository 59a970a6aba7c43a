//! Standard error, and the process that writes to it.
//!
//! A write to standard error can take for ever: the terminal is paused, the pipe is full, the file system of the
//! log is frozen, or its server is dead. poll(2) says that a file is ready even in the last two cases, and write(2)
//! then sleeps where no signal reaches it. So neither supervisor nor keeper writes there. They put their texts into
//! one pipe, which never blocks them, and the *writer* copies the texts. It is a fork of the supervisor with nothing
//! else to do, made when the first text is in the pipe.
//!
//! If the pipe is full, texts are dropped and counted.

use std::io::{stderr, stdin};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use nix::sys::prctl;
use nix::sys::signal::{SigSet, SigmaskHow, Signal, kill};
use nix::sys::wait::{WaitPidFlag, WaitStatus, waitpid};
use nix::unistd::{ForkResult, Pid, dup2_stdin, fork, pipe2, read, setpgid, write};

use crate::clock;
use crate::descriptors;
use crate::rules::instant::Instant;
use crate::sentences;
use crate::signals;

/// How long a run waits for its writer in the end. On a busy machine the writer may get a processor late, and the last
/// text is often the reason why the run has failed.
const LAST_TEXTS: Duration = Duration::from_secs(1);

/// How long a run waits for its writer before something that has to come after the text on the screen.
const PATIENCE: Duration = Duration::from_millis(50);

/// After what time fork(2) is tried again.
const AGAIN: Duration = Duration::from_secs(1);

/// How often a writer is started: one that was killed is replaced once.
const STARTS: u8 = 2;

/// A write of at most this many bytes puts all of them into the pipe or none (pipe(7)).
const WHOLE: usize = libc::PIPE_BUF;

/// How much the writer reads at once: all that a pipe holds by default.
const READ: usize = 64 * 1024;

/// The way to the writer, for every process of this run. `None` before a run and after it, when nothing is at stake:
/// then texts are written directly.
static WAY: Mutex<Option<Way>> = Mutex::new(None);

fn way() -> MutexGuard<'static, Option<Way>> {
    WAY.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Debug)]
struct Way {
    pipe: OwnedFd,
    shared: &'static Shared,
}

/// In memory that all processes of this run share.
#[derive(Debug)]
struct Shared {
    /// The writer has written all that it has read.
    is_idle: AtomicBool,
    /// How many messages have been dropped and not been told of.
    dropped: AtomicU64,
}

impl Shared {
    fn new() -> nix::Result<&'static Self> {
        let length = std::num::NonZeroUsize::new(size_of::<Self>()).expect("they have a size");
        #[expect(unsafe_code, reason = "shared memory comes from mmap(2)")]
        // SAFETY: a fresh anonymous mapping aliases nothing, is page-aligned and zeroed, which is a valid value of
        // both fields, is large enough, and is never unmapped.
        unsafe {
            let flags = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
            Ok(mmap_anonymous(None, length, flags, MapFlags::MAP_SHARED)?.cast().as_ref())
        }
    }
}

/// Writes a sentence, or rewrites the status line. Never blocks during a run.
pub fn say(text: &str) {
    put(text, true);
}

/// Writes a log record. Never blocks during a run.
pub fn log(record: &str) {
    put(record, false);
}

fn put(text: &str, matters: bool) {
    match &*way() {
        Some(way) => way.put(text.as_bytes(), matters),
        None => write_directly(text.as_bytes()),
    }
}

/// The way to the writer, which a fork that is to speak must keep.
pub fn descriptor() -> Option<RawFd> {
    (*way()).as_ref().map(|way| way.pipe.as_raw_fd())
}

impl Way {
    /// Puts a text into the pipe if there is room. Once something has been dropped, only what `matters` is put
    /// there until the writer has caught up: otherwise each gap of one record would cost a message of its own.
    fn put(&self, text: &[u8], matters: bool) {
        let has_gap = self.shared.dropped.load(Ordering::Relaxed) > 0;
        let may_close_it = matters || self.shared.is_idle.load(Ordering::SeqCst);
        let is_put = (!has_gap || may_close_it && self.tell_dropped()) && self.send(text);
        if !is_put && text.contains(&b'\n') {
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns whether there was room for it.
    fn tell_dropped(&self) -> bool {
        let count = self.shared.dropped.swap(0, Ordering::Relaxed);
        let is_told = count == 0 || self.send(format!("zklock: {}\n", sentences::dropped(count)).as_bytes());
        if !is_told {
            self.shared.dropped.fetch_add(count, Ordering::Relaxed);
        }
        is_told
    }

    fn send(&self, text: &[u8]) -> bool {
        text.chunks(WHOLE).all(|piece| write(&self.pipe, piece).is_ok())
    }
}

/// The writer, as the supervisor sees it.
#[derive(Debug)]
pub struct Writer {
    /// The other end of the pipe. It stays open here, so that what a writer that was killed has not read is read by
    /// the next one, and so that a text in the pipe can be seen before there is a writer.
    texts: OwnedFd,
    shared: &'static Shared,
    process: Option<Pid>,
    starts_left: u8,
    /// When to try again, if the last fork(2) has failed.
    again_at: Option<Instant>,
}

impl Writer {
    /// From now on texts go through the pipe. There is no process yet.
    pub fn open() -> nix::Result<Self> {
        let (texts, pipe) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        let shared = Shared::new()?;
        *way() = Some(Way { pipe, shared });
        Ok(Self { texts, shared, process: None, starts_left: STARTS, again_at: None })
    }

    /// What to wait on: it becomes readable when a writer has to be started.
    pub fn awaited(&self) -> Option<BorrowedFd<'_>> {
        (self.may_start() && self.again_at.is_none()).then(|| self.texts.as_fd())
    }

    /// When to call [`Self::start_if_due`] although nothing has become readable.
    pub fn again_at(&self) -> Option<Instant> {
        self.again_at.filter(|_| self.may_start())
    }

    fn may_start(&self) -> bool {
        self.process.is_none() && self.starts_left > 0
    }

    /// Forks a writer if there is a text and no writer. Returns its process id. This process must have one thread
    /// only. The writer must not be taken for a process of the command.
    pub fn start_if_due(&mut self) -> Option<Pid> {
        if !self.may_start() || self.again_at.is_some_and(|again_at| clock::now() < again_at) {
            return None;
        }
        self.again_at = None;
        if !self.has_texts() {
            return None;
        }
        #[expect(unsafe_code, reason = "the writer is a fork of the supervisor")]
        // SAFETY: this process has one thread, so the child may go on as any process may (fork(2)).
        match unsafe { fork() } {
            Ok(ForkResult::Child) => {
                live(&self.texts, self.shared);
                // SAFETY: _exit(2) does not return and touches no memory.
                unsafe { libc::_exit(0) }
            }
            Ok(ForkResult::Parent { child }) => {
                // Also here: the terminal's group must not seem to have one more member even for a moment.
                let _ = setpgid(child, child);
                self.process = Some(child);
                self.starts_left -= 1;
            }
            // There may be fewer processes soon. Tried in the end as well.
            Err(_) => self.again_at = Some(clock::now() + AGAIN),
        }
        self.process
    }

    /// A child has been reaped, perhaps this one.
    pub fn ended(&mut self, child: Pid) {
        self.process.take_if(|process| *process == child);
    }

    /// Waits for a moment until all texts are written.
    pub fn flush(&self) {
        let until = clock::now() + PATIENCE;
        while self.process.is_some() && !self.is_drained() && pause(until) {}
    }

    /// Ends the writer when it has written all texts. If that takes long, it is left behind if `leaves` is true, and ends
    /// by itself; otherwise it is killed, so that it does not count as a descendant of whatever started us. It may be in
    /// a wait that cannot be killed, so it is not waited for.
    pub fn finish(mut self, leaves: bool) {
        let until = clock::now() + LAST_TEXTS;
        (self.starts_left, self.again_at) = (1, None);
        self.start_if_due();
        if self.shared.dropped.load(Ordering::Relaxed) > 0 {
            while self.process.is_some() && !self.is_drained() && pause(until) {}
            if let Some(way) = &*way() {
                way.tell_dropped();
            }
        }
        // The writer sees the end of the pipe.
        *way() = None;
        match self.process {
            Some(process) => {
                while is_alive(process) && pause(until) {}
                if !leaves && is_alive(process) {
                    let _ = kill(process, Signal::SIGKILL);
                }
            }
            // No process could be forked. Nothing is at stake any more.
            None => while self.has_texts() && copy_some(self.texts.as_fd(), write_directly) {},
        }
    }

    fn has_texts(&self) -> bool {
        let mut pipe = [PollFd::new(self.texts.as_fd(), PollFlags::POLLIN)];
        let _ = poll(&mut pipe, PollTimeout::ZERO);
        // And not the end of the pipe alone: no buffer is needed for that.
        pipe[0].revents().is_some_and(|seen| seen.contains(PollFlags::POLLIN))
    }

    /// In this order: the writer is not idle from before it reads a text until it has written it.
    fn is_drained(&self) -> bool {
        !self.has_texts() && self.shared.is_idle.load(Ordering::SeqCst)
    }
}

/// Whether this child has not ended. If it has, it is reaped.
fn is_alive(child: Pid) -> bool {
    waitpid(child, Some(WaitPidFlag::WNOHANG)) == Ok(WaitStatus::StillAlive)
}

/// Pauses for as short a time as poll(2) can. Returns whether `until` has not come.
fn pause(until: Instant) -> bool {
    let _ = poll(&mut [], 1_u8);
    clock::now() < until
}

/// The life of the writer. It ends when all other processes have closed their ends of the pipe.
fn live(texts: &OwnedFd, shared: &Shared) {
    // Errors leave a writer that can do its work all the same.
    signals::block_all();
    // Signals to our group do not reach it there, and it does not count as one of those who use the terminal.
    let _ = setpgid(Pid::from_raw(0), Pid::from_raw(0));
    // A name for people. It also keeps `pkill -9 zklock` from it: the keeper may have something to say afterwards.
    let _ = prctl::set_name(c"lock-writer");
    if dup2_stdin(texts).is_err() {
        return;
    }
    // A writer that is left behind must not keep a file or a socket open.
    descriptors::close_all_but(&mut [libc::STDIN_FILENO, libc::STDERR_FILENO]);
    loop {
        shared.is_idle.store(true, Ordering::SeqCst);
        let _ = poll(&mut [PollFd::new(stdin().as_fd(), PollFlags::POLLIN)], PollTimeout::NONE);
        shared.is_idle.store(false, Ordering::SeqCst);
        if !copy_some(stdin().as_fd(), write_all) {
            return;
        }
    }
}

/// Copies what is in the pipe, each line by one call of `write`. Returns false at the end of the pipe.
fn copy_some(texts: BorrowedFd<'_>, write: fn(&[u8])) -> bool {
    let mut bytes = vec![0; READ];
    match read(texts, &mut bytes) {
        Ok(0) => false,
        Ok(count) => {
            bytes[..count].split_inclusive(|byte| *byte == b'\n').for_each(write);
            true
        }
        Err(error) => matches!(error, Errno::EINTR | Errno::EAGAIN),
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

/// [`write_all`] of a process that does not ignore SIGTTOU: in the background, after `stty tostop`, a line would stop
/// it (termios(3)).
fn write_directly(text: &[u8]) {
    let ttou = SigSet::from(Signal::SIGTTOU);
    let mask = ttou.thread_swap_mask(SigmaskHow::SIG_BLOCK);
    write_all(text);
    if let Ok(mask) = mask {
        let _ = mask.thread_set_mask();
    }
}
