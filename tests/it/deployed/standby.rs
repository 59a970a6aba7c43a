//! The unit of the README: a service runs on one host, and the other host takes over.

use std::time::Duration;

use super::block_of_the_readme;
use crate::harness::host::Site;
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::rights::{Right, refused};
use crate::harness::server::Settings;
use crate::harness::times::{AT_ONCE, SHORT_SESSION};

const LOCK: &str = "/services/scheduler";

/// Expiry is looked at once in a tick of the server's.
const TICK: Duration = Duration::from_millis(200);

/// The service runs on a, and b stands by. `arguments` are those of its command, and `setting` is a line for the unit.
#[track_caller]
fn site(arguments: &str, setting: &str) -> Site {
    let site = Site::new(&Settings::default().line(format!("maxSessionTimeout={}", SHORT_SESSION.as_millis())));
    let unit = block_of_the_readme("ini");
    let unit = unit.replace("[Service]\n", &format!("[Service]\n{setting}\n"));
    for host in site.hosts() {
        host.write_logged("scheduler", arguments);
        host.write_unit("scheduler.service", &unit);
    }
    site.a.sh("systemctl start scheduler");
    site.wait_begun(&["a"]);
    site.b.sh("systemctl start scheduler");
    site.wait_queue(LOCK, &["a", "b"]);
    site
}

const ON_TERM: &str = "--exit-on TERM";

#[test]
fn a_stop_hands_over() {
    if refused([Right::Hosts]) {
        return;
    }
    let site = site(ON_TERM, "");
    let told = Moment::now();
    site.a.sh("systemctl stop scheduler");
    site.wait_begun(&["a", "b"]);
    site.begin("b").expect_within(AT_ONCE, told, "the other host takes over");
    assert_eq!(site.a.property("scheduler", "Result"), "success");
    assert_eq!(site.a.sh("journalctl --unit=scheduler --output=cat --grep='signal TERM' | wc -l"), "1\n");
}

/// The command ignores SIGTERM, and has left a process in a session of its own.
#[test]
fn a_killed_zklock_takes_its_command_along() {
    if refused([Right::Hosts]) {
        return;
    }
    let site = site("--wait --spawn-daemon -- --name daemon --wait", "");
    site.a.wait_for("journalctl --unit=scheduler --output=cat --grep='daemon ready' | wc -l", "1\n");
    site.a.sh("systemctl kill --kill-whom=main --signal=KILL scheduler");
    site.wait_begun(&["a", "b"]);
    assert_eq!(site.a.sh("cat /proc/[0-9]*/comm 2>/dev/null | grep --count --line-regexp child || true"), "0\n");
    site.wait_queue(LOCK, &["b", "a"]);
}

/// systemd is not to kill the keeper, which has the lock to release, only because the main process has gone.
#[test]
fn a_killed_zklock_frees_its_lock_at_once() {
    if refused([Right::Hosts]) {
        return;
    }
    let site = site(ON_TERM, "");
    let mut order = vec!["a"];
    for _ in 0..4 {
        for (host, next) in [(&site.a, "b"), (&site.b, "a")] {
            let killed = Moment::now();
            host.sh("systemctl kill --kill-whom=main --signal=KILL scheduler");
            order.push(next);
            site.wait_begun(&order);
            site.begin(next).expect_within(AT_ONCE, killed, "the other host takes over");
            site.wait_queue(LOCK, if next == "a" { &["a", "b"] } else { &["b", "a"] });
        }
    }
}

#[test]
fn a_host_that_shuts_down_hands_over() {
    if refused([Right::Hosts]) {
        return;
    }
    let mut site = site(ON_TERM, "");
    let told = Moment::now();
    site.a.power_off();
    site.wait_begun(&["a", "b"]);
    site.begin("b").expect_within(AT_ONCE, told, "the other host takes over");
}

#[test]
fn power_cut() {
    if refused([Right::Hosts]) {
        return;
    }
    let mut site = site(ON_TERM, "");
    let cut = Moment::now();
    site.a.cut_power();
    site.wait_begun(&["a", "b"]);
    site.begin("b").expect_within(SHORT_SESSION + TICK, cut, "the other host takes over");
}

#[test]
fn a_host_without_a_network_stands_by_when_it_is_back() {
    if refused([Right::Hosts]) {
        return;
    }
    let site = site(ON_TERM, "");
    let cut = Moment::now();
    site.a.network().hold();
    site.wait_begun(&["a", "b"]);
    site.begin("b").expect_within(SHORT_SESSION + TICK, cut, "the other host takes over");
    site.a.network().pass();
    site.wait_queue(LOCK, &["b", "a"]);
}

/// logrotate and `systemctl reload` send SIGHUP.
#[test]
fn a_reload_reaches_the_command_and_puts_a_stand_by_last() {
    if refused([Right::Hosts]) {
        return;
    }
    let site = site(ON_TERM, "ExecReload=/bin/kill -HUP $MAINPID");
    site.a.sh("systemctl reload scheduler");
    site.a.wait_for("journalctl --unit=scheduler --output=cat --grep='signal HUP' | wc -l", "1\n");
    site.b.sh("systemctl reload scheduler");
    site.b.wait_property("scheduler", "NRestarts", "1");
    site.wait_queue(LOCK, &["a", "b"]);
    assert_eq!(site.a.property("scheduler", "NRestarts"), "0");
    site.wait_begun(&["a"]);
}

#[test]
fn systemctl_status_tells_the_holder() {
    if refused([Right::Hosts]) {
        return;
    }
    let site = site(ON_TERM, "");
    let [holder, waiter] = site.hosts().map(|host| {
        poll::until("a status", || {
            let status = host.sh("systemctl status scheduler");
            status.lines().find_map(|line| line.trim_start().strip_prefix("Status: \"")).map(str::to_owned)
        })
    });
    assert!(holder.starts_with("holding /services/scheduler/"), "{holder}");
    assert!(waiter.starts_with("waiting for /services/scheduler: 2nd of 2, held by a (root, pid "), "{waiter}");
}
