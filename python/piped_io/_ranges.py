"""Ranges of files into memory, with many requests under way, and little memory lent at a time.

A `Block` has the memory. Threads make its pages in parts of 16 MiB and lend each part to the daemon
ahead of the reads, and the part is given back behind them. So a file of any length pins about
100 MiB. Bytes get into the block without a copy. What cannot be lent, and what is too short to be
worth it, passes through buffers of the arena.
"""

from __future__ import annotations

import errno
import math
import mmap
import os
import queue
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import NamedTuple

from ._calls import queue_of, submitted
from ._native import Buffer, Client, Handle, Lent, Request, Span
from .errors import PipedError

#: Bytes of one request.
PIECE = 4 << 20

#: Requests under way at once: the least, and the most.
AT_ONCE = (8, 64)

#: Bytes of a part, at most; the daemon makes so many without giving way to others.
PART = 16 << 20

#: Parts that are lent at once, if requests under way do not take more.
PARTS = 6

#: Threads that make parts: making pages is what costs most where a machine has to find them.
LENDERS = 2

#: Bytes between two ranges that one part still spans.
GAP = 64 << 10

#: Bytes that are worth a part of their own; fewer are copied.
WORTH = 256 << 10

#: Bytes of a page: parts are whole ones.
PAGE = mmap.PAGESIZE

#: Seconds of a wait, until a reader looks whether it was told to stop.
SLICE = 0.1

#: Seconds that an end waits for what it has cancelled: a daemon that hangs would take for ever.
PATIENCE = 2.0


def at_once_of(handle: Handle, wanted: int | None = None) -> int:
    """Requests that are under way at once: as many as are wanted.

    Without a number, as many as the path has bytes under way, and one more.
    """
    if wanted is not None:
        if wanted < 1:
            raise ValueError(f"at_once is a number of requests above 0, not {wanted}")
        return wanted
    costs = handle.read_costs()
    least, most = AT_ONCE
    if costs is None or costs[2] <= 0:
        return least
    under_way = costs[1] / costs[2]
    return min(most, max(least, math.ceil(under_way / PIECE) + 1))


class Block:
    """Memory for a file's bytes from `base` on, which is best a multiple of the page."""

    def __init__(self, base: int, length: int) -> None:
        self.base = base
        self.span = Span(length)
        self.memory = memoryview(self.span)


