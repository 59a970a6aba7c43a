//! How a contender wants the lock: alone, with other readers, or as one of N.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// How a contender wants the lock.
///
/// As text, in the environment and in node data: `exclusive`, `shared`, `permits:N`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub enum Mode {
    Exclusive,
    /// Together with every other contender that is not exclusive.
    Shared,
    /// Together with contenders that are not exclusive, as long as fewer than this many are before it.
    Permits(NonZeroU32),
}

impl Mode {
    pub const fn permits(self) -> Option<NonZeroU32> {
        match self {
            Self::Exclusive | Self::Shared => None,
            Self::Permits(permits) => Some(permits),
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exclusive => f.write_str("exclusive"),
            Self::Shared => f.write_str("shared"),
            Self::Permits(permits) => write!(f, "permits:{permits}"),
        }
    }
}

impl From<Mode> for String {
    fn from(mode: Mode) -> Self {
        mode.to_string()
    }
}

const NO_MODE: &str = "not a mode: expected exclusive, shared or permits:N";

impl FromStr for Mode {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text {
            "exclusive" => Ok(Self::Exclusive),
            "shared" => Ok(Self::Shared),
            _ => text.strip_prefix("permits:").and_then(parse_permits).map(Self::Permits).ok_or(NO_MODE),
        }
    }
}

impl TryFrom<String> for Mode {
    type Error = &'static str;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

/// Reads a number of permits as we write it: decimal, no sign, no leading zero, not 0.
pub(super) fn parse_permits(digits: &str) -> Option<NonZeroU32> {
    let permits: NonZeroU32 = digits.parse().ok()?;
    (permits.to_string() == digits).then_some(permits)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_as_text() {
        for mode in [Mode::Exclusive, Mode::Shared, Mode::Permits(NonZeroU32::MIN), Mode::Permits(NonZeroU32::MAX)] {
            assert_eq!(mode.to_string().parse(), Ok(mode));
            let json = serde_json::to_string(&mode).unwrap();
            assert_eq!(json, format!("\"{mode}\""));
            assert_eq!(serde_json::from_str::<Mode>(&json).unwrap(), mode);
        }
        for text in ["", "Exclusive", "permits", "permits:", "permits:0", "permits:+1", "permits:4294967296"] {
            assert_eq!(text.parse::<Mode>(), Err(NO_MODE), "{text}");
        }
    }
}
