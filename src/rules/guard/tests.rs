use super::*;

fn at(millis: u64) -> Instant {
    Instant::from_boot(Duration::from_millis(millis))
}

/// What is outside of a guard whose children never end.
struct World {
    now: Instant,
    limits: Limits,
    has_lost_lender: bool,
    requests: Vec<GuardRequest>,
    /// Children end faster than they can be reaped.
    is_storm: bool,
    /// Nothing that is killed ends.
    is_immortal: bool,
    /// How many more come up, one each time that the children are killed.
    orphans: usize,
    found: usize,
    reaped: u32,
    /// How long it takes to kill all children, and what is below them.
    work: Duration,
    /// How many times SIGKILL went to all children, and to what is below.
    kills: u32,
    deep_kills: u32,
    signs: Vec<Sign>,
    /// When the kernel continues a guard that is suspended, and when it kills it.
    timers: Option<(Instant, Instant)>,
    /// Whether the guard shares its processor with other processes.
    shares_processor: bool,
}

impl World {
    fn new(requests: &[GuardRequest]) -> Self {
        Self {
            now: at(0),
            limits: Limits { kill_at: at(900), ends_at: at(1000) },
            has_lost_lender: false,
            requests: requests.to_vec(),
            is_storm: false,
            is_immortal: true,
            orphans: 0,
            found: 1,
            reaped: 0,
            work: Duration::ZERO,
            kills: 0,
            deep_kills: 0,
            signs: vec![],
            timers: None,
            shares_processor: false,
        }
    }

    /// Time passes, and the kernel's timer does not fire.
    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        assert!(
            self.timers.is_none_or(|(_, kill_at)| self.now < kill_at),
            "the kernel has killed it: {:?}",
            self.timers
        );
    }

    /// The next turn at this time: when the one after it is due.
    fn turn(&mut self, guard: &mut GuardRules, now: u64) -> Option<Instant> {
        self.pass(at(now).saturating_since(self.now));
        match guard.turn(self) {
            NextTurn::Wait(wake_at) => wake_at,
            NextTurn::Exit => panic!("it has something to do"),
        }
    }
}

impl GuardIo for World {
    fn now(&self) -> Instant {
        self.now
    }
    fn limits(&self) -> Limits {
        self.limits
    }
    fn has_lost_lender(&self) -> bool {
        self.has_lost_lender
    }
    fn disarm(&mut self) {}
    fn ended_by_itself(&self) -> bool {
        true
    }
    fn set_timers(&mut self, continue_at: Instant, kill_at: Instant) {
        self.timers = Some((continue_at, kill_at));
    }
    fn share_processor(&mut self, shares: bool) {
        self.shares_processor = shares;
    }
    fn reap(&mut self) -> GuardReaped {
        self.reaped += 1;
        assert!(self.reaped < 1_000_000, "it does nothing but reap");
        assert_eq!(self.shares_processor, self.kills > 0, "once it kills, and not before");
        match () {
            () if self.is_storm => GuardReaped::Other,
            () if self.is_immortal || self.kills == 0 => GuardReaped::NoMore,
            () if self.orphans == 0 => GuardReaped::NoneLeft,
            () => panic!("something is alive"),
        }
    }
    fn hear(&mut self) -> Heard {
        self.requests.pop().map_or(Heard::Nothing, Heard::Request)
    }
    fn show(&mut self, sign: Sign) {
        self.signs.push(sign);
    }
    fn wake_supervisor(&mut self) {}
    fn open_gate(&mut self) {}
    fn close_gate(&mut self) {}
    fn signal(&mut self, _: Signal, _: Targets) {}
    fn kill_children(&mut self) -> Children {
        self.kills += 1;
        self.pass(self.work);
        let rises = self.deep_kills > 0 && self.orphans > 0;
        (self.found, self.orphans) = (self.found + usize::from(rises), self.orphans - usize::from(rises));
        Children { number: self.found, have_ended: !self.is_immortal && self.orphans == 0 }
    }
    fn kill_below(&mut self) {
        self.deep_kills += 1;
        self.pass(self.work * 10);
    }
}

#[test]
fn a_lease_is_watched_until_it_demands_the_kill() {
    let (mut world, mut guard) = (World::new(&[]), GuardRules::default());
    assert_eq!(world.turn(&mut guard, 0), None);
    world.requests.push(GuardRequest::Open);
    assert_eq!(world.turn(&mut guard, 0), Some(at(125)));
    assert_eq!(world.turn(&mut guard, 800), Some(at(825)));
    assert_eq!(world.turn(&mut guard, 895), Some(at(900)));
    assert_eq!((world.timers, world.kills), (Some((at(900), at(1000))), 0));
    assert_eq!(world.turn(&mut guard, 900), Some(at(910)));
    assert_eq!(world.signs, [Sign::Stage(Stage::Open), Sign::LeaseOver, Sign::Stage(Stage::Killing)]);
    assert_eq!((world.kills, world.deep_kills), (2, 1));
    // An extension that comes too late saves the guard, which has not done yet, and not the command.
    world.limits = Limits { kill_at: at(1900), ends_at: at(2000) };
    assert_eq!(world.turn(&mut guard, 910), Some(at(930)));
    assert_eq!((world.kills, world.deep_kills), (4, 2));
    // Whoever suspends a guard that kills, it goes on.
    assert_eq!(world.timers, Some((at(920), at(2000))));
}

