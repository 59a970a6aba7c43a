//! Queues in every order, and which watches wake whom.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;

fn id(random: u64) -> ContenderId {
    ContenderId::new(0x0102_0304_0506_0708, random)
}

fn permits(permits: u32) -> Mode {
    Mode::Permits(NonZeroU32::new(permits).unwrap())
}

fn name(mode: Mode, sequence: i32) -> String {
    format!("{}{sequence:010}", id(u64::from(sequence.unsigned_abs())).prefix(Dialect::Curator, mode))
}

fn children_of<T: AsRef<str>>(names: &[T]) -> Vec<ChildName> {
    names.iter().map(|name| name.as_ref().into()).collect()
}

fn queue<T: AsRef<str>>(names: &[T]) -> Queue {
    Queue::from_children(children_of(names)).unwrap()
}

/// The names that `name` must watch; empty when it does not wait.
fn watched(queue: &Queue, name: &str) -> Vec<String> {
    match queue.standing(name) {
        Standing::Waits { watch, .. } => watch.into_iter().map(|other| other.name.to_string()).collect(),
        Standing::Holds | Standing::Missing => Vec::new(),
    }
}

fn holds(queue: &Queue, name: &str) -> bool {
    matches!(queue.standing(name), Standing::Holds)
}

#[test]
fn foreign_children_neither_hold_nor_count() {
    let ours = name(Mode::Exclusive, 5);
    let queue = queue(&["lock-".to_owned(), ours.clone(), ".x".to_owned()]);
    assert_eq!(queue.standing(&ours), Standing::Holds);
    assert_eq!(queue.standing(".x"), Standing::Missing);
    assert_eq!(queue.foreign(), children_of(&[".x", "lock-"]));
}

#[test]
fn worn_out_sequence_numbers_are_refused() {
    for (sequence, fine) in [(0, true), (SEQUENCE_LIMIT - 1, true), (SEQUENCE_LIMIT, false), (-1, false)] {
        let names = [name(Mode::Shared, 3), name(Mode::Exclusive, sequence)];
        assert_eq!(Queue::from_children(children_of(&names)).err(), (!fine).then_some(Exhausted));
    }
}

#[test]
fn an_empty_queue_is_free() {
    let queue = queue::<&str>(&[]);
    assert_eq!((queue.first_holder(), queue.contenders().len()), (None, 0));
    assert_eq!(queue.standing(&name(Mode::Exclusive, 1)), Standing::Missing);
}

#[test]
fn exclusive_contenders_watch_their_predecessor() {
    let names =
        [name(Mode::Exclusive, 9), name(Mode::Exclusive, 10), name(Mode::Shared, 11), name(Mode::Exclusive, 12)];
    let queue = queue(&names);
    assert_eq!(queue.first_holder().unwrap().name, names[0].as_str());
    assert_eq!(watched(&queue, &names[1]), [names[0].clone()]);
    assert_eq!(watched(&queue, &names[3]), [names[2].clone()]);
    let positions: Vec<_> = queue
        .standings()
        .map(|(_, standing)| match standing {
            Standing::Waits { position, .. } => Some(position),
            Standing::Holds | Standing::Missing => None,
        })
        .collect();
    assert_eq!(positions, [None, Some(2), Some(3), Some(4)]);
}

#[test]
fn the_nodes_of_one_contender_count_as_one() {
    let node = |dialect, sequence: i32| format!("{}{sequence:010}", id(1).prefix(dialect, Mode::Exclusive));
    let names = [
        "lock-0000000001".to_owned(),
        "lock-0000000002".to_owned(),
        node(Dialect::Curator, 3),
        node(Dialect::CuratorRw, 4),
        node(Dialect::Kazoo, 5),
        name(Mode::Exclusive, 6),
    ];
    let queue = queue(&names);
    assert_eq!(queue.size(), 4);
    assert!(matches!(queue.standing(&names[2]), Standing::Waits { position: 3, .. }));
    assert!(matches!(queue.standing(&names[5]), Standing::Waits { position: 4, .. }));
}

#[test]
fn a_contender_holds_by_its_first_node() {
    let node = |random, dialect, mode, sequence: i32| format!("{}{sequence:010}", id(random).prefix(dialect, mode));
    let both = |random, mode, sequence| {
        [(Dialect::Curator, sequence), (Dialect::Kazoo, sequence + 1)]
            .map(|(dialect, sequence)| node(random, dialect, mode, sequence))
    };
    let nodes = |mode| [both(1, mode, 1), both(2, mode, 3), both(3, Mode::Exclusive, 5)].concat();
    for (mode, expected) in [
        (Mode::Exclusive, [true, true, false, false, false, false]),
        (Mode::Shared, [true, true, true, true, false, false]),
    ] {
        let queue = queue(&nodes(mode));
        let holds: Vec<_> = queue.contenders().iter().map(|node| queue.holds(node)).collect();
        assert_eq!(holds, expected, "{mode:?}");
    }
    // Without an id, each node stands for itself.
    let queue = self::queue(&["lock-0000000001", "lock-0000000002"]);
    assert_eq!([0, 1].map(|index| queue.holds(&queue.contenders()[index])), [true, false]);
}

