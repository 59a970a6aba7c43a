//! The harness does what it says: a test that relies on it proves nothing otherwise.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use nix::unistd::{Pid, getsid};

use super::client::{self, Client, Kind, Refusal, Stat};
use super::ensemble::{Data, Ensemble, Role, Server, Settings};
use super::frames::Op;
use super::joblog::JobLog;
use super::poll;
use super::process::{self, Seat};
use super::proxy::{Fate, Flow, Proxy, Stub};
use super::zklock::{Zklock, binary, child};

/// The child by itself, without zklock around it.
fn just_child<const N: usize>(args: [&str; N]) -> Zklock {
    Zklock::bare().program(child()).args(args)
}

/// Every file below tests/it is declared by the file above it.
#[test]
fn no_test_file_is_forgotten() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/it");
    let mut folders = vec![(root.join("main.rs"), root)];
    let mut files = 0;
    while let Some((above, folder)) = folders.pop() {
        let declarations = fs::read_to_string(&above).unwrap();
        for entry in fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_stem().unwrap().to_str().unwrap();
            if ["main", "mod"].contains(&name) {
                continue;
            }
            let wanted = format!("mod {name};");
            let is_declared = declarations.lines().any(|line| line.trim_start_matches("pub(crate) ") == wanted);
            assert!(is_declared, "{} does not declare {name}", above.display());
            if path.is_dir() {
                let inside = path.join("mod.rs");
                folders.push((if inside.exists() { inside } else { path.with_extension("rs") }, path));
            }
            files += 1;
        }
    }
    assert!(files > 40, "{files} files");
}

// Servers.

#[test]
fn each_chroot_of_the_shared_server_is_empty_and_ones_own() {
    let (one, two) = (Server::shared().chroot(), Server::shared().chroot());
    one.client().create("/a", b"", Kind::Persistent).unwrap();
    assert_eq!(one.client().children("/"), ["a"]);
    assert!(two.client().children("/").is_empty());
    assert!(Client::connect(&Server::shared().address()).exists(one.path()));
    assert_eq!(Server::shared().role(), Some(Role::Standalone));
}

#[test]
fn a_frozen_server_does_not_answer_until_it_is_thawed() {
    let server = Server::start();
    server.freeze();
    assert!(server.ask("srvr").is_err());
    server.thaw();
    server.wait_until_serving();
}

