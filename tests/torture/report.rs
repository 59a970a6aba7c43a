//! The report of a torture, in words.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use crate::checker::{self, About, Breach, Hold, Time};
use crate::crowd::Crowd;
use crate::record::{Deaf, Record};
use crate::tool::LONGEST_TIMEOUT;

/// How many of each sort of finding are printed in full.
const SHOWN: usize = 10;

/// The findings that do not come from the log of the commands.
#[derive(Debug)]
pub(crate) struct Findings {
    /// When nodes were seen to be gone, by their paths.
    pub(crate) gone: BTreeMap<String, Time>,
    /// The contenders that had not ended long after the last fault.
    pub(crate) starving: Vec<String>,
    pub(crate) nodes: Vec<String>,
    /// The nodes over which the servers disagree. A contender that waits for such a node is right to wait, and is not
    /// judged.
    pub(crate) disputed: Vec<String>,
    pub(crate) processes: Vec<String>,
}

#[derive(Debug)]
pub(crate) struct Report {
    faults: BTreeMap<String, usize>,
    statuses: BTreeMap<String, usize>,
    contenders: usize,
    holds: usize,
    /// The kinds of findings of which there must be none.
    wrong: Vec<(&'static str, Vec<String>)>,
    longest_overlap: Duration,
    disputed: Vec<String>,
    stalls: Vec<(Time, Time)>,
    excused: Vec<Breach>,
    not_frozen: Option<String>,
}

impl Report {
    /// Checks the log of the commands, and the ends of their contenders.
    pub(crate) fn new(
        log: &str,
        crowd: &Crowd,
        record: &Record,
        findings: Findings,
        delay: Option<Duration>,
        not_frozen: Option<String>,
    ) -> Self {
        let Findings { starving, nodes, processes, disputed, gone } = findings;
        let (mut holds, unreadable) = match checker::holds(log) {
            Ok(holds) => (holds, Vec::new()),
            Err(error) => (Vec::new(), vec![error]),
        };
        complete(&mut holds, crowd, record);
        let stalls = record.stalls();
        let excuses: Vec<_> = record.excuses().into_iter().chain(checker::excuses_of(&stalls)).collect();
        let (excused_overlaps, overlaps) = split(checker::overlaps(&holds, &excuses));
        let (excused_outlived, outlived) = split(checker::outlived(&holds, &gone, &excuses));
        // A holder whose node was deleted may have lived to the end of its lease.
        let time = delay.map(|delay| delay.saturating_sub(Duration::from_millis(LONGEST_TIMEOUT)));
        let early = time.map(|time| checker::early(&holds, time)).unwrap_or_default();
        let disorders =
            checker::disorders(&holds, &excuses).iter().map(|(one, other)| format!("{one}, then {other}")).collect();
        let done: BTreeSet<usize> = holds.iter().filter(|hold| hold.ended).map(|hold| hold.contender).collect();
        let mut statuses = BTreeMap::new();
        let mut surprises = Vec::new();
        for contender in crowd.all() {
            let status = contender.status().map_or_else(|| "none".to_owned(), |status| status.to_string());
            *statuses.entry(status).or_default() += 1;
            if let Some(surprise) = contender.surprise(done.contains(&contender.number), &stalls) {
                surprises.push(format!("contender {}: {surprise}\n{}", contender.number, contender.stderr()));
            }
        }
        let judge = |left: Vec<String>| if disputed.is_empty() { left } else { Vec::new() };
        let longest_overlap = overlaps.iter().map(|breach| breach.length).max().unwrap_or_default();
        let text = |breaches: Vec<Breach>| breaches.iter().map(ToString::to_string).collect();
        Self {
            faults: record.faults(),
            statuses,
            contenders: crowd.all().len(),
            holds: holds.iter().map(|hold| hold.contender).collect::<BTreeSet<_>>().len(),
            wrong: vec![
                ("overlaps", text(overlaps)),
                ("starts before the end of a delay", text(early)),
                ("commands that outlived their lock", text(outlived)),
                ("waiters never served", judge(starving)),
                ("tokens out of order", disorders),
                ("processes left", judge(processes)),
                ("nodes left", judge(nodes)),
                ("unexpected ends", surprises),
                ("unreadable lines", unreadable),
            ],
            longest_overlap,
            disputed,
            stalls,
            excused: excused_overlaps.into_iter().chain(excused_outlived).collect(),
            not_frozen,
        }
    }

    /// Whether nothing is wrong, and at least one contender held a lock: otherwise nothing was proved.
    pub(crate) fn is_clean(&self) -> bool {
        self.holds > 0 && self.wrong.iter().all(|(_, found)| found.is_empty())
    }
}

pub(crate) fn not_frozen(why: &str) -> String {
    format!("NOT TRIED: control groups are not frozen, because {why}")
}

fn complete(holds: &mut [Hold], crowd: &Crowd, record: &Record) {
    let (all, disturbances, stalls) = (crowd.all(), record.disturbances(), record.stalls());
    for hold in holds {
        let Some(contender) = all.get(hold.contender) else { continue };
        let concerns = |whom| match whom {
            Deaf::Contender(number) => number == contender.number,
            Deaf::Network(network) => network == contender.network,
            Deaf::All => true,
        };
        let its = disturbances.iter().filter(|disturbance| concerns(disturbance.whom));
        let (disturbed, stalled) = (its.map(|it| it.time).collect(), stalls.clone());
        hold.about = About { timeout: contender.timeout, disturbed, stalled };
    }
}

fn split(breaches: Vec<Breach>) -> (Vec<Breach>, Vec<Breach>) {
    breaches.into_iter().partition(|breach| breach.excuse.is_some())
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "\n{:5} faults", self.faults.values().sum::<usize>())?;
        for (kind, count) in &self.faults {
            writeln!(f, "{count:5}   {kind}")?;
        }
        if let Some(why) = &self.not_frozen {
            writeln!(f, "{}", not_frozen(why))?;
        }
        writeln!(f, "\n{:5} contenders, of which {} held a lock", self.contenders, self.holds)?;
        for (status, count) in &self.statuses {
            writeln!(f, "{count:5}   {status}")?;
        }
        writeln!(f)?;
        for (what, found) in &self.wrong {
            writeln!(f, "{:5} {what}", found.len())?;
            for one in found.iter().take(SHOWN) {
                writeln!(f, "        {one}")?;
            }
        }
        if !self.longest_overlap.is_zero() {
            writeln!(f, "the longest overlap took {:.1?}", self.longest_overlap)?;
        }
        if !self.disputed.is_empty() {
            writeln!(
                f,
                "the servers disagree over {}: waiters and leftovers are not judged",
                self.disputed.join(", ")
            )?;
        }
        if let Some(longest) = self.stalls.iter().map(|(from, until)| *until - *from).max() {
            writeln!(f, "{:5} stalls of the machine, the longest for {longest:?}", self.stalls.len())?;
        }
        writeln!(f, "{:5} excused: see docs/torture.md", self.excused.len())?;
        let mut kinds: BTreeMap<_, (usize, Duration)> = BTreeMap::new();
        for breach in &self.excused {
            let (count, longest) = kinds.entry(breach.excuse.unwrap_or_default()).or_default();
            (*count, *longest) = (*count + 1, breach.length.max(*longest));
        }
        for (kind, (count, longest)) in kinds {
            writeln!(f, "{count:5}   {kind}, the longest for {longest:?}")?;
        }
        Ok(())
    }
}
