//! The guard: the process that is the parent of the command. It starts the command, signals it, reaps it, and sees to it that
//! nothing of it outlives the lease.
//!
//! The life of a guard:
//! 1. The supervisor forks it while the lock is waited for ([`Guard::start`]). It forks the command's process, which waits at
//!    the gate with everything done but execve(2).
//! 2. Once the lock is held, the supervisor asks for the gate to be opened ([`Guard::open`]). From then on the guard watches
//!    the lease, which the keeper writes to the shared page, and serves requests ([`Guard::ask`]).
//! 3. When the lease is over, or the supervisor has died, it kills all processes below it. If the guard cannot run, or dies,
//!    the kernel kills the command in its place.
//! 4. It exits when nothing is left, or when it is told to leave alone what the command has left behind.
//!
//! All processes below the guard belong to the command: the guard adopts orphans (PR_SET_CHILD_SUBREAPER), and nothing else
//! has ever been below it. So ECHILD from waitpid(2) is the proof that nothing is left.
//!
//! Only the supervisor calls this room. `rules/guard.rs` decides. The guard talks to no server, and shows what it has done in
//! the shared page. `docs/architecture.md` says which mechanism takes over from which.

mod gate; // the command's process before it is the command
mod handle; // what the supervisor has of a guard
mod kernel; // timer and fuses: what works when all processes of zklock are dead or suspended
mod process; // the guard itself
pub mod program; // find a program, become it, tell how it ended
mod request; // what a guard is asked, as bytes
pub mod tree; // the processes below: signalled, killed, counted

pub use gate::GuardBirth;
pub use handle::Guard;
