//! The pure core: what a run does, decided without I/O, clock, process or log.
//!
//! Nothing in here imports from outside `core`; time comes in as an argument.
//! That is what lets property tests drive the very code that ships.

pub mod contender;
pub mod lease;
pub mod machine;
pub mod outcome;
pub mod queue;
pub mod signal;
