//! Signals for zklock reach the command, each once.

use std::fs;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;

use crate::harness::moment::Moment;
use crate::harness::process;
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::terminal::{CTRL_C, Terminal};
use crate::harness::zklock::{Zklock, child};

/// A real-time signal, for which nix has no name.
const REAL_TIME: i32 = 37;

/// Sends a signal by its number.
fn send_number(pid: Pid, number: i32) {
    let killed = Zklock::bare().program("sh").args(["-c", &format!("kill -{number} {pid}")]).run();
    killed.expect_code(0);
}

#[test]
fn each_reaches_the_command_once() {
    let scratch = Scratch::new();
    let mut job = scratch.zklock().arg(LOCK).child(["--exit-on", "USR2"]).spawn();
    let mut lines = vec![job.wait_stdout("ready")];
    for name in ["HUP", "INT", "QUIT", "TERM", "USR1", "WINCH", "CONT", "TSTP", "ALRM", "URG"] {
        job.signal(format!("SIG{name}").parse().expect("a signal"));
        lines.push(job.wait_stdout(&format!("signal {name}")));
    }
    send_number(job.pid(), REAL_TIME);
    lines.push(job.wait_stdout(&format!("signal {REAL_TIME}")));
    assert_eq!(scratch.contenders().len(), 1);
    job.signal(Signal::SIGUSR2);
    lines.push("signal USR2".to_owned());
    let output = job.wait().expect_code(0);
    assert_eq!(output.stdout().lines().collect::<Vec<_>>(), lines, "{output}");
}

#[test]
fn several_at_once_all_reach_the_command() {
    let scratch = Scratch::new();
    let mut job = scratch.zklock().arg(LOCK).child(["--exit-on", "TERM"]).spawn();
    job.wait_stdout("ready");
    job.signal_all_at_once(&[Signal::SIGINT, Signal::SIGUSR1, Signal::SIGUSR2]);
    job.wait_stdout_all(&["signal INT", "signal USR1", "signal USR2", "signal CONT"]);
    job.signal(Signal::SIGTERM);
    assert_eq!(job.wait().expect_code(0).stdout().lines().count(), 6, "{job}");
}

#[test]
fn reach_the_commands_process_group() {
    let script = r#"trap : TERM; "$0" --name one --exit-on TERM & "$0" --name two --exit-on TERM & wait; wait"#;
    let scratch = Scratch::new();
    let mut job = scratch.zklock().arg(LOCK).args(["--", "sh", "-c", script]).arg(child()).spawn();
    job.wait_stdout_all(&["one ready", "two ready"]);
    let group = process::look(job.command()).expect("the shell waits").group;
    assert_eq!(group, job.command());
    job.signal(Signal::SIGTERM);
    job.wait_stdout_all(&["one signal TERM", "two signal TERM"]);
    job.wait().expect_code(0);
}

/// A job runner signals the process group that it has started. The command is in one of its own then.
#[test]
fn for_zklocks_group_reach_the_command_once() {
    let scratch = Scratch::new();
    let mut job = scratch.zklock().arg(LOCK).child(["--exit-on", "USR1"]).spawn();
    job.wait_stdout("ready");
    for name in ["INT", "TERM"] {
        killpg(job.pid(), format!("SIG{name}").parse::<Signal>().unwrap()).expect("a group can be signalled");
        job.wait_stdout(&format!("signal {name}"));
    }
    job.signal(Signal::SIGUSR1);
    let output = job.wait().expect_code(0);
    assert_eq!(output.stdout(), "ready\nsignal INT\nsignal TERM\nsignal USR1\n");
}

#[test]
fn command_that_takes_its_time_is_not_killed() {
    let scratch = Scratch::new();
    let named = |name: &str| {
        let zklock = scratch.zklock().args([LOCK, "--kill-after", "50ms"]);
        zklock.child(["--log", "log", "--name", name])
    };
    let mut first = named("first").args(["--beat", "--exit-on", "USR1"]).spawn();
    first.wait_stdout("ready");
    let mut second = named("second").spawn();
    scratch.wait_queue(2);
    first.signal(Signal::SIGTERM);
    first.wait_stdout("signal TERM");
    // Ten times the grace of a stop by zklock itself.
    scratch.wait_alive_at("first", Moment::now().after(Duration::from_millis(500)));
    assert_eq!(scratch.contenders().len(), 2);
    first.signal(Signal::SIGUSR1);
    first.wait().expect_code(0);
    second.wait().expect_code(0);
    scratch.expect_tidy(&["first", "second"]);
}

#[test]
fn ignored_at_the_start_stay_ignored() {
    let ignored = [Signal::SIGHUP, Signal::SIGINT, Signal::SIGUSR1];
    let scratch = Scratch::new();
    let holder = scratch.occupy("");
    let mut job = scratch.zklock().arg(LOCK).child(["--state", "--exit-on", "TERM"]).ignoring(ignored).spawn();
    scratch.wait_queue(2);
    ignored.iter().for_each(|&signal| job.signal(signal));
    scratch.delete(&holder);
    job.wait_stdout("ignored HUP,INT,USR1");
    job.wait_stdout("ready");
    ignored.iter().for_each(|&signal| job.signal(signal));
    job.signal(Signal::SIGTERM);
    let output = job.wait().expect_code(0);
    assert!(output.stdout().ends_with("ready\nsignal TERM\n"), "{output}");
}

/// A library with a thread in zklock, which is there before `main`.
const AGENT: &str = r#"
    #define _GNU_SOURCE
    #include <errno.h>
    #include <pthread.h>
    #include <string.h>
    #include <unistd.h>
    static void *idle(void *nothing) { for (;;) pause(); }
    __attribute__((constructor)) static void start(void) {
        pthread_t thread;
        if (!strcmp(program_invocation_short_name, "zklock")) pthread_create(&thread, NULL, idle, NULL);
    }"#;

#[test]
fn beside_a_thread_of_a_preloaded_library() {
    let scratch = Scratch::new();
    let (source, library) = (scratch.file("agent.c"), scratch.file("agent.so"));
    fs::write(&source, AGENT).expect("a file can be written");
    let compiler = Command::new("cc").args(["-shared", "-fPIC", "-pthread", "-o"]).args([&library, &source]).status();
    assert!(compiler.expect("a C compiler").success());
    let terminal = Terminal::new(80);
    let job = scratch.zklock().arg(LOCK).env("LD_PRELOAD", library).child(["--exit-on", "TERM"]);
    let mut job = terminal.spawn(job);
    terminal.wait_count("ready", 1);
    let threads = fs::read_dir(format!("/proc/{}/task", job.pid())).expect("it lives").count();
    assert_eq!(threads, 2);
    for count in 1..=3 {
        // From the kernel, which sends it to the command as well, and from a process.
        terminal.press(CTRL_C);
        terminal.wait_count("signal INT", count);
        send_number(job.pid(), REAL_TIME);
        terminal.wait_count(&format!("signal {REAL_TIME}"), count);
    }
    job.signal(Signal::SIGTERM);
    job.wait().expect_code(0);
    terminal.wait_count("signal TERM", 1);
    assert_eq!(terminal.lines().len(), 8, "{:#?}", terminal.lines());
}

#[test]
fn caller_that_ignores_sigchld() {
    let scratch = Scratch::new();
    let output =
        scratch.zklock().arg(LOCK).child(["--state", "--exit", "3"]).ignoring([Signal::SIGCHLD]).run().expect_code(3);
    assert!(output.stdout().starts_with("ignored CHLD"), "{output}");
}
