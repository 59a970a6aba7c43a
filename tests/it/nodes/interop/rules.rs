//! The rules by which other libraries decide whose turn it is, as far as names go, beside our own: whatever is in the
//! queue, no contender that goes by them holds together with ours.
//!
//! The rules were read off Curator 5.4, ZooKeeper 3.8 and kazoo 2.9; the other modules test the libraries themselves.

use proptest::prelude::*;
use zklock::rules::child_name::ChildName;
use zklock::rules::mode::Mode;
use zklock::rules::queue::{ContenderId, Dialect, Queue, SEQUENCE_LIMIT, Standing};

/// One contender, and what it is.
#[derive(Clone, Debug)]
struct Party {
    kind: Kind,
    /// The names of its nodes, the lowest number first.
    nodes: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Ours(Mode),
    CuratorMutex,
    CuratorWriter,
    CuratorReader,
    WriteLock,
    KazooLock,
    KazooLockBesideCurator,
    KazooWriter,
    KazooReader,
}

impl Kind {
    /// The beginnings of the nodes' names.
    fn prefixes(self, random: u64) -> Vec<String> {
        let id = ContenderId::new(0x0100_0000_0000_0007, random);
        // Curator may mistake a kazoo name that begins with digits for a sequence number. That is between
        // Curator and kazoo, so these names begin with a letter.
        let digits = format!("f{:015x}{random:016x}", random >> 4);
        match self {
            Self::Ours(mode) => Dialect::QUEUEING.map(|dialect| id.prefix(dialect, mode)).to_vec(),
            Self::CuratorMutex => vec![id.prefix(Dialect::Curator, Mode::Exclusive)],
            Self::CuratorWriter => vec![id.prefix(Dialect::CuratorRw, Mode::Exclusive)],
            Self::CuratorReader => vec![id.prefix(Dialect::CuratorRw, Mode::Shared)],
            Self::WriteLock => vec![format!("x-{}-", random.cast_signed())],
            Self::KazooLock | Self::KazooLockBesideCurator | Self::KazooWriter => vec![format!("{digits}__lock__")],
            Self::KazooReader => vec![format!("{digits}__rlock__")],
        }
    }
}

/// What follows the last `part`, or all of it: how Curator makes the key by which it sorts.
fn after<'n>(name: &'n str, part: &str) -> &'n str {
    name.rfind(part).map_or(name, |at| &name[at + part.len()..])
}

/// The number that follows one of `parts` at the end of a name: the regular expression that kazoo makes of them.
fn number_after<'n>(name: &'n str, parts: &[&str]) -> Option<&'n str> {
    let (rest, number) = name.split_at(name.len() - 10);
    parts.iter().any(|part| rest.ends_with(part)).then_some(number)
}

/// Whether, by the rule of its library, none of the names that the party looks at is before its own.
fn holds(party: &Party, names: &[String]) -> bool {
    let own = &party.nodes[0];
    let first_by = |key: &dyn Fn(&str) -> String| names.iter().all(|name| name == own || key(name) > key(own));
    let read_write = |name: &str| after(after(name, "__READ__"), "__WRIT__").to_owned();
    let behind = |parts: &[&str]| {
        let own = &own[own.len() - 10..];
        names.iter().filter_map(|name| number_after(name, parts)).any(|number| number < own)
    };
    match party.kind {
        Kind::Ours(_) => {
            let queue =
                Queue::from_children(names.iter().cloned().filter_map(ChildName::parse)).expect("small numbers");
            matches!(queue.standing(own), Standing::Holds)
        }
        Kind::CuratorMutex => first_by(&|name| after(name, "lock-").to_owned()),
        Kind::CuratorWriter => first_by(&read_write),
        Kind::CuratorReader => {
            names.iter().filter(|name| name.contains("__WRIT__")).all(|name| read_write(name) > read_write(own))
        }
        // Names without a number after the last dash come last.
        Kind::WriteLock => {
            let number = |name: &str| name.rsplit_once('-').and_then(|(_, number)| number.parse::<i32>().ok());
            names.iter().filter_map(|name| number(name)).all(|other| Some(other) >= number(own))
        }
        Kind::KazooLock => !behind(&["__lock__"]),
        Kind::KazooLockBesideCurator => !behind(&["__lock__", "-lock-"]),
        Kind::KazooWriter => !behind(&["__lock__", "__rlock__"]),
        Kind::KazooReader => !behind(&["__lock__"]),
    }
}

/// Whether a contender of ours in this mode may hold beside one of that kind.
fn may_share(ours: Mode, other: Kind) -> bool {
    match other {
        Kind::Ours(Mode::Exclusive) => false,
        Kind::Ours(_) => ours != Mode::Exclusive,
        Kind::CuratorReader | Kind::KazooReader => ours == Mode::Shared,
        // It takes no notice of readers.
        Kind::KazooLock => ours == Mode::Shared,
        // These take our readers for contenders like any.
        Kind::KazooLockBesideCurator | Kind::CuratorMutex | Kind::WriteLock => false,
        Kind::CuratorWriter | Kind::KazooWriter => false,
    }
}

fn kinds() -> impl Strategy<Value = Kind> {
    prop_oneof![
        3 => Just(Kind::Ours(Mode::Exclusive)),
        3 => Just(Kind::Ours(Mode::Shared)),
        1 => Just(Kind::CuratorMutex),
        1 => Just(Kind::CuratorWriter),
        1 => Just(Kind::CuratorReader),
        1 => Just(Kind::WriteLock),
        1 => Just(Kind::KazooLock),
        1 => Just(Kind::KazooLockBesideCurator),
        1 => Just(Kind::KazooWriter),
        1 => Just(Kind::KazooReader),
    ]
}

/// Contenders in the order of their arrival, some of which have left again.
fn parties() -> impl Strategy<Value = Vec<Party>> {
    let arrivals = prop::collection::vec((kinds(), any::<u64>(), any::<bool>()), 1..12);
    (arrivals, 0..SEQUENCE_LIMIT - 100).prop_map(|(arrivals, first)| {
        let mut next = first;
        let mut parties = Vec::new();
        for (kind, random, stays) in arrivals {
            let numbered = kind.prefixes(random).into_iter().zip(next..).map(|(prefix, n)| format!("{prefix}{n:010}"));
            let nodes: Vec<String> = numbered.collect();
            next += i32::try_from(nodes.len()).expect("a few nodes");
            if stays {
                parties.push(Party { kind, nodes });
            }
        }
        parties
    })
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn all_dialects_hold_alone(parties in parties()) {
        let names: Vec<String> = parties.iter().flat_map(|party| party.nodes.clone()).collect();
        let holders: Vec<&Party> = parties.iter().filter(|party| holds(party, &names)).collect();
        prop_assert_eq!(holders.is_empty(), parties.is_empty());
        for (n, holder) in holders.iter().enumerate() {
            let Kind::Ours(mode) = holder.kind else { continue };
            for (_, other) in holders.iter().enumerate().filter(|(m, _)| *m != n) {
                prop_assert!(may_share(mode, other.kind), "{:?} beside {:?}", other, holder);
            }
        }
    }
}
