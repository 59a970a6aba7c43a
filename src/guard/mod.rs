//! The guard: the process that is the parent of the command. It starts it, signals it, reaps it, and sees to it that
//! nothing of it outlives the lease.
//!
//! The guard is a fork of the supervisor, made while the lock is waited for, and so is the command's process, which
//! waits at a gate with everything done but execve(2). All that is below the guard belongs to the command, because it
//! adopts orphans (PR_SET_CHILD_SUBREAPER), and nothing else has ever been there: ECHILD from waitpid(2) is the proof
//! that nothing is left. What stands in for what is in `docs/architecture.md`.

mod gate; // the command's process before it is the command
mod handle; // what the supervisor holds of a guard
mod kernel; // timer and fuses: what works when all of us are dead or stopped
mod process; // the guard itself
pub mod program; // find a program, become it, tell how it ended
mod request; // what a guard is asked, as bytes
pub mod tree; // the processes below: signalled, killed, counted

pub use gate::GuardBirth;
pub use handle::Guard;
