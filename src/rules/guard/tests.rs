use super::*;

fn at(millis: u64) -> Instant {
    Instant::from_boot(Duration::from_millis(millis))
}

/// What is outside of a guard whose children never end.
struct World {
    now: Instant,
    limits: Limits,
    requests: Vec<GuardRequest>,
    /// Children end faster than they can be reaped.
    is_storm: bool,
    reaped: u32,
    /// How long it takes to kill all children, and what is below them.
    work: Duration,
    /// How many times SIGKILL went to all children, and to what is below.
    kills: u32,
    deep_kills: u32,
    signs: Vec<Sign>,
    timer: Option<Instant>,
}

impl World {
    fn new(requests: &[GuardRequest]) -> Self {
        Self {
            now: at(0),
            limits: Limits { kill_at: at(900), ends_at: at(1000) },
            requests: requests.to_vec(),
            is_storm: false,
            reaped: 0,
            work: Duration::ZERO,
            kills: 0,
            deep_kills: 0,
            signs: vec![],
            timer: None,
        }
    }

    /// Time passes, and the kernel's timer does not fire.
    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        assert!(self.timer.is_none_or(|timer| self.now < timer), "the kernel has killed the guard at {:?}", self.timer);
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
    fn disarm(&mut self) {}
    fn ended_by_itself(&self) -> bool {
        true
    }
    fn set_timer(&mut self, deadline: Instant) {
        self.timer = Some(deadline);
    }
    fn reap(&mut self) -> GuardReaped {
        self.reaped += 1;
        assert!(self.reaped < 1_000_000, "it does nothing but reap");
        if self.is_storm { GuardReaped::Other } else { GuardReaped::NoMore }
    }
    fn hear(&mut self) -> Heard {
        self.requests.pop().map_or(Heard::Nothing, Heard::Request)
    }
    fn show(&mut self, sign: Sign) {
        self.signs.push(sign);
    }
    fn tell(&mut self) {}
    fn open_gate(&mut self) {}
    fn close_gate(&mut self) {}
    fn signal(&mut self, _: Signal, _: Targets) {}
    fn kill_children(&mut self) {
        self.kills += 1;
        self.pass(self.work);
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
    assert_eq!((world.timer, world.kills), (Some(at(1000)), 0));
    assert_eq!(world.turn(&mut guard, 900), Some(at(910)));
    assert_eq!(world.signs, [Sign::Stage(Stage::Open), Sign::LeaseOver, Sign::Stage(Stage::Killing)]);
    assert_eq!((world.kills, world.deep_kills), (1, 0));
    // An extension that comes too late saves the guard, which has not done yet, and not the command.
    world.limits = Limits { kill_at: at(1900), ends_at: at(2000) };
    assert_eq!(world.turn(&mut guard, 910), Some(at(930)));
    assert_eq!((world.kills, world.deep_kills, world.timer), (2, 1, Some(at(2000))));
}

#[test]
fn a_guard_is_told_to_kill_whatever_the_lease() {
    let (mut world, mut guard) = (World::new(&[GuardRequest::Kill, GuardRequest::Open]), GuardRules::default());
    assert_eq!(world.turn(&mut guard, 0), Some(at(10)));
    // However often it is woken meanwhile.
    assert_eq!(world.turn(&mut guard, 3), Some(at(10)));
    assert_eq!(world.turn(&mut guard, 7), Some(at(10)));
    assert_eq!((world.kills, world.deep_kills), (3, 0));
    assert_eq!(world.turn(&mut guard, 11), Some(at(31)));
    assert_eq!(world.turn(&mut guard, 30), Some(at(31)));
    assert_eq!((world.kills, world.deep_kills), (5, 1));
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
    let mut storm = World { is_storm: true, ..World::new(&[GuardRequest::Kill]) };
    assert_eq!(storm.turn(&mut GuardRules::default(), 0), Some(at(0)));
    assert!(storm.requests.is_empty() && storm.kills > 0);
}

/// On a single processor nothing dies as long as a guard with a real-time priority works.
#[test]
fn what_has_been_killed_gets_the_processor() {
    let mut busy = World { work: Duration::from_millis(20), ..World::new(&[GuardRequest::Kill]) };
    let mut guard = GuardRules::default();
    assert_eq!((busy.turn(&mut guard, 0), busy.kills), (Some(at(10)), 1));
    // It has taken 20 ms. Whatever wakes the guard now, the others get half as much.
    assert_eq!((busy.turn(&mut guard, 20), busy.kills), (Some(at(30)), 1));
    busy.turn(&mut guard, 30);
    assert_eq!(busy.kills, 2);
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
    let last = slow.timer.expect("it is set").saturating_since(slow.now);
    assert!(last <= WORK_AT_MOST, "it still works: {last:?}");
}
