//! The manual pages. What the program knows of itself (options, exit statuses, examples of `--help`) is put into
//! `man/*.in`, which are written by hand, at the lines that begin with `@`.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use clap::{Arg, ArgAction};
use zklock::cli::{self, Subcommand, environment};
use zklock::rules::lease::Terms;
use zklock::rules::outcome::EXIT_STATUS;

use crate::documents::generated::{Document, complaints, documents, shown_options, spellings};

/// The date in the footer of each page: the last change to the text of any.
const DATE: &str = "2026-11-29";

/// How long the page may be that users read first, in lines of 80 columns.
const LONGEST: usize = 400;

struct Page {
    path: &'static str,
    template: &'static str,
    subcommand: Option<Subcommand>,
}

macro_rules! page {
    ($name:literal, $subcommand:expr) => {
        Page {
            path: concat!("man/", $name),
            template: include_str!(concat!("../../../man/", $name, ".in")),
            subcommand: $subcommand,
        }
    };
}

const MAIN: Page = page!("zklock.1", None);
const CONCEPTS: Page = page!("zklock.7", None);
const CONFIGURATION: Page = page!("zklock.toml.5", None);

const fn page_of(subcommand: Subcommand) -> Page {
    match subcommand {
        Subcommand::Hold => page!("zklock-hold.1", Some(subcommand)),
        Subcommand::Status => page!("zklock-status.1", Some(subcommand)),
        Subcommand::List => page!("zklock-list.1", Some(subcommand)),
        Subcommand::Break => page!("zklock-break.1", Some(subcommand)),
        Subcommand::Check => page!("zklock-check.1", Some(subcommand)),
        Subcommand::Fence => page!("zklock-fence.1", Some(subcommand)),
    }
}

fn all() -> impl Iterator<Item = Page> {
    [MAIN].into_iter().chain(Subcommand::ALL.map(page_of)).chain([CONFIGURATION, CONCEPTS])
}

/// All pages as they should be.
pub(super) fn wanted() -> impl Iterator<Item = Document> {
    all().map(|page| (page.path, page.text()))
}

impl Page {
    /// The definition of the command that the page is about.
    fn command(&self) -> clap::Command {
        let mut command = self.subcommand.map_or_else(cli::command, Subcommand::command);
        command.build();
        command
    }

    fn text(&self) -> String {
        let command = self.command();
        let about = command.get_about().map(ToString::to_string).unwrap_or_default();
        let (first, rest) = about.split_at(1);
        let about = roff(&(first.to_lowercase() + rest));
        let mut text = format!(".\\\" Made from {}.in: see CONTRIBUTING.md.\n", self.path);
        for line in self.template.lines() {
            text += &match line {
                "@SYNOPSIS@" => synopsis(self.subcommand.expect("a subcommand").usage()),
                "@SUBCOMMANDS@" => subcommands(),
                "@EXAMPLES@" => examples(&command),
                "@OPTIONS@" if self.subcommand.is_some() => own_options(&command),
                "@OPTIONS@" => groups(shown_options(&command).filter(|arg| !is_of_connection(arg))),
                "@CONNECTION OPTIONS@" => groups(shown_options(&command).filter(|arg| is_of_connection(arg))),
                "@EXIT STATUS@" if self.subcommand.is_some() => exit_statuses_of(&command),
                "@EXIT STATUS@" => EXIT_STATUS.iter().map(|(status, meaning)| exit_status(status, meaning)).collect(),
                "@SESSION TIMEOUTS@" => session_timeout_table(),
                line => {
                    let line = line.replace("@DATE@", DATE).replace("@VERSION@", env!("CARGO_PKG_VERSION"));
                    line.replace("@ABOUT@", &about) + "\n"
                }
            };
        }
        text
    }

