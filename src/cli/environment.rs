//! The environment variables of zklock: their names, and how each value is written and read.

use std::ffi::{CStr, CString, NulError, OsStr, OsString, c_char};
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
/// The log filter, which has no option.
pub const LOG: &str = "ZKLOCK_LOG";

/// The contender nodes of the command's locks, one on each line: those of its own zklock and of every zklock
/// above that one. A zklock below finds here which locks it may use together with them.
pub const HELD: &str = "ZKLOCK_HELD";
/// How to borrow the locks of the command's own zklock and of every zklock above that one: an [`Offer`] of each,
/// one on each line.
pub const LENDER: &str = "ZKLOCK_LENDER";

/// What a command finds in its environment of the run that it belongs to.
pub const OF_A_RUN: [&str; 7] =
    ["ZKLOCK_PATH", "ZKLOCK_NODE", TOKEN, "ZKLOCK_TOKENS", "ZKLOCK_SESSION", "ZKLOCK_MODE", HELD];

pub type Variable = (&'static str, OsString);

/// Describes the locks to a command. All of these are set, so that nothing about an outer lock is taken for
/// this one.
pub fn describe(grant: &Grant, mode: Mode) -> Vec<Variable> {
    let tokens: Vec<_> = grant.all().map(|granted| format!("{} {}", granted.token, granted.lock)).collect();
    vec![
        ("ZKLOCK_PATH", grant.first.lock.clone().into()),
        ("ZKLOCK_NODE", grant.first.node.clone().into()),
        (TOKEN, grant.first.token.to_string().into()),
        ("ZKLOCK_TOKENS", tokens.join("\n").into()),
        ("ZKLOCK_SESSION", format!("{:#x}", grant.session).into()),
        ("ZKLOCK_MODE", mode.to_string().into()),
    ]
}

/// [`HELD`] for a command that runs under these locks. `outer`: the nodes that are there already.
pub fn held(grant: &Grant, outer: &[String]) -> Variable {
    let is_there = |node: &str| outer.iter().any(|outer| outer == node);
    (HELD, with_lines(HELD, grant.all().map(|granted| granted.node.as_str()).filter(|node| !is_there(node))))
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

/// [`LENDER`] for a command whose run makes this offer.
pub fn lender(offer: &Offer) -> Variable {
    (LENDER, with_lines(LENDER, [offer.to_string().as_str()]))
}

/// The offers in [`LENDER`], which may hold anything: [`crate::between::lending`] looks whether they stand.
pub fn offers(value: &OsStr) -> Vec<Offer> {
    value.to_str().unwrap_or_default().lines().filter_map(Offer::parse).collect()
}

/// A variable of our own environment with these lines added. A line feed separates them because a lock's path
/// may contain any other character.
fn with_lines<'a>(variable: &str, further: impl IntoIterator<Item = &'a str>) -> OsString {
    let mut lines = std::env::var_os(variable).unwrap_or_default();
    for line in further {
        if !lines.is_empty() {
            lines.push("\n");
        }
        lines.push(line);
    }
    lines
}

/// The environment of this process (environ(7)), with what the standard library leaves out: entries that are no variables,
/// and doubles.
pub fn inherited() -> Vec<CString> {
    #[expect(unsafe_code, reason = "the standard library shows some entries only")]
    // SAFETY: the C library keeps texts there, and null behind them. Nothing in this process changes its environment.
    unsafe {
        unsafe extern "C" {
            static environ: *const *const c_char;
        }
        let entries = (0..).map(|index| *environ.add(index)).take_while(|entry| !entry.is_null());
        entries.map(|entry| CStr::from_ptr(entry).to_owned()).collect()
    }
}

/// These entries, with each of these variables in the place of the first of its name, and of all others. What is new comes
/// last.
pub fn with(
    mut entries: Vec<CString>,
    variables: impl IntoIterator<Item = (OsString, OsString)>,
) -> Result<Vec<CString>, NulError> {
    for (name, value) in variables {
        let begin = [name.as_bytes(), b"="].concat();
        let is_same = |entry: &CString| entry.as_bytes().starts_with(&begin);
        let place = entries.iter().position(is_same);
        entries.retain(|entry| !is_same(entry));
        let entry = CString::new([&begin, value.as_bytes()].concat())?;
        entries.insert(place.unwrap_or(entries.len()), entry);
    }
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_environment_keeps_what_is_not_set() {
        let with = |entries: &[&str], variables: &[(&str, &str)]| {
            let entries = entries.iter().map(|entry| CString::new(*entry).unwrap()).collect();
            let set = with(entries, variables.iter().map(|(name, value)| (name.into(), value.into()))).unwrap();
            set.into_iter().map(|entry| entry.into_string().unwrap()).collect::<Vec<_>>()
        };
        let odd = ["B=2", "x", "=x", "", "A=1", "B=3", "AB=1", "A"];
        assert_eq!(with(&odd, &[]), odd);
        assert_eq!(
            with(&odd, &[("B", "="), ("NEW", ""), ("A", "2")]),
            ["B==", "x", "=x", "", "A=2", "AB=1", "A", "NEW="]
        );
    }
}
