//! `zklock fence`: which token wins, and what its two files say.

use super::text::decimal;

/// What FILE says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SeenToken {
    /// There is no such file.
    Nothing,
    /// The highest token so far.
    Token(u64),
    /// No token. An empty file is no token either: we never leave one.
    Garbage,
}

impl SeenToken {
    /// Reads what [`record`] has written; a person may have left out the line feed.
    pub fn read(text: &[u8]) -> Self {
        let text = str::from_utf8(text).ok();
        let seen = text.and_then(|text| decimal(text.strip_suffix('\n').unwrap_or(text)));
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

/// What FILE.lock says of the fence that runs a command: its process, as it numbers itself, and its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its supervisor.
    pub pid: u32,
    pub token: u64,
}

impl Holder {
    pub fn to_text(self) -> String {
        format!("{} {}\n", self.pid, self.token)
    }

    /// Reads it. An error: the file is not one of ours. Before the first command it is empty, after a power cut there may be
    /// zeroes, and version 0.2.0 has written further numbers.
    pub fn read(text: &[u8]) -> Result<Option<Self>, NotOurs> {
        if !text.iter().all(|byte| byte.is_ascii_digit() || b"\0 \n".contains(byte)) {
            return Err(NotOurs);
        }
        let holder = || {
            let (pid, token) = str::from_utf8(text).ok()?.strip_suffix('\n')?.split_once(' ')?;
            Some(Self { pid: pid.parse().ok()?, token: token.parse().ok()? })
        };
        Ok(holder())
    }
}

/// A file has another content than a fence writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotOurs;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back() {
        for token in [0, 1, 4_294_967_298, u64::MAX] {
            assert_eq!(SeenToken::read(record(token).as_bytes()), SeenToken::Token(token));
        }
        assert_eq!(SeenToken::read(b"12"), SeenToken::Token(12));
    }

    #[test]
    fn anything_else_is_garbage() {
        for text in
            [&b""[..], b"\n", b"12\n\n", b" 12\n", b"-1\n", b"+1\n", b"0x1\n", b"12 13\n", b"\xff\n", b"root:x\n"]
        {
            assert_eq!(SeenToken::read(text), SeenToken::Garbage, "{text:?}");
        }
        assert_eq!(SeenToken::read(b"18446744073709551616\n"), SeenToken::Garbage, "more than fits");
    }

    #[test]
    fn a_holder_reads_back() {
        let holder = Holder { pid: 42, token: 7 };
        assert_eq!(Holder::read(holder.to_text().as_bytes()), Ok(Some(holder)));
        for text in ["", "\0\0", "42", "42 7", "42 12345 9 7 2500\n"] {
            assert_eq!(Holder::read(text.as_bytes()), Ok(None), "{text:?}");
        }
        assert_eq!(Holder::read(b"root:x\n"), Err(NotOurs));
    }

    #[test]
    fn only_a_higher_token_is_later() {
        for (seen, later) in [(SeenToken::Token(8), Some(8)), (SeenToken::Token(7), None), (SeenToken::Nothing, None)] {
            assert_eq!(seen.later_than(7), later);
        }
    }
}
