//! Looking at locks.

mod break_lock;
mod check;
mod list;
mod status;
mod status_watch;
