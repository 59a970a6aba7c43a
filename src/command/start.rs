//! Starting a command, without waiting until the child has executed the program.
//!
//! execve(2) blocks for as long as a file server does not answer. Meanwhile the lock can be lost and signals
//! can come. So the supervisor goes on, and finds out only when it reaps the child whether there was a
//! command.

use std::io;
use std::os::unix::process::CommandExt;

use nix::errno::Errno;
use nix::fcntl::OFlag;
use nix::sys::prctl;
use nix::sys::signal::Signal as Named;
use nix::unistd::{ForkResult, Pid, fork, getpid, getppid, pipe2, read, setpgid, write};

use super::{Command, Process};
use crate::clock;
use crate::environment::Variable;
use crate::plan::CommandLine;
use crate::rules::instant::Instant;
use crate::rules::message::Remains;
use crate::signals::Inherited;

/// What to start, and how.
#[derive(Clone, Copy, Debug)]
pub struct Launch<'a> {
    /// The program and its arguments.
    pub line: &'a CommandLine,
    /// What is added to our environment.
    pub environment: &'a [Variable],
    /// Whether it gets its own process group, or belongs to ours.
    pub own_group: bool,
    /// The signal state to restore for it.
    pub inherited: Inherited,
    /// What its life depends on.
    pub tie: Tie,
}

/// What the life of a process that we start depends on.
#[derive(Clone, Copy, Debug)]
pub enum Tie {
    /// On the lock: from this instant on it is not started, and it dies with us.
    Lock(Instant),
    /// On nothing: it may outlive us.
    None,
}

impl Command {
    /// Forks a child that executes a command. Before it executes the command, the child calls `announce`: the
    /// keeper, which has to end the command if we cannot, must know of it by then. If that fails, the child
    /// executes nothing. A command that is tied to the lock gets SIGKILL when the calling thread dies
    /// (`PR_SET_PDEATHSIG`), so the caller must be the only thread of its process. The error is that of
    /// fork(2) or pipe(2); for later ones see [`failure`](Self::failure).
    pub fn spawn(launch: Launch<'_>, announce: impl FnOnce(Remains) -> io::Result<()>) -> io::Result<Self> {
        let (failure, report) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK)?;
        let parent = getpid();
        #[expect(unsafe_code, reason = "the command's process is a fork of this one")]
        // SAFETY: this process has one thread, so the child may go on as any process may (fork(2)).
        match unsafe { fork() }? {
            ForkResult::Child => {
                let error = launch.execute(parent, announce);
                let errno = error.raw_os_error().unwrap_or(libc::EIO);
                // It does not matter if the supervisor has died.
                let _ = write(&report, &errno.to_ne_bytes());
                #[expect(unsafe_code, reason = "exit(3) would run what is the supervisor's to run")]
                // SAFETY: _exit(2) does not return and touches no memory.
                unsafe {
                    libc::_exit(127)
                }
            }
            ForkResult::Parent { child } => {
                if launch.own_group {
                    // Also here, because we may signal the group before the child makes it. It fails if the
                    // child has already executed the program.
                    let _ = setpgid(child, child);
                }
                Ok(Self { pid: child, own_group: launch.own_group, failure })
            }
        }
    }

    /// Why there was no command, once the child has ended. See [`unstarted`](super::unstarted).
    pub fn failure(&self) -> Option<io::Error> {
        let mut errno = [0; size_of::<i32>()];
        // execve(2) closes the write end without a message. So does SIGKILL before execve(2); that counts as
        // a command that was killed.
        let length = read(&self.failure, &mut errno).unwrap_or(0);
        (length == errno.len()).then(|| io::Error::from_raw_os_error(i32::from_ne_bytes(errno)))
    }
}

impl Launch<'_> {
    /// Becomes the command. Returns why not.
    fn execute(self, parent: Pid, announce: impl FnOnce(Remains) -> io::Result<()>) -> io::Error {
        let Self { line, environment, own_group, inherited, tie } = self;
        let tied = || -> io::Result<()> {
            if own_group {
                setpgid(Pid::from_raw(0), Pid::from_raw(0))?;
            }
            if let Tie::Lock(_) = tie {
                prctl::set_pdeathsig(Named::SIGKILL)?;
                // The parent may have died before the line above: then the signal never comes.
                if getppid() != parent {
                    return Err(Errno::ESRCH.into());
                }
            }
            let pid = getpid().as_raw();
            let started = Process::read(pid).map_or(0, |process| process.started);
            announce(Remains { pid, own_group, started })
        };
        if let Err(error) = tied() {
            return error;
        }
        let mut command = std::process::Command::new(&line.program);
        command.args(&line.args).envs(environment.iter().map(|(name, value)| (name, value)));
        #[expect(unsafe_code, reason = "only some calls are safe in the child before exec")]
        // SAFETY: the closure makes system calls only and allocates nothing.
        unsafe {
            // After the standard library has changed the signals, and just before execve(2).
            command.pre_exec(move || {
                // The machine may have been paused since the lease was judged.
                if let Tie::Lock(until) = tie
                    && clock::now() >= until
                {
                    return Err(Errno::ETIME.into());
                }
                inherited.restore()
            });
        }
        command.exec()
    }
}
