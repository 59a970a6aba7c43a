//! `--lock-delay`: the record of the last exclusive holder of a lock, and what follows from it for the next run.
//!
//! A holder that records itself and does not end cleanly may have left work elsewhere that nobody could kill. The next run marks
//! the record when its turn has come, and waits. The time counts from that mark, on ZooKeeper's clock. Others write records as they
//! like, so a record decides when a run starts, and never whether it holds the lock.

use std::time::Duration;

use serde_json::{Map, Value, json};

use super::card::Card;
use super::last_run::signed_millis;

/// The longest delay. A record that says more counts as this.
pub const LONGEST: Duration = Duration::from_secs(60 * 60);

/// What the name of the record's node has in addition to that of the lock.
const SUFFIX: &str = ".zklock.held";

/// The version of the format, `v` in the data.
const VERSION: u32 = 1;

/// The node of the record: beside the lock, because other libraries queue behind any child of a lock.
pub fn path(lock: &str) -> String {
    format!("{lock}{SUFFIX}")
}

/// Whether the node of this name is such a record.
pub fn is_record(name: &str) -> bool {
    name.ends_with(SUFFIX)
}

/// What has become of a holder, as its record tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HolderFate {
    /// It holds, or has vanished.
    Held,
    /// It has vanished, and a run after it has marked the record.
    Vanished,
    /// It has ended cleanly.
    Released,
}

impl HolderFate {
    const ALL: [Self; 3] = [Self::Held, Self::Vanished, Self::Released];

    const fn name(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Vanished => "vanished",
            Self::Released => "released",
        }
    }
}

/// The record of an exclusive holder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderRecord {
    pub fate: HolderFate,
    /// The holder's fencing token.
    pub token: i64,
    /// [`LONGEST`] at most.
    pub delay: Duration,
    pub host: Option<String>,
    pub user: Option<String>,
    pub pid: Option<u32>,
}

impl HolderRecord {
    /// That of a holder whose card is this.
    pub fn new(fate: HolderFate, token: i64, delay: Duration, card: &Card) -> Self {
        let Card { host, user, pid, .. } = card.clone();
        Self { fate, token, delay, host, user, pid }
    }

    pub fn to_bytes(&self) -> Vec<u8> {
        let Self { fate, token, delay, host, user, pid } = self;
        let (fate, delay_ms) = (fate.name(), signed_millis(*delay));
        let data = json!({
            "v": VERSION, "state": fate, "token": token, "delay_ms": delay_ms, "host": host, "user": user, "pid": pid,
        });
        data.to_string().into_bytes()
    }

    /// Reads a record, which anyone may have written. `None` if it makes no sense.
    pub fn from_bytes(data: &[u8]) -> Option<Self> {
        let object = serde_json::from_slice::<Map<String, Value>>(data).ok()?;
        if object.get("v").and_then(Value::as_u64) != Some(VERSION.into()) {
            return None;
        }
        let state = object.get("state").and_then(Value::as_str)?;
        let fate = HolderFate::ALL.into_iter().find(|fate| fate.name() == state)?;
        let token = object.get("token").and_then(Value::as_i64)?;
        let delay = Duration::from_millis(object.get("delay_ms").and_then(Value::as_u64)?).min(LONGEST);
        Some(Self::new(fate, token, delay, &Card::from_bytes(data)))
    }

    /// Who the holder was, printable.
    pub fn who(&self) -> String {
        let Self { host, user, pid, .. } = self.clone();
        Card { host, user, pid, ..Card::default() }.phrase().unwrap_or_else(|| "the last holder".to_owned())
    }

    /// When the delay is over, in milliseconds on ZooKeeper's clock. `written`: when the record was, on that clock. `None` if
    /// nothing is waited for, or no run has marked the record yet.
    pub fn ends_at(&self, written: i64, own_delay: Duration) -> Option<i64> {
        (self.fate == HolderFate::Vanished).then(|| written.saturating_add(signed_millis(self.delay.max(own_delay))))
    }
}

/// What a run does about the record of a lock, when its turn has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It starts.
    Start,
    /// It marks the record first.
    Mark(HolderRecord),
    /// It waits because of this holder, until then on ZooKeeper's clock.
    Wait(HolderRecord, i64),
}

