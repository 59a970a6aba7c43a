//! zklock: take a ZooKeeper lock, run a command while it is held, release it.
//!
//! A run is three processes, and each has a room here. The library exists for the tests; it is no stable interface.
//!
//! | room | what happens there |
//! | --- | --- |
//! | [`cli`] | what a user may say, and what zklock says: options, variables and files become a [`cli::Plan`] |
//! | [`rules`] | pure: who holds, how long a lease lasts, what a run does next |
//! | [`supervisor`] | process 1, which the user started: terminal, job control, the loop around [`rules::machine`] |
//! | [`keeper`] | process 2, which has the ZooKeeper session: queue, beat, release |
//! | [`guard`] | process 3, the parent of the command: starts it, and kills it in time |
//! | [`between`] | what these processes share: messages, a page of memory, loans to nested runs |
//! | [`fence`] | `zklock fence`: files in place of a lock, for the same machine |
//! | [`look`] | subcommands without a lock: `status`, `list`, `break`, `check` |
//! | [`zookeeper`] | a client of ZooKeeper: the protocol, the session, the network |
//! | [`system`] | what the kernel offers, without policy: clock, signals, processes, the reactor |
//!
//! Each room knows those below it alone, in this order from the top: `look`, `supervisor`, `fence`, `keeper`, `guard`,
//! `between`, `cli`, `zookeeper`, `system`, `rules`. `tests/it/documents/layering.rs` holds that.
//!
//! Only [`supervisor`] names [`rules::machine`]. The keeper reaches what is outside only through
//! [`keeper::io::KeeperIo`] and [`zookeeper::session::Session`]; [`keeper::process`] has the real ones. The
//! supervisor's loop ([`supervisor::turn`]) and the guard ([`rules::guard`]) have traits of their own.

pub mod between;
pub mod cli;
pub mod fence;
pub mod guard;
pub mod keeper;
pub mod look;
pub mod rules;
pub mod supervisor;
pub mod system;
pub mod zookeeper;
