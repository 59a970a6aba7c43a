//! The same command by itself and below zklock.

use super::running::Output;
use super::scratch::{LOCK, Scratch};
use super::zklock::Zklock;

/// Runs `command` in the same `surroundings` by itself and below zklock, and panics unless both end the same way with
/// the same output. Returns the output without zklock.
#[track_caller]
pub(crate) fn assert_same<'a, C>(command: C, surroundings: impl Fn(Zklock) -> Zklock) -> Output
where
    C: IntoIterator<Item = &'a str>,
{
    let scratch = Scratch::new();
    let words: Vec<&str> = command.into_iter().collect();
    let alone = Zklock::bare().program(words[0]).args(&words[1..]).directory(scratch.file(""));
    let alone = surroundings(alone).run();
    let below = surroundings(scratch.zklock().arg(LOCK).arg("--").args(&words)).run();
    assert_eq!(below.status, alone.status, "{alone}{below}");
    assert!(below.stdout == alone.stdout, "{alone}{below}");
    assert_eq!(below.stderr(), alone.stderr(), "{alone}{below}");
    alone
}

/// As [`assert_same`], with `shell` having been executed just before.
#[track_caller]
pub(crate) fn assert_same_after(shell: &str, command: &[&str]) -> Output {
    let script = format!(r#"{shell}; exec "$0" "$@""#);
    assert_same(command.iter().copied(), |zklock| zklock.run_by(["sh", "-c", &script]))
}
