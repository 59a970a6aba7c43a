//! `--dialect single`: one ephemeral node, `LOCK/lock`, and no queue.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::{Value, json};

use crate::harness::client::Kind;
use crate::harness::creation::creations;
use crate::harness::frames::{Op, Request};
use crate::harness::poll;
use crate::harness::process;
use crate::harness::proxy::{Fate, Proxy};
use crate::harness::running::{Running, finish, only_line, silent};
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::terminal::Terminal;
use crate::harness::zklock::{Zklock, binary};

const SINGLE: [&str; 2] = ["--dialect", "single"];
const NODE: &str = "/lock/lock";

/// A contender whose command runs.
#[track_caller]
fn hold(scratch: &Scratch) -> Running {
    scratch.hold_with(&SINGLE, &["--exit-on", "TERM"])
}

/// Contenders that wait: they watch the node, as its holder does.
#[track_caller]
fn wait(scratch: &Scratch, names: &[&str]) -> Vec<Running> {
    let start = |name: &&str| scratch.start(&direct(), name, &SINGLE, &["--exit-on", "TERM"]);
    let waiters = names.iter().map(start).collect();
    wait_watched(scratch, names.len() + 1);
    waiters
}

#[track_caller]
fn wait_watched(scratch: &Scratch, count: usize) {
    poll::until(format_args!("{count} watch {NODE}"), || (scratch.watchers().get(NODE) == Some(&count)).then_some(()));
}

#[test]
fn one_after_the_other() {
    let scratch = Scratch::new();
    let mut holder = hold(&scratch);
    scratch.expect_ours(&holder);
    assert_eq!(holder.variable("ZKLOCK_NODE"), NODE);
    let busy = scratch.zklock().args(SINGLE).args(["-n", LOCK, "true"]).run().expect_code(75);
    assert!(only_line(&busy).starts_with("/lock is not free: held by "), "{busy}");
    let late = scratch.zklock().args(SINGLE).args(["-w", "1s", LOCK, "true"]).run().expect_code(75);
    assert!(only_line(&late).starts_with("gave up waiting for /lock after 1s: held by "), "{late}");

    let mut waiters = wait(&scratch, &["one", "two", "three"]);
    // What is stored there does not end a turn.
    scratch.client().set(NODE, b"10.0.0.8").expect("the node is there");
    wait_watched(&scratch, 4);
    assert_eq!(scratch.log().order(), ["holder"]);
    silent(finish(&mut holder));
    // In any order.
    while !waiters.is_empty() {
        let next =
            poll::until("one of them holds", || waiters.iter().position(|waiter| waiter.stdout().contains(" ready")));
        let mut next = waiters.swap_remove(next);
        scratch.expect_ours(&next);
        finish(&mut next);
    }
    assert_eq!(scratch.log().expect_no_overlap().order().len(), 4);
}

#[test]
fn queues_and_single_nodes_do_not_mix() {
    let scratch = Scratch::new();
    let refused = |options: &[&str]| {
        let output = scratch.zklock().args(options).args(["-n", LOCK, "true"]).run().expect_code(78);
        only_line(&output)
    };
    let mut holder = hold(&scratch);
    for options in [&[][..], &["--dialect", "kazoo,curator-rw"], &["--shared"]] {
        let line = refused(options);
        assert_eq!(line, "/lock is used by a client that would not wait for zklock (lock): use --dialect single");
    }
    finish(&mut holder);

    for prefix in ["mine-lock-", "0123456789abcdef0123456789abcdef__lock__"] {
        let other = format!("{LOCK}/{prefix}");
        let other = scratch.client().create(&other, b"", Kind::EphemeralSequential).expect("a contender");
        assert!(refused(&SINGLE).contains("would not wait for zklock"), "{prefix}");
        // Nor while it waits.
        scratch.client().create(NODE, b"", Kind::Ephemeral).expect("the name is free");
        assert!(refused(&SINGLE).contains("would not wait for zklock"), "{prefix}");
        scratch.delete(NODE);
        scratch.delete(&other);
    }
}

