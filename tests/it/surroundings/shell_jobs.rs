//! zklock in the background of a shell, as its coprocess, and by nohup(1), setsid(1) and timeout(1).

use std::time::Duration;

use nix::sys::signal::{Signal, killpg};

use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::terminal::{CTRL_C, Terminal};

/// In a script, `&` has a command ignore INT and QUIT, and read nothing (POSIX, 2.9.3.1).
#[test]
fn background_of_a_script() {
    let scratch = Scratch::new();
    let holder = scratch.occupy("");
    let zklock = scratch.zklock().arg(LOCK).child(["--state", "--echo", "--exit-on", "TERM", "--exit", "6"]);
    let mut job = zklock.run_by(["sh", "-c", r#""$@" & wait $!"#, "sh"]).stdin("not for us").spawn();
    scratch.wait_queue(2);
    let zklock = job.zklock();
    let ignored = [Signal::SIGINT, Signal::SIGQUIT];
    ignored.iter().for_each(|&signal| process::send(zklock, signal));
    scratch.delete(&holder);
    job.wait_stdout("ignored INT,QUIT");
    job.wait_stdout("ready");
    ignored.iter().for_each(|&signal| process::send(zklock, signal));
    process::send(zklock, Signal::SIGTERM);
    let output = job.wait().expect_code(6);
    assert!(output.stdout().ends_with("ready\nsignal TERM\n"), "{output}");
    assert!(!output.stdout().contains("not for us"), "{output}");
}

/// Without job control a background job is in the group of the terminal's foreground, and has to ignore Ctrl-C.
#[test]
fn background_of_a_script_at_a_terminal() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    let zklock = scratch.zklock().arg(LOCK).child(["--exit-on", "TERM"]);
    let mut job = terminal.spawn_by(r#"set +m; trap "echo caught" INT; "$@" & wait $!; wait $!"#, zklock);
    terminal.wait_count("ready", 1);
    terminal.press(CTRL_C);
    terminal.wait_count("caught", 1);
    process::send(job.zklock(), Signal::SIGTERM);
    terminal.wait_count("signal TERM", 1);
    job.wait().expect_code(0);
    assert!(!terminal.lines().iter().any(|line| line.contains("signal INT")), "{:#?}", terminal.lines());
}

/// A background job that wants to read is stopped (TTIN) until it is brought to the foreground.
#[test]
fn background_of_a_shell_stops_to_read() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    let reading = scratch.zklock().arg(LOCK).args(["--", "sh", "-c", r#"read line </dev/tty; echo "got $line""#]);
    let script = r#""$@" & wait $!; echo "stopped $?"; read; fg >/dev/null; echo "ended $?""#;
    let mut job = terminal.spawn_by(script, reading);
    terminal.wait_count(&format!("stopped {}", 128 + Signal::SIGTTIN as i32), 1);
    assert_eq!(scratch.contenders().len(), 1);
    terminal.enter("");
    // The shell gives it the terminal before it continues it.
    poll::until("it goes on", || {
        let stopped = job.processes().iter().any(|process| process.state == 'T');
        (!stopped).then_some(())
    });
    terminal.enter("hello");
    terminal.wait_count("got hello", 1);
    terminal.wait_count("ended 0", 1);
    job.wait().expect_code(0);
}

#[test]
fn nohup_outlives_the_terminal() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    let zklock = scratch.zklock().arg(LOCK).child(scratch.logged("job"));
    let mut job = terminal.spawn_by(r#"nohup "$@" & wait"#, zklock);
    poll::until("the command runs", || scratch.log().runs().first().map(drop));
    let zklock = job.zklock();
    terminal.close();
    job.wait().expect_signal(Signal::SIGHUP);
    // As an interactive shell does for each of its jobs.
    killpg(zklock, Signal::SIGHUP).expect("a group can be signalled");
    scratch.wait_alive_at("job", Moment::now().after(Duration::from_millis(100)));
    assert_eq!(scratch.contenders().len(), 1);
    process::send(zklock, Signal::SIGTERM);
    job.wait_until_nothing_is_left();
    let written = scratch.read("nohup.out");
    assert!(written.ends_with("job ready\njob signal TERM\n"), "{written}");
}