    /// The page as a reader sees it on a terminal of this width, without bold and underline.
    fn as_read(&self, width: usize) -> String {
        let page = documents().iter().find(|(path, _)| *path == self.path).expect("it is one of the documents").0;
        let output = Command::new("mandoc")
            .args(["-T", "ascii", "-O", &format!("width={width}")])
            .arg(Path::new(env!("CARGO_MANIFEST_DIR")).join(page))
            .output()
            .unwrap_or_else(|error| {
                panic!("mandoc cannot be run ({error}); scripts/test installs what the tests need")
            });
        let text = String::from_utf8(output.stdout).expect("ASCII");
        let mut plain = String::with_capacity(text.len());
        for c in text.chars() {
            // Overstriking: what was printed before a backspace is printed again after it.
            if c == '\u{8}' {
                plain.pop();
            } else {
                plain.push(c);
            }
        }
        plain
    }

    /// A section as a reader sees it.
    fn section(&self, heading: &str) -> String {
        let page = self.as_read(100);
        let rest =
            page.split_once(&format!("\n{heading}\n")).unwrap_or_else(|| panic!("no {heading} in {}", self.path)).1;
        let is_text = |line: &&str| line.is_empty() || line.starts_with(' ');
        rest.lines().take_while(is_text).fold(String::new(), |text, line| text + line + "\n")
    }
}

/// Text for roff: what would be read as a request or an escape is not.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}

/// Sentences for roff, each on a line. Options and variables are bold, these names in italics.
fn sentences(text: &str, names: &[&str]) -> String {
    let marked = |word: &str| {
        let is_around = |c: char| "(),.:;\"'".contains(c);
        let core = word.trim_matches(is_around);
        let is_option =
            core.strip_prefix('-').is_some_and(|rest| rest.starts_with(|c: char| c == '-' || c.is_alphabetic()));
        let font = match core {
            "" => return roff(word),
            _ if is_option || core.starts_with("ZKLOCK_") => 'B',
            _ if names.contains(&core) => 'I',
            _ => return roff(word),
        };
        let at = word.find(core).expect("it is a part");
        let (before, after) = (&word[..at], &word[at + core.len()..]);
        format!("{}\\f{font}{}\\fR{}", roff(before), roff(core), roff(after))
    };
    let mut lines = String::new();
    for word in text.split(' ') {
        let separator = match lines.chars().last() {
            None => "",
            Some('.') if !lines.ends_with("...") => "\n",
            Some(_) => " ",
        };
        lines = lines + separator + &marked(word);
    }
    lines
}

fn synopsis(usage: &str) -> String {
    let mut words = usage.split_whitespace();
    let mut line = format!("\\fB{} {}\\fR", words.next().expect("zklock"), words.next().expect("its name"));
    for word in words {
        let core = word.trim_matches(['[', ']', '.']);
        let font = if core.starts_with('-') { 'B' } else { 'I' };
        let _ = write!(line, " {}", word.replace(core, &format!("\\f{font}{}\\fR", roff(core))));
    }
    line + "\n"
}

fn subcommands() -> String {
    let mut list = String::new();
    for subcommand in Subcommand::ALL {
        let about = subcommand.command().get_about().map(ToString::to_string).unwrap_or_default();
        let between = if list.is_empty() { "" } else { ".PD 0\n" };
        let _ = writeln!(list, "{between}.TP 18\n.BR zklock\\-{} (1)\n{}", subcommand.name(), roff(&about));
    }
    list + ".PD\n"
}

/// The names of an option, and of its value.
fn heading(arg: &Arg) -> String {
    let names: Vec<_> = spellings(arg).iter().map(|name| format!("\\fB{}\\fR", roff(name))).collect();
    names.join(", ") + &values(arg).iter().map(|value| format!(" \\fI{}\\fR", roff(value))).collect::<String>()
}

fn values(arg: &Arg) -> Vec<&str> {
    let names = arg.get_value_names().filter(|_| arg.get_action().takes_values()).unwrap_or_default();
    names.iter().map(|name| name.as_str()).collect()
}

