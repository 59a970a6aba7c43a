//! What a supervisor asks of a guard, as bytes: what is wanted, the number of a signal, and who gets that.

use crate::rules::guard::{GuardRequest, Targets};
use crate::rules::signal::Signal;

pub(super) type Message = [u8; 3];

const WHOM: [Targets; 3] = [Targets::Group, Targets::Strayed, Targets::All];

pub(super) fn to_bytes(request: GuardRequest) -> Message {
    // No system has as many signals as a byte has numbers.
    let number = |signal: Signal| u8::try_from(signal.number()).unwrap_or(0);
    match request {
        GuardRequest::Open => [1, 0, 0],
        GuardRequest::Signal(signal, whom) => [2, number(signal), whom as u8],
        GuardRequest::Stop(signal) => [3, number(signal), 0],
        GuardRequest::Kill => [4, 0, 0],
        GuardRequest::Leave => [5, 0, 0],
    }
}

pub(super) fn from_bytes([kind, number, whom]: Message) -> Option<GuardRequest> {
    Some(match kind {
        1 => GuardRequest::Open,
        2 => GuardRequest::Signal(Signal::new(number.into())?, *WHOM.get(usize::from(whom))?),
        3 => GuardRequest::Stop(Signal::new(number.into())?),
        4 => GuardRequest::Kill,
        5 => GuardRequest::Leave,
        _ => return None,
    })
}
