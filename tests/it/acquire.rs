//! Taking a lock and giving it back: who runs when, who waits for whom, what becomes of the nodes.

use std::collections::BTreeMap;
use std::fs;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use nix::sys::signal::Signal;
use serde_json::Value;

use crate::harness::client::{Kind, sequence};
use crate::harness::frames::Op;
use crate::harness::joblog::Run;
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::proxy::{Fate, Proxy};
use crate::harness::running::{Running, finish, only_line, silent};
use crate::harness::scratch::{LOCK, Scratch, direct};
use crate::harness::server::{Server, Settings};
use crate::harness::zklock::child;

/// A proxy before the shared server.
fn proxy() -> Proxy {
    Proxy::zookeeper(&direct())
}

const LISTS: [Op; 2] = [Op::GetChildren, Op::GetChildren2];

/// How often the lock's children were listed over each connection, in the order of the connections.
fn lists(proxy: &Proxy) -> Vec<usize> {
    let mut lists = BTreeMap::new();
    for request in proxy.requests() {
        *lists.entry(request.connection).or_default() += usize::from(LISTS.contains(&request.op));
    }
    lists.into_values().collect()
}

// A free lock.

#[test]
fn a_free_lock_runs_the_command_and_its_status_comes_back() {
    let scratch = Scratch::new();
    let output = silent(scratch.zklock().arg(LOCK).child(["--exit", "7"]).run().expect_code(7));
    assert_eq!(output.stdout(), "ready\n");
    // Not in a moment, but when zklock has exited.
    assert!(scratch.client().children(LOCK).is_empty());
}

#[test]
fn the_node_is_there_while_the_command_runs_and_gone_afterwards() {
    let scratch = Scratch::new();
    let mut holder = scratch.hold();
    assert_eq!(scratch.client().children(LOCK).len(), 1);
    silent(finish(&mut holder));
    assert!(scratch.client().children(LOCK).is_empty());
}

#[test]
fn stdin_and_stdout_pass_byte_for_byte() {
    let scratch = Scratch::new();
    let bytes: Vec<u8> = (0..1 << 20).map(|_| fastrand::u8(..)).collect();
    let output = silent(scratch.zklock().args([LOCK, "cat"]).stdin(bytes.clone()).run().expect_code(0));
    assert!(output.stdout == bytes, "{} bytes of {} came back, or others", output.stdout.len(), bytes.len());
}

#[test]
fn arguments_reach_the_command_byte_for_byte() {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt;
    let args: [&[u8]; 10] =
        [b"caf\xe9", b"\xff\xfe", b"", b" ", b"a\nb", b"$HOME", b"*", b"--timeout", b"3", "ü漢🔒".as_bytes()];
    for before in [&[][..], &["--"]] {
        let scratch = Scratch::new();
        let zklock = scratch.zklock().arg(LOCK).args(before).args(["printf", "%s\\0"]);
        let output = silent(zklock.args(args.map(OsStr::from_bytes)).run().expect_code(0));
        assert_eq!(output.stdout, args.map(|arg| [arg, b"\0"].concat()).concat());
    }
}

#[test]
fn options_may_follow_the_lock_and_those_after_the_command_are_its_own() {
    let scratch = Scratch::new();
    let mut holder = scratch.hold();
    let busy = scratch.zklock().args([LOCK, "-x", "-n", "-E", "9", "--"]).arg(child()).arg("--exit").arg("3");
    busy.run().expect_code(9);
    finish(&mut holder);
    scratch.zklock().args([LOCK, "-n", "-E", "9", "-x"]).arg(child()).args(["--exit", "3"]).run().expect_code(3);
}

