"""A cache in the memory of one process, which processes on other nodes read and change.

    python shared_cache.py serve piped://localhost/cache      # on node beta: the memory
    python shared_cache.py join piped://beta/cache            # on node alpha

Both take commands on the standard input, one a line: `put KEY VALUE`, `get KEY`. No process runs
code for another: a get is one read of the memory, a put is a read, a write and two atomics.

A key has one slot, by its hash; another key with the same slot takes its place. A slot is a word
and two cells. The word has a serial number and, while somebody writes, the writer's token. The
value with the serial S is in cell S % 2, under a checksum that covers S. A writer puts its token
into the word, writes the *other* cell, and then changes the word to S + 1 without a token. Whoever
reads meanwhile, or after the writer was killed, finds the old value. The token of a writer that was
killed is replaced by the next writer, after `--patience` seconds.

A writer that only pauses for longer counts as killed as well. When it goes on, it still writes its
cell, which may be the current one by then: until it finds its token gone and puts once more,
readers of the slot get its value, or none. So `--patience` is longer than any pause of a writer.
"""

from __future__ import annotations

import argparse
import hashlib
import secrets
import struct
import sys
import time

import piped_io

#: What a region begins with: who made it, the number of slots, and bytes of a key and its value.
HEAD = struct.Struct("<8sQQ")
MAGIC = b"pcache 1"

#: What a cell begins with: the checksum of the rest, serial number, lengths of key and value.
CELL = struct.Struct("<16sQII")

#: The low half of a slot's word is the serial number, the high half the writer's token.
SERIAL_BITS = 32

#: Reads of a slot that is changing all the time, until it counts as one without a value.
TRIES_MAX = 1000

#: Seconds between two looks at a slot that another one writes.
PAUSE = 0.001


def checksum(data: bytes | memoryview) -> bytes:
    """The checksum of a cell's bytes."""
    return hashlib.blake2b(data, digest_size=16).digest()


