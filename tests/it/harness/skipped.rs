//! Tests that do not run here.

use std::env;
use std::io::{self, Write as _};
use std::thread;

/// Has a test that would be skipped fail.
const SWITCH: &str = "ZKLOCK_TEST_ALL";

/// Says that this test does not run here, because it needs `what`. scripts/test counts these lines.
#[track_caller]
pub(crate) fn skip(what: &str) {
    let line = format!("skipped: {}: needs {what}", thread::current().name().expect("a test has a name"));
    assert!(env::var_os(SWITCH).is_none_or(|value| value.is_empty()), "not to be skipped by {SWITCH}: needs {what}");
    say(&line);
}

/// Writes a line to standard error. Not by a macro: what those write is shown only if the test fails.
pub(crate) fn say(line: &str) {
    io::stderr().write_all(format!("\n{line}\n").as_bytes()).expect("standard error is open");
}
