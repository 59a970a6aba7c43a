//! The command's process before it is the command: everything is done but execve(2).

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::prctl;
use nix::sys::signal::Signal as Named;
use nix::sys::socket::{MsgFlags, recv};
use nix::unistd::{Pid, getppid, read, setpgid};
use serde::{Deserialize, Serialize};

use super::{Birth, Travelling, arrived};
use crate::clock;
use crate::command::{FailureReport, exit_now};
use crate::rules::instant::Instant;
use crate::shared::Shared;
use crate::signals;

/// What a command's process needs to leave the gate.
pub(super) struct Passage {
    /// Where the supervisor sends an [`Opening`].
    pub(super) gate: OwnedFd,
    pub(super) report: FailureReport,
    /// The supervisor's process.
    pub(super) supervisor: Pid,
}

/// What the supervisor sends when the gate opens.
#[derive(Serialize, Deserialize)]
pub(super) struct Opening {
    pub(super) variables: Vec<Travelling>,
    /// From here on it is too late to start the command.
    pub(super) until: Instant,
}

/// The longest [`Opening`].
const LONGEST: usize = 256 * 1024;

/// Waits at the gate, then becomes the command. `go`: where the guard, the process `guard`, says that all is ready. If
/// either the supervisor or the guard goes before that, this process exits.
pub(super) fn wait(birth: &Birth<'_>, passage: Passage, go: &OwnedFd, guard: Pid, shared: Shared) -> ! {
    let Passage { gate, report, supervisor } = passage;
    let tied = || -> io::Result<()> {
        if birth.own_group {
            setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
        }
        // The parent is the guard, a process with one thread: the signal comes when that thread ends.
        prctl::set_pdeathsig(Named::SIGKILL)?;
        // The guard may have died before the line above: then the signal never comes.
        if getppid() != guard {
            return Err(Errno::ESRCH.into());
        }
        Ok(())
    };
    if let Err(error) = tied() {
        report.exit(&error);
    }
    close_ours(&[gate.as_raw_fd(), go.as_raw_fd(), report.as_fd().as_raw_fd()]);
    let mut message = vec![0; LONGEST];
    let length = loop {
        match recv(gate.as_raw_fd(), &mut message, MsgFlags::empty()) {
            Err(Errno::EINTR) => {}
            Ok(length) if length > 0 => break length,
            _ => exit_now(0),
        }
    };
    let opening: Opening = match serde_json::from_slice(&message[..length]) {
        Ok(opening) => opening,
        Err(error) => report.exit(&error.into()),
    };
    signals::drop_stale(&[guard, supervisor]);
    loop {
        match read(go, &mut [0]) {
            Err(Errno::EINTR) => {}
            Ok(1) => break,
            _ => exit_now(0),
        }
    }
    let until = opening.until;
    // The machine may have been paused since the lease was judged.
    let in_time = move || if shared.is_revoked() || clock::now() >= until { Err(Errno::ETIME.into()) } else { Ok(()) };
    let error = birth.program.execute(arrived(opening.variables), in_time);
    report.exit(&error)
}

/// Closes all descriptors of zklock but these. What the user has passed on to the command does not close on exec, all
/// of zklock's does. While this process waits, a copy of the supervisor's sockets would hide the supervisor's death.
fn close_ours(keep: &[RawFd]) {
    let listed = fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
    let mut numbers: Vec<RawFd> =
        listed.filter_map(|entry| entry.file_name().to_str().and_then(|name| name.parse().ok())).collect();
    if numbers.is_empty() {
        numbers = (0..1024).collect();
    }
    for number in numbers.into_iter().filter(|number| *number > 2 && !keep.contains(number)) {
        #[expect(
            unsafe_code,
            reason = "the descriptors belong to values of the supervisor, which this fork never uses"
        )]
        // SAFETY: fcntl(2) and close(2) touch no memory, and no value of this process uses the descriptor again.
        unsafe {
            let fd = std::os::fd::BorrowedFd::borrow_raw(number);
            let flags = fcntl(fd, FcntlArg::F_GETFD).map(FdFlag::from_bits_retain);
            if flags.is_ok_and(|flags| flags.contains(FdFlag::FD_CLOEXEC)) {
                libc::close(number);
            }
        }
    }
}
