//! What is true of every run, whatever servers, other clients and callers say: [`expect_sane`].

use std::sync::OnceLock;

use regex_syntax::hir::{Class, HirKind};
use serde_json::Value;

use super::running::Output;
use super::zklock::Zklock;

/// The exit statuses of README.md, and 0 and 1, which commands and subcommands have.
const STATUSES: [i32; 14] = [0, 1, 64, 69, 70, 75, 76, 77, 78, 124, 126, 127, 137, 143];

/// Has zklock run with so much address space as it needs for the longest answer that it believes: 64 MB of names with one
/// character, each of which takes 56 bytes and is sorted into another list.
pub(crate) fn within_memory(zklock: Zklock) -> Zklock {
    zklock.run_by(["sh", "-c", r#"ulimit -v 1400000 && exec "$@""#, "sh"])
}

/// Looks at everything that leaves zklock: its status, and what it has written. Both streams show a reader what is in
/// them, each line on standard error is one of zklock's own messages, and JSON is one value in each line.
#[track_caller]
pub(crate) fn expect_sane(output: &Output) {
    // Rust ends by a signal when memory is used up.
    let status = output.status.code();
    assert!(status.is_some_and(|status| STATUSES.contains(&status)), "{output}");
    let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
    assert!(!stderr.contains("panicked") && !stderr.contains("internal error"), "{output}");
    assert!(stderr.lines().all(|line| line.starts_with("zklock: ")), "a line that is not ours\n{output}");
    assert!(stderr.is_empty() || stderr.ends_with('\n'), "a line without an end\n{output}");
    for (text, ours) in [(&stdout, "\n\t"), (&stderr, "\n")] {
        let hidden = text.chars().find(|character| is_hidden(*character) && !ours.contains(*character));
        assert_eq!(hidden, None, "{output}");
    }
    if stdout.starts_with('{') {
        let is_json = |line: &str| serde_json::from_str::<Value>(line).is_ok();
        assert!(stdout.lines().all(is_json), "{output}");
    }
}

#[track_caller]
fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

/// Whether Unicode says that a terminal obeys it, that a reader sees nothing, or that it is a space other than U+0020.
fn is_hidden(character: char) -> bool {
    static RANGES: OnceLock<Vec<(char, char)>> = OnceLock::new();
    let ranges = RANGES.get_or_init(|| {
        let class = r"[\p{Cc}\p{Cf}\p{Zl}\p{Zp}\p{Zs}\p{Default_Ignorable_Code_Point}\u{2800}--\x20]";
        let class = regex_syntax::parse(class).expect("a class of characters").into_kind();
        let HirKind::Class(Class::Unicode(class)) = class else { panic!("{class:?}") };
        class.iter().map(|range| (range.start(), range.end())).collect()
    });
    ranges.iter().any(|(first, last)| (*first..=*last).contains(&character))
}
