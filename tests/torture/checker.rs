//! What the log of the commands proves: who held which lock when, and whether that was right.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

/// A point on CLOCK_BOOTTIME.
pub(crate) type Time = Duration;

/// The time for which one token's command was seen alive, by any of its processes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    /// The lock's path.
    pub(crate) lock: String,
    /// The fencing token.
    pub(crate) token: i64,
    /// The node's path.
    pub(crate) node: String,
    /// The number of the contender.
    pub(crate) contender: usize,
    /// The first sign of life.
    pub(crate) begin: Time,
    /// The last one.
    pub(crate) last: Time,
    /// Whether the command said that it had done its work.
    pub(crate) ended: bool,
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, token, contender, begin, last, .. } = self;
        write!(f, "contender {contender} by {node}, token {token}, from {begin:?} to {last:?}")
    }
}

/// Why a command may have been alive beside the next holder's: something was done to its lock or to its guards that no
/// lock with a timeout can answer in no time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Excuse {
    /// To whom it was done.
    pub(crate) whose: Whose,
    /// When it was done. What overlaps before that has no excuse.
    pub(crate) from: Time,
    /// By when the command has to be dead.
    pub(crate) until: Time,
}

/// Whom an [`Excuse`] is for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The command of this contender.
    Contender(usize),
    /// The command that holds by the node with this path.
    Node(String),
}

impl Excuse {
    /// Whether it explains that `hold` was alive at `since`, when it had to be dead.
    fn covers(&self, hold: &Hold, since: Time) -> bool {
        let is_its = match &self.whose {
            Whose::Contender(contender) => *contender == hold.contender,
            Whose::Node(node) => *node == hold.node,
        };
        is_its && self.from <= since && hold.last <= self.until
    }
}

/// Whether the commands of two tokens may run at the same time.
fn may_run_together(one: &Hold, other: &Hold) -> bool {
    one.lock != other.lock || one.token == other.token
}

/// Reads the log. The last line may be half written when its writer was killed; no other one can be.
///
/// # Errors
/// The first line that no command writes.
pub(crate) fn holds(log: &str) -> Result<Vec<Hold>, String> {
    let mut holds: BTreeMap<(&str, i64), Hold> = BTreeMap::new();
    for line in log.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let Some(line) = Line::parse(line) else { return Err(format!("not a line of a command: {line:?}")) };
        let hold = holds.entry((line.lock, line.token)).or_insert_with(|| Hold {
            lock: line.lock.to_owned(),
            token: line.token,
            node: line.node.to_owned(),
            contender: line.contender,
            begin: line.time,
            last: line.time,
            ended: false,
        });
        hold.begin = hold.begin.min(line.time);
        hold.last = hold.last.max(line.time);
        hold.ended |= line.word == "end";
    }
    let mut holds: Vec<_> = holds.into_values().collect();
    holds.sort_by_key(|hold| hold.begin);
    Ok(holds)
}

struct Line<'a> {
    word: &'a str,
    time: Time,
    lock: &'a str,
    token: i64,
    node: &'a str,
    contender: usize,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let mut word = || words.next();
        let (kind, time, lock, token) = (word()?, word()?.parse().ok()?, word()?, word()?.parse().ok()?);
        let (node, contender, _pid) = (word()?, word()?.parse().ok()?, word()?);
        Some(Self { word: kind, time: Time::from_nanos(time), lock, token, node, contender })
    }
}

/// Two commands at once, or one without its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Breach {
    /// Who lived too long.
    pub(crate) hold: Hold,
    /// Who had begun meanwhile; `None` when it was only seen that the node had gone.
    pub(crate) beside: Option<Hold>,
    /// For how long.
    pub(crate) length: Duration,
    /// Whether an [`Excuse`] covers it.
    pub(crate) excused: bool,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.beside {
            Some(other) => write!(f, "for {:?}: {} beside {other}", self.length, self.hold),
            None => write!(f, "for {:?}: {}", self.length, self.hold),
        }
    }
}

/// The commands that ran at the same time and may not.
pub(crate) fn overlaps(holds: &[Hold], excuses: &[Excuse]) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for (index, one) in holds.iter().enumerate() {
        for other in holds[index + 1..].iter().take_while(|other| other.begin <= one.last) {
            if !may_run_together(one, other) {
                let length = one.last.min(other.last) - other.begin;
                let excused = excuses.iter().any(|excuse| excuse.covers(one, other.begin));
                breaches.push(Breach { hold: one.clone(), beside: Some(other.clone()), length, excused });
            }
        }
    }
    breaches
}

