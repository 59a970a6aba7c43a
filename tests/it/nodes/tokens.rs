//! The fencing token.

use std::collections::BTreeMap;
use std::fmt::Display;

use crate::harness::ensemble::Ensemble;
use crate::harness::poll;
use crate::harness::running::silent;
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::server::Role;
use crate::harness::zklock::Zklock;

/// A hundred holders, a leader that changes, a lock whose node is created again.
#[test]
fn rises_from_holder_to_holder() {
    let ensemble = Ensemble::start();
    let chroot = ensemble.chroot();
    let client = chroot.client();
    let mut tokens: Vec<i64> = Vec::new();
    for n in 0..100 {
        match n {
            40 => {
                let leader = ensemble.leader();
                leader.kill();
                poll::until("there is another leader", || {
                    let mut others = ensemble.servers().iter().filter(|server| !std::ptr::eq(*server, leader));
                    others.any(|server| server.role() == Some(Role::Leader)).then_some(())
                });
            }
            80 => {
                client.sync();
                client.remove(LOCK);
            }
            _ => {}
        }
        let mode = [&["-x"][..], &["-s"], &["--permits", "3"]][n % 3];
        let run = Zklock::at(&chroot).args(mode).args([LOCK, "printenv", "ZKLOCK_TOKEN"]).run().expect_code(0);
        tokens.push(silent(run).stdout().trim().parse().expect("a number"));
    }
    assert!(tokens.is_sorted_by(|one, two| one < two), "{tokens:?}");
    // The epoch is in the upper half: it was another leader.
    assert!(tokens[99] >> 32 > tokens[0] >> 32, "{tokens:?}");
}

/// The tokens that the command of a run is told, as `TOKEN LOCK` lines.
#[track_caller]
fn tokens(chroot: impl Display, options: &[&str]) -> Vec<(i64, String)> {
    let zklock = Zklock::at(chroot).arg(LOCK).args(options);
    let output = zklock.args(["--", "printenv", "ZKLOCK_TOKENS"]).run().expect_code(0);
    let stdout = output.stdout();
    let line = |line: &str| {
        let (token, lock) = line.split_once(' ').unwrap_or_else(|| panic!("{line:?}"));
        (token.parse().unwrap_or_else(|_| panic!("{line:?}")), lock.to_owned())
    };
    stdout.lines().map(line).collect()
}

const OTHER: &str = "/other";

/// Of each lock, in every mode and together with any others, and also when the lock is created again.
#[test]
fn rises_in_every_mode_and_dialect() {
    let scratch = Scratch::new();
    let mut last = BTreeMap::from([(LOCK.to_owned(), 0), (OTHER.to_owned(), 0)]);
    for options in [
        &["--and", OTHER][..],
        &[],
        &["--shared"],
        &[],
        &["--dialect", "curator,curator-rw,kazoo", "--and", OTHER],
        &["--permits", "3"],
        &["--shared", "--dialect", "kazoo,curator"],
        &["--and", OTHER],
    ] {
        for (token, lock) in tokens(scratch.chroot(), options) {
            assert!(token > last[&lock], "{options:?}: {token} after {last:?}");
            last.insert(lock, token);
        }
        if options.is_empty() {
            scratch.delete(LOCK);
        }
    }
}
