//! What the processes of a run share, and what runs share with the runs below their commands.
//!
//! - The [`page`](page::Page) is memory that supervisor, keeper and guard share: the lease, the state of the command, the
//!   gate. It shows the newest state, because a process that was suspended for hours must not act on old messages.
//! - The [`link`](wire::Link) is a socket between supervisor and keeper, for the reports and orders that must not be lost.
//! - The [`inheritance`](inheritance::Inheritance) has the page, and the pipes by which keeper and guard see each other die.
//!   The supervisor makes it before both forks.
//! - By [`lending`](lending::Lending), a run lets the runs below its command use its locks: they read its page, and see by a
//!   pipe that it has died or has lost the lock.
//!
//! Supervisor, keeper, guard and the keeper of a fence call this room. It decides nothing: what a lease, a message or a loan
//! means is in [`crate::rules`]. It never waits for another process, except for what stands in for the command of
//! `zklock hold`.

pub mod inheritance; // what keeper and guard inherit from the supervisor
pub mod lending; // locks for the runs below ours
pub mod page; // what the processes show one another in shared memory
pub mod stand_in; // what `zklock hold` has for a command
pub mod wire; // messages between supervisor and keeper
