//! A process that has the number of a run which has died is not taken for that run.

use crate::harness::rights::{Right, as_pid_1, refused};
use crate::harness::scratch::{LOCK, Scratch};
use crate::harness::zklock::{binary, child};

/// All processes of a run are killed, so its node stays. What has left the command's process group starts a shell with
/// the number of the run, and below that a zklock: as things are, without an offer, and with an offer of that shell which
/// stands.
const SCRIPT: &str = r#"
    later() {
        read -r form pid started guard rest <<<"$ZKLOCK_LENDER"
        read -r processes </proc/$pid/task/$pid/children
        kill -STOP $processes $pid
        kill -KILL $processes $pid
        until [ ! -e /proc/$pid ]; do sleep 0.01; done
        until echo $((pid - 1)) >/proc/sys/kernel/ns_last_pid; again & [ $! = $pid ]; do :; done
        wait
    }
    again() {
        [ $BASHPID = $pid ] || return
        "$Z" -n /lock -- echo ran; echo "first, $?"
        env -u ZKLOCK_LENDER "$Z" -n /lock -- echo ran; echo "second, $?"
        exec 9> >(exec sleep 1000)
        read -ra stat </proc/$pid/stat
        ZKLOCK_LENDER="3 $pid ${stat[21]} $pid ${stat[21]} 9 $(stat -Lc %i /proc/$pid/fd/9)" "$Z" -n /lock -- echo ran; echo "third, $?"
    }
    export -f later again
    "$Z" /lock -- bash -c 'setsid bash -c later & wait' & wait $!
    exec "$C" --until end"#;

#[test]
fn the_number_of_a_run() {
    if refused([Right::PidNumbers]) {
        return;
    }
    let scratch = Scratch::new();
    let script = scratch.zklock().program("bash").args(["-c", SCRIPT]).env("Z", binary()).env("C", child());
    let mut script = script.run_by(as_pid_1()).spawn();
    for line in ["first, 75", "second, 75", "third, 75"] {
        script.wait_stdout(line);
    }
    let nodes = scratch.wait_queue(1);
    scratch.delete(&format!("{LOCK}/{}", nodes[0]));
    scratch.touch("end");
    let output = script.wait();
    assert!(!output.stdout().contains("ran"), "{output}");
    let doubts = output.stderr().matches("but no zklock that this one descends from holds it; queueing").count();
    assert_eq!(doubts, 3, "{output}");
    script.wait_until_nothing_is_left();
}
