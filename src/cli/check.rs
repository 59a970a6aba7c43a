//! `zklock check`: whether the servers are fit for what zklock promises.

use std::ffi::OsString;

use clap::{CommandFactory as _, Parser, ValueHint};

use super::groups::{Asked, Connecting, Messages};

/// The command line in short.
pub(super) const USAGE: &str = "zklock check [OPTIONS] [LOCK]";

const AFTER_LONG_HELP: &str = "\
Every address of every server is asked: what it is, which session timeouts it grants, how fast it
answers. Then come what is to be mended, and what a command lives through on these servers. Nothing
is created; with LOCK, the servers are asked whether it would be permitted. All sessions are closed.

Examples:
  Before the first lock, and after a change of the servers:
    zklock check -z zk1,zk2,zk3 /jobs/backup

  For monitoring:
    zklock check -q -z zk1,zk2,zk3 || alert

Exit status:
    0  all is well
    1  something is to be mended
   64  the arguments make no sense
   69  no ZooKeeper server answered in time
   70  internal error
   77  an ACL forbids what LOCK needs, or the servers want another certificate
   78  the chroot does not exist";

/// The command line as it was written.
#[derive(Clone, Debug, Parser)]
#[command(
    name = "zklock check",
    about = "Say whether the servers are fit for what zklock promises",
    override_usage = USAGE,
    after_long_help = AFTER_LONG_HELP,
    max_term_width = 100,
    args_override_self = true,
)]
pub struct Cli {
    /// Absolute path of a lock's node: may it be read, and children created below it?
    #[arg(value_name = "LOCK", value_hint = ValueHint::Other)]
    pub lock: Option<OsString>,

    /// Print JSON, as docs/check.schema.json describes it
    #[arg(long, help_heading = "Output")]
    pub json: bool,

    /// How to reach the servers.
    #[command(flatten)]
    pub connecting: Connecting,

    /// Which session to ask for.
    #[command(flatten)]
    pub asked: Asked,

    /// How much to say.
    #[command(flatten)]
    pub messages: Messages,
}

/// The definition that parsing, help, man page and completions share.
pub fn command() -> clap::Command {
    Cli::command()
        .mut_arg("quiet", |quiet| quiet.help("Print nothing; the exit status tells"))
        .mut_arg("connect_timeout", |limit| limit.help("How long each server has to answer everything"))
}
