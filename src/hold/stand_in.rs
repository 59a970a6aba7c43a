//! The process that stands in for a command.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::sys::stat::Mode;
use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout, getpgrp, read, tcgetpgrp, write};

use super::{Caller, HANG_UP, Until, has_event, stdin};
use crate::command::exit_now;
use crate::descriptors;
use crate::environment;
use crate::lending::{self, Lending, Lifeline};
use crate::rules::lender::Lender;
use crate::rules::outcome::INTERNAL;
use crate::rules::signal::Signal;
use crate::signals::{Inherited, Queue};
use crate::writer;

/// How much is written at once: as much as a pipe that is ready has room for (pipe(7)).
const PIECE: usize = 4096;

/// How often to look whether we have come to the foreground of a terminal, in milliseconds.
const LOOK_AGAIN: u16 = 1000;

/// What stands in for a command.
#[derive(Clone, Copy, Debug)]
pub struct StandIn {
    /// The signal that the supervisor stops a command by.
    stop_signal: Signal,
    until: UntilWhen,
    root: Option<Lender>,
}

/// The same as [`Until`] for a process that has copies of all descriptors.
#[derive(Clone, Copy, Debug)]
enum UntilWhen {
    /// This descriptor is readable.
    Readable(i32),
    HungUp,
    Typed,
    Signal,
}

impl StandIn {
    /// What holds the lock for this caller.
    pub fn new(caller: Option<&Caller>, stop_signal: Signal) -> Self {
        let until = match caller.map(|caller| &caller.until) {
            Some(Until::Ended(end)) => UntilWhen::Readable(end.as_raw_fd()),
            Some(Until::HungUp) => UntilWhen::HungUp,
            Some(Until::Typed) => UntilWhen::Typed,
            // Before the lock is held it is seen that the caller has gone.
            Some(Until::Signal | Until::Now) | None => UntilWhen::Signal,
        };
        Self { stop_signal, until, root: caller.and_then(|caller| caller.process) }
    }

    /// Lets go of what the caller has open here, but for what is still needed: standard output, and a standard input that
    /// tells when to end. At the end of a process the kernel first flushes each of its files, and only then closes its
    /// pipes. On a file system that does not answer, a flush takes for ever, and the lifeline would hang up as late.
    pub(crate) fn let_go(self) -> io::Result<()> {
        let null = nix::fcntl::open("/dev/null", OFlag::O_RDWR | OFlag::O_CLOEXEC, Mode::empty())?;
        dup2_stderr(&null)?;
        if matches!(self.until, UntilWhen::Readable(_) | UntilWhen::Signal) {
            dup2_stdin(&null)?;
        }
        Ok(())
    }

    /// Lives as what stands in for a command: prints what a command would find in its environment, and holds. To be called
    /// in a fork that is about to become the command.
    pub(crate) fn live(self, variables: &[(OsString, OsString)], inherited: Inherited, lent: &Lending) -> ! {
        exit_now(match self.hold(variables, inherited, lent) {
            Ok(()) => 0,
            Err(error) => {
                writer::say(&format!("zklock: hold: {error}\n"));
                i32::from(INTERNAL)
            }
        })
    }

    fn hold(self, variables: &[(OsString, OsString)], inherited: Inherited, lent: &Lending) -> io::Result<()> {
        // A name for people.
        let _ = prctl::set_name(c"lock-hold");
        self.close_others(lent);
        let ends = Ends { queue: self.queue(inherited)?, until: self.until, typed: self.typed() };
        let lifeline = Lifeline::new()?;
        let process = lending::own()?;
        let offer = self.root.map(|root| lent.offer(root, Some(lifeline.of(process))));
        let mut text = vec![];
        for (name, value) in variables {
            push_line(&mut text, name, value);
        }
        if let Some(offer) = offer {
            let (name, value) = environment::lender(&offer);
            push_line(&mut text, OsStr::new(name), &value);
        }
        if ends.print(&text)? {
            leave_stdout()?;
            ends.wait()?;
        }
        // What has borrowed the lock goes on under it.
        if !lent.end() {
            let mut fds = [PollFd::new(lent.as_fd(), PollFlags::empty())];
            while poll(&mut fds, PollTimeout::NONE) == Err(Errno::EINTR) {}
        }
        Ok(())
    }