#[test]
fn who_does_not_see_us_is_told() {
    let blind = |names: &[&str], dialects: &[Dialect], given| {
        let queue = queue(names);
        queue.blind_to(dialects, given).map(|contender| contender.reads)
    };
    let kazoo = "5f2d4e0c9b7a4c1f8e3d2b1a0f9e8d7c__rlock__0000000001";
    let rw = "_c_2a9f0cc5-5b46-4a0c-9ac9-4a1d5b3d0c1e-__WRIT__0000000002";
    let (mutex, write_lock) = ("lock-0000000003", "x-72057594037927936-0000000004");
    assert_eq!(blind(&[mutex, write_lock], &[Dialect::Curator], false), None);
    assert_eq!(blind(&[mutex, kazoo], &[Dialect::Curator], false), Some(Dialect::Kazoo));
    assert_eq!(blind(&[mutex, kazoo], &[Dialect::Curator], true), None);
    assert_eq!(blind(&[kazoo, rw], &[Dialect::Curator, Dialect::CuratorRw], true), None);
    assert_eq!(blind(&[kazoo, rw], &[Dialect::CuratorRw], true), Some(Dialect::Kazoo));
    assert_eq!(blind(&[mutex, rw], &[Dialect::Curator], true), Some(Dialect::CuratorRw));
    assert_eq!(blind(&[kazoo, write_lock], &[Dialect::Kazoo], true), Some(Dialect::Curator));
    assert_eq!(blind(&[kazoo, rw, mutex, write_lock], &Dialect::QUEUEING, false), None);
}

#[test]
fn readers_wait_for_earlier_writers_alone() {
    let names = [name(Mode::Shared, 1), name(Mode::Shared, 2), name(Mode::Exclusive, 3), name(Mode::Shared, 4)];
    let queue = queue(&names);
    assert!(holds(&queue, &names[0]) && holds(&queue, &names[1]));
    assert_eq!(watched(&queue, &names[3]), [names[2].clone()]);
}

#[test]
fn permits_are_counted() {
    let names: Vec<_> = (1..=5).map(|sequence| name(permits(2), sequence)).collect();
    let queue = queue(&names);
    assert!(holds(&queue, &names[0]) && holds(&queue, &names[1]));
    assert_eq!(watched(&queue, &names[2]), [names[1].clone(), names[0].clone()]);
    assert_eq!(watched(&queue, &names[4]), [names[3].clone(), names[2].clone()]);
}

#[test]
fn permits_behind_a_writer_are_no_herd() {
    let mut names = vec![name(Mode::Exclusive, 0)];
    names.extend((1..=4).map(|sequence| name(permits(2), sequence)));
    let queue = queue(&names);
    assert_eq!(watched(&queue, &names[2]), [names[0].clone()]);
    assert_eq!(watched(&queue, &names[3]), [names[2].clone(), names[1].clone()]);
}

#[test]
fn of_two_numbers_of_permits_the_later_is_told() {
    let names = [name(permits(3), 1), name(Mode::Shared, 2), name(permits(5), 3), name(permits(3), 4)];
    let queue = queue(&names);
    assert_eq!(queue.other_permits(&names[0]), None);
    assert_eq!(queue.other_permits(&names[1]), None);
    assert_eq!(queue.other_permits(&names[2]), NonZeroU32::new(3));
    assert_eq!(queue.other_permits(&names[3]), NonZeroU32::new(5));
    assert_eq!(queue.other_permits("missing"), None);
}

fn modes() -> impl Strategy<Value = Mode> {
    prop_oneof![Just(Mode::Exclusive), Just(Mode::Shared), (1u32..5).prop_map(permits)]
}

/// The name of some client's contender, without its sequence number.
fn prefixes(modes: impl Strategy<Value = Mode>) -> impl Strategy<Value = String> {
    prop_oneof![
        6 => modes.prop_map(|mode| id(7).prefix(Dialect::Curator, mode)),
        1 => Just("x--72057594037927936-".to_owned()),
        1 => Just("5f2d4e0c9b7a4c1f8e3d2b1a0f9e8d7c__rlock__".to_owned()),
        1 => Just("_c_2a9f0cc5-5b46-4a0c-9ac9-4a1d5b3d0c1e-__WRIT__".to_owned()),
    ]
}

fn children() -> impl Strategy<Value = Vec<String>> {
    let numbered =
        |prefixes: Vec<String>| prefixes.iter().zip(0..).map(|(prefix, n)| format!("{prefix}{n:010}")).collect();
    prop::collection::vec(prefixes(modes()), 1..30).prop_map(numbered)
}

