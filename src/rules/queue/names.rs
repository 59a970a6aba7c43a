//! Names of contender nodes: ours, and those of every other kind of client that queues.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::rules::child_name::ChildName;
use crate::rules::mode::{Mode, parse_permits};

/// The library whose naming scheme the nodes of a contender follow, so that its clients wait for the contender.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Dialect {
    /// `…-lock-<seq>`: Curator's `InterProcessMutex` and all clients that read such names, for example
    /// go-zookeeper and zookeeper-client. ZooKeeper's `WriteLock` and `zoo_lock` read them too, but their own
    /// nodes are named `x-<session>-<seq>`. The only dialect with permits.
    Curator,
    /// `…__WRIT__<seq>`, `…__READ__<seq>`: Curator's `InterProcessReadWriteLock`.
    CuratorRw,
    /// `…__lock__<seq>`, `…__rlock__<seq>`: kazoo's locks.
    Kazoo,
    /// `lock`: one node without a number, of the client that has created it. There is no queue: the others try again
    /// when it has gone.
    Single,
}

/// The name of the node in the dialect [`Dialect::Single`].
pub const SINGLE: &str = "lock";

impl Dialect {
    pub const ALL: [Self; 4] = [Self::Curator, Self::CuratorRw, Self::Kazoo, Self::Single];

    /// Those whose nodes queue together.
    pub const QUEUEING: [Self; 3] = [Self::Curator, Self::CuratorRw, Self::Kazoo];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Curator => "curator",
            Self::CuratorRw => "curator-rw",
            Self::Kazoo => "kazoo",
            Self::Single => "single",
        }
    }
}

/// What tells our contender nodes from all others: 32 hex digits, as a rule in the shape of a UUID.
///
/// 16 are the session id, the other 16 are random. After a create whose reply was lost, the node is found
/// again by its id. Curator finds its own nodes in the same way and calls this protection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ContenderId {
    session: i64,
    /// In hex; in our own ids its first digit is `f`.
    random: u64,
}

impl ContenderId {
    /// The id of a contender of this session. The lower 60 bits of `random` must differ between the
    /// contenders of one session.
    pub const fn new(session: i64, random: u64) -> Self {
        Self { session, random: random | 0xf << 60 }
    }

    pub const fn session(self) -> i64 {
        self.session
    }

    /// Whether only we would have made it up. A random UUID has 8, 9, a or b in the place of the `f` (RFC 9562).
    pub(super) const fn is_own(self) -> bool {
        self.random >> 60 == 0xf
    }

    /// The node's name without its sequence number, for a sequential create; the whole name in the dialect
    /// [`Dialect::Single`], which has no numbers. A mode that the dialect cannot express becomes exclusive.
    pub fn prefix(self, dialect: Dialect, mode: Mode) -> String {
        match (dialect, mode) {
            (Dialect::Curator, Mode::Exclusive) => format!("_c_{self}-lock-"),
            (Dialect::Curator, Mode::Shared) => format!("_c_{self}-read-lock-"),
            (Dialect::Curator, Mode::Permits(permits)) => format!("_c_{self}-permits{permits}-lock-"),
            (Dialect::CuratorRw, Mode::Shared) => format!("_c_{self}-__READ__"),
            (Dialect::CuratorRw, _) => format!("_c_{self}-__WRIT__"),
            // Curator sorts such a name as a whole among the sequence numbers of others. If it began with the
            // session id, which as a rule begins with 0, it would sort before sequence numbers such as
            // 0100000000: a Curator client before us would wait for us, and we for it.
            (Dialect::Kazoo, Mode::Shared) => format!("{:016x}{:016x}__rlock__", self.random, self.session),
            (Dialect::Kazoo, _) => format!("{:016x}{:016x}__lock__", self.random, self.session),
            (Dialect::Single, _) => SINGLE.to_owned(),
        }
    }

    /// The id in a name, if it contains one: ours, or one in the shape of ours.
    fn parse(name: &str) -> Option<Self> {
        let (session, random) = match after_uuid(name) {
            Some((uuid, rest)) if rest.starts_with('-') => halves(&uuid.replace('-', ""))?,
            _ => {
                let (digits, rest) = name.split_at_checked(32)?;
                let (random, session) = if rest.starts_with("__") { halves(digits)? } else { return None };
                (session, random)
            }
        };
        Some(Self { session: session.cast_signed(), random })
    }
}

/// The two numbers in 32 hex digits.
fn halves(digits: &str) -> Option<(u64, u64)> {
    let (first, second) = Some(digits).filter(|digits| is_hex(digits))?.split_at_checked(16)?;
    Some((u64::from_str_radix(first, 16).ok()?, u64::from_str_radix(second, 16).ok()?))
}

