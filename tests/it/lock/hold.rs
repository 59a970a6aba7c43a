//! `zklock hold`: the lock is held for another process, such as a script, and ends with it.

use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::process::Command;

use nix::sys::signal::Signal;

use crate::harness::poll;
use crate::harness::process;
use crate::harness::running::{Running, finish, only_line};
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::seccomp::filtering;
use crate::harness::terminal::{CTRL_C, Terminal};
use crate::harness::times::SHORT_SESSION;
use crate::harness::zklock::{Zklock, binary, child};

mod lent;

/// What a script begins with to take [`LOCK`].
const TAKE: &str = "ZKLOCK_TOKEN=
coproc ZK { exec \"$Z\" hold $OPTIONS /lock; }
hold=$!
set -a; source /dev/fd/\"${ZK[0]}\"; set +a
[ -n \"$ZKLOCK_TOKEN\" ] || { wait $hold; exit; }
";

/// A script that goes on until it is killed, or until a trap ends it.
const LOOP: &str = "while :; do sleep 0.01; done";

/// `zklock hold` itself.
fn hold(scratch: &Scratch) -> Zklock {
    scratch.zklock().arg("hold").arg(LOCK)
}

/// The same, holding.
#[track_caller]
fn held(hold: Zklock) -> Running {
    let mut hold = hold.spawn();
    hold.wait_stdout("ZKLOCK_HELD=");
    hold
}

/// A script that takes [`LOCK`] in bash, says `taken` and goes on. In it, `$Z` is zklock and `$C` the command of
/// tests/child/main.rs.
fn bash(scratch: &Scratch, then: &str) -> Zklock {
    trapping(scratch, "", then)
}

/// The same, with this trap once it says that it has the lock.
fn trapping(scratch: &Scratch, trap: &str, then: &str) -> Zklock {
    let script = format!("{TAKE}{trap}\necho taken\n{then}");
    let bash = scratch.zklock().program("/bin/bash").args(["-c", &script]);
    bash.env("Z", binary()).env("C", child()).env("OPTIONS", "")
}

/// The same, when it has the lock.
#[track_caller]
fn taken(script: Zklock) -> Running {
    let mut script = script.spawn();
    script.wait_stdout("taken");
    script
}

#[test]
fn variables_for_a_shell() {
    let scratch = Scratch::new();
    let lock = "/it's a \"$lock\"";
    let mut hold = held(scratch.zklock().arg("hold").args([lock, "--shared"]).open_stdin());
    let lines = hold.stdout();
    let script =
        format!("{lines}\nprintf '%s\\n' \"$ZKLOCK_PATH\" \"$ZKLOCK_MODE\" \"$ZKLOCK_NODE\" \"$ZKLOCK_TOKEN\"");
    let output = Zklock::bare().program("/bin/sh").args(["-c", &script]).run().expect_code(0);
    let node = scratch.client().children(lock).remove(0);
    let (_, stat) = scratch.client().get(&format!("{lock}/{node}")).expect("the node is there");
    assert_eq!(output.stdout(), format!("{lock}\nshared\n{lock}/{node}\n{}\n", stat.czxid));
    hold.close_stdin();
    let output = hold.wait().expect_code(0);
    assert_eq!((output.stdout(), output.stderr()), (lines, String::new()));
    assert_eq!(scratch.client().children(lock), Vec::<String>::new());
}

#[test]
fn it_ends_by_signals_and_by_nothing_else() {
    let scratch = Scratch::new();
    for signal in [Signal::SIGTERM, Signal::SIGHUP] {
        // /dev/null has no end.
        let mut hold = held(hold(&scratch));
        // Ctrl-C in a script: its clean-up still needs the lock.
        hold.signal_all_at_once(&[Signal::SIGINT, Signal::SIGQUIT, Signal::SIGUSR1]);
        scratch.wait_queue(1);
        let mut next = scratch.queue("next", 1);
        assert!(!hold.has_ended());
        hold.signal(signal);
        hold.wait().expect_code(0);
        finish(&mut next);
    }
    let mut hold = held(hold(&scratch).ignoring([Signal::SIGHUP]));
    hold.signal_all_at_once(&[Signal::SIGHUP, Signal::SIGTERM]);
    hold.wait().expect_code(0);
}

/// Its other end is closed, or closed for writing.
#[test]
fn a_socket() {
    let scratch = Scratch::new();
    for how in [Shutdown::Write, Shutdown::Both] {
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        let mut holds = held(hold(&scratch).stdin_from(theirs));
        assert!(!holds.has_ended());
        ours.shutdown(how).expect("a socket");
        holds.wait().expect_code(0);
        scratch.wait_queue(0);
    }
}

#[test]
fn what_stands_in_for_a_command_is_killed() {
    let scratch = Scratch::new();
    let mut script = taken(trapping(&scratch, "pid=$ZK_PID; trap 'wait $pid; echo told, $?; exit 3' TERM", LOOP));
    let stand_in = script.processes().into_iter().find(|process| process.name == "lock-hold").expect("it runs");
    process::send(stand_in.pid, Signal::SIGKILL);
    let output = script.wait().expect_code(3);
    assert!(output.stdout().ends_with("told, 76\n"), "{output}");
    assert!(output.stderr().contains("the process that held it died of SIGKILL; stopping the caller"), "{output}");
}

#[test]
fn a_caller_that_goes_while_it_waits() {
    let scratch = Scratch::new();
    let mut holder = scratch.hold();
    let mut waiter = hold(&scratch).open_stdin().spawn();
    scratch.wait_queue(2);
    waiter.close_stdin();
    let output = waiter.wait().expect_code(75);
    assert_eq!(
        only_line(&output),
        format!("gave up waiting for {LOCK}: the process that it was to be held for has gone")
    );
    scratch.wait_queue(1);
    let mut sleep = Zklock::bare().program("/bin/sleep").arg("600").spawn();
    let pid = sleep.pid().to_string();
    let mut waiter = hold(&scratch).args(["--while", &pid, "-E", "9"]).spawn();
    scratch.wait_queue(2);
    sleep.signal(Signal::SIGKILL);
    sleep.wait();
    waiter.wait().expect_code(9);
    // It has ended already.
    hold(&scratch).args(["--while", &pid]).run().expect_code(75);
    finish(&mut holder);
}

#[test]
fn the_lock_ends_with_a_script_however_that_ends() {
    let scratch = Scratch::new();
    for then in ["true", "set -e; false; echo not reached", "exec sleep 0"] {
        let output = bash(&scratch, then).run();
        assert_eq!((output.stdout().as_str(), output.stderr().as_str()), ("taken\n", ""), "{then}");
        scratch.wait_queue(0);
    }
    for signal in [Signal::SIGKILL, Signal::SIGTERM, Signal::SIGSEGV] {
        let mut script = taken(bash(&scratch, LOOP));
        let mut next = scratch.queue("next", 1);
        script.signal(signal);
        finish(&mut next);
        script.wait().expect_signal(signal);
        script.wait_until_nothing_is_left();
    }
    // What the script has left behind keeps neither the pipe nor the lock.
    let mut script = bash(&scratch, "\"$C\" --spawn-daemon -- --until end >/dev/null\n").spawn();
    let mut next = scratch.contend("next");
    finish(&mut next);
    scratch.touch("end");
    script.wait().expect_code(0);
}

#[test]
fn while_a_process_lives() {
    let scratch = Scratch::new();
    let script = "ZKLOCK_TOKEN=
        dir=$(mktemp -d); mkfifo \"$dir/lock\"
        \"$Z\" hold --while $$ /lock >\"$dir/lock\" & hold=$!
        set -a; . \"$dir/lock\"; set +a; rm -r \"$dir\"
        [ -n \"$ZKLOCK_TOKEN\" ] || { wait $hold; exit; }
        echo taken; \"$Z\" -n /lock echo nested; exec \"$Z\" -n /lock -- \"$C\" --exit-on TERM";
    let script = scratch.zklock().program("/bin/sh").args(["-c", script]).env("Z", binary()).env("C", child());
    let mut script = taken(script);
    script.wait_stdout("nested");
    script.wait_stdout("ready");
    let mut next = scratch.queue("next", 1);
    script.signal(Signal::SIGTERM);
    finish(&mut next);
    script.wait().expect_code(0);
}

/// As before Linux 5.3.
#[test]
fn while_a_process_lives_without_pidfd_open() {
    let scratch = Scratch::new();
    let filtered = filtering(&scratch, "DENY(SYS_pidfd_open, ENOSYS),");
    let mut caller = Command::new("sleep").arg("1000").spawn().expect("a process");
    let hold =
        scratch.zklock().args(["hold", "--while", &caller.id().to_string(), LOCK]).run_by([filtered.as_os_str()]);
    let mut hold = hold.spawn();
    hold.wait_stdout("ZKLOCK_TOKEN=");
    let mut next = scratch.queue("next", 1);
    caller.kill().expect("a process");
    caller.wait().expect("a child");
    finish(&mut next);
    hold.wait().expect_code(0);
}

/// The caller is told to stop, and holds for as long as it takes to end.
#[test]
fn asked_to_give_up() {
    let scratch = Scratch::new();
    let trap = r#"trap 'echo told; "$C" --until end; exit 3' TERM"#;
    let mut script = taken(trapping(&scratch, trap, LOOP));
    let mut next = scratch.queue("next", 1);
    let node = scratch.contenders()[0].path.clone();
    let mut ask = scratch.zklock().args(["break", LOCK, "-w", "60", "--node", &node]).spawn();
    script.wait_stdout("told");
    assert!(!next.stdout().contains("ready"), "{next}");
    // It may be written after the caller has been told, or has ended.
    let line = script.wait_stderr("stopping the caller");
    assert!(line.ends_with("(zklock break): stopping the caller"), "{line}");
    scratch.touch("end");
    script.wait().expect_code(3);
    ask.wait().expect_code(0);
    finish(&mut next);
}

/// Its caller is told, or not.
#[test]
fn the_lock_is_lost() {
    let trap = "pid=$ZK_PID; trap 'wait $pid; echo told, $?; exit 3' USR1";
    for (option, then, status, says, line) in [
        ("--signal USR1", LOOP, 3, "told, 76\n", "its node was deleted; stopping the caller"),
        ("--no-signal", "wait $pid; echo went on, $?", 0, "went on, 76\n", "the caller is not told"),
    ] {
        let scratch = Scratch::new();
        let mut script = taken(trapping(&scratch, trap, then).env("OPTIONS", option));
        scratch.delete_holder();
        let output = script.wait().expect_code(status);
        assert!(output.stdout().ends_with(says), "{output}");
        assert!(output.stderr().contains("lost the lock /lock: ") && output.stderr().contains(line), "{output}");
    }
}

/// The stop signal comes while the lock is still held: the caller has --kill-after to end.
#[test]
fn the_servers_are_silent() {
    let (scratch, proxy) = Scratch::proxied();
    let servers = scratch.chroot().by(proxy.address()).to_string();
    let script = bash(&scratch, &format!("trap 'exit 3' TERM; {LOOP}")).env("ZKLOCK_ZOOKEEPER", servers);
    let mut script = taken(script.env("ZKLOCK_SESSION_TIMEOUT", SHORT_SESSION.as_secs().to_string()));
    proxy.hold();
    // It may be written after the caller has ended.
    let line = script.wait_stderr("stopping the caller");
    assert!(line.contains("ZooKeeper has not answered"), "{line}");
    script.wait().expect_code(3);
    // Still ours when the caller was told.
    scratch.wait_queue(1);
    scratch.wait_queue(0);
}

#[test]
fn at_a_terminal() {
    const CTRL_D: u8 = 0x04;
    let scratch = Scratch::new();
    for key in [CTRL_D, CTRL_C] {
        let terminal = Terminal::new(200);
        let mut hold = terminal.spawn(hold(&scratch));
        terminal.wait_count("ZKLOCK_HELD=", 1);
        terminal.enter("what is typed is read");
        assert!(!hold.has_ended());
        terminal.press(key);
        hold.wait().expect_code(0);
        scratch.wait_queue(0);
    }
}

/// What is typed is meant for another.
#[test]
fn in_the_background_of_a_terminal() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(200);
    let script = r#""$@" >variables & read -r line; echo "got $line"; fg"#;
    let mut hold = terminal.spawn_by(script, hold(&scratch));
    scratch.wait_queue(1);
    poll::until("it holds", || scratch.read("variables").contains("ZKLOCK_HELD=").then_some(()));
    terminal.enter("this line");
    terminal.wait_count("got this line", 1);
    terminal.press(0x04);
    hold.wait().expect_code(0);
}

#[test]
fn what_makes_no_sense() {
    let number = "write the number of a process, such as $$";
    let itself = "--while names zklock itself; name the process that the lock is for";
    for (arguments, why) in [
        ("", "no lock; write zklock hold [OPTIONS] LOCK"),
        ("/l true", "unexpected argument 'true' found; write zklock hold [OPTIONS] LOCK; zklock hold --help says more"),
        ("/l --while 0", &format!("--while '0': {number}")),
        ("/l --while $$", itself),
    ] {
        let script = format!("exec \"$Z\" hold {arguments}");
        let output = Zklock::bare().program("/bin/sh").args(["-c", &script]).env("Z", binary()).run().expect_code(64);
        assert_eq!(only_line(&output), why);
    }
}
