//! Servers restart, and servers are down: holders are undisturbed where that can be, waiters are patient, nobody spins.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use crate::harness::client::{Client, Kind};
use crate::harness::ensemble::Ensemble;
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::process;
use crate::harness::proxy::Proxy;
use crate::harness::running::{Running, finish, only_line};
use crate::harness::scratch::{LASTING, LOCK, Scratch, direct};
use crate::harness::server::{Data, Role, Server, free_port};
use crate::harness::stub::Stub;
use crate::harness::times::{AT_ONCE, LEASE};
use crate::harness::zklock::Zklock;

// One server at a time.

/// Three waiters behind a holder, all of whom know all servers.
fn crowd(scratch: &Scratch, ensemble: &Ensemble) -> Vec<Running> {
    let mut jobs = Vec::new();
    for (before, name) in ["holder", "one", "two", "three"].into_iter().enumerate() {
        // Longer than a server takes to start, or an election, on a loaded machine.
        let options = ["--session-timeout", "90"];
        jobs.push(scratch.start(&ensemble.addresses(), name, &options, &["--exit-on", "TERM"]));
        scratch.wait_queue(before + 1);
    }
    jobs[0].wait_stdout("ready");
    jobs
}

/// The holder was undisturbed, the waiters are woken in their order, and the tokens rise.
#[track_caller]
fn expect_drained(scratch: &Scratch, mut jobs: Vec<Running>, nodes: &[String]) {
    let now: Vec<_> = scratch.contenders().into_iter().map(|contender| contender.path).collect();
    assert_eq!(now, nodes, "everybody has kept the place");
    assert_eq!(scratch.log().order(), ["holder"]);
    for job in &mut jobs {
        finish(job);
        assert_eq!(job.stderr(), "");
    }
    let told = |name: &str| jobs.iter().map(|job| job.variable(name)).collect::<Vec<_>>();
    assert_eq!(told("ZKLOCK_NODE"), nodes);
    let tokens: Vec<i64> = told("ZKLOCK_TOKEN").iter().map(|token| token.parse().expect("a decimal number")).collect();
    assert!(tokens.is_sorted_by(|one, two| one < two), "{tokens:?}");
    scratch.expect_tidy(&["holder", "one", "two", "three"]);
}

fn nodes(scratch: &Scratch) -> Vec<String> {
    scratch.contenders().into_iter().map(|contender| contender.path).collect()
}

#[test]
fn the_leader_is_killed() {
    let ensemble = Ensemble::start();
    let scratch = Scratch::on(ensemble.chroot()).with_lock();
    let jobs = crowd(&scratch, &ensemble);
    let before = nodes(&scratch);
    let old = ensemble.leader();
    old.kill();
    assert_ne!(ensemble.leader().address(), old.address());
    expect_drained(&scratch, jobs, &before);
}

#[test]
fn all_servers_are_restarted_one_after_the_other() {
    let ensemble = Ensemble::start();
    let scratch = Scratch::on(ensemble.chroot()).with_lock();
    let jobs = crowd(&scratch, &ensemble);
    let before = nodes(&scratch);
    for server in ensemble.servers() {
        server.restart(Data::Kept);
        ensemble.wait_until_serving();
        assert_eq!(ensemble.followers().len(), 2);
    }
    expect_drained(&scratch, jobs, &before);
}

#[test]
fn the_only_server_is_restarted() {
    let server = Server::start();
    let scratch = Scratch::on(server.chroot()).with_lock();
    let options = ["--session-timeout", "90"];
    let mut holder = scratch.start(&server.address(), "holder", &options, &["--exit-on", "TERM"]);
    holder.wait_stdout("ready");
    let mut next = scratch.start(&server.address(), "next", &options, &["--exit-on", "TERM"]);
    scratch.wait_queue(2);
    let before = nodes(&scratch);
    server.restart(Data::Kept);
    assert_eq!(nodes(&scratch), before);
    for job in [&mut holder, &mut next] {
        finish(job);
        assert_eq!(job.stderr(), "");
    }
    scratch.expect_tidy(&["holder", "next"]);
}

// All servers are down.

/// Gives up with 69 after some seconds, with one line that names the servers.
fn nobody_at_the_start(servers: &str, why: &str) {
    let limit = Duration::from_secs(4);
    let options = [LOCK, "--connect-timeout", "4"];
    // A name server that does not answer is asked for as long: resolv.conf(5).
    let zklock = Zklock::at(servers).env("RES_OPTIONS", "timeout:1 attempts:1").args(options);
    let output = zklock.child([""; 0]).run().expect_code(69);
    assert!(limit <= output.elapsed && output.elapsed < limit + AT_ONCE, "{output}");
    assert_eq!(output.stdout(), "");
    let line = format!("zklock: no ZooKeeper server of {servers} answered within 4s: {why}");
    assert!(output.stderr().starts_with(&line) && output.stderr().lines().count() == 1, "{line}\n{output}");
}

