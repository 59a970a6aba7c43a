//! The command of `--on-lost`.

use std::io;

use nix::unistd::{ForkResult, Pid, fork, setpgid};

use crate::cli::environment::Variable;
use crate::guard::program::{Call, FailurePipe, Program};

/// A program that runs as a child of ours, apart from the lock.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) pid: Pid,
    pub(super) own_group: bool,
    failure: FailurePipe,
}

impl Launch {
    /// Forks a child that becomes `program`. The error is that of fork(2) or pipe(2); for later ones see
    /// [`failure`](Self::failure). This process must have one thread only.
    pub(super) fn new(program: Program<'_>, own_group: bool, variables: &[Variable]) -> io::Result<Self> {
        let (failure, report) = FailurePipe::pipe()?;
        let join_group = move |pid: Pid| if own_group { setpgid(pid, pid) } else { Ok(()) };
        #[expect(unsafe_code, reason = "the program's process is a fork of this one")]
        // SAFETY: this process has one thread, so the child may go on as any process may (fork(2)).
        match unsafe { fork() }? {
            ForkResult::Child => match join_group(Pid::from_raw(0)) {
                Ok(()) => report.exit(&program.execute(variables, || Ok(()))),
                Err(errno) => report.refused(Call::Group, errno),
            },
            ForkResult::Parent { child: pid } => {
                // Also here, because we may signal the group before the child makes it. It fails if the
                // child has already executed the program.
                let _ = join_group(pid);
                Ok(Self { pid, own_group, failure })
            }
        }
    }

    /// Why there was no program, once the child has ended.
    pub(super) fn failure(&self) -> Option<io::Error> {
        self.failure.read()
    }
}
