//! What the processes of a run share, and what runs share with the runs below their commands.

pub mod lending; // locks for the runs below ours
pub mod page; // what the processes show one another in shared memory
pub mod stand_in; // what `zklock hold` has for a command
pub mod ties; // what ties a keeper and its guards together
pub mod wire; // messages between supervisor and keeper
