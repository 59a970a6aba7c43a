//! What a contender says about itself: the data of its node.
//!
//! Ours is a JSON object. Other clients write what they like, or nothing, so reading never fails. Every text
//! that was read here is safe to print on a terminal.

use std::net::IpAddr;
use std::num::NonZeroU32;

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::mode::Mode;
use super::text::readable;

/// The longest data, in bytes, that is taken for readable text when it is not a JSON object.
const PLAIN_LIMIT: usize = 1024;

/// The version of the format, `v` in the data.
const VERSION: u32 = 1;

/// Who a contender is. What it did not say, or said in a way that we cannot read, is `None`.
///
/// The texts of a card from [`Card::from_bytes`] are printable ([`super::text`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Card {
    pub host: Option<String>,
    /// The process that the user started, as that machine numbers it.
    pub pid: Option<u32>,
    /// When that process started, in clock ticks since boot (proc_pid_stat(5)).
    pub started: Option<u64>,
    /// The PID namespace in which it has that pid (pid_namespaces(7)).
    pub pid_ns: Option<u64>,
    /// The time namespace in which it has started then (time_namespaces(7)).
    pub time_ns: Option<u64>,
    /// A random text for the time that the machine has been running since its last boot (proc_sys_kernel(5)).
    pub boot_id: Option<String>,
    pub user: Option<String>,
    /// The file name of the command, without its directory and its arguments; with `--publish-command`, the
    /// whole command line.
    pub command: Option<String>,
    /// What the user wants others to read.
    pub describe: Option<String>,
    pub mode: Option<Mode>,
    /// Since when it has held the lock, in milliseconds since the Unix epoch on its own clock.
    pub held_since: Option<u64>,
    /// For how long it had held the lock when this was stored, in milliseconds.
    pub held_for: Option<u64>,
    /// Since when it has held the lock, in milliseconds since the Unix epoch on ZooKeeper's clock, as it was known to
    /// another that has stored this card anew since then.
    pub held_at: Option<i64>,
}

