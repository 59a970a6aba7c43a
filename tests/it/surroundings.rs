//! Where people run it: as PID 1 of a container, below service managers, cron and job runners, and as a shell's job.

use std::time::Duration;

use nix::sys::signal::{Signal, killpg};
use nix::unistd::geteuid;

use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::running::{Running, finish};
use crate::harness::scratch::{BRIEF, LOCK, Scratch, direct};
use crate::harness::terminal::{CTRL_C, CTRL_Z, Terminal};
use crate::harness::times::SOON;
use crate::harness::zklock::Zklock;

// PID 1.

/// As the first process of a PID namespace with a /proc of its own, as in a container.
fn as_pid_1(zklock: Zklock) -> Zklock {
    in_namespace(zklock, &["--mount-proc"])
}

/// As the first process of a PID namespace, with these further options of unshare(1).
fn in_namespace(zklock: Zklock, more: &[&str]) -> Zklock {
    // Whoever is not root has to be made root of a user namespace first (user_namespaces(7)).
    let user: &[&str] = if geteuid().is_root() { &[] } else { &["--user", "--map-root-user"] };
    let unshare = ["unshare", "--pid", "--fork", "--kill-child"];
    zklock.run_by(unshare.iter().chain(user).chain(more).copied())
}

#[test]
fn as_pid_1_the_status_comes_back() {
    let scratch = Scratch::new();
    let script = r#"test $PPID = 1 || exit 9; cat; exit "$0""#;
    let job = |status: &str| {
        as_pid_1(scratch.zklock().arg(LOCK).args(["--", "sh", "-c", script, status])).stdin("words").run()
    };
    for status in ["0", "3"] {
        let output = job(status).expect_code(status.parse().unwrap());
        assert_eq!((output.stdout(), output.stderr()), ("words".to_owned(), String::new()));
    }
}

/// No signal that it sends itself can kill it (pid_namespaces(7)).
#[test]
fn as_pid_1_death_by_a_signal_is_told_as_a_shell_does() {
    let scratch = Scratch::new();
    for (signal, status) in [("TERM", 143), ("KILL", 137), ("ABRT", 134)] {
        as_pid_1(scratch.zklock().arg(LOCK).child(["--die-of", signal])).run().expect_code(status);
    }
}

#[test]
fn as_pid_1_signals_reach_the_command() {
    let scratch = Scratch::new();
    let mut job = as_pid_1(scratch.zklock().arg(LOCK).child(["--exit-on", "TERM", "--exit", "5"])).spawn();
    job.wait_stdout("ready");
    for name in ["HUP", "INT", "USR1", "TERM"] {
        process::send(job.zklock(), format!("SIG{name}").parse().unwrap());
        job.wait_stdout(&format!("signal {name}"));
    }
    let output = job.wait().expect_code(5);
    assert_eq!(output.stdout().lines().count(), 5, "each came once\n{output}");
}

#[test]
fn as_pid_1_a_signal_ends_the_wait() {
    let scratch = Scratch::new();
    let holder = scratch.occupy("");
    for (signal, status) in [(Signal::SIGTERM, 143), (Signal::SIGINT, 130)] {
        let mut job = as_pid_1(scratch.zklock().arg(LOCK).bare_child()).spawn();
        scratch.wait_queue(2);
        process::send(job.zklock(), signal);
        job.wait().expect_code(status);
        scratch.wait_left([LOCK], [1]);
    }
    scratch.delete(&holder);
}

#[test]
fn as_pid_1_it_reaps_orphans() {
    let scratch = Scratch::new();
    let daemon = ["--exit-on", "TERM", "--spawn-daemon", "--", "--name", "daemon", "--exit-on", "USR1"];
    let mut job = as_pid_1(scratch.zklock().arg(LOCK).child(daemon)).spawn();
    job.wait_stdout("daemon ready");
    let first = job.zklock();
    // The command leads its group; the daemon is in that of what is between, which has ended.
    let is_orphan = |process: &process::Process| process.name == "child" && process.pid != process.group;
    let orphan = poll::until("an orphan", || process::children(first).into_iter().find(is_orphan)).pid;
    process::send(orphan, Signal::SIGUSR1);
    poll::until("the daemon is reaped", || process::look(orphan).is_none().then_some(()));
    process::send(first, Signal::SIGTERM);
    job.wait().expect_code(0);
}

#[test]
fn as_pid_1_the_whole_tree_goes_with_the_lock() {
    let scratch = Scratch::new().with_lock();
    let daemon = ["--wait", "--spawn-daemon", "--", "--name", "daemon", "--wait"];
    // A stop would take far longer.
    let options = ["--session-timeout", "60", "--kill-after", "15s"];
    let mut job = as_pid_1(scratch.job(&direct(), "holder", &options, &daemon)).spawn();
    for _ in ["the command", "what is between", "the daemon"] {
        job.wait_stdout(" ready");
    }
    let deleted = Moment::now();
    scratch.delete(&scratch.only_contender().path);
    let output = job.wait().expect_code(76);
    scratch.last_alive("holder").expect_within(SOON, deleted, "the command is dead");
    assert_eq!(output.stderr(), "zklock: lost the lock /lock: its node was deleted; killing the command\n");
    job.wait_until_nothing_is_left();
    scratch.wait_queue(0);
}