#[test]
fn a_server_comes_back_on_its_port_with_its_data_or_without() {
    let server = Server::start();
    let chroot = server.chroot();
    server.stop();
    assert_eq!(TcpStream::connect(server.address()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    server.restart(Data::Kept);
    assert!(Client::connect(&server.address()).exists(chroot.path()));
    server.restart(Data::Wiped);
    assert!(!Client::connect(&server.address()).exists(chroot.path()));
}

#[test]
fn settings_reach_the_server() {
    let server = Settings::default().line("maxSessionTimeout=1200").property("zookeeper.superUser=x").server();
    assert!(server.tell("conf").contains("maxSessionTimeout=1200\n"));
    let command_line = fs::read_to_string(format!("/proc/{}/cmdline", server.pid())).unwrap();
    assert!(command_line.contains("-Dzookeeper.superUser=x"));
}

#[test]
fn the_shared_ensemble_has_a_leader_and_two_followers() {
    let ensemble = Ensemble::shared();
    assert_eq!(ensemble.leader().role(), Some(Role::Leader));
    poll::until("two followers", || (ensemble.leader().figure("zk_synced_followers") == 2).then_some(()));
    assert_eq!(ensemble.servers().iter().map(Server::address).collect::<Vec<_>>().join(","), ensemble.addresses());
    let chroot = ensemble.chroot();
    chroot.client().create("/a", b"", Kind::Persistent).unwrap();
    for follower in ensemble.followers() {
        let client = chroot.by(follower.address()).client();
        client.sync();
        assert!(client.exists("/a"));
    }
}

#[test]
fn an_ensemble_outlives_its_leader() {
    let ensemble = Ensemble::start();
    let client = ensemble.chroot().client();
    client.create("/a", b"", Kind::Persistent).unwrap();
    let old = ensemble.leader();
    old.kill();
    assert_ne!(ensemble.leader().address(), old.address());
    assert!(client.exists("/a"));
    old.restart_in_background(Data::Kept);
    ensemble.wait_until_serving();
    assert_eq!(ensemble.followers().len(), 2);
}

/// The case that a ping does not notice: the follower is cut off, its clients are connected, their sessions expire.
#[test]
fn a_follower_can_be_cut_from_the_leader_while_its_clients_stay_connected() {
    // A follower that has heard nothing for syncLimit ticks lets its clients go: here 20 s.
    let settings = Settings::default().line("maxSessionTimeout=5000").line("syncLimit=100");
    let ensemble = settings.proxied().ensemble();
    let (leader, [follower, _]) = (ensemble.leader(), ensemble.followers());
    let chroot = ensemble.chroot();
    let (cut, whole) = (chroot.by(follower.address()).client(), chroot.by(leader.address()).client());
    cut.create("/a", b"", Kind::Ephemeral).unwrap();
    ensemble.link(follower, leader).hold();
    poll::until("the session expires", || (!whole.exists("/a")).then_some(()));
    assert!(cut.exists("/a"), "the follower has not heard of it, and answers");
    ensemble.link(follower, leader).pass();
    poll::until("the follower hears of it", || (!cut.exists("/a")).then_some(()));
}

// The client.

#[test]
fn a_client_sees_and_changes_nodes() {
    let chroot = Server::shared().chroot();
    let (one, two) = (chroot.client(), chroot.client());
    assert_eq!(one.create("/lock", b"old", Kind::Persistent), Ok("/lock".to_owned()));
    assert_eq!(one.create("/lock", b"", Kind::Persistent), Err(Refusal::NODE_EXISTS));
    one.set("/lock", b"new").unwrap();
    let (data, Stat { czxid, version, owner }) = one.get("/lock").unwrap();
    assert_eq!((data.as_slice(), version, owner), (&b"new"[..], 1, 0));
    let late = one.create("/lock/a-", b"", Kind::EphemeralSequential).unwrap();
    let early = two.create("/lock/b-", b"", Kind::EphemeralSequential).unwrap();
    assert_eq!((late.as_str(), early.as_str()), ("/lock/a-0000000000", "/lock/b-0000000001"));
    assert!(one.get(&late).unwrap().1.czxid > czxid);
    assert_eq!(one.get(&early).unwrap().1.owner, two.session());
    one.create("/lock/0-foreign", b"", Kind::Persistent).unwrap();
    assert_eq!(one.wait_count("/lock", 3), ["a-0000000000", "b-0000000001", "0-foreign"]);
    drop(two);
    assert_eq!(one.wait_count("/lock", 2), ["a-0000000000", "0-foreign"]);
    assert_eq!(one.delete("/none"), Err(Refusal::NO_NODE));
    one.remove(&early);
    assert_eq!(one.delete(&early), Err(Refusal::NO_NODE));
    one.delete(&late).unwrap();
    assert!(one.children("/none").is_empty());
}

#[test]
fn a_session_can_be_expired_from_outside() {
    let ensemble = Ensemble::shared();
    let chroot = ensemble.chroot();
    let (victim, witness) = (chroot.client(), chroot.client());
    victim.create("/a", b"", Kind::Ephemeral).unwrap();
    client::expire_session(&ensemble.leader().address(), victim.session());
    witness.sync();
    poll::until("its node goes", || (!witness.exists("/a")).then_some(()));
    assert!(catch_unwind(|| client::expire_session(&ensemble.leader().address(), victim.session())).is_err());
}

// The network.

fn proxied() -> (Proxy, Client, Client) {
    let chroot = Server::shared().chroot();
    let proxy = Proxy::zookeeper(&Server::shared().address());
    let through = chroot.by(proxy.address()).client();
    (proxy, through, chroot.client())
}

#[test]
fn a_proxy_passes_and_counts() {
    let (proxy, through, direct) = proxied();
    through.create("/a", b"", Kind::Persistent).unwrap();
    through.sync();
    assert!(direct.exists("/a"));
    assert_eq!((proxy.count(Op::Create), proxy.count(Op::Sync), proxy.count(Op::Delete)), (1, 1, 0));
    assert_eq!((proxy.accepted(), proxy.open()), (1, 1));
    let request = proxy.requests().into_iter().find(|request| request.op == Op::Create).unwrap();
    assert!(request.path.ends_with("/a") && request.connection == 0, "{request:?}");
    drop(through);
    proxy.wait_count(Op::CloseSession, 1);
    poll::until("the connection is closed", || (proxy.open() == 0).then_some(()));
}

#[test]
fn what_a_proxy_holds_arrives_when_it_passes_again() {
    let (proxy, through, direct) = proxied();
    proxy.hold();
    std::thread::scope(|scope| {
        let create = scope.spawn(|| through.create("/a", b"", Kind::Persistent));
        // The word reaches the proxy's port and no further. A request of another connection that was sent later is
        // answered, and this one is not there.
        direct.sync();
        assert!(!direct.exists("/a") && !create.is_finished());
        proxy.pass();
        assert_eq!(create.join().unwrap(), Ok("/a".to_owned()));
    });
}

#[test]
fn one_direction_can_be_held() {
    let (proxy, through, direct) = proxied();
    proxy.flows(Flow::Pass, Flow::Hold);
    std::thread::scope(|scope| {
        let create = scope.spawn(|| through.create("/a", b"", Kind::Persistent));
        poll::until("the request arrives", || direct.exists("/a").then_some(()));
        assert!(!create.is_finished(), "the reply must not have passed");
        proxy.pass();
        assert!(create.join().unwrap().is_ok());
    });
}

#[test]
fn a_delay_delays() {
    let (proxy, through, _direct) = proxied();
    let delay = Duration::from_millis(50);
    proxy.flows(Flow::Delay(delay), Flow::Delay(delay));
    let sent = Instant::now();
    through.sync();
    assert!(sent.elapsed() >= 2 * delay);
}

#[test]
fn a_reset_is_a_reset_and_new_connections_pass() {
    let proxy = Proxy::plain(Server::shared().address().parse().unwrap());
    let mut stream = TcpStream::connect(proxy.address()).unwrap();
    poll::until("the proxy has it", || (proxy.open() == 1).then_some(()));
    proxy.reset();
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::ConnectionReset);
    let mut again = TcpStream::connect(proxy.address()).unwrap();
    again.write_all(b"ruok").unwrap();
    let mut answer = String::new();
    again.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "imok");
}