#[test]
fn a_shell_command_is_run_by_the_callers_shell() {
    let scratch = Scratch::new();
    let script = "echo $ZKLOCK_PATH | tr a-z A-Z; exit 5";
    let zklock = scratch.zklock().env("SHELL", "/bin/sh").args([LOCK, "-c", script]);
    assert_eq!(silent(zklock.run().expect_code(5)).stdout(), "/LOCK\n");
    let echo = scratch.zklock().env("SHELL", "/bin/echo").args(["-c", "a | b", LOCK]);
    assert_eq!(silent(echo.run().expect_code(0)).stdout(), "-c a | b\n");
}

#[test]
fn a_command_that_dies_of_a_signal_takes_zklock_along_without_a_second_core() {
    let scratch = Scratch::new();
    let job = scratch.zklock().program("sh").args(["-c", "ulimit -c unlimited 2>/dev/null; exec \"$@\"", "sh"]);
    let job = job.arg(crate::harness::zklock::binary()).arg(LOCK).child(["--die-of", "SEGV"]);
    let output = silent(job.run().expect_signal(Signal::SIGSEGV));
    assert!(!std::os::unix::process::ExitStatusExt::core_dumped(&output.status), "{output}");
}

// Commands that cannot run.

#[test]
fn a_command_that_cannot_run_is_refused_before_anything_is_asked_of_a_server() {
    let scratch = Scratch::new();
    let proxy = proxy();
    let plain = scratch.file("plain");
    std::fs::write(&plain, "#!/bin/sh\n").unwrap();
    let plain = plain.to_str().unwrap();
    for (command, code) in
        [("no-such-command", 127), ("./no-such-file", 127), ("/etc/passwd/x", 127), (plain, 126), ("/etc", 126)]
    {
        let output = scratch.zklock_by(proxy.address()).args([LOCK, command]).run().expect_code(code);
        assert!(only_line(&output).starts_with(command), "{output}");
    }
    assert_eq!(proxy.accepted(), 0);
    assert!(!scratch.client().exists(LOCK));
}

#[test]
fn a_command_that_goes_while_zklock_waits_is_not_found_and_the_lock_is_released() {
    let scratch = Scratch::new();
    let mut holder = scratch.hold();
    let command = scratch.file("command");
    std::fs::copy("/bin/true", &command).unwrap();
    let mut waiter = scratch.zklock().arg(LOCK).arg(&command).spawn();
    scratch.wait_queue(2);
    std::fs::remove_file(&command).unwrap();
    finish(&mut holder);
    only_line(&waiter.wait().expect_code(127));
    assert!(scratch.client().children(LOCK).is_empty());
}

// The queue.

/// Twenty commands of which each runs until it is told to end: two at a time would be there to be seen.
#[test]
fn twenty_at_once_never_overlap_and_all_run_in_the_order_of_their_nodes() {
    let scratch = Scratch::new();
    let mut jobs: BTreeMap<String, Running> = (0..20)
        .map(|n| n.to_string())
        .map(|name| (name.clone(), scratch.zklock().arg(LOCK).child(scratch.logged(&name)).spawn()))
        .collect();
    let nodes = scratch.wait_queue(20);
    let pid = |node: &String| scratch.card(node)["pid"].as_u64().and_then(|pid| i32::try_from(pid).ok());
    let of_pid: BTreeMap<Option<i32>, &String> =
        jobs.iter().map(|(name, job)| (Some(job.pid().as_raw()), name)).collect();
    let expected: Vec<String> = nodes.iter().map(|node| of_pid[&pid(node)].clone()).collect();
    for n in 0..20 {
        let name =
            poll::until(format_args!("number {n} begins"), || scratch.log().runs().get(n).map(|run| run.name.clone()));
        silent(finish(jobs.get_mut(&name).expect("each runs once")));
    }
    assert_eq!(scratch.log().expect_no_overlap().order(), expected);
}

#[test]
fn waiters_run_in_the_order_of_arrival() {
    let scratch = Scratch::new();
    let mut jobs: Vec<Running> = (1..=6).map(|n| scratch.queue(&n.to_string(), n - 1)).collect();
    for (n, job) in jobs.iter_mut().enumerate() {
        job.wait_stdout("ready");
        assert_eq!(scratch.client().children(LOCK).len(), 6 - n);
        silent(finish(job));
    }
    assert_eq!(scratch.log().expect_no_overlap().order(), ["1", "2", "3", "4", "5", "6"]);
}

