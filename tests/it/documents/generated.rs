//! The completions and the manual pages: made from the definition of the flags, checked in, and
//! compared here. `SNAPSHOTS=overwrite cargo test --test it documents` writes them anew.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use clap::{Arg, ArgAction, ValueHint};
use clap_complete::Shell;
use zklock::cli::{self, Subcommand};
use zklock::rules::queue::Dialect;
use zklock::rules::signal::Signal;

use crate::documents::{options_page, pages};

fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The path of a checked-in document, and what should be in it.
pub(super) type Document = (&'static str, String);

/// Every document. The first call writes them when SNAPSHOTS=overwrite, so that no test reads one
/// while it is written.
pub(super) fn documents() -> &'static [Document] {
    static DOCUMENTS: OnceLock<Vec<Document>> = OnceLock::new();
    DOCUMENTS.get_or_init(|| {
        let completions = [
            ("completions/zklock.bash", completion(Shell::Bash)),
            ("completions/_zklock", completion(Shell::Zsh)),
            ("completions/zklock.fish", completion(Shell::Fish)),
        ];
        let documents: Vec<_> =
            completions.into_iter().chain(pages::wanted()).chain([options_page::wanted()]).collect();
        if std::env::var_os("SNAPSHOTS").is_some_and(|value| value == "overwrite") {
            for (path, wanted) in &documents {
                fs::write(in_repository(path), wanted).unwrap_or_else(|error| panic!("{path}: {error}"));
            }
        }
        documents
    })
}

/// Where a document lies, to be read by a program.
fn checked_in(path: &str) -> PathBuf {
    assert!(documents().iter().any(|(known, _)| *known == path), "{path} is none of the documents");
    in_repository(path)
}

#[test]
fn documents_are_up_to_date() {
    for (path, wanted) in documents() {
        let found = fs::read_to_string(in_repository(path)).unwrap_or_default();
        if let Some(line) = first_difference(&found, wanted) {
            panic!("{path} is stale from line {line} on; run: SNAPSHOTS=overwrite cargo test --test it documents");
        }
    }
}

#[test]
fn the_changelog_has_this_version() {
    let changelog = fs::read_to_string(in_repository("CHANGELOG.md")).expect("text");
    let heading = format!("## [{}] - ", env!("CARGO_PKG_VERSION"));
    assert!(changelog.lines().any(|line| line.starts_with(&heading)), "no line begins with {heading:?}");
}

fn first_difference(found: &str, wanted: &str) -> Option<usize> {
    if found == wanted {
        return None;
    }
    let same = found.lines().zip(wanted.lines()).take_while(|(found, wanted)| found == wanted).count();
    Some(same + 1)
}

/// Runs a checker, which scripts/test installs. Returns what it printed when it found something.
pub(super) fn complaints(program: &str, args: &[&OsStr]) -> Option<String> {
    let output = Command::new(program)
        .args(args)
        .output()
        .unwrap_or_else(|error| panic!("{program} cannot be run ({error}); scripts/test installs what the tests need"));
    let text = [output.stdout, output.stderr].concat();
    (!output.status.success()).then(|| String::from_utf8_lossy(&text).into_owned())
}

// Completions

/// The options that take a value, as they are written on a command line.
fn with_a_value(command: &clap::Command) -> Vec<String> {
    let takes_value = |arg: &&Arg| !arg.is_positional() && arg.get_action().takes_values();
    command.get_arguments().filter(takes_value).flat_map(spellings).collect()
}

/// An option's names: the short one, the long one, and those that it has besides.
pub(super) fn spellings(arg: &Arg) -> Vec<String> {
    let short = |name| format!("-{name}");
    let long = |name: &str| format!("--{name}");
    let own = arg.get_short().map(short).into_iter().chain(arg.get_long().map(long));
    let shorts = arg.get_visible_short_aliases().unwrap_or_default().into_iter().map(short);
    let longs = arg.get_visible_aliases().unwrap_or_default().into_iter().map(long);
    own.chain(shorts).chain(longs).collect()
}

/// The names that `--signal` is offered with: there are too many real-time signals to choose from.
fn signals() -> Vec<String> {
    let names = Signal::all().map(|signal| signal.to_string().trim_start_matches("SIG").to_owned());
    names.filter(|name| !name.starts_with("RT") && !name.starts_with(|c: char| c.is_ascii_digit())).collect()
}

/// The options of a subcommand, as they are written on a command line.
fn options_of(subcommand: Subcommand) -> String {
    let command = with_help(subcommand);
    shown_options(&command).flat_map(spellings).collect::<Vec<_>>().join(" ")
}

/// The options that a user is told of.
pub(super) fn shown_options(command: &clap::Command) -> impl Iterator<Item = &Arg> {
    command.get_arguments().filter(|arg| !arg.is_positional() && !arg.is_hide_set())
}

