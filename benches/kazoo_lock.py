"""kazoo_lock.py HOST:PORT LOCK COMMAND... - runs COMMAND under kazoo's Lock, as a wrapper in Python would."""

import subprocess
import sys

from kazoo.client import KazooClient

client = KazooClient(hosts=sys.argv[1], timeout=30)
client.start()
with client.Lock(sys.argv[2]):
    status = subprocess.call(sys.argv[3:])
client.stop()
client.close()
sys.exit(status)
