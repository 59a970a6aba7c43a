//! The environment variables of zklock: their names, and how each value is written and read.

use std::env;
use std::ffi::{CString, OsStr, OsString};
use std::fmt::Display;
use std::os::unix::ffi::OsStrExt as _;

use crate::rules::message::Grant;
use crate::rules::mode::Mode;
use crate::rules::offer::Offer;

/// The user's directory for configuration files.
pub const XDG_CONFIG_HOME: &str = "XDG_CONFIG_HOME";
/// The user's home, where that directory is if the variable does not say.
pub const HOME: &str = "HOME";
/// The fencing token: for a command, and in place of `--token`.
pub const TOKEN: &str = "ZKLOCK_TOKEN";

/// The contender nodes of the command's locks, one on each line: those of its own zklock and of every zklock
/// above that one. A zklock below finds here which locks it may use together with them.
pub const HELD: &str = "ZKLOCK_HELD";
/// How to borrow the locks of the command's own zklock and of every zklock above that one: an [`Offer`] of each,
/// one on each line.
pub const LENDER: &str = "ZKLOCK_LENDER";

/// What a command finds in its environment of the run that it belongs to.
pub const OF_A_RUN: [&str; 7] =
    ["ZKLOCK_PATH", "ZKLOCK_NODE", TOKEN, "ZKLOCK_TOKENS", "ZKLOCK_SESSION", "ZKLOCK_MODE", HELD];

/// A variable for a command, as environ(7) has it: `NAME=value`.
///
/// Its value comes in part from servers and from the environment of others. So it is lines of text without control
/// characters: it cannot end early and let another variable begin, nor say something to a terminal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variable(String);

impl Variable {
    /// The value is these lines. A control character becomes U+FFFD.
    pub fn new<'a>(name: &str, lines: impl IntoIterator<Item = &'a str>) -> Self {
        let line = |text: &str| text.replace(char::is_control, "\u{fffd}");
        Self(format!("{name}={}", lines.into_iter().map(line).collect::<Vec<_>>().join("\n")))
    }

    /// Reads an entry of an environment; `None`: it is not such a variable.
    pub fn parse(entry: &[u8]) -> Option<Self> {
        let text = str::from_utf8(entry).ok()?;
        let is_odd = |character: char| character.is_control() && character != '\n';
        (text.find('=') > Some(0) && !text.contains(is_odd)).then(|| Self(text.to_owned()))
    }

    pub fn inherited(name: &str) -> Option<Self> {
        Self::parse(format!("{name}={}", std::env::var(name).ok()?).as_bytes())
    }

    pub fn entry(&self) -> &str {
        &self.0
    }

    fn name(&self) -> &str {
        self.0.split_once('=').map_or("", |(name, _)| name)
    }

    pub fn value(&self) -> &str {
        self.0.split_once('=').map_or("", |(_, value)| value)
    }
}

/// Describes the locks to a command. All of these are set, so that nothing about an outer lock is taken for
/// this one.
pub fn describe(grant: &Grant, mode: Mode) -> Vec<Variable> {
    let tokens: Vec<_> = grant.all().map(|granted| format!("{} {}", granted.token, granted.lock)).collect();
    let one = |name, value: &str| Variable::new(name, [value]);
    vec![
        one("ZKLOCK_PATH", &grant.first.lock),
        one("ZKLOCK_NODE", &grant.first.node),
        token(grant.first.token),
        Variable::new("ZKLOCK_TOKENS", tokens.iter().map(String::as_str)),
        one("ZKLOCK_SESSION", &format!("{:#x}", grant.session)),
        one("ZKLOCK_MODE", &mode.to_string()),
    ]
}

pub fn token(token: impl Display) -> Variable {
    Variable::new(TOKEN, [token.to_string().as_str()])
}

/// [`HELD`] for a command that runs under these locks. `outer`: the nodes that are there already.
pub fn held(grant: &Grant, outer: &[String]) -> Variable {
    let nodes = grant.all().map(|granted| granted.node.as_str());
    let further = nodes.filter(|node| outer.iter().all(|outer| outer != node));
    // A line feed separates them because a lock's path may contain any other character.
    Variable::new(HELD, outer.iter().map(String::as_str).chain(further))
}

/// The nodes in [`HELD`], which may hold anything: they are believed only when the servers confirm them.
pub fn nodes_held(value: &OsStr) -> Vec<String> {
    let lines = value.to_str().unwrap_or_default().lines();
    lines.filter(|line| !line.is_empty() && !line.ends_with('/')).map(str::to_owned).collect()
}

/// Whether this node is one of those in [`HELD`]. An outer run may have had another chroot: then one of the two paths is the
/// end of the other.
pub fn is_held(node: &str, held: &[String]) -> bool {
    let is_end = |path: &str, end: &str| end.starts_with('/') && path.ends_with(end);
    held.iter().any(|outer| is_end(node, outer) || is_end(outer, node))
}

/// [`LENDER`] for a command whose run makes this offer. `outer`: those that are there already.
pub fn lender(offer: &Offer, outer: &[Offer]) -> Variable {
    let lines: Vec<_> = outer.iter().chain([offer]).map(Offer::to_string).collect();
    Variable::new(LENDER, lines.iter().map(String::as_str))
}

/// The offers in [`LENDER`], which may hold anything: [`crate::between::lending`] looks whether they stand.
pub fn offers(value: &OsStr) -> Vec<Offer> {
    value.to_str().unwrap_or_default().lines().filter_map(Offer::parse).collect()
}

/// The environment of this process with these variables in it, as execve(2) takes it.
pub fn inherited_with(variables: &[Variable]) -> Vec<CString> {
    let is_kept = |(name, _): &(OsString, OsString)| variables.iter().all(|variable| *name != *variable.name());
    let kept = env::vars_os().filter(is_kept);
    let kept = kept.map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()].concat());
    let entries = kept.chain(variables.iter().map(|variable| variable.entry().as_bytes().to_vec()));
    entries.map(|entry| CString::new(entry).expect("no variable has a NUL")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_cannot_begin_another_variable() {
        let node = Variable::new("ZKLOCK_NODE", ["/l/a\0BASH_ENV=x", "b\nc\u{1b}[2J"]);
        assert_eq!(node.entry(), "ZKLOCK_NODE=/l/a\u{fffd}BASH_ENV=x\nb\u{fffd}c\u{fffd}[2J");
        for odd in [&b"A=x\0B=y"[..], b"A=\x1b", b"=x", b"A", b"", b"A=\xff"] {
            assert_eq!(Variable::parse(odd), None, "{odd:?}");
        }
        assert_eq!(Variable::parse(node.entry().as_bytes()), Some(node));
    }
}
