//! Names of nodes, as a server lists them.

use std::fmt;
use std::ops::Deref;

/// The name of a child in the list of a server. It is one component of a path: never empty, `.` or `..`, and without `/` and
/// NUL, which no server lets into a name (`PathUtils.validatePath`). Other clients choose the rest, so it may hold what a
/// terminal should not get.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ChildName(Box<str>);

impl ChildName {
    /// `None`: no ZooKeeper server has a node of this name.
    pub fn parse(text: impl Into<String>) -> Option<Self> {
        let text = text.into();
        let is_component = !matches!(text.as_str(), "" | "." | "..") && !text.contains(['/', '\0']);
        is_component.then(|| Self(text.into()))
    }
}

impl Deref for ChildName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ChildName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl PartialEq<&str> for ChildName {
    fn eq(&self, other: &&str) -> bool {
        *self.0 == **other
    }
}

#[cfg(test)]
impl From<&str> for ChildName {
    fn from(text: &str) -> Self {
        Self::parse(text).expect("a name that a server lists")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_server_has() {
        for text in ["", ".", "..", "/", "a/b", "a\0b", "\0"] {
            assert_eq!(ChildName::parse(text), None, "{text:?}");
        }
        for text in ["a", "...", ".a", "a b", "\u{1f}", "\u{202e}", "\u{fffd}"] {
            assert_eq!(ChildName::parse(text).as_deref(), Some(text));
        }
    }
}
