//! Black-box tests: the built binary, real ZooKeeper servers, real commands.
//!
//! The harness: [`ensemble`] starts servers, [`proxy`] is a network that misbehaves, [`zklock`] runs the binary,
//! [`client`] looks at nodes, [`peers`] takes the same locks by other libraries, [`joblog`] tells who ran when. The other
//! modules are tests, one theme each.

mod client;
mod counter;
mod ensemble;
mod frames;
mod joblog;
mod lock;
mod peers;
mod place;
mod poll;
mod process;
mod proxy;
mod scene;
mod terminal;
mod zklock;

mod acquire;
mod completions;
mod documents;
mod faults;
mod foreign;
mod harness_checks;
mod hostile;
mod house;
mod input;
mod interop;
mod lending;
mod limits;
mod loss;
mod modes;
mod nested;
mod outage;
mod output;
mod readme;
mod recipes;
mod recovery;
mod several;
mod several_lost;
mod signals;
mod slow_start;
mod statuses;
mod surroundings;
mod tokens;
mod transparency;
