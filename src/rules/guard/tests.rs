use super::watch::KILL_AGAIN_AT_MOST;
use super::*;

fn at(millis: u64) -> Instant {
    Instant::from_boot(Duration::from_millis(millis))
}

#[test]
fn a_lease_is_watched_until_it_demands_the_kill() {
    let mut watch = Watch::default();
    assert_eq!(watch.judge(at(0), at(900), at(1000)), Verdict::Idle);
    watch.open();
    let verdict = |look| Verdict::Watch { look_at: at(look), deadline: at(1000) };
    assert_eq!(watch.judge(at(0), at(900), at(1000)), verdict(125));
    assert_eq!(watch.judge(at(800), at(900), at(1000)), verdict(825));
    assert_eq!(watch.judge(at(895), at(900), at(1000)), verdict(900));
    let kill = |lease_over, wake_at, deadline: Option<u64>| Verdict::Kill {
        lease_over,
        again: !lease_over,
        wake_at: at(wake_at),
        deadline: deadline.map(at),
    };
    assert_eq!(watch.judge(at(900), at(900), at(1000)), kill(true, 910, None));
    // An extension that comes too late saves the guard, which has not done yet, and not the command.
    assert_eq!(watch.judge(at(910), at(1900), at(2000)), kill(false, 930, Some(2000)));
}

#[test]
fn a_guard_is_told_to_kill_whatever_the_lease() {
    let mut watch = Watch::default();
    watch.open();
    watch.kill();
    let kill = |again, wake_at| {
        let deadline = Some(at(1000));
        Verdict::Kill { lease_over: false, again, wake_at: at(wake_at), deadline }
    };
    assert_eq!(watch.judge(at(0), at(900), at(1000)), kill(false, 10));
    // However often it is woken meanwhile.
    assert_eq!(watch.judge(at(3), at(900), at(1000)), kill(false, 10));
    assert_eq!(watch.judge(at(7), at(900), at(1000)), kill(false, 10));
    assert_eq!(watch.judge(at(11), at(900), at(1000)), kill(true, 31));
    assert_eq!(watch.judge(at(30), at(900), at(1000)), kill(false, 31));
}

/// What cannot be killed is killed again and again, by a guard that its own timer would end.
#[test]
fn the_deadline_is_moved_between_two_kills() {
    let mut watch = Watch::default();
    watch.open();
    watch.kill();
    let mut now = at(0);
    for _ in 0..100 {
        // A keeper that beats all the time.
        let ends_at = now + Duration::from_millis(450);
        let Verdict::Kill { wake_at, deadline, .. } = watch.judge(now, ends_at, ends_at) else { panic!() };
        assert!(wake_at < ends_at && deadline == Some(ends_at));
        now = wake_at;
    }
    // Once there is no lease, there is no such limit.
    now = now + KILL_AGAIN_AT_MOST;
    let Verdict::Kill { wake_at, deadline: None, .. } = watch.judge(now, at(0), at(0)) else { panic!() };
    assert_eq!(wake_at, now + KILL_AGAIN_AT_MOST);
}

/// What is outside of a guard whose children never end.
struct World {
    now: Instant,
    requests: Vec<Request>,
    /// Children end faster than they can be reaped.
    is_storm: bool,
    reaped: u32,
    /// So many end.
    orphans: u32,
    /// The command has ended.
    status: Option<i32>,
    goes_first: bool,
    /// All children have ended.
    all_dead: bool,
    /// How many times SIGKILL went to all children.
    kills: u32,
    timer: Option<Instant>,
}

impl World {
    fn new(requests: &[Request]) -> Self {
        Self {
            now: at(0),
            requests: requests.to_vec(),
            is_storm: false,
            reaped: 0,
            orphans: 0,
            status: None,
            goes_first: true,
            all_dead: false,
            kills: 0,
            timer: None,
        }
    }

    /// Time passes, and the kernel's timer does not fire.
    fn pass(&mut self, time: Duration) {
        self.now = self.now + time;
        assert!(self.timer.is_none_or(|timer| self.now < timer), "the kernel has killed the guard at {:?}", self.timer);
    }
}

impl Outside for World {
    fn now(&self) -> Instant {
        self.now
    }
    fn limits(&self) -> (Instant, Instant) {
        (at(900), at(1000))
    }
    fn heed_lenders(&mut self) -> bool {
        false
    }
    fn lay_fuses(&mut self) {}
    fn disarm(&mut self) {}
    fn ended_by_itself(&self) -> bool {
        true
    }
    fn set_timer(&mut self, deadline: Instant) {
        self.timer = Some(deadline);
    }
    fn goes_first(&self) -> bool {
        self.goes_first
    }
    fn reap_command(&mut self) -> Reaped {
        self.status.take().map_or(Reaped::NoMore, Reaped::Ended)
    }
    fn reap(&mut self) -> Reaped {
        self.reaped += 1;
        assert!(self.reaped < 1_000_000, "it does nothing but reap");
        let has_ended = self.is_storm || self.orphans > 0;
        self.orphans = self.orphans.saturating_sub(1);
        if has_ended { Reaped::Other } else { Reaped::NoMore }
    }
    fn has_living_child(&mut self) -> bool {
        !self.all_dead
    }
    fn hear(&mut self) -> Heard {
        self.requests.pop().map_or(Heard::Nothing, Heard::Request)
    }
    fn redeem(&mut self) {}
    fn show(&mut self, _: Sign) {}
    fn tell(&mut self) {}
    fn open_gate(&mut self) {}
    fn close_gate(&mut self) {}
    fn signal(&mut self, _: Signal) {}
    fn kill_group(&mut self) {}
    fn kill_children(&mut self) {
        self.kills += 1;
        // Each takes a while to give back its memory.
        self.pass(Duration::from_millis(if self.is_storm { 0 } else { 20 }));
    }
    fn kill_below(&mut self) {
        self.pass(Duration::from_millis(300));
    }
}

