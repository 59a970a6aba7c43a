//! Processes that die or stop, and locks that are taken away.

mod guard;
mod hard_to_kill;
mod keeper_killed;
mod node_deleted;
mod processes_stopped;
mod revoked;
mod session_ended;
mod shortage;
mod zklock_killed; // kill -9
