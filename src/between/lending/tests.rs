use crate::system::namespaces;
use std::sync::Mutex;
use std::thread;

use super::*;
use crate::rules::card::Card;
use crate::rules::offer::{Barrier, Loan};

fn borrowing(offer: Offer) -> BorrowedPipes {
    let mut borrowing = BorrowedPipes::new(&[offer]);
    borrowing.borrow(&Proc);
    borrowing
}

/// Waits until nobody borrows. That comes a little late where another test has just forked: until a child executes its
/// program, it has copies of all descriptors.
#[track_caller]
fn expect_over(lending: &Lending) {
    let mut fds = [PollFd::new(lending.awaited().unwrap(), PollFlags::empty())];
    assert_eq!(poll(&mut fds, PollTimeout::from(10_000_u16)), Ok(1));
    assert!(lending.is_over());
}

/// To what is below this process.
fn offer(lending: &Lending) -> Offer {
    lending.offer(this(), SESSION).unwrap()
}

/// To which the nodes of a lender belong.
const SESSION: i64 = -7;

fn this() -> ProcessIdentity {
    let pid = std::process::id();
    ProcessIdentity { pid, started: process::started(pid).unwrap().unwrap() }
}

#[test]
fn the_lender_knows_when_the_last_borrower_is_done() {
    let lending = Lending::begin().unwrap();
    let (one, mut two) = (borrowing(offer(&lending)), borrowing(offer(&lending)));
    assert_eq!([one.pipes().count(), two.pipes().count()], [1, 1]);
    assert!(!lending.is_over());
    lending.end();
    drop(one);
    assert!(!lending.is_over());
    // What is borrowed stays so, although nothing more is lent.
    two.borrow(&Proc);
    assert!(!two.is_lost(&Proc) && !lending.is_over());
    drop(two);
    expect_over(&lending);
}

#[test]
fn what_is_borrowed_is_lost_with_the_lender_or_by_its_word() {
    for dies in [true, false] {
        let lending = Lending::begin().unwrap();
        let mut borrowing = borrowing(offer(&lending));
        assert!(!borrowing.is_lost(&Proc));
        if dies {
            drop(lending);
            // A fork of another test may have a copy of its end for a moment.
            let mut fds = [PollFd::new(borrowing.pipes().next().unwrap().as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut fds, PollTimeout::from(10_000_u16)), Ok(1));
        } else {
            lending.call_in();
            assert!(!lending.is_over());
        }
        assert!(borrowing.is_lost(&Proc));
        borrowing.borrow(&Proc);
        assert_eq!(borrowing.pipes().count(), 0);
    }
}

#[test]
fn nothing_is_borrowed_after_the_end() {
    let lending = Lending::begin().unwrap();
    let offer = offer(&lending);
    lending.end();
    expect_over(&lending);
    assert_eq!(Proc.open(offer).err(), Some(Unlent::Over));
}

#[test]
fn an_offer_that_does_not_stand() {
    let lending = Lending::begin().unwrap();
    let offer = self::offer(&lending);
    let other = Lending::begin().unwrap();
    let offer_of_other = self::offer(&other);
    let ProcessIdentity { pid, started } = offer.lender;
    let gone = ProcessIdentity { pid: 4_194_305, started };
    let forged = [
        Offer { lender: gone, ..offer },
        Offer { lender: ProcessIdentity { pid, started: started + 1 }, ..offer },
        Offer { lender: ProcessIdentity { pid: u32::MAX, started }, ..offer },
        Offer { descriptor: offer_of_other.descriptor, ..offer },
        Offer { descriptor: u32::MAX, ..offer },
        Offer { inode: offer.inode + 1, ..offer },
    ];
    for forged in forged {
        assert_eq!(Proc.open(forged).err(), Some(Unlent::Over), "{forged}");
    }
    assert!(Proc.open(offer).is_ok());
}