/// Whatever the lease of the lender is, for nobody extends it, and another may hold the lock.
#[test]
fn a_guard_kills_when_a_lender_is_lost() {
    let (mut world, mut guard) = (World::new(&[GuardRequest::Open]), GuardRules::default());
    assert_eq!((world.turn(&mut guard, 0), world.kills), (Some(at(125)), 0));
    world.has_lost_lender = true;
    assert_eq!(world.turn(&mut guard, 1), Some(at(11)));
    assert_eq!(world.signs, [Sign::Stage(Stage::Open), Sign::LeaseOver, Sign::Stage(Stage::Killing)]);
    assert!(world.kills > 0);
}

#[test]
fn a_guard_is_told_to_kill_whatever_the_lease() {
    let (mut world, mut guard) = (World::new(&[GuardRequest::Kill, GuardRequest::Open]), GuardRules::default());
    assert_eq!(world.turn(&mut guard, 0), Some(at(10)));
    // However often it is woken meanwhile.
    assert_eq!(world.turn(&mut guard, 3), Some(at(10)));
    assert_eq!(world.turn(&mut guard, 7), Some(at(10)));
    assert_eq!((world.kills, world.deep_kills), (6, 1));
    assert_eq!(world.turn(&mut guard, 11), Some(at(31)));
    assert_eq!(world.turn(&mut guard, 30), Some(at(31)));
    assert_eq!((world.kills, world.deep_kills), (10, 2));
}

/// The kernel may wait in waitpid(2) for a thread that needs the processor of this guard.
#[test]
fn all_are_killed_before_any_is_reaped() {
    let mut world = World { orphans: 20, ..World::new(&[GuardRequest::Kill]) };
    world.is_immortal = false;
    assert_eq!(GuardRules::default().turn(&mut world), NextTurn::Exit);
    assert_eq!((world.found, world.deep_kills, world.reaped), (21, 1, 1));
    // Not as long as one of them lives, until it is clear that it cannot be killed.
    let (mut world, mut guard) = (World::new(&[GuardRequest::Kill]), GuardRules::default());
    while world.reaped == 0 {
        let NextTurn::Wait(Some(wake_at)) = guard.turn(&mut world) else { panic!("it has something to do") };
        world.pass(wake_at.saturating_since(world.now));
    }
    assert!((at(1_000)..at(5_000)).contains(&world.now), "{:?}", world.now);
}

/// What cannot be killed is killed again and again, by a guard that its own timer would end.
#[test]
fn the_timer_is_moved_between_two_kills() {
    let (mut world, mut guard) = (World::new(&[GuardRequest::Kill, GuardRequest::Open]), GuardRules::default());
    for _ in 0..100 {
        // A keeper that beats all the time.
        let ends_at = world.now + Duration::from_millis(450);
        world.limits = Limits { kill_at: ends_at, ends_at };
        let NextTurn::Wait(Some(wake_at)) = guard.turn(&mut world) else { panic!("it has something to do") };
        world.pass(wake_at.saturating_since(world.now));
    }
}

#[test]
fn children_that_end_all_the_time_do_not_keep_a_guard() {
    let mut storm = World { is_storm: true, ..World::new(&[GuardRequest::Open]) };
    let mut guard = GuardRules::default();
    assert_eq!(storm.turn(&mut guard, 0), Some(at(0)));
    storm.requests.push(GuardRequest::Kill);
    storm.turn(&mut guard, 0);
    assert!(storm.requests.is_empty() && storm.kills > 0);
}

/// On a single processor nothing dies as long as a guard with a real-time priority works.
#[test]
fn what_has_been_killed_gets_the_processor() {
    let mut busy = World { work: Duration::from_millis(1), ..World::new(&[GuardRequest::Kill]) };
    let mut guard = GuardRules::default();
    busy.turn(&mut guard, 0);
    // It has taken 12 ms. Whatever wakes the guard now, the others get nearly as much.
    assert_eq!((busy.turn(&mut guard, 13), busy.kills), (Some(at(22)), 2));
    busy.turn(&mut guard, 22);
    assert_eq!(busy.kills, 4);
}

/// What has left the command's group, and dies slowly, dies of this guard only.
#[test]
fn a_guard_that_kills_is_not_killed_at_the_end_of_the_lease() {
    let mut slow = World { work: Duration::from_millis(20), ..World::new(&[GuardRequest::Open]) };
    let mut guard = GuardRules::default();
    while slow.now < at(20_000) {
        let NextTurn::Wait(Some(wake_at)) = guard.turn(&mut slow) else { panic!("it has something to do") };
        slow.pass(wake_at.saturating_since(slow.now));
    }
    let last = slow.timers.expect("they are set").1.saturating_since(slow.now);
    assert!(last <= WORK_AT_MOST, "it still works: {last:?}");
}
