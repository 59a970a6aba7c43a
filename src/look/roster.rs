//! The holders and waiters of a lock, as `status` and `list` tell of them: the queue, and what its nodes tell.

use std::collections::HashMap;

use serde::Serialize;

use super::vanished::Vanished;
use crate::rules::card::Card;
use crate::rules::child_name::ChildName;
use crate::rules::queue::{Contender, ContenderId, Queue, Recipe, Standing};
use crate::rules::rfc3339::rfc3339;
use crate::zookeeper::session::NodeStat;

/// What is known of a node. The default is nothing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SeenNode {
    pub stat: Option<NodeStat>,
    pub card: Card,
}

impl SeenNode {
    /// The session that it belongs to; 0 if it is not ephemeral.
    fn session(&self) -> Option<i64> {
        self.stat.map(|stat| stat.owner)
    }
}

/// A contender, as `status` and `list` tell of it. As JSON, this is part of what users rely on: docs/status.schema.json.
///
/// All texts are printable ([`crate::rules::text`]).
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Entry {
    /// Its place in the queue, counted from 1.
    pub position: usize,
    pub holds: bool,
    /// The name of its first node.
    pub node: String,
    /// The names of all its nodes: one for each dialect.
    pub nodes: Vec<String>,
    /// Its session, in hex.
    pub session: Option<String>,
    pub token: Option<i64>,
    pub mode: String,
    /// The library or recipe that it is from.
    pub client: Option<&'static str>,
    pub host: Option<String>,
    pub pid: Option<u32>,
    pub user: Option<String>,
    pub command: Option<String>,
    pub describe: Option<String>,
    pub queued_since: Option<String>,
    /// When it published that it holds.
    pub held_since: Option<String>,
    /// [`Card::phrase`]
    #[serde(skip)]
    pub phrase: Option<String>,
}

/// The contenders of a lock, first come first, and its other children.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// The contenders. The nodes of one contender are one entry.
    pub contenders: Vec<Entry>,
    /// The names of the children that are no contenders. Not safe to print as they are.
    pub foreign: Vec<ChildName>,
    /// The recipe of another library that uses this path, and does not queue with contenders.
    pub recipe: Option<Recipe>,
    /// The sequence numbers are used up: the order may not be that of arrival.
    pub is_exhausted: bool,
    /// A holder that has vanished, and delays those whose turn it is.
    pub vanished: Option<Box<Vanished>>,
}

impl Roster {
    /// From the names of all children of a lock's node, in any order, and what is known of those that are contenders.
    pub fn new(names: impl IntoIterator<Item = ChildName>, seen: &HashMap<ChildName, SeenNode>) -> Self {
        let queue =
            Queue::as_numbered(names).without(|name| seen.get(name).is_some_and(|seen| seen.session() == Some(0)));
        let mut contenders: Vec<Entry> = vec![];
        let mut places = HashMap::new();
        let unknown = SeenNode::default();
        for (contender, standing) in queue.standings() {
            let seen = seen.get(&contender.name).unwrap_or(&unknown);
            let id = own_id(contender, seen);
            if let Some(place) = id.and_then(|id| places.get(&id)) {
                let first: &mut Entry = &mut contenders[*place];
                first.nodes.push(contender.name.to_string());
                continue;
            }
            id.map(|id| places.insert(id, contenders.len()));
            contenders.push(entry(contenders.len() + 1, contender, standing == Standing::Holds, seen));
        }
        let (recipe, is_exhausted) = (queue.other_recipe(), queue.is_exhausted());
        Self { contenders, foreign: queue.foreign().to_vec(), recipe, is_exhausted, vanished: None }
    }

    /// Takes note of a holder that has vanished. Those whose turn it is do not hold yet, unless they have published that they do:
    /// a run without `--lock-delay` does not wait.
    pub fn delay(&mut self, vanished: Vanished) {
        let is_delayed = |entry: &&mut Entry| entry.client == Some("zklock") && entry.held_since.is_none();
        let delayed = self.contenders.iter_mut().filter(is_delayed);
        delayed.for_each(|contender| contender.holds = false);
        self.vanished = Some(Box::new(vanished));
    }

    pub fn holders(&self) -> usize {
        self.contenders.iter().filter(|contender| contender.holds).count()
    }

    pub fn waiters(&self) -> usize {
        self.contenders.len() - self.holders()
    }
}

/// The id by which the nodes of one of our contenders belong together. A name that bears the id of another session was
/// made up.
fn own_id(contender: &Contender, seen: &SeenNode) -> Option<ContenderId> {
    contender.id.filter(|_| contender.client(seen.session()) == Some("zklock"))
}

