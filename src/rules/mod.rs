//! The rules: what a run does, decided without I/O, clock, process or log.
//!
//! Nothing in here imports from outside `rules`; time comes in as an argument. So property tests and the
//! simulator drive the very code that ships.

pub mod card;
pub mod closings;
pub mod contacts;
pub mod duration;
pub mod event;
pub mod fence;
pub mod guard;
pub mod guarded;
pub mod instant;
pub mod last_run;
pub mod lease;
pub mod lender;
pub mod loans;
pub mod lock_path;
pub mod machine;
pub mod message;
pub mod mode;
pub mod notice;
pub mod outcome;
pub mod pace;
pub mod queue;
pub mod revocation;
pub mod rfc3339;
pub mod settings;
pub mod signal;
pub mod text;
