//! The namespaces in which process ids and times mean something (namespaces(7)).

use std::fs;
use std::os::unix::fs::MetadataExt;

pub fn pid_namespace() -> Option<u64> {
    number("self/ns/pid")
}

/// The number of our time namespace: /proc counts from its own boot there when a process started. Before Linux 5.6 there
/// are none.
pub fn time_namespace() -> Option<u64> {
    number("self/ns/time")
}

/// Whether our children would be in another PID namespace than we are (pid_namespaces(7)). One without a first process has no
/// number yet.
pub fn is_of_children_alone() -> bool {
    number("self/ns/pid_for_children") != pid_namespace()
}

/// The number of the network namespace of this process.
pub fn network(pid: u32) -> Option<u64> {
    number(&format!("{pid}/ns/net"))
}

fn number(link: &str) -> Option<u64> {
    Some(fs::metadata(format!("/proc/{link}")).ok()?.ino())
}
