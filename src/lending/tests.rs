use std::sync::Mutex;
use std::thread;

use super::*;
use crate::rules::card::Card;
use crate::rules::lender::{Barrier, Loan};

fn borrowing(offer: Offer) -> Borrowing {
    let mut borrowing = Borrowing::new(&[offer]);
    borrowing.borrow();
    borrowing
}

/// Why the pipe of this offer cannot be opened, if it cannot.
fn unlent(offer: Offer) -> Option<Unlent> {
    let Offer { descriptor, inode, .. } = offer;
    Proc.open_to_write(End { process: offer.source(), descriptor, inode }).err()
}

/// Waits for the hang-up. It comes a little late where another test has just forked: until a child executes its
/// program, it has copies of all descriptors.
#[track_caller]
fn expect_over(lending: &Lending) {
    let mut fds = [PollFd::new(lending.as_fd(), PollFlags::empty())];
    assert_eq!(poll(&mut fds, PollTimeout::from(10_000_u16)), Ok(1));
    assert!(lending.is_over());
}

/// To what is below this process.
fn offer(lending: &Lending) -> Offer {
    lending.offer(this(), None)
}

fn this() -> Lender {
    let pid = std::process::id();
    Lender { pid, started: descendants::started(pid).unwrap().unwrap() }
}

#[test]
fn the_pipe_hangs_up_when_the_last_borrower_is_done() {
    let lending = Lending::begin().unwrap();
    assert!(!lending.is_over());
    let (mut one, two) = (borrowing(offer(&lending)), borrowing(offer(&lending)));
    assert_eq!([one.descriptors().len(), two.descriptors().len()], [1, 1]);
    assert!(!lending.end());
    one.give_back();
    assert!(!lending.is_over());
    // What is borrowed stays so, although nothing more is lent.
    let mut two = two;
    two.borrow();
    assert!(!lending.is_over());
    drop(two);
    expect_over(&lending);
}

#[test]
fn a_pledge_outlives_a_borrower_that_does_not_redeem_it() {
    for redeems in [false, true] {
        let lending = Lending::begin().unwrap();
        let (dies, lives) = (borrowing(offer(&lending)), borrowing(offer(&lending)));
        for borrower in [&dies, &lives] {
            borrower.pledge().unwrap();
        }
        lending.end();
        if redeems {
            dies.redeem();
        }
        drop(dies);
        assert!(!lending.is_over());
        lives.redeem();
        drop(lives);
        expect_over(&lending);
        assert_eq!(lending.has_pledge(), !redeems);
    }
}

#[test]
fn nothing_is_borrowed_after_the_end() {
    let lending = Lending::begin().unwrap();
    lending.end();
    expect_over(&lending);
    assert_eq!(unlent(offer(&lending)), Some(Unlent::Over));
    assert!(borrowing(offer(&lending)).descriptors().is_empty());
}

#[test]
fn an_offer_that_does_not_stand() {
    let lending = Lending::begin().unwrap();
    let offer = self::offer(&lending);
    let other = Lending::begin().unwrap();
    let offer_of_other = self::offer(&other);
    let Lender { pid, started } = offer.lender;
    let gone = Lender { pid: 4_194_305, started };
    let forged = [
        Offer { lender: gone, ..offer },
        Offer { lender: Lender { pid, started: started + 1 }, ..offer },
        Offer { lender: Lender { pid: u32::MAX, started }, ..offer },
        Offer { descriptor: offer_of_other.descriptor, ..offer },
        Offer { descriptor: u32::MAX, ..offer },
        Offer { inode: offer.inode + 1, ..offer },
    ];
    for forged in forged {
        assert_eq!(unlent(forged), Some(Unlent::Over), "{forged}");
    }
    assert_eq!(unlent(offer), None);
}

/// A run borrows at the moment at which the lender ends. Without the second look, a few in ten thousand borrow although
/// the lender has seen the hang-up.
#[test]
fn nothing_is_borrowed_after_the_hang_up() {
    const ROUNDS: u32 = 3_000;
    let offered = Mutex::new(None::<Offer>);
    let result = Mutex::new(None::<Borrowing>);
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
            let is_over = lending.end();
            let borrowed = taken(&result);
            let is_lent = !borrowed.descriptors().is_empty();
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

fn card(lender: Lender) -> Card {
    Card {
        pid: Some(lender.pid),
        started: Some(lender.started),
        pid_ns: descendants::pid_namespace(),
        time_ns: descendants::time_namespace(),
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
    let judge = |borrowing: &Borrowing, holder: &Card| borrowing.loans().judge(holder, &own, nested, &Proc);

    let holder = card(offer.lender);
    assert_eq!(judge(&borrowed, &holder), Loan::Lent(offer.lender));
    let none = Borrowing::new(&[]);
    assert_eq!(judge(&none, &holder), Loan::OutOfReach(Barrier::NoOffer));

    let strangers = [
        Card::default(),
        Card { boot_id: None, ..holder.clone() },
        Card { boot_id: Some("that of another machine".to_owned()), pid_ns: Some(1), ..holder.clone() },
        Card { started: None, ..holder.clone() },
        Card { started: holder.started.map(|started| started + 1), ..holder.clone() },
        // Not above the nested run, but that run itself.
        card(Lender { pid: nested, started: descendants::started(nested).unwrap().unwrap() }),
    ];
    for stranger in strangers {
        assert_eq!(judge(&borrowed, &stranger), Loan::Stranger, "{stranger:?}");
    }
    let masked = Card { boot_id: None, ..own.clone() };
    assert_eq!(borrowed.loans().judge(&holder, &masked, nested, &Proc), Loan::OutOfReach(Barrier::NoProc));
    let elsewhere = borrowing(Offer { root: Lender { pid: u32::MAX, started: 1 }, ..offer });
    assert_eq!(judge(&elsewhere, &holder), Loan::Stranger);
    let container = Card { pid_ns: Some(1), ..holder.clone() };
    assert_eq!(judge(&borrowed, &container), Loan::OutOfReach(Barrier::Foreign));
    // Its start is counted from another boot.
    let elsewhen = Card { time_ns: Some(1), started: Some(0), ..holder.clone() };
    let elsewhen = borrowed.loans().judge(&elsewhen, &Card { time_ns: Some(2), ..own.clone() }, nested, &Proc);
    assert_eq!(elsewhen, Loan::OutOfReach(Barrier::Foreign));
    // Before Linux 5.6, or an older zklock.
    assert_eq!(judge(&borrowed, &Card { time_ns: None, ..holder.clone() }), Loan::Lent(offer.lender));

    borrowed.give_back();
    assert_eq!(judge(&borrowed, &holder), Loan::Over);
    sleep.kill().unwrap();
    sleep.wait().unwrap();
}
