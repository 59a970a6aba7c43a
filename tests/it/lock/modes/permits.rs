//! `--permits`: at most that many hold at a time.

use std::collections::BTreeMap;

use nix::sys::signal::Signal;

use super::{contender, gets_it, line_up, queue};
use crate::harness::client::expire_session;
use crate::harness::poll;
use crate::harness::running::{Running, finish, only_line, silent};
use crate::harness::scratch::{LOCK, Scratch, direct};

#[test]
fn never_more_and_never_fewer_than_three() {
    const CONTENDERS: usize = 20;
    let scratch = Scratch::new();
    let names: Vec<String> = (0..CONTENDERS).map(|n| format!("3-{n}")).collect();
    let mut jobs: BTreeMap<&str, Running> = names
        .iter()
        .map(|name| (name.as_str(), contender(&scratch, name).child(scratch.logged(name)).spawn()))
        .collect();
    scratch.wait_queue(CONTENDERS);
    for ended in 0..CONTENDERS {
        let expected = CONTENDERS.min(ended + 3);
        let running = poll::until(format_args!("{expected} have begun"), || {
            let log = scratch.log();
            let running: Vec<_> = log.runs().iter().filter(|run| !run.ended).map(|run| run.name.clone()).collect();
            (log.runs().len() == expected && running.len() == expected - ended).then_some(running)
        });
        assert_eq!(scratch.client().children(LOCK).len(), CONTENDERS - ended);
        let chosen = &running[fastrand::usize(..running.len())];
        silent(finish(jobs.get_mut(chosen.as_str()).expect("each runs once")));
    }
    assert_eq!(scratch.log().most_at_once(), 3);
}

#[test]
fn free_again_when_the_holder_goes() {
    let scratch = Scratch::new();
    let mut jobs = line_up(&scratch, &["2-a", "2-b", "2-c", "2-d"], 2);
    jobs[0].signal(Signal::SIGKILL);
    jobs[2].wait_stdout("ready");
    jobs[0].wait_until_nothing_is_left();
    let nodes = scratch.wait_queue(3);
    let (_, stat) = scratch.client().get(&format!("{LOCK}/{}", nodes[0])).unwrap();
    expire_session(&direct(), stat.owner);
    jobs[3].wait_stdout("ready");
    jobs[1].wait().expect_code(76);
    assert!(!gets_it(&scratch, "2-e"));
    silent(finish(&mut jobs[2]));
    assert!(gets_it(&scratch, "2-e"));
    silent(finish(&mut jobs[3]));
    assert!(scratch.client().children(LOCK).is_empty());
}

#[test]
fn another_number_is_refused() {
    let scratch = Scratch::new();
    let mut holder = line_up(&scratch, &["3-a"], 1);
    for name in ["2-b", "4-b"] {
        let output = contender(&scratch, name).child(["--name", name]).run().expect_code(78);
        assert_eq!(only_line(&output), "/lock is used with --permits 3: use the same number");
    }
    assert_eq!(scratch.client().children(LOCK).len(), 1);
    assert!(gets_it(&scratch, "3-b"));
    silent(finish(&mut holder[0]));
    assert!(gets_it(&scratch, "4-b"));
}

#[test]
fn beside_writers_and_readers() {
    let scratch = Scratch::new();
    let mut jobs = line_up(&scratch, &["2-a", "writer", "2-b"], 1);
    assert!(!gets_it(&scratch, "writer") && !gets_it(&scratch, "reader"));
    silent(finish(&mut jobs[0]));
    silent(finish(&mut jobs[1]));
    jobs[2].wait_stdout("ready");
    assert!(gets_it(&scratch, "reader"));
    let mut reader = queue(&scratch, "reader", 2);
    reader.wait_stdout("ready");
    assert!(!gets_it(&scratch, "2-c"));
    silent(finish(&mut reader));
    assert!(gets_it(&scratch, "2-c"));
    silent(finish(&mut jobs[2]));
    scratch.log().expect_apart(|one, two| one.name == "writer" || two.name == "writer");
}
