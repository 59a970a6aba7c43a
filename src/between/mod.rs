//! What the processes of a run share, and what runs share with the runs below their commands.

pub mod inheritance; // what keeper and guard inherit from the supervisor
pub mod lending; // locks for the runs below ours
pub mod page; // what the processes show one another in shared memory
pub mod stand_in; // what `zklock hold` has for a command
pub mod wire; // messages between supervisor and keeper
