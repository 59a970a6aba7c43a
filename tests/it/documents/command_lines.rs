//! The command lines of zklock in all pages and manual pages: its own parser reads them.

use std::ffi::OsString;
use std::fs;
use std::path::Path;

use zklock::cli::{self, Exit};

use crate::documents::links::pages;
use crate::harness::zklock::Zklock;

/// These have usage lines, or command lines of earlier versions.
const LEFT_OUT: [&str; 2] = ["docs/options.md", "CHANGELOG.md"];

/// A command line, as a shell would read it.
#[derive(Debug)]
struct Line {
    text: String,
    /// It is in a sentence, which may leave out what comes last.
    is_mention: bool,
}

/// What a shell would take for the command at the beginning of this text. Each variable is 1, and what a command prints is
/// left out.
fn command(text: &str) -> String {
    let (mut command, mut quote, mut chars) = (String::new(), None, text.chars().peekable());
    while let Some(c) = chars.next() {
        match (quote, c) {
            (None, '\\') if chars.next_if_eq(&'\n').is_some() => continue,
            (None, '\n' | '|' | '&' | ';' | '<' | '>') => break,
            (None, '#') if command.ends_with(' ') => break,
            (None | Some('"'), '$') if chars.next_if_eq(&'(').is_some() => {
                while chars.next().is_some_and(|c| c != ')') {}
                continue;
            }
            (None | Some('"'), '$') => {
                while chars.next_if(|c| c.is_ascii_alphanumeric() || *c == '_').is_some() {}
                command.push('1');
                continue;
            }
            (None, '\'' | '"') => quote = Some(c),
            (Some(open), _) if open == c => quote = None,
            _ => {}
        }
        command.push(c);
    }
    command
}

/// The lines of a block that begin with zklock, behind a prompt or as an item of a list.
fn in_block(block: &str) -> impl Iterator<Item = Line> {
    block
        .split_inclusive('\n')
        .scan(0, |at, line| {
            *at += line.len();
            Some((*at - line.len(), line))
        })
        .filter_map(|(at, line)| {
            let lead = line.len() - line.trim_start().trim_start_matches(['$', '-']).trim_start().len();
            let rest = &block[at + lead..];
            rest.starts_with("zklock ").then(|| Line { text: command(rest), is_mention: false })
        })
}

fn in_page(text: &str) -> Vec<Line> {
    let mut lines = vec![];
    for (at, part) in text.split("\n```").enumerate() {
        if at % 2 == 1 {
            lines.extend(in_block(part));
            continue;
        }
        let spans = part.split('`').skip(1).step_by(2).filter(|span| span.starts_with("zklock "));
        lines.extend(spans.map(|span| Line { text: command(&span.replace('\n', " ")), is_mention: true }));
    }
    lines
}

fn in_manual_page(text: &str) -> Vec<Line> {
    let text = text.replace("\\-", "-").replace("\\(aq", "'").replace("\\e", "\\");
    text.split("\n.nf\n").skip(1).flat_map(|part| in_block(part.split("\n.fi").next().expect("an end"))).collect()
}

/// Why zklock refuses this line, if it does.
fn refusal(line: &Line) -> Option<String> {
    let words = Zklock::bare().cleared().program("sh").args(["-c", &format!("printf '%s\\0' {}", line.text)]);
    let words = words.run().expect_code(0).stdout();
    let words = words.split_terminator('\0').map(|word| word.replace("LOCK", "/LOCK"));
    match cli::task(words.map(OsString::from), &|_: &str| None) {
        Ok(_) | Err(Exit::Help(_)) => None,
        Err(Exit::Usage(why)) => {
            let why = why.as_str().to_owned();
            let is_cut = ["no lock;", "no file;", "no command;"].iter().any(|cut| why.starts_with(cut));
            (!(line.is_mention && is_cut)).then_some(why)
        }
    }
}

#[test]
fn command_lines_are_understood() {
    let is_read = |path: &Path| LEFT_OUT.iter().all(|left_out| path != Path::new(left_out));
    let mut lines: Vec<_> =
        pages().into_iter().filter(|(path, _)| is_read(path)).flat_map(|(_, text)| in_page(&text)).collect();
    for entry in fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("man")).expect("a folder") {
        let path = entry.expect("a file").path();
        if path.extension().is_some_and(|extension| extension != "in") {
            lines.extend(in_manual_page(&fs::read_to_string(path).expect("text")));
        }
    }
    // A description of what may stand there.
    lines.retain(|line| !line.text.contains('…'));
    assert!(lines.len() > 150, "{} lines: {lines:#?}", lines.len());
    let wrong: Vec<_> = lines.iter().filter_map(|line| Some((&line.text, refusal(line)?))).collect();
    assert!(wrong.is_empty(), "zklock refuses {wrong:#?}");
}
