//! How the command's line is understood: options around the lock, `-c`, arguments, scripts.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;

use crate::harness::compare::assert_same;
use crate::harness::running::{only_line, silent};
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::zklock::Zklock;

#[test]
fn shell_command() {
    let scratch = Scratch::new();
    let script = "echo $ZKLOCK_PATH | tr a-z A-Z; exit 5";
    let zklock = scratch.zklock().env("SHELL", "/bin/sh").args([LOCK, "-c", script]);
    assert_eq!(silent(zklock.run().expect_code(5)).stdout(), "/LOCK\n");
    let echo = scratch.zklock().env("SHELL", "/bin/echo").args(["-c", "a | b", LOCK]);
    assert_eq!(silent(echo.run().expect_code(0)).stdout(), "-c a | b\n");
}

#[test]
fn hint_at_c_for_a_line_of_shell() {
    for (program, hint) in [("echo hi; ls", true), ("A=1", true), ("no-such-command", false)] {
        let line = only_line(&Zklock::bare().args(["/lock", program]).run().expect_code(127));
        assert_eq!(line.ends_with("; write -c before a line for the shell"), hint, "{line}");
    }
}

#[test]
fn help_of_a_subcommand() {
    let stdout = |args: &[&str]| silent(Zklock::bare().args(args).run().expect_code(0)).stdout();
    assert_eq!(stdout(&["help"]), stdout(&["--help"]));
    assert_eq!(stdout(&["help", "status"]), stdout(&["status", "--help"]));
    for args in [&["nonsense"][..], &["/lock"], &["status", "list"]] {
        let line = only_line(&Zklock::bare().arg("help").args(args).run().expect_code(64));
        assert_eq!(line, "help takes the name of one subcommand at most: hold, status, list, break, check, fence");
    }
}

/// Byte for byte, with and without `--` before the command.
#[test]
fn arguments_and_argv0() {
    for command in
        [["cat", "/proc/self/cmdline"], ["/bin/cat", "/proc/self/cmdline"], ["../bin/cat", "/proc/self/cmdline"]]
    {
        assert_same(command, |zklock| zklock.directory("/usr"));
    }
    let args: [&[u8]; 8] = [b"caf\xe9", b"", b"a b\n", b"$HOME", b"*", b"--timeout", b"--", "ü漢🔒".as_bytes()];
    for before in [&[][..], &["--"]] {
        let scratch = Scratch::new();
        let zklock = scratch.zklock().arg(LOCK).args(before).args(["printf", "%s\\0"]);
        let output = silent(zklock.args(args.map(OsStr::from_bytes)).run().expect_code(0));
        assert_eq!(output.stdout, args.map(|arg| [arg, b"\0"].concat()).concat());
    }
}

/// execvp(3) gives a file that the kernel cannot execute to sh.
#[test]
fn script_without_an_interpreter_line() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let script = directory.path().join("script");
    fs::write(&script, "echo \"$1 of $#\"\nexit 3\n").expect("a script can be written");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).expect("a script can be made executable");
    let path = format!("{}:/usr/bin:/bin", directory.path().display());
    for name in ["./script", "script"] {
        let zklock = Scratch::new().zklock().arg(LOCK).directory(directory.path()).env("PATH", &path);
        let output = zklock.args(["--", name, "a b", "c"]).run().expect_code(3);
        assert_eq!((output.stdout().as_str(), output.stderr().as_str()), ("a b of 2\n", ""));
    }
}