/// Each but the first is next in line for the moment that the command before it takes: too short to have beaten for long.
#[test]
fn short_commands_follow_each_other_at_once_however_long_they_have_waited() {
    const SESSION_TIMEOUT: Duration = Duration::from_secs(8);
    let scratch = Scratch::new();
    let mut holder = scratch.hold();
    let log = scratch.file("log");
    let short = || scratch.zklock().args([LOCK, "--session-timeout", "8s"]).child(["--log"]).arg(&log).spawn();
    let mut jobs = Vec::new();
    for n in 2..=6 {
        jobs.push(short());
        scratch.wait_queue(n);
    }
    let queued = Moment::now();
    poll::until("nothing is left of the time before", || (Moment::now().since(queued) > SESSION_TIMEOUT).then_some(()));
    finish(&mut holder);
    for job in &mut jobs {
        silent(job.wait().expect_code(0));
    }
    let log = scratch.log().expect_no_overlap();
    let gap = |pair: &[Run]| Duration::from_nanos(pair[1].begin - pair[0].last);
    let mut gaps: Vec<Duration> = log.runs().windows(2).map(gap).collect();
    gaps.sort_unstable();
    // Without a lease that is there already, each would take a quarter of the session timeout. A machine that does other
    // things may make some of them as slow.
    assert!(gaps.len() == 5 && gaps[2] < SESSION_TIMEOUT / 8, "{gaps:?}");
}

#[test]
fn a_release_wakes_exactly_one_waiter() {
    const WAITERS: usize = 8;
    let scratch = Scratch::new();
    let proxy = proxy();
    // With its first beat, after a fifth of the session timeout, a holder publishes since when it holds. Who waits for it
    // looks again then, and that is not what is counted here.
    let zklock = || scratch.zklock_by(proxy.address()).args([LOCK, "--session-timeout", "2m"]);
    let start = |name: &str| zklock().child(scratch.logged(name)).spawn();
    let mut jobs = Vec::new();
    for n in 0..=WAITERS {
        jobs.push(start(&n.to_string()));
        scratch.wait_queue(n + 1);
    }
    // Every contender watches itself and the one before it, and nobody watches the lock.
    let nodes = scratch.wait_queue(WAITERS + 1);
    let mut expected: BTreeMap<String, usize> = nodes.iter().map(|node| (format!("{LOCK}/{node}"), 2)).collect();
    expected.insert(format!("{LOCK}/{}", nodes[WAITERS]), 1);
    poll::until("everyone watches", || (scratch.watchers() == expected).then_some(()));
    for job in &mut jobs {
        job.wait_stdout("ready");
        finish(job);
    }
    // Whoever is woken lists again: each waiter once, when its turn comes. The first created the lock's node; the second
    // knows from its first list that nobody else was before it.
    assert_eq!(lists(&proxy)[1], 1);
    assert_eq!(lists(&proxy)[2..], [2; WAITERS - 1]);
}

#[test]
fn a_predecessor_that_goes_between_the_list_and_the_watch_is_not_waited_for() {
    let scratch = Scratch::new();
    let proxy = proxy();
    let mut holder = scratch.hold();
    let trap = proxy.trap_ops(Fate::Wait, &LISTS);
    let mut waiter = scratch.zklock_by(proxy.address()).arg(LOCK).child(scratch.logged("waiter")).spawn();
    trap.wait();
    finish(&mut holder);
    trap.release();
    waiter.wait_stdout("ready");
    finish(&mut waiter);
    scratch.log().expect_no_overlap();
}

