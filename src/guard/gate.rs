//! The command's process before it is the command: everything is done but execve(2).

use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

use nix::errno::Errno;
use nix::sys::prctl;
use nix::sys::signal::Signal as Named;
use nix::sys::socket::{MsgFlags, recv};
use nix::unistd::{Pid, getppid, read, setpgid};

use super::program::{self, FailureReport};
use crate::between::page::{LeaseView, Page};
use crate::cli::CommandLine;
use crate::cli::environment::Variable;
use crate::rules::instant::Instant;
use crate::system::clock;
use crate::system::signals;

#[derive(Debug)]
pub struct GuardBirth<'a> {
    /// What becomes of the process at the gate.
    pub command: &'a CommandLine,
    /// Whether the command gets its own process group. It belongs to ours where there is a terminal.
    pub own_group: bool,
    /// Descriptors that the guard is to keep open for as long as something of the command is left.
    pub kept_open: Vec<RawFd>,
}

/// What a command's process needs to leave the gate.
pub(super) struct Passage {
    /// Where the supervisor sends an [`Opening`].
    pub(super) gate: OwnedFd,
    pub(super) report: FailureReport,
    pub(super) supervisor: Pid,
}

/// What the supervisor sends when the gate opens.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Opening {
    /// From here on it is too late to start the command.
    pub(super) until: Instant,
    pub(super) variables: Vec<Variable>,
}

impl Opening {
    /// Nanoseconds since boot, then the variables as environ(7) has them, each with a NUL after it.
    pub(super) fn to_bytes(&self) -> Vec<u8> {
        let nanos = u64::try_from(self.until.since_boot().as_nanos()).unwrap_or(u64::MAX);
        let mut bytes = nanos.to_ne_bytes().to_vec();
        for variable in &self.variables {
            bytes.extend_from_slice(variable.entry().as_bytes());
            bytes.push(0);
        }
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (nanos, variables) = bytes.split_first_chunk()?;
        let until = Instant::from_boot(Duration::from_nanos(u64::from_ne_bytes(*nanos)));
        let entries = variables.split(|byte| *byte == 0).filter(|entry| !entry.is_empty());
        Some(Self { until, variables: entries.map(Variable::parse).collect::<Option<_>>()? })
    }
}

/// The longest [`Opening`]: more than a socket has room for by default (wmem_default, socket(7)).
const LONGEST_OPENING: usize = 256 * 1024;

/// How many variables a command is told, roughly.
const VARIABLES: u32 = 12;

/// Waits at the gate, then becomes the command. `go`: where the guard, the process `guard`, writes when all is ready. By then
/// the supervisor has sent the [`Opening`], which wakes no process. If the guard dies before it has written, this process
/// exits. The guard dies with the supervisor.
pub(super) fn wait(
    birth: &GuardBirth<'_>,
    passage: &Passage,
    go: &OwnedFd,
    guard: Pid,
    page: Page,
    lease: LeaseView,
) -> ! {
    let Passage { gate, report, supervisor } = passage;
    if birth.own_group
        && let Err(errno) = setpgid(Pid::from_raw(0), Pid::from_raw(0))
    {
        report.refused(errno);
    }
    // The parent is the guard, a process with one thread: the signal comes when that thread ends.
    if let Err(errno) = prctl::set_pdeathsig(Named::SIGKILL) {
        report.refused(errno);
    }
    // The guard may have died before the call above: then the signal never comes.
    if getppid() != guard {
        report.exit(&Errno::ESRCH.into());
    }
    let mut message = vec![0; LONGEST_OPENING];
    touch_memory(birth);
    loop {
        match read(go, &mut [0]) {
            Err(Errno::EINTR) => {}
            Err(error) => report.exit(&error.into()),
            // The guard has closed the gate, or has died. If the supervisor has asked it to open the gate, it reads this.
            Ok(0) => report.exit(&Errno::ESRCH.into()),
            Ok(_) => break,
        }
    }
    let opening = match recv(gate.as_raw_fd(), &mut message, MsgFlags::MSG_DONTWAIT) {
        Ok(length) => Opening::from_bytes(&message[..length]),
        Err(error) => report.exit(&error.into()),
    };
    let Some(opening) = opening else { report.exit(&Errno::EBADMSG.into()) };
    signals::drop_stale(&[guard, *supervisor]);
    let until = opening.until;
    // The machine, or this process, may have been paused since the lease was judged.
    let in_time = move || {
        let now = clock::now();
        let may_start = !lease.is_revoked() && now < until && page.pass(now);
        if may_start { Ok(()) } else { Err(Errno::ETIME.into()) }
    };
    let Err(error) = program::execute(birth.command, &opening.variables, in_time);
    report.exit(&error)
}

/// Does the work between the gate and execve(2) once before, as far as it can be done twice. A fork has its own copy of a page
/// only once it has written to that page, and making the copies would delay the hand-over.
fn touch_memory(birth: &GuardBirth<'_>) {
    let variables = (0..VARIABLES).map(|number| Variable::new(&format!("ZKLOCK_{number}"), ["=".repeat(64).as_str()]));
    let opening = Opening { until: clock::now(), variables: variables.collect() };
    if let Some(opening) = Opening::from_bytes(&opening.to_bytes()) {
        drop(program::image(birth.command, &opening.variables));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_opening_arrives_as_it_was_sent() {
        let variables = vec![Variable::new("ZKLOCK_TOKENS", ["7 /a=b", "8 /ü"]), Variable::new("EMPTY", [])];
        let opening = Opening { until: Instant::from_boot(Duration::from_nanos(1_234_567)), variables };
        assert_eq!(Opening::from_bytes(&opening.to_bytes()), Some(opening));
        assert_eq!(Opening::from_bytes(b"short"), None);
        assert_eq!(Opening::from_bytes(b"12345678A=1\0B\0"), None);
    }
}
