//! Which library a contender node is from, as far as its name tells.

use super::names::{Contender, Dialect, is_hex, is_uuid};

impl Contender {
    /// The name of the library or recipe, as programs read it. `session`: to which the node belongs, if it is known. `None`
    /// if several clients give such names.
    pub fn client(&self, session: Option<i64>) -> Option<&'static str> {
        if self.id.is_some_and(|id| id.is_own() && session.is_none_or(|session| session == id.session())) {
            return Some("zklock");
        }
        match self.reads {
            Dialect::Kazoo => Some("kazoo"),
            Dialect::CuratorRw => Some("curator"),
            Dialect::Single => Some("single"),
            Dialect::Curator => {
                if let Some(rest) = self.name.strip_prefix("x-") {
                    // Java writes the session id in decimal, C in 16 hex digits.
                    let digits = rest.split('-').next().unwrap_or_default();
                    return Some(if digits.len() == 16 { "zoo_lock" } else { "writelock" });
                }
                match self.name.strip_prefix("_c_")?.split_once("-lock-")?.0 {
                    id if is_uuid(id) => Some("curator"),
                    id if id.len() == 32 && is_hex(id) => Some("go-zookeeper"),
                    _ => None,
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::ContenderId;
    use super::*;
    use crate::rules::mode::Mode;

    fn of(name: &str, session: Option<i64>) -> Option<&'static str> {
        Contender::parse(&name.into()).unwrap().client(session)
    }

    #[test]
    fn clients_are_known_by_their_names() {
        for (name, expected) in [
            ("_c_2a9f0cc5-5b46-4a0c-9ac9-4a1d5b3d0c1e-lock-0000000012", Some("curator")),
            ("_c_2a9f0cc5-5b46-4a0c-9ac9-4a1d5b3d0c1e-__READ__0000000012", Some("curator")),
            ("_c_6a2b5c9d8e7f40318b6c5d4e3f2a1b0c-lock-0000000003", Some("go-zookeeper")),
            ("5f2d4e0c9b7a4c1f8e3d2b1a0f9e8d7c__lock__0000000006", Some("kazoo")),
            ("x-72057594037927936-0000000001", Some("writelock")),
            ("x--72057594037927936-0000000001", Some("writelock")),
            ("x-ff0000012f3a0001-0000000001", Some("zoo_lock")),
            ("lock-0000000003", None),
            ("mine-lock-0000000003", None),
            ("lock", Some("single")),
        ] {
            assert_eq!(of(name, Some(7)), expected, "{name}");
        }
    }

    #[test]
    fn ours_bear_the_session_that_they_belong_to() {
        for dialect in Dialect::QUEUEING {
            let name = format!("{}0000000001", ContenderId::new(7, 1).prefix(dialect, Mode::Exclusive));
            assert_eq!(of(&name, Some(7)), Some("zklock"));
            assert_eq!(of(&name, None), Some("zklock"));
            assert_ne!(of(&name, Some(8)), Some("zklock"));
        }
    }
}
