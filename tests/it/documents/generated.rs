//! The completions and the man page: made from the definition of the flags, checked in, and
//! compared here. `SNAPSHOTS=overwrite cargo test --test it documents` writes them anew.
//!
//! What no definition knows is in `man/sections`, written by hand.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use clap::{Arg, ArgAction, ValueHint};
use clap_complete::Shell;
use zklock::cli::{self, Subcommand};
use zklock::rules::lease::Terms;
use zklock::rules::outcome::EXIT_STATUS;
use zklock::rules::queue::Dialect;
use zklock::rules::signal::Signal;

/// The date in the man page's footer: that of the last change to its text.
const MAN_DATE: &str = "2026-11-27";

const MAN_PAGE: &str = "man/zklock.1";

fn in_repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// The path of a checked-in document, and what should be in it.
type Document = (&'static str, String);

/// Every document. The first call writes them when SNAPSHOTS=overwrite, so that no test reads one
/// while it is written.
pub(super) fn documents() -> &'static [Document] {
    static DOCUMENTS: OnceLock<Vec<Document>> = OnceLock::new();
    DOCUMENTS.get_or_init(|| {
        let documents = vec![
            ("completions/zklock.bash", completion(Shell::Bash)),
            ("completions/_zklock", completion(Shell::Zsh)),
            ("completions/zklock.fish", completion(Shell::Fish)),
            (MAN_PAGE, man_page()),
        ];
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
fn complaints(program: &str, args: &[&OsStr]) -> Option<String> {
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
fn shown_options(command: &clap::Command) -> impl Iterator<Item = &Arg> {
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
            // A colon ends the name of a value.
            replace(":HOST:PORT,", ":HOST\\:PORT,");
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

// The man page

/// Text for roff: what would be read as a request or an escape is not.
fn roff(text: &str) -> String {
    let text = text.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq");
    if text.starts_with('.') { format!("\\&{text}") } else { text }
}

/// The OPTIONS section, with the groups of `--help` as subsections.
fn options_section() -> String {
    let mut section = Vec::new();
    clap_mangen::Man::new(cli::command()).render_options_section(&mut section).expect("writing to memory");
    let section = String::from_utf8(section).expect("roff is text");
    let section = section
        .replace("<\\fILOCK\\fR>", "\\fILOCK\\fR")
        .replace("[\\fICOMMAND\\fR]", "\\fICOMMAND\\fR [\\fIARG\\fR]...")
        .replace("\\fI<", "\\fI")
        .replace(">\\fR", "\\fR");
    let section = with_other_names(section);
    let mut lines = String::new();
    for (i, line) in section.lines().enumerate() {
        match line.strip_prefix(".SH ") {
            Some(group) if i > 0 && group != "OPTIONS" => {
                let (first, rest) = group.split_at(1);
                let group = match group {
                    "ZOOKEEPER" => "ZooKeeper".to_owned(),
                    "TLS" => group.to_owned(),
                    _ => first.to_owned() + &rest.to_lowercase(),
                };
                let _ = writeln!(lines, ".SS {group}");
            }
            _ => {
                let _ = writeln!(lines, "{}", line.trim_end());
            }
        }
    }
    lines
}

/// Adds the names that an option has besides, which the generator leaves out.
fn with_other_names(mut section: String) -> String {
    for arg in cli::command().get_arguments().filter(|arg| arg.get_long().is_some()) {
        let bold: Vec<_> = spellings(arg).iter().map(|name| format!("\\fB{}\\fR", roff(name))).collect();
        let generated = bold.len().min(arg.get_short().iter().len() + 1);
        section = section.replacen(&bold[..generated].join(", "), &bold.join(", "), 1);
    }
    section
}

/// The SUBCOMMANDS section: what is said of each, and the options that mean something else there, or nothing elsewhere.
fn subcommands_section() -> String {
    let main = cli::command();
    let same = |arg: &Arg| main.get_arguments().find(|other| other.get_id() == arg.get_id());
    let is_shared = |arg: &&Arg| same(arg).is_some_and(|other| other.get_help() == arg.get_help());
    let bold = |arg: &Arg| {
        let names: Vec<_> = spellings(arg).iter().map(|name| format!("\\fB{}\\fR", roff(name))).collect();
        let values = arg.get_value_names().filter(|_| arg.get_action().takes_values()).unwrap_or_default();
        let values: String = values.iter().map(|value| format!(" \\fI{}\\fR", roff(value))).collect();
        names.join(", ") + &values
    };
    let mut section =
        ".SH SUBCOMMANDS\nA subcommand is the first argument.\n.B zklock help\n.I SUBCOMMAND\nprints its help.\n"
            .to_owned();
    for subcommand in Subcommand::ALL {
        let text = match subcommand {
            Subcommand::Hold => include_str!("../../../man/sections/hold.roff"),
            Subcommand::Status => include_str!("../../../man/sections/status.roff"),
            Subcommand::List => include_str!("../../../man/sections/list.roff"),
            Subcommand::Break => include_str!("../../../man/sections/break.roff"),
            Subcommand::Check => include_str!("../../../man/sections/check.roff"),
            Subcommand::Fence => include_str!("../../../man/sections/fence.roff"),
        };
        let command = subcommand.command();
        let (shared, own): (Vec<_>, Vec<_>) = shown_options(&command).partition(is_shared);
        let _ = write!(section, ".SS {}\n.B zklock {}\n{text}", roff(subcommand.usage()), subcommand.name());
        for arg in own {
            let help = arg.get_long_help().or(arg.get_help()).map(ToString::to_string).unwrap_or_default();
            let help = roff(&help).replace("\n\n", "\n.IP\n");
            let default: Vec<_> = arg.get_default_values().iter().map(|value| value.to_string_lossy()).collect();
            let is_told = arg.get_action().takes_values() && !arg.is_hide_default_value_set() && !default.is_empty();
            let default = if is_told { format!(" [default: {}]", roff(&default.join(" "))) } else { String::new() };
            let _ = writeln!(section, ".TP\n{}{default}\n{help}", bold(arg));
            if let Some(variable) = arg.get_env() {
                let variable = roff(&variable.to_string_lossy());
                let _ = writeln!(
                    section,
                    ".RS\nMay also be specified with the \\fB{variable}\\fR environment variable.\n.RE"
                );
            }
        }
        let shared: Vec<_> = shared.into_iter().map(bold).collect();
        let _ = writeln!(section, ".PP\nOptions as above: {}.", shared.join("; "));
    }
    section
}

fn exit_status_section() -> String {
    let mut section = ".SH EXIT STATUS\n".to_owned();
    for (status, meaning) in EXIT_STATUS {
        let _ = writeln!(section, ".TP\n.B {}\n{}", roff(status), roff(meaning));
    }
    section
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

fn man_page() -> String {
    [
        format!(".TH ZKLOCK 1 {MAN_DATE} \"zklock {}\" \"User Commands\"\n", env!("CARGO_PKG_VERSION")),
        format!(".SH NAME\nzklock \\- {}\n", roff(&cli::command().get_about().expect("there is one").to_string())),
        include_str!("../../../man/sections/description.roff").to_owned(),
        options_section(),
        subcommands_section(),
        exit_status_section(),
        include_str!("../../../man/sections/exit-status.roff").to_owned(),
        include_str!("../../../man/sections/environment.roff").to_owned(),
        include_str!("../../../man/sections/configuration.roff").to_owned(),
        include_str!("../../../man/sections/tls.roff").to_owned(),
        include_str!("../../../man/sections/login.roff").to_owned(),
        include_str!("../../../man/sections/modes.roff").to_owned(),
        include_str!("../../../man/sections/signals.roff").to_owned(),
        include_str!("../../../man/sections/loss-of-the-lock.roff").to_owned(),
        session_timeout_table(),
        include_str!("../../../man/sections/examples.roff").to_owned(),
    ]
    .concat()
}

/// The page as a reader sees it, without bold and underline.
fn man_page_as_read() -> String {
    let page = checked_in(MAN_PAGE);
    let output =
        Command::new("mandoc").args(["-T", "ascii", "-O", "width=100"]).arg(page).output().unwrap_or_else(|error| {
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

#[test]
fn mandoc_finds_nothing_wrong_with_the_man_page() {
    let page = checked_in(MAN_PAGE);
    let args = ["-T".as_ref(), "lint".as_ref(), "-W".as_ref(), "warning".as_ref(), page.as_os_str()];
    let complaints = complaints("mandoc", &args);
    assert_eq!(complaints, None);
}

#[test]
fn man_page_has_every_option_with_its_variable() {
    let page = man_page_as_read();
    let described = |spelling: &String| {
        let is_it = |word: &str| word.trim_end_matches(',') == spelling;
        page.lines().any(|line| line.trim_start().starts_with('-') && line.split_whitespace().any(is_it))
    };
    let synopsis = page.split_once("\nDESCRIPTION\n").expect("the section").0;
    let subcommands = page.split_once("\nSUBCOMMANDS\n").expect("the section").1;
    let subcommands = subcommands.split_whitespace().collect::<Vec<_>>().join(" ");
    for subcommand in Subcommand::ALL {
        for text in [synopsis, &page[synopsis.len()..]] {
            assert!(text.contains(subcommand.usage()), "{subcommand:?} is missing");
        }
        let command = subcommand.command();
        for arg in shown_options(&command) {
            for spelling in spellings(arg) {
                assert!(described(&spelling), "{spelling} of {subcommand:?} is missing");
            }
            if arg.get_action().takes_values() {
                let name = spellings(arg).pop().expect("an option has a name");
                let value = arg.get_value_names().expect("a value has a name").join(" ");
                assert!(subcommands.contains(&format!("{name} {value}")), "{name} of {subcommand:?} lacks {value}");
            }
        }
    }
    for arg in cli::command().get_arguments() {
        for spelling in spellings(arg) {
            assert!(described(&spelling), "{spelling} is missing");
        }
        if let Some(variable) = arg.get_env().and_then(OsStr::to_str) {
            assert!(page.lines().any(|line| line.trim() == variable), "{variable} is missing");
        }
        if matches!(arg.get_action(), ArgAction::Set) && !arg.is_positional() {
            assert!(arg.get_value_names().is_some(), "{arg:?} needs a name for its value");
        }
    }
}

#[test]
fn man_page_and_readme_have_every_key_of_a_configuration_file() {
    let page = man_page_as_read();
    let section = |text: &str, begin: &str, end: &str| {
        let rest = text.split_once(begin).expect("the section").1;
        rest.split_once(end).expect("the next section").0.to_owned()
    };
    let manual = section(&page, "\nCONFIGURATION FILES\n", "\nFILES\n");
    let readme = section(include_str!("../../../README.md"), "\n## Configuration file\n", "\n## ");
    for key in cli::keys() {
        let is_key = |word: &str| word.trim_end_matches([',', '.']) == key;
        assert!(manual.split_whitespace().any(is_key), "{key} is missing in the man page");
        assert!(readme.contains(&format!("`{key}`")), "{key} is missing in the README");
    }
    for text in [&page, include_str!("../../../README.md"), &cli::command().render_long_help().to_string()] {
        assert!(text.contains(cli::SYSTEMS) && text.contains("~/.config/zklock.toml"));
    }
}

#[test]
fn man_page_has_every_exit_status() {
    let page = man_page_as_read();
    let begin = page.find("\nEXIT STATUS\n").expect("the section");
    let end = page.find("\nENVIRONMENT\n").expect("the next section");
    for (status, _) in EXIT_STATUS {
        let begins = |line: &str| line.trim_start().starts_with(status);
        assert!(page[begin..end].lines().any(begins), "{status} is missing");
    }
}

#[test]
fn long_help_and_man_page_have_the_same_examples() {
    for example in [
        "zklock -z zk1,zk2,zk3 /jobs/backup -- ./backup.sh --full",
        "/usr/bin/zklock -q --once-per 50m /jobs/report -- /usr/local/bin/report",
    ] {
        assert!(cli::command().render_long_help().to_string().contains(example));
        assert!(man_page_as_read().contains(example));
    }
}
