//! `zklock fence`: which token wins, and what its two files say.

use std::time::Duration;

/// How long a fence may take, after the grace of its command, to be done with what it was asked for. Then it is killed.
const SLACK: Duration = Duration::from_secs(5);

/// A fencing token, as it is written on a command line: a decimal number and nothing else.
pub fn token(text: &str) -> Option<u64> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    if digits { text.parse().ok() } else { None }
}

/// What FILE says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// There is no such file.
    Nothing,
    /// The highest token so far.
    Token(u64),
    /// No token. An empty file is no token either: we never leave one.
    Garbage,
}

impl Seen {
    /// Reads what [`record`] has written; a person may have left out the line feed.
    pub fn read(text: &[u8]) -> Self {
        let text = str::from_utf8(text).ok();
        let seen = text.and_then(|text| token(text.strip_suffix('\n').unwrap_or(text)));
        seen.map_or(Self::Garbage, Self::Token)
    }

    /// The token, if it is higher than `ours`.
    pub fn later_than(self, ours: u64) -> Option<u64> {
        match self {
            Self::Token(seen) if seen > ours => Some(seen),
            Self::Token(_) | Self::Nothing | Self::Garbage => None,
        }
    }
}

/// The content of FILE.
pub fn record(token: u64) -> String {
    format!("{token}\n")
}

/// What becomes of a command with this token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It may run once its token is in FILE.
    Record,
    /// It may run: its token is there.
    Recorded,
    /// It may not run: this token has been here.
    Later(u64),
    /// It cannot be known.
    Unknown,
}

/// Judges a command by its token and by what FILE says.
pub fn judge(seen: Seen, ours: u64) -> Verdict {
    match seen {
        Seen::Nothing => Verdict::Record,
        Seen::Garbage => Verdict::Unknown,
        Seen::Token(seen) if seen > ours => Verdict::Later(seen),
        Seen::Token(seen) if seen < ours => Verdict::Record,
        Seen::Token(_) => Verdict::Recorded,
    }
}

/// The fence that runs a command, as FILE.lock describes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its supervisor.
    pub pid: i32,
    /// When that process started, in clock ticks since boot.
    pub started: u64,
    /// The descriptor by which it has FILE.lock open.
    pub descriptor: i32,
    /// Its token.
    pub token: u64,
    /// Its `--kill-after`.
    pub kill_after: Duration,
}

impl Holder {
    /// The content of FILE.lock: one line of numbers, the last one in milliseconds.
    pub fn to_text(self) -> String {
        let Self { pid, started, descriptor, token, kill_after } = self;
        format!("{pid} {started} {descriptor} {token} {}\n", kill_after.as_millis())
    }

    /// Reads it. There may be anything: the file is empty before the first command, and a person may have edited it.
    pub fn read(text: &[u8]) -> Option<Self> {
        let mut numbers = str::from_utf8(text).ok()?.strip_suffix('\n')?.split(' ');
        let mut next = || token(numbers.next()?);
        let mut id = || i32::try_from(next()?).ok();
        let holder = Self {
            pid: id().filter(|pid| *pid > 0)?,
            started: next()?,
            descriptor: i32::try_from(next()?).ok()?,
            token: next()?,
            kill_after: Duration::from_millis(next()?),
        };
        numbers.next().is_none().then_some(holder)
    }

    /// For how long it may go on after it was asked to make way for a command with this token; `None`: it is waited for.
    pub fn makes_way(self, ours: u64) -> Option<Duration> {
        (self.token < ours).then(|| self.kill_after.saturating_add(SLACK))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_token_wins() {
        for (seen, ours, verdict) in [
            (Seen::Nothing, 0, Verdict::Record),
            (Seen::Token(6), 7, Verdict::Record),
            (Seen::Token(7), 7, Verdict::Recorded),
            (Seen::Token(8), 7, Verdict::Later(8)),
            (Seen::Token(u64::MAX), u64::MAX - 1, Verdict::Later(u64::MAX)),
            (Seen::Garbage, 7, Verdict::Unknown),
        ] {
            assert_eq!(judge(seen, ours), verdict, "{seen:?} {ours}");
            let later = if let Verdict::Later(later) = verdict { Some(later) } else { None };
            assert_eq!(seen.later_than(ours), later, "{seen:?} {ours}");
        }
    }

    #[test]
    fn a_record_reads_back() {
        for token in [0, 1, 4_294_967_298, u64::MAX] {
            assert_eq!(Seen::read(record(token).as_bytes()), Seen::Token(token));
        }
        assert_eq!(Seen::read(b"12"), Seen::Token(12));
    }

    #[test]
    fn anything_else_is_garbage() {
        for text in
            [&b""[..], b"\n", b"12\n\n", b" 12\n", b"-1\n", b"+1\n", b"0x1\n", b"12 13\n", b"\xff\n", b"root:x\n"]
        {
            assert_eq!(Seen::read(text), Seen::Garbage, "{text:?}");
        }
        assert_eq!(Seen::read(b"18446744073709551616\n"), Seen::Garbage, "more than fits");
    }

    const HOLDER: Holder =
        Holder { pid: 42, started: 12_345, descriptor: 9, token: 7, kill_after: Duration::from_millis(2500) };

    #[test]
    fn a_holder_reads_back() {
        assert_eq!(HOLDER.to_text(), "42 12345 9 7 2500\n");
        assert_eq!(Holder::read(HOLDER.to_text().as_bytes()), Some(HOLDER));
    }

    #[test]
    fn a_line_that_is_cut_or_edited_names_no_process() {
        for text in
            ["", "\n", "42", "42 12345 9 7 2500", "42 12345 9 7\n", "0 1 1 1 1\n", "-1 1 1 1 1\n", "1 1 1 1 1 1\n"]
        {
            assert_eq!(Holder::read(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn only_a_lower_token_makes_way() {
        assert_eq!(HOLDER.makes_way(8), Some(Duration::from_millis(7500)));
        assert_eq!((HOLDER.makes_way(7), HOLDER.makes_way(6)), (None, None));
    }
}
