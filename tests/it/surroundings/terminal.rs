//! At a terminal: Ctrl-C, reading, hanging up, and programs that take the terminal for themselves.

use nix::sys::signal::Signal;
use unicode_width::UnicodeWidthStr as _;

use crate::harness::process;
use crate::harness::running::finish;
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::terminal::{CTRL_C, Terminal};
use crate::harness::zklock::{Zklock, child};

#[test]
fn ctrl_c_reaches_the_command_once() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    let settings = terminal.settings();
    let mut job = terminal.spawn(scratch.zklock().arg(LOCK).child(["--exit-on", "TERM"]));
    terminal.wait_count("ready", 1);
    let group = |pid| process::look(pid).map(|process| process.group);
    assert_eq!(group(job.command()), group(job.pid()));
    for count in 1..=5 {
        terminal.press(CTRL_C);
        terminal.wait_count("signal INT", count);
    }
    job.signal(Signal::SIGTERM);
    job.wait().expect_code(0);
    terminal.wait_count("signal TERM", 1);
    assert_eq!(terminal.lines().len(), 7, "{:#?}", terminal.lines());
    assert_eq!(terminal.settings(), settings);
}

/// As a shell with job control does, and setsid(1).
#[test]
fn signals_reach_a_command_in_another_group() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    let command = scratch.zklock().arg(LOCK).args(["--", "setsid"]).arg(child()).args(["--exit-on", "TERM"]);
    let mut job = terminal.spawn(command);
    terminal.wait_count("ready", 1);
    for signal in [Signal::SIGUSR1, Signal::SIGCONT] {
        job.signal(signal);
        terminal.wait_count(&format!("signal {}", &signal.as_str()[3..]), 1);
    }
    job.signal(Signal::SIGTERM);
    job.wait().expect_code(0);
    terminal.wait_count("signal TERM", 1);
}

