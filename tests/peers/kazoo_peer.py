"""Takes a lock by kazoo's recipes, as it is told on stdin. Peer.java speaks the same, and says what.

    python3 kazoo_peer.py CONNECT PATH KIND SESSION_MS

KIND is lock, read or write: Lock, ReadLock, WriteLock. lock+curator is a Lock with extra_lock_patterns=["-lock-"]. The
nodes carry `kazoo KIND` as their identifier.
"""

import itertools
import os
import sys
import threading
import time

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout

CONNECT, PATH, KIND, SESSION_MS = sys.argv[1:]

# How long a contender of a crowd holds the lock: enough for a second holder to be seen.
TURN_SECONDS = 0.001


class Contender:
    """A way to take the lock, with a session of its own."""

    def __init__(self):
        self.client = KazooClient(hosts=CONNECT, timeout=int(SESSION_MS) / 1000)
        self.client.start(timeout=15)
        self.lock = None

    def acquire(self, seconds=None):
        """Waits for the lock, for ever without a limit; tells whether it was got."""
        recipe, options = {
            "lock": (self.client.Lock, {}),
            "lock+curator": (self.client.Lock, {"extra_lock_patterns": ["-lock-"]}),
            "read": (self.client.ReadLock, {}),
            "write": (self.client.WriteLock, {}),
        }[KIND]
        self.lock = recipe(PATH, "kazoo " + KIND, **options)
        try:
            return self.lock.acquire(timeout=seconds)
        except LockTimeout:
            return False

    def release(self):
        self.lock.release()

    def close(self):
        self.client.stop()
        self.client.close()


def crowd(size, turns, path):
    """Contenders with a session each, that take these turns between them."""
    log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    left = itertools.repeat(None, turns)  # Shared: one step of it is one of the interpreter.
    failures = []

    def note(word, number):
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        os.write(log, f"{word} {now} {number} {KIND}\n".encode())

    def take_turns(number):
        try:
            contender = Contender()
            for _ in left:
                contender.acquire()
                note("begin", number)
                time.sleep(TURN_SECONDS)
                note("end", number)
                contender.release()
            contender.close()
        except Exception as failure:  # It is the answer.
            failures.append(failure)

    # Process ids are below 2^22 (proc_sys_kernel(5), pid_max). The bits above tell the contenders apart.
    threads = [threading.Thread(target=take_turns, args=(os.getpid() | n << 22,)) for n in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    os.close(log)
    if failures:
        raise failures[0]


def obey(contender, words):
    if words[0] == "acquire":
        return "acquired" if contender.acquire(*(int(word) / 1000 for word in words[1:])) else "busy"
    if words[0] == "release":
        contender.release()
        return "released"
    if words[0] == "crowd":
        crowd(int(words[1]), int(words[2]), words[3])
        return "done"
    raise ValueError(words[0])


def main():
    contender = Contender()
    print(f"ready {contender.client.client_id[0]:#x}", flush=True)
    for line in iter(sys.stdin.readline, ""):
        try:
            answer = obey(contender, line.split())
        except Exception as failure:  # It is the answer.
            answer = f"failed {failure!r}"
        print(answer, flush=True)
    contender.close()


main()
