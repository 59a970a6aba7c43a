//! A client that may create nodes below a lock, and lies in them. It can make others wait, which any contender may do. It
//! cannot make one start while another one holds.

use crate::harness::client::{Client, Kind};
use crate::harness::running::{finish, silent};
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::zklock::{binary, child};

/// The card of a contender that holds, it says.
const HOLDS: &[u8] = br#"{"v":1,"host":"db3","pid":4242,"held_since":1,"held_for":1,"held_at":1}"#;

/// A second session at the shared server.
fn liar(scratch: &Scratch) -> Client {
    Client::connect(&scratch.chroot().to_string())
}

fn forge(liar: &Client, name: &str, kind: Kind) -> String {
    liar.create(&format!("{LOCK}/{name}"), HOLDS, kind).expect("a node can be created")
}

/// A waiter watches the forged node, and that goes: the holder is still before the waiter.
#[test]
fn who_says_that_it_holds_is_not_believed() {
    let names = [
        "_c_00000001-0002-0003-f004-000000000005-lock-",
        "_c_2a9f0cc5-5b46-4a0c-9ac9-4a1d5b3d0c1e-lock-",
        "_c_00000001-0002-0003-f004-000000000005-read-lock-",
    ];
    for (name, options) in names.iter().flat_map(|name| [(name, &[][..]), (name, &["--shared"][..])]) {
        let scratch = Scratch::new();
        let mut holder = scratch.hold();
        let held = format!("{LOCK}/{}", scratch.wait_queue(1)[0]);
        let liar = liar(&scratch);
        let forged = forge(&liar, name, Kind::EphemeralSequential);
        let mut next = scratch.zklock().args(options).arg(LOCK).child(scratch.logged("next")).spawn();
        scratch.wait_queue(3);
        // A reader is not kept by a reader.
        if options.is_empty() || !name.contains("read") {
            scratch.wait_watched(&forged);
        }
        liar.remove(&forged);
        scratch.wait_watched(&held);
        assert!(!next.stdout().contains("ready"), "{next}");
        silent(finish(&mut holder));
        silent(finish(&mut next));
        assert_eq!(scratch.log().expect_no_overlap().order(), ["holder", "next"]);
    }
}

/// A run holds a lock and wants another one below it, which somebody else holds. There is a node in that queue which has
/// the name and the data of the node that the run holds, and so would lend it the lock.
#[test]
fn a_copied_node_lends_nothing() {
    let scratch = Scratch::new();
    let other = format!("/other{LOCK}");
    let mut busy = scratch.zklock().arg(&other).child(scratch.logged("busy")).spawn();
    busy.wait_stdout("ready");
    let inner = format!(r#""$C" --name outer --until go; "$Z" -n {other} -- "$C" --name inner"#);
    let shell = scratch.zklock().env("SHELL", "/bin/sh").env("Z", binary()).env("C", child());
    let mut outer = shell.args([LOCK, "-c", &inner]).spawn();
    outer.wait_stdout("outer ready");
    let name = scratch.wait_queue(1).remove(0);
    let (card, _) = scratch.client().get(&format!("{LOCK}/{name}")).unwrap();
    let liar = liar(&scratch);
    liar.create(&format!("{other}/{name}"), &card, Kind::Ephemeral).unwrap();
    scratch.touch("go");
    let output = outer.wait().expect_code(75);
    assert!(!output.stdout().contains("inner ready"), "{output}");
    silent(finish(&mut busy));
}

/// The names of its nodes have the id of a waiter. They are not the waiter's to delete, and do not end it.
#[test]
fn nodes_with_the_id_of_a_waiter_do_not_end_it() {
    let scratch = Scratch::new();
    let mut holder = scratch.hold();
    let between = scratch.occupy("");
    let mut waiter = scratch.queue("waiter", 2);
    scratch.wait_watched(&between);
    let names = scratch.wait_queue(3);
    let id = names[2].strip_suffix("-lock-0000000002").unwrap();
    let liar = liar(&scratch);
    let odd = format!("{}000-{}-000000000000", &id[..17], &id[21..26]);
    // As if its creation had been done twice, and as if it had created another contender before.
    let twin = forge(&liar, &format!("{id}-lock-0000000000"), Kind::Ephemeral);
    let behind = forge(&liar, &format!("{odd}-lock-"), Kind::EphemeralSequential);
    // With a child, it cannot be deleted.
    let lasting = forge(&liar, &format!("{id}-\u{202e}evil-lock-0000000000"), Kind::Persistent);
    liar.create(&format!("{lasting}/child"), b"", Kind::Persistent).unwrap();
    let plain = forge(&liar, &format!("{id}-evil-lock-0000000000"), Kind::Persistent);
    liar.create(&format!("{plain}/child"), b"", Kind::Persistent).unwrap();
    // The waiter lists the queue.
    scratch.delete(&between);
    // It is before the waiter, like any other contender.
    scratch.wait_watched(&twin);
    silent(finish(&mut holder));
    assert!(!waiter.stdout().contains("ready"), "{waiter}");
    assert!(scratch.client().exists(&behind));
    liar.remove(&twin);
    waiter.wait_stdout("ready");
    assert!(scratch.client().exists(&lasting) && scratch.client().exists(&plain) && scratch.client().exists(&behind));
    finish(&mut waiter);
}

/// The first contender has the card of a waiter, and so seems to be a run above it, for which nobody may wait.
#[test]
fn a_copy_of_its_own_card_does_not_end_a_waiter() {
    let scratch = Scratch::new();
    let liar = liar(&scratch);
    let first = scratch.occupy("");
    let between = scratch.occupy("");
    let mut waiter = scratch.queue("waiter", 2);
    scratch.wait_watched(&between);
    let card = scratch.client().get(&format!("{LOCK}/{}", scratch.wait_queue(3)[2])).expect("the waiter's card").0;
    liar.set(&first, &card).expect("anyone may write");
    scratch.delete(&between);
    scratch.wait_watched(&first);
    assert!(!waiter.stdout().contains("ready"), "{waiter}");
    scratch.delete(&first);
    waiter.wait_stdout("ready");
    silent(finish(&mut waiter));
}

/// A client may give its nodes names in any script. zklock shows such a name escaped, and waits for its node.
#[test]
fn a_name_that_cannot_be_shown_as_it_is_counts() {
    let scratch = Scratch::new().with_lock();
    let name = format!("{LOCK}/山田\u{3000}太郎\u{200c}-lock-");
    let node = scratch.client().create(&name, b"", Kind::EphemeralSequential).unwrap();
    let busy = scratch.zklock().args(["-n", LOCK, "true"]).run().expect_code(75);
    assert!(busy.stderr().contains("held by 山田<U+3000>太郎<U+200C>-lock-0000000000"), "{busy}");
    let status = scratch.zklock().args(["status", "-q", LOCK]).run().expect_code(0);
    silent(status);
    scratch.delete(&node);
    silent(scratch.zklock().args(["-n", LOCK, "true"]).run().expect_code(0));
}
