//! Signals, terminals and surroundings.

mod config;
mod confined; // users without rights, no /proc, seccomp
mod cron_and_systemd;
mod ctrl_z;
mod pid_1;
mod shell_jobs;
mod signals;
mod signals_while_waiting;
pub(crate) mod terminal;
