//! The session of a holder is ended by others: the command is killed at once.

use crate::harness::client;
use crate::harness::fault::Fault;
use crate::harness::scratch::direct;

#[test]
fn closed_by_an_administrator() {
    let mut fault = Fault::minute();
    let session = fault.scratch.contenders()[0].stat.owner;
    fault.strikes();
    client::expire_session(&direct(), session);
    fault.expect_taken("");
}