impl fmt::Display for ContenderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = format!("{:016x}{:016x}", self.session, self.random);
        let [a, b, c, d, e] = [0..8, 8..12, 12..16, 16..20, 20..32].map(|part| &digits[part]);
        write!(f, "{a}-{b}-{c}-{d}-{e}")
    }
}

/// One node in the queue of a lock. A contender that speaks several dialects has one such node for each.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Contender {
    /// The node's name, without the path of its parent. It has no control characters, but is not fit to be shown as it is.
    pub name: ChildName,
    /// What ZooKeeper appended to the name; -1 in the dialect [`Dialect::Single`].
    pub sequence: i32,
    /// How it wants the lock. An ambiguous name counts as exclusive.
    pub mode: Mode,
    /// Which dialect its client reads by default, as far as its name tells. A kazoo client can be told to read others
    /// (`extra_lock_patterns`); its nodes do not show that.
    pub reads: Dialect,
    /// The same in all nodes of a contender; `None` for names without one.
    pub id: Option<ContenderId>,
}

impl Contender {
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.id.is_some() && self.id == other.id
    }

    /// Reads a child's name. `None`: the child is not a contender. It is one only if it is
    /// ephemeral: its `ephemeralOwner` is not 0, as it is for containers and nodes with a time to live too.
    ///
    /// No client library gives its nodes names with control characters. Such a name is made by hand, and decides nothing.
    pub fn parse(name: &ChildName) -> Option<Self> {
        if *name == SINGLE {
            let (mode, reads) = (Mode::Exclusive, Dialect::Single);
            return Some(Self { name: name.clone(), sequence: -1, mode, reads, id: None });
        }
        if name.contains(char::is_control) {
            return None;
        }
        // A number has ten characters, a large negative one eleven. No prefix ends in a digit or in
        // two minus signs, so only one of the two can succeed.
        [10, 11].into_iter().find_map(|length| {
            let (prefix, digits) = name.split_at_checked(name.len().checked_sub(length)?)?;
            let sequence = parse_sequence(digits)?;
            let (reads, mode) = classify(prefix)?;
            Some(Self { name: name.clone(), sequence, mode, reads, id: ContenderId::parse(name) })
        })
    }
}

/// Whether a server may give this path to a sequential node with this prefix.
pub fn is_numbered(path: &str, prefix: &str) -> bool {
    path.strip_prefix(prefix).is_some_and(|digits| parse_sequence(digits).is_some())
}

/// Reads `%010d` of a signed 32-bit integer, and nothing that printf(3) would not have written.
pub(super) fn parse_sequence(digits: &str) -> Option<i32> {
    let sequence: i32 = digits.parse().ok()?;
    (format!("{sequence:010}") == digits).then_some(sequence)
}

/// How a name ends before its number. kazoo searches for its own at the end of a name, whatever precedes them.
const ENDINGS: [(&str, Dialect, Mode); 4] = [
    ("__lock__", Dialect::Kazoo, Mode::Exclusive),
    ("__rlock__", Dialect::Kazoo, Mode::Shared),
    ("__WRIT__", Dialect::CuratorRw, Mode::Exclusive),
    ("__READ__", Dialect::CuratorRw, Mode::Shared),
];

/// Dialect and mode of the name without its sequence number.
fn classify(prefix: &str) -> Option<(Dialect, Mode)> {
    // Curator sorts by what follows the last `lock-`, whatever precedes it.
    if prefix == "lock-" || prefix.ends_with("-lock-") {
        return Some((Dialect::Curator, own_mode(prefix).unwrap_or(Mode::Exclusive)));
    }
    if let Some((_, dialect, mode)) = ENDINGS.into_iter().find(|(ending, ..)| prefix.ends_with(ending)) {
        return Some((dialect, mode));
    }
    let session = prefix.strip_prefix("x-")?.strip_suffix('-')?;
    is_session(session).then_some((Dialect::Curator, Mode::Exclusive))
}

/// The mode of a name that only we would have given, `None` for any other.
///
/// All other clients that use such names are exclusive, so a name counts as shared or as a permit only if it
/// has the full shape of ours.
fn own_mode(prefix: &str) -> Option<Mode> {
    let (_, rest) = after_uuid(prefix)?;
    if rest == "-read-lock-" {
        return Some(Mode::Shared);
    }
    rest.strip_prefix("-permits")?.strip_suffix("-lock-").and_then(parse_permits).map(Mode::Permits)
}

/// The UUID with which Curator, and we, protect a name, and what follows it.
fn after_uuid(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix("_c_")?.split_at_checked(36).filter(|(uuid, _)| is_uuid(uuid))
}

pub(super) fn is_hex(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

pub(super) fn is_uuid(text: &str) -> bool {
    text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        })
}

