//! What the processes of a run share, and what runs share with the runs below their commands.

pub mod lending;
pub mod page;
pub mod stand_in;
pub mod ties;
pub mod wire;
