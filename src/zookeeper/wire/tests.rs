//! Whatever bytes come: no panic, no request answered twice or forgotten, and the same however the bytes are cut.

use std::time::Duration;

use proptest::collection::vec;
use proptest::prelude::*;

use super::connection::{Connection, ServerEvent};
use super::error::Broken;
use super::handshake::Attempt;
use super::request::Request;
use crate::rules::instant::Instant;
use crate::rules::keep_alive::KeepAlive;

const NOW: Instant = Instant::from_boot(Duration::from_secs(1));

const REQUESTS: [Request<'_>; 6] = [
    Request::GetChildren2 { path: "/", watch: true },
    Request::GetData { path: "/a", watch: true },
    Request::Multi(&[Request::Delete { path: "/a", version: None }, Request::Check { path: "/b", version: None }]),
    Request::SetData { path: "/a", data: b"x", version: None },
    Request::Ping,
    Request::Close,
];

/// A reply to the open of a session.
const GRANTED: [u8; 40] = {
    let mut bytes = [0; 40];
    bytes[3] = 36;
    bytes[11] = 200;
    bytes[19] = 5;
    bytes[23] = 16;
    // Of the password: that of ClickHouse Keeper has zeros only.
    bytes[24] = 1;
    bytes
};

/// A packet to follow: with a length that fits, most of the time, and a header that may.
fn packet() -> impl Strategy<Value = Vec<u8>> {
    let xid = prop_oneof![4 => 1..6_i32, 1 => -8..0_i32, 1 => any::<i32>()];
    let error = prop_oneof![3 => Just(0), 1 => -127..0_i32];
    let body = vec(prop_oneof![Just(0_u8), Just(1), Just(4), any::<u8>()], 0..120);
    let length = prop_oneof![9 => Just(None), 1 => any::<i32>().prop_map(Some)];
    (xid, any::<i64>(), error, body, length).prop_map(|(xid, zxid, error, body, length)| {
        let packet = [&xid.to_be_bytes()[..], &zxid.to_be_bytes(), &error.to_be_bytes(), &body].concat();
        let length = length.unwrap_or(i32::try_from(packet.len()).unwrap());
        [&length.to_be_bytes()[..], &packet].concat()
    })
}

/// What comes of these pieces.
fn outcome(pieces: &[&[u8]]) -> (Vec<ServerEvent<usize>>, Option<Broken>) {
    let mut attempt = Attempt::open(Duration::from_secs(20));
    attempt.sent(usize::MAX, NOW);
    let granted = attempt.receive(&GRANTED).unwrap().unwrap();
    let mut connection = Connection::new(granted, "", KeepAlive::brisk(Duration::from_secs(24)), NOW);
    for (tag, request) in REQUESTS.iter().enumerate() {
        connection.request(request, tag, NOW).unwrap();
    }
    connection.sent(usize::MAX, NOW);
    let mut events = vec![];
    let mut broken = None;
    for piece in pieces {
        connection.receive(piece, NOW);
        while let Some(event) = connection.next_event().unwrap_or_else(|reason| {
            broken = Some(reason);
            None
        }) {
            events.push(event);
        }
    }
    let mut unanswered: Vec<_> = (0..REQUESTS.len()).collect();
    for event in &events {
        if let ServerEvent::Answered { tag, .. } = event {
            let place = unanswered.iter().position(|left| left == tag);
            unanswered.remove(place.expect("each request is answered once"));
        }
    }
    assert_eq!(connection.is_owed(), !unanswered.is_empty());
    (events, broken)
}

proptest! {
    #[test]
    fn no_answer_to_an_attempt_does_harm(bytes in vec(any::<u8>(), 0..80)) {
        let mut attempt = Attempt::open(Duration::from_secs(20));
        attempt.sent(usize::MAX, NOW);
        let _ = attempt.receive(&bytes);
    }

    #[test]
    fn no_packets_do_harm_however_they_are_cut(packets in vec(packet(), 1..8), size in 1..64_usize) {
        let stream = packets.concat();
        prop_assert_eq!(outcome(&stream.chunks(size).collect::<Vec<_>>()), outcome(&[&stream]));
    }

    #[test]
    fn no_bytes_do_harm(stream in vec(any::<u8>(), 0..400), size in 1..64_usize) {
        prop_assert_eq!(outcome(&stream.chunks(size).collect::<Vec<_>>()), outcome(&[&stream]));
    }
}
