//! What zklock says.

mod messages;
mod refused_arguments;
mod stderr;
mod verbosity; // -q, -v, ZKLOCK_LOG