def cell_bytes(capacity: int) -> int:
    """Bytes of a cell for keys and values of `capacity` bytes; words stay aligned."""
    return -(-(CELL.size + capacity) // 8) * 8


def region_bytes(slots: int, capacity: int) -> int:
    """Bytes of the region for so many slots."""
    return HEAD.size + slots * (8 + 2 * cell_bytes(capacity))


class Cache:
    """The cache as one process sees it, with its own memory or that of another node."""

    def __init__(
        self, client: piped_io.Client, region: piped_io.Handle, patience: float = 1
    ) -> None:
        self._region, self._patience = region, patience
        self._queue = client.queue()
        head = client.allocate(HEAD.size)
        count = self._queue.read(region, 0, head)
        magic, slots, capacity = HEAD.unpack(head.tobytes())
        length = region_bytes(slots, capacity)
        if count < HEAD.size or magic != MAGIC or slots < 1 or length != region.length:
            raise ValueError("the region is no cache: name one that `serve` made")
        self._slots: int = slots
        self._capacity: int = capacity
        self._cell = cell_bytes(self._capacity)
        self._slot = client.allocate(8 + 2 * self._cell)
        self._new = client.allocate(self._cell)

    def get(self, key: bytes) -> bytes | None:
        """The value of a key; None if it has none, or another key took its place."""
        at = self._place(key)
        for _ in range(TRIES_MAX):
            serial, _token = self._look(at)
            if serial == 0:
                return None
            found = self._value(serial)
            if found is not None:
                return found[1] if found[0] == key else None
        return None

    def put(self, key: bytes, value: bytes) -> None:
        """Gives a key a value, which others see whole or not at all."""
        if len(key) + len(value) > self._capacity:
            raise ValueError(f"key and value have more than {self._capacity} bytes together")
        at, token = self._place(key), secrets.randbits(31) + 1
        while True:
            serial = self._hold(at, token)
            self._write(at, serial + 1, key, value)
            held = token << SERIAL_BITS | serial
            if self._swap(at, held, (serial + 1) % (1 << SERIAL_BITS)) == held:
                return
            # Another one believed that this writer was dead: its value is there, then ours.

    def _place(self, key: bytes) -> int:
        number = int.from_bytes(checksum(key)[:8], "little") % self._slots
        return HEAD.size + number * (8 + 2 * self._cell)

    def _look(self, at: int) -> tuple[int, int]:
        """Reads the slot: its serial number and the token of who writes, or 0."""
        if self._queue.read(self._region, at, self._slot) < len(self._slot):
            raise EOFError("the region became shorter")
        word = int.from_bytes(self._slot.tobytes(8), "little")
        return word % (1 << SERIAL_BITS), word >> SERIAL_BITS

    def _value(self, serial: int) -> tuple[bytes, bytes] | None:
        """Key and value with a serial number in what was read; None if it was being changed."""
        start = 8 + serial % 2 * self._cell
        cell = self._slot.tobytes()[start : start + self._cell]
        digest, written, key, value = CELL.unpack_from(cell)
        if written != serial or key + value > self._capacity:
            return None
        end = CELL.size + key + value
        if checksum(cell[len(digest) : end]) != digest:
            return None
        return cell[CELL.size : CELL.size + key], cell[CELL.size + key : end]

    def _hold(self, at: int, token: int) -> int:
        """Puts the token into the slot's word, and returns the serial number there."""
        seen, since = None, time.monotonic()
        while True:
            serial, holder = self._look(at)
            if (serial, holder) != seen:
                seen, since = (serial, holder), time.monotonic()
            if holder == 0 or time.monotonic() - since > self._patience:
                expected = holder << SERIAL_BITS | serial
                if self._swap(at, expected, token << SERIAL_BITS | serial) == expected:
                    return serial
            else:
                time.sleep(PAUSE)

    def _write(self, at: int, serial: int, key: bytes, value: bytes) -> None:
        serial %= 1 << SERIAL_BITS
        rest = CELL.pack(b"", serial, len(key), len(value))[16:] + key + value
        self._new.write_from(checksum(rest) + rest)
        self._queue.write(
            self._region, at + 8 + serial % 2 * self._cell, self._new, length=16 + len(rest)
        )

    def _swap(self, at: int, expected: int, new: int) -> int:
        was: int = self._queue.submit_compare_swap(self._region, at, expected, new).wait()
        return was


def obey(cache: Cache) -> None:
    """Carries out the commands of the standard input."""
    # There is none where a shell closed it.
    for line in sys.stdin.buffer if sys.stdin else ():
        words = line.strip(b"\r\n").split(b" ", 2)
        try:
            if words[0] == b"get" and len(words) == 2:
                value = cache.get(words[1])
                answer = b"no value" if value is None else b"value " + value
            elif words[0] == b"put" and len(words) == 3:
                cache.put(words[1], words[2])
                answer = b"done"
            else:
                answer = b"error: a line is `get KEY` or `put KEY VALUE`"
        except ValueError as error:
            answer = f"error: {error}".encode()
        sys.stdout.buffer.write(answer + b"\n")
        sys.stdout.buffer.flush()


def positive(text: str) -> int:
    """A number above zero, for the command line."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not above zero")
    return number


def arguments() -> argparse.Namespace:
    """Reads the command line, and ends the program where it is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("role", choices=["serve", "join"], help="have the memory, or use another's")
    parser.add_argument("url", help="piped://PEER/NAME; localhost is this node")
    parser.add_argument("--slots", type=positive, default=1024, help="for serve; default: 1024")
    parser.add_argument(
        "--capacity", type=positive, default=4000, help="bytes of key and value; default: 4000"
    )
    parser.add_argument("--allow", action="append", metavar="PEER", help="for serve; default: all")
    parser.add_argument(
        "--patience", type=float, default=1, help="seconds until a writer is dead; default: 1"
    )
    parser.add_argument("--socket", help="socket of the daemon; default: PIPED_CLIENT_SOCKET")
    return parser.parse_args()


def run(options: argparse.Namespace) -> None:
    """Has the memory, or opens another's, and carries out commands."""
    peer, name, path = piped_io.parse_url(options.url)
    if path or (options.role == "serve" and peer is not None):
        raise ValueError("serve takes piped://localhost/NAME, join piped://PEER/NAME")
    client = piped_io.Client(options.socket)
    if options.role == "join":
        obey(Cache(client, client.open_region(peer, name, "rwa"), options.patience))
        return
    memory = client.allocate(region_bytes(options.slots, options.capacity))
    memory.write_from(bytes(len(memory)))
    memory.write_from(HEAD.pack(MAGIC, options.slots, options.capacity))
    region = client.export_region(name, memory, "rwa", peers=options.allow)
    cache = Cache(client, region.handle, options.patience)
    print(f"serving {len(region)} bytes as {name}; Ctrl-C ends it", file=sys.stderr, flush=True)
    obey(cache)
    # Without more commands the memory is still there for the others.
    while client.is_connected:
        time.sleep(0.2)
    raise ConnectionError("the daemon is gone, and the cache with it: start both anew")


def main() -> int:
    """Runs the command line: 0, or 1 for an error, or 130 after Ctrl-C."""
    options = arguments()
    try:
        run(options)
    except KeyboardInterrupt:
        print("shared_cache: interrupted", file=sys.stderr)
        return 130
    except (OSError, ValueError, OverflowError, EOFError) as error:
        print(f"shared_cache: {options.url}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