#[test]
fn a_closed_port_refuses_until_it_is_opened() {
    let (proxy, through, _direct) = proxied();
    proxy.refuse();
    assert_eq!(TcpStream::connect(proxy.address()).unwrap_err().kind(), ErrorKind::ConnectionRefused);
    proxy.accept();
    assert!(!through.exists("/a"), "the client reconnects");
    assert_eq!(proxy.accepted(), 2);
}

#[test]
fn a_lost_reply_leaves_the_node_and_no_answer() {
    let (proxy, through, direct) = proxied();
    let trap = proxy.trap_ops(Fate::Reset, &[Op::Create, Op::Create2]);
    assert!(catch_unwind(AssertUnwindSafe(|| through.create("/a", b"", Kind::Persistent))).is_err());
    trap.wait();
    assert!(direct.exists("/a"));
    assert!(through.exists("/a"), "the next connection passes");
    assert_eq!(through.create("/b", b"", Kind::Persistent), Ok("/b".to_owned()), "a trap springs once");
}

#[test]
fn after_a_lost_reply_the_network_can_stay_silent() {
    let (proxy, through, direct) = proxied();
    let trap = proxy.trap(Fate::ResetAndHold, |request| request.op == Op::Delete && request.path.ends_with("/a"));
    for path in ["/a", "/b"] {
        through.create(path, b"", Kind::Persistent).unwrap();
    }
    through.delete("/b").unwrap();
    assert!(catch_unwind(AssertUnwindSafe(|| through.delete("/a"))).is_err());
    trap.wait();
    assert!(!direct.exists("/a"));
    std::thread::scope(|scope| {
        let look = scope.spawn(|| through.exists("/a"));
        poll::until("the client reconnects", || (proxy.accepted() == 2).then_some(()));
        assert!(!look.is_finished());
        proxy.pass();
        assert!(!look.join().unwrap());
    });
}