    /// Closes what the supervisor has open, which would hide from others that it has died.
    fn close_others(self, lent: &Lending) {
        let mut ours = vec![libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO];
        ours.extend(lent.descriptors());
        ours.extend(writer::descriptor());
        if let UntilWhen::Readable(end) = self.until {
            ours.push(end);
        }
        descriptors::close_all_but(&mut ours);
    }

    /// The terminal, to be read without waiting: Ctrl-C throws away what poll(2) has just told of. That reading does not wait
    /// is a property of the open file, and the caller has that of standard input as well. `None` where there is no /dev/tty.
    fn typed(self) -> Option<OwnedFd> {
        let flags = OFlag::O_RDONLY | OFlag::O_NONBLOCK | OFlag::O_NOCTTY | OFlag::O_CLOEXEC;
        let is_typed = matches!(self.until, UntilWhen::Typed);
        // In the foreground, standard input is the terminal of our session.
        if is_typed {
            nix::fcntl::open("/dev/tty", flags, Mode::empty()).ok().filter(|tty| tcgetpgrp(tty).is_ok())
        } else {
            None
        }
    }

    /// The signals that end it. SIGINT and SIGQUIT do only at a terminal: when Ctrl-C has ended the work of a script, the
    /// script still needs the lock to clean up.
    fn queue(self, inherited: Inherited) -> io::Result<Queue> {
        let mut ending = vec![Signal::HUP, Signal::TERM, self.stop_signal];
        // Reading fails instead where the terminal has been given to others.
        let mut ignored: Vec<_> = Signal::new(libc::SIGTTIN).into_iter().collect();
        let typed = [Signal::INT, Signal::QUIT];
        let is_typed = matches!(self.until, UntilWhen::Typed);
        if is_typed {
            ending.extend(typed)
        } else {
            ignored.extend(typed)
        }
        Queue::open(inherited, &ending, &ignored)
    }
}

/// Whoever reads standard output sees its end, once all processes of this run have called this.
pub fn leave_stdout() -> nix::Result<()> {
    dup2_stdout(nix::fcntl::open("/dev/null", OFlag::O_WRONLY | OFlag::O_CLOEXEC, Mode::empty())?)
}

/// What tells that the lock is to end.
struct Ends {
    queue: Queue,
    until: UntilWhen,
    /// See [`StandIn::typed`].
    typed: Option<OwnedFd>,
}

impl Ends {
    /// Prints the lines. Returns false if it was told to end before they were read.
    fn print(&self, text: &[u8]) -> io::Result<bool> {
        let mut left = text;
        while !left.is_empty() {
            if self.have_come(Some(stdout()))? {
                return Ok(false);
            }
            match write(stdout(), &left[..left.len().min(PIECE)]) {
                Ok(count) => left = &left[count..],
                Err(Errno::EINTR | Errno::EAGAIN) => {}
                Err(error) => return Err(io::Error::other(format!("cannot print the variables: {}", error.desc()))),
            }
        }
        Ok(true)
    }

    fn wait(&self) -> io::Result<()> {
        while !self.have_come(None)? {}
        Ok(())
    }

