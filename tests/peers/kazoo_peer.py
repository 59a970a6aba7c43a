"""Takes a lock with one of kazoo's recipes, on commands from stdin. The protocol is described in Peer.java.

    python3 kazoo_peer.py CONNECT PATH KIND SESSION_MS LOG

KIND is lock, read, write, election, semaphore or lease: Lock, ReadLock, WriteLock, Election, Semaphore (with so many
leases that zklock does not use them up), NonBlockingLease. lock+curator is a Lock with extra_lock_patterns=["-lock-"].
The nodes carry `kazoo KIND` as their identifier. single is one ephemeral node, PATH/lock.
"""

import datetime
import itertools
import os
import socket
import sys
import threading
import time
import uuid

from kazoo.client import KazooClient
from kazoo.exceptions import LockTimeout, NodeExistsError

CONNECT, PATH, KIND, SESSION_MS, LOG = sys.argv[1:]

# As for zklock.
LOGIN = [tuple(login.split(":", 1)) for login in [os.environ.get("ZKLOCK_AUTH")] if login]

# How long a contender of a crowd holds the lock: long enough for a second holder to be noticed.
TURN_SECONDS = 0.001

BEAT_SECONDS = 0.003


class Log:
    """Notes when this peer, or each contender of its crowd, holds the lock."""

    def __init__(self):
        self.file = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        self.holds = False
        self.changes = threading.Lock()
        threading.Thread(target=self.beat, daemon=True).start()

    def note(self, word, number):
        # A single write, so that lines of several processes are not mixed up.
        now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        os.write(self.file, f"{word} {now} {number} {KIND}\n".encode())

    def hold(self, begins):
        with self.changes:
            self.holds = begins
            self.note("begin" if begins else "end", os.getpid())

    def beat(self):
        while True:
            with self.changes:
                if self.holds:
                    self.note("alive", os.getpid())
            time.sleep(BEAT_SECONDS)


class Election:
    """An Election with the methods of a lock."""

    def __init__(self, client, path, identifier):
        self.election = client.Election(path, identifier)
        self.leads = threading.Event()
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.election.run, args=(self.lead,), daemon=True)

    def lead(self):
        self.leads.set()
        self.over.wait()

    def acquire(self, timeout=None):
        self.thread.start()
        if not self.leads.wait(timeout):
            self.election.cancel()
            self.release()
            return False
        return True

    def release(self):
        self.over.set()
        self.thread.join()


class Lease:
    """A NonBlockingLease with the methods of a lock."""

    def __init__(self, client, path, identifier):
        self.client, self.path, self.identifier = client, path, identifier

    def acquire(self, timeout=None):
        del timeout  # A NonBlockingLease is acquired at once or not at all.
        return self.renew(datetime.timedelta(hours=1))

    def renew(self, duration):
        return bool(self.client.NonBlockingLease(self.path, duration, self.identifier))

    def release(self):
        # The recipe has no release; a lease can only run out.
        self.renew(datetime.timedelta(0))


class Single:
    """One ephemeral node, without a recipe of kazoo. Its path and its data are those of `zk-flock lock COMMAND`."""

    def __init__(self, client, path, identifier):
        del identifier
        self.client, self.parent, self.node = client, path, path + "/lock"
        self.data = (socket.gethostname() + str(uuid.uuid4())).encode()

    def create(self):
        self.client.ensure_path(self.parent)
        try:
            self.client.create(self.node, self.data, ephemeral=True)
        except NodeExistsError:
            return False
        return True

    def acquire(self, timeout=None):
        until = None if timeout is None else time.monotonic() + timeout
        while not self.create():
            changed = threading.Event()
            if not self.client.exists(self.node, watch=lambda event, changed=changed: changed.set()):
                continue
            if not changed.wait(None if until is None else max(0, until - time.monotonic())):
                return False
        return True

    def release(self):
        self.client.delete(self.node)


class Contender:
    """A way to take the lock, with a session of its own."""

    def __init__(self):
        self.client = KazooClient(hosts=CONNECT, timeout=int(SESSION_MS) / 1000, auth_data=LOGIN)
        self.client.start(timeout=15)
        self.lock = None

    def acquire(self, seconds=None):
        """Waits for the lock, by default forever. Returns whether it was acquired."""
        recipe, options = {
            "lock": (self.client.Lock, {}),
            "lock+curator": (self.client.Lock, {"extra_lock_patterns": ["-lock-"]}),
            "read": (self.client.ReadLock, {}),
            "write": (self.client.WriteLock, {}),
            "election": (Election, {"client": self.client}),
            "semaphore": (self.client.Semaphore, {"max_leases": 100}),
            "lease": (Lease, {"client": self.client}),
            "single": (Single, {"client": self.client}),
        }[KIND]
        self.lock = recipe(path=PATH, identifier="kazoo " + KIND, **options)
        try:
            return self.lock.acquire(timeout=seconds)
        except LockTimeout:
            return False

    def release(self):
        self.lock.release()

    def close(self):
        self.client.stop()
        self.client.close()


def crowd(size, turns, log):
    """Contenders with a session each, which share these turns."""
    left = itertools.repeat(None, turns)  # The threads share it: each step of it is atomic in the interpreter.
    failures = []

    def take_turns(number):
        try:
            contender = Contender()
            for _ in left:
                contender.acquire()
                log.note("begin", number)
                time.sleep(TURN_SECONDS)
                log.note("end", number)
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
    if failures:
        raise failures[0]


def obey(contender, log, words):
    if words[0] == "acquire":
        if not contender.acquire(*(int(word) / 1000 for word in words[1:])):
            return "busy"
        log.hold(True)
        return "acquired"
    if words[0] == "release":
        log.hold(False)
        contender.release()
        return "released"
    if words[0] == "crowd":
        crowd(int(words[1]), int(words[2]), log)
        return "done"
    raise ValueError(words[0])


def main():
    contender = Contender()
    log = Log()
    print(f"ready {contender.client.client_id[0]:#x}", flush=True)
    for line in iter(sys.stdin.readline, ""):
        try:
            answer = obey(contender, log, line.split())
        except Exception as failure:  # It is the answer.
            answer = f"failed {failure!r}"
        print(answer, flush=True)
    contender.close()


main()
