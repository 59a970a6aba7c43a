//! What the kernel and the C library offer, in the form that the other rooms use. No policy is here.

pub mod clock;
pub mod files;
pub mod fork;
pub mod futures;
pub mod lookup;
pub mod namespaces;
pub mod proc;
pub mod process;
pub mod reactor;
pub mod secrets;
pub mod signals;
pub mod terminal;
pub mod writer;
