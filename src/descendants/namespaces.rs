//! The namespaces in which process ids and times mean something (namespaces(7)).

use std::fs;
use std::os::unix::fs::MetadataExt;

/// The number of our PID namespace.
pub fn pid_namespace() -> Option<u64> {
    number("pid")
}

/// The number of our time namespace: /proc counts from its own boot there when a process started. Before Linux 5.6 there
/// are none.
pub fn time_namespace() -> Option<u64> {
    number("time")
}

/// What kind of namespace our children would be in, and not we ourselves (pid_namespaces(7), time_namespaces(7)); `None` if
/// there is none.
pub(super) fn of_children_alone() -> Option<&'static str> {
    [("pid", "PID"), ("time", "time")].into_iter().find(|(kind, _)| is_of_children_alone(kind)).map(|(_, name)| name)
}

fn is_of_children_alone(kind: &str) -> bool {
    let theirs = format!("{kind}_for_children");
    // Before Linux 4.12, or 5.6, there is no such link. A namespace without a first process has one that cannot be followed.
    let has_link = fs::symlink_metadata(path(&theirs)).is_ok();
    has_link && number(kind).is_some_and(|ours| number(&theirs) != Some(ours))
}

fn number(link: &str) -> Option<u64> {
    Some(fs::metadata(path(link)).ok()?.ino())
}

fn path(link: &str) -> String {
    format!("/proc/self/ns/{link}")
}
