use super::*;
use crate::rules::offer::Descriptor;

const LENDER: ProcessIdentity = ProcessIdentity { pid: 7, started: 1 };
const SESSION: i64 = -7;
const SUPERVISOR: u32 = 9;

/// Runs above us, by the pids of their supervisors.
struct Above {
    runs: Vec<(u32, Result<Lent, Unlent>)>,
    is_above: Option<bool>,
}

impl Processes for Above {
    type Lender = u32;

    fn open(&self, offer: Offer) -> Result<(Lent, u32), Unlent> {
        let (pid, lent) = self.runs.iter().find(|(pid, _)| *pid == offer.lender.pid).unwrap();
        Ok((lent.clone()?, *pid))
    }

    fn is_above(&self, _: ProcessIdentity, _: u32) -> Option<bool> {
        self.is_above
    }
}

fn offer(pid: u32) -> Offer {
    let lender = ProcessIdentity { pid, ..LENDER };
    let descriptor = Descriptor { number: 5, inode: 6 };
    Offer { lender, root: lender, pipe: descriptor, page: descriptor }
}

fn granted(lock: &str, token: i64) -> GrantedLock {
    GrantedLock { lock: lock.to_owned(), node: format!("{lock}/node"), token }
}

fn lent(mode: Mode, locks: &[&str]) -> Lent {
    let locks = locks.iter().zip(1..).map(|(lock, token)| granted(lock, token)).collect();
    Lent { servers: vec!["zk1:2181".to_owned()], session: SESSION, mode, locks }
}

/// What comes of wanting these locks below runs that lend this, in the order of their pids.
fn borrow(wanted: &[&str], mode: Mode, is_once_per: bool, runs: &[Lent]) -> Loans<u32> {
    let runs: Vec<_> = (1..).zip(runs.iter().cloned().map(Ok)).collect();
    let offers: Vec<_> = runs.iter().map(|(pid, _)| offer(*pid)).collect();
    let locks: Vec<_> = wanted.iter().map(|lock| LockPath::parse(lock, "/app").unwrap()).collect();
    let servers = vec!["zk1:2181".to_owned()];
    let demand = Demand { servers, chroot: "/app", locks: locks.iter().collect(), mode, is_once_per };
    demand.borrow(&offers, SUPERVISOR, &Above { runs, is_above: Some(true) })
}

#[track_caller]
fn expect_all(loans: Loans<u32>, locks: &[GrantedLock], from: u32) {
    let Loans::All { grant, lender } = loans else { panic!("{loans:?}") };
    assert_eq!((grant.all().collect::<Vec<_>>(), grant.session), (locks.iter().collect(), SESSION));
    assert_eq!(lender, from);
}

#[track_caller]
fn expect_unfit(loans: Loans<u32>, lock: &str, why: Unfit) {
    let Loans::Unfit { lock: unfit, why: because } = loans else { panic!("{loans:?}") };
    assert_eq!((&*unfit, because), (lock, why));
}

#[test]
fn what_is_lent_is_used_below_any_chroot() {
    let mut outer = [lent(Mode::Exclusive, &["/app/a", "/app/b"])];
    expect_all(borrow(&["/b"], Mode::Exclusive, false, &outer), &[granted("/b", 2)], 1);
    let Loans::Nothing(seen) = borrow(&["/app/a"], Mode::Exclusive, false, &outer) else { panic!() };
    assert_eq!(seen, [(offer(1), Ok(SESSION))]);
    outer[0].servers = vec!["zk2:2181".to_owned()];
    let Loans::Nothing(_) = borrow(&["/b"], Mode::Exclusive, false, &outer) else { panic!() };
}

#[test]
fn one_run_lends_all() {
    let runs = [lent(Mode::Exclusive, &["/app/a", "/app/b"]), lent(Mode::Exclusive, &["/app/c"])];
    expect_all(borrow(&["/b", "/a"], Mode::Exclusive, false, &runs), &[granted("/b", 2), granted("/a", 1)], 1);
    expect_all(borrow(&["/c"], Mode::Exclusive, false, &runs), &[granted("/c", 1)], 2);
    for other in ["/c", "/d"] {
        let loans = borrow(&["/a", other], Mode::Exclusive, false, &runs);
        expect_unfit(loans, "/a", Unfit::PartlyLent(other.to_owned()));
    }
}

#[test]
fn what_cannot_be_used_as_wanted() {
    let outer = [lent(Mode::Shared, &["/app/a"])];
    expect_unfit(borrow(&["/a"], Mode::Exclusive, false, &outer), "/a", Unfit::Upgrade(Mode::Shared));
    expect_all(borrow(&["/a"], Mode::Shared, false, &outer), &[granted("/a", 1)], 1);
    let outer = [lent(Mode::Exclusive, &["/app/a"])];
    expect_unfit(borrow(&["/a"], Mode::Exclusive, true, &outer), "/a", Unfit::OncePerLent);
}

