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
    assert_eq!(watch.judge(at(0), at(900), at(1000)), verdict(500));
    assert_eq!(watch.judge(at(880), at(900), at(1000)), verdict(900));
    let kill = |lease_over, again_at, deadline: Option<u64>| Verdict::Kill {
        lease_over,
        again: !lease_over,
        again_at: at(again_at),
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
    let kill = Verdict::Kill { lease_over: false, again: false, again_at: at(10), deadline: Some(at(1000)) };
    assert_eq!(watch.judge(at(0), at(900), at(1000)), kill);
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
        let Verdict::Kill { again_at, deadline, .. } = watch.judge(now, ends_at, ends_at) else { panic!() };
        assert!(again_at < ends_at && deadline == Some(ends_at));
        now = again_at;
    }
    // Once there is no lease, there is no such limit.
    let Verdict::Kill { again_at, deadline: None, .. } = watch.judge(now, at(0), at(0)) else { panic!() };
    assert_eq!(again_at, now + KILL_AGAIN_AT_MOST);
}

/// A guard whose children end faster than it can reap them.
#[derive(Default)]
struct Storm {
    reaped: u32,
    is_killed: bool,
}

impl Outside for Storm {
    fn now(&self) -> Instant {
        at(0)
    }
    fn limits(&self) -> (Instant, Instant) {
        (at(900), at(1000))
    }
    fn heed_lenders(&mut self) -> bool {
        false
    }
    fn lay_fuses(&mut self) {}
    fn disarm(&mut self) {}
    fn set_timer(&mut self, _: Instant) {}
    fn reap(&mut self) -> Reaped {
        self.reaped += 1;
        assert!(self.reaped < 1_000_000, "it does nothing but reap");
        Reaped::Other
    }
    fn hear(&mut self) -> Heard {
        if std::mem::replace(&mut self.is_killed, true) { Heard::Nothing } else { Heard::Request(Request::Kill) }
    }
    fn show(&mut self, _: Sign) {}
    fn tell(&mut self) -> bool {
        true
    }
    fn open_gate(&mut self) {}
    fn close_gate(&mut self) {}
    fn signal(&mut self, _: Signal) {}
    fn kill_group(&mut self) {}
    fn kill_children(&mut self) -> bool {
        true
    }
    fn kill_below(&mut self) {}
}

#[test]
fn children_that_end_all_the_time_do_not_keep_a_guard() {
    let mut storm = Storm::default();
    let mut guard = Guard::begin(&mut storm);
    assert_eq!(guard.turn(&mut storm), Next::Wait(Some(at(0))));
    assert!(storm.is_killed);
}
