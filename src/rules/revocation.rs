//! A request to a contender to give up its lock, or its place in the queue: it is written into the data of its node.
//!
//! To zklock it is a field of the card ([`super::card`]), so the card stays readable. Curator has a marker that takes the
//! place of the data (`Revoker.attemptRevoke`); zklock obeys that as well.

use serde_json::{Map, Value, json};

use super::card::Card;
use super::text::readable;

/// What Curator writes (`LockInternals.REVOKE_MESSAGE`).
pub const CURATOR_MARKER: &[u8] = b"__REVOKE__";

/// The field of the card.
const FIELD: &str = "revoke";

/// A request to give up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Revocation {
    /// Whether the contender that it is meant for was seen as a holder (`true`) or as a waiter; `None` if it does not
    /// say that.
    pub seen_holding: Option<bool>,
    /// Who asks, printable: `ops@db3`.
    pub by: Option<String>,
}

impl Revocation {
    /// The request in the data of a node, if there is one.
    pub fn from_bytes(data: &[u8]) -> Option<Self> {
        if data == CURATOR_MARKER {
            return Some(Self { seen_holding: None, by: None });
        }
        let card: Map<String, Value> = serde_json::from_slice(data).ok()?;
        let request = card.get(FIELD)?.as_object()?;
        let seen_holding = match request.get("seen")?.as_str()? {
            "holder" => true,
            "waiter" => false,
            _ => return None,
        };
        let by = request.get("by").and_then(Value::as_str).and_then(readable);
        Some(Self { seen_holding: Some(seen_holding), by })
    }

    /// Adds the request to the data of a zklock's node; `None` if this is not the data of a zklock. By ZooKeeper's clock,
    /// the node was created and its data was stored then. Storing it anew must not change since when the lock is held.
    pub fn add_to(&self, data: &[u8], created: i64, stored: i64) -> Option<Vec<u8>> {
        let mut card: Map<String, Value> = serde_json::from_slice(data).ok()?;
        card.get("v")?.as_u64()?;
        if let Some(held_at) = Card::from_bytes(data).held_at(created, stored) {
            card.insert("held_at".to_owned(), held_at.into());
        }
        let seen = if self.seen_holding == Some(false) { "waiter" } else { "holder" };
        card.insert(FIELD.to_owned(), json!({ "seen": seen, "by": self.by }));
        serde_json::to_vec(&card).ok()
    }

    /// Whether a contender that holds, or that waits, is meant. A waiter that has got the lock since it was seen is not:
    /// whoever asked did not want that.
    pub fn is_for(&self, holds: bool) -> bool {
        !(holds && self.seen_holding == Some(false))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_added_to_a_card_that_stays_readable() {
        let card = Card { host: Some("db3".to_owned()), held_since: Some(7), ..Card::default() };
        for seen_holding in [true, false] {
            let asked = Revocation { seen_holding: Some(seen_holding), by: Some("ops@db1".to_owned()) };
            let data = asked.add_to(&card.to_bytes(), 5000, 7000).unwrap();
            assert_eq!(Revocation::from_bytes(&data).as_ref(), Some(&asked));
            assert_eq!(Card::from_bytes(&data), Card { held_at: Some(7000), ..card.clone() });
            // A second request does not change since when the lock is held.
            let again = asked.add_to(&data, 5000, 9000).unwrap();
            assert_eq!(Card::from_bytes(&again).held_at(5000, 9500), Some(7000));
        }
    }

    #[test]
    fn nothing_else_is_a_request() {
        assert_eq!(Revocation::from_bytes(CURATOR_MARKER), Some(Revocation { seen_holding: None, by: None }));
        for data in [
            "",
            "10.0.0.1",
            "__REVOKE__ ",
            "{}",
            r#"{"revoke":1}"#,
            r#"{"revoke":{"by":"x"}}"#,
            r#"{"revoke":{"seen":"x"}}"#,
        ] {
            assert_eq!(Revocation::from_bytes(data.as_bytes()), None, "{data}");
        }
        let asked = Revocation { seen_holding: Some(true), by: None };
        for data in ["", "10.0.0.1", "{}", "[]"] {
            assert_eq!(asked.add_to(data.as_bytes(), 5000, 7000), None, "{data}");
        }
    }

    #[test]
    fn a_waiter_that_has_got_the_lock_is_not_meant() {
        let meant = |seen_holding, holds| Revocation { seen_holding, by: None }.is_for(holds);
        assert!(meant(Some(true), true) && meant(Some(false), false) && meant(None, true) && meant(None, false));
        // A holder that has lost its lock since then, and waits again, has a new node.
        assert!(meant(Some(true), false));
        assert!(!meant(Some(false), true));
    }
}
