//! `--wait-descendants`: the lock is held until the last descendant of the command has ended.

use nix::sys::signal::Signal;

use crate::harness::daemon::{LEAVES_DAEMON, left_behind, wait_until_reaped};
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::running::finish;
use crate::harness::scratch::{GRACE, LASTING, Scratch, direct};
use crate::harness::terminal::{CTRL_C, Terminal};
use crate::harness::times::{AT_ONCE, LEASE, SHORT_SESSION};

/// A daemon, and a child in the command's process group, which the kernel would kill if that were not called off.
#[test]
fn daemon_holds_no_lock_without_it() {
    for how in ["--spawn-daemon", "--spawn"] {
        let scratch = Scratch::new().with_lock();
        let words = LEAVES_DAEMON.map(|word| if word == "--spawn-daemon" { how } else { word });
        let mut holder = scratch.lasting(&[], &[&words[..], &["end"]].concat()).spawn();
        holder.wait_stdout("daemon ready");
        let output = holder.wait().expect_code(3);
        let line = "zklock: a process that the command left behind goes on without the lock\n";
        assert_eq!(output.stderr(), line, "{output}");
        let mut next = scratch.contend("next");
        next.wait_stdout("ready");
        scratch.wait_alive_at("daemon", scratch.begin("next"));
        poll::until("only the daemon is left", || (holder.processes().len() == 1).then_some(()));
        // What the guard's death brings about has happened by now.
        scratch.wait_alive_at("daemon", Moment::now());
        finish(&mut next);
        scratch.touch("end");
        holder.wait_until_nothing_is_left();
    }
}

#[test]
fn daemon_holds_the_lock() {
    let scratch = Scratch::new().with_lock();
    let short = SHORT_SESSION.as_secs().to_string();
    let mut holder = left_behind(&scratch, &["--wait-descendants", "--session-timeout", &short], &[]);
    let node = scratch.only_contender().path;
    let mut next = scratch.queue("next", 1);
    // Beats go on: the daemon lives for longer than a lease without them.
    scratch.wait_alive_at("daemon", Moment::now().after(LEASE + LEASE / 2));
    assert_eq!(scratch.contenders()[0].path, node);
    assert!(!holder.has_ended());
    scratch.touch("end");
    let output = holder.wait().expect_code(3);
    assert_eq!(output.stderr(), "", "{output}");
    next.wait_stdout("ready");
    scratch.begin("next").expect_within(AT_ONCE, scratch.last_alive("daemon"), "the next one begins");
    finish(&mut next);
    let log = scratch.log();
    assert_eq!(log.order(), ["holder", "daemon", "next"]);
    assert!(log.runs()[1].last < log.runs()[2].begin, "{log:?}");
    scratch.wait_queue(0);
}

#[test]
fn each_signal_reaches_them_once() {
    let scratch = Scratch::new().with_lock();
    let mut holder = left_behind(&scratch, &["--wait-descendants"], &[]);
    for name in ["TERM", "HUP", "USR1", "CONT"] {
        holder.signal(format!("SIG{name}").parse().expect("a signal"));
        holder.wait_stdout(&format!("daemon signal {name}"));
    }
    scratch.touch("end");
    let output = holder.wait().expect_code(3);
    assert_eq!(output.stdout().matches("daemon signal").count(), 4, "{output}");
    scratch.wait_queue(0);
}

#[test]
fn die_within_the_lease() {
    let (scratch, proxy) = Scratch::proxied();
    let daemon = [&LEAVES_DAEMON[..], &["end"]].concat();
    let options = [&GRACE[..], &["--wait-descendants"]].concat();
    let mut holder = scratch.start(&proxy.address(), "holder", &options, &daemon);
    holder.wait_stdout("daemon ready");
    wait_until_reaped(&scratch);
    proxy.hold();
    let silence = Moment::now();
    let output = holder.wait().expect_code(76);
    assert!(output.stdout().contains("daemon signal TERM\n"), "{output}");
    scratch.last_alive("daemon").expect_within(LEASE, silence, "the daemon is dead");
    holder.wait_until_nothing_is_left();
    scratch.wait_queue(0);
}

#[test]
fn zklock_killed() {
    let scratch = Scratch::new().with_lock();
    let mut holder = left_behind(&scratch, &["--wait-descendants"], &[]);
    let mut next = scratch.queue("next", 1);
    holder.signal(Signal::SIGKILL);
    let killed = Moment::now();
    holder.wait().expect_signal(Signal::SIGKILL);
    next.wait_stdout("ready");
    scratch.begin("next").expect_within(AT_ONCE, killed, "the next one begins");
    assert!(scratch.last_alive("daemon") < scratch.begin("next"));
    holder.wait_until_nothing_is_left();
    finish(&mut next);
}

/// A daemon is in a session of its own, so the terminal does not signal it.
#[test]
fn ctrl_c_at_a_terminal_reaches_a_daemon() {
    let scratch = Scratch::new().with_lock();
    let terminal = Terminal::new(80);
    let child = ["--exit", "3", "--spawn-daemon", "--", "--name", "left", "--exit-on", "INT"];
    let job = scratch.job(&direct(), "holder", &[&LASTING[..], &["--wait-descendants"]].concat(), &child);
    let mut shell = terminal.spawn_by(r#""$@"; echo "ended $?""#, job);
    terminal.wait_count("left ready", 1);
    wait_until_reaped(&scratch);
    terminal.press(CTRL_C);
    terminal.wait_count("left signal INT", 1);
    terminal.wait_count("ended 3", 1);
    shell.wait().expect_code(0);
    scratch.wait_queue(0);
}
