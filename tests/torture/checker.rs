//! Checks the log of the commands: which command held which lock and when, and whether it was allowed to.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use zklock::rules::mode::Mode;

/// A point on CLOCK_BOOTTIME.
pub(crate) type Time = Duration;

/// The time during which any process of the command with one token was seen alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Hold {
    pub(crate) lock: String,
    pub(crate) token: i64,
    /// How it is held, as the first sign of life says: a nested run may ask for less later.
    pub(crate) mode: Mode,
    pub(crate) node: String,
    pub(crate) contender: usize,
    /// The first sign of life.
    pub(crate) begin: Time,
    /// The last one.
    pub(crate) last: Time,
    /// Whether the command said that it had done its work.
    pub(crate) ended: bool,
    pub(crate) about: About,
}

/// What the torture knows about a contender.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct About {
    /// The session timeout that it asked for.
    pub(crate) timeout: Duration,
    /// When a fault of the contender, its network or the servers may have kept news from it.
    pub(crate) disturbed: Vec<(Time, Time)>,
    pub(crate) stalled: Vec<(Time, Time)>,
}

impl fmt::Display for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, token, mode, contender, begin, last, .. } = self;
        write!(f, "contender {contender} by {node}, {mode:?}, token {token}, from {begin:?} to {last:?}")
    }
}

/// How long after its lock was taken away a holder may live if nothing keeps the news from it, on a loaded machine.
const TOLD: Duration = Duration::from_secs(1);

/// How late a loaded machine may be in killing a command at the end of its lease.
const LATE: Duration = Duration::from_millis(200);

/// Why a command may have been alive at the same time as the next holder's: its lock or the machine met a fault against
/// which no lock with a timeout can act at once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Excuse {
    pub(crate) kind: &'static str,
    pub(crate) whose: Whose,
    /// When the fault began. An overlap that began earlier is not excused.
    pub(crate) from: Time,
    pub(crate) until: Until,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    Fixed(Time),
    /// When zklock must have acted on the loss of the lock, which was taken away by this time: shortly after that, or,
    /// if a fault kept the news from it, at the end of a lease that counts from just before it.
    Heard(Time),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Whose {
    /// The command that holds the lock by the node with this path.
    Node(String),
    /// The command of the zklock whose node belongs to this session.
    Session(i64),
    Any,
}

impl Excuse {
    /// Whether it excuses that `hold` was still alive from `since` on.
    fn covers(&self, hold: &Hold, since: Time) -> bool {
        let is_its = match &self.whose {
            Whose::Node(node) => *node == hold.node,
            Whose::Session(session) => hold.session() == Some(*session),
            Whose::Any => true,
        };
        is_its && self.from <= since && hold.last <= self.end(&hold.about)
    }

    /// When it ends. A stall of the machine extends it by as long as the stall lasted.
    fn end(&self, about: &About) -> Time {
        let is_in = |end: Time, (from, until): (Time, Time)| self.from <= until && from <= end;
        let stretch = |end, stall: &(Time, Time)| if is_in(end, *stall) { end + (stall.1 - stall.0) } else { end };
        about.stalled.iter().fold(self.end_of_steady(about), stretch)
    }

    fn end_of_steady(&self, about: &About) -> Time {
        match self.until {
            Until::Fixed(until) => until,
            Until::Heard(done) => {
                let in_the_way = |(from, until): &(Time, Time)| *from <= done + TOLD && done <= *until + about.timeout;
                // A lease lasts at most two thirds of the session timeout.
                let lease = about.timeout * 2 / 3 + LATE;
                done + if about.disturbed.iter().any(in_the_way) { lease.max(TOLD) } else { TOLD }
            }
        }
    }
}

/// The excuses for stalls of the machine: a command that should have been killed during a stall must be dead when as
/// much time again has passed. See [`Excuse::end`].
pub(crate) fn excuses_of(stalls: &[(Time, Time)]) -> impl Iterator<Item = Excuse> {
    let excuse = |&(from, until): &(Time, Time)| {
        let until = Until::Fixed(until + LATE);
        Excuse { kind: "machine stalled", whose: Whose::Any, from, until }
    };
    stalls.iter().map(excuse)
}