/// /proc then shows other processes than ours, under numbers that mean others to us. Who descends from the command
/// could not be told, nor that nobody does any more.
#[test]
fn in_a_pid_namespace_without_a_proc_of_its_own_it_does_not_start() {
    let scratch = Scratch::new().with_lock();
    let output = in_namespace(scratch.job(&direct(), "holder", &[], &[]), &[]).run().expect_code(70);
    assert_eq!(output.stdout(), "");
    let stderr = output.stderr();
    assert!(stderr.starts_with("zklock: ") && stderr.ends_with("/proc is that of another PID namespace\n"), "{output}");
    scratch.expect_tidy(&[]);
}

// Service managers.

/// `docker stop`: TERM for PID 1, and KILL after a grace. With PID 1 the kernel kills all of its namespace, the keeper
/// too, so that the session has to expire.
#[test]
fn docker_stop_of_a_command_that_does_not_end() {
    let scratch = Scratch::new().with_lock();
    let mut job = as_pid_1(scratch.job(&direct(), "holder", &BRIEF, &["--wait"])).spawn();
    job.wait_stdout("ready");
    let mut next = scratch.queue("next", 1);
    process::send(job.zklock(), Signal::SIGTERM);
    job.wait_stdout("signal TERM");
    let killed = Moment::now();
    process::send(job.zklock(), Signal::SIGKILL);
    job.wait();
    job.wait_until_nothing_is_left();
    next.wait_stdout("ready");
    scratch.begin("next").expect_within(2 * SOON, killed, "the next one starts");
    finish(&mut next);
    scratch.expect_tidy(&["holder", "next"]);
}

/// Sends a signal to every process of a run, the keeper too, as `systemctl stop` does to those of a unit.
fn signal_unit(run: &Running, signal: Signal) {
    run.processes().iter().for_each(|process| process::send(process.pid, signal));
}

#[test]
fn systemctl_stop_of_a_command_that_ends() {
    let scratch = Scratch::new().with_lock();
    let options = ["--session-timeout", "60"];
    let child = ["--exit-on", "TERM", "--spawn", "--", "--name", "grandchild", "--exit-on", "TERM"];
    let mut job = scratch.start(&direct(), "holder", &options, &child);
    job.wait_stdout("holder ready");
    poll::until("the grandchild", || job.stdout().contains("grandchild ready").then_some(()));
    let mut next = scratch.queue("next", 1);
    let told = Moment::now();
    signal_unit(&job, Signal::SIGTERM);
    let output = job.wait().expect_code(0);
    assert_eq!(output.stderr(), "");
    next.wait_stdout("ready");
    scratch.begin("next").expect_within(SOON, told, "the next one starts");
    job.wait_until_nothing_is_left();
    finish(&mut next);
    scratch.expect_tidy(&["holder", "next"]);
}

#[test]
fn systemctl_stop_of_a_waiter() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold();
    let mut waiter = scratch.start(&direct(), "waiter", &["--session-timeout", "60"], &[]);
    scratch.wait_queue(2);
    let told = Moment::now();
    signal_unit(&waiter, Signal::SIGTERM);
    waiter.wait().expect_signal(Signal::SIGTERM);
    scratch.wait_queue(1);
    Moment::now().expect_within(SOON, told, "the node goes");
    waiter.wait_until_nothing_is_left();
    finish(&mut holder);
    scratch.expect_tidy(&["holder"]);
}

/// After `TimeoutStopSec`, everything gets KILL: nobody is left to release the lock, and the session expires.
#[test]
fn systemctl_stop_of_a_command_that_does_not_end() {
    let scratch = Scratch::new().with_lock();
    let child = ["--wait", "--spawn", "--", "--name", "grandchild", "--wait"];
    let mut job = scratch.start(&direct(), "holder", &BRIEF, &child);
    job.wait_stdout("grandchild ready");
    let mut next = scratch.queue("next", 1);
    signal_unit(&job, Signal::SIGTERM);
    poll::until("both have heard", || (job.stdout().matches("signal TERM").count() >= 2).then_some(()));
    let killed = Moment::now();
    signal_unit(&job, Signal::SIGKILL);
    job.wait().expect_signal(Signal::SIGKILL);
    job.wait_until_nothing_is_left();
    next.wait_stdout("ready");
    scratch.begin("next").expect_within(2 * SOON, killed, "the next one starts");
    finish(&mut next);
    scratch.expect_tidy(&["holder", "next"]);
}

