"""Prints where the time between two commands of a queue of zklocks goes. scripts/bench -t feeds it the switches that perf
has recorded; each is a line `COMMAND PID/TID [CPU] TIME: sched:EVENT: ...`.

A stage ends when the process that is next on the way first runs. Of hand-overs whose events do not have that order, as
when the log thread had not gone to sleep in between, nothing is counted.
"""

import collections
import re
import statistics
import sys

LINE = re.compile(r"\s*(.+?)\s+\d+/(\d+)\s+\[\d+\]\s+([\d.]+):\s+sched:(\w+):\s+(.*)")
NEXT = re.compile(r"next_comm=(.+?) next_pid=(\d+)")

ran, exits, execs = [], [], []
for line in sys.stdin:
    if not (match := LINE.match(line)):
        continue
    name, thread, time, event, rest = match[1], int(match[2]), float(match[3]), match[4], match[5]
    if event == "sched_switch":
        after = NEXT.search(rest)
        ran.append((time, after[1], int(after[2])))
    elif event == "sched_process_exit" and name == "bash":
        exits.append(time)
    elif event == "sched_process_exec" and "bash" in rest:
        execs.append(time)

stages = collections.defaultdict(list)
for begin in exits:
    end = min((time for time in execs if time > begin), default=None)
    if end is None:
        continue
    within = [run for run in ran if begin < run[0] < end]

    def first(name, since, others=()):
        return next(run for run in within if run[0] >= since and run[1].startswith(name) and run[2] not in others)

    try:
        keeper = first("lock-keeper", begin)
        log = [run[0] for run in within if run[1].startswith("SyncThread") and run[0] > keeper[0]]
        keeper_after = first("lock-keeper", keeper[0], {keeper[2]})
        log = [time for time in log if time < keeper_after[0]]
        old = {run[2] for run in within if run[1] == "zklock" and run[0] < keeper_after[0]}
        supervisor = first("zklock", keeper_after[0], old)
        guard = first("lock-guard", supervisor[0])
        written = log[-1] - log[0]
    except (StopIteration, IndexError):
        continue
    stages["end of the command, to the keeper"].append(keeper[0] - begin)
    stages["keeper, to the server's log thread"].append(log[0] - keeper[0])
    stages["log thread: write and fsync"].append(written)
    stages["log thread, to the next keeper"].append(keeper_after[0] - log[-1])
    stages["next keeper, to its supervisor"].append(supervisor[0] - keeper_after[0])
    stages["supervisor, to its guard"].append(guard[0] - supervisor[0])
    stages["guard, to the end of execve"].append(end - guard[0])

medians = {stage: statistics.median(times) for stage, times in stages.items()}
print(f"{len(next(iter(stages.values()), []))} hand-overs; the median of each stage:")
for stage, time in medians.items():
    print(f"{stage:36} {1000 * time:6.2f} ms {100 * time / sum(medians.values()):4.0f} %")
