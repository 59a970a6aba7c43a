//! Signals by number and by name: what `--signal` reads and what messages and log lines print.
//!
//! Owns the type only. Sending, catching and blocking are elsewhere.

use std::fmt;
use std::str::FromStr;

use nix::sys::signal::Signal as Named;

use super::text::decimal;

/// A signal that exists on this system: 1 to `SIGRTMAX`, see signal(7).
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Signal(i32);

impl Signal {
    pub const HUP: Self = Self(libc::SIGHUP);
    pub const INT: Self = Self(libc::SIGINT);
    pub const QUIT: Self = Self(libc::SIGQUIT);
    pub const KILL: Self = Self(libc::SIGKILL);
    pub const USR1: Self = Self(libc::SIGUSR1);
    pub const PIPE: Self = Self(libc::SIGPIPE);
    pub const ALRM: Self = Self(libc::SIGALRM);
    pub const XCPU: Self = Self(libc::SIGXCPU);
    pub const TERM: Self = Self(libc::SIGTERM);
    pub const CHLD: Self = Self(libc::SIGCHLD);
    pub const CONT: Self = Self(libc::SIGCONT);
    pub const STOP: Self = Self(libc::SIGSTOP);
    pub const SYS: Self = Self(libc::SIGSYS);
    pub const TSTP: Self = Self(libc::SIGTSTP);
    pub const TTOU: Self = Self(libc::SIGTTOU);
    pub const WINCH: Self = Self(libc::SIGWINCH);

    /// The signals that are sent to end a program.
    pub const ENDING: [Self; 6] = [Self::HUP, Self::INT, Self::QUIT, Self::TERM, Self::ALRM, Self::XCPU];

    /// The signal with this number; `None` where the system has none, which includes 0.
    pub fn new(number: i32) -> Option<Self> {
        (1..=libc::SIGRTMAX()).contains(&number).then_some(Self(number))
    }

    /// The number, as kill(2) takes it.
    pub const fn number(self) -> i32 {
        self.0
    }

    /// Every signal of this system, in the order of the numbers.
    pub fn all() -> impl Iterator<Item = Self> {
        (1..=libc::SIGRTMAX()).map(Self)
    }
}

/// Prints `SIGTERM` or `SIGRTMIN+3`; a number without a name, such as those that the C library reserves,
/// as `SIG32`.
impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Ok(named) = Named::try_from(self.0) {
            return f.write_str(named.as_str());
        }
        match self.0 - libc::SIGRTMIN() {
            0 => f.write_str("SIGRTMIN"),
            above @ 1.. => write!(f, "SIGRTMIN+{above}"),
            _ => write!(f, "SIG{}", self.0),
        }
    }
}

impl fmt::Debug for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Signal {
    /// Says what to write.
    type Err = String;

    /// Reads `TERM`, `SIGTERM`, `term`, `15`, and all else that `Display` prints, such as `RTMIN+1`.
    fn from_str(text: &str) -> Result<Self, String> {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let named = Self::all().find(|signal| signal.to_string().strip_prefix("SIG") == Some(name));
        named.or_else(|| Self::new(decimal(name)?)).ok_or_else(|| {
            format!("write a signal such as TERM, SIGINT, RTMIN+1 or a number from 1 to {}", libc::SIGRTMAX())
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn names_and_numbers_that_are_understood() {
        for (text, number) in [
            ("TERM", libc::SIGTERM),
            ("SIGTERM", libc::SIGTERM),
            ("term", libc::SIGTERM),
            ("SigTerm", libc::SIGTERM),
            ("15", 15),
            ("SIG15", 15),
            ("HUP", libc::SIGHUP),
            ("RTMIN", libc::SIGRTMIN()),
            ("RTMIN+1", libc::SIGRTMIN() + 1),
            ("sigrtmin+3", libc::SIGRTMIN() + 3),
        ] {
            assert_eq!(text.parse::<Signal>().map(Signal::number), Ok(number), "{text:?}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "",
            "0",
            "-1",
            "+15",
            " TERM",
            "TERM ",
            "SIG",
            "SIGSIGTERM",
            "TERMINATE",
            "65",
            "999",
            "99999999999999999999",
            "RTMIN+",
            "RTMIN-1",
            "RTMIN+-1",
            "RTMIN+31",
            "RTMAX",
            "CLD",
            "1.5",
            "TÉRM",
            "１５",
        ] {
            assert!(text.parse::<Signal>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn the_refusal_says_what_to_write() {
        let hint = "write a signal such as TERM, SIGINT, RTMIN+1 or a number from 1 to 64";
        assert_eq!("".parse::<Signal>(), Err(hint.to_owned()));
    }

    #[test]
    fn the_first_of_two_names_is_printed() {
        assert_eq!(Signal::CHLD.to_string(), "SIGCHLD");
        assert_eq!(Signal(libc::SIGPOLL).to_string(), "SIGIO");
        assert_eq!(Signal(libc::SIGIOT).to_string(), "SIGABRT");
    }

    #[test]
    fn numbers_without_a_name_are_printed_as_numbers() {
        assert_eq!(Signal(32).to_string(), "SIG32");
        assert_eq!(Signal(libc::SIGRTMIN()).to_string(), "SIGRTMIN");
        assert_eq!(Signal(libc::SIGRTMIN() + 3).to_string(), "SIGRTMIN+3");
    }

    #[test]
    fn every_signal_reads_back_what_it_prints() {
        for signal in Signal::all() {
            assert_eq!(signal.to_string().parse(), Ok(signal));
            assert_eq!(signal.number().to_string().parse(), Ok(signal));
        }
    }

    #[test]
    fn no_signal_has_a_number_out_of_range() {
        for number in [i32::MIN, -1, 0, libc::SIGRTMAX() + 1, i32::MAX] {
            assert_eq!(Signal::new(number), None);
        }
    }

    proptest! {
        #[test]
        fn no_text_is_too_odd(text in "(SIG)?(RTMIN|RTMAX)?[+-]?\\PC{0,6}") {
            if let Ok(signal) = text.parse::<Signal>() {
                prop_assert_eq!(Signal::new(signal.number()), Some(signal));
            }
        }
    }
}
