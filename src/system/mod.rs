//! What the kernel and the C library offer, in the form that the other rooms use.
//!
//! Nothing in here knows of locks or of the state of a run. It decides only what is the same in every run: which
//! signals zklock passes on, how long it waits for whoever reads its messages, and when it warns of a file with a
//! secret.

pub mod clock; // the clock that counts sleep
pub mod errors; // how messages put errors
pub mod fork; // how a process of ours is made
pub mod futures; // several futures as one
pub mod lookup; // a process that asks name servers
pub mod memory; // files that are memory
pub mod namespaces; // where process ids and times mean something
pub mod proc; // /proc
pub mod process; // one process, as /proc shows it
pub mod reactor; // one thread and one poll(2) for `async fn`
pub mod secrets; // which processes have passwords in memory
pub mod signals; // streams of signals
pub mod standard; // the three standard descriptors
pub mod terminal; // the terminal and its status line
pub mod writer; // a process that writes to standard error