#[test]
fn a_reply_can_be_held_until_it_is_released() {
    let (proxy, through, direct) = proxied();
    let trap = proxy.trap_ops(Fate::Wait, &[Op::Create]);
    std::thread::scope(|scope| {
        let create = scope.spawn(|| through.create("/a", b"", Kind::Persistent));
        trap.wait();
        assert!(direct.exists("/a") && !create.is_finished());
        trap.release();
        assert_eq!(create.join().unwrap(), Ok("/a".to_owned()));
    });
}

#[test]
fn a_connection_can_be_silenced_while_others_pass() {
    let (proxy, through, direct) = proxied();
    let trap = proxy.trap_ops(Fate::Blackhole, &[Op::Create]);
    std::thread::scope(|scope| {
        let create = scope.spawn(|| through.create("/a", b"", Kind::Persistent));
        trap.wait();
        assert!(direct.exists("/a"));
        // A second connection through the same proxy is answered, so the first had its chance.
        Client::connect(&proxy.address()).sync();
        assert!(!create.is_finished());
        proxy.reset();
        assert!(create.join().is_err(), "outcome unknown");
    });
}

#[test]
fn stubs_are_silent_or_speak_garbage() {
    let (silent, garbage) = (Stub::silent(), Stub::garbage());
    let mut stream = TcpStream::connect(silent.address()).unwrap();
    stream.write_all(b"ruok").unwrap();
    stream.set_nonblocking(true).unwrap();
    // Whatever the other stub was to answer has come by the time that this one is asked.
    TcpStream::connect(garbage.address()).unwrap().read_exact(&mut [0; 16 * 1024]).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap_err().kind(), ErrorKind::WouldBlock);
}

// The child and the handle on processes.

#[test]
fn the_binary_under_test_is_there() {
    assert!(binary().is_file());
    let version = Zklock::bare().arg("--version").run().expect_code(0);
    assert!(version.stdout().starts_with("zklock "), "{version}");
}

#[test]
fn keeper_and_command_of_a_run_are_found() {
    let chroot = Server::shared().chroot();
    let mut job = Zklock::at(&chroot).arg("/lock").child(["--exit-on", "TERM"]).spawn();
    job.wait_stdout("ready");
    let (keeper, command) = (process::look(job.keeper()).unwrap(), process::look(job.command()).unwrap());
    assert_eq!((keeper.parent, command.parent), (job.pid(), job.pid()), "{job}");
    assert_eq!((keeper.name.as_str(), command.name.as_str()), ("lock-keeper", "child"));
    job.signal(Signal::SIGTERM);
    job.wait().expect_code(0);
    job.wait_until_nothing_is_left();
}

#[test]
fn the_child_exits_as_told() {
    just_child(["--exit", "3"]).run().expect_code(3);
    let dead = just_child(["--die-of", "KILL"]).run().expect_signal(Signal::SIGKILL);
    assert!(dead.elapsed < poll::PATIENCE);
    let echo = just_child(["--echo"]).stdin([0, 255, 10]).run();
    assert_eq!(echo.stdout, b"\x00\xff\nready\n");
}

