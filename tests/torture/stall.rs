//! Notices when the machine stands still or does not run a process that is ready: no lock with a timeout can act in
//! time then.

use std::thread;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

use crate::record::{Phase, Record};
use crate::work;

/// How often to wake up on each processor.
const STEP: Duration = Duration::from_millis(10);

/// A processor that has not run its thread for this long has stalled.
const STALL: Duration = Duration::from_millis(200);

/// The numbers of the processors that this program may use.
pub(crate) fn processors() -> Vec<usize> {
    let usable = sched_getaffinity(Pid::from_raw(0)).expect("the processors of this thread can be asked for");
    (0..CpuSet::count()).filter(|&number| usable.is_set(number).unwrap_or(false)).collect()
}

/// Notes each stall of a processor until the torture is over.
pub(crate) fn watch(processor: usize, record: &Record) {
    let mut only = CpuSet::new();
    let set = only.set(processor).and_then(|()| sched_setaffinity(Pid::from_raw(0), &only));
    if let Err(error) = set {
        // The processor has been taken away from this program. The others are still watched.
        record.note(&format!("processor {processor} is not watched: {error}"));
        return;
    }
    let mut before = work::now();
    while record.phase() != Phase::Over {
        thread::sleep(STEP);
        let now = work::now();
        if now - before > STALL {
            record.stall(before, now);
        }
        before = now;
    }
}