    /// Waits until something comes, or until there is room in `room`. Returns whether the lock is to end.
    fn have_come(&self, room: Option<BorrowedFd<'_>>) -> io::Result<bool> {
        let mut fds = vec![PollFd::new(self.queue.as_fd(), PollFlags::POLLIN)];
        #[expect(unsafe_code, reason = "the descriptor was inherited")]
        // SAFETY: the descriptor stays open as long as this process lives.
        let borrowed = |fd| unsafe { BorrowedFd::borrow_raw(fd) };
        let is_typed = matches!(self.until, UntilWhen::Typed);
        let is_reading = is_typed && is_in_foreground();
        let end = match self.until {
            UntilWhen::Readable(end) => Some(PollFd::new(borrowed(end), PollFlags::POLLIN)),
            UntilWhen::HungUp => Some(PollFd::new(stdin(), HANG_UP)),
            UntilWhen::Typed if is_reading => Some(PollFd::new(stdin(), PollFlags::POLLIN)),
            // In the background, what is typed is for another. That the terminal has gone is told all the same.
            UntilWhen::Typed => Some(PollFd::new(stdin(), PollFlags::empty())),
            UntilWhen::Signal => None,
        };
        let has_end = end.is_some();
        // No signal tells that we have come to the foreground.
        let time = if is_typed && !is_reading { PollTimeout::from(LOOK_AGAIN) } else { PollTimeout::NONE };
        fds.extend(end);
        fds.extend(room.map(|room| PollFd::new(room, PollFlags::POLLOUT)));
        match poll(&mut fds, time) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(error) => return Err(error.into()),
        }
        let has_ended = has_end && has_event(&fds[1]);
        // Where nothing is read, what has come is the end of the terminal.
        Ok(self.queue.take().is_some() || has_ended && (!is_reading || self.is_at_end()))
    }

    /// Reads what was typed. Returns whether that was its end.
    fn is_at_end(&self) -> bool {
        if !is_in_foreground() {
            return false;
        }
        let typed = match &self.typed {
            Some(typed) => typed.as_fd(),
            None => stdin(),
        };
        match read(typed, &mut [0; 1024]) {
            Ok(count) => count == 0,
            Err(Errno::EINTR | Errno::EAGAIN) => false,
            // Perhaps somebody else has come to the foreground.
            Err(Errno::EIO) => is_in_foreground(),
            Err(_) => true,
        }
    }
}

fn is_in_foreground() -> bool {
    tcgetpgrp(stdin()) == Ok(getpgrp())
}

fn stdout() -> BorrowedFd<'static> {
    #[expect(unsafe_code, reason = "standard output may be closed")]
    // SAFETY: the number is valid for poll(2) and write(2) even where nothing is open, and then they fail.
    unsafe {
        BorrowedFd::borrow_raw(libc::STDOUT_FILENO)
    }
}

/// A line that a shell reads as an assignment, and systemd.exec(5) (EnvironmentFile) as well.
fn push_line(text: &mut Vec<u8>, name: &OsStr, value: &OsStr) {
    text.extend_from_slice(name.as_bytes());
    text.push(b'=');
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/_.:-".contains(byte);
    if !value.is_empty() && value.as_bytes().iter().all(is_plain) {
        text.extend_from_slice(value.as_bytes());
    } else {
        text.push(b'\'');
        for byte in value.as_bytes() {
            match byte {
                b'\'' => text.extend_from_slice(br"'\''"),
                byte => text.push(*byte),
            }
        }
        text.push(b'\'');
    }
    text.push(b'\n');
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    #[test]
    fn a_shell_reads_the_lines_as_they_were_meant() {
        let values: [&[u8]; 6] = [b"/jobs/backup", b"", b"a b", b"it's $HOME `x` \\ \"y\"", b"two\nlines", b"\xff~*"];
        for value in values {
            let mut text = vec![];
            push_line(&mut text, OsStr::new("V"), OsStr::from_bytes(value));
            let script = [text.as_slice(), b"printf %s \"$V\""].concat();
            let output = std::process::Command::new("sh").arg("-c").arg(OsString::from_vec(script)).output().unwrap();
            assert_eq!(output.stdout, value);
        }
        let mut text = vec![];
        push_line(&mut text, OsStr::new("ZKLOCK_PATH"), OsStr::new("/jobs/backup"));
        assert_eq!(text, b"ZKLOCK_PATH=/jobs/backup\n");
    }
}
