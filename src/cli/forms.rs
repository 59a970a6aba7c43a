//! What a command line consists of: operands, options, and what the help says besides; that of the main job.

use std::ffi::OsString;

use clap::{Arg, ArgAction, Command, ValueHint, value_parser};

use super::option::{Opt, Texts};
use super::options::*;
use crate::rules::outcome::EXIT_STATUS;

pub fn command() -> Command {
    JOB.command(Texts::All)
}

#[derive(Debug)]
pub(super) struct Form {
    pub(super) name: &'static str,
    pub(super) about: &'static str,
    pub(super) usage: &'static str,
    /// In `--help`, before the options.
    pub(super) description: &'static str,
    pub(super) after_long_help: &'static str,
    pub(super) operands: fn() -> Vec<Arg>,
    pub(super) options: &'static [&'static [Opt]],
}

/// What is no option. Shells are told not to complete it by themselves.
pub(super) fn operand(id: &'static str, name: &'static str, help: &'static str) -> Arg {
    Arg::new(id).value_name(name).value_parser(value_parser!(OsString)).value_hint(ValueHint::Other).help(help)
}

pub(super) const LOCK: &str = "Absolute path of the lock's node, such as /jobs/backup";

/// The command that is run, which is everything that follows.
pub(super) fn command_operand() -> Arg {
    let operand = operand("command", "COMMAND", COMMAND_HELP).value_hint(ValueHint::CommandWithArguments);
    operand.num_args(1..).action(ArgAction::Append).trailing_var_arg(true)
}

const COMMAND_HELP: &str = "The command to run, and its arguments";

impl Form {
    pub(super) fn has(&self, long: &str) -> bool {
        self.options.iter().copied().flatten().any(|option| option.long == long)
    }

    pub(super) fn command(&self, texts: Texts) -> Command {
        let options = self.options.iter().copied().flatten();
        let is_main = self.name == JOB.name;
        let command = Command::new(self.name)
            .args((self.operands)())
            // A subcommand takes them as well, and its help is about its own.
            .args(options.map(|option| {
                option
                    .arg(texts)
                    .hide_short_help(!is_main && option.is_of_connection || option.is_rare)
                    .hide_long_help(!is_main && option.is_of_connection)
            }))
            .args_override_self(true)
            .disable_help_flag(true)
            .disable_version_flag(true)
            .arg(
                Arg::new("help")
                    .short('h')
                    .long("help")
                    .action(ArgAction::Help)
                    .help(HELP)
                    .help_heading("Messages")
                    .hide_short_help(is_main),
            );
        let command = if is_main {
            let version = Arg::new("version").short('V').long("version").action(ArgAction::Version);
            command.version(VERSION_TEXT).arg(version.help(VERSION).help_heading("Messages").hide_short_help(true))
        } else {
            command
        };
        if texts == Texts::None {
            return command;
        }
        let command = command.about(self.about).override_usage(self.usage).max_term_width(100);
        let command = command
            .help_template("{about-with-newline}\n{usage-heading} {usage}\n\n{before-help}{all-args}{after-help}\n");
        let (description, statuses) = (self.description, self.after_long_help);
        if is_main {
            let subcommands = "Subcommands, described by zklock help SUBCOMMAND:";
            return command
                .before_help(SUMMARY)
                .before_long_help(format!("{subcommands}\n{SUBCOMMANDS}\n\n{description}"))
                .after_help(format!(
                    "Subcommands (zklock help SUBCOMMAND), and all options (zklock --help):\n{SUBCOMMANDS}"
                ))
                .after_long_help(format!("{statuses}{}\nSee zklock(1) and zklock(7).", exit_statuses()));
        }
        let (summary, connection) = match self.has(ZOOKEEPER.long) {
            true => (
                "--help says more; zklock --help has the connection options, such as -z.",
                "\n\nThe options for the connection are those of zklock --help.",
            ),
            false => ("--help says more.", ""),
        };
        let page = self.name.replace(' ', "-");
        command
            .before_long_help(description)
            .after_help(summary)
            .after_long_help(format!("{statuses}{connection}\n\nSee {page}(1)."))
    }
}

/// In `-h` of the main job, before the options.
const SUMMARY: &str = "\
Examples:
  zklock -z zk1,zk2,zk3 /jobs/backup -- ./backup.sh         wait, then run
  zklock -n /jobs/backup ./backup.sh                        75 if it is busy
  zklock -q --once-per 30m -w 30m /jobs/report ./report.sh  hourly from cron";
/// What each subcommand is for, as its own help says as well.
const SUBCOMMANDS: &str = "  hold    Hold a lock for a script or a service, without a command
  status  Show the holders and the waiters of locks
  list    List the locks that are in use
  break   Ask a holder to stop, and to release the lock
  check   Check that the servers meet zklock's requirements
  fence   Refuse the work of an earlier holder on another host";
const HELP: &str = "Print a summary (-h), or everything (--help)";
const VERSION: &str = "Print the version and its commit";

/// The version, and the commit that it was built from if scripts/package knows that.
const VERSION_TEXT: &str = match option_env!("ZKLOCK_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

fn exit_statuses() -> String {
    let row = |(status, meaning): &(&str, &str)| match status.parse::<u8>() {
        Ok(status) => format!("  {status:>3}  {meaning}\n"),
        Err(_) => format!("  {status}: {meaning}\n"),
    };
    EXIT_STATUS.iter().map(row).collect()
}

pub(super) const JOB: Form = Form {
    name: "zklock",
    about: "Run a command under a ZooKeeper lock; stop the command if the lock is lost",
    usage: "zklock [OPTIONS] LOCK [--] COMMAND [ARG]...
       zklock SUBCOMMAND ...",
    description: "\
Examples:
  Back up from one host at a time; the other hosts wait for their turn:
    zklock -z zk1,zk2,zk3 /jobs/backup -- ./backup.sh --full

  From cron on every host, each hour; one host runs the command:
    /usr/bin/zklock -q --once-per 30m -w 30m /jobs/report -- /usr/local/bin/report

  At most three at a time, from any number of hosts:
    zklock --permits 3 /downloads ./fetch.sh

  Wait five minutes at most, and use a shell:
    zklock -w 5m /deploy -c 'git pull && make install'",
    after_long_help: "\
A DURATION is a number of seconds, such as 30 or 1.5, or has units: 500ms, 90s, 5m, 1h30m, 2d.

Exit status:
",
    operands: || {
        let lock = "Missing parents are created. If --zookeeper has a chroot, the path is relative to it.";
        let command =
            "It is executed directly, without a shell. Everything after COMMAND belongs to it, options included.";
        vec![
            operand("lock", "LOCK", LOCK).required(true).hide_short_help(true).long_help(format!("{LOCK}\n\n{lock}")),
            command_operand().hide_short_help(true).long_help(format!("{COMMAND_HELP}\n\n{command}")),
        ]
    },
    options: &[TAKING, RUNNING, CONNECTING, SESSION, &[QUIET, VERBOSE]],
};
