//! zklock: take a ZooKeeper lock, run a command while it is held, release it.
//!
//! A run is three processes, and each has a room here. The library exists for the tests; it is no stable interface.
//!
//! Each room knows those below it alone, in this order from the top: `look`, `supervisor`, `fence`, `keeper`, `guard`,
//! `between`, `cli`, `zookeeper`, `system`, `rules`. Only [`supervisor`] names [`rules::machine`]. What keeper, supervisor and
//! guard have outside of themselves is behind traits, which the simulator has as well.

pub mod between; // what the three processes share: messages, a page of memory, loans to nested runs
pub mod cli; // what a user may say, and what zklock says: options, variables and files become a plan
pub mod fence; // `zklock fence`: files in place of a lock, for the same machine
pub mod guard; // process 3, the parent of the command: starts it, and kills it in time
pub mod keeper; // process 2, which has the ZooKeeper session: queue, beat, release
pub mod look; // subcommands without a lock: `status`, `list`, `break`, `check`
pub mod rules; // pure: who holds, how long a lease lasts, what a run does next
pub mod supervisor; // process 1, which the user started: terminal, job control, the loop around the machine
pub mod system; // what the kernel offers: clock, signals, processes, the reactor
pub mod zookeeper; // a client of ZooKeeper: the protocol, the session, the network