#[test]
fn a_waiter_in_the_middle_gives_up_and_its_successor_neither_starts_early_nor_is_forgotten() {
    let scratch = Scratch::new();
    let proxy = proxy();
    let mut holder = scratch.hold();
    let mut middle = scratch.queue("middle", 1);
    let mut last = scratch.zklock_by(proxy.address()).arg(LOCK).child(scratch.logged("last")).spawn();
    let holding = format!("{LOCK}/{}", scratch.wait_queue(3)[0]);
    let watch = |watchers: usize| {
        poll::until(format_args!("{watchers} watch the holder"), || {
            (scratch.watchers().get(&holding) == Some(&watchers)).then_some(())
        });
    };
    watch(2);
    middle.signal(Signal::SIGTERM);
    silent(middle.wait().expect_signal(Signal::SIGTERM));
    // The holder itself and the last, which has looked again. It does so, too, when the holder publishes since when it
    // holds.
    poll::until("the last looks again", || (lists(&proxy)[0] >= 2).then_some(()));
    watch(2);
    assert_eq!(scratch.log().order(), ["holder"]);
    finish(&mut holder);
    last.wait_stdout("ready");
    finish(&mut last);
    assert_eq!(scratch.log().expect_no_overlap().order(), ["holder", "last"]);
}

// Giving up.

#[test]
fn nonblock_gives_up_at_once_and_names_the_holder() {
    let scratch = Scratch::new();
    let holder = scratch.zklock().args([LOCK, "--describe", "nightly dump"]);
    let mut holder = holder.child(scratch.logged("holder")).spawn();
    holder.wait_stdout("ready");
    for give_up in [&["-n"][..], &["--timeout", "0"], &["-n", "-w", "60"]] {
        let output = scratch.zklock().args(give_up).arg(LOCK).child(scratch.logged("loser")).run().expect_code(75);
        let line = only_line(&output);
        let named = format!("pid {}, child: nightly dump)", holder.pid());
        assert!(line.starts_with("/lock is not free: held by ") && line.contains(&named), "{output}");
        assert_eq!(scratch.client().children(LOCK).len(), 1, "no node is left");
    }
    finish(&mut holder);
    assert_eq!(scratch.log().order(), ["holder"]);
}

#[test]
fn nonblock_takes_a_lock_that_is_free() {
    let scratch = Scratch::new();
    silent(scratch.zklock().args(["-n", LOCK]).child(["--exit", "4"]).run().expect_code(4));
}

#[test]
fn giving_up_exits_with_the_status_that_was_asked_for() {
    let scratch = Scratch::new();
    let mut holder = scratch.hold();
    for (status, code) in [("0", 0), ("1", 1), ("255", 255)] {
        only_line(&scratch.zklock().args(["-n", "-E", status, LOCK, "true"]).run().expect_code(code));
    }
    finish(&mut holder);
}

#[test]
fn a_holder_that_says_nothing_is_named_by_its_node() {
    let scratch = Scratch::new();
    scratch.client().create(LOCK, b"", Kind::Persistent).unwrap();
    // A megabyte of what is no text, as much as a server takes.
    scratch.client().create(&format!("{LOCK}/x-1-"), &vec![0xac; 1_000_000], Kind::EphemeralSequential).unwrap();
    let output = scratch.zklock().args(["-n", LOCK, "true"]).run().expect_code(75);
    assert_eq!(only_line(&output), "/lock is not free: held by x-1-0000000000");
}

