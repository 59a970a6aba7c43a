//! Servers that close the connection over the same request each time: it is larger than their `jute.maxbuffer`, or they do
//! not know it and do not say so.

use std::time::Duration;

/// So many connections in a row are no accident: over each of them, the server has answered something first.
const ENOUGH: u32 = 4;

/// A connection that lasted longer has ended for another reason.
const PROMPT: Duration = Duration::from_secs(1);

/// The connections that were closed over the same request, one after the other.
#[derive(Debug, Default)]
pub struct Closings {
    /// The kind of the request, and how many connections.
    last: Option<(i32, u32)>,
}

impl Closings {
    /// A connection was lost that has lasted for so long. `over`: the kind of the request over which the server has closed
    /// it, if it has. Returns whether it would close the next one as well.
    pub fn add(&mut self, over: Option<i32>, lasted: Duration) -> bool {
        let before = |over| self.last.filter(|(kind, _)| *kind == over).map_or(0, |(_, times)| times);
        self.last = over.filter(|_| lasted < PROMPT).map(|over| (over, before(over) + 1));
        self.last.is_some_and(|(_, times)| times >= ENOUGH)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOON: Duration = Duration::from_millis(20);

    /// Which of these losses is one too many.
    fn enough(losses: &[(Option<i32>, Duration)]) -> Option<usize> {
        let mut closings = Closings::default();
        losses.iter().position(|(over, lasted)| closings.add(*over, *lasted))
    }

    #[test]
    fn the_same_request_each_time() {
        assert_eq!(enough(&[(Some(1), SOON); 5]), Some(3));
        let other = [(Some(15), SOON), (Some(15), SOON), (Some(1), SOON), (Some(1), SOON), (Some(1), SOON)];
        assert_eq!(enough(&other), None);
    }

    #[test]
    fn an_outage_is_no_such_thing() {
        for loss in [(None, SOON), (Some(1), PROMPT)] {
            let mut losses = [(Some(1), SOON); 7];
            losses[3] = loss;
            assert_eq!(enough(&losses), None, "{loss:?}");
        }
    }
}
