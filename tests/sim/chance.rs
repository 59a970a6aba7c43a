//! What chance decides in a run. In a systematic search it decides nothing.

use fastrand::Rng;

use crate::state::{MS, Time};

/// The longest that a message takes, without a fault.
pub(crate) const LATEST: Time = 200 * MS;

pub(crate) enum Chance {
    Random(Rng),
    /// Always the same. The number is that of the numbers drawn so far.
    Fixed(u64),
}

impl Chance {
    /// A number from 0 to `most`, inclusive.
    pub(crate) fn up_to(&mut self, most: Time) -> Time {
        match self {
            Self::Random(rng) => rng.u64(0..=most),
            Self::Fixed(_) => most / 2,
        }
    }

    /// True once in `times`.
    pub(crate) fn once_in(&mut self, times: u32) -> bool {
        match self {
            Self::Random(rng) => rng.u32(0..times) == 0,
            Self::Fixed(_) => false,
        }
    }

    /// One of so many: a number below `count`.
    pub(crate) fn one_of(&mut self, count: usize) -> usize {
        match self {
            Self::Random(rng) => rng.usize(0..count),
            Self::Fixed(_) => count - 1,
        }
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        if let Self::Random(rng) = self {
            rng.shuffle(items);
        }
    }

    /// A number that is not drawn twice.
    pub(crate) fn number(&mut self) -> u64 {
        match self {
            Self::Random(rng) => rng.u64(..),
            Self::Fixed(drawn) => {
                *drawn += 1;
                *drawn
            }
        }
    }

    /// How long a message takes: usually not long.
    pub(crate) fn delay(&mut self) -> Time {
        match self {
            Self::Random(rng) => match rng.u32(0..64) {
                0 => rng.u64(0..=LATEST),
                1..8 => rng.u64(0..=20 * MS),
                _ => 100 + rng.u64(0..=2 * MS),
            },
            Self::Fixed(_) => MS,
        }
    }
}
