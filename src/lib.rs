//! zklock: take a ZooKeeper lock, run a command while it is held, release it.
//!
//! The library exists for the tests; it is no stable interface. This is its map; `docs/decisions.md` says why it
//! is built so.
//!
//! | room | what happens there |
//! | --- | --- |
//! | [`duration`] | durations: how they are written, read and printed |
//! | [`environment`] | the variables: their names, and how each is written and read |
//! | [`plan`] | flags, environment and configuration files become a validated [`plan::Plan`] |
//! | [`config`] | the configuration files of this process: which may be read |
//! | [`rules`] | pure: who holds, how long a lease lasts, what a run does next |
//! | [`supervisor`] | the process the user started: command, signals, terminal, clock |
//! | [`keeper`] | a fork of it for each ZooKeeper session: queue, beat, release |
//! | [`lending`] | a run lends its locks to the runs below its command |
//! | [`hold`] | `zklock hold`: the process that a lock is held for, and what that run has for a command |
//! | [`operate`] | subcommands, which take no lock |
//! | [`fence`] | the files of `zklock fence`: which token has been here, whose turn it is |
//! | [`session`] | what a keeper asks of ZooKeeper; over TCP in `session::tcp` |
//! | [`zookeeper`] | ZooKeeper's protocol: bytes in, events out |
//! | [`reactor`] | one thread and one poll(2) for a keeper's `async fn` |
//! | [`futures`] | several futures as one |
//! | [`lookup`] | names of hosts and users, looked up in a process of its own |
//! | [`fork`] | the one way to make a process that runs our own code |
//! | [`wire`] | how supervisor and keeper talk; what they say is [`rules::message`] |
//! | [`command`] | start, signal, kill and reap the command and its descendants |
//! | [`signals`] | the stream of signals, and what was ignored when we started |
//! | [`terminal`] | is there one; the status line |
//! | [`writer`] | the process that writes to standard error, so that no other one waits for it |
//! | [`secrets`] | which processes may have passwords and keys in their memory |
//! | [`sentences`] | every sentence that a user reads |
//! | [`readiness`] | what a service manager is told |
//! | [`clock`] | the clock that counts sleep, and a timer on it |
//!
//! [`rules`] imports nothing from the other rooms; the others use its plain types, such as signals and instants.
//! Only [`supervisor`], which has one thread, names [`rules::machine`]. The keeper reaches what is outside only
//! through [`keeper::outside::Outside`] and [`session::Session`]; [`keeper::process`] has the real ones. The
//! supervisor's loop ([`supervisor::turn`]) and the guard ([`rules::guard`]) have traits of their own.

pub mod clock;
pub mod command;
pub mod config;
pub mod descendants;
pub mod duration;
pub mod environment;
pub mod fence;
pub mod fork;
pub mod futures;
#[cfg(feature = "gssapi")]
pub mod gssapi;
pub mod guard;
pub mod hold;
pub mod keeper;
pub mod lending;
pub mod lookup;
pub mod operate;
pub mod plan;
pub mod reactor;
pub mod readiness;
pub mod rules;
pub mod secrets;
pub mod sentences;
pub mod session;
pub mod shared;
pub mod signals;
pub mod supervisor;
pub mod terminal;
pub mod wire;
pub mod writer;
pub mod zookeeper;
