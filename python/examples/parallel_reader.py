"""Read a large file of another node by several threads, and print the digest of the whole.

    python parallel_reader.py piped://beta/data/blocks --threads 8

Each thread reads one piece at a time while the main thread digests them in order, so memory holds
one piece for each thread and one more, whatever the length of the file.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
import threading
import time
import zlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

import piped_io

#: Threads share so many queues at most: a daemon gives a program 16, if nobody changed that.
QUEUES_MAX = 8


class Digest(Protocol):
    """What hashlib's digests have."""

    def update(self, data: memoryview, /) -> None:
        """Adds bytes to what was digested."""

    def hexdigest(self) -> str:
        """The digest in hexadecimal digits."""


class Crc32:
    """A CRC-32 with the methods of hashlib's digests."""

    def __init__(self) -> None:
        self._value = 0

    def update(self, data: memoryview, /) -> None:
        """Adds bytes to what was digested."""
        self._value = zlib.crc32(data, self._value)

    def hexdigest(self) -> str:
        """The checksum in hexadecimal digits."""
        return f"{self._value:08x}"


DIGESTS: dict[str, Callable[[], Digest]] = {
    "sha256": hashlib.sha256,
    "blake2b": hashlib.blake2b,
    "crc32": Crc32,
}


class Reader:
    """A buffer, and a queue that others may share: reads one piece at a time, on any thread."""

    def __init__(self, buffer: piped_io.Buffer, queue: piped_io.Queue, timeout: float) -> None:
        self.buffer, self.queue, self.timeout = buffer, queue, timeout
        self._request: piped_io.Request | None = None
        self._stopped = False
        self._lock = threading.Lock()

    def read(self, file: piped_io.Handle, offset: int, length: int) -> int:
        """Reads bytes of the file from `offset` on into the buffer: how many."""
        with self._lock:
            if self._stopped:
                raise InterruptedError("the reader was stopped")
            self._request = self.queue.submit_read(
                file, offset, self.buffer, length=length, timeout=self.timeout
            )
        return int(self._request.wait())

    def stop(self) -> None:
        """Ends the request that is under way, and lets no other begin."""
        with self._lock:
            self._stopped = True
            if self._request is not None:
                self._request.cancel()


def digest_file(file: piped_io.Handle, readers: list[Reader], digest: Digest) -> None:
    """Reads the whole file by all readers at once, and digests its bytes in order."""
    piece, length = len(readers[0].buffer), file.length
    idle, under_way = deque(readers), deque[tuple[Reader, int, "Future[int]"]]()
    offset = 0
    with ThreadPoolExecutor(len(readers)) as threads:
        try:
            while offset < length or under_way:
                while idle and offset < length:
                    reader, wanted = idle.popleft(), min(piece, length - offset)
                    future = threads.submit(reader.read, file, offset, wanted)
                    under_way.append((reader, wanted, future))
                    offset += wanted
                reader, wanted, future = under_way[0]
                if future.result() < wanted:
                    raise EOFError("the file became shorter while it was read: read it again")
                under_way.popleft()
                with memoryview(reader.buffer) as view:
                    digest.update(view[:wanted])
                idle.append(reader)
        except BaseException:
            threads.shutdown(wait=False, cancel_futures=True)
            for reader in readers:
                reader.stop()
            raise


def explain(file: piped_io.Handle) -> None:
    """Prints what the daemon expects of reads, and how it planned the last one."""
    costs = file.read_costs()
    if costs is None:
        print("explain: what reads of this path cost was not known when the file was opened")
    else:
        request, latency, byte, known = costs
        print(
            f"explain: a request costs {request * 1e6:.1f} us, its way {latency * 1e6:.1f} us,"
            f" a MiB {byte * (1 << 20) * 1e6:.1f} us ({known:.0%} known)"
        )
    pipectl = shutil.which("pipectl")
    if pipectl is None:
        print("explain: install pipectl on the PATH to see the plan", file=sys.stderr)
        return
    sys.stdout.flush()
    subprocess.run([pipectl, "explain", "last"], check=False)


def positive(text: str) -> int:
    """A number above zero, for the command line."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not above zero")
    return number


def arguments() -> argparse.Namespace:
    """Reads the command line, and ends the program where it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("url", help="the file: piped://PEER/EXPORT/PATH; localhost is this node")
    parser.add_argument("--threads", type=positive, default=4, help="default: 4")
    parser.add_argument(
        "--piece", type=positive, default=4, metavar="MIB", help="MiB of one read; default: 4"
    )
    parser.add_argument("--digest", choices=DIGESTS, default="sha256", help="default: sha256")
    parser.add_argument("--timeout", type=float, default=30, help="seconds of a read; default: 30")
    parser.add_argument("--socket", help="socket of the daemon; default: PIPED_CLIENT_SOCKET")
    parser.add_argument(
        "--explain",
        action="store_true",
        help="print the plan of the last read, by pipectl (PIPED_ADMIN_SOCKET names its socket)",
    )
    return parser.parse_args()


def run(options: argparse.Namespace) -> None:
    """Reads the file, and prints its digest and how fast that was."""
    peer, export, path = piped_io.parse_url(options.url)
    client = piped_io.Client(options.socket)
    digest = DIGESTS[options.digest]()
    with client.open_export(peer, export, path) as file:
        piece = min(options.piece << 20, max(file.length, 1))
        # One more than reads at a time: its piece is digested meanwhile.
        count = min(options.threads + 1, -(-file.length // piece) or 1)
        queues = [client.queue() for _ in range(min(count, QUEUES_MAX))]
        readers = [
            Reader(client.allocate(piece), queues[number % len(queues)], options.timeout)
            for number in range(count)
        ]
        begun = time.perf_counter()
        digest_file(file, readers, digest)
        seconds = time.perf_counter() - begun
        print(f"{digest.hexdigest()}  {options.url}", flush=True)
        speed = file.length / seconds / 1e6
        print(f"{file.length} bytes in {seconds:.3f} s: {speed:.0f} MB/s", file=sys.stderr)
        if options.explain:
            explain(file)


def main() -> int:
    """Runs the command line: 0, or 1 for an error, or 130 after Ctrl-C."""
    options = arguments()
    try:
        run(options)
    except KeyboardInterrupt:
        print("parallel_reader: interrupted", file=sys.stderr)
        return 130
    except (OSError, ValueError, OverflowError, EOFError) as error:
        print(f"parallel_reader: {options.url}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