/// A lock may be below another one, and be named `lock`.
#[test]
fn a_node_that_stays_is_no_contender() {
    let scratch = Scratch::new().with_lock();
    scratch.client().create(NODE, b"", Kind::Persistent).expect("a node");
    let mut holder = scratch.hold();
    scratch.zklock().args(["-n", NODE, "true"]).run().expect_code(0);
    let status = silent(scratch.zklock().args(["status", LOCK]).run().expect_code(0)).stdout();
    assert!(status.starts_with("/lock: 1 holds\n"), "{status}");
    finish(&mut holder);
    let busy = scratch.zklock().args(SINGLE).args(["-n", LOCK, "true"]).run().expect_code(75);
    assert_eq!(only_line(&busy), "/lock is not free: held by a node that is not ephemeral");
}

fn creates_node(request: &Request) -> bool {
    creations().contains(&request.op) && request.path.ends_with(NODE)
}

/// The node has no name of its own: its owner tells that it is ours.
#[test]
fn reply_to_create_lost() {
    for fate in [Fate::Reset, Fate::Blackhole] {
        let (scratch, proxy) = Scratch::proxied();
        let trap = proxy.trap(fate, creates_node);
        let options = [&SINGLE[..], &["--session-timeout", "20"]].concat();
        let mut job = scratch.start(&proxy.address(), "job", &options, &["--exit-on", "TERM"]);
        trap.wait();
        let created = scratch.only_contender();
        proxy.pass();
        job.wait_stdout("ready");
        scratch.expect_ours(&job);
        assert_eq!(scratch.only_contender(), created);
        assert_eq!(proxy.requests().iter().filter(|request| creates_node(request)).count(), 1);
        finish(&mut job);
        scratch.expect_tidy(&["job"]);
    }
}

/// The node was deleted by others, and the next holder has one of the same name.
#[test]
fn the_node_of_the_next_holder_is_left_alone() {
    let scratch = Scratch::new();
    for command_ends in [false, true] {
        let mut job = hold(&scratch);
        let (keeper, command) = (job.keeper(), job.command());
        process::send(keeper, Signal::SIGSTOP);
        if command_ends {
            process::send(command, Signal::SIGTERM);
            poll::until("the command ends", || process::look(command).is_none().then_some(()));
        }
        scratch.delete(NODE);
        scratch.client().create(NODE, b"", Kind::Ephemeral).expect("the name is free");
        process::send(keeper, Signal::SIGCONT);
        let output = job.wait();
        if !command_ends {
            output.expect_code(76);
        }
        job.wait_until_nothing_is_left();
        assert_eq!(scratch.only_contender().stat.owner, scratch.client().session());
        scratch.delete(NODE);
    }
}

/// The first of two locks is lost while the second is waited for.
#[test]
fn a_lock_that_is_lost_on_the_way_to_another() {
    let scratch = Scratch::new().with_lock();
    scratch.client().create("/other", b"", Kind::Persistent).expect("a node");
    let create = |node: &str| scratch.client().create(node, b"", Kind::Ephemeral).expect("the name is free");
    create("/other/lock");
    let options = [&SINGLE[..], &["--and", "/other"]].concat();
    let mut job = scratch.start(&direct(), "job", &options, &["--exit-on", "TERM"]);
    ["/lock/lock", "/other/lock"].iter().for_each(|node| scratch.wait_watched(node));
    scratch.delete(NODE);
    create(NODE);
    job.wait_stderr("lost the place in the queue");
    // Now it waits for this one.
    scratch.wait_watched(NODE);
    assert_eq!(scratch.only_contender().stat.owner, scratch.client().session());
    scratch.delete("/other/lock");
    scratch.delete(NODE);
    job.wait_stdout("job ready");
    finish(&mut job);
}

