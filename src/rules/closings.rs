//! Servers that close the connection over the creation of a contender each time: it is larger than their `jute.maxbuffer`.

use std::time::Duration;

/// This many connections in a row are no accident: over each of them, the server has answered something first.
const ENOUGH: u32 = 4;

/// A connection that lasted longer has ended for another reason.
const PROMPT: Duration = Duration::from_secs(1);

/// How many connections were closed in this way, one after the other.
#[derive(Debug, Default)]
pub struct Closings(u32);

impl Closings {
    /// Counts a lost connection. `over_creation`: the server has closed it over a creation. `lasted`: for how long the
    /// connection was there. Returns whether the server would close the next one as well.
    pub fn add(&mut self, over_creation: bool, lasted: Duration) -> bool {
        self.0 = if over_creation && lasted < PROMPT { self.0 + 1 } else { 0 };
        self.0 >= ENOUGH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(20);

    /// Which of these losses is one too many.
    fn enough(losses: &[(bool, Duration)]) -> Option<usize> {
        let mut closings = Closings::default();
        losses.iter().position(|(over_creation, lasted)| closings.add(*over_creation, *lasted))
    }

    #[test]
    fn over_the_creation_each_time() {
        assert_eq!(enough(&[(true, SOON); 5]), Some(3));
    }

    #[test]
    fn an_outage_is_no_such_thing() {
        for loss in [(false, SOON), (true, PROMPT)] {
            let mut losses = [(true, SOON); 7];
            losses[3] = loss;
            assert_eq!(enough(&losses), None, "{loss:?}");
        }
    }
}
