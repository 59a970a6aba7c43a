//! The protocol of src/zookeeper, with a blocking socket around it, against real servers and against what real servers
//! of other versions have said.
//!
//! `recorded/` has one conversation for each version. To record one, or all of them anew after a change of the
//! [scenario], start a server of that version and run
//! `ZKLOCK_RECORD=127.0.0.1:PORT cargo test --test it protocol::scenario`.

mod conversation;
pub(crate) mod fuzz;
mod scenario;
mod talk;
