//! Shows the progress on stdout, because nothing else is printed for minutes.

use std::io::{self, IsTerminal, Write};
use std::time::{Duration, Instant};

use crate::crowd::Crowd;
use crate::record::{Phase, Record};

/// How often a line is written.
const STEP: Duration = Duration::from_secs(20);

/// How often the line is overwritten on a terminal.
const STEP_ON_A_TERMINAL: Duration = Duration::from_secs(1);

/// Shows the progress until the torture is over. `time`: how long faults are made.
pub(crate) fn show(time: Duration, crowd: &Crowd, record: &Record) {
    let begin = Instant::now();
    let mut stdout = io::stdout();
    // The escape sequence erases the rest of a longer line: console_codes(4).
    let (step, before, after) =
        if stdout.is_terminal() { (STEP_ON_A_TERMINAL, "\r", "\x1b[K") } else { (STEP, "", "\n") };
    while !record.is_over_within(step) {
        let line = match record.phase() {
            Phase::Faults => {
                let faults: usize = record.faults().values().sum();
                let (so_far, all) = (minutes(begin.elapsed()), minutes(time));
                format!("{so_far} of {all}: {faults} faults, {} contenders", crowd.all().len())
            }
            Phase::Drain | Phase::Over => {
                format!("no more faults; contenders that have not ended: {}", crowd.alive().len())
            }
        };
        // It does not matter if stdout has been closed.
        let _ = write!(stdout, "{before}{line}{after}").and_then(|()| stdout.flush());
    }
    if stdout.is_terminal() {
        let _ = write!(stdout, "{before}{after}");
    }
}

/// Minutes and seconds, as M:SS.
fn minutes(time: Duration) -> String {
    format!("{}:{:02}", time.as_secs() / 60, time.as_secs() % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minutes_and_seconds() {
        let shown = [0, 59, 60, 605].map(|seconds| minutes(Duration::from_secs(seconds)));
        assert_eq!(shown, ["0:00", "0:59", "1:00", "10:05"]);
    }
}
