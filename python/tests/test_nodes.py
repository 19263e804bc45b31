"""The two nodes of the demo and of tests, and their end."""

from __future__ import annotations

import os
import select
import subprocess
import sys

#: Starts two nodes by a thread that ends, and waits to be killed.
PARENT = """
import sys, threading
from piped_io._nodes import Pair

pair = Pair(sys.argv[1])
starting = threading.Thread(target=pair.__enter__)
starting.start()
starting.join()
print(pair.alpha.process.pid, pair.beta.process.pid, flush=True)
sys.stdin.read()
"""


def test_nodes_end_with_the_process_that_started_them(tmp_path):
    command = [sys.executable, "-c", PARENT, str(tmp_path)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes) as parent:
        numbers = [int(number) for number in parent.stdout.readline().split()]
        daemons = [os.pidfd_open(number) for number in numbers]
        # The thread that started them is gone, and they are there.
        assert select.select(daemons, [], [], 0)[0] == [] and len(daemons) == 2
        parent.kill()
    for daemon in daemons:
        assert select.select([daemon], [], [], 60)[0] == [daemon]
        os.close(daemon)
