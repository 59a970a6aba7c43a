//! What the tests stand on.
//!
//! [`server`] starts servers of one [`release`], [`ensemble`] three of them, [`proxy`] is a network that misbehaves,
//! [`zklock`] runs the binary, [`terminal`] gives it a terminal, [`client`] looks at nodes, [`peers`] takes the same
//! locks by other libraries, [`jaas`] has the servers' users, [`sshd`] is another machine, [`host`] two of them with
//! systemd, [`joblog`] tells which command ran when, [`seccomp`] has system calls fail, [`traced`] holds a process at
//! one, [`oracle`] looks at everything that leaves a run. [`rights`] are what a machine may refuse, [`scratch`] is what
//! each test has for itself, [`times`] are the durations. [`checks`] tests what would hide a fault.

mod checks;

pub(crate) mod authority;
pub(crate) mod client;
pub(crate) mod compare;
pub(crate) mod counter;
pub(crate) mod creation;
pub(crate) mod daemon;
pub(crate) mod ensemble;
pub(crate) mod fault;
pub(crate) mod frames;
pub(crate) mod host;
pub(crate) mod jaas;
pub(crate) mod joblog;
pub(crate) mod moment;
pub(crate) mod oracle;
pub(crate) mod peers;
pub(crate) mod poll;
pub(crate) mod process;
pub(crate) mod proxy;
pub(crate) mod release;
pub(crate) mod restless;
pub(crate) mod rights;
pub(crate) mod running;
pub(crate) mod schema;
pub(crate) mod scratch;
pub(crate) mod seccomp;
pub(crate) mod secure;
pub(crate) mod server;
pub(crate) mod skipped;
pub(crate) mod sshd;
pub(crate) mod stub;
pub(crate) mod terminal;
pub(crate) mod times;
pub(crate) mod tls;
pub(crate) mod traced;
pub(crate) mod zklock;
