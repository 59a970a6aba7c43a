//! `--once-per`: the record of a lock's last successful run, and what follows from it for the next run.
//!
//! All times are those of ZooKeeper's clock. A run asked when its first contender was created. In the dialect `single`,
//! where that is the end of the wait, it asked when it was started: at the time of the creation, less the time
//! that had passed on its own machine's clock. The last run began at the time at which its record was written, less the
//! time that had passed since then on its own machine's clock. So no host's wall clock matters.

use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::instant::Instant;
use super::rfc3339::rfc3339;
use super::text::readable;

/// What the name of the record's node has in addition to that of the lock. Not `lock-` with anything behind it: there,
/// clients of other libraries expect a number.
const SUFFIX: &str = ".zklock.last";

/// The version of the format, `v` in the data.
const VERSION: u32 = 1;

/// The node of the record: beside the lock, because the node of a lock may be deleted when no contender is left.
pub fn path(lock: &str) -> String {
    format!("{lock}{SUFFIX}")
}

pub fn is_record(name: &str) -> bool {
    name.ends_with(SUFFIX)
}

/// When a run asked for its first lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked {
    /// On ZooKeeper's clock, in milliseconds since the Unix epoch.
    pub at: i64,
    /// An instant before that, on our own clock.
    pub after: Instant,
}

/// A run that was successful, as it is about to be recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Success {
    /// When its command was started.
    pub began: Instant,
    /// When its command had ended.
    pub ended: Instant,
}

