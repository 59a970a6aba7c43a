//! What the command inherits from the caller: each case runs once without zklock and once below it.

use std::fs;

use nix::sys::signal::Signal;

use crate::harness::compare::{assert_same, assert_same_after};
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::zklock::child;

/// The process states that are inherited, as proc_pid_status(5) shows them. It is grep's own status that it reads.
const STATES: [&str; 4] =
    ["grep", "-E", "^(Sig(Blk|Ign|Cgt)|Umask|Groups|[UG]id|Cap|NoNewPrivs|Seccomp|Cpus)", "/proc/self/status"];

#[test]
fn signal_mask_and_ignored_signals() {
    for set in [&[][..], &[Signal::SIGCHLD], &[Signal::SIGHUP, Signal::SIGTSTP, Signal::SIGUSR1, Signal::SIGPIPE]] {
        assert_same(STATES, |zklock| zklock.ignoring(set.iter().copied()));
    }
    for option in ["--block-signal=USR1", "--block-signal=TERM", "--block-signal=CHLD", "--block-signal"] {
        let output = assert_same(STATES, |zklock| zklock.run_by(["env", option]));
        assert!(!output.stdout().contains("SigBlk:\t0000000000000000"), "{output}");
    }
}

#[test]
fn descriptors() {
    let child = child().to_str().expect("a path in UTF-8");
    let output = assert_same_after("exec 7</etc/passwd", &["sh", "-c", r#"cd /proc/$$/fd && echo *"#]);
    assert!(output.stdout().contains('7'), "{output}");
    let listed = Scratch::new().zklock().arg(LOCK).child(["--state"]).run().expect_code(0).stdout();
    assert!(listed.contains("\ndescriptors 0,1,2\n"), "{listed}");
    assert_same_after("exec 7</etc/passwd", &["sh", "-c", "exec cat <&7"]);
    assert_same_after("exec 7</dev/null 0<&7", &[child, "--echo"]);
}

#[test]
fn closed_stdin() {
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
fn stdin_and_stdout_byte_for_byte() {
    let bytes: Vec<u8> = (0..1 << 20).map(|_| fastrand::u8(..)).collect();
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
fn stdin_is_left_for_the_next_command() {
    let script = r#""$0" "$@"; cat"#;
    assert_same(["head", "-c", "3"], |zklock| zklock.stdin("abcdef").run_by(["sh", "-c", script]));
}

#[test]
fn directory_umask_limits_and_priority() {
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
