//! What systemd does to zklock, and what a unit has to say for it. The settings are those of the documents.

use std::fs;
use std::time::Duration;

use super::block_of_the_readme;
use crate::harness::host::Site;
use crate::harness::moment::Moment;
use crate::harness::poll;
use crate::harness::rights::{Right, refused};
use crate::harness::server::Settings;

/// A unit that is not the README's.
const UNIT: &str = "[Service]\nExecStart=/usr/bin/zklock -z zk1,zk2,zk3 /l -- /usr/local/bin/scheduler\n";

/// systemd forgets then that zklock has asked for more time to start.
#[test]
fn a_daemon_reload_ends_no_stand_by() {
    if refused([Right::Hosts]) {
        return;
    }
    let operations = include_str!("../../../docs/operations.md");
    let mut code = operations.split('`').skip(1).step_by(2);
    let setting = code.find(|code| code.starts_with("TimeoutStartSec=")).unwrap_or_default();
    let site = Site::new(&Settings::default());
    for host in site.hosts() {
        host.write_logged("scheduler", "--exit-on TERM");
        host.write_unit("scheduler.service", &format!("{UNIT}Type=notify\nTimeoutStartSec=1\n{setting}\n"));
    }
    site.a.sh("systemctl start scheduler");
    site.b.sh("systemctl start --no-block scheduler");
    site.wait_queue("/l", &["a", "b"]);
    Moment::now().after(Duration::from_secs(2)).wait_past();
    let pid = site.b.property("scheduler", "MainPID");
    site.b.sh("systemctl daemon-reload");
    site.a.sh("systemctl stop scheduler");
    site.b.wait_property("scheduler", "ActiveState", "active");
    assert_eq!(site.b.property("scheduler", "MainPID"), pid);
    site.wait_begun(&["a", "b"]);
}

/// A command that takes sockets from systemd, and one that has a watchdog, look for their own process id.
#[test]
fn sockets_and_a_watchdog_reach_the_command() {
    if refused([Right::Hosts]) {
        return;
    }
    let manual = include_str!("../../../man/zklock.1.in");
    let pages = [manual, include_str!("../../../docs/operations.md")];
    let lines = pages.iter().flat_map(|page| page.lines()).filter(|line| line.contains("export LISTEN_PID="));
    let words =
        lines.flat_map(|line| line.split("export LISTEN_PID=").skip(1)).map(|rest| rest.split(';').next().unwrap());
    // A page that has more than one says which of them is for a unit: the one that systemd does not change.
    let word = words.max_by_key(|word| word.matches('$').count()).expect("zklock(1) has it");
    let site = Site::new(&Settings::default());
    site.a.write_program(
        "watched",
        "echo \"$LISTEN_PID $WATCHDOG_PID $LISTEN_FDS\" | sed \"s/\\<$$\\>/own/g\" >/shared/seen\n\
         readlink /proc/$$/fd/3 >>/shared/seen\n\
         while :; do systemd-notify WATCHDOG=1; sleep 0.1; done",
    );
    site.a.write_unit("watched.socket", "[Socket]\nListenStream=/run/watched\n");
    let unit = format!(
        "[Service]\nType=notify\nNotifyAccess=all\nWatchdogSec=20\n\
         ExecStart=/usr/bin/zklock -z zk1,zk2,zk3 /l -c 'export LISTEN_PID={word}; exec watched'\n"
    );
    site.a.write_unit("watched.service", &unit);
    site.a.sh("systemctl start watched.socket watched.service");
    let seen = poll::until("the command has looked", || {
        fs::read_to_string(site.shared("seen")).ok().filter(|seen| seen.lines().count() == 2)
    });
    assert!(seen.starts_with("own own 1\nsocket:["), "{unit}{seen}");
    let last_ping = || site.a.property("watched", "WatchdogTimestampMonotonic");
    let first = last_ping();
    poll::until("systemd hears the watchdog", || (last_ping() != first).then_some(()));
    assert_eq!(site.a.property("watched", "ActiveState"), "active");
}

#[test]
fn a_command_that_is_missing_is_not_tried_again() {
    if refused([Right::Hosts]) {
        return;
    }
    let site = Site::new(&Settings::default());
    site.a.write_unit("scheduler.service", block_of_the_readme("ini"));
    site.a.sh("systemctl start scheduler");
    site.a.wait_for(
        "systemctl show --value --property=ActiveState,ExecMainStatus,NRestarts scheduler | grep . | sort",
        "0\n127\nfailed\n",
    );
}