/// One timeout over everything: each departure before it makes the waiter look again.
#[test]
fn a_timeout_of_five_seconds_is_over_after_five_seconds_however_many_leave_before_it() {
    const DEPARTURES: u32 = 5;
    let scratch = Scratch::new();
    let mut holder = scratch.hold();
    let others: Vec<String> = (0..DEPARTURES)
        .map(|_| scratch.client().create(&format!("{LOCK}/x-1-"), b"", Kind::EphemeralSequential).unwrap())
        .collect();
    let mut loser = scratch.zklock().args(["-w", "5", LOCK]).child(scratch.logged("loser")).spawn();
    scratch.wait_queue(7);
    // The nearest leaves first.
    for (other, n) in others.iter().rev().zip(1..) {
        let time = Duration::from_millis(900) * n;
        poll::until("it is time to leave", || (loser.has_ended() || loser.elapsed() >= time).then_some(()));
        scratch.delete(other);
    }
    let output = loser.wait().expect_code(75);
    let line = only_line(&output);
    assert!(line.starts_with("gave up waiting for /lock after 5s: ") && line.contains(", held by "), "{output}");
    // Half of a second or so would do, but on a machine that does other things, too. Counted anew from each departure,
    // it would be 4.5 s.
    let late = output.elapsed.checked_sub(Duration::from_secs(5)).expect("not before five seconds");
    assert!(late < Duration::from_secs(4), "{late:?} late\n{output}");
    loser.wait_until_nothing_is_left();
    assert_eq!(scratch.client().children(LOCK).len(), 1, "no node is left");
    finish(&mut holder);
    assert_eq!(scratch.log().order(), ["holder"]);
}

// Parents.

/// A server that soon removes containers that have become empty.
fn reaper() -> Server {
    Settings::default().property("znode.container.checkIntervalMs=300").server()
}

#[test]
fn a_deep_lock_is_created_and_its_parents_go_when_nobody_uses_them() {
    let server = reaper();
    let scratch = Scratch::on(server.chroot());
    let mut job = scratch.zklock().arg("/jobs/über nacht/漢字/lock").child(["--exit-on", "TERM"]).spawn();
    job.wait_stdout("ready");
    assert_eq!(scratch.client().children("/jobs/über nacht/漢字"), ["lock"]);
    finish(&mut job);
    scratch.client().wait_count("/", 0);
}

#[test]
fn parents_that_go_between_their_creation_and_the_next_try_are_created_again() {
    let scratch = Scratch::new();
    let proxy = proxy();
    // The first creation of the lock's node fails for want of parents; the second is the one that is answered well.
    let creations = AtomicUsize::new(0);
    let trap = proxy.trap(Fate::Wait, move |request| {
        let is_the_lock = request.op == Op::CreateContainer && request.path.ends_with("/a/lock");
        is_the_lock && creations.fetch_add(1, Ordering::Relaxed) == 1
    });
    let mut job = scratch.zklock_by(proxy.address()).arg("/a/lock").child(["--exit-on", "TERM"]).spawn();
    trap.wait();
    for node in ["/a/lock", "/a"] {
        scratch.delete(node);
    }
    trap.release();
    job.wait_stdout("ready");
    silent(finish(&mut job));
}

#[test]
fn a_server_without_containers_gets_parents_that_stay() {
    let server = reaper();
    let scratch = Scratch::on(server.chroot());
    let proxy = Proxy::zookeeper(&server.address());
    proxy.make_unknown(Op::CreateContainer);
    silent(scratch.zklock_by(proxy.address()).args(["/stay/b/lock", "true"]).run().expect_code(0));
    silent(scratch.zklock().args(["/go/b/lock", "true"]).run().expect_code(0));
    // What was there before these and did not go with them does not go.
    assert_eq!(scratch.client().wait_count("/", 1), ["stay"]);
    assert!(scratch.client().exists("/stay/b/lock"));
}

#[test]
fn a_missing_chroot_is_named_and_not_created() {
    let scratch = Scratch::new();
    for lock in [LOCK, "/deep/lock"] {
        let chroot = format!("{}/missing", scratch.chroot());
        let output = scratch.zklock().args(["-z", &chroot, lock, "true"]).run().expect_code(78);
        let path = format!("the chroot {}/missing does not exist", scratch.chroot().path());
        assert!(only_line(&output).starts_with(&path), "{output}");
    }
    assert!(!scratch.client().exists("/missing"));
}

// What is in the node, and beside it.

