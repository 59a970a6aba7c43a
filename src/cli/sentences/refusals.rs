//! What is refused: a lock, and the end of a process.

use crate::cli::Plan;
use crate::cli::environment::LENDER;
use crate::rules::message::{Refusal, Right, Unfit};
use crate::rules::offer::Barrier;
use crate::rules::queue::{Dialect, Recipe};
use crate::zookeeper::login::Login;
use crate::zookeeper::net::address::ConnectString;

pub fn denied(node: &str) -> String {
    format!("access to {node} denied by its ACL")
}

pub fn immune(process: i32) -> String {
    format!(
        "the system does not let zklock kill process {process}, which is another user's or confined; waiting for its end"
    )
}

pub fn lacks(node: &str, right: Right, login: &Login) -> String {
    let (phrase, letter) = (right.phrase(), right.letter());
    let hint = if login.is_given() {
        format!("ask for {letter} on {node} for this login; with digest, a wrong password makes another identity")
    } else {
        format!("log in (--auth-file), or ask for {letter} on {node}")
    };
    format!("an ACL forbids {phrase} {node}: the permission {letter} is missing; {hint}")
}

pub fn not_let_in(why: &str) -> String {
    format!("ZooKeeper does not accept this client: {why}")
}

pub fn no_chroot(servers: &ConnectString) -> String {
    format!("the chroot {} does not exist: create it, or correct --zookeeper", servers.chroot)
}

pub fn clickhouse_keeper(server: &str) -> String {
    format!("{server} is ClickHouse Keeper: {CLICKHOUSE_UNFIT}; use ZooKeeper")
}

/// What is wrong with ClickHouse Keeper.
pub const CLICKHOUSE_UNFIT: &str =
    "it closes the sessions of its clients when it shuts down, so two commands could overlap";

/// A recipe of another library, and how it was known.
pub fn recipe(recipe: Recipe) -> &'static str {
    match recipe {
        Recipe::CuratorSemaphore => {
            "Curator's InterProcessSemaphoreMutex or InterProcessSemaphoreV2 (children locks and leases)"
        }
        Recipe::CuratorLeaderLatch => "Curator's LeaderLatch (children named ...-latch-NUMBER)",
        Recipe::KazooSemaphore => "kazoo's Semaphore (children of 32 hex digits)",
        Recipe::KazooLease => "kazoo's NonBlockingLease (child lease_holder)",
    }
}

pub fn refused(refusal: &Refusal, plan: &Plan) -> String {
    match refusal {
        Refusal::Denied(node) => denied(node),
        Refusal::Lacks { node, right } => lacks(node, *right, &plan.access.login),
        Refusal::NotLetIn(why) => not_let_in(why),
        Refusal::ClickHouseKeeper(server) => clickhouse_keeper(server),
        Refusal::NoChroot => no_chroot(&plan.access.servers),
        Refusal::Unfit { lock, why } => unfit(lock, why, plan),
        Refusal::Server(why) => format!("ZooKeeper refused: {why}"),
        Refusal::LaterHolder { file, seen, ours } => format!(
            "a later holder has been here: {file} has seen the token {seen}, and the token of this run is {ours}; only \
             if ZooKeeper was set up anew, so that its tokens began again, remove {file}"
        ),
        Refusal::Unusable(why) | Refusal::File(why) | Refusal::System(why) => why.clone(),
    }
}

fn unfit(lock: &str, why: &Unfit, plan: &Plan) -> String {
    match why {
        Unfit::Exhausted => {
            format!(
                "the sequence numbers below {lock} are used up: delete that node while the lock is not in use, \
                 or use another path"
            )
        }
        Unfit::Blind { contender, reads } => {
            let mut dialects = plan.request.dialects.clone();
            dialects.push(*reads);
            // The dialect `single` cannot be combined with others.
            let with_single = dialects.contains(&Dialect::Single);
            dialects.retain(|dialect| !with_single || dialect == reads);
            dialects.sort_unstable();
            let dialects: Vec<_> = dialects.iter().map(|dialect| dialect.name()).collect();
            let dialects = dialects.join(",");
            format!("{lock} is used by a client that would not wait for zklock ({contender}): use --dialect {dialects}")
        }
        Unfit::OtherPermits(permits) => {
            format!("{lock} is used with --permits {permits}: use the same number")
        }
        Unfit::OtherRecipe(recipe) => {
            format!("{lock} is used by {}, and cannot be shared with it: use another path", self::recipe(*recipe))
        }
        Unfit::Upgrade(held) => format!(
            "{lock} is held as {held} by the outer zklock, and cannot become {}: ask the outer one for \
             that",
            plan.request.mode
        ),
        Unfit::OutOfReach(barrier) => {
            let why = match barrier {
                Barrier::Foreign => "another user or container".to_owned(),
                Barrier::NoOffer => format!("{LENDER} does not name it"),
                Barrier::Version => "it is another version of zklock".to_owned(),
                Barrier::CalledIn => "it got a shorter session timeout, and lends no more".to_owned(),
                Barrier::Servers => "give both the same --zookeeper".to_owned(),
            };
            format!("{lock} is held by the run that started this one, which cannot be reached: {why}")
        }
        Unfit::PartlyLent(other) => format!(
            "{lock} is held by the run that started this one, and {other} is not: without --and, take only what it does \
             not hold, or write zklock {lock} -- zklock {other} COMMAND"
        ),
        Unfit::OncePerLent => {
            format!("{lock} is held by the run that started this one: give --once-per to that run")
        }
    }
}