impl Hold {
    /// The session of the node, if its name begins as those of zklock do.
    fn session(&self) -> Option<i64> {
        let name = self.node.rsplit_once('/')?.1.strip_prefix("_c_")?.replace('-', "");
        u64::from_str_radix(name.get(..16)?, 16).ok().map(u64::cast_signed)
    }
}

/// Whether the commands of two tokens may run at the same time. With permits, they may as long as there are enough.
fn may_run_together(one: &Hold, other: &Hold) -> bool {
    let modes_agree = match (one.mode, other.mode) {
        (Mode::Exclusive, _) | (_, Mode::Exclusive) => false,
        (Mode::Permits(one), Mode::Permits(other)) => one == other,
        (Mode::Shared, _) | (_, Mode::Shared) => true,
    };
    one.lock != other.lock || one.token == other.token || modes_agree
}

/// Reads the log. The last line may be incomplete if its writer was killed; no other line can be.
pub(crate) fn holds(log: &str) -> Result<Vec<Hold>, String> {
    let mut holds: BTreeMap<(&str, i64), Hold> = BTreeMap::new();
    for line in log.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        let Some(line) = Line::parse(line) else { return Err(format!("not a line of a command: {line:?}")) };
        for (lock, token, node) in line.held {
            let hold = holds.entry((lock, token)).or_insert_with(|| Hold {
                lock: lock.to_owned(),
                token,
                mode: line.mode,
                node: node.to_owned(),
                contender: line.contender,
                begin: line.time,
                last: line.time,
                ended: false,
                about: About::default(),
            });
            hold.begin = hold.begin.min(line.time);
            hold.last = hold.last.max(line.time);
            hold.ended |= line.word == "end";
        }
    }
    let mut holds: Vec<_> = holds.into_values().collect();
    holds.sort_by_key(|hold| hold.begin);
    Ok(holds)
}

struct Line<'a> {
    word: &'a str,
    time: Time,
    contender: usize,
    mode: Mode,
    held: Vec<(&'a str, i64, &'a str)>,
}

impl<'a> Line<'a> {
    fn parse(line: &'a str) -> Option<Self> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [word, time, contender, _pid, mode, held @ ..] = &words[..] else { return None };
        let (held, []) = held.as_chunks::<3>() else { return None };
        let held: Option<Vec<_>> =
            held.iter().map(|[lock, token, node]| Some((*lock, token.parse().ok()?, *node))).collect();
        let time = Time::from_nanos(time.parse().ok()?);
        let held = held.filter(|held| !held.is_empty())?;
        Some(Self { word, time, contender: contender.parse().ok()?, mode: mode.parse().ok()?, held })
    }
}

/// Two commands at the same time, or a command without its lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Breach {
    /// The command that lived too long.
    pub(crate) hold: Hold,
    /// The command that ran at the same time; `None` if `hold` outlived its own node.
    pub(crate) beside: Option<Hold>,
    pub(crate) length: Duration,
    /// The kind of the [`Excuse`] that covers it, if there is one.
    pub(crate) excuse: Option<&'static str>,
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.beside {
            Some(other) => write!(f, "for {:?}: {} beside {other}", self.length, self.hold),
            None => write!(f, "for {:?}: {}", self.length, self.hold),
        }
    }
}

/// The kind of the excuse for `hold` being alive from `since` on, if there is one.
fn find(excuses: &[Excuse], hold: &Hold, since: Time) -> Option<&'static str> {
    excuses.iter().find(|excuse| excuse.covers(hold, since)).map(|excuse| excuse.kind)
}