#[derive(Clone, Debug)]
enum Step {
    Arrive(String),
    Leave(prop::sample::Index),
}

fn steps(modes: impl Strategy<Value = Mode>) -> impl Strategy<Value = Vec<Step>> {
    let arrive = prefixes(modes).prop_map(Step::Arrive);
    let leave = any::<prop::sample::Index>().prop_map(Step::Leave);
    prop::collection::vec(prop_oneof![3 => arrive, 2 => leave], 1..60)
}

/// Lets contenders come and go, each deciding when it arrives and when one of its watches
/// fires and at no other time; `check` sees each departure.
fn run(steps: Vec<Step>, check: impl Fn(&Departure) -> Result<(), TestCaseError>) -> Result<(), TestCaseError> {
    let mut names: Vec<String> = Vec::new();
    let mut watches: HashMap<String, Vec<String>> = HashMap::new();
    for (sequence, step) in steps.into_iter().enumerate() {
        match step {
            Step::Arrive(prefix) => {
                let name = format!("{prefix}{sequence:010}");
                names.push(name.clone());
                watches.insert(name.clone(), watched(&queue(&names), &name));
            }
            Step::Leave(_) if names.is_empty() => {}
            Step::Leave(index) => {
                let before = queue(&names);
                let gone = names.remove(index.index(names.len()));
                let after = queue(&names);
                watches.remove(&gone);
                let woken: Vec<_> = names.iter().filter(|name| watches[*name].contains(&gone)).cloned().collect();
                for name in &woken {
                    watches.insert(name.clone(), watched(&after, name));
                }
                check(&Departure { before, gone, after, woken })?;
            }
        }
    }
    Ok(())
}

struct Departure {
    before: Queue,
    gone: String,
    after: Queue,
    woken: Vec<String>,
}

proptest! {
    #[test]
    fn every_new_holder_is_woken(steps in steps(modes())) {
        run(steps, |departure| {
            for contender in departure.after.contenders() {
                let held = holds(&departure.before, &contender.name);
                let holds = holds(&departure.after, &contender.name);
                prop_assert!(!held || holds, "{} lost the lock", contender.name);
                let woken = departure.woken.iter().any(|name| contender.name == name.as_str());
                prop_assert!(held || !holds || woken, "{} slept", contender.name);
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_released_lock_wakes_the_next_holders_only(steps in steps(modes())) {
        run(steps, |departure| {
            let first = &departure.before.contenders()[0];
            if first.name == departure.gone.as_str() && first.mode == Mode::Exclusive {
                for name in &departure.woken {
                    prop_assert!(holds(&departure.after, name), "{name} woken for nothing");
                }
            }
            Ok(())
        })?;
    }

    #[test]
    fn a_released_permit_wakes_at_most_n(steps in steps(Just(permits(3)))) {
        run(steps, |departure| {
            let has_permits = |name: &&String| Contender::parse(&name.as_str().into()).unwrap().mode == permits(3);
            if has_permits(&&departure.gone) {
                prop_assert!(departure.woken.iter().filter(has_permits).count() <= 3);
            }
            Ok(())
        })?;
    }

    #[test]
    fn exclusion(names in children()) {
        let queue = queue(&names);
        let holders: Vec<_> = queue
            .standings()
            .filter(|(_, standing)| matches!(standing, Standing::Holds))
            .map(|(contender, _)| contender)
            .collect();
        prop_assert_eq!(holders.first().copied(), queue.first_holder());
        prop_assert!(!holders.is_empty());
        if holders.iter().any(|holder| holder.mode == Mode::Exclusive) {
            prop_assert_eq!(holders.len(), 1);
        }
        for count in 1..5 {
            let alike = holders.iter().filter(|holder| holder.mode == permits(count)).count();
            prop_assert!(alike <= count as usize);
        }
    }

    #[test]
    fn watches_are_necessary_and_sufficient(names in children()) {
        let all = queue(&names);
        for (contender, standing) in all.standings() {
            if names.iter().filter(|name| contender.name == name.as_str()).count() == 1 {
                prop_assert_eq!(&all.standing(&contender.name), &standing);
            }
            let Standing::Waits { watch, .. } = standing else { continue };
            let mut few: Vec<_> = watch.iter().map(|other| other.name.to_string()).collect();
            few.push(contender.name.to_string());
            prop_assert!(!holds(&queue(&few), &contender.name));
            for left_out in 0..watch.len() {
                let mut fewer = few.clone();
                fewer.remove(left_out);
                prop_assert!(holds(&queue(&fewer), &contender.name));
            }
        }
    }

    #[test]
    fn the_order_of_the_list_does_not_matter(mut names in children(), turn in 0usize..30) {
        let sorted = queue(&names);
        let turn = turn % names.len();
        names.rotate_left(turn);
        prop_assert_eq!(queue(&names), sorted);
    }
}