/// The definition of a subcommand with `--help`, which clap adds when it is built.
fn with_help(subcommand: Subcommand) -> clap::Command {
    let mut command = subcommand.command();
    command.build();
    command
}

/// The subcommands and their options, for fish.
fn fish_subcommands() -> String {
    let mut lines = String::new();
    let escaped = |text: String| text.replace('\'', "\\'");
    for subcommand in Subcommand::ALL {
        let (name, command) = (subcommand.name(), with_help(subcommand));
        let about = escaped(command.get_about().map(ToString::to_string).unwrap_or_default());
        let _ = writeln!(lines, "complete -c zklock -n __zklock_first -a {name} -d '{about}'");
        for arg in shown_options(&command) {
            let names = spellings(arg).into_iter().map(|name| match name.strip_prefix("--") {
                Some(long) => format!(" -l {long}"),
                None => format!(" -s {}", name.trim_start_matches('-')),
            });
            let value = match arg.get_value_hint() {
                ValueHint::FilePath => " -r",
                _ if arg.get_action().takes_values() => " -x",
                _ => "",
            };
            let help = escaped(arg.get_help().map(ToString::to_string).unwrap_or_default());
            let names: String = names.collect();
            // Behind its COMMAND, options are those of COMMAND.
            let before = if subcommand == Subcommand::Fence { "; and not __zklock_command >/dev/null" } else { "" };
            let here = format!("__zklock_subcommand {name}{before}");
            let _ = writeln!(lines, "complete -c zklock -n '{here}'{names}{value} -d '{help}'");
        }
    }
    lines
}

fn completion(shell: Shell) -> String {
    let mut script = Vec::new();
    // A second -c is read, to be refused. It is not to be offered.
    let mut command = cli::command().mut_arg("shell_command", |script| script.action(ArgAction::Set));
    clap_complete::generate(shell, &mut command, "zklock", &mut script);
    let mut script = String::from_utf8(script).expect("a completion is text");
    let mut replace = |old: &str, new: &str| {
        assert!(script.contains(old), "the completions for {shell} have no {old:?} any more");
        script = script.replace(old, new);
    };
    // The generator knows neither where COMMAND begins, nor the values for which clap has no type.
    let with_value = with_a_value(&cli::command());
    let fill_in = |text: &str| {
        let between = if shell == Shell::Fish { " " } else { "|" };
        text.replace("@OPTIONS_WITH_A_VALUE@", &with_value.join(between))
            .replace("@DIALECTS@", &Dialect::ALL.map(Dialect::name).join(" "))
            .replace("@SIGNALS@", &signals().join(" "))
            .replace("@SUBCOMMANDS@", &Subcommand::ALL.map(Subcommand::name).join(" "))
            .replace("@HOLD_OPTIONS@", &options_of(Subcommand::Hold))
            .replace("@STATUS_OPTIONS@", &options_of(Subcommand::Status))
            .replace("@LIST_OPTIONS@", &options_of(Subcommand::List))
            .replace("@BREAK_OPTIONS@", &options_of(Subcommand::Break))
            .replace("@CHECK_OPTIONS@", &options_of(Subcommand::Check))
            .replace("@FENCE_OPTIONS_WITH_A_VALUE@", &with_a_value(&Subcommand::Fence.command()).join(between))
            .replace("@FENCE_OPTIONS@", &options_of(Subcommand::Fence))
    };
    match shell {
        Shell::Bash => script += &fill_in(include_str!("../../../completions/command.bash.in")),
        Shell::Fish => {
            replace("complete -c zklock ", "complete -c zklock -n __zklock_options ");
            script += &fill_in(include_str!("../../../completions/command.fish.in"));
            script += &fish_subcommands();
        }
        Shell::Zsh => {
            replace(":NAME[,NAME...]:", &fill_in(":NAME[,NAME...]:_sequence compadd - @DIALECTS@"));
            replace(":SIGNAL:", ":SIGNAL:_signals -s");
            // Where there is only a message to show, zsh would show it instead of completing an option.
            replace("such as /jobs/backup:'", "such as /jobs/backup:_zklock_paths'");
            replace(":LOCK:'", ":LOCK:_zklock_paths'");
            // It would end the options at LOCK.
            replace("'*::command -- The command to run, and its arguments:_cmdambivalent' \\\n", "");
            replace("_zklock() {", "_zklock_options() {");
            let last = "if [ \"$funcstack[1]\"";
            replace(last, &(fill_in(include_str!("../../../completions/command.zsh.in")) + last));
        }
        _ => unreachable!("no other shell has completions"),
    }
    script
}

#[test]
fn the_shells_can_read_their_completions() {
    for (shell, file) in
        [("bash", "completions/zklock.bash"), ("zsh", "completions/_zklock"), ("fish", "completions/zklock.fish")]
    {
        let file = checked_in(file);
        let complaints = complaints(shell, &["-n".as_ref(), file.as_os_str()]);
        assert_eq!(complaints, None, "{shell}");
    }
}