#[test]
fn the_name_of_the_node_carries_the_session_and_the_shape_of_curators() {
    let scratch = Scratch::new();
    let mut holder = scratch.hold();
    let node = scratch.wait_queue(1).remove(0);
    let (_, stat) = scratch.client().get(&format!("{LOCK}/{node}")).unwrap();
    let uuid = node.strip_prefix("_c_").and_then(|rest| rest.strip_suffix("-lock-0000000000")).unwrap();
    let groups: Vec<usize> = uuid.split('-').map(str::len).collect();
    assert_eq!(groups, [8, 4, 4, 4, 12], "{node}");
    let digits = uuid.replace('-', "");
    assert!(digits.chars().all(|digit| matches!(digit, '0'..='9' | 'a'..='f')), "{node}");
    assert_eq!(digits[..16], format!("{:016x}", stat.owner));
    assert_eq!(sequence(&node), Some(0));
    finish(&mut holder);
}

#[test]
fn a_node_tells_who_holds_since_when_and_not_the_arguments() {
    let scratch = Scratch::new();
    let user = nix::unistd::User::from_uid(nix::unistd::getuid()).unwrap().map(|user| user.name);
    // The user is left out when the lookup takes long, as it may on a loaded machine. Then this is no proof, and is done
    // once more.
    let (mut holder, node) = poll::until("the node names the user", || {
        let mut holder = scratch.zklock().arg(LOCK).child(["--name", "hunter2", "--exit-on", "TERM"]).spawn();
        holder.wait_stdout("ready");
        let node = scratch.wait_queue(1).remove(0);
        if scratch.card(&node)["user"].as_str() == user.as_deref() {
            return Some((holder, node));
        }
        finish(&mut holder);
        None
    });
    // It is published with the first beat.
    let card = poll::until("since when it holds", || {
        let card = scratch.card(&node);
        card["held_since"].is_u64().then_some(card)
    });
    let host = nix::unistd::gethostname().unwrap().into_string().unwrap();
    let expected = [
        ("v", Value::from(1)),
        ("host", host.into()),
        ("pid", holder.pid().as_raw().into()),
        ("command", "child".into()),
        ("mode", "exclusive".into()),
        ("describe", Value::Null),
    ];
    for (field, value) in expected {
        assert_eq!(card[field], value, "{field} of {card}");
    }
    assert!(!card.to_string().contains("hunter2"), "{card}");
    finish(&mut holder);
}

/// As when the directory service that has the users is down.
#[test]
fn a_user_lookup_that_hangs_is_not_waited_for() {
    let scratch = Scratch::new();
    let (source, library) = (scratch.file("hang.c"), scratch.file("hang.so"));
    fs::write(&source, "#include <unistd.h>\nint getpwuid_r(void) { for (;;) pause(); }\n")
        .expect("a file can be written");
    let compiler = Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).status();
    assert!(compiler.expect("a C compiler").success());
    let zklock = scratch.zklock().env("LD_PRELOAD", library).args([LOCK, "--connect-timeout", "10s"]);
    let mut holder = zklock.child(scratch.logged("holder")).spawn();
    holder.wait_stdout("ready");
    let card = scratch.card(&scratch.wait_queue(1)[0]);
    assert!(card["user"].is_null() && card["pid"].is_number(), "{card}");
    silent(finish(&mut holder));
}

#[test]
fn descriptions_and_on_demand_arguments_are_published() {
    let scratch = Scratch::new();
    let zklock = scratch.zklock().args([LOCK, "--describe", "nightly \"dump\"", "--publish-command"]);
    let mut holder = zklock.child(["--name", "öffentlich", "--exit-on", "TERM"]).spawn();
    holder.wait_stdout("ready");
    let card = scratch.card(&scratch.wait_queue(1)[0]);
    assert_eq!(card["describe"], "nightly \"dump\"");
    assert!(card["command"].as_str().unwrap().ends_with("child --name öffentlich --exit-on TERM"), "{card}");
    finish(&mut holder);
}

