//! The command.

mod command_line;
mod command_not_found;
mod command_start;
mod environment;
mod exit_status;
mod inherited; // stdin, arguments, limits
mod lock_delay; // --lock-delay
mod max_run;
mod once_per;
mod process_tree;
mod readiness; // systemd
mod slow_server;
mod slow_start;
mod stop_signal; // --signal, --kill-after
mod wait_descendants;
