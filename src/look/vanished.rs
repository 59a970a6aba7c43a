//! A holder that has vanished, and delays the next run (`--lock-delay`).

use serde::Serialize;

use crate::rules::duration::show;
use crate::rules::lock_delay::{HolderFate, HolderRecord};
use crate::rules::rfc3339::rfc3339;
use crate::system::clock;
use crate::zookeeper::session::NodeStat;

/// As JSON, this is part of what users rely on: docs/status.schema.json.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Vanished {
    /// The holder, printable.
    pub holder: String,
    pub delay_ms: u64,
    /// When the delay is over, unless the next run asks for a longer one. `None`: no run has begun to wait it out.
    pub until: Option<String>,
    /// What [`Self::released`] is to replace.
    #[serde(skip)]
    pub version: i32,
    #[serde(skip)]
    record: HolderRecord,
}

impl Vanished {
    /// `is_there`: whether the contender with this token is. `None`: nobody has vanished, or the delay is over by this machine's
    /// clock.
    pub(super) fn new(data: &[u8], stat: NodeStat, is_there: impl FnOnce(i64) -> bool) -> Option<Self> {
        let record = HolderRecord::from_bytes(data)?;
        let ends_at = record.ends_at(stat.written, record.delay);
        let is_over = ends_at.is_some_and(|at| u64::try_from(at).unwrap_or(0) <= clock::wall_millis());
        if is_over || record.fate == HolderFate::Released || is_there(record.token) {
            return None;
        }
        let delay_ms = u64::try_from(record.delay.as_millis()).unwrap_or(u64::MAX);
        let until = ends_at.and_then(rfc3339);
        Some(Self { holder: record.who(), delay_ms, until, version: stat.version, record })
    }

    /// The line that a person reads.
    pub(super) fn line(&self) -> String {
        let Self { holder, until, record, .. } = self;
        match until {
            Some(until) => {
                let until = until.split('.').next().unwrap_or(until);
                format!("{holder} did not end cleanly: the next run waits out a delay until {until}Z")
            }
            None => format!("{holder} did not end cleanly: the next run waits out a delay of {}", show(record.delay)),
        }
    }

    /// The data of a record that delays nobody.
    pub(super) fn released(&self) -> Vec<u8> {
        HolderRecord { fate: HolderFate::Released, ..self.record.clone() }.to_bytes()
    }
}