/// An option with what its help says of it, in short or as a whole.
fn option(arg: &Arg, is_whole: bool) -> String {
    let help = if is_whole { arg.get_long_help().or(arg.get_help()) } else { arg.get_help() };
    let help = help.map(ToString::to_string).unwrap_or_default();
    let (first, more) = help.split_once("\n\n").unwrap_or((&help, ""));
    let default = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect::<Vec<_>>().join(" ");
    let default = if arg.get_action().takes_values() { default } else { String::new() };
    // Where it is no value of the option, its help has it.
    let (first, default) = match first.strip_suffix(']').and_then(|first| first.split_once(" [default: ")) {
        Some((first, default)) => (first, default.to_owned()),
        None => (first, default),
    };
    let mut names = values(arg);
    names.extend(["COMMAND", "LOCK"]);
    let mut text = format!(".TP\n{}\n", heading(arg));
    let mut paragraphs = more.split("\n\n");
    let first = [first.trim_end_matches('.'), ". ", paragraphs.next().unwrap_or_default()].concat();
    let _ = writeln!(text, "{}", sentences(first.trim_end(), &names));
    for paragraph in paragraphs {
        let _ = writeln!(text, ".IP\n{}", sentences(paragraph, &names));
    }
    if !default.is_empty() {
        let _ = writeln!(text, "Default: {}.", roff(&default));
    }
    if let Some(variable) = arg.get_env().and_then(OsStr::to_str).filter(|_| is_whole) {
        let _ = writeln!(text, "Environment: \\fB{}\\fR.", roff(variable));
    }
    text
}

/// Options with the groups of `--help` as subsections.
fn groups<'a>(options: impl Iterator<Item = &'a Arg>) -> String {
    let mut groups: Vec<(&str, String)> = vec![];
    for arg in options {
        // clap's own options have none.
        let name = arg.get_help_heading().unwrap_or("Messages");
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, text)) => *text += &option(arg, true),
            None => groups.push((name, option(arg, true))),
        }
    }
    groups.into_iter().map(|(name, text)| format!(".SS {name}\n{text}")).collect()
}

/// Whether an option says how to reach the servers. Most commands have these.
fn is_of_connection(arg: &Arg) -> bool {
    matches!(arg.get_help_heading(), Some("Connection" | "TLS" | "Login"))
}

/// The options of a subcommand: its own as a whole, those of zklock(1) in short.
fn own_options(command: &clap::Command) -> String {
    let main = MAIN.command();
    let is_same = |arg: &&Arg| {
        main.get_arguments().any(|other| other.get_id() == arg.get_id() && other.get_help() == arg.get_help())
    };
    let options =
        shown_options(command).filter(|arg| arg.get_id() != "help" && !(is_of_connection(arg) && is_same(arg)));
    let (same, own): (Vec<_>, Vec<_>) = options.partition(is_same);
    own.into_iter().map(|arg| option(arg, true)).chain(same.into_iter().map(|arg| option(arg, false))).collect()
}

/// The lines of a command's help below one of these headings.
fn block(command: &clap::Command, headings: &[&str]) -> Vec<String> {
    let texts = [command.get_before_long_help(), command.get_after_long_help()];
    let help = texts.into_iter().flatten().map(ToString::to_string).collect::<Vec<_>>().join("\n\n");
    let block = help.lines().skip_while(|line| !headings.contains(line)).skip(1);
    block.take_while(|line| line.is_empty() || line.starts_with(' ')).map(str::to_owned).collect()
}

/// The examples of a command's help: what each shows, and behind that, with more indentation, its lines.
fn examples(command: &clap::Command) -> String {
    let lines = block(command, &["Example:", "Examples:"]);
    assert!(!lines.is_empty(), "no examples in the help of {}", command.get_name());
    let mut text = String::new();
    // The indentation of the example.
    let mut inside = None;
    for line in lines.iter().filter(|line| !line.is_empty()) {
        let is_title = line.ends_with([':', '?']) && !line.starts_with("   ");
        let indentation = line.len() - line.trim_start().len();
        let end = if inside.is_some() { ".fi\n.RE\n.PP\n" } else { "" };
        let begin = if text.is_empty() { ".RS\n.nf\n" } else { ".PP\n.RS\n.nf\n" };
        text += &match inside {
            _ if is_title => format!("{end}{}\n", roff(line.trim_start())),
            None => format!("{begin}{}\n", roff(line.trim_start())),
            Some(outer) => format!("{}\n", roff(&line[outer..])),
        };
        inside = if is_title { None } else { inside.or(Some(indentation)) };
    }
    text + ".fi\n.RE\n"
}

fn exit_status(status: &str, meaning: &str) -> String {
    format!(".TP\n.B {}\n{}\n", roff(status), sentences(meaning, &["COMMAND", "LOCK", "FILE"]))
}

