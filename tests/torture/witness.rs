//! Watches the locks over connections that no fault of the network reaches, and notes when each node was seen to be
//! gone.
//!
//! What one server shows proves nothing: a server may go without a node for good that the others have, or the other way
//! round (ZOOKEEPER-5010). The leader decides, by a transaction.

use std::collections::{BTreeMap, BTreeSet};
use std::thread;
use std::time::Duration;

use crate::checker::Time;
use crate::harness::client::Client;
use crate::record::{Phase, Record};
use crate::work;

/// How often to list the nodes.
const STEP: Duration = Duration::from_millis(50);

/// How often to ask the leader about a node over which it disagrees with the server that lists the nodes.
const ASK_AGAIN: Duration = Duration::from_secs(1);

/// What is known of the nodes.
#[derive(Debug, Default)]
struct Witness {
    there: BTreeSet<String>,
    gone: BTreeMap<String, Time>,
    /// When to ask about a node again, if the leader has contradicted the list.
    ask_at: BTreeMap<String, Time>,
}

impl Witness {
    /// Takes in a list of all nodes, made at `now`. `ask`: asks the leader whether it has a node. Returns that, and
    /// when it was answered.
    fn see(&mut self, listed: BTreeSet<String>, now: Time, mut ask: impl FnMut(&str) -> (bool, Time)) {
        let missing = self.there.difference(&listed);
        let back = self.gone.keys().filter(|node| listed.contains(*node));
        let doubtful: Vec<String> = missing.chain(back).cloned().collect();
        for node in doubtful {
            if self.ask_at.get(&node).is_some_and(|ask_at| now < *ask_at) {
                continue;
            }
            let (is_there, answered) = ask(&node);
            if is_there != listed.contains(&node) {
                self.ask_at.insert(node.clone(), now + ASK_AGAIN);
            }
            if is_there {
                self.gone.remove(&node);
                self.there.insert(node);
            } else {
                self.there.remove(&node);
                self.gone.entry(node).or_insert(answered);
            }
        }
        self.there.extend(listed.into_iter().filter(|node| !self.gone.contains_key(node)));
    }
}

/// Watches until the torture is over. Returns when each node, by its path, was seen to be gone.
pub(crate) fn watch(client: &Client, locks: &[String], record: &Record) -> BTreeMap<String, Time> {
    let mut witness = Witness::default();
    while record.phase() != Phase::Over {
        let listed = nodes(client, locks);
        let ask = |node: &str| {
            let is_there = client.leader_has(node);
            if is_there != listed.contains(node) {
                let (leader, server) = if is_there { ("has", "does not list") } else { ("does not have", "lists") };
                record.note(&format!("the leader {leader} {node}, and another server {server} it"));
            }
            (is_there, work::now())
        };
        witness.see(listed.clone(), work::now(), ask);
        thread::sleep(STEP);
    }
    witness.gone
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

#[cfg(test)]
mod tests {
    use super::*;

    fn list(nodes: &[&str]) -> BTreeSet<String> {
        nodes.iter().map(|&node| node.to_owned()).collect()
    }

    #[test]
    fn node_is_gone_once_the_leader_says_so() {
        let ms = Duration::from_millis;
        let mut witness = Witness::default();
        let mut asked = Vec::new();
        let mut see = |witness: &mut Witness, listed: &[&str], now, is_there: bool| {
            witness.see(list(listed), ms(now), |node| {
                asked.push((node.to_owned(), now));
                (is_there, ms(now + 3))
            });
        };
        see(&mut witness, &["/a/1", "/a/2"], 0, true);
        see(&mut witness, &["/a/2"], 50, true);
        assert_eq!(witness.gone, BTreeMap::new(), "the leader has it");
        see(&mut witness, &["/a/2"], 100, false);
        assert_eq!(witness.gone, BTreeMap::new(), "the leader is not asked again at once");
        see(&mut witness, &["/a/2"], 1050, false);
        see(&mut witness, &["/a/2"], 1100, false);
        assert_eq!(witness.gone, BTreeMap::from([("/a/1".to_owned(), ms(1053))]));
        see(&mut witness, &["/a/1", "/a/2"], 1150, false);
        see(&mut witness, &["/a/1", "/a/2"], 1200, false);
        assert_eq!(witness.gone.len(), 1, "a server lists a node that is gone");
        see(&mut witness, &["/a/1", "/a/2"], 2150, true);
        see(&mut witness, &["/a/1"], 2200, false);
        assert_eq!(witness.gone, BTreeMap::from([("/a/2".to_owned(), ms(2203))]));
        let asked: Vec<_> = asked.iter().map(|(node, when)| (node.as_str(), *when)).collect();
        assert_eq!(asked, [("/a/1", 50), ("/a/1", 1050), ("/a/1", 1150), ("/a/1", 2150), ("/a/2", 2200)]);
    }
}
