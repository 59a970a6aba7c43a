//! The log that commands of tests/child/main.rs write, and what can be told from it: who ran when.

use std::fs;
use std::path::Path;

/// One command's time, in nanoseconds of CLOCK_BOOTTIME.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// The command's process id. In a crowd that another program runs in one process, each contender has a number of
    /// its own instead.
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) begin: u64,
    /// The last word of it: that it ended, or that it lived. A command that was killed may have lived a little longer.
    pub(crate) last: u64,
    pub(crate) ended: bool,
}

impl Run {
    fn overlaps(&self, other: &Self) -> bool {
        self.begin <= other.last && other.begin <= self.last
    }
}

/// The runs that a log tells of, in the order of their beginnings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct JobLog {
    runs: Vec<Run>,
}

impl JobLog {
    /// Reads a log. One that does not exist is empty. Panics on a line that no child writes.
    pub(crate) fn read(path: impl AsRef<Path>) -> Self {
        Self::parse(&fs::read_to_string(path).unwrap_or_default())
    }

    /// Like [`JobLog::read`], from the text. The last line may still be in the making.
    pub(crate) fn parse(text: &str) -> Self {
        let mut runs: Vec<Run> = Vec::new();
        for line in text.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let [word, time, pid, name] = line.split_whitespace().collect::<Vec<_>>()[..] else {
                panic!("not a line of a job's log: {line:?}");
            };
            let time = time.parse().unwrap_or_else(|_| panic!("no time in {line:?}"));
            let pid = pid.parse().unwrap_or_else(|_| panic!("no process id in {line:?}"));
            if word == "begin" {
                runs.push(Run { pid, name: name.to_owned(), begin: time, last: time, ended: false });
                continue;
            }
            // On two hosts, two processes may have the same number.
            let run = runs.iter_mut().rev().find(|run| run.pid == pid && run.name == name && !run.ended);
            let run = run.unwrap_or_else(|| panic!("{line:?} of a job that did not begin"));
            run.last = time;
            run.ended = word == "end";
        }
        runs.sort_by_key(|run| run.begin);
        Self { runs }
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    pub(crate) fn order(&self) -> Vec<&str> {
        self.runs.iter().map(|run| run.name.as_str()).collect()
    }

    fn pairs(&self) -> impl Iterator<Item = (&Run, &Run)> {
        self.runs.iter().enumerate().flat_map(|(n, one)| self.runs[n + 1..].iter().map(move |two| (one, two)))
    }

    pub(crate) fn overlaps(&self) -> Vec<(&Run, &Run)> {
        self.pairs().filter(|(one, two)| one.overlaps(two)).collect()
    }

    /// How many ran at the same time at most.
    pub(crate) fn most_at_once(&self) -> usize {
        // The maximum is reached when one of them begins.
        let at = |time: u64| self.runs.iter().filter(|run| run.begin <= time && time <= run.last).count();
        self.runs.iter().map(|run| at(run.begin)).max().unwrap_or(0)
    }

    /// Panics when two of them ran at the same time, or when there are no two. Returns itself.
    #[track_caller]
    pub(crate) fn expect_no_overlap(self) -> Self {
        self.expect_apart(|_, _| true)
    }

    /// Panics when two of them ran at the same time although `must_not` is true of the pair. Also panics when it is
    /// true of no pair: an empty log proves nothing. Returns itself.
    #[track_caller]
    pub(crate) fn expect_apart(self, must_not: impl Fn(&Run, &Run) -> bool) -> Self {
        assert!(self.pairs().any(|(one, two)| must_not(one, two)), "no two that could overlap: {self:?}");
        let mut overlaps = self.overlaps();
        overlaps.retain(|(one, two)| must_not(one, two));
        assert!(overlaps.is_empty(), "these ran at the same time: {overlaps:#?}");
        self
    }

    pub(crate) fn count(&self, name: &str) -> usize {
        self.runs.iter().filter(|run| run.name == name && run.ended).count()
    }
}
