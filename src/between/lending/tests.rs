use std::os::unix::fs::FileExt as _;
use std::sync::Mutex;
use std::thread;

use super::*;
use crate::between::page::Page;
use crate::rules::instant::Instant;
use crate::rules::lease::Terms;
use crate::rules::message::GrantedLock;
use crate::rules::mode::Mode;

/// A run that lends something to what is below this process, and what it tells.
fn lending() -> (Lending, Offer, Page) {
    let (page, file) = Page::new().unwrap();
    let lending = Lending::new(file).unwrap();
    let offer = lending.offer(lending.lender(), &lent()).unwrap();
    (lending, offer, page)
}

fn lent() -> Lent {
    let lock = GrantedLock { lock: "/app/l".to_owned(), node: "/app/l/ü-0000000001".to_owned(), token: -1 };
    Lent { servers: vec!["zk1:2181".to_owned()], session: i64::MIN, mode: Mode::Shared, locks: vec![lock] }
}

fn borrow(offer: Offer) -> Result<Lender, Unlent> {
    Proc.open(offer).map(|(_, lender)| lender)
}

/// Waits until nobody borrows. That comes a little late where another test has just forked: until a child executes its
/// program, it has copies of all descriptors.
#[track_caller]
fn expect_over(lending: &Lending) {
    let mut fds = [PollFd::new(lending.awaited().unwrap(), PollFlags::empty())];
    assert_eq!(poll(&mut fds, PollTimeout::from(10_000_u16)), Ok(1));
    assert!(lending.is_over());
}

#[test]
fn the_lender_knows_when_the_last_borrower_is_done() {
    let (lending, offer, _) = lending();
    let (one, two) = (borrow(offer).unwrap(), borrow(offer).unwrap());
    assert!(!lending.is_over());
    lending.close_door();
    drop(one);
    // What is borrowed stays so, although nothing more is lent.
    assert!(!two.is_lost() && !lending.is_over());
    drop(two);
    expect_over(&lending);
}

#[test]
fn what_is_borrowed_is_lost_with_the_lender_or_by_its_word() {
    for dies in [true, false] {
        let (lending, offer, _) = lending();
        let lender = borrow(offer).unwrap();
        assert!(!lender.is_lost());
        if dies {
            drop(lending);
            // A fork of another test may have a copy of its end for a moment.
            let mut fds = [PollFd::new(lender.pipe.as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut fds, PollTimeout::from(10_000_u16)), Ok(1));
        } else {
            lending.call_in();
            assert!(!lending.is_over());
        }
        assert!(lender.is_lost());
        assert_eq!(borrow(offer).err(), Some(Unlent::Over));
    }
}

/// The keeper of `zklock hold` has called in what was lent, and has no door to close.
#[test]
fn nothing_is_borrowed_once_it_was_called_in() {
    let (lending, offer, _) = lending();
    let _lender = borrow(offer).unwrap();
    let door = lending.door.take();
    lending.call_in();
    lending.door.replace(door);
    assert_eq!(borrow(offer).err(), Some(Unlent::Barred(Barrier::CalledIn)));
}

#[test]
fn a_borrower_sees_the_lease_and_what_is_lent() {
    let (_lending, offer, page) = lending();
    let (lent, lender) = Proc.open(offer).unwrap();
    assert_eq!((lent, lender.lease.span()), (self::lent(), None));
    let span = Terms::span(std::time::Duration::from_secs(10), Instant::from_boot(std::time::Duration::from_secs(1)));
    page.write_lease(span);
    assert_eq!(lender.lease.span(), Some(span));
    page.revoke();
    assert!(lender.lease.is_revoked());
}

#[test]
fn nothing_is_borrowed_after_the_end() {
    let (lending, offer, _) = lending();
    lending.close_door();
    expect_over(&lending);
    assert_eq!(borrow(offer).err(), Some(Unlent::Over));
}

#[test]
fn an_offer_that_does_not_stand() {
    let (_lending, offer, _) = lending();
    let (_other, offer_of_other, _) = lending();
    let ProcessIdentity { pid, started } = offer.lender;
    let gone = ProcessIdentity { pid: 4_194_305, started };
    let forged = [
        Offer { lender: gone, ..offer },
        Offer { lender: ProcessIdentity { pid, started: started + 1 }, ..offer },
        Offer { lender: ProcessIdentity { pid: u32::MAX, started }, ..offer },
        Offer { pipe: Descriptor { number: offer_of_other.pipe.number, ..offer.pipe }, ..offer },
        Offer { pipe: Descriptor { number: u32::MAX, ..offer.pipe }, ..offer },
        Offer { pipe: Descriptor { inode: offer.pipe.inode + 1, ..offer.pipe }, ..offer },
        Offer { page: Descriptor { number: offer_of_other.page.number, ..offer.page }, ..offer },
    ];
    for forged in forged {
        assert_eq!(borrow(forged).err(), Some(Unlent::Over), "{forged}");
    }
    assert!(borrow(offer).is_ok());
}

/// What zklock would map is a page, and stays one.
#[test]
fn a_page_that_is_no_page() {
    let (lending, offer, _) = lending();
    let fails = |outcome: io::Result<()>| outcome.unwrap_err().raw_os_error() == Some(libc::EPERM);
    assert!(fails(lending.page.set_len(4096)));
    lending.page.write_all_at(&2_u64.to_ne_bytes(), 0).unwrap();
    assert_eq!(borrow(offer).err(), Some(Unlent::Barred(Barrier::Version)));
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&[1], 1 << 16).unwrap();
    let page = Descriptor { number: file.as_raw_fd().cast_unsigned(), inode: file.metadata().unwrap().ino() };
    assert_eq!(borrow(Offer { page, ..offer }).err(), Some(Unlent::Barred(Barrier::Version)));
}

/// A run borrows at the moment at which the lender ends. Without the second look, a few in ten thousand borrow although
/// the lender has seen that nobody does.
#[test]
fn nothing_is_borrowed_once_the_lender_has_looked() {
    const ROUNDS: u32 = 3_000;
    let offered = Mutex::new(None::<Offer>);
    let result = Mutex::new(None::<Result<Lender, Unlent>>);
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
                let borrowed = borrow(taken(&offered));
                *result.lock().unwrap() = Some(borrowed);
            }
        });
        let mut delay = 0_u32;
        for _ in 0..ROUNDS {
            let (lending, offer, _) = lending();
            *offered.lock().unwrap() = Some(offer);
            (0..delay).for_each(|_| std::hint::spin_loop());
            lending.close_door();
            let is_over = lending.is_over();
            let borrowed = taken(&result);
            let is_lent = borrowed.is_ok();
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
