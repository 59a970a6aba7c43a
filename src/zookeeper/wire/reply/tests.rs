//! Replies as bytes: multis, stats, events, and paths below a chroot.

use super::super::records::JuteWriter;
use super::*;

const DELETE: i32 = 2;
const SET_DATA: i32 = 5;
const CHECK: i32 = 13;

fn stat(to: &mut JuteWriter<'_>) {
    (1..=4).for_each(|n| to.long(n));
    (5..=7).for_each(|n| to.int(n));
    to.long(8);
    to.int(9);
    to.int(10);
    to.long(11);
}

const STAT: NodeStat = NodeStat { czxid: 1, created: 3, written: 4, version: 5, owner: 8 };

fn read(form: &ReplyForm, write: impl FnOnce(&mut JuteWriter<'_>)) -> Result<Result<Reply, Code>, Malformed> {
    let mut bytes = vec![];
    write(&mut JuteWriter::new(&mut bytes));
    form.read(&mut JuteReader::new(&bytes), "/jobs")
}

/// The results of a multi that create, set data and check, and the end mark.
fn multi(operations: &[i32], write: impl FnOnce(&mut JuteWriter<'_>)) -> Result<Result<Reply, Code>, Malformed> {
    read(&ReplyForm::Multi(operations.to_vec()), |to| {
        write(to);
        part(to, -1, true);
    })
}

fn part(to: &mut JuteWriter<'_>, kind: i32, is_end: bool) {
    to.int(kind);
    to.boolean(is_end);
    to.int(if kind == -1 { -1 } else { 0 });
}

fn created(to: &mut JuteWriter<'_>) {
    part(to, CREATE2, false);
    to.string("/jobs/a1");
    stat(to);
}

fn errors(to: &mut JuteWriter<'_>, codes: &[i32]) {
    for code in codes {
        part(to, ERROR, false);
        to.int(*code);
    }
}

#[test]
fn what_a_multi_has_done() {
    let done = multi(&[CREATE2, SET_DATA, CHECK, DELETE], |to| {
        created(to);
        part(to, SET_DATA, false);
        stat(to);
        part(to, CHECK, false);
        part(to, DELETE, false);
    });
    let created = Reply::Created { path: "/a1".to_owned(), stat: Some(STAT) };
    assert_eq!(done, Ok(Ok(Reply::Multi(vec![created, Reply::Stat(STAT), Reply::Done, Reply::Done]))));
}

#[test]
fn a_create2_in_a_multi_may_lack_its_stat() {
    let done = multi(&[CREATE2], |to| {
        part(to, CREATE, false);
        to.string("/jobs/a1");
    });
    assert_eq!(done, Ok(Ok(Reply::Multi(vec![Reply::Created { path: "/a1".to_owned(), stat: None }]))));
}

#[test]
fn of_the_errors_of_a_multi_one_is_the_reason() {
    let refused = |codes: &[i32]| multi(&vec![CHECK; codes.len()], |to| errors(to, codes));
    assert_eq!(refused(&[0, -101, -2]), Ok(Err(Code::NoNode)));
    assert_eq!(refused(&[-2, -2, -103]), Ok(Err(Code::BadVersion)));
    assert_eq!(refused(&[0, -2]), Err(Malformed::IncompleteMulti));
    assert_eq!(refused(&[0, 0]), Err(Malformed::IncompleteMulti));
}

#[test]
fn the_results_of_a_multi_are_those_of_its_operations() {
    assert_eq!(multi(&[CREATE2, CHECK], created), Err(Malformed::IncompleteMulti));
    assert_eq!(multi(&[], created), Err(Malformed::IncompleteMulti));
    assert_eq!(multi(&[CREATE], created), Err(Malformed::UnexpectedResult(CREATE2)));
    assert_eq!(multi(&[CHECK], |to| part(to, 4, false)), Err(Malformed::UnexpectedResult(4)));
    assert_eq!(read(&ReplyForm::Multi(vec![CREATE2]), created), Err(Malformed::Truncated));
    assert_eq!(multi(&[], |_| ()), Ok(Ok(Reply::Multi(vec![]))));
}

#[test]
fn data_and_children() {
    let data = read(&ReplyForm::One(4), |to| {
        to.int(-1);
        stat(to);
    });
    assert_eq!(data, Ok(Ok(Reply::Data { data: vec![], stat: STAT })));
    let children = read(&ReplyForm::One(12), |to| {
        to.vector(&["a", "b"], |to, name| to.string(name));
        stat(to);
    });
    let names = vec!["a".into(), "b".into()];
    assert_eq!(children, Ok(Ok(Reply::Children { names, stat: Some(STAT) })));
    for name in ["", "..", "a/b", "a\0ENV=x"] {
        let children = read(&ReplyForm::One(8), |to| to.vector(&["a", name], |to, name| to.string(name)));
        assert_eq!(children, Err(Malformed::ChildName), "{name:?}");
    }
}

fn change(kind: i32, path: &str, chroot: &str) -> Result<Option<WatchEvent>, Malformed> {
    let mut bytes = vec![];
    let mut to = JuteWriter::new(&mut bytes);
    to.int(kind);
    to.int(3);
    to.string(path);
    WatchEvent::read(&mut JuteReader::new(&bytes), chroot)
}

#[test]
fn the_chroot_is_taken_off_paths() {
    let deleted = |path: &str| Ok(Some(WatchEvent { change: Change::Deleted, path: path.to_owned() }));
    assert_eq!(change(2, "/jobs/a", "/jobs"), deleted("/a"));
    assert_eq!(change(2, "/jobs", "/jobs"), deleted("/"));
    assert_eq!(change(2, "/jobs/a", ""), deleted("/jobs/a"));
    for outside in ["/jobs2/a", "/job", "", "/"] {
        assert_eq!(change(2, outside, "/jobs"), Err(Malformed::OutsideChroot));
    }
}

#[test]
fn events_about_no_node_are_left_out() {
    assert_eq!(change(-1, "", "/jobs"), Ok(None));
    assert_eq!(change(5, "/a", "").unwrap().unwrap().change, Change::Other);
}
