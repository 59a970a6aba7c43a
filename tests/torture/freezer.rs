//! Control groups of version 2, in which processes of a contender are frozen at the same time (`cgroup.freeze` of
//! cgroups(7)). That takes a mounted hierarchy in which this program may make groups: as a rule, root's.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use nix::unistd::Pid;

use crate::crowd::{COMMAND, Contender};
use crate::harness::poll;
use crate::harness::process::Process;
use crate::record::lock;

/// How long the kernel may take to let go of a group whose processes have ended.
const EMPTY: Duration = Duration::from_secs(5);

/// The place for the groups. They are removed when this is dropped.
#[derive(Debug)]
pub(crate) struct Freezer {
    parent: PathBuf,
    groups: Mutex<Vec<PathBuf>>,
}

/// Which processes of a contender are frozen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Frozen {
    /// Those of zklock, nested runs included. The command goes on.
    Zklock,
    /// The command and its descendants as well.
    Everything,
}

/// A control group for processes of one contender.
#[derive(Debug)]
pub(crate) struct Group(PathBuf);

impl Freezer {
    /// `Err`: why no group can be frozen here.
    pub(crate) fn find() -> Result<Self, String> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        let field = |line: &str, number| line.split(' ').nth(number).unwrap_or_default().to_owned();
        let mount = mounts.lines().find(|line| field(line, 2) == "cgroup2").map(|line| field(line, 1));
        let mount = mount.ok_or("no cgroup v2 is mounted")?;
        // A program without privileges may make groups below its own at most.
        let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
        let own = groups.lines().find_map(|line| line.strip_prefix("0::/")).unwrap_or_default();
        let freezer = Self { parent: Path::new(&mount).join(own), groups: Mutex::default() };
        let probe = freezer.make("probe").map_err(|error| format!("no group can be made in {mount}: {error}"))?;
        fs::write(probe.0.join("cgroup.freeze"), "0").map_err(|error| format!("no group can be frozen: {error}"))?;
        Ok(freezer)
    }

    fn make(&self, name: &str) -> std::io::Result<Group> {
        let path = self.parent.join(format!("torture-{}-{name}", Pid::this()));
        fs::create_dir(&path)?;
        lock(&self.groups).push(path.clone());
        Ok(Group(path))
    }

    pub(crate) fn gather(&self, contender: &Contender, frozen: Frozen) -> Group {
        let group = self.make(&contender.number.to_string()).expect("a group can be made");
        poll::until("all processes are in the group", || {
            // In this order: what is forked from now on by a process inside is inside.
            let inside = group.processes();
            let mut outside = contender.processes();
            let is_meant = |process: &Process| frozen == Frozen::Everything || process.name != COMMAND;
            outside.retain(|process| !inside.contains(&process.pid) && is_meant(process));
            // The process may have ended meanwhile.
            outside.iter().for_each(|process| drop(fs::write(group.0.join("cgroup.procs"), process.pid.to_string())));
            outside.is_empty().then_some(())
        });
        group
    }
}

impl Group {
    fn processes(&self) -> BTreeSet<Pid> {
        let list = fs::read_to_string(self.0.join("cgroup.procs")).expect("a group has a list");
        list.lines().filter_map(|line| line.parse().ok()).map(Pid::from_raw).collect()
    }

    pub(crate) fn freeze(&self) {
        self.set("1");
    }

    pub(crate) fn thaw(&self) {
        self.set("0");
    }

    fn set(&self, state: &str) {
        fs::write(self.0.join("cgroup.freeze"), state).expect("a group can be frozen and thawed");
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        for group in lock(&self.groups).iter() {
            // What is left of a group after that has been reported.
            poll::within(EMPTY, || fs::remove_dir(group).ok());
        }
    }
}