/// The commands that ran at the same time although they must not.
pub(crate) fn overlaps(holds: &[Hold], excuses: &[Excuse]) -> Vec<Breach> {
    let mut breaches = Vec::new();
    for (index, one) in holds.iter().enumerate() {
        let is_beside = |other: &&Hold| other.lock == one.lock && other.last >= one.begin;
        let beside: Vec<&Hold> = holds[..index].iter().filter(is_beside).collect();
        for other in beside.iter().filter(|other| !may_run_together(one, other)) {
            // The one that came first should have been gone.
            let (early, late) = if one.token < other.token { (one, *other) } else { (*other, one) };
            let length = one.last.min(other.last) - one.begin;
            let excuse = find(excuses, early, one.begin);
            breaches.push(Breach { hold: early.clone(), beside: Some(late.clone()), length, excuse });
        }
        breaches.extend(crowding(one, beside, excuses));
    }
    breaches
}

/// The commands that began before the work that an earlier one may have left elsewhere had had this time to end, counted from
/// the death of that command. A command that has done its work has left none.
pub(crate) fn early(holds: &[Hold], time: Duration) -> Vec<Breach> {
    let leaves_work = |hold: &&Hold| hold.mode == Mode::Exclusive && !hold.ended;
    let mut breaches = Vec::new();
    for before in holds.iter().filter(leaves_work) {
        let is_early = |hold: &&Hold| {
            hold.lock == before.lock
                && hold.token > before.token
                && hold.mode.permits().is_none()
                && hold.begin < before.last + time
        };
        breaches.extend(holds.iter().filter(is_early).map(|hold| Breach {
            hold: before.clone(),
            beside: Some(hold.clone()),
            length: before.last + time - hold.begin,
            excuse: None,
        }));
    }
    breaches
}

/// The breach if `one` begins when all its permits are taken. `beside`: the commands that are alive then.
fn crowding(one: &Hold, mut beside: Vec<&Hold>, excuses: &[Excuse]) -> Option<Breach> {
    let permits = one.mode.permits()?.get() as usize;
    beside.retain(|other| may_run_together(one, other));
    let surplus = (beside.len() + 1).checked_sub(permits).filter(|surplus| *surplus > 0)?;
    let mut kinds: Vec<_> = beside.iter().filter_map(|other| find(excuses, other, one.begin)).collect();
    let excuse = if kinds.len() >= surplus { kinds.pop() } else { None };
    // There is room again once `surplus` of them have ended.
    beside.sort_by_key(|other| other.last);
    let length = beside[surplus - 1].last.min(one.last) - one.begin;
    let oldest = beside.iter().min_by_key(|other| other.token)?;
    Some(Breach { hold: (*oldest).clone(), beside: Some(one.clone()), length, excuse })
}

/// The commands that were alive after their node was seen to be gone. `gone`: when that was, by the node's path.
pub(crate) fn outlived(holds: &[Hold], gone: &BTreeMap<String, Time>, excuses: &[Excuse]) -> Vec<Breach> {
    let outlived = holds.iter().filter_map(|hold| {
        let gone = *gone.get(&hold.node)?;
        let excuse = find(excuses, hold, gone);
        (hold.last > gone).then(|| Breach { hold: hold.clone(), beside: None, length: hold.last - gone, excuse })
    });
    outlived.collect()
}