/// A run borrows at the moment at which the lender ends. Without the second look, a few in ten thousand borrow although
/// the lender has seen that nobody does.
#[test]
fn nothing_is_borrowed_once_the_lender_has_looked() {
    const ROUNDS: u32 = 3_000;
    let offered = Mutex::new(None::<Offer>);
    let result = Mutex::new(None::<BorrowedPipes>);
    // Waiting by a system call would take longer than the race.
    fn taken<T>(place: &Mutex<Option<T>>) -> T {
        loop {
            if let Some(what) = place.lock().unwrap().take() {
                return what;
            }
            std::hint::spin_loop();
        }
    }
    let (mut lent, mut over, mut both) = (0, 0, 0);
    thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..ROUNDS {
                let borrowed = borrowing(taken(&offered));
                *result.lock().unwrap() = Some(borrowed);
            }
        });
        let mut delay = 0_u32;
        for _ in 0..ROUNDS {
            let lending = Lending::begin().unwrap();
            *offered.lock().unwrap() = Some(offer(&lending));
            (0..delay).for_each(|_| std::hint::spin_loop());
            lending.end();
            let is_over = lending.is_over();
            let borrowed = taken(&result);
            let is_lent = borrowed.pipes().count() > 0;
            (lent, over, both) =
                (lent + u32::from(is_lent), over + u32::from(is_over), both + u32::from(is_lent && is_over));
            drop(borrowed);
            expect_over(&lending);
            // The next time, closer to the moment at which one of the two is just the first.
            delay = if is_lent { delay.saturating_sub(5) } else { delay + 5 };
        }
    });
    assert_eq!(both, 0, "{lent} {over}");
    assert!(lent > ROUNDS / 100 && over > ROUNDS / 100, "{lent} {over}");
}

fn card(lender: ProcessIdentity) -> Card {
    Card {
        pid: Some(lender.pid),
        started: Some(lender.started),
        pid_ns: namespaces::pid_namespace(),
        time_ns: namespaces::time_namespace(),
        boot_id: boot_id(),
        ..Card::default()
    }
}

#[test]
fn who_lends_us_a_lock() {
    let lending = Lending::begin().unwrap();
    let offer = self::offer(&lending);
    let mut sleep = std::process::Command::new("sleep").arg("60").spawn().unwrap();
    let (own, nested) = (Card { host: Some("db3".to_owned()), ..card(this()) }, sleep.id());
    let mut borrowed = borrowing(offer);
    let judge = |borrowing: &BorrowedPipes, holder: &Card| borrowing.judge(holder, SESSION, &own, nested, &Proc);

    let holder = card(offer.lender);
    assert_eq!(judge(&borrowed, &holder), Loan::Lent(offer.lender));
    // Its card, in a node of another session.
    assert_eq!(borrowed.judge(&holder, SESSION + 1, &own, nested, &Proc), Loan::Stranger);
    let none = BorrowedPipes::new(&[]);
    assert_eq!(judge(&none, &holder), Loan::OutOfReach(Barrier::NoOffer));

    let strangers = [
        Card::default(),
        Card { boot_id: None, ..holder.clone() },
        Card { boot_id: Some("that of another machine".to_owned()), pid_ns: Some(1), ..holder.clone() },
        Card { started: None, ..holder.clone() },
        Card { started: holder.started.map(|started| started + 1), ..holder.clone() },
    ];
    for stranger in strangers {
        assert_eq!(judge(&borrowed, &stranger), Loan::Stranger, "{stranger:?}");
    }
    let masked = Card { boot_id: None, ..own.clone() };
    assert_eq!(borrowed.judge(&holder, SESSION, &masked, nested, &Proc), Loan::OutOfReach(Barrier::Foreign));
    let elsewhere = borrowing(Offer { root: ProcessIdentity { pid: u32::MAX, started: 1 }, ..offer });
    assert_eq!(judge(&elsewhere, &holder), Loan::Stranger);
    let container = Card { pid_ns: Some(1), ..holder.clone() };
    assert_eq!(judge(&borrowed, &container), Loan::OutOfReach(Barrier::Foreign));
    // Its start is counted from another boot.
    let elsewhen = Card { time_ns: Some(1), started: Some(0), ..holder.clone() };
    let elsewhen = borrowed.judge(&elsewhen, SESSION, &Card { time_ns: Some(2), ..own.clone() }, nested, &Proc);
    assert_eq!(elsewhen, Loan::OutOfReach(Barrier::Foreign));
    // Before Linux 5.6, or an older zklock.
    assert_eq!(judge(&borrowed, &Card { time_ns: None, ..holder.clone() }), Loan::Lent(offer.lender));

    borrowed.keep(&[]);
    assert_eq!(judge(&borrowed, &holder), Loan::Over);
    sleep.kill().unwrap();
    sleep.wait().unwrap();
}
