//! The bytes of requests, field by field as `zookeeper.jute` has them.

use super::*;
use crate::zookeeper::wire::request::{Acl, Secret};

fn written(request: &Request<'_>, chroot: &str) -> Vec<u8> {
    let mut bytes = vec![];
    request.write(7, chroot, &mut bytes);
    let (length, packet) = bytes.split_first_chunk().unwrap();
    assert_eq!(usize::try_from(u32::from_be_bytes(*length)), Ok(packet.len()));
    packet.to_vec()
}

/// The fields as they come, strings and buffers with their lengths.
fn fields(write: impl FnOnce(&mut JuteWriter<'_>)) -> Vec<u8> {
    let mut bytes = vec![];
    write(&mut JuteWriter::new(&mut bytes));
    bytes
}

fn header(to: &mut JuteWriter<'_>, code: i32) {
    to.int(7);
    to.int(code);
}

#[test]
fn a_node_with_an_acl() {
    let node = NewNode { path: "/lock/c-", data: b"card", acl: &[Acl::ANYONE] };
    let create = |code| {
        fields(|to| {
            header(to, code);
            to.string("/jobs/lock/c-");
            to.buffer(b"card");
            to.int(1);
            to.int(31);
            to.string("world");
            to.string("anyone");
            to.int(if code == 19 { 4 } else { 3 });
        })
    };
    let kind = NodeKind::EphemeralSequential;
    assert_eq!(written(&Request::Create { node, kind }, "/jobs"), create(1));
    assert_eq!(written(&Request::Create2 { node, kind }, "/jobs"), create(15));
    assert_eq!(written(&Request::CreateContainer(node), "/jobs"), create(19));
}

#[test]
fn every_part_of_a_multi_has_a_header() {
    let parts =
        [Request::Check { path: "/a", version: None }, Request::SetData { path: "/a", data: b"new", version: Some(3) }];
    let expected = fields(|to| {
        header(to, 14);
        multi_header(to, 13, false);
        to.string("/a");
        to.int(-1);
        multi_header(to, 5, false);
        to.string("/a");
        to.buffer(b"new");
        to.int(3);
        to.int(-1);
        to.boolean(true);
        to.int(-1);
    });
    assert_eq!(written(&Request::Multi(&parts), ""), expected);
}

#[test]
fn the_root_is_the_chroot() {
    for (chroot, path) in [("", "/"), ("/jobs", "/jobs")] {
        let expected = fields(|to| {
            header(to, 8);
            to.string(path);
            to.boolean(true);
        });
        assert_eq!(written(&Request::GetChildren { path: "/", watch: true }, chroot), expected);
    }
}

#[test]
fn credentials_have_a_type_before_them() {
    let expected = fields(|to| {
        header(to, 100);
        to.int(0);
        to.string("digest");
        to.buffer(b"bob:secret");
    });
    assert_eq!(written(&Request::Auth { scheme: "digest", credentials: Secret(b"bob:secret") }, "/jobs"), expected);
}