/// What a run lends is what a run below understands.
#[test]
fn what_is_lent_as_all_versions_read_it() {
    let text = r#"{"servers":["zk1:2181"],"session":-7,"mode":"shared","locks":[{"lock":"/app/a","node":"/app/a/node","token":1}]}"#;
    let outer = lent(Mode::Shared, &["/app/a"]);
    assert_eq!(serde_json::to_string(&outer).unwrap(), text);
    let later = text.replace(r#""session""#, r#""later":1,"session""#);
    assert_eq!(serde_json::from_str::<Lent>(&later).unwrap(), outer);
    let lock = LockPath::parse("/a", "/app").unwrap();
    let demand = Demand {
        servers: outer.servers.clone(),
        chroot: "/app",
        locks: vec![&lock],
        mode: Mode::Shared,
        is_once_per: false,
    };
    let grant = Grant { first: granted("/a", 1), and: vec![], session: SESSION };
    assert_eq!(demand.lent(&grant), outer);
}

/// The card of a run on this machine, and our own.
fn cards() -> (Card, Card) {
    let own = Card { pid_ns: Some(4), time_ns: Some(5), boot_id: Some("this one".to_owned()), ..Card::default() };
    (Card { pid: Some(LENDER.pid), started: Some(LENDER.started), ..own.clone() }, own)
}

/// What keeps us from waiting for this holder: by its name in our environment, and without.
fn barriers(card: &Card, own: &Card, seen: &[Seen], is_above: Option<bool>) -> [Option<Barrier>; 2] {
    [true, false].map(|is_named| {
        let holder = HolderNode { card, owner: SESSION, is_named };
        barrier(&holder, own, SUPERVISOR, seen, &Above { runs: vec![], is_above })
    })
}

#[test]
fn nobody_waits_for_a_run_above() {
    let (card, own) = cards();
    let unnamed = barriers(&card, &own, &[], Some(true));
    assert_eq!(unnamed, [Some(Barrier::NoOffer); 2]);
    assert_eq!(barriers(&card, &own, &[], Some(false)), [None; 2]);
    assert_eq!(barriers(&card, &own, &[], None), [Some(Barrier::Foreign), None]);
    for (seen, expected) in [
        (Ok(SESSION), Some(Barrier::Servers)),
        // A copy of its card, in a node of another session.
        (Ok(SESSION + 1), None),
        (Err(Unlent::Over), None),
        (Err(Unlent::Barred(Barrier::Version)), Some(Barrier::Version)),
    ] {
        assert_eq!(barriers(&card, &own, &[(offer(LENDER.pid), seen)], Some(true)), [expected; 2], "{seen:?}");
    }
}

#[test]
fn what_cannot_be_compared_may_be_above_us_if_our_environment_says_so() {
    let (card, own) = cards();
    let seen = [(offer(LENDER.pid), Err(Unlent::Over))];
    for own in [
        Card { boot_id: None, ..own.clone() },
        Card { pid_ns: Some(1), ..own.clone() },
        Card { time_ns: Some(1), ..own.clone() },
    ] {
        assert_eq!(barriers(&card, &own, &seen, Some(false)), [Some(Barrier::Foreign), None], "{own:?}");
    }
    let strangers = [
        Card::default(),
        Card { boot_id: None, ..card.clone() },
        Card { boot_id: Some("that of another machine".to_owned()), pid_ns: Some(1), ..card.clone() },
        Card { started: None, ..card.clone() },
    ];
    for stranger in strangers {
        assert_eq!(barriers(&stranger, &own, &[], Some(true)), [None; 2], "{stranger:?}");
    }
    // Before Linux 5.6.
    assert_eq!(barriers(&Card { time_ns: None, ..card }, &own, &[], Some(true)), [Some(Barrier::NoOffer); 2]);
}

#[test]
fn an_earlier_node_of_our_own_is_no_run_above() {
    let (card, own) = cards();
    assert_eq!(barriers(&Card { pid: Some(SUPERVISOR), ..card }, &own, &[], Some(true)), [None; 2]);
}

/// Which runs are above us may not be seen.
#[test]
fn nothing_is_borrowed_from_what_is_not_above() {
    let lock = LockPath::parse("/app/a", "").unwrap();
    let servers = vec!["zk1:2181".to_owned()];
    let demand = Demand { servers, chroot: "", locks: vec![&lock], mode: Mode::Exclusive, is_once_per: false };
    for (is_above, unlent) in [(Some(false), Unlent::Over), (None, Unlent::Barred(Barrier::Foreign))] {
        let above = Above { runs: vec![(7, Ok(lent(Mode::Exclusive, &["/app/a"])))], is_above };
        let Loans::Nothing(seen) = demand.borrow(&[offer(7)], SUPERVISOR, &above) else { panic!() };
        assert_eq!(seen, [(offer(7), Err(unlent))]);
    }
}
