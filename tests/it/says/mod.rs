//! What zklock says.

mod messages;
mod refused_arguments;
mod stderr;
mod system_calls;
mod verbosity; // -q, -v
