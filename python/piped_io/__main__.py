"""`python -m piped_io demo`: two nodes of this machine, reads between them, and their plan."""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time

from ._calls import queue_of
from ._native import Client
from ._nodes import Pair, program

LENGTH = 64 << 20
READS = 200


def demo(directory: str | None) -> None:
    """Reads a file of another node, and shows what piped predicted and what it took."""
    with tempfile.TemporaryDirectory(prefix="piped-demo-", dir=directory) as place:
        with Pair(place) as pair:
            (pair.beta.data / "blocks").write_bytes(os.urandom(LENGTH))
            client = Client(pair.alpha.socket)
            file = client.open_export("beta", "data", "blocks")
            queue = queue_of(client)
            print(f"two nodes, alpha and beta; a file of {LENGTH >> 20} MiB at beta\n")
            print(f"{'bytes':>10}  {'median':>10}  {'a second':>12}")
            for length in (4 << 10, 64 << 10, 1 << 20, 16 << 20):
                buffer = client.allocate(length)
                times = []
                for turn in range(8 if length > 65536 else READS):
                    begun = time.perf_counter()
                    queue.read(file, turn * length % LENGTH, buffer)
                    times.append(time.perf_counter() - begun)
                median = statistics.median(times)
                print(f"{length:>10}  {median * 1e6:>7.0f} us  {length / median / 1e6:>7.0f} MB/s")
            print("\nwhat the daemon predicted for the last one, and what it took:\n", flush=True)
            subprocess.run(
                [
                    program("pipectl"),
                    "--socket",
                    str(pair.alpha.directory / "admin.sock"),
                    "explain",
                    "last",
                ],
                check=False,
            )


def main() -> int:
    """Runs the command line."""
    parser = argparse.ArgumentParser(prog="python -m piped_io", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    shown = commands.add_parser("demo", help="two nodes on this machine, ended at the end")
    shown.add_argument("--directory", help="for the nodes' files; default: that for temporary ones")
    arguments = parser.parse_args()
    try:
        demo(arguments.directory)
    except KeyboardInterrupt:
        print("interrupted; nothing is left running or on the disk", file=sys.stderr)
        return 130
    except (OSError, RuntimeError) as error:
        print(f"piped_io: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