/// A job runner signals the process group that it has started. The command is in one of its own then.
#[test]
fn a_signal_for_the_group_of_zklock_reaches_the_command_once() {
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

/// Cron mails what is written, to stdout or to stderr: on success what the command writes, and nothing else.
#[test]
fn cron_mails_the_words_of_the_command_only() {
    let scratch = Scratch::new();
    // The variables of crontab(5), those of the test, and no others.
    let cron = r#"exec env -i HOME=/ LOGNAME=root SHELL=/bin/sh PATH=/usr/bin:/bin \
        ZKLOCK_TEST="$ZKLOCK_TEST" ZKLOCK_ZOOKEEPER="$ZKLOCK_ZOOKEEPER" "$@" 2>&1"#;
    let run = |command: &str| scratch.zklock().arg(LOCK).args(["-c", command]).run_by(["sh", "-c", cron, "sh"]).run();
    assert_eq!(run("echo done").expect_code(0).stdout(), "done\n");
    assert_eq!(run("exit 4").expect_code(4).stdout(), "");
    let holder = scratch.occupy("");
    let busy = scratch
        .zklock()
        .arg(LOCK)
        .args(["-n", "-c", "echo done"])
        .run_by(["sh", "-c", cron, "sh"])
        .run()
        .expect_code(75);
    assert_eq!(busy.stdout().lines().count(), 1, "{busy}");
    scratch.delete(&holder);
}

// Jobs of a shell.

/// In a script, `&` has a command ignore INT and QUIT, and read nothing (POSIX, 2.9.3.1).
#[test]
fn in_the_background_of_a_script() {
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
fn in_the_background_of_a_script_at_a_terminal() {
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

/// A background job that wants to read is stopped (TTIN) until somebody brings it to the foreground.
#[test]
fn in_the_background_of_a_shell_it_stops_to_read() {
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
fn ctrl_z_and_bg() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    // A shell that Ctrl-C ends takes the terminal along.
    let script = r#"trap "echo caught" INT; "$@"; echo "stopped $?"; bg >/dev/null; wait; wait"#;
    let zklock = scratch.zklock().arg(LOCK).child(["--default", "TSTP,CONT", "--exit-on", "TERM", "--exit", "3"]);
    let mut job = terminal.spawn_by(script, zklock);
    terminal.wait_count("ready", 1);
    terminal.press(CTRL_Z);
    terminal.wait_count("stopped", 1);
    let zklock = job.zklock();
    poll::until("both go on", || {
        let goes_on = |pid| process::look(pid).is_some_and(|process| process.state != 'T');
        (goes_on(zklock) && goes_on(process::command(zklock))).then_some(())
    });
    // That is the shell's by now.
    terminal.press(CTRL_C);
    terminal.wait_count("caught", 1);
    process::send(zklock, Signal::SIGTERM);
    terminal.wait_count("signal TERM", 1);
    job.wait();
    assert!(!terminal.lines().iter().any(|line| line.contains("signal INT")), "{:#?}", terminal.lines());
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

#[test]
fn setsid_leaves_the_terminal() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    let mut job = terminal
        .spawn_by(r#"setsid --wait "$@"; echo "ended $?""#, scratch.zklock().arg(LOCK).child(["--exit-on", "TERM"]));
    terminal.wait_count("ready", 1);
    let zklock = job.zklock();
    let command = process::look(process::command(zklock)).expect("the command runs");
    assert_eq!((command.session, command.group), (zklock, command.pid));
    process::send(zklock, Signal::SIGTERM);
    terminal.wait_count("ended 0", 1);
    job.wait();
}

// Programs that take the terminal for themselves.

/// A program as those that ask for a password, and one as those that fill the screen: they change the terminal's
/// settings, which only its foreground may do (TTOU of tcsetattr(3)), and put them back.
#[test]
fn a_command_may_change_the_terminals_settings() {
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
fn the_terminal_of_a_command_that_was_killed_is_as_it_was() {
    const RAW: &str = r#"stty raw -echo </dev/tty; printf "full screen\r\n"; trap "" TERM; exec sleep 60"#;
    let job_control = format!("set -m; sh -c '{RAW}'");
    for command in [RAW, &job_control] {
        let scratch = Scratch::new();
        let terminal = Terminal::new(80);
        let before = terminal.settings();
        let job = scratch.zklock().arg(LOCK).args(["--", "bash", "-c", command]);
        let mut job = terminal.spawn_by(r#""$@"; echo "ended $?""#, job);
        terminal.wait_count("full screen", 1);
        assert_ne!(terminal.settings(), before);
        scratch.delete_holder();
        terminal.wait_count("ended 76", 1);
        job.wait().expect_code(0);
        assert_eq!(terminal.settings(), before);
    }
}

/// What a pager has set is the pager's.
#[test]
fn the_terminal_of_a_pager_behind_a_command_that_was_killed_is_left_alone() {
    let scratch = Scratch::new();
    let terminal = Terminal::new(80);
    // It reads on until zklock has gone.
    let pager = r#""$@" | bash -c 'read -r line; stty -icanon </dev/tty; cat; stty -a </dev/tty | grep -oe -icanon'"#;
    let command = scratch.zklock().arg(LOCK).args(["--max-run", "2s", "--kill-after", "0"]).child(["--exit-on", "INT"]);
    let mut job = terminal.spawn_by(pager, command);
    terminal.wait_count("the command has run for 2s", 1);
    terminal.wait("the pager's settings", |lines| lines.iter().any(|line| line == "-icanon"));
    job.wait();
}

/// `zklock … | less`: the pager reads its keys from the terminal that the command has, too.
#[test]
fn a_pager_behind_it_reads_keys() {
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
