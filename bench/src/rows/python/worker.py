"""Does what `bench python` asks for, as a program of a user would, and says how long it took.

A command is a line with a JSON array: its name and its arguments. The answer is a line as well:
`{"figure": seconds}`, or another figure where a command has one, or `{"error": "..."}`.
"""

from __future__ import annotations

import functools
import itertools
import json
import os
import pwd
import random
import statistics
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import fsspec
import numpy
import piped_io
import piped_io.safetensors
import safetensors.numpy

#: Elements of a tensor of 16 MiB, and what its bytes are made of.
SHAPE = (4096, 2048)
PAGE = 4096


class Reader:
    """A session with something to read at random places, one block at a time."""

    def __init__(self, block: int, socket: str, opened: Callable[[piped_io.Client], Any]) -> None:
        # Asleep while it waits, as the reader in Rust that this one is compared with.
        self.client = piped_io.Client(socket, wait="throughput")
        self.handle = opened(self.client)
        self.buffer = self.client.allocate(block)
        self.queue = self.client.queue()
        blocks = self.handle.length // block
        offsets = [random.randrange(blocks) * block for _ in range(4096)]
        self.offsets = itertools.cycle(offsets)

    def read(self) -> None:
        """Reads one block."""
        count = self.queue.read(self.handle, next(self.offsets), self.buffer)
        if count != len(self.buffer):
            raise ValueError(f"a read has {count} bytes")


readers: list[Reader] = []


def open_regions(count: int, block: int, socket: str, peer: str, name: str) -> None:
    """Opens a region of the peer for each of `count` readers."""
    for _ in range(count):
        readers.append(Reader(block, socket, lambda client: client.open_region(peer, name)))


def open_files(count: int, block: int, socket: str, peer: str, export: str, path: str) -> None:
    """Opens a file of the peer for each of `count` readers."""
    for _ in range(count):
        readers.append(
            Reader(block, socket, lambda client: client.open_export(peer, export, path))
        )


def p50(seconds: float) -> float:
    """The median time of the first reader's reads, one after the other, for a while."""
    read, clock, times = readers[0].read, time.perf_counter_ns, []
    end = now = clock()
    end += int(seconds * 1e9)
    while now < end:
        read()
        begun, now = now, clock()
        times.append(now - begun)
    return statistics.median(times) / 1e9


def rate(settle: float, window: float) -> float:
    """Reads a second of all readers, each in a thread of its own, after some time to settle."""
    begin = time.perf_counter() + settle
    end = begin + window
    counts = [0] * len(readers)
    errors: list[Exception] = []

    def reading(number: int) -> None:
        read, clock, count = readers[number].read, time.perf_counter, 0
        try:
            while (now := clock()) < end:
                read()
                count += begin <= now
        except Exception as error:
            errors.append(error)
        counts[number] = count

    threads = [threading.Thread(target=reading, args=(number,)) for number in range(len(readers))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(counts) / window


@functools.cache
def base() -> numpy.ndarray:
    """Bytes of a tensor; those of the tensor of number n differ from them by an XOR with n."""
    random_bytes = numpy.random.default_rng(1).bytes(2 * SHAPE[0] * SHAPE[1])
    return numpy.frombuffer(random_bytes, numpy.uint8)


@functools.cache
def sum_of_pages(number: int) -> int:
    """The first bytes of all pages of a tensor, together."""
    return int((base()[::PAGE] ^ numpy.uint8(number)).sum(dtype=numpy.uint64))


def make(path: str, tensors: int) -> None:
    """Writes a file of weights that is on the disk afterwards, and not in the page cache."""
    arrays = {
        f"layer.{number}": (base() ^ numpy.uint8(number)).view(numpy.float16).reshape(SHAPE)
        for number in range(tensors)
    }
    safetensors.numpy.save_file(arrays, path)
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(fd)


def touch(arrays: dict[str, Any], tensors: int) -> None:
    """Touches each page of all arrays. ValueError: they are not those that were made."""
    if len(arrays) != tensors:
        raise ValueError(f"{len(arrays)} arrays of {tensors}")
    for number in range(tensors):
        array = arrays[f"layer.{number}"]
        pages = array.reshape(-1).view(numpy.uint8)[::PAGE]
        if array.shape != SHAPE or int(pages.sum(dtype=numpy.uint64)) != sum_of_pages(number):
            raise ValueError(f"other bytes in layer.{number}")


def timed(tensors: int, load: Callable[[], dict[str, Any]]) -> float:
    """Seconds until arrays are there and each of their pages was touched."""
    for number in range(tensors):
        sum_of_pages(number)
    begun = time.perf_counter()
    arrays = load()
    touch(arrays, tensors)
    return time.perf_counter() - begun


@functools.cache
def client(socket: str) -> piped_io.Client:
    """The client of all loads from one node."""
    return piped_io.Client(socket)


def load(tensors: int, socket: str, url: str) -> float:
    """A load by piped."""
    node = client(socket)
    return timed(tensors, lambda: piped_io.safetensors.load_file(url, client=node))


def load_local(tensors: int, path: str) -> float:
    """A load from the local disk, by the format's own library."""
    return timed(tensors, lambda: safetensors.numpy.load_file(path))


def fetched(files: Any, source: str, copy: str) -> dict[str, Any]:
    """Arrays of a file that is copied to the local disk first."""
    files.get_file(source, copy)
    return safetensors.numpy.load_file(copy)


def http(tensors: int, url: str, copy: str | None) -> float:
    """A load by fsspec's http, into memory or by way of a copy."""
    files = fsspec.filesystem("http")
    if copy is None:
        return timed(tensors, lambda: safetensors.numpy.load(files.cat_file(url)))
    return without_copy(copy, lambda: timed(tensors, lambda: fetched(files, url, copy)))


def sftp(tensors: int, port: int, key: str, source: str, copy: str) -> float:
    """A load by fsspec's sftp, by way of a copy."""
    user = pwd.getpwuid(os.getuid()).pw_name
    ways = {"username": user, "key_filename": key, "allow_agent": False, "look_for_keys": False}
    files = fsspec.filesystem("sftp", host="127.0.0.1", port=port, **ways)
    return without_copy(copy, lambda: timed(tensors, lambda: fetched(files, source, copy)))


def without_copy(copy: str, body: Callable[[], float]) -> float:
    """The figure of `body`, after which the copy is removed."""
    try:
        return body()
    finally:
        if os.path.exists(copy):
            os.remove(copy)


COMMANDS: dict[str, Callable[..., float | None]] = {
    command.__name__: command
    for command in (open_regions, open_files, p50, rate, make, load, load_local, http, sftp)
}


def answered(line: str) -> dict[str, Any]:
    """The answer to a line."""
    name, *arguments = json.loads(line)
    begun = time.perf_counter()
    try:
        figure = COMMANDS[name](*arguments)
    except Exception as error:
        return {"error": f"{name}: {type(error).__name__}: {error}"}
    return {"figure": time.perf_counter() - begun if figure is None else figure}


def main() -> None:
    """Answers until nobody asks any more."""
    # What a library prints is no answer.
    answers, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        print(json.dumps(answered(line)), file=answers, flush=True)


if __name__ == "__main__":
    main()
