//! The data that the threads of a torture share: its phase, the faults that were made, and what they excuse.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::checker::{Excuse, Time};
use crate::work;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Phase {
    /// Contenders are started and faults are made.
    Faults,
    /// No more faults are made and no more contenders are started. The last contenders end.
    Drain,
    /// All contenders have ended, or never will.
    Over,
}

/// The contenders that a fault keeps from receiving or from sending messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Deaf {
    Contender(usize),
    Network(usize),
    All,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Disturbance {
    pub(crate) whom: Deaf,
    pub(crate) time: (Time, Time),
}

#[derive(Debug)]
pub(crate) struct Record {
    phase: Mutex<Phase>,
    changed: Condvar,
    faults: Mutex<BTreeMap<String, usize>>,
    excuses: Mutex<Vec<Excuse>>,
    disturbances: Mutex<Vec<Disturbance>>,
    stalls: Mutex<Vec<(Time, Time)>>,
    log: Mutex<File>,
}

/// Locks a mutex even if a thread has panicked while it held it. That panic ends the torture; until then the data can
/// be used, because every single statement leaves it consistent.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Record {
    /// A record whose faults are also written to `log`, with their times.
    pub(crate) fn new(log: &Path) -> Self {
        Self {
            phase: Mutex::new(Phase::Faults),
            changed: Condvar::new(),
            faults: Mutex::default(),
            excuses: Mutex::default(),
            disturbances: Mutex::default(),
            stalls: Mutex::default(),
            log: Mutex::new(File::create(log).expect("the log of the faults can be created")),
        }
    }

    pub(crate) fn phase(&self) -> Phase {
        *lock(&self.phase)
    }

    pub(crate) fn enter(&self, phase: Phase) {
        self.note(&format!("phase: {phase:?}"));
        *lock(&self.phase) = phase;
        self.changed.notify_all();
    }

    /// Waits for `time`, or until the phase of faults ends. Returns whether it goes on.
    pub(crate) fn pause(&self, time: Duration) -> bool {
        let phase = lock(&self.phase);
        let waited = self.changed.wait_timeout_while(phase, time, |phase| *phase == Phase::Faults);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == Phase::Faults
    }

    /// Waits for `time`, or until the torture is over. Returns whether it is.
    pub(crate) fn is_over_within(&self, time: Duration) -> bool {
        let phase = lock(&self.phase);
        let waited = self.changed.wait_timeout_while(phase, time, |phase| *phase != Phase::Over);
        *waited.unwrap_or_else(PoisonError::into_inner).0 == Phase::Over
    }

    /// Counts a fault that is about to be made. `on`: what it hits.
    pub(crate) fn fault(&self, kind: &str, on: &str) {
        *lock(&self.faults).entry(kind.to_owned()).or_default() += 1;
        self.note(&format!("{kind}: {on}"));
    }

    pub(crate) fn note(&self, what: &str) {
        let line = format!("{:?} {what}\n", work::now());
        lock(&self.log).write_all(line.as_bytes()).expect("the log of the faults can be written");
    }

    pub(crate) fn faults(&self) -> BTreeMap<String, usize> {
        lock(&self.faults).clone()
    }

    /// Makes a fault, and notes which contenders may miss news meanwhile.
    pub(crate) fn disturb(&self, whom: Deaf, fault: impl FnOnce()) {
        let from = work::now();
        fault();
        lock(&self.disturbances).push(Disturbance { whom, time: (from, work::now()) });
    }

    pub(crate) fn disturbances(&self) -> Vec<Disturbance> {
        lock(&self.disturbances).clone()
    }

    /// Notes that the machine did not run a process that was ready to run.
    pub(crate) fn stall(&self, from: Time, until: Time) {
        self.note(&format!("machine stalled for {:?}", until - from));
        lock(&self.stalls).push((from, until));
    }

    /// The times in which the machine stalled, in order, and without overlaps.
    pub(crate) fn stalls(&self) -> Vec<(Time, Time)> {
        let mut stalls = lock(&self.stalls).clone();
        stalls.sort_unstable();
        // Several processors may have noticed the same stall.
        stalls.dedup_by(|next, before| {
            let is_same = next.0 <= before.1;
            if is_same {
                before.1 = before.1.max(next.1);
            }
            is_same
        });
        stalls
    }

    pub(crate) fn excuse(&self, excuse: Excuse) {
        self.note(&format!("{excuse:?}"));
        lock(&self.excuses).push(excuse);
    }

    pub(crate) fn excuses(&self) -> Vec<Excuse> {
        lock(&self.excuses).clone()
    }
}