impl Card {
    /// The data to store: a JSON object that leaves out what is `None`. `permits` follows from the mode.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut data = json!(self);
        data["v"] = VERSION.into();
        data["permits"] = json!(self.mode.and_then(Mode::permits));
        data.as_object_mut().expect("a struct has fields").retain(|_, value| !value.is_null());
        data.to_string().into_bytes()
    }

    /// Reads a node's data, which any client may have written.
    ///
    /// Of a JSON object, each field of the right type is taken. Anything else is taken if it is a short
    /// UTF-8 text: an IP address as the host, because Curator stores that; any other text as the
    /// description, because kazoo stores an identifier.
    pub fn from_bytes(data: &[u8]) -> Self {
        if let Ok(object) = serde_json::from_slice::<Map<String, Value>>(data) {
            return Self::from_object(&object);
        }
        let Some(text) = Some(data).filter(|data| data.len() <= PLAIN_LIMIT).and_then(|data| str::from_utf8(data).ok())
        else {
            return Self::default();
        };
        match text.trim().parse::<IpAddr>() {
            Ok(address) => Self { host: Some(address.to_string()), ..Self::default() },
            // WriteLock stores the eight bytes of its session id, which can happen to be UTF-8.
            Err(_) if text.trim_end().contains(char::is_control) => Self::default(),
            Err(_) => Self { describe: readable(text), ..Self::default() },
        }
    }

    fn from_object(object: &Map<String, Value>) -> Self {
        let text = |field: &str| object.get(field).and_then(Value::as_str).and_then(readable);
        let number = |field: &str| object.get(field).and_then(Value::as_u64);
        let mode = object.get("mode").and_then(Value::as_str).and_then(|mode| mode.parse().ok());
        let permits = || number("permits").and_then(|permits| NonZeroU32::new(u32::try_from(permits).ok()?));
        Self {
            host: text("host"),
            pid: number("pid").and_then(|pid| u32::try_from(pid).ok()),
            started: number("started"),
            pid_ns: number("pid_ns"),
            time_ns: number("time_ns"),
            boot_id: text("boot_id"),
            user: text("user"),
            command: text("command"),
            describe: text("describe"),
            mode: mode.or_else(|| permits().map(Mode::Permits)),
            held_since: number("held_since"),
            held_for: number("held_for"),
            held_at: object.get("held_at").and_then(Value::as_i64),
        }
    }

    /// Since when it has held the lock, in milliseconds since the Unix epoch on ZooKeeper's clock; `None` if it does
    /// not say that it does. By the same clock, its node was created and this was stored.
    pub fn held_at(&self, created: i64, stored: i64) -> Option<i64> {
        self.held_since?;
        let held_for = i64::try_from(self.held_for.unwrap_or(0)).unwrap_or(i64::MAX);
        let held_at = self.held_at.unwrap_or_else(|| stored.saturating_sub(held_for));
        // The card may say anything, but a node was not held before its creation, nor after its last change.
        Some(held_at.min(stored).max(created))
    }

    /// The phrase that names this contender to a reader. `None` when nothing is known of it; show the
    /// node's name then.
    ///
    /// `db3 (ops, pid 4242, backup.sh)`, and with a description
    /// `db3 (ops, pid 4242, backup.sh: nightly dump)`. What is unknown is left out, and so are empty
    /// parentheses.
    pub fn phrase(&self) -> Option<String> {
        let pid = self.pid.map(|pid| format!("pid {pid}"));
        let work = match (&self.command, &self.describe) {
            (Some(command), Some(describe)) => Some(format!("{command}: {describe}")),
            (one, other) => one.as_ref().or(other.as_ref()).cloned(),
        };
        let details = [self.user.clone(), pid, work].into_iter().flatten().collect::<Vec<_>>().join(", ");
        match &self.host {
            Some(host) if details.is_empty() => Some(host.clone()),
            Some(host) => Some(format!("{host} ({details})")),
            None => Some(details).filter(|details| !details.is_empty()),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rules::text::{TEXT_LIMIT, is_printable};

    fn backup() -> Card {
        Card {
            host: Some("db3".to_owned()),
            pid: Some(4242),
            user: Some("ops".to_owned()),
            command: Some("backup.sh".to_owned()),
            ..Card::default()
        }
    }

    fn described(text: &str) -> Card {
        Card { describe: Some(text.to_owned()), ..Card::default() }
    }

    #[test]
    fn it_has_held_no_longer_than_it_was_there() {
        let card = |held_since, held_for| Card { held_since, held_for, ..Card::default() };
        assert_eq!(card(Some(1), Some(400)).held_at(5000, 7000), Some(6600));
        assert_eq!(card(Some(1), None).held_at(5000, 7000), Some(7000));
        assert_eq!(card(Some(1), Some(u64::MAX)).held_at(5000, 7000), Some(5000));
        assert_eq!(card(None, Some(400)).held_at(5000, 7000), None);
        let stored_anew = |held_at| Card { held_at: Some(held_at), ..card(Some(1), Some(400)) };
        for (held_at, read) in [(6600, 6600), (4000, 5000), (9500, 9000)] {
            assert_eq!(stored_anew(held_at).held_at(5000, 9000), Some(read));
        }
    }

    #[test]
    fn data_as_it_is_stored() {
        let card = Card {
            describe: Some("nightly".to_owned()),
            mode: Some(Mode::Permits(NonZeroU32::new(3).unwrap())),
            held_since: Some(1_700_000_000_123),
            held_for: Some(4000),
            started: Some(77),
            pid_ns: Some(4_026_531_836),
            time_ns: Some(4_026_531_834),
            boot_id: Some("7b38".to_owned()),
            ..backup()
        };
        assert_eq!(
            String::from_utf8(card.to_bytes()).unwrap(),
            concat!(
                r#"{"boot_id":"7b38","command":"backup.sh","describe":"nightly","held_for":4000,"#,
                r#""held_since":1700000000123,"host":"db3","mode":"permits:3","permits":3,"pid":4242,"#,
                r#""pid_ns":4026531836,"started":77,"time_ns":4026531834,"user":"ops","v":1}"#
            )
        );
        assert_eq!(Card::from_bytes(&card.to_bytes()), card);
    }

    #[test]
    fn absent_fields_are_left_out() {
        let card = Card { command: None, mode: Some(Mode::Exclusive), ..backup() };
        assert_eq!(card.to_bytes(), br#"{"host":"db3","mode":"exclusive","pid":4242,"user":"ops","v":1}"#);
        assert_eq!(Card::default().to_bytes(), br#"{"v":1}"#);
    }

    #[test]
    fn fields_of_the_wrong_type_are_unknown() {
        let data =
            br#"{"v":"2","host":["db3"],"pid":-1,"user":"ops","command":null,"mode":"alone","held_since":"now"}"#;
        assert_eq!(Card::from_bytes(data), Card { user: Some("ops".to_owned()), ..Card::default() });
        let data = br#"{"pid":4294967296,"held_since":1.5,"permits":0,"describe":" \u0000\t"}"#;
        assert_eq!(Card::from_bytes(data), Card::default());
        let data = br#"{"mode":7,"permits":4}"#;
        assert_eq!(Card::from_bytes(data).mode, NonZeroU32::new(4).map(Mode::Permits));
    }

    #[test]
    fn an_address_as_curator_stores_it_is_the_host() {
        assert_eq!(Card::from_bytes(b"192.168.7.3").phrase().unwrap(), "192.168.7.3");
        assert_eq!(Card::from_bytes(b"fe80::1").host.unwrap(), "fe80::1");
    }

    #[test]
    fn an_identifier_of_kazoo_is_the_description() {
        assert_eq!(Card::from_bytes(b"my-identifier"), described("my-identifier"));
        assert_eq!(Card::from_bytes("Gerät 7\n".as_bytes()), described("Gerät 7"));
        assert_eq!(Card::from_bytes(b"[4242"), described("[4242"));
    }

    #[test]
    fn garbage_says_nothing() {
        for data in [
            &b""[..],
            b"  \n",
            b"\0\0 \0",
            b"\xff\xfe\x00",
            b"\x01\0\0\x2d\x47\x39\0\x34",
            br#"{"owner":"alice"}"#,
            b"{}",
        ] {
            assert_eq!(Card::from_bytes(data), Card::default(), "{data:?}");
        }
        assert_eq!(Card::from_bytes(&vec![0xac; 1 << 20]), Card::default());
        assert_eq!(Card::from_bytes(&vec![b'a'; 1 << 20]), Card::default());
        assert_eq!(Card::from_bytes(&vec![b'['; 1 << 20]), Card::default());
        assert_eq!(Card::from_bytes("{\"a\":".repeat(1 << 17).as_bytes()), Card::default());
    }

    #[test]
    fn terminal_escapes_do_not_get_through() {
        let data = br#"{"host":"db3\u001b[2J","user":"o\u009bps","describe":"\u202egnp.exe"}"#;
        let card = Card::from_bytes(data);
        assert_eq!(card.phrase().unwrap(), "db3<U+001B>[2J (o<U+009B>ps, <U+202E>gnp.exe)");
        assert_eq!(Card::from_bytes(b"\x1b]0;title\x07"), Card::default());
    }

    #[test]
    fn long_texts_are_cut() {
        let data = format!(r#"{{"host":"{}"}}"#, "h".repeat(1 << 20));
        assert_eq!(Card::from_bytes(data.as_bytes()).host.unwrap().chars().count(), TEXT_LIMIT);
    }

    #[test]
    fn phrases() {
        assert_eq!(backup().phrase().unwrap(), "db3 (ops, pid 4242, backup.sh)");
        let nightly = Some("nightly dump".to_owned());
        let card = Card { describe: nightly.clone(), ..backup() };
        assert_eq!(card.phrase().unwrap(), "db3 (ops, pid 4242, backup.sh: nightly dump)");
        let card = Card { command: None, describe: nightly, ..backup() };
        assert_eq!(card.phrase().unwrap(), "db3 (ops, pid 4242, nightly dump)");
        assert_eq!(Card { host: None, ..backup() }.phrase().unwrap(), "ops, pid 4242, backup.sh");
        assert_eq!(described("nightly").phrase().unwrap(), "nightly");
        assert_eq!(Card::default().phrase(), None);
        let card = Card { mode: Some(Mode::Shared), held_since: Some(1), ..Card::default() };
        assert_eq!(card.phrase(), None);
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(data: Vec<u8>) {
            let card = Card::from_bytes(&data);
            prop_assert!([card.host, card.describe].iter().flatten().all(|text| is_printable(text)));
        }

        #[test]
        fn plain_cards_come_back_as_they_were_stored(
            host in "[a-z0-9.-]{1,60}",
            pid in any::<Option<u32>>(),
            describe in prop::option::of("[a-zäöü\"\\\\{}]{1,60}"),
            held_since in any::<Option<u64>>(),
        ) {
            let card = Card { host: Some(host), pid, describe, held_since, ..Card::default() };
            prop_assert_eq!(Card::from_bytes(&card.to_bytes()), card);
        }
    }
}