/// The commands that were alive after their node had been seen to be gone. `gone`: node path to the time.
pub(crate) fn outlived(holds: &[Hold], gone: &BTreeMap<String, Time>, excuses: &[Excuse]) -> Vec<Breach> {
    let outlived = holds.iter().filter_map(|hold| {
        let gone = *gone.get(&hold.node)?;
        let excused = excuses.iter().any(|excuse| excuse.covers(hold, gone));
        (hold.last > gone).then(|| Breach { hold: hold.clone(), beside: None, length: hold.last - gone, excused })
    });
    outlived.collect()
}

/// Neighbours on one lock of which the one that began later has the smaller token.
pub(crate) fn disorders(holds: &[Hold]) -> Vec<(Hold, Hold)> {
    let mut last: BTreeMap<&str, &Hold> = BTreeMap::new();
    let mut disorders = Vec::new();
    for hold in holds {
        if let Some(before) = last.insert(&hold.lock, hold)
            && before.token >= hold.token
        {
            disorders.push((before.clone(), hold.clone()));
        }
    }
    disorders
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// From `WORD MILLISECONDS LOCK TOKEN`, with the node and the contender after the token.
    fn read(lines: &[&str]) -> Vec<Hold> {
        let whole = |line: &&str| {
            let [word, time, lock, token] = line.split(' ').collect::<Vec<_>>()[..] else { panic!("{line}") };
            format!("{word} {time}000000 {lock} {token} {lock}/n{token} {token} 1\n")
        };
        holds(&lines.iter().map(whole).collect::<String>()).unwrap()
    }

    #[test]
    fn one_after_the_other_is_right() {
        let holds = read(&["begin 1 /a 1", "alive 5 /a 1", "end 6 /a 1", "begin 7 /a 2", "begin 3 /b 9"]);
        assert_eq!(holds.len(), 3);
        assert!(holds[0].ended && !holds[1].ended);
        assert_eq!(overlaps(&holds, &[]), []);
        assert_eq!(disorders(&holds), []);
    }

    #[test]
    fn a_line_after_the_next_ones_first_is_an_overlap() {
        let holds = read(&["begin 1 /a 1", "begin 7 /a 2", "alive 9 /a 1", "alive 20 /a 2"]);
        let [breach] = <[_; 1]>::try_from(overlaps(&holds, &[])).unwrap();
        assert_eq!((breach.length, breach.excused), (2 * MS, false));
    }

    #[test]
    fn one_that_stays_overlaps_all_that_come() {
        let holds = read(&["begin 1 /a 1", "begin 2 /a 2", "begin 4 /a 3", "alive 9 /a 1"]);
        assert_eq!(overlaps(&holds, &[]).len(), 2);
    }

    #[test]
    fn a_line_after_the_nodes_end_is_outliving() {
        let holds = read(&["begin 1 /a 1", "alive 9 /a 1", "begin 10 /a 2", "alive 11 /a 2"]);
        let gone = BTreeMap::from([("/a/n1".to_owned(), 6 * MS), ("/a/n2".to_owned(), 12 * MS)]);
        let [breach] = <[_; 1]>::try_from(outlived(&holds, &gone, &[])).unwrap();
        assert_eq!((breach.length, breach.excused), (3 * MS, false));
    }

    #[test]
    fn an_excuse_holds_for_its_time_and_its_owner() {
        let holds = read(&["begin 1 /a 1", "begin 7 /a 2", "alive 9 /a 1"]);
        let excuse = |whose, from, until| Excuse { whose, from: from * MS, until: until * MS };
        let excused = |excuse: Excuse| overlaps(&holds, &[excuse])[0].excused;
        assert!(excused(excuse(Whose::Contender(1), 5, 9)));
        assert!(excused(excuse(Whose::Node("/a/n1".to_owned()), 7, 10)));
        assert!(!excused(excuse(Whose::Contender(1), 8, 10)), "the overlap began before");
        assert!(!excused(excuse(Whose::Contender(1), 5, 8)), "it lasted longer");
        assert!(!excused(excuse(Whose::Contender(2), 5, 9)), "it is another's");
    }

    #[test]
    fn a_smaller_token_after_a_larger_one_is_disorder() {
        let holds = read(&["begin 1 /a 5", "end 2 /a 5", "begin 3 /a 4", "begin 4 /b 1"]);
        assert_eq!(disorders(&holds).len(), 1);
    }

    #[test]
    fn only_the_last_line_may_be_half_written() {
        assert_eq!(holds("begin 1 /a 1 /a/n 1 1\nali").unwrap().len(), 1);
        assert!(holds("ali\nbegin 1 /a 1 /a/n 1 1\n").is_err());
    }
}