#[test]
fn children_that_end_all_the_time_do_not_keep_a_guard() {
    let mut storm = World { is_storm: true, ..World::new(&[Request::Kill]) };
    let mut guard = Guard::begin(&mut storm);
    assert_eq!(guard.turn(&mut storm), Next::Wait(Some(at(0))));
    assert!(storm.requests.is_empty());
}

/// Each call that reaps an orphan may take a second.
#[test]
fn orphans_do_not_keep_a_guard_from_its_kill() {
    let mut storm = World { is_storm: true, ..World::new(&[Request::Open]) };
    let mut guard = Guard::begin(&mut storm);
    guard.turn(&mut storm);
    // The lease was extended at 0, to 900.
    storm.now = at(449);
    assert_eq!(guard.turn(&mut storm), Next::Wait(Some(at(449))), "it is behind");
    storm.now = at(450);
    let reaped = storm.reaped;
    let Next::Wait(Some(wake_at)) = guard.turn(&mut storm) else { panic!("it has something to do") };
    assert!(storm.reaped == reaped && at(450) < wake_at, "it reaps, or is to wake at {wake_at:?}");
    // The command's own end is told in time.
    storm.status = Some(0);
    guard.turn(&mut storm);
    assert!(storm.reaped == reaped && storm.status.is_none() && !guard.has_command);
    storm.now = at(900);
    guard.turn(&mut storm);
    assert!(storm.reaped > reaped && storm.kills > 0);
}

/// That all has ended is told in time, before SIGKILL or the stop signal is due.
#[test]
fn what_has_ended_is_reaped_at_any_time() {
    let mut storm = World { is_storm: true, ..World::new(&[Request::Open]) };
    let mut guard = Guard::begin(&mut storm);
    guard.turn(&mut storm);
    storm.now = at(450);
    guard.turn(&mut storm);
    let reaped = storm.reaped;
    storm.now = at(500);
    guard.turn(&mut storm);
    assert_eq!(storm.reaped, reaped);
    storm.all_dead = true;
    guard.turn(&mut storm);
    assert!(storm.reaped > reaped);
}

/// It would meet the more zombies when it kills.
#[test]
fn a_guard_without_a_real_time_priority_reaps_at_any_time() {
    let mut storm = World { is_storm: true, goes_first: false, ..World::new(&[Request::Open]) };
    let mut guard = Guard::begin(&mut storm);
    guard.turn(&mut storm);
    storm.now = at(450);
    let reaped = storm.reaped;
    guard.turn(&mut storm);
    assert!(storm.reaped > reaped);
}

#[test]
fn a_few_orphans_are_reaped_at_any_time() {
    let mut world = World { orphans: 10, ..World::new(&[Request::Open]) };
    let mut guard = Guard::begin(&mut world);
    guard.turn(&mut world);
    world.now = at(880);
    let reaped = world.reaped;
    guard.turn(&mut world);
    assert!(world.reaped > reaped);
}

/// On a single processor nothing dies as long as a guard with a real-time priority works.
#[test]
fn what_has_been_killed_gets_the_processor() {
    let mut busy = World::new(&[Request::Kill]);
    let mut guard = Guard::begin(&mut busy);
    let first = guard.turn(&mut busy);
    assert_eq!((first, busy.kills), (Next::Wait(Some(at(10))), 1));
    // It has taken 20 ms. Whatever wakes the guard now, the others get half as much.
    let Next::Wait(Some(wake_at)) = guard.turn(&mut busy) else { panic!("it has something to do") };
    assert_eq!((wake_at, busy.kills), (at(30), 1));
    busy.now = wake_at;
    guard.turn(&mut busy);
    assert_eq!(busy.kills, 2);
}

/// What has left the command's group, and dies slowly, dies of this guard only.
#[test]
fn a_guard_that_kills_is_not_killed_at_the_end_of_the_lease() {
    let mut slow = World::new(&[Request::Open]);
    let mut guard = Guard::begin(&mut slow);
    while slow.now < at(20_000) {
        let Next::Wait(Some(wake_at)) = guard.turn(&mut slow) else { panic!("it has something to do") };
        slow.pass(wake_at.saturating_since(slow.now));
    }
    let last = slow.timer.expect("it is set").saturating_since(slow.now);
    assert!(last <= WORK_AT_MOST, "it still works: {last:?}");
}