impl Success {
    /// The data of the record, if it is written at `now`. `token`: that of the lock.
    pub fn to_bytes(self, now: Instant, token: i64, host: Option<&str>, user: Option<&str>) -> Vec<u8> {
        let since = |instant: Instant| signed_millis(instant.saturating_since(self.began));
        let (began_ms_ago, took_ms) = (since(now), since(self.ended));
        let data = json!({
            "v": VERSION, "host": host, "user": user, "token": token, "began_ms_ago": began_ms_ago, "took_ms": took_ms,
        });
        data.to_string().into_bytes()
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LastRun {
    /// When its command was started, in milliseconds since the Unix epoch.
    pub started: i64,
    pub took: Duration,
    /// On which machine, if that is known; printable.
    pub host: Option<String>,
    /// The fencing token of that run, if that is known.
    pub token: Option<i64>,
}

impl LastRun {
    /// Reads a record, which anyone may have written. `written`: when that was, on ZooKeeper's clock. `None` if it does not
    /// say when the run began.
    pub fn from_bytes(data: &[u8], written: i64) -> Option<Self> {
        let object = serde_json::from_slice::<Map<String, Value>>(data).ok()?;
        let number = |field: &str| object.get(field).and_then(Value::as_u64);
        let began_ms_ago = i64::try_from(number("began_ms_ago")?).ok()?;
        let started = written.checked_sub(began_ms_ago).filter(|started| rfc3339(*started).is_some())?;
        Some(Self {
            started,
            took: Duration::from_millis(number("took_ms")?),
            host: object.get("host").and_then(Value::as_str).and_then(readable),
            token: object.get("token").and_then(Value::as_i64),
        })
    }

    /// When it began, as programs read it.
    pub fn began(&self) -> Option<String> {
        rfc3339(self.started)
    }

    /// Whether a run that asked then is to be skipped: the last one began less than `period` before it asked, or after
    /// that, while it waited.
    pub fn is_recent(&self, asked: Asked, period: Duration) -> bool {
        asked.at.saturating_sub(self.started) < signed_millis(period)
    }

    /// Whether it began in the future, and so far in it that ZooKeeper's clock must have been wrong then. Such a record
    /// would keep all runs from starting for as long as that clock was ahead. Less than `period` is not looked at: it costs
    /// one run at most.
    pub fn is_absurd(&self, asked: Asked, now: Instant, period: Duration) -> bool {
        let waited = now.saturating_since(asked.after);
        self.started.saturating_sub(asked.at) > signed_millis(waited + period)
    }
}

/// As ZooKeeper counts time.
pub fn signed_millis(time: Duration) -> i64 {
    i64::try_from(time.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::rules::child_name::ChildName;
    use crate::rules::queue::Contender;
    use crate::rules::text::is_printable;

    const PERIOD: Duration = Duration::from_secs(50);
    const NOON: i64 = 1_767_268_800_000;

    fn at(seconds: u64) -> Instant {
        Instant::from_boot(Duration::from_secs(seconds))
    }

    fn last(started: i64) -> LastRun {
        LastRun { started, took: Duration::ZERO, host: None, token: None }
    }

    #[test]
    fn a_record_as_it_is_stored_and_read() {
        let success = Success { began: at(100), ended: at(103) };
        let data = success.to_bytes(at(104), 77, Some("db1"), Some("ops"));
        assert_eq!(
            String::from_utf8(data.clone()).unwrap(),
            r#"{"began_ms_ago":4000,"host":"db1","token":77,"took_ms":3000,"user":"ops","v":1}"#
        );
        let read = LastRun::from_bytes(&data, NOON).unwrap();
        let took = Duration::from_secs(3);
        assert_eq!(read, LastRun { started: NOON - 4000, took, host: Some("db1".to_owned()), token: Some(77) });
        assert_eq!(read.began().unwrap(), "2026-01-01T11:59:56.000Z");
    }

    /// All that a run reads of a clock is how much time has passed; what its wall clock shows is in no place.
    #[test]
    fn when_a_machine_was_started_does_not_matter() {
        let record = |boot: u64| {
            let success = Success { began: at(boot), ended: at(boot + 3) };
            LastRun::from_bytes(&success.to_bytes(at(boot + 3), 1, None, None), NOON)
        };
        assert_eq!(record(5), record(600));
        for after in [at(5), at(600)] {
            let asked = |at| Asked { at, after };
            assert!(record(5).unwrap().is_recent(asked(NOON), PERIOD));
            assert!(!record(5).unwrap().is_recent(asked(NOON + 47_000), PERIOD));
        }
    }

    #[test]
    fn young_runs_and_those_that_were_waited_for_are_recent() {
        let asked = Asked { at: NOON, after: at(9) };
        for (age, recent) in [(-3_600_000, true), (-1, true), (0, true), (49_999, true), (50_000, false)] {
            assert_eq!(last(NOON - age).is_recent(asked, PERIOD), recent, "{age}");
        }
    }

    #[test]
    fn a_record_from_the_future_is_absurd() {
        let asked = Asked { at: NOON, after: at(1000) };
        for (ahead, waited, absurd) in
            [(0, 0, false), (50_000, 0, false), (50_001, 0, true), (150_000, 100, false), (150_001, 100, true)]
        {
            assert_eq!(last(NOON + ahead).is_absurd(asked, at(1000 + waited), PERIOD), absurd, "{ahead} {waited}");
        }
    }

    #[test]
    fn garbage_is_no_record() {
        for data in [
            &b""[..],
            b"\xff\0",
            b"[]",
            b"{}",
            br#"{"took_ms":1}"#,
            br#"{"began_ms_ago":1}"#,
            br#"{"began_ms_ago":-1,"took_ms":1}"#,
            br#"{"began_ms_ago":"1","took_ms":1}"#,
            br#"{"began_ms_ago":18446744073709551615,"took_ms":1}"#,
            br#"{"began_ms_ago":9223372036854775807,"took_ms":1}"#,
        ] {
            assert_eq!(LastRun::from_bytes(data, NOON), None, "{data:?}");
        }
        let odd = br#"{"v":"x","host":"db\u001b1","token":"t","began_ms_ago":1,"took_ms":1}"#;
        let read = LastRun::from_bytes(odd, NOON).unwrap();
        assert_eq!((read.host.as_deref(), read.token), (Some("db<U+001B>1"), None));
    }

    proptest! {
        #[test]
        fn any_bytes_can_be_read(data: Vec<u8>, written: i64, asked: i64) {
            if let Some(last) = LastRun::from_bytes(&data, written) {
                prop_assert!(last.host.iter().all(|host| is_printable(host)));
                last.is_recent(Asked { at: asked, after: at(1) }, PERIOD);
            }
        }

        /// Where the parent of a lock is a lock itself, the record is among its children.
        #[test]
        fn no_record_passes_for_a_contender(
            name in "[a-z0-9_-]{0,40}(-lock-|__lock__|__WRIT__|x-[0-9]{1,9}-|n_|latch-)?[0-9]{0,10}",
        ) {
            prop_assert_eq!(Contender::parse(&ChildName::from(path(&name).as_str())), None);
        }
    }
}