#[test]
fn status_shows_it_and_break_takes_a_person() {
    let scratch = Scratch::new();
    let mut holder = hold(&scratch);
    let status = silent(scratch.zklock().args(["status", "--json", LOCK]).run().expect_code(0));
    let status: Value = serde_json::from_slice(&status.stdout).expect("JSON");
    let found = &status["locks"][0]["contenders"];
    assert_eq!(found.as_array().expect("an array").len(), 1);
    assert_eq!(
        (&found[0]["client"], &found[0]["node"], &found[0]["holds"]),
        (&json!("single"), &json!("lock"), &json!(true))
    );
    assert_eq!(found[0]["pid"], holder.zklock().as_raw());
    assert_eq!(found[0]["token"].to_string(), holder.variable("ZKLOCK_TOKEN"));

    // Its name is that of every holder.
    let named = scratch.zklock().args(["break", "--force", "--node", "lock", LOCK]).run().expect_code(78);
    assert!(only_line(&named).contains("does not tell one holder of /lock from the next"), "{named}");
    let terminal = Terminal::new(120);
    let mut forced = terminal.spawn(scratch.zklock().args(["break", "--force", LOCK]));
    terminal.wait("the question", |lines| lines.last().is_some_and(|line| line.contains("[y/N]")));
    terminal.enter("y");
    forced.wait().expect_code(0);
    terminal.close();
    holder.wait().expect_code(76);
}

/// Every holder's node has the same name: that of another lock is waited for.
#[test]
fn nested_runs_use_it() {
    let scratch = Scratch::new();
    let nested = |inner: &[&str]| {
        let run = scratch.zklock().args(SINGLE).args([LOCK, "--"]).arg(binary()).arg("-n").args(inner);
        run.arg("true").run()
    };
    nested(&[LOCK]).expect_code(0);
    nested(&[SINGLE[0], SINGLE[1], LOCK]).expect_code(0);
    let mut other = scratch.zklock().args(SINGLE).arg("/other").child(["--exit-on", "TERM"]).spawn();
    other.wait_stdout("ready");
    let output = nested(&[SINGLE[0], SINGLE[1], "/other"]).expect_code(75);
    assert!(only_line(&output).starts_with("/other is not free: held by "), "{output}");
    finish(&mut other);
}

/// The leader has the node, so the lock is not free. There is no other server: this one is asked again and again, but not in
/// a loop without a pause.
#[test]
fn holder_that_the_only_server_does_not_show() {
    const TRIES: usize = 7;
    let (scratch, proxy) = Scratch::proxied();
    let mut holder = hold(&scratch);
    proxy.hide_node(format!("{}{NODE}", scratch.chroot().path()));
    let zklock = || scratch.zklock_by(proxy.address()).args(SINGLE);
    let busy = zklock().args(["-n", LOCK, "true"]).run().expect_code(75);
    assert_eq!(only_line(&busy), "/lock is not free: held by a node that this server does not show");
    let late = zklock().args(["-w", "1s", LOCK, "true"]).run().expect_code(75);
    assert!(only_line(&late).starts_with("gave up waiting for /lock after 1s: held by "), "{late}");

    let tries = || proxy.requests().iter().filter(|request| creates_node(request)).count();
    let (before, began) = (tries(), Instant::now());
    let mut job = scratch.start(&proxy.address(), "job", &SINGLE, &[]);
    poll::until("it tries again", || (tries() >= before + TRIES).then_some(()));
    assert!(began.elapsed() > Duration::from_secs(1), "{:?}", began.elapsed());
    job.signal(Signal::SIGTERM);
    job.wait().expect_signal(Signal::SIGTERM);
    finish(&mut holder);
    scratch.expect_tidy(&["holder"]);
}

#[test]
fn holder_that_another_server_shows() {
    let (scratch, lacking) = Scratch::proxied();
    let sound = Proxy::zookeeper(&direct());
    sound.refuse();
    let mut holder = hold(&scratch);
    lacking.hide_node(format!("{}{NODE}", scratch.chroot().path()));
    let addresses = format!("{},{}", lacking.address(), sound.address());
    let options = [&SINGLE[..], &["-v"]].concat();
    let mut job = scratch.start(&addresses, "job", &options, &["--exit-on", "TERM"]);
    job.wait_stderr("exists, but this server does not show it; asking another one");
    sound.accept();
    wait_watched(&scratch, 2);
    finish(&mut holder);
    job.wait_stdout("job ready");
    scratch.expect_ours(&job);
    finish(&mut job);
    scratch.expect_tidy(&["holder", "job"]);
}

