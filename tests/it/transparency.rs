//! The command finds everything as its caller had it: each case runs once without zklock and once below it.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::Signal;

use crate::harness::running::Output;
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::zklock::{Zklock, child};

/// Runs `command` in the same `surroundings` by itself and below zklock, and panics unless both end the same way with
/// the same output. Gives the output without zklock.
#[track_caller]
fn assert_same<'a, C>(command: C, surroundings: impl Fn(Zklock) -> Zklock) -> Output
where
    C: IntoIterator<Item = &'a str>,
{
    let scratch = Scratch::new();
    let words: Vec<&str> = command.into_iter().collect();
    let alone = Zklock::bare().program(words[0]).args(&words[1..]).directory(scratch.file(""));
    let alone = surroundings(alone).run();
    let below = surroundings(scratch.zklock().arg(LOCK).arg("--").args(&words)).run();
    assert_eq!(below.status, alone.status, "{alone}{below}");
    assert!(below.stdout == alone.stdout, "{alone}{below}");
    assert_eq!(below.stderr(), alone.stderr(), "{alone}{below}");
    alone
}

/// As [`assert_same`], with `shell` having been executed just before.
#[track_caller]
fn assert_same_after(shell: &str, command: &[&str]) -> Output {
    let script = format!(r#"{shell}; exec "$0" "$@""#);
    assert_same(command.iter().copied(), |zklock| zklock.run_by(["sh", "-c", &script]))
}

/// The process states that are inherited, as proc_pid_status(5) shows them. It is grep's own status that it reads.
const STATES: [&str; 4] =
    ["grep", "-E", "^(Sig(Blk|Ign|Cgt)|Umask|Groups|[UG]id|Cap|NoNewPrivs|Seccomp|Cpus)", "/proc/self/status"];

#[test]
fn signal_mask_and_ignored_signals_are_the_callers() {
    let sets: [&[Signal]; 5] = [
        &[],
        &[Signal::SIGPIPE],
        &[Signal::SIGHUP, Signal::SIGINT, Signal::SIGQUIT],
        &[Signal::SIGCHLD],
        &[Signal::SIGTTOU, Signal::SIGTSTP, Signal::SIGUSR1, Signal::SIGPIPE],
    ];
    for set in sets {
        assert_same(STATES, |zklock| zklock.ignoring(set.iter().copied()));
    }
    for option in ["--block-signal=USR1", "--block-signal=TERM", "--block-signal=CHLD", "--block-signal"] {
        let output = assert_same(STATES, |zklock| zklock.run_by(["env", option]));
        assert!(!output.stdout().contains("SigBlk:\t0000000000000000"), "{output}");
    }
}

/// A program that Rust did not write gets SIGPIPE, and ends, when nobody reads what it writes.
#[test]
fn a_broken_pipe_ends_the_command_as_it_would_without_zklock() {
    let script = r#""$0" "$@" | head -n 1; echo "${PIPESTATUS[0]}""#;
    let output = assert_same(["yes"], |zklock| zklock.run_by(["bash", "-c", script]));
    assert_eq!(output.stdout(), "y\n141\n");
}

#[test]
fn descriptors_of_the_caller_arrive_and_none_of_zklocks() {
    let child = child().to_str().expect("a path in UTF-8");
    let output = assert_same_after("exec 7</etc/passwd", &["sh", "-c", r#"cd /proc/$$/fd && echo *"#]);
    assert!(output.stdout().contains('7'), "{output}");
    let listed = Scratch::new().zklock().arg(LOCK).child(["--state"]).run().expect_code(0).stdout();
    assert!(listed.contains("\ndescriptors 0,1,2\n"), "{listed}");
    assert_same_after("exec 7</etc/passwd", &["sh", "-c", "exec cat <&7"]);
    assert_same_after("exec 7</dev/null 0<&7", &[child, "--echo"]);
}

#[test]
fn a_closed_stdin_neither_hangs_nor_shows_something_of_zklocks() {
    let script = "readlink /proc/$$/fd/0 || echo closed";
    let below = Scratch::new()
        .zklock()
        .arg(LOCK)
        .args(["--", "sh", "-c", script])
        .run_by(["sh", "-c", r#"exec "$0" "$@" <&-"#])
        .run();
    let stdout = below.expect_code(0).stdout();
    // What std puts in the place of a closed descriptor, so that no file can ever be taken for stdin.
    assert!(["closed\n", "/dev/null\n"].contains(&stdout.as_str()), "{stdout}");
}

#[test]
fn stdin_is_the_callers_byte_for_byte() {
    let bytes: Vec<u8> = (0..=u8::MAX).cycle().take(300_000).collect();
    let output = assert_same(["cat"], |zklock| zklock.stdin(bytes.clone()));
    assert!(output.stdout == bytes);
    let scratch = Scratch::new();
    let mut job = scratch.zklock().arg(LOCK).child(["--until-stdin-closes"]).open_stdin().spawn();
    job.wait_stdout("ready");
    job.write_stdin(b"more");
    job.close_stdin();
    job.wait().expect_code(0);
}

#[test]
fn zklock_does_not_read_what_the_next_command_is_to_read() {
    let script = r#""$0" "$@"; cat"#;
    assert_same(["head", "-c", "3"], |zklock| zklock.stdin("abcdef").run_by(["sh", "-c", script]));
}

#[test]
fn directory_umask_limits_and_priority_are_the_callers() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let output = assert_same(["pwd", "-P"], |zklock| zklock.directory(directory.path()));
    assert_eq!(output.stdout().trim_end(), fs::canonicalize(directory.path()).unwrap().to_str().unwrap());
    assert_same_after("umask 027", &STATES);
    assert_same_after("ulimit -n 256; ulimit -c 0; ulimit -s 4096", &["sh", "-c", "ulimit -a; ulimit -Ha"]);
    assert_eq!(assert_same_after("renice -n 3 $$ >/dev/null", &["nice"]).stdout(), "3\n");
    let files = ["oom_score_adj", "coredump_filter", "timerslack_ns", "personality", "cgroup", "ns/pid", "limits"];
    for file in files {
        assert_same_after(":", &["sh", "-c", &format!("cat /proc/self/{file} 2>&1 || readlink /proc/self/{file}")]);
    }
}

#[test]
fn the_environment_is_the_callers_and_zklocks_own_variables() {
    let odd = |bytes: &[u8]| OsString::from_vec(bytes.to_vec());
    let sorted = r"env -0 | LC_ALL=C sort -z | grep -zav ^ZKLOCK_";
    let output = assert_same(["bash", "-c", sorted], |zklock| {
        zklock
            .env("EMPTY", "")
            .env("LINES_OF_TEXT", "one\ntwo")
            .env(odd(b"NAME_\xff"), odd(b"\x80 \xfe"))
            .env("PATH", "/usr/bin:/bin")
    });
    assert!(output.stdout.windows(11).any(|bytes| bytes == b"NAME_\xff=\x80 \xfe\0"), "{output}");
}

#[test]
fn arguments_and_argv0_arrive_as_they_were_given() {
    for command in
        [["cat", "/proc/self/cmdline"], ["/bin/cat", "/proc/self/cmdline"], ["../bin/cat", "/proc/self/cmdline"]]
    {
        assert_same(command, |zklock| zklock.directory("/usr"));
    }
    assert_same(["printf", "%s|", "", " ", "a b", "--timeout", "3", "$HOME", "*", "--", "-n", "\n"], |zklock| zklock);
    let odd = OsString::from_vec(b"\xff\xfe".to_vec());
    let output = Scratch::new().zklock().arg(LOCK).args(["--", "printf", "%s"]).arg(odd).run().expect_code(0);
    assert_eq!(output.stdout, b"\xff\xfe");
}

/// execvp(3) gives a file that the kernel cannot execute to sh.
#[test]
fn a_script_without_an_interpreter_line_is_run_by_the_shell() {
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