/// The exit statuses in a subcommand's help. Lines without a status stand for themselves.
fn exit_statuses_of(command: &clap::Command) -> String {
    let mut entries: Vec<(Option<String>, String)> = vec![];
    for line in block(command, &["Exit status:"]).iter().filter(|line| !line.is_empty()) {
        match line.trim_start().split_once("  ") {
            Some((status, meaning)) if status.parse::<u8>().is_ok() => {
                entries.push((Some(status.to_owned()), meaning.to_owned()))
            }
            _ if line.starts_with("    ") => {
                let (_, meaning) = entries.last_mut().expect("a status before");
                *meaning = format!("{meaning} {}", line.trim_start());
            }
            _ => entries.push((None, line.trim_start().to_owned())),
        }
    }
    assert!(!entries.is_empty(), "no exit statuses in the help of {}", command.get_name());
    let mut text = String::new();
    for (status, meaning) in entries {
        text += &match status {
            Some(status) => exit_status(&status, &meaning),
            None if text.is_empty() => sentences(&meaning, &[]) + "\n",
            None => format!(".PP\n{}\n", sentences(&meaning, &[])),
        };
    }
    text
}

/// The session timeouts, in seconds, that the tables of the documents list.
pub(super) const SESSION_TIMEOUTS: [u64; 5] = [6, 10, 30, 60, 120];

/// Seconds with one decimal, rounded down, so that no more is promised than there is.
pub(super) fn in_tenths(duration: Duration) -> String {
    let tenths = duration.as_millis() / 100;
    format!("{}.{} s", tenths / 10, tenths % 10)
}

/// What some session timeouts allow, by the arithmetic that zklock itself uses.
fn session_timeout_table() -> String {
    let mut table = ".PP\n.RS\n.nf\n".to_owned();
    let mut row = |timeout: &str, outage: &str, grace: &str| {
        let _ = writeln!(table, "{}", roff(&format!("{timeout:<19}{outage:<10}{grace}")));
    };
    row("--session-timeout", "outage", "signal to KILL");
    for timeout in SESSION_TIMEOUTS.map(Duration::from_secs) {
        let terms = Terms::new(timeout, None).expect("the default always fits");
        row(&in_tenths(timeout), &in_tenths(terms.patience()), &in_tenths(terms.kill_after()));
    }
    table + ".fi\n.RE\n"
}

#[test]
fn mandoc_finds_nothing_wrong() {
    for (path, _) in documents().iter().filter(|(path, _)| path.starts_with("man/")) {
        let page = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        let args = ["-T", "lint", "-W", "warning"].map(OsStr::new);
        let complaints = complaints("mandoc", &[&args[..], &[page.as_os_str()]].concat());
        assert_eq!(complaints, None);
    }
}

/// Checks that an option has an entry in this text of a page.
#[track_caller]
fn assert_described(text: &str, arg: &Arg) {
    let mut entry = spellings(arg).join(", ");
    values(arg).iter().for_each(|value| entry = format!("{entry} {value}"));
    let is_entry = |line: &str| {
        line.trim_start().strip_prefix(&entry).is_some_and(|rest| rest.is_empty() || rest.starts_with(' '))
    };
    assert!(text.lines().any(is_entry), "{entry} is missing in\n{text}");
    if matches!(arg.get_action(), ArgAction::Set) && !arg.is_positional() {
        assert!(!values(arg).is_empty(), "{arg:?} needs a name for its value");
    }
}

