//! The rules: what a run does, decided without I/O, clock, process or log.
//!
//! Nothing in here uses another room. From other crates come only JSON, the width of text and the numbers of signals.
//! Time comes in as an argument. So property tests and the simulator drive the very code that ships.

pub mod card; // what a contender's node says of it
pub mod child_name; // names of nodes, as a server lists them
pub mod closings; // servers that close the connection over the same request each time
pub mod contacts; // when the servers last heard from us
pub mod duration; // durations, as users write and read them
pub mod event; // what can happen in a run, and what is to be done
pub mod fence; // which token of `zklock fence` wins
pub mod guard; // what a guard does, and when it kills
pub mod guard_view; // what a supervisor concludes from what a guard shows
pub mod instant; // points in time
pub mod keep_alive; // when a connection needs a ping, and when it is lost
pub mod last_run; // the record of `--once-per`
pub mod lease; // for how long a lock can be relied on
pub mod loans; // what a nested run borrows, and from which run
pub mod lock_delay; // the record of `--lock-delay`
pub mod lock_path; // paths of znodes
pub mod machine; // the life of one run, as a state machine
pub mod message; // what keeper and supervisor say to each other
pub mod mode; // exclusive, shared, or one of N
pub mod notice; // what the user may be told
pub mod offer; // what runs offer the runs below them
pub mod outcome; // how a run can end, and the exit statuses
pub mod process_identity; // a process, also after its pid is reused
pub mod queue; // who holds, and which nodes to watch
pub mod revocation; // a request to give up a lock
pub mod rfc3339; // times, as programs read them
pub mod settings; // what the machine needs to know of the plan
pub mod signal; // signals, by name and number
pub mod text; // text of unknown origin, safe to print
