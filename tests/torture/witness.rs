//! Watches the locks over connections that no fault of the network reaches, and notes when each node was seen to be
//! gone.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use crate::checker::Time;
use crate::client::Client;
use crate::record::{Phase, Record};
use crate::work;

/// How often to list the nodes.
const STEP: Duration = Duration::from_millis(50);

/// Watches until the torture is over. Returns when each node, by its path, was seen to be gone.
pub(crate) fn watch(client: &Client, locks: &[String], record: &Record) -> BTreeMap<String, Time> {
    let mut gone = BTreeMap::new();
    let mut there: BTreeSet<String> = BTreeSet::new();
    while record.phase() != Phase::Over {
        let now = nodes(client, locks);
        let seen = work::now();
        for node in there.difference(&now) {
            gone.entry(node.clone()).or_insert(seen);
        }
        // A node that is back was not gone: between the sync and the list, the connection may have moved to a server
        // that lags.
        gone.retain(|node, _| !now.contains(node));
        there = now;
        thread::sleep(STEP);
    }
    gone
}

/// The paths of the nodes below the locks.
pub(crate) fn nodes(client: &Client, locks: &[String]) -> BTreeSet<String> {
    // A server that lags would not list the newest nodes.
    client.sync();
    let mut nodes = BTreeSet::new();
    for lock in locks {
        nodes.extend(client.children(lock).into_iter().map(|name| format!("{lock}/{name}")));
    }
    nodes
}