#[test]
fn every_option_is_in_the_page_of_its_command() {
    let (options, connection) = (MAIN.section("OPTIONS"), MAIN.section("CONNECTION OPTIONS"));
    let variables = MAIN.section("ENVIRONMENT");
    let command = MAIN.command();
    for arg in command.get_arguments().filter(|arg| !arg.is_positional()) {
        assert_described(if is_of_connection(arg) { &connection } else { &options }, arg);
        if let Some(variable) = arg.get_env().and_then(OsStr::to_str) {
            let words = |text: &str| text.split_whitespace().any(|word| word.trim_matches([',', '.']) == variable);
            assert!(words(&variables) && (words(&options) || words(&connection)), "{variable} is missing");
        }
    }
    for subcommand in Subcommand::ALL {
        let page = page_of(subcommand);
        let synopsis = page.section("SYNOPSIS");
        assert_eq!(synopsis.trim(), subcommand.usage());
        let own = page.section("OPTIONS");
        for arg in shown_options(&subcommand.command()).filter(|arg| arg.get_id() != "help") {
            let same = command
                .get_arguments()
                .any(|other| other.get_id() == arg.get_id() && other.get_help() == arg.get_help());
            if is_of_connection(arg) && same {
                assert_described(&connection, arg);
                assert!(own.contains("CONNECTION OPTIONS"), "{own}");
            } else {
                assert_described(&own, arg);
            }
        }
    }
}

#[test]
fn every_variable_is_in_the_main_page() {
    let section = MAIN.section("ENVIRONMENT");
    let others = [environment::LENDER, environment::HOME, environment::XDG_CONFIG_HOME];
    for variable in environment::OF_A_RUN.into_iter().chain(others) {
        assert!(
            section.split_whitespace().any(|word| word.trim_matches([',', '.']) == variable),
            "{variable} is missing"
        );
    }
}

#[test]
fn every_exit_status_is_in_the_page_of_its_command() {
    let section = MAIN.section("EXIT STATUS");
    for (status, _) in EXIT_STATUS {
        assert!(section.lines().any(|line| line.trim_start().starts_with(status)), "{status} is missing");
    }
    for subcommand in Subcommand::ALL {
        let section = page_of(subcommand).section("EXIT STATUS");
        let help = subcommand.command().render_long_help().to_string();
        let statuses = help.split_once("\nExit status:\n").expect("its statuses").1;
        let first =
            |line: &str| line.split_whitespace().next().filter(|word| word.parse::<u8>().is_ok()).map(str::to_owned);
        let statuses: Vec<_> = statuses.lines().filter_map(first).collect();
        assert!(statuses.len() > 3, "{help}");
        for status in statuses {
            assert!(section.lines().any(|line| first(line).as_ref() == Some(&status)), "{status} of {subcommand:?}");
        }
    }
}

#[test]
fn every_key_of_a_configuration_file_is_in_its_page_and_in_the_guide() {
    let manual = CONFIGURATION.section("KEYS");
    let guide = include_str!("../../../docs/configuration.md");
    for key in cli::keys() {
        let is_key = |line: &str| line.split_whitespace().next() == Some(key);
        assert!(manual.lines().any(is_key), "{key} is missing in the page");
        assert!(guide.contains(&format!("`{key}`")), "{key} is missing in docs/configuration.md");
    }
    let page = CONFIGURATION.as_read(100);
    for text in [&page, guide, &cli::command().render_long_help().to_string()] {
        assert!(text.contains(cli::SYSTEMS) && text.contains("~/.config/zklock.toml"));
    }
}

#[test]
fn main_page_is_short() {
    let lines = MAIN.as_read(80).lines().count();
    assert!(lines <= LONGEST, "{lines} lines");
}

#[test]
fn pages_name_pages_that_there_are() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut templates = 0;
    for entry in fs::read_dir(root.join("man")).expect("a folder") {
        let name = entry.expect("a file").file_name().into_string().expect("a name");
        let page = format!("man/{}", name.trim_end_matches(".in"));
        assert!(all().any(|known| known.path == page), "{name} belongs to no page");
        templates += usize::from(name.ends_with(".in"));
    }
    assert_eq!(templates, all().count());
    let texts = all().map(|page| page.as_read(1000)).chain([cli::command().render_long_help().to_string()]);
    for text in texts.chain(Subcommand::ALL.map(|subcommand| subcommand.command().render_long_help().to_string())) {
        for (at, _) in text.match_indices("zklock") {
            let Some((name, rest)) = text[at..].split_once('(') else { continue };
            let section = rest.split(')').next().unwrap_or_default();
            if name.chars().all(|c| c.is_ascii_lowercase() || "-.".contains(c)) && section.parse::<u8>().is_ok() {
                let page = format!("man/{name}.{section}");
                assert!(all().any(|known| known.path == page), "{page} is named in\n{text}");
            }
        }
    }
}