#[test]
fn connections_refused_at_the_start() {
    let servers = format!("127.0.0.1:{},127.0.0.1:{}", free_port(), free_port());
    nobody_at_the_start(&servers, &format!("{}: Connection refused", servers.split(',').next().unwrap()));
}

#[test]
fn no_answer_at_the_start() {
    let stub = Stub::silent();
    nobody_at_the_start(&stub.address(), "");
}

#[test]
fn garbage_for_an_answer_at_the_start() {
    let stub = Stub::garbage();
    nobody_at_the_start(&stub.address(), "");
}

#[test]
fn no_such_host_at_the_start() {
    nobody_at_the_start("no-such-host.invalid:2181", "cannot resolve no-such-host.invalid: ");
}

#[test]
fn the_servers_come_up_within_the_connect_timeout() {
    let (scratch, proxy) = Scratch::proxied();
    proxy.refuse();
    let options = [&LASTING[..], &["-v", "--connect-timeout", "60"]].concat();
    let mut job = scratch.start(&proxy.address(), "job", &options, &["--exit-on", "TERM"]);
    job.wait_stderr("no connection");
    proxy.accept();
    finish(&mut job);
    scratch.expect_tidy(&["job"]);
}

/// Runs zklock as a shell's child, which tells in the end how much CPU time it and all its descendants have used.
const WITH_TIMES: &str = r#""$@"; status=$?; times >cpu; exit $status"#;

/// Of the shell's children, in the second line: user and system, as `0m1.250s 0m0.030s`.
fn cpu_seconds(times: &str) -> f64 {
    let seconds = |time: &str| -> f64 {
        let (minutes, seconds) = time.trim_end_matches('s').split_once('m').expect("minutes and seconds");
        minutes.parse::<f64>().expect("minutes") * 60.0 + seconds.parse::<f64>().expect("seconds")
    };
    times.lines().last().expect("a second line").split_whitespace().map(seconds).sum()
}