#[test]
fn the_child_reports_signals_and_waits() {
    let mut job = just_child(["--name", "a", "--exit-on", "TERM", "--ignore", "USR2", "--default", "CONT"]).spawn();
    job.wait_stdout("a ready");
    for signal in [Signal::SIGHUP, Signal::SIGUSR2, Signal::SIGCONT, Signal::SIGINT, Signal::SIGTERM] {
        job.signal(signal);
        if signal == Signal::SIGHUP || signal == Signal::SIGINT {
            job.wait_stdout(&format!("a signal {}", &signal.as_str()[3..]));
        }
    }
    assert_eq!(job.wait().expect_code(0).stdout(), "a ready\na signal HUP\na signal INT\na signal TERM\n");
}

#[test]
fn the_child_waits_for_stdin_or_a_file() {
    let mut job = just_child(["--until-stdin-closes"]).open_stdin().spawn();
    job.wait_stdout("ready");
    job.write_stdin(b"not the end");
    job.signal(Signal::SIGINT);
    job.wait_stdout("signal INT");
    assert!(!job.has_ended());
    job.close_stdin();
    job.wait().expect_code(0);

    let directory = tempfile::tempdir().unwrap();
    let mut job = just_child(["--until", "now"]).directory(directory.path()).spawn();
    job.wait_stdout("ready");
    fs::write(directory.path().join("now"), "").unwrap();
    job.wait().expect_code(0);
}

#[test]
fn the_child_shows_what_it_inherited() {
    let shown = just_child(["--state", "--env"]).env("ZKLOCK_X", "1").ignoring([Signal::SIGHUP]).run().stdout();
    let lines: Vec<&str> = shown.lines().collect();
    for line in ["blocked ", "descriptors 0,1,2", "ZKLOCK_X=1"] {
        assert!(lines.contains(&line), "no {line:?} in\n{shown}");
    }
    for beginning in ["ignored HUP", "umask 0", "group "] {
        assert!(lines.iter().any(|line| line.starts_with(beginning)), "no {beginning:?} in\n{shown}");
    }
}

#[test]
fn a_run_has_the_seat_that_was_asked_for() {
    for seat in [Seat::OwnSession, Seat::OwnGroup, Seat::Inherited] {
        let job = just_child(["--wait"]).seat(seat).spawn();
        let process = process::look(job.pid()).unwrap();
        assert_eq!(process.session == job.pid(), seat == Seat::OwnSession);
        assert_eq!(process.group == job.pid(), seat != Seat::Inherited);
        assert_eq!(process.session == getsid(None).unwrap(), seat != Seat::OwnSession);
        job.end();
    }
}

#[test]
fn descendants_are_found_wherever_they_went() {
    let args = ["--spawn", "--", "--name", "b", "--spawn-daemon", "--", "--name", "c", "--wait"];
    let mut job = just_child(args).spawn();
    job.wait_stdout("c ready");
    job.wait().expect_code(0);
    let left = poll::until("only the daemon is left", || <[_; 1]>::try_from(job.processes()).ok());
    assert_ne!(left[0].session, getsid(None).unwrap());
    process::send(left[0].pid, Signal::SIGKILL);
    job.wait_until_nothing_is_left();
}

#[test]
fn a_process_in_the_middle_of_execve_is_found() {
    let script = r#"exec sh -c "$0" "$0""#;
    let job = Zklock::bare().program("sh").args(["-c", script, script]).spawn();
    for _ in 0..500 {
        assert_eq!(job.processes().iter().map(|process| process.pid).collect::<Vec<_>>(), [job.pid()]);
    }
    job.end();
}

