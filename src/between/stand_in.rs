//! The command of `zklock hold`: this program, by a hidden subcommand. It prints the variables, and lives until a signal ends
//! it.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd as _;

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::prctl;
use nix::unistd::{dup2_stderr, dup2_stdin, dup2_stdout, write};

use crate::cli::environment::{self, Variable};
use crate::rules::outcome::Outcome;
use crate::rules::signal::Signal;
use crate::system::fork::close_all_but;
use crate::system::signals::{self, Signals};
use crate::system::standard::{null, standard};
use crate::system::terminal::say;

pub const NAME: &str = "hold-stand-in";

/// How much is written at once. A pipe that is ready has room for as much (pipe(7)).
const PIECE: usize = 4096;

/// Lives as the stand-in for a command, if this process was started as one. `args`: the arguments of this process, which the
/// supervisor's `Caller::command` makes.
pub fn stand_in(args: &[OsString]) -> Option<Outcome> {
    let words: Vec<_> = args.iter().skip(1).map(|word| word.to_string_lossy()).collect();
    let (name, words) = words.split_first()?;
    if name != NAME {
        return None;
    }
    // The name that ps(1) shows.
    let _ = prctl::set_name(c"lock-hold");
    let ending = words.iter().filter_map(|word| Signal::new(word.parse().ok()?)).collect();
    Some(hold(ending).map_or_else(
        |error| {
            say(&format!("hold: {error}"));
            Outcome::Internal
        },
        |()| Outcome::Exited(0),
    ))
}

fn hold(ending: Vec<Signal>) -> io::Result<()> {
    close_all_but(&[libc::STDIN_FILENO, libc::STDOUT_FILENO, libc::STDERR_FILENO]);
    dup2_stdin(null()?)?;
    // zklock may have been started with SIGTERM ignored, but this process has to end by it.
    signals::unignore(ending.clone());
    let signals = Signals::of(ending)?;
    let mut text = vec![];
    // If zklock does not know its caller, it lends nothing, and the last of these variables is not set.
    for name in environment::OF_A_RUN.into_iter().chain([environment::LENDER]) {
        Variable::inherited(name).into_iter().for_each(|variable| push_line(&mut text, name, variable.value()));
    }
    if print(&text, &signals)? {
        // The files of the caller are given back. Standard output comes last, because its reader waits for its end.
        dup2_stderr(standard(libc::STDIN_FILENO))?;
        dup2_stdout(standard(libc::STDIN_FILENO))?;
        while !signals.clear() {
            await_one(&mut [PollFd::new(signals.as_fd(), PollFlags::POLLIN)])?;
        }
    }
    Ok(())
}

/// Prints the lines. Returns false if a signal came before all were read.
fn print(text: &[u8], signals: &Signals) -> io::Result<bool> {
    let stdout = standard(libc::STDOUT_FILENO);
    let mut rest = text;
    while !rest.is_empty() {
        let ended = PollFd::new(signals.as_fd(), PollFlags::POLLIN);
        await_one(&mut [ended, PollFd::new(stdout, PollFlags::POLLOUT)])?;
        if signals.clear() {
            return Ok(false);
        }
        match write(stdout, &rest[..rest.len().min(PIECE)]) {
            Ok(count) => rest = &rest[count..],
            Err(Errno::EINTR | Errno::EAGAIN) => {}
            Err(error) => return Err(io::Error::other(format!("cannot print the variables: {}", error.desc()))),
        }
    }
    Ok(true)
}

fn await_one(fds: &mut [PollFd<'_>]) -> nix::Result<()> {
    match poll(fds, PollTimeout::NONE) {
        Err(Errno::EINTR) => Ok(()),
        awaited => awaited.map(drop),
    }
}

/// A line that a shell reads as an assignment, and systemd.exec(5) (EnvironmentFile) as well.
fn push_line(text: &mut Vec<u8>, name: &str, value: &str) {
    text.extend_from_slice(name.as_bytes());
    text.push(b'=');
    let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/_.:-".contains(byte);
    if !value.is_empty() && value.as_bytes().iter().all(is_plain) {
        text.extend_from_slice(value.as_bytes());
    } else {
        text.push(b'\'');
        for byte in value.as_bytes() {
            match byte {
                b'\'' => text.extend_from_slice(br"'\''"),
                byte => text.push(*byte),
            }
        }
        text.push(b'\'');
    }
    text.push(b'\n');
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::OsStringExt as _;

    use super::*;

    #[test]
    fn a_shell_reads_the_lines_as_they_were_meant() {
        let values = ["/jobs/backup", "", "a b", "it's $HOME `x` \\ \"y\"", "two\nlines", "ü~*"];
        for value in values {
            let mut text = vec![];
            push_line(&mut text, "V", value);
            let script = [text.as_slice(), b"printf %s \"$V\""].concat();
            let output = std::process::Command::new("sh").arg("-c").arg(OsString::from_vec(script)).output().unwrap();
            assert_eq!(output.stdout, value.as_bytes());
        }
        let mut text = vec![];
        push_line(&mut text, "ZKLOCK_PATH", "/jobs/backup");
        assert_eq!(text, b"ZKLOCK_PATH=/jobs/backup\n");
    }
}