def cut(block: Block, ranges: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Offsets in the block of parts, in whole pages, that have all ranges of the file.

    `ranges` are in order and do not overlap. Bytes between near ones are read as well.
    """
    start = end = 0
    for first, last in ranges:
        first = (first - block.base) // PAGE * PAGE
        last = -(-(last - block.base) // PAGE) * PAGE
        if first > end + GAP:
            yield from _split(start, end)
            start = first
        elif end == 0:
            start = first
        end = max(end, last)
    yield from _split(start, end)


def _split(start: int, end: int) -> Iterator[tuple[int, int]]:
    while start < end:
        stop = min(end, (start // PART + 1) * PART)
        yield start, stop
        start = stop


class _Lender:
    """Threads that make the parts of a block and lend them, while there is room for one more."""

    def __init__(
        self,
        client: Client,
        block: Block,
        parts: Iterable[tuple[int, int]],
        room: threading.Semaphore,
    ) -> None:
        self.client = client
        self.block = block
        self.parts = iter(parts)
        self.turn = threading.Lock()
        self.ready: queue.SimpleQueue[tuple[int, int, Lent | None] | BaseException | None]
        self.ready = queue.SimpleQueue()
        self.room = room
        self.ended = False
        self.threads: list[threading.Thread] = []
        try:
            for _ in range(LENDERS):
                thread = threading.Thread(target=self._run, name="piped-lender", daemon=True)
                thread.start()
                self.threads.append(thread)
        except BaseException:
            self.end(time.monotonic() + PATIENCE)
            raise

    def _run(self) -> None:
        try:
            while True:
                self.room.acquire()
                with self.turn:
                    part = None if self.ended else next(self.parts, None)
                if part is None:
                    break
                self.ready.put((*part, self._lend(*part)))
            self.ready.put(None)
        except BaseException as error:
            self.ready.put(error)
        # Another one may wait for room that nobody gives any more.
        self.room.release()

    def _lend(self, start: int, end: int) -> Lent | None:
        if end - start < WORTH:
            return None
        try:
            fd = self.block.span.make(start, end - start)
            try:
                return self.client.lend_memfd(fd)
            finally:
                os.close(fd)
        except (OSError, MemoryError) as error:
            if getattr(error, "errno", None) in (errno.ENOTCONN, errno.ETIMEDOUT):
                raise
            # Neither descriptors, pages nor the daemon's limits have room for more now.
            return None

    def next(self, wait: bool) -> tuple[int, int, Lent | None] | None:
        """The next part; None at the end of each thread. `queue.Empty` if there is none yet."""
        item = self.ready.get(wait, SLICE)
        if isinstance(item, BaseException):
            raise item
        return item

    def end(self, until: float) -> None:
        """Ends the threads. One that waits for the daemon still may end later, by itself."""
        self.ended = True
        self.room.release()
        for thread in self.threads:
            thread.join(max(0, until - time.monotonic()))
        while not self.ready.empty():
            self.ready.get()


class _Read(NamedTuple):
    """A request under way: what it reads of the block, and by which part."""

    request: Request
    at: int
    wanted: int
    lent: Lent | None
    is_last: bool


class _Reader:
    """Requests of one thread that read parts of a block."""

    def __init__(
        self,
        client: Client,
        handle: Handle,
        block: Block,
        timeout: float | None,
        room: threading.Semaphore,
        stop: threading.Event | None,
    ) -> None:
        self.client = client
        self.handle = handle
        self.block = block
        self.timeout = timeout
        self.room = room
        self.stop = stop
        self.queue = queue_of(client)
        self.length = handle.length - block.base
        self.under_way: deque[_Read] = deque()
        self.spares: list[Buffer] = []

    def check(self) -> None:
        """Raises InterruptedError if the reader was told to stop."""
        if self.stop is not None and self.stop.is_set():
            raise InterruptedError(errno.EINTR, "the reader was told to stop")

    def submit(self, at: int, end: int, part: tuple[int, int, Lent | None]) -> None:
        """Submits the read of a piece of a part."""
        start, stop, lent = part
        wanted = min(end, self.length) - at
        buffer = self._spare() if lent is None else lent.buffer(at - start, wanted)
        place = (self.handle, self.block.base + at, buffer)
        request = submitted(
            self.queue,
            lambda queue: queue.submit_read(*place, length=wanted, timeout=self.timeout),
            self.check,
        )
        self.under_way.append(_Read(request, at, wanted, lent, end == stop))

    def _spare(self) -> Buffer:
        """A buffer of the arena; without room for one more, that of an earlier request."""
        while not self.spares:
            try:
                return self.client.allocate(PIECE)
            except PipedError:
                if not self.under_way:
                    raise
                self.finish()
        return self.spares.pop()

    def finish(self) -> None:
        """Waits for the oldest request. After the last of a part, there is room for another."""
        read = self.under_way[0]
        # Until it has ended it is under way, also for who is interrupted here.
        while not _has_ended(read.request, SLICE):
            self.check()
        count = read.request.result()
        self.under_way.popleft()
        buffer = read.request.buffer
        if read.lent is None and buffer is not None:
            buffer.read_into(self.block.memory[read.at : read.at + count])
            self.spares.append(buffer)
        if count < read.wanted:
            raise ValueError("the file became shorter while it was read")
        is_last = read.is_last
        # Given back before the next one is lent.
        del read, buffer
        if is_last:
            self.room.release()

    def end(self, until: float) -> None:
        """Cancels all requests under way. One that did not end in time keeps its memory itself."""
        for read in self.under_way:
            read.request.cancel()
        while self.under_way:
            _has_ended(self.under_way.popleft().request, max(0, until - time.monotonic()))


def _has_ended(request: Request, seconds: float) -> bool:
    """Waits for a request's end, so long at most; returns whether it has ended, however it did."""
    with suppress(OSError):
        request.wait(seconds)
    return request.done()


def read_ranges(
    client: Client,
    handle: Handle,
    block: Block,
    ranges: Sequence[tuple[int, int]],
    at_once: int,
    timeout: float | None = None,
    stop: threading.Event | None = None,
) -> None:
    """Reads ranges of a file (offsets in bytes, in order, not overlapping) to their places.

    Raises ValueError if the file has not all their bytes, OSError for what cannot be read, and
    InterruptedError soon after `stop` was set. Then, and after Ctrl-C, nothing is under way, unless
    the daemon hangs: its late bytes get into pages that the block shares, or into none.
    """
    if ranges and ranges[-1][1] > handle.length:
        raise ValueError(f"the ranges end behind the file, which has {handle.length} bytes")
    most = max(PARTS, -(-at_once * PIECE // PART) + 2)
    room = threading.Semaphore(most)
    reader = _Reader(client, handle, block, timeout, room, stop)
    ends = 0
    lender = _Lender(client, block, cut(block, ranges), room)
    try:
        while ends < LENDERS:
            reader.check()
            try:
                part = lender.next(wait=not reader.under_way)
            except queue.Empty:
                if reader.under_way:
                    reader.finish()
                continue
            if part is None:
                ends += 1
                continue
            start, end, _ = part
            for at in range(start, end, PIECE):
                while len(reader.under_way) >= at_once or (
                    reader.under_way and reader.queue.is_full
                ):
                    reader.finish()
                reader.submit(at, min(end, at + PIECE), part)
            del part
        while reader.under_way:
            reader.finish()
    finally:
        until = time.monotonic() + PATIENCE
        try:
            reader.end(until)
        finally:
            lender.end(until)