fn entry(position: usize, contender: &Contender, holds: bool, seen: &SeenNode) -> Entry {
    let card = seen.card.clone();
    Entry {
        position,
        holds,
        node: contender.name.to_string(),
        nodes: vec![contender.name.to_string()],
        session: seen.session().map(|session| format!("{session:#x}")),
        token: seen.stat.map(|stat| stat.czxid),
        mode: contender.mode.to_string(),
        client: contender.client(seen.session()),
        phrase: card.phrase(),
        queued_since: seen.stat.and_then(|stat| rfc3339(stat.created)),
        held_since: (seen.stat.filter(|_| holds))
            .and_then(|stat| card.held_at(stat.created, stat.written))
            .and_then(rfc3339),
        host: card.host,
        pid: card.pid,
        user: card.user,
        command: card.command,
        describe: card.describe,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::mode::Mode;
    use crate::rules::queue::Dialect;

    const SESSION: i64 = 0x100;

    fn own(session: i64, dialect: Dialect, mode: Mode, sequence: i32) -> ChildName {
        format!("{}{sequence:010}", ContenderId::new(session, 1).prefix(dialect, mode)).as_str().into()
    }

    fn seen(session: i64, token: i64) -> SeenNode {
        let stat = NodeStat { owner: session, czxid: token, created: 1000, written: 5000, ..NodeStat::default() };
        SeenNode { stat: Some(stat), card: Card { host: Some("db3".to_owned()), ..Card::default() } }
    }

    fn roster(nodes: Vec<(ChildName, SeenNode)>) -> Roster {
        let names: Vec<_> = nodes.iter().rev().map(|(name, _)| name.clone()).collect();
        Roster::new(names, &nodes.into_iter().collect())
    }

    fn places(roster: &Roster) -> Vec<(usize, bool, &str, usize)> {
        let place = |entry: &'_ Entry| (entry.position, entry.holds, entry.client, entry.nodes.len());
        let places = roster.contenders.iter().map(place);
        places.map(|(position, holds, client, nodes)| (position, holds, client.unwrap_or("?"), nodes)).collect()
    }

    #[test]
    fn all_kinds_stand_in_one_queue() {
        let roster = roster(vec![
            (own(SESSION, Dialect::Curator, Mode::Shared, 1), seen(SESSION, 11)),
            (own(SESSION + 1, Dialect::CuratorRw, Mode::Shared, 2), seen(SESSION + 1, 12)),
            ("x-72057594037927936-0000000003".into(), seen(72_057_594_037_927_936, 13)),
            ("_c_2a9f0cc5-5b46-4a0c-9ac9-4a1d5b3d0c1e-__READ__0000000004".into(), seen(9, 14)),
            ("config".into(), SeenNode::default()),
        ]);
        let expected =
            [(1, true, "zklock", 1), (2, true, "zklock", 1), (3, false, "writelock", 1), (4, false, "curator", 1)];
        assert_eq!(places(&roster), expected);
        assert_eq!((roster.holders(), roster.waiters(), &roster.foreign[..]), (2, 2, &[ChildName::from("config")][..]));
    }

    #[test]
    fn nodes_of_several_dialects_are_one_contender() {
        let nodes = Dialect::QUEUEING.into_iter().zip(1..);
        let mut nodes: Vec<_> = nodes
            .map(|(dialect, number)| (own(SESSION, dialect, Mode::Exclusive, number), seen(SESSION, 10)))
            .collect();
        nodes.push((own(SESSION + 1, Dialect::Curator, Mode::Exclusive, 4), seen(SESSION + 1, 11)));
        // What is known of the nodes does not matter for that: `list` knows nothing of most of them.
        let unknown = nodes.iter().map(|(name, _)| (name.clone(), SeenNode::default())).collect();
        for roster in [roster(nodes), roster(unknown)] {
            assert_eq!(places(&roster), [(1, true, "zklock", 3), (2, false, "zklock", 1)]);
            assert_eq!(roster.contenders[0].node, roster.contenders[0].nodes[0]);
        }
    }

    #[test]
    fn an_id_that_was_copied_counts_by_itself() {
        let first = own(SESSION, Dialect::Curator, Mode::Exclusive, 1);
        let copy = own(SESSION, Dialect::Kazoo, Mode::Exclusive, 2);
        let roster = roster(vec![(first, seen(SESSION, 1)), (copy, seen(SESSION + 1, 2))]);
        assert_eq!(places(&roster), [(1, true, "zklock", 1), (2, false, "kazoo", 1)]);
    }

    #[test]
    fn times_are_those_of_zookeeper() {
        let holding = |session| {
            let mut seen = seen(session, session);
            (seen.card.held_since, seen.card.held_for) = (Some(7), Some(1500));
            seen
        };
        let roster = roster(vec![
            (own(SESSION, Dialect::Curator, Mode::Exclusive, 1), holding(SESSION)),
            (own(SESSION + 1, Dialect::Curator, Mode::Exclusive, 2), holding(SESSION + 1)),
        ]);
        let [holder, waiter] = &roster.contenders[..] else { panic!("{roster:?}") };
        assert_eq!(holder.queued_since.as_deref(), Some("1970-01-01T00:00:01.000Z"));
        assert_eq!(holder.held_since.as_deref(), Some("1970-01-01T00:00:03.500Z"));
        // It says so, but it cannot be.
        assert_eq!(waiter.held_since, None);
    }

    #[test]
    fn what_is_not_known_is_null() {
        let roster = roster(vec![("mine-lock-0000000001".into(), SeenNode::default())]);
        let json = serde_json::to_value(&roster.contenders[0]).unwrap();
        let known: Vec<_> = json.as_object().unwrap().iter().filter(|(_, value)| !value.is_null()).collect();
        let known: Vec<_> = known.into_iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(known, ["holds", "mode", "node", "nodes", "position"]);
    }

    #[test]
    fn used_up_numbers_are_said() {
        let roster = roster(vec![("a-lock--000000001".into(), SeenNode::default())]);
        assert!(roster.is_exhausted);
        assert_eq!(roster.contenders.len(), 1);
    }
}