/// Pairs of commands on one lock that must not run together, of which the one that began later has the smaller token.
/// Commands that may run together can begin in any order, because they need not wait for each other.
pub(crate) fn disorders(holds: &[Hold], excuses: &[Excuse]) -> Vec<(Hold, Hold)> {
    let mut disorders = Vec::new();
    for (index, one) in holds.iter().enumerate() {
        let before = holds[..index].iter().filter(|other| !may_run_together(one, other));
        let Some(latest) = before.max_by_key(|other| other.token) else { continue };
        // A command may have been stopped before it could write that it had begun.
        if latest.token > one.token && find(excuses, one, latest.begin).is_none() {
            disorders.push((latest.clone(), one.clone()));
        }
    }
    disorders
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Reads lines of the form `WORD MILLISECONDS LOCK TOKEN [MODE]`. The mode is exclusive by default; the names of
    /// the node and of the contender are made from the token.
    fn read(lines: &[&str]) -> Vec<Hold> {
        let whole = |line: &&str| {
            let words: Vec<_> = line.split(' ').collect();
            let [word, time, lock, token, ref mode @ ..] = words[..] else { panic!("{line}") };
            let mode = mode.first().unwrap_or(&"exclusive");
            format!("{word} {time}000000 {token} 1 {mode} {lock} {token} {lock}/n{token}\n")
        };
        holds(&lines.iter().map(whole).collect::<String>()).unwrap()
    }

    #[test]
    fn commands_in_turn() {
        let holds = read(&["begin 1 /a 1", "alive 5 /a 1", "end 6 /a 1", "begin 7 /a 2", "begin 3 /b 9"]);
        assert_eq!(holds.len(), 3);
        assert!(holds[0].ended && !holds[1].ended);
        assert_eq!(overlaps(&holds, &[]), []);
        assert_eq!(disorders(&holds, &[]), []);
        let holds = read(&["begin 1 /a 5", "end 2 /a 5", "begin 3 /a 4", "begin 4 /b 1"]);
        assert_eq!(disorders(&holds, &[]).len(), 1, "a smaller token after a larger one");
    }

    #[test]
    fn overlap_with_several() {
        let holds = read(&["begin 1 /a 1", "begin 2 /a 2", "begin 7 /a 3", "alive 9 /a 1", "alive 20 /a 3"]);
        let found: Vec<_> = overlaps(&holds, &[]).iter().map(|breach| (breach.length, breach.excuse)).collect();
        assert_eq!(found, [(Duration::ZERO, None), (2 * MS, None)]);
    }

    #[test]
    fn command_outlives_its_node() {
        let holds = read(&["begin 1 /a 1", "alive 9 /a 1", "begin 10 /a 2", "alive 11 /a 2"]);
        let gone = BTreeMap::from([("/a/n1".to_owned(), 6 * MS), ("/a/n2".to_owned(), 12 * MS)]);
        let [breach] = <[_; 1]>::try_from(outlived(&holds, &gone, &[])).unwrap();
        assert_eq!((breach.length, breach.excuse), (3 * MS, None));
    }

    #[test]
    fn excuse_is_limited_to_its_time_and_owner() {
        let holds = read(&["begin 1 /a 1", "begin 7 /a 2", "alive 9 /a 1"]);
        let excuse = |whose, from, until| Excuse { kind: "", whose, from: from * MS, until: Until::Fixed(until * MS) };
        let excused = |excuse: Excuse| overlaps(&holds, &[excuse])[0].excuse.is_some();
        let node = |name: &str| Whose::Node(format!("/a/{name}"));
        assert!(excused(excuse(node("n1"), 5, 9)) && excused(excuse(node("n1"), 7, 10)));
        assert!(!excused(excuse(node("n1"), 8, 10)), "the overlap began before the excuse");
        assert!(!excused(excuse(node("n1"), 5, 8)), "the overlap lasted longer than the excuse");
        assert!(!excused(excuse(node("n2"), 5, 9)), "the excuse is for another holder");
    }

    #[test]
    fn lease_excuses_only_disturbed_holders() {
        let mut holds = read(&["begin 1 /a 1", "begin 1500 /a 2", "alive 2300 /a 1"]);
        let until = Until::Heard(1000 * MS);
        let excuse = [Excuse { kind: "", whose: Whose::Node("/a/n1".to_owned()), from: 900 * MS, until }];
        let mut excused = |disturbed: &[(u32, u32)]| {
            let disturbed = disturbed.iter().map(|(from, until)| (*from * MS, *until * MS)).collect();
            holds[0].about = About { timeout: 2000 * MS, disturbed, stalled: Vec::new() };
            overlaps(&holds, &excuse)[0].excuse.is_some()
        };
        assert!(!excused(&[]) && !excused(&[(2100, 2200)]));
        assert!(excused(&[(2100, 2200), (1200, 1300)]));
    }

    #[test]
    fn stall_extends_excuses() {
        let mut holds = read(&["begin 1 /a 1", "begin 1500 /a 2", "alive 2300 /a 1"]);
        let (kind, whose, until) = ("", Whose::Node("/a/n1".to_owned()), Until::Heard(900 * MS));
        let told = [Excuse { kind, whose, from: 800 * MS, until }];
        let mut excused = |from: u32, until: u32, excuses: &[Excuse]| {
            let stalls = [(from * MS, until * MS)];
            holds[0].about.stalled = stalls.to_vec();
            let excuses: Vec<_> = excuses.iter().cloned().chain(excuses_of(&stalls)).collect();
            overlaps(&holds, &excuses)[0].excuse.is_some()
        };
        assert!(excused(1550, 2000, &told) && !excused(1550, 1900, &told) && !excused(400, 790, &told));
        assert!(excused(1400, 1900, &[]) && !excused(1400, 1600, &[]) && !excused(1550, 2200, &[]));
    }

    #[test]
    fn session_in_the_name_of_a_node() {
        let mut hold = read(&["begin 1 /a 1"]).remove(0);
        assert_eq!(hold.session(), None);
        hold.node = "/a/_c_ff0000fe-5371-0013-fb0d-5108fa218fb0-lock-0000000026".to_owned();
        assert_eq!(hold.session(), Some(0xff00_00fe_5371_0013_u64.cast_signed()));
    }

    #[test]
    fn lines_are_whole_but_the_last_and_may_name_several_locks() {
        assert_eq!(holds("begin 1 1 1 exclusive /a 1 /a/n\nali").unwrap().len(), 1);
        assert!(holds("ali\nbegin 1 1 1 exclusive /a 1 /a/n\n").is_err());
        assert!(holds("begin 1 1 1 exclusive /a 1\n").is_err());
        let holds = holds("begin 1 1 1 exclusive /a 1 /a/n /b 2 /b/n\n").unwrap();
        let named: Vec<_> = holds.iter().map(|hold| (hold.lock.as_str(), hold.token)).collect();
        assert_eq!(named, [("/a", 1), ("/b", 2)]);
    }

    #[test]
    fn readers_and_writers() {
        let readers = ["begin 1 /a 1 shared", "begin 2 /a 3 shared", "begin 3 /a 2 shared", "alive 9 /a 1 shared"];
        assert_eq!((overlaps(&read(&readers), &[]), disorders(&read(&readers), &[]).len()), (vec![], 0));
        let with_writer = read(&[&readers[..], &["begin 8 /a 4", "begin 20 /a 3"]].concat());
        assert_eq!(overlaps(&with_writer, &[]).len(), 2, "with 1, and with 3, which lives on");
        assert_eq!(disorders(&read(&["begin 1 /a 4", "end 2 /a 4", "begin 3 /a 3 shared"]), &[]).len(), 1);
    }

    #[test]
    fn permits() {
        let two =
            ["begin 1 /a 1 permits:2", "begin 2 /a 2 permits:2", "alive 9 /a 1 permits:2", "alive 6 /a 2 permits:2"];
        assert_eq!(overlaps(&read(&two), &[]), []);
        let three = read(&[&two[..], &["begin 4 /a 3 permits:2", "alive 20 /a 3 permits:2"]].concat());
        let [breach] = <[_; 1]>::try_from(overlaps(&three, &[])).unwrap();
        assert_eq!((breach.length, breach.excuse), (2 * MS, None));
        let excuse = |token| {
            let (whose, until) = (Whose::Node(format!("/a/n{token}")), Until::Fixed(9 * MS));
            [Excuse { kind: "", whose, from: 3 * MS, until }]
        };
        assert!(overlaps(&three, &excuse(2))[0].excuse.is_some());
        assert_eq!(overlaps(&three, &excuse(3))[0].excuse, None, "it is not the newcomer that needs an excuse");
        assert_eq!(overlaps(&read(&["begin 1 /a 1 permits:2", "begin 1 /a 2 permits:3"]), &[]).len(), 1);
    }
}
