//! Black-box tests: the built binary, real ZooKeeper servers, real commands.
//!
//! Each module tests the behaviour that it is named after, and says so in its first line. [`harness`] is what they
//! stand on.

mod harness;

// Taking a lock and giving it back.
mod and_locks;
mod and_locks_lost;
mod at_rest;
mod conflict_exit_code;
mod hold; // zklock hold
mod modes; // --shared, --permits
mod nested;
mod no_wait; // -n
mod queue_order;
mod release;
mod timeout; // -w
mod waiter_queues_again;

// What is in ZooKeeper.
mod contender_node;
mod foreign_children;
mod interop; // Curator, kazoo and others
mod older_servers;
mod parents_and_chroot;
mod sequence_numbers;
mod single;
mod tokens;

// The command.
mod command_line;
mod command_not_found;
mod command_start;
mod environment;
mod exit_status;
mod inherited; // stdin, arguments, limits
mod max_run;
mod on_lost;
mod once_per;
mod process_tree;
mod readiness; // systemd
mod slow_server;
mod slow_start;
mod stop_signal; // --signal, --kill-after
mod wait_descendants;

// Faults of the network and of servers.
mod ghosts; // servers that disagree
mod granted_timeout;
mod lost_create;
mod lost_data;
mod lost_replies;
mod network_cut;
mod outage_while_waiting;
mod servers_down;
mod servers_restart;
mod short_outage;
mod unfit_servers;
mod unreachable_servers;

// Who may do what.
mod hostile; // servers that mean harm
mod login;
mod sasl;
mod secrets;
mod tls;

// Processes that die or stop, and locks that are taken away.
mod guard;
mod hard_to_kill;
mod keeper_killed;
mod node_deleted;
mod processes_stopped;
mod revoked;
mod session_ended;
mod shortage;
mod zklock_killed; // kill -9

// Signals, terminals and surroundings.
mod config;
mod confined; // users without rights, no /proc, seccomp
mod cron_and_systemd;
mod ctrl_z;
mod pid_1;
mod shell_jobs;
mod signals;
mod signals_while_waiting;
mod terminal;

// Where the work is done.
mod fence;

// Looking at locks.
mod break_lock;
mod check;
mod list;
mod status;
mod status_watch;

// What zklock says.
mod messages;
mod refused_arguments;
mod stderr;
mod system_calls;
mod verbosity; // -q, -v, ZKLOCK_LOG

// The protocol, below all of this.
mod fuzz;
mod protocol;

// Documents and source.
mod completions;
mod documents; // the man page and the completions are up to date
mod layering;
mod readme;
mod readme_recipes;
mod recipes;