/// A waiter loses all servers, for longer than its session lasts, until its patience ends.
fn nobody_while_waiting(lose: impl Fn(&Proxy)) {
    let (scratch, proxy) = Scratch::proxied();
    let mut holder = scratch.hold();
    let limit = Duration::from_secs(8);
    let options = ["-v", "--timeout", "8", "--session-timeout", "3"];
    let job = scratch.job(&proxy.address(), "job", &options, &[]);
    let mut waiter = job.run_by(["sh", "-c", WITH_TIMES, "sh"]).spawn();
    scratch.wait_queue(2);
    lose(&proxy);
    let output = waiter.wait().expect_code(69);
    assert!(limit <= output.elapsed && output.elapsed < limit + 2 * AT_ONCE, "{output}");
    let said = output.stderr();
    // Whether the session is over only the servers can say, so the place in the queue is not given up.
    assert_eq!(said.matches("queueing again").count(), 0, "{output}");
    assert!(
        said.contains(&format!("zklock: gave up waiting for {LOCK} after 8s: no ZooKeeper server answered")),
        "{output}"
    );
    // Nobody answers for six seconds: about two lines for each.
    assert!(said.lines().count() < 30 && said.len() < 3000, "a flood of {} bytes\n{output}", said.len());
    let used = cpu_seconds(&scratch.read("cpu"));
    // It takes some hundredths. A loop that spins uses the six seconds for which nobody answers.
    assert!(used < 1.0, "{used} s of CPU time\n{output}");
    finish(&mut holder);
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn connections_refused_while_waiting() {
    nobody_while_waiting(Proxy::refuse);
}

#[test]
fn no_answer_while_waiting() {
    nobody_while_waiting(Proxy::hold);
}

/// Who relies on `-E 0` would be told for ever that somebody else does the work.
#[test]
fn a_silence_that_has_not_been_noticed_yet_is_no_busy_lock() {
    let (scratch, proxy) = Scratch::proxied();
    let mut holder = scratch.hold();
    // The connection is given up after a sixth of the session timeout.
    let options = ["-E", "0", "--timeout", "5", "--session-timeout", "60"];
    let mut waiter = scratch.job(&proxy.address(), "waiter", &options, &[]).env("CI", "true").spawn();
    // It knows who is before it.
    waiter.wait_stderr("2nd of 2");
    proxy.hold();
    let said = waiter.wait().expect_code(69).stderr();
    let line = "zklock: gave up waiting for /lock after 5s: ZooKeeper did not answer in time\n";
    assert!(said.ends_with(line), "{said}");
    finish(&mut holder);
    proxy.pass();
    scratch.expect_tidy(&["holder"]);
}

/// As on a laptop that was asleep: what it knew of the queue before is not the servers' word.
#[test]
fn a_session_that_has_expired_when_the_wait_ends_tells_of_no_busy_lock() {
    let scratch = Scratch::new().with_lock();
    let mut holder = scratch.hold();
    let limit = Duration::from_secs(6);
    let options = ["-E", "0", "--timeout", "6", "--session-timeout", "4"];
    let mut waiter = scratch.job(&direct(), "waiter", &options, &[]).env("CI", "true").spawn();
    waiter.wait_stderr("2nd of 2");
    let processes = [waiter.pid(), waiter.keeper()];
    processes.into_iter().for_each(process::stop);
    scratch.wait_queue(1);
    poll::until("the time to wait is over", || (waiter.elapsed() > limit).then_some(()));
    // The supervisor first, so that it gives up before it hears that the session is over.
    process::send(waiter.pid(), Signal::SIGCONT);
    process::wait_state(waiter.pid(), &['S']);
    process::send(waiter.keeper(), Signal::SIGCONT);
    let said = waiter.wait().expect_code(69).stderr();
    let line = said.lines().last().unwrap();
    assert!(line.starts_with("zklock: gave up waiting for /lock after 6s: ") && !line.contains("held by"), "{said}");
    finish(&mut holder);
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn a_lock_that_is_busy_when_the_connection_is_back_is_busy() {
    let (scratch, proxy) = Scratch::proxied();
    let mut holder = scratch.hold();
    let mut waiter = scratch.start(&proxy.address(), "waiter", &["--timeout", "6"], &[]);
    scratch.wait_queue(2);
    let accepted = proxy.accepted();
    proxy.refuse();
    proxy.reset();
    proxy.accept();
    poll::until("the waiter is back", || (proxy.accepted() > accepted).then_some(()));
    let output = waiter.wait().expect_code(75);
    assert!(only_line(&output).starts_with("gave up waiting for /lock after 6s: 2nd of 2, held by "), "{output}");
    finish(&mut holder);
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn a_server_without_a_quorum_is_called_that() {
    let ensemble = Ensemble::start();
    let [survivor, other] = ensemble.followers();
    other.kill();
    ensemble.leader().kill();
    poll::until("the survivor serves nobody", || {
        survivor.ask("srvr").is_ok_and(|state| state.contains("not currently serving")).then_some(())
    });
    let zklock = Zklock::at(survivor.address()).args(["--connect-timeout", "6s", LOCK, "true"]);
    let line = only_line(&zklock.run().expect_code(69));
    assert!(line.ends_with("is a ZooKeeper server that serves nobody now: it starts, or has no quorum"), "{line}");
}

/// The waiter's session expires while no server answers it; then it is at the tail, behind one who came meanwhile.
#[test]
fn a_session_that_expired_while_waiting_queues_at_the_tail() {
    expired_while_waiting(Proxy::refuse, Proxy::accept);
}

/// The waiter notices the silence only after a while, and its session is younger by that when it has expired.
#[test]
fn a_session_that_expired_in_a_silence_did_not_end_before_its_time() {
    expired_while_waiting(Proxy::hold, |proxy| {
        proxy.reset();
        proxy.pass();
    });
}

#[track_caller]
fn expired_while_waiting(lose: impl Fn(&Proxy), find: impl Fn(&Proxy)) {
    let (scratch, proxy) = Scratch::proxied();
    let mut holder = scratch.hold();
    let mut late =
        scratch.start(&proxy.address(), "late", &["--timeout", "60", "--session-timeout", "6"], &["--exit-on", "TERM"]);
    scratch.wait_queue(2);
    let old = scratch.contenders().pop().unwrap();
    lose(&proxy);
    scratch.wait_queue(1);
    let mut other = scratch.queue("other", 1);
    find(&proxy);
    let line = late.wait_stderr("queue");
    assert_eq!(line, format!("zklock: lost the place in the queue of {LOCK}: the session ended; queueing again"));
    scratch.wait_queue(3);
    let new = scratch.contenders().pop().unwrap();
    assert_ne!(new.stat.owner, old.stat.owner);
    for job in [&mut holder, &mut other, &mut late] {
        finish(job);
    }
    assert_eq!(late.variable("ZKLOCK_NODE"), new.path);
    assert_eq!(late.stderr().lines().count(), 1, "{late}");
    scratch.expect_tidy(&["holder", "other", "late"]);
}

/// `--timeout` counts from the start, not from when it queued again.
#[test]
fn queueing_again_does_not_prolong_the_timeout() {
    let (scratch, proxy) = Scratch::proxied();
    let mut holder = scratch.hold();
    let options = ["--timeout", "14", "--session-timeout", "4"];
    let mut waiter = scratch.start(&proxy.address(), "waiter", &options, &[]);
    scratch.wait_queue(2);
    proxy.refuse();
    scratch.wait_queue(1);
    proxy.accept();
    waiter.wait_stderr("queueing again");
    scratch.wait_queue(2);
    let output = waiter.wait().expect_code(75);
    let limit = Duration::from_secs(14);
    assert!(limit <= output.elapsed && output.elapsed < limit + AT_ONCE, "{output}");
    assert_eq!(output.stderr().lines().count(), 2, "{output}");
    scratch.wait_queue(1);
    finish(&mut holder);
    scratch.expect_tidy(&["holder"]);
}

/// The command ends before the lease does, and its status is what counts. The lock frees itself.
fn nobody_at_the_release(lose: impl Fn(&Proxy), find: impl Fn(&Proxy)) {
    let (scratch, proxy) = Scratch::proxied();
    let mut job = scratch.start(&proxy.address(), "job", &LASTING, &["--until", "done", "--exit", "7"]);
    job.wait_stdout("ready");
    let mut next = scratch.queue("next", 1);
    lose(&proxy);
    scratch.touch("done");
    let told = Instant::now();
    let output = job.wait().expect_code(7);
    let took = told.elapsed();
    assert!(took < Duration::from_secs(20), "{took:?}");
    let line = format!("zklock: the release of {LOCK} was not confirmed; it frees itself within 20s\n");
    assert_eq!(output.stderr(), line);
    job.wait_until_nothing_is_left();
    find(&proxy);
    finish(&mut next);
    scratch.expect_tidy(&["job", "next"]);
}

#[test]
fn connections_refused_at_the_release() {
    nobody_at_the_release(Proxy::refuse, Proxy::accept);
}

#[test]
fn no_answer_at_the_release() {
    nobody_at_the_release(Proxy::hold, Proxy::pass);
}

#[test]
fn the_only_server_is_down_while_the_command_runs() {
    let server = Server::start();
    let scratch = Scratch::on(server.chroot()).with_lock();
    let (mut holder, mut next) = scratch.holder_and_next(&server.address(), &[]);
    server.kill();
    let killed = Moment::now();
    let output = holder.wait().expect_code(76);
    scratch.last_alive("holder").expect_within(LEASE, killed, "the command is dead");
    assert!(output.stderr().starts_with(&format!("zklock: lost the lock {LOCK}: ZooKeeper has not answered ")));
    server.restart(Data::Kept);
    finish(&mut next);
    scratch.expect_tidy(&["holder", "next"]);
}

/// No server knows the session any more, nor the queue.
#[test]
fn the_only_server_loses_its_data() {
    let server = Server::start();
    let scratch = Scratch::on(server.chroot()).with_lock();
    let proxy = Proxy::zookeeper(&server.address());
    let mut holder = scratch.start(&proxy.address(), "holder", &[], &["--wait"]);
    holder.wait_stdout("ready");
    let mut next = scratch.start(&proxy.address(), "next", &[], &["--exit-on", "TERM"]);
    scratch.wait_queue(2);
    proxy.refuse();
    server.restart(Data::Wiped);
    assert_eq!(server.role(), Some(Role::Standalone));
    Client::connect(&server.address()).create(scratch.chroot().path(), b"", Kind::Persistent).unwrap();
    proxy.accept();
    holder.wait().expect_code(76);
    next.wait_stderr("queueing again");
    finish(&mut next);
    assert_eq!(next.stderr().lines().count(), 1, "{next}");
    scratch.expect_tidy(&["holder", "next"]);
}

#[test]
fn a_waiter_is_cancelled_while_all_servers_are_down() {
    let (scratch, proxy) = Scratch::proxied();
    let mut holder = scratch.hold();
    let mut waiter = scratch.start(&proxy.address(), "waiter", &["-v"], &[]);
    scratch.wait_queue(2);
    proxy.hold();
    waiter.wait_stderr("connection to ZooKeeper lost");
    waiter.signal(Signal::SIGTERM);
    let told = Instant::now();
    waiter.wait().expect_signal(Signal::SIGTERM);
    // Nobody can be told to delete the node, so it is tried for a second.
    assert!(told.elapsed() < 2 * AT_ONCE, "{:?}", told.elapsed());
    finish(&mut holder);
    scratch.expect_tidy(&["holder"]);
}
