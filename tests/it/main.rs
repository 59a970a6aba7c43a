//! Black-box tests: the built binary, real ZooKeeper servers, real commands.
//!
//! Each folder is a theme. Each file in it tests the behaviour that it is named after, and says so in its first line.
//! [`harness`] is what they stand on.

mod harness;

mod command; // the command
mod deployed; // hosts with systemd and cron
mod documents; // documents and source
mod faults; // faults of the network and of servers
mod fence; // zklock fence: the work is done where the file is
mod lock; // taking a lock and giving it back
mod look; // looking at locks
mod loss; // processes that die or stop, and locks that are taken away
mod nodes; // what is in ZooKeeper
mod protocol; // ZooKeeper's protocol, below all of this
mod rights; // who may do what
mod says; // what zklock says
mod surroundings; // signals, terminals and surroundings