#[test]
fn what_is_left_behind_is_killed_and_told() {
    let mut job = just_child(["--wait", "--spawn", "--", "--name", "b", "--wait"]).spawn();
    job.wait_stdout("b ready");
    let grandchild = process::children(job.pid()).first().expect("a grandchild").pid.as_raw();
    let message = catch_unwind(AssertUnwindSafe(|| drop(job))).unwrap_err();
    let message = message.downcast_ref::<String>().unwrap();
    assert!(message.starts_with("left behind and killed: ") && message.contains(&grandchild.to_string()), "{message}");
    assert!(process::look(Pid::from_raw(grandchild)).is_none_or(|process| process.state == 'Z'));
}

#[test]
fn a_panic_of_a_child_that_nobody_misses_fails_the_test() {
    let mut job = Zklock::bare().program("sh").args(["-c", r#""$0" --unheard-of; true"#]).arg(child()).spawn();
    job.wait().expect_code(0);
    let message = catch_unwind(AssertUnwindSafe(|| drop(job))).unwrap_err();
    let message = message.downcast_ref::<String>().unwrap();
    assert!(message.starts_with("a child panicked: ") && message.contains("what is --unheard-of?"), "{message}");
}

#[test]
fn a_line_that_never_comes_fails_with_what_was_seen() {
    let mut job = just_child(["--name", "seen"]).spawn();
    let message = catch_unwind(AssertUnwindSafe(|| job.wait_stdout("other"))).unwrap_err();
    let message = message.downcast_ref::<String>().unwrap();
    assert!(message.contains("ended without \"other\"") && message.contains("seen ready"), "{message}");
}

#[test]
fn both_streams_can_be_waited_on() {
    let script = "echo one; echo two >&2; echo three; exit 4";
    let mut shell = Zklock::bare().program("sh").args(["-c", script]).spawn();
    assert_eq!(shell.wait_stdout("t"), "three");
    assert_eq!(shell.wait_stderr("t"), "two");
    let output = shell.wait_at_most(poll::PATIENCE).expect_code(4);
    assert_eq!((output.stdout().as_str(), output.stderr().as_str()), ("one\nthree\n", "two\n"));
    assert_eq!((shell.stdout(), shell.stderr()), (output.stdout(), output.stderr()));
}

// The jobs' log.

#[test]
fn a_log_tells_overlaps_and_order() {
    let log = JobLog::parse("begin 10 1 a\nend 20 1 a\nbegin 30 2 b\nbegin 40 3 c\nalive 50 2 b\nend 60 3 c\nbegin 7");
    assert_eq!(log.order(), ["a", "b", "c"]);
    assert_eq!(log.most_at_once(), 2);
    let pairs: Vec<_> = log.overlaps().into_iter().map(|(one, two)| (one.pid, two.pid)).collect();
    assert_eq!(pairs, [(2, 3)]);
    assert!(!log.runs()[1].ended && log.runs()[2].ended, "b was killed");
    let parts = |text| catch_unwind(move || JobLog::parse(text).expect_no_overlap()).is_ok();
    assert!(!parts("begin 30 2 b\nbegin 40 3 c\nalive 50 2 b\n"));
    assert!(parts("begin 30 2 b\nalive 35 2 b\nbegin 40 3 c\n"));
    assert!(!parts("") && !parts("begin 30 2 b\n"), "nothing could overlap");
}

#[test]
fn the_child_writes_the_log_that_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let log = directory.path().join("log");
    let job = |name: &str| just_child(["--name", name, "--log", log.to_str().unwrap()]);
    job("a").run();
    let mut b = job("b").args(["--wait", "--beat"]).spawn();
    b.wait_stdout("b ready");
    poll::until("a beat", || JobLog::read(&log).runs().get(1).filter(|run| run.last > run.begin).map(drop));
    b.signal(Signal::SIGKILL);
    b.wait().expect_signal(Signal::SIGKILL);
    job("c").run();
    assert_eq!(JobLog::read(&log).expect_no_overlap().order(), ["a", "b", "c"]);
}