#[test]
fn command_reads_also_in_a_pipeline() {
    let scratch = Scratch::new();
    for script in [r#"exec "$@""#, r#""$@" | cat"#, r#"cat /dev/null | "$@" </dev/tty"#] {
        let terminal = Terminal::new(80);
        let reading = scratch.zklock().arg(LOCK).args(["--", "sh", "-c", r#"echo ready; read line; echo "got $line""#]);
        let mut job = terminal.spawn_by(script, reading);
        terminal.wait_count("ready", 1);
        terminal.enter("hello");
        terminal.wait_count("got hello", 1);
        job.wait().expect_code(0);
    }
}

#[test]
fn hangup_reaches_the_command() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    let zklock = scratch.zklock().arg(LOCK).child(["--log", "log", "--exit-on", "HUP"]);
    let mut job = terminal.spawn(zklock);
    terminal.wait_count("ready", 1);
    terminal.close();
    job.wait().expect_code(0);
    assert!(scratch.log().runs()[0].ended);
}

/// A program like those that ask for a password, and one like those that fill the screen: they change the
/// terminal's settings, which only its foreground may do (TTOU of tcsetattr(3)), and put them back.
#[test]
fn command_may_change_settings() {
    let scratch = Scratch::new();
    let password = r#"read -rsp "password: " word </dev/tty; echo; echo "got $word""#;
    let full_screen = r#"before=$(stty -g </dev/tty); stty raw -echo </dev/tty; printf "full screen\r\n"
        key=$(dd bs=1 count=1 </dev/tty 2>/dev/null | od -An -tx1); stty "$before" </dev/tty; echo "key$key""#;
    for (program, prompt, keys, answer) in [
        (password, "password: ", b"secret\n".as_slice(), "got secret"),
        (full_screen, "full screen", &[CTRL_C], "key 03"),
    ] {
        let terminal = Terminal::new(80);
        let before = terminal.settings();
        let mut job = terminal
            .spawn_by(r#""$@"; echo "ended $?""#, scratch.zklock().arg(LOCK).args(["--", "bash", "-c", program]));
        terminal.wait_count(prompt, 1);
        keys.iter().for_each(|&key| terminal.press(key));
        terminal.wait_count(answer, 1);
        terminal.wait_count("ended 0", 1);
        job.wait().expect_code(0);
        assert_eq!(terminal.settings(), before);
    }
}

/// A program that fills the screen, in the middle of which the command has to be stopped.
#[test]
fn settings_after_a_killed_command() {
    const RAW: &str = r#"stty raw -echo </dev/tty; printf "full screen\r\n"; trap "" TERM; exec sleep 60"#;
    let job_control = format!("set -m; sh -c '{RAW}'");
    for (command, option) in [(RAW, None), (&job_control, None), (RAW, Some("-v"))] {
        let scratch = Scratch::new();
        let job = scratch.zklock().arg(LOCK).args(option).args(["--", "bash", "-c", command]);
        expect_settings_back(&scratch, job);
    }
}

/// The command of `zklock` says `full screen` when it has changed the settings. It loses the lock.
#[track_caller]
fn expect_settings_back(scratch: &Scratch, zklock: Zklock) {
    let terminal = Terminal::new(80);
    let before = terminal.settings();
    let mut job = terminal.spawn_by(r#""$@"; echo "ended $?""#, zklock);
    terminal.wait_count("full screen", 1);
    assert_ne!(terminal.settings(), before);
    scratch.delete_holder();
    terminal.wait_count("ended 76", 1);
    job.wait().expect_code(0);
    assert_eq!(terminal.settings(), before);
}

/// A pager has set them, and puts them back itself.
#[test]
fn settings_of_a_pager_are_left_alone() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    // It reads on until zklock has gone.
    let pager = r#""$@" | bash -c 'read -r line; stty -icanon </dev/tty; cat; stty -a </dev/tty | grep -oe -icanon'"#;
    let command = scratch.zklock().arg(LOCK).args(["--max-run", "2s", "--kill-after", "0"]).child(["--exit-on", "INT"]);
    let mut job = terminal.spawn_by(pager, command);
    terminal.wait_count("the time of --max-run, 2s, is over", 1);
    terminal.wait("the pager's settings", |lines| lines.iter().any(|line| line == "-icanon"));
    job.wait();
}

/// `zklock … | less`: the pager reads its keys from the terminal of the command.
#[test]
fn pager_reads_keys() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    let before = terminal.settings();
    let pager = r#""$@" | bash -c 'read -r line; echo "page: $line"; read -rsn1 key </dev/tty; echo "key: $key"'"#;
    let mut job = terminal.spawn_by(pager, scratch.zklock().arg(LOCK).child(["--exit-on", "INT"]));
    terminal.wait_count("page: ready", 1);
    assert_eq!(scratch.contenders().len(), 1);
    terminal.press(b'q');
    terminal.wait_count("key: q", 1);
    // The pager has gone; Ctrl-C is for the command, which is still there.
    terminal.press(CTRL_C);
    job.wait();
    assert_eq!(terminal.settings(), before);
}

/// A line that wraps could not be erased.
#[test]
fn a_waiting_line_of_wide_characters_has_room() {
    const PATH: &str = "/ジョブ/夜間バックアップ/データベース/本番環境";
    let scratch = Scratch::new();
    let mut holder = scratch.zklock().arg(PATH).child(["--exit-on", "TERM"]).spawn();
    holder.wait_stdout("ready");
    let terminal = Terminal::new(60);
    let mut waiter = terminal.spawn(scratch.zklock().args([PATH, "true"]));
    let lines =
        terminal.wait("the waiting line", |lines| lines.iter().any(|line| line.contains("waiting for /ジョブ")));
    assert!((58..60).contains(&lines[0].width()), "{lines:?}");
    finish(&mut holder);
    waiter.wait().expect_code(0);
}

#[test]
fn nothing_is_rewritten_on_a_dumb_one() {
    for term in ["dumb", ""] {
        let scratch = Scratch::new();
        let holder = scratch.occupy("");
        let terminal = Terminal::new(80);
        let watch = terminal.spawn(scratch.zklock().args(["status", "--watch", LOCK]).env("TERM", term));
        terminal.wait_count("/lock: 1 holds", 1);
        let mut waiter = terminal.spawn(scratch.zklock().args([LOCK, "true"]).env("TERM", term));
        terminal.wait_count("waiting for /lock", 1);
        terminal.wait_count("1 holds, 1 waits", 1);
        scratch.delete(&holder);
        waiter.wait().expect_code(0);
        terminal.wait_count("/lock: free", 1);
        watch.end();
        terminal.expect_no_escapes();
    }
}
