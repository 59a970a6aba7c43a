//! A command that has ended and has left a daemon behind.

use nix::unistd::Pid;

use super::poll;
use super::process;
use super::running::Running;
use super::scratch::Scratch;

/// A command that leaves a daemon behind and ends with status 3. The daemon runs until the file `end` is there.
pub(crate) const LEAVES_DAEMON: [&str; 10] =
    ["--exit", "3", "--spawn-daemon", "--", "--name", "daemon", "--beat", "--log", "log", "--until"];

/// Waits until the command `holder` has ended, and zklock knows it.
#[track_caller]
pub(crate) fn wait_until_reaped(scratch: &Scratch) {
    poll::until("the command has ended", || {
        let log = scratch.log();
        let holder = log.runs().iter().find(|run| run.name == "holder" && run.ended)?;
        process::look(Pid::from_raw(holder.pid.cast_signed())).is_none().then_some(())
    });
}

/// A contender whose command has ended and has left a daemon behind.
#[track_caller]
pub(crate) fn left_behind(scratch: &Scratch, options: &[&str], daemon: &[&str]) -> Running {
    let child = [&LEAVES_DAEMON[..], &["end"], daemon].concat();
    let mut run = scratch.lasting(options, &child).spawn();
    run.wait_stdout("daemon ready");
    wait_until_reaped(scratch);
    run
}