#[test]
fn what_it_cannot_do_is_refused() {
    for (options, part) in [
        (&["--dialect", "single,kazoo"][..], "single has no queue"),
        (&["--dialect", "single", "--shared"], "--shared does not exist in the dialect single"),
        (&["--dialect", "single", "--permits", "2"], "--permits works in the dialect curator alone"),
    ] {
        let output = Scratch::new().zklock().args(options).args([LOCK, "true"]).run().expect_code(64);
        assert!(only_line(&output).contains(part), "{options:?}\n{output}");
    }
}

/// The record of [`LOCK`].
const RECORD: &str = "/lock.zklock.last";

/// A run that is skipped if the last one was in that time.
fn once(scratch: &Scratch, period: &str) -> Zklock {
    scratch.zklock().args(SINGLE).args(["--once-per", period, LOCK]).bare_child()
}

/// In a queue, one transaction writes the record and deletes the node. Here, the name may be another holder's by then.
#[test]
fn the_record_of_a_run_is_written_alone() {
    let scratch = Scratch::new().with_lock();
    for version in 0..2 {
        assert_eq!(silent(once(&scratch, "1ms").run().expect_code(0)).stdout(), "ready\n");
        let (_, record) = scratch.client().get(RECORD).expect("the run is recorded");
        let (_, lock) = scratch.client().get(LOCK).expect("it stays");
        assert_eq!(record.version, version);
        assert!(record.changed < lock.children_changed, "before the end of the session: {record:?} {lock:?}");
    }
    assert_eq!(silent(once(&scratch, "1h").run().expect_code(0)).stdout(), "");
    assert_eq!(scratch.client().children(LOCK), [""; 0]);
}

/// A waiter has no node that tells when it asked.
#[test]
fn of_runs_that_wait_together_one_runs() {
    let scratch = Scratch::new().with_lock();
    scratch.client().create(NODE, b"", Kind::Ephemeral).expect("the lock is free");
    let runs = [(); 3].map(|()| once(&scratch, "1ms").spawn());
    wait_watched(&scratch, 3);
    scratch.delete(NODE);
    let mut said = runs.map(|mut run| silent(run.wait().expect_code(0)).stdout());
    said.sort();
    assert_eq!(said, ["", "", "ready\n"]);
    // This one asks later.
    assert_eq!(silent(once(&scratch, "1ms").run().expect_code(0)).stdout(), "ready\n");
}

/// A deletion by name could hit the next holder's node. So the session is ended, and not only on the order of a supervisor,
/// which may be stopped.
#[test]
fn a_run_that_is_skipped_leaves_with_its_session() {
    let (scratch, proxy) = Scratch::proxied();
    silent(once(&scratch, "1ms").run().expect_code(0));
    scratch.client().create(NODE, b"", Kind::Ephemeral).expect("the lock is free");
    let skipped = scratch.zklock_by(proxy.address()).args(SINGLE).args(["--once-per", "1h", LOCK]).bare_child();
    let mut skipped = skipped.spawn();
    wait_watched(&scratch, 1);
    process::stop(skipped.pid());
    scratch.delete(NODE);
    proxy.wait_count(Op::CloseSession, 1);
    assert_eq!(proxy.count(Op::Delete), 0);
    scratch.wait_queue(0);
    process::send(skipped.pid(), Signal::SIGCONT);
    assert_eq!(silent(skipped.wait().expect_code(0)).stdout(), "");
}

/// It is waited for like any other.
#[test]
fn a_node_that_may_not_be_read() {
    let scratch = Scratch::new().with_lock();
    scratch.client().create(NODE, b"", Kind::Ephemeral).expect("a node can be created");
    scratch.client().make_unreadable(NODE).expect("the node exists");
    let busy = scratch.zklock().args(SINGLE).args(["-n", LOCK, "true"]).run().expect_code(75);
    assert_eq!(only_line(&busy), "/lock is not free: held by a node that may not be read");
    let options = [&SINGLE[..], &["-v"]].concat();
    let mut waiter = scratch.start(&direct(), "waiter", &options, &["--exit-on", "TERM"]);
    waiter.wait_stderr("waiting for /lock: held by a node that may not be read");
    scratch.client().remove(NODE);
    waiter.wait_stdout("ready");
    scratch.expect_ours(&waiter);
    finish(&mut waiter);
}