/// A session id as Java's `WriteLock` writes it, in signed decimal, or C's `zoo_lock`, in `%016lx`.
fn is_session(text: &str) -> bool {
    text.len() == 16 && is_hex(text) || (!text.starts_with('+') && text.parse::<i64>().is_ok())
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU32;

    use proptest::prelude::*;

    use super::*;

    fn id(random: u64) -> ContenderId {
        ContenderId::new(0x0102_0304_0506_0708, random)
    }

    fn permits(permits: u32) -> Mode {
        Mode::Permits(NonZeroU32::new(permits).unwrap())
    }

    #[track_caller]
    fn assert_parses(name: &str, reads: Dialect, mode: Mode, sequence: i32) {
        let parsed = Contender::parse(&name.into()).map(|it| (it.name, it.reads, it.mode, it.sequence));
        assert_eq!(parsed, Some((name.into(), reads, mode, sequence)));
    }

    #[test]
    fn our_own_names() {
        let id = ContenderId::new(0x0102_0304_0506_0708, 0x090a_0b0c_0d0e_0f10);
        assert_eq!(id.prefix(Dialect::Curator, Mode::Exclusive), "_c_01020304-0506-0708-f90a-0b0c0d0e0f10-lock-");
        assert_eq!(id.prefix(Dialect::Curator, Mode::Shared), "_c_01020304-0506-0708-f90a-0b0c0d0e0f10-read-lock-");
        assert_eq!(id.prefix(Dialect::Curator, permits(3)), "_c_01020304-0506-0708-f90a-0b0c0d0e0f10-permits3-lock-");
        let negative = ContenderId::new(-2, 1);
        assert_eq!(negative.prefix(Dialect::Curator, Mode::Exclusive), "_c_ffffffff-ffff-fffe-f000-000000000001-lock-");
        assert_eq!(id.prefix(Dialect::CuratorRw, Mode::Exclusive), "_c_01020304-0506-0708-f90a-0b0c0d0e0f10-__WRIT__");
        assert_eq!(id.prefix(Dialect::CuratorRw, Mode::Shared), "_c_01020304-0506-0708-f90a-0b0c0d0e0f10-__READ__");
        assert_eq!(id.prefix(Dialect::Kazoo, Mode::Exclusive), "f90a0b0c0d0e0f100102030405060708__lock__");
        assert_eq!(id.prefix(Dialect::Kazoo, Mode::Shared), "f90a0b0c0d0e0f100102030405060708__rlock__");
    }

    #[test]
    fn an_id_is_found_in_its_own_nodes_alone() {
        let found = |name: &str| Contender::parse(&name.into()).and_then(|contender| contender.id);
        for dialect in Dialect::QUEUEING {
            assert_eq!(found(&format!("{}0000000001", id(2).prefix(dialect, Mode::Shared))), Some(id(2)));
        }
        assert_eq!(found("lock-0000000001"), None);
        assert_eq!(found(&format!("_c_{}x-lock-0000000001", id(2))), None);
        assert_eq!(found("+102030405060708090a0b0c0d0e0f10__lock__0000000001"), None);
        assert_eq!(found("ü02030405060708090a0b0c0d0e0f10__lock__0000000001"), None);
    }

    #[test]
    fn curator_mutex_and_go_zookeeper_are_exclusive() {
        assert_parses("_c_2a9f0cc5-5b46-4a0c-9ac9-4a1d5b3d0c1e-lock-0000000012", Dialect::Curator, Mode::Exclusive, 12);
        assert_parses("_c_6a2b5c9d8e7f40318b6c5d4e3f2a1b0c-lock-0000000003", Dialect::Curator, Mode::Exclusive, 3);
        assert_parses("lock-0000000003", Dialect::Curator, Mode::Exclusive, 3);
    }

    #[test]
    fn write_lock_and_zoo_lock_are_exclusive() {
        assert_parses("x-72057594037927936-0000000001", Dialect::Curator, Mode::Exclusive, 1);
        assert_parses("x--72057594037927936-0000000001", Dialect::Curator, Mode::Exclusive, 1);
        assert_parses("x-ff0000012f3a0001-0000000001", Dialect::Curator, Mode::Exclusive, 1);
        assert_parses("x--72057594037927936--2147483648", Dialect::Curator, Mode::Exclusive, i32::MIN);
    }

    #[test]
    fn curator_read_write_lock() {
        let id = "_c_2a9f0cc5-5b46-4a0c-9ac9-4a1d5b3d0c1e-";
        assert_parses(&format!("{id}__WRIT__0000000004"), Dialect::CuratorRw, Mode::Exclusive, 4);
        assert_parses(&format!("{id}__READ__0000000005"), Dialect::CuratorRw, Mode::Shared, 5);
    }

    #[test]
    fn kazoo_lock_and_read_lock() {
        let hex = "5f2d4e0c9b7a4c1f8e3d2b1a0f9e8d7c";
        assert_parses(&format!("{hex}__lock__0000000006"), Dialect::Kazoo, Mode::Exclusive, 6);
        assert_parses(&format!("{hex}__rlock__0000000007"), Dialect::Kazoo, Mode::Shared, 7);
    }

    #[test]
    fn names_in_any_script_count() {
        for name in ["山田\u{3000}太郎-lock-0000000001", "\u{200c}a\u{a0}b-lock-0000000001"] {
            assert_parses(name, Dialect::Curator, Mode::Exclusive, 1);
        }
        assert_parses("山田\u{3000}太郎__lock__0000000001", Dialect::Kazoo, Mode::Exclusive, 1);
    }

    #[test]
    fn wrapped_sequence_numbers_are_negative() {
        assert_parses("a-lock--2147483648", Dialect::Curator, Mode::Exclusive, i32::MIN);
        assert_parses("a-lock--1234567890", Dialect::Curator, Mode::Exclusive, -1_234_567_890);
        assert_parses("a-lock--000000001", Dialect::Curator, Mode::Exclusive, -1);
        assert_parses("a-lock-2147483647", Dialect::Curator, Mode::Exclusive, i32::MAX);
    }

    #[test]
    fn doubtful_names_count_as_exclusive() {
        let ours = format!("_c_{}", id(7));
        for name in [
            format!("{ours}-permits0-lock-0000000001"),
            format!("{ours}-permits03-lock-0000000001"),
            format!("{ours}-permits-lock-0000000001"),
            format!("{ours}-permits4294967296-lock-0000000001"),
            format!("{ours}-more-read-lock-0000000001"),
            "_c_0102030405060708-090a0b0c0d0e0f10-read-lock-0000000001".to_owned(),
            "mine-read-lock-0000000001".to_owned(),
            "_c_2a9f0cc5-5b46-4a0c-9ac9+4a1d5b3d0c1e-read-lock-0000000001".to_owned(),
            "_c_2a9f0cc5-5b46-4a0c-9ac9-4a1d5b3d0c1g-read-lock-0000000001".to_owned(),
            "mine-permits3-lock-0000000001".to_owned(),
        ] {
            assert_parses(&name, Dialect::Curator, Mode::Exclusive, 1);
        }
    }

    #[test]
    fn odd_names_are_no_contenders() {
        for name in [
            ".x",
            "config",
            "lock-",
            "-lock-",
            "0000000001",
            "a-lock-000000001",
            "a-lock-00000000001",
            "a-lock-+000000001",
            "a-lock--000000000",
            "a-lock-2147483648",
            "a-lock-9999999999",
            "a-lock-000000000x",
            "a-lock-٠٠٠٠٠٠٠٠٠١",
            "a-lock-０００００００００１",
            "a-LOCK-0000000001",
            "alock-0000000001",
            "latch-0000000001",
            "x-0000000001",
            "x--0000000001",
            "x-+1-0000000001",
            "x-zz-0000000001",
            "x-99999999999999999999-0000000001",
            "_c_2a9f0cc5-5b46-4a0c-9ac9-4a1d5b3d0c1e-latch-0000000001",
            // Made by hand, to deceive who reads them.
            "\u{9f}-lock-0000000001",
            "_c_2a9f0cc5-5b46-4a0c-9ac9-4a1d5b3d0c1e-\u{1b}[2J-lock-0000000001",
            "a\nb-lock-0000000001",
        ] {
            assert_eq!(Contender::parse(&name.into()), None, "{name}");
        }
        assert_eq!(Contender::parse(&ChildName::from("ü".repeat(500_000).as_str())), None);
    }

    proptest! {
        #[test]
        fn names_come_back_as_they_were_given(
            session: i64,
            random: u64,
            mode in prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared), (1u32..).prop_map(permits)],
            dialect in prop::sample::select(&Dialect::QUEUEING[..]),
            sequence: i32,
        ) {
            let id = ContenderId::new(session, random);
            let name = ChildName::from(format!("{}{sequence:010}", id.prefix(dialect, mode)).as_str());
            let contender = Contender::parse(&name).unwrap();
            prop_assert_eq!(contender.reads, dialect);
            let expected = if dialect != Dialect::Curator && mode.permits().is_some() { Mode::Exclusive } else { mode };
            prop_assert_eq!((contender.name, contender.sequence, contender.mode, contender.id), (name, sequence, expected, Some(id)));
        }

        #[test]
        fn no_name_makes_it_panic(name in ".*", tail in "(_c_|x-|-lock-|__lock__|-|[0-9]|\\PC){0,24}") {
            for name in [name.clone(), tail.clone(), name + &tail].into_iter().filter_map(ChildName::parse) {
                if let Some(contender) = Contender::parse(&name) {
                    let sequence = format!("{:010}", contender.sequence);
                    prop_assert!(contender.name.ends_with(&sequence));
                }
            }
        }
    }
}
