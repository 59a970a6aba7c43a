//! The messages that docs/troubleshooting.md explains: each is put together from texts of the sources, or of the system, or
//! is what a test waits for.

use std::fs;
use std::io;
use std::path::Path;

use nix::errno::Errno;

/// Spans of the page that are commands.
const COMMANDS: [&str; 7] = ["create", "env", "getAcl", "journalctl", "openssl", "ssh", "zklock"];

/// The quoted messages, each in one line.
fn messages(page: &str) -> impl Iterator<Item = String> {
    let spans = page.split('`').skip(1).step_by(2).map(|span| span.split_whitespace().collect::<Vec<_>>());
    let is_message = |words: &Vec<&str>| words.len() > 1 && !words[0].starts_with('-') && !COMMANDS.contains(&words[0]);
    spans.filter(is_message).map(|words| words.join(" "))
}

/// The parts of a message between what is different each time, such as LOCK or 5m.
fn fixed_parts(message: &str) -> Vec<Vec<&str>> {
    let is_name = |word: &str| word.len() > 1 && word.chars().all(|c| c.is_ascii_uppercase() || "@:".contains(c));
    let is_fixed = |word: &&str| {
        let core = word.trim_matches(['(', ')', ',', '.', ':', ';']);
        let is_known = ["ACL", "CA", "DNS", "SASL", "TLS"].contains(&core);
        let is_value = core.contains(|c: char| c.is_ascii_digit() || "/,".contains(c)) || core.contains("LOCK.");
        !core.is_empty() && !word.starts_with("...") && !is_value && (is_known || !(is_name(core) || core == "N"))
    };
    let words: Vec<_> = message.split(' ').collect();
    let parts = words.split(|word| !is_fixed(word)).filter(|part| !part.is_empty());
    parts.map(<[&str]>::to_vec).collect()
}

/// Whether these words are in the texts, as a whole or in pieces of at least two words.
fn is_said(words: &[&str], texts: &str) -> bool {
    let is_there = |words: &[&str]| texts.contains(words.join(" ").trim_matches(['(', ')', ',', '.', ':', ';']));
    is_there(words)
        || (2..words.len().saturating_sub(1)).any(|at| is_there(&words[..at]) && is_said(&words[at..], texts))
}

/// The code below this folder, without comments, and with long strings in one line.
fn code(folder: &Path, code_so_far: &mut String) {
    for entry in fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            code(&path, code_so_far);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&path).expect("text");
            for line in text.lines().map(str::trim_start).filter(|line| !line.starts_with("//")) {
                match line.strip_suffix('\\') {
                    Some(begun) => code_so_far.push_str(begun),
                    None => *code_so_far = std::mem::take(code_so_far) + line + "\n",
                }
            }
        }
    }
}

#[test]
fn troubleshooting_quotes_what_is_said() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut texts = String::new();
    ["src", "tests/it"].iter().for_each(|folder| code(&root.join(folder), &mut texts));
    for error in [Errno::ENETUNREACH, Errno::EHOSTUNREACH, Errno::ECONNREFUSED] {
        texts += &io::Error::from(error).to_string();
    }
    let page = fs::read_to_string(root.join("docs/troubleshooting.md")).expect("text");
    let messages: Vec<_> = messages(&page).collect();
    assert!(messages.len() > 60, "{messages:#?}");
    let is_missing = |message: &&String| !fixed_parts(message).iter().all(|part| is_said(part, &texts));
    let missing: Vec<_> = messages.iter().filter(is_missing).collect();
    assert!(missing.is_empty(), "nobody says {missing:#?}");
}