/// Judges a record. `data`: what the record's node has; empty if there is no such node, or if an administrator has made it.
/// `written`: when, on ZooKeeper's clock. `is_own`: whether a holder with this token is the run itself. With the verdict: whether the record
/// makes sense.
pub fn judge(data: &[u8], written: i64, delay: Duration, is_own: impl FnOnce(i64) -> bool) -> (Verdict, bool) {
    if data.is_empty() {
        return (Verdict::Start, true);
    }
    let Some(record) = HolderRecord::from_bytes(data) else {
        let unknown = HolderRecord::new(HolderFate::Vanished, 0, delay, &Card::default());
        return (Verdict::Mark(unknown), false);
    };
    let verdict = match (record.fate, record.ends_at(written, delay)) {
        (_, Some(until)) => Verdict::Wait(record, until),
        (HolderFate::Held, _) if !is_own(record.token) => {
            Verdict::Mark(HolderRecord { fate: HolderFate::Vanished, ..record })
        }
        (HolderFate::Held | HolderFate::Released | HolderFate::Vanished, None) => Verdict::Start,
    };
    (verdict, true)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rules::text::is_printable;

    const MINUTE: Duration = Duration::from_secs(60);

    fn record(fate: HolderFate) -> HolderRecord {
        let card =
            Card { host: Some("db1".to_owned()), user: Some("ops".to_owned()), pid: Some(42), ..Card::default() };
        HolderRecord::new(fate, 77, MINUTE, &card)
    }

    fn verdict(record: &HolderRecord, delay: Duration) -> Verdict {
        judge(&record.to_bytes(), 5000, delay, |token| token == 78).0
    }

    #[test]
    fn a_record_as_it_is_stored_and_read() {
        let data = record(HolderFate::Held).to_bytes();
        let text = r#"{"delay_ms":60000,"host":"db1","pid":42,"state":"held","token":77,"user":"ops","v":1}"#;
        assert_eq!(String::from_utf8(data.clone()).unwrap(), text);
        let read = HolderRecord::from_bytes(&data).unwrap();
        assert_eq!((read.who().as_str(), read), ("db1 (ops, pid 42)", record(HolderFate::Held)));
    }

    #[test]
    fn the_longer_delay_counts_from_the_mark() {
        assert_eq!(verdict(&record(HolderFate::Released), MINUTE), Verdict::Start);
        assert_eq!(verdict(&record(HolderFate::Held), MINUTE), Verdict::Mark(record(HolderFate::Vanished)));
        assert_eq!(verdict(&HolderRecord { token: 78, ..record(HolderFate::Held) }, MINUTE), Verdict::Start);
        for (own, until) in [(1, 65_000), (60, 65_000), (61, 66_000)] {
            let vanished = record(HolderFate::Vanished);
            assert_eq!(verdict(&vanished, Duration::from_secs(own)), Verdict::Wait(vanished, until));
        }
    }

    #[test]
    fn what_is_no_record_costs_one_delay() {
        assert_eq!(judge(b"", 0, MINUTE, |_| false), (Verdict::Start, true));
        let unknown = HolderRecord::new(HolderFate::Vanished, 0, MINUTE, &Card::default());
        for data in ["?", "{}", r#"{"v":2,"state":"held","token":1,"delay_ms":1}"#] {
            assert_eq!(judge(data.as_bytes(), 0, MINUTE, |_| true), (Verdict::Mark(unknown.clone()), false));
        }
    }

    proptest! {
        #[test]
        fn whatever_is_stored_delays_an_hour_at_most(
            state in "held|vanished|released|x", token: i64, delay: u64, written: i64, host: String,
        ) {
            let data = json!({"v": 1, "state": state, "token": token, "delay_ms": delay, "host": host}).to_string();
            let (verdict, _) = judge(data.as_bytes(), written, MINUTE, |_| false);
            if let Verdict::Wait(record, until) = verdict {
                prop_assert!(until.saturating_sub(written) <= signed_millis(LONGEST));
                prop_assert!(is_printable(&record.who()));
            }
        }
    }
}
