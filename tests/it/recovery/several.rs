//! The same with contenders that have several nodes, one for each dialect.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

const ALL: [&str; 5] = ["-v", "--session-timeout", "20", "--dialect", "curator,curator-rw,kazoo"];

/// The transaction that creates the nodes of a contender. A beat is a transaction, too, but names a node with its number.
fn creates_all(request: &Request) -> bool {
    request.op == Op::Multi && request.path.ends_with("-lock-")
}

fn lose_creation_of_all(proxy: &Proxy, fate: Fate) -> Trap {
    proxy.trap(fate, creates_all)
}

/// The contenders are the nodes of one transaction, and what the running command was told of.
#[track_caller]
fn expect_three_of_one(scene: &Scene, job: &Running) {
    let nodes = scene.contenders();
    assert_eq!(nodes.len(), 3, "{nodes:?}");
    assert!(nodes.iter().all(|node| node.stat.czxid == nodes[0].stat.czxid), "{nodes:?}");
    assert_eq!(variable(job, "ZKLOCK_NODE"), nodes[0].path);
    assert_eq!(variable(job, "ZKLOCK_TOKEN"), nodes[0].stat.czxid.to_string());
    assert_eq!(variable(job, "ZKLOCK_SESSION"), format!("{:#x}", nodes[0].stat.owner));
}

fn reply_to_create_all_lost(fate: Fate) {
    let (scene, proxy) = Scene::proxied();
    let trap = lose_creation_of_all(&proxy, fate);
    let mut job = scene.start(&proxy.address(), "job", &ALL, &["--exit-on", "TERM"]);
    trap.wait();
    let created = scene.contenders();
    proxy.pass();
    job.wait_stdout("ready");
    expect_three_of_one(&scene, &job);
    assert_eq!(scene.contenders(), created);
    assert_eq!(proxy.requests().iter().filter(|request| creates_all(request)).count(), 1);
    expect_sync_before_look(&proxy, Some(0));
    scene.finish(&mut job);
    scene.expect_tidy(&["job"]);
}

#[test]
fn reply_to_create_all_lost_by_a_reset() {
    reply_to_create_all_lost(Fate::Reset);
}

#[test]
fn reply_to_create_all_lost_by_silence() {
    reply_to_create_all_lost(Fate::Blackhole);
}

#[test]
fn reply_to_create_all_lost_and_nobody_answers_for_a_while() {
    reply_to_create_all_lost(Fate::ResetAndHold);
}

/// From a second transaction that was taken for lost and came late.
#[test]
fn of_two_sets_of_nodes_the_later_one_goes() {
    let (scene, proxy) = Scene::proxied();
    let trap = lose_creation_of_all(&proxy, Fate::ResetAndHold);
    let mut job = scene.start(&proxy.address(), "job", &ALL, &["--exit-on", "TERM"]);
    trap.wait();
    let created = scene.contenders();
    for node in &created {
        let prefix = node.path.trim_end_matches(|digit: char| digit.is_ascii_digit());
        scene.witness.create(prefix, b"", Kind::EphemeralSequential).unwrap();
    }
    proxy.pass();
    job.wait_stdout("ready");
    expect_three_of_one(&scene, &job);
    assert_eq!(scene.contenders(), created);
    scene.finish(&mut job);
    scene.expect_tidy(&["job"]);
}

/// Half of the nodes is no contender: some kind of client would not see it. What is left of it goes, too.
#[test]
fn of_a_set_that_somebody_has_deleted_one_of_nothing_is_used() {
    for n in 0..3 {
        let (scene, proxy) = Scene::proxied();
        let trap = lose_creation_of_all(&proxy, Fate::ResetAndHold);
        let mut job = scene.start(&proxy.address(), "job", &ALL, &["--exit-on", "TERM"]);
        trap.wait();
        let created = scene.contenders();
        scene.witness.delete(&created[n].path).unwrap();
        proxy.pass();
        job.wait_stdout("ready");
        expect_three_of_one(&scene, &job);
        assert!(scene.contenders().iter().all(|node| !created.contains(node)), "{created:?}");
        scene.finish(&mut job);
        scene.expect_tidy(&["job"]);
    }
}

/// After the list that showed all of them, and before the look at the first.
#[test]
fn of_a_set_that_loses_one_while_it_is_looked_up_nothing_is_used() {
    for n in 0..3 {
        let (scene, proxy) = Scene::proxied();
        // The first list is asked for together with the creation.
        let lists = AtomicUsize::new(0);
        let is_second =
            move |request: &Request| request.op == Op::GetChildren && lists.fetch_add(1, Ordering::Relaxed) == 1;
        let trap = proxy.trap(Fate::Wait, is_second);
        let mut job = scene.start(&proxy.address(), "job", &ALL, &["--exit-on", "TERM"]);
        trap.wait();
        let created = scene.contenders();
        scene.witness.delete(&created[n].path).unwrap();
        trap.release();
        poll::until("it has queued anew", || {
            let now = scene.contenders();
            (now.len() == 3 && now.iter().all(|node| !created.contains(node))).then_some(())
        });
        job.wait_stdout("ready");
        expect_three_of_one(&scene, &job);
        scene.finish(&mut job);
        scene.expect_tidy(&["job"]);
    }
}

/// While waiting, any of the nodes.
#[test]
fn a_waiter_that_loses_one_node_queues_anew_with_all() {
    for n in 0..3 {
        let scene = Scene::shared();
        let mut holder = scene.start(&Server::shared().address(), "holder", &ALL, &["--exit-on", "TERM"]);
        holder.wait_stdout("ready");
        let mut job = scene.start(&Server::shared().address(), "job", &ALL, &["--exit-on", "TERM"]);
        scene.witness.wait_count(LOCK, 6);
        let queued = scene.contenders().split_off(3);
        scene.witness.delete(&queued[n].path).unwrap();
        poll::until("it has queued anew", || {
            let now = scene.contenders();
            (now.len() == 6 && now[3..].iter().all(|node| !queued.contains(node))).then_some(())
        });
        scene.finish(&mut holder);
        job.wait_stdout("ready");
        expect_three_of_one(&scene, &job);
        scene.finish(&mut job);
        scene.expect_tidy(&["holder", "job"]);
    }
}

/// The beat checks all nodes: one that goes while the connection is away is noticed by the first beat after it.
#[test]
fn a_node_that_goes_while_nobody_is_connected_is_noticed() {
    for n in 0..3 {
        let (scene, proxy) = Scene::proxied();
        let mut job = scene.start(&proxy.address(), "job", &ALL, &["--exit-on", "TERM"]);
        job.wait_stdout("ready");
        proxy.hold();
        proxy.reset();
        let nodes = scene.contenders();
        scene.witness.delete(&nodes[n].path).unwrap();
        proxy.pass();
        job.wait().expect_code(76);
        scene.witness.wait_count(LOCK, 0);
    }
}
