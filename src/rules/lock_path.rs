//! Paths of znodes: the LOCK argument, and the chroot of a connect string.

use std::fmt;
use std::path::Path;

/// The longest path, chroot included, in bytes. The server's limit is that of a packet (1 MB); a
/// path must also fit the environment of the command and every message that names it.
const LONGEST_PATH: usize = 4096;

/// An absolute znode path that can hold a lock, relative to the chroot.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LockPath(String);

impl LockPath {
    /// Checks `text` as a lock below `chroot` (empty when there is none).
    ///
    /// `/zookeeper` and everything below it belongs to the servers, and is refused. Below a chroot that
    /// path means another node, which is not special.
    ///
    /// The error is the end of the sentence "LOCK 'text' …" and says what to write.
    pub fn parse(text: &str, chroot: &str) -> Result<Self, String> {
        check(text)?;
        if is_servers_own(text, chroot) {
            return Err("belongs to ZooKeeper itself; put the lock elsewhere, such as /locks/NAME".to_owned());
        }
        let length = chroot.len() + text.len();
        if length > LONGEST_PATH {
            return Err(format!("is {length} bytes long, chroot included; write at most {LONGEST_PATH}"));
        }
        Ok(Self(text.to_owned()))
    }

    /// The file of `zklock fence`, which stands where others have a lock.
    pub fn of_file(path: &Path) -> Self {
        Self(path.display().to_string())
    }

    /// The path, beginning with a slash and not ending with one.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn child(&self, name: &str) -> String {
        join(&self.0, name)
    }
}

impl fmt::Display for LockPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Checks a path below which to look for locks.
pub fn check_root(text: &str, chroot: &str) -> Result<(), String> {
    match text {
        "/" => Ok(()),
        text if is_servers_own(text, chroot) => {
            Err("belongs to ZooKeeper itself, and has no locks; write another path".to_owned())
        }
        text => LockPath::parse(text, chroot).map(drop),
    }
}

/// Checks the shape of an absolute path that is not the root.
pub fn check(path: &str) -> Result<(), String> {
    if let Some(odd) = path.chars().find(|c| is_refused_by_zookeeper(*c)) {
        return Err(format!(
            "contains U+{:04X}, which ZooKeeper does not allow in a path; leave it out",
            u32::from(odd)
        ));
    }
    let Some(relative) = path.strip_prefix('/') else {
        return Err("does not begin with a slash; write an absolute path such as /jobs/backup".to_owned());
    };
    match relative.split('/').find(|component| matches!(*component, "" | "." | "..")) {
        None => Ok(()),
        Some("") if relative.is_empty() => {
            Err("is the root, which cannot be a lock; write a path such as /jobs/backup".to_owned())
        }
        Some("") => Err("has a slash at its end, or two in a row; leave one out".to_owned()),
        Some(odd) => Err(format!("has the component {odd}; write the path without it, as in /jobs/backup")),
    }
}

/// Whether the node is `/zookeeper` or lies below it. Below a chroot that path means a node which is not the servers'.
pub fn is_servers_own(path: &str, chroot: &str) -> bool {
    let rest = path.strip_prefix("/zookeeper").filter(|_| chroot.is_empty());
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// The path of a child of the node `parent`, which may be the root.
pub fn join(parent: &str, name: &str) -> String {
    format!("{}/{name}", parent.trim_end_matches('/'))
}

/// The characters that `PathUtils.validatePath` of ZooKeeper refuses. It looks at UTF-16 units, and
/// its range D800–F8FF includes the surrogates: so it refuses everything outside the basic plane as well.
fn is_refused_by_zookeeper(c: char) -> bool {
    matches!(c, '\0'..='\u{1f}' | '\u{7f}'..='\u{9f}' | '\u{e000}'..='\u{f8ff}' | '\u{fff0}'..)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn paths_that_can_hold_a_lock() {
        for text in [
            "/a",
            "/jobs/backup",
            "/zookeeperish",
            "/a/zookeeper",
            "/...",
            "/.hidden/..x",
            "/.zklock.last",
            "/with space/ü/漢字",
            "/a,b:c?d*e\"f'g",
            "/-n",
        ] {
            assert_eq!(LockPath::parse(text, "").map(|path| path.to_string()), Ok(text.to_owned()));
        }
        assert!(LockPath::parse("/zookeeper", "/app").is_ok());
    }

    #[test]
    fn refusals_say_what_to_write() {
        let relative = "does not begin with a slash; write an absolute path such as /jobs/backup";
        let slashes = "has a slash at its end, or two in a row; leave one out";
        let servers = "belongs to ZooKeeper itself; put the lock elsewhere, such as /locks/NAME";
        for (text, message) in [
            ("", relative),
            ("/", "is the root, which cannot be a lock; write a path such as /jobs/backup"),
            ("backup", relative),
            ("./backup", relative),
            ("jobs/backup", relative),
            (" /a", relative),
            ("/a/", slashes),
            ("/a/b/", slashes),
            ("//", slashes),
            ("//a", slashes),
            ("/a//b", slashes),
            ("/a//", slashes),
            ("/a/./b", "has the component .; write the path without it, as in /jobs/backup"),
            ("/..", "has the component ..; write the path without it, as in /jobs/backup"),
            ("/a/..", "has the component ..; write the path without it, as in /jobs/backup"),
            ("/zookeeper", servers),
            ("/zookeeper/quota", servers),
            ("/a\nb", "contains U+000A, which ZooKeeper does not allow in a path; leave it out"),
            ("/a\0", "contains U+0000, which ZooKeeper does not allow in a path; leave it out"),
            ("/\u{9f}", "contains U+009F, which ZooKeeper does not allow in a path; leave it out"),
            ("/\u{e000}", "contains U+E000, which ZooKeeper does not allow in a path; leave it out"),
            ("/\u{fffd}", "contains U+FFFD, which ZooKeeper does not allow in a path; leave it out"),
            ("/\u{1f512}", "contains U+1F512, which ZooKeeper does not allow in a path; leave it out"),
        ] {
            assert_eq!(LockPath::parse(text, ""), Err(message.to_owned()), "{text:?}");
        }
    }

    #[test]
    fn a_child_is_one_component_below() {
        assert_eq!(join("/", "jobs"), "/jobs");
        let lock = LockPath::parse("/jobs/backup", "/app").unwrap();
        assert_eq!(lock.child("_c_1-lock-0000000001"), "/jobs/backup/_c_1-lock-0000000001");
    }

    #[test]
    fn the_chroot_counts_towards_the_length() {
        let longest = format!("/{}", "a".repeat(LONGEST_PATH - 1));
        assert!(LockPath::parse(&longest, "").is_ok());
        assert_eq!(
            LockPath::parse(&longest, "/b"),
            Err("is 4098 bytes long, chroot included; write at most 4096".to_owned())
        );
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd(text in "/?(\\PC|[/.\\x00-\\xff]){0,20}") {
            if let Ok(path) = LockPath::parse(&text, "") {
                prop_assert_eq!(path.as_str(), &text);
                prop_assert!(text.starts_with('/') && !text.ends_with('/') && !text.contains("//"));
            }
        }
    }
}
