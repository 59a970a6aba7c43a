//! Black-box tests: the built binary, real ZooKeeper servers, real commands.
//!
//! [`harness`] is what they stand on. Each other module tests one behaviour.

mod harness;

mod acquire;
mod completions;
mod documents;
mod faults;
mod foreign;
mod hostile;
mod input;
mod interop;
mod layering;
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
