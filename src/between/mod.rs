//! What the processes of a run share, and what runs share with the runs below their commands.

pub mod hold;
pub mod lending;
pub mod page;
pub mod wire;