#[test]
fn children_that_are_no_contenders_are_neither_waited_for_nor_a_trouble() {
    let scratch = Scratch::new();
    let client = scratch.client();
    client.create(LOCK, b"", Kind::Persistent).unwrap();
    let names = ["config", ".x", "…ünï漢", "lock-", "-lock-", "x-", "0000000000", "a b\u{a0}", "_c_-lock-1", "lease-5"];
    for name in names {
        client.create(&format!("{LOCK}/{name}"), b"\xff\0{", Kind::Persistent).unwrap();
    }
    client.set(&format!("{LOCK}/config"), &vec![0; 1_000_000]).unwrap();
    silent(scratch.zklock().args(["-n", LOCK, "true"]).run().expect_code(0));
    assert_eq!(client.children(LOCK).len(), names.len());
}

// What the command sees.

#[test]
fn the_command_is_told_what_it_holds() {
    let scratch = Scratch::new();
    let outer = "/elsewhere/_c_00000000-0000-0000-0000-000000000000-lock-0000000003";
    let zklock = scratch.zklock().env("ZKLOCK_HELD", outer).env("ZKLOCK_TOKEN", "7").env("ZKLOCK_NODE", outer);
    let mut holder = zklock.arg("/a/lock").args(["printenv", "ZKLOCK_HELD"]).spawn();
    let held = holder.wait_stdout("/elsewhere");
    assert_eq!(held, outer);
    assert!(silent(holder.wait().expect_code(0)).stdout().starts_with(&format!("{outer}\n/a/lock/_c_")));

    let zklock = scratch.zklock().env("ZKLOCK_TOKEN", "7").env("ZKLOCK_NODE", outer).env("ZKLOCK_SESSION", "0x1");
    let mut holder = zklock.arg("/a/lock").child(["--env", "--exit-on", "TERM"]).spawn();
    holder.wait_stdout("ready");
    let node = format!("/a/lock/{}", scratch.client().wait_count("/a/lock", 1)[0]);
    let (_, stat) = scratch.client().get(&node).unwrap();
    let expected = [
        ("ZKLOCK_PATH", "/a/lock".to_owned()),
        ("ZKLOCK_NODE", node.clone()),
        ("ZKLOCK_TOKEN", stat.czxid.to_string()),
        ("ZKLOCK_SESSION", format!("{:#x}", stat.owner)),
        ("ZKLOCK_MODE", "exclusive".to_owned()),
        ("ZKLOCK_HELD", node),
    ];
    for (name, value) in expected {
        assert_eq!(holder.variable(name), value, "{name}");
    }
    finish(&mut holder);
}

#[test]
fn the_token_rises_from_holder_to_holder_also_when_the_lock_is_created_anew() {
    let scratch = Scratch::new();
    let mut last = 0;
    for n in 0..6 {
        let output = silent(scratch.zklock().args([LOCK, "printenv", "ZKLOCK_TOKEN"]).run().expect_code(0));
        let token: i64 = output.stdout().trim().parse().unwrap();
        assert!(token > last, "{token} after {last}");
        last = token;
        if n % 2 == 1 {
            scratch.delete(LOCK);
        }
    }
}

#[test]
fn a_session_timeout_that_the_server_does_not_grant_is_told_on_demand() {
    // Under the shortest one that servers grant here, a loaded machine might lose the lock.
    let server = Settings::default().line("minSessionTimeout=20000").server();
    let scratch = Scratch::on(server.chroot());
    for (asked, granted, limit) in [("100ms", "20s", "minSessionTimeout"), ("10m", "2m", "maxSessionTimeout")] {
        let zklock = || scratch.zklock().args(["--session-timeout", asked]);
        silent(zklock().args([LOCK, "true"]).run().expect_code(0));
        let output = zklock().args(["-v", LOCK, "true"]).run().expect_code(0);
        let line = format!(
            "zklock: the servers granted a session timeout of {granted}, not {asked}: their {limit} is the limit\n"
        );
        assert!(output.stderr().contains(&line), "{output}");
    }
}
