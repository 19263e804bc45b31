"""Ranges of files into memory that is lent in parts: whatever cannot be lent, ends, or hangs."""

from __future__ import annotations

import errno
import itertools
import os
import random
import resource
import signal
import subprocess
import sys
import threading
import time
import weakref

import piped_io
import pytest
from piped_io import PipedError, _ranges
from piped_io._calls import queue_of
from piped_io._native import Span
from piped_io._nodes import Pair
from piped_io._ranges import Block, read_ranges


class Other:
    """A client or queue that is as another one, but for what a subclass changes."""

    def __init__(self, client) -> None:
        self.client = client

    def __getattr__(self, name):
        return getattr(self.client, name)


class Refusing(Other):
    """Lends parts by their numbers: what is not in `lent` is refused."""

    def __init__(self, client, lent=()) -> None:
        super().__init__(client)
        self.lent = lent
        self.numbers = itertools.count()

    def lend_memfd(self, fd):
        if next(self.numbers) not in self.lent:
            raise PipedError(12, "no room")
        return self.client.lend_memfd(fd)


@pytest.mark.parametrize("lent", [(), (0,), (0, 1), (1, 3)])
def test_without_room_to_lend_it_comes_through_the_arena(client, data, lent):
    content = random.Random(4).randbytes(60 << 20)
    (data / "staged").write_bytes(content)
    file = client.open_export("beta", "data", "staged")
    block = Block(0, file.length)
    read_ranges(Refusing(client, lent), file, block, [(0, file.length)], 2)
    assert block.memory == content


def test_without_room_for_more_buffers_those_of_the_arena_are_used_again(client, data):
    class Tight(Refusing):
        buffers = 0

        def allocate(self, length):
            self.buffers += 1
            if self.buffers > 2:
                raise PipedError(12, "no room")
            return self.client.allocate(length)

    content = random.Random(5).randbytes(40 << 20)
    (data / "tight").write_bytes(content)
    file = client.open_export("beta", "data", "tight")
    block = Block(0, len(content))
    read_ranges(Tight(client), file, block, [(0, len(content))], 8)
    assert block.memory == content
    none = Tight(client)
    none.buffers = 2
    with pytest.raises(PipedError, match="no room"):
        read_ranges(none, file, block, [(0, 100)], 8)


def test_a_limit_on_lending_is_no_limit_on_weights(tmp_path):
    with Pair(tmp_path) as pair:
        pair.alpha.stop()
        with open(pair.alpha.config, "a") as config:
            config.write('limits.client.lent = "20MiB"\n')
        pair.alpha.start()
        client = piped_io.Client(pair.alpha.socket)
        content = random.Random(8).randbytes(60 << 20)
        path = tmp_path / "local"
        path.write_bytes(content)
        file = client.open_file(path)
        block = Block(0, file.length)
        read_ranges(client, file, block, [(0, file.length)], 8)
        assert block.memory == content


def test_little_is_lent_at_once_and_nothing_afterwards(client, data):
    class Counting(Other):
        def __init__(self, client) -> None:
            super().__init__(client)
            self.lent: list[weakref.ref] = []
            self.most = 0

        def lend_memfd(self, fd):
            lent = self.client.lend_memfd(fd)
            assert len(lent) <= _ranges.PART
            self.lent.append(weakref.ref(lent))
            self.most = max(self.most, sum(part() is not None for part in self.lent))
            return lent

    length = 2 * (_ranges.PARTS + 3) * _ranges.PART
    path = data / "many-parts"
    with open(path, "wb") as file:
        file.truncate(length)
        file.seek(length - 4)
        file.write(b"ends")
    counting, block = Counting(client), Block(0, length)
    file = client.open_export("beta", "data", "many-parts")
    read_ranges(counting, file, block, [(0, length)], 4)
    assert block.memory[-4:] == b"ends"
    assert len(counting.lent) == length // _ranges.PART
    assert counting.most <= _ranges.PARTS
    assert not any(part() for part in counting.lent)
    path.unlink()


def test_ranges_are_read_and_what_lies_between_is_not(client, data):
    content = random.Random(1).randbytes(40 << 20)
    (data / "sparse").write_bytes(content)
    file = client.open_export("beta", "data", "sparse")
    mib = 1 << 20
    ranges = [(5, 9), (5000, 5001), (mib + 7, 2 * mib), (15 * mib, 33 * mib + 1)]
    ranges.append((40 * mib - 1, 40 * mib))
    for base in (0, 5):
        block = Block(base, len(content) - base)
        read_ranges(client, file, block, ranges, 4)
        for start, end in ranges:
            assert block.memory[start - base : end - base] == content[start:end]
        assert not any(block.memory[3 * mib : 14 * mib])
        assert not any(block.memory[34 * mib : 39 * mib])


@pytest.mark.parametrize("seed", range(20))
def test_parts_cover_ranges_and_never_meet(seed):
    generator = random.Random(seed)
    base = generator.choice([0, 4096, 77])
    limits = [generator.choice([10, 100_000, 3 << 20]) for _ in range(60)]
    lengths = [generator.randrange(1, most) for most in limits]
    ends = list(itertools.accumulate(lengths, initial=base))
    ranges = list(zip(ends[::2], ends[1::2]))
    block = Block(base, ends[-1] - base)
    parts = list(_ranges.cut(block, ranges))
    for start, end in parts:
        assert 0 <= start < end <= len(block.span)
        assert start % 4096 == 0 and end % 4096 == 0
        assert start // _ranges.PART == (end - 1) // _ranges.PART
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(parts))
    for start, end in ranges:
        at = start - base
        while at < end - base:
            at = next(part[1] for part in parts if part[0] <= at < part[1])
    assert list(_ranges.cut(block, [])) == []


def test_ranges_behind_the_end_are_refused(client, data):
    (data / "short").write_bytes(bytes(100))
    file = client.open_export("beta", "data", "short")
    block = Block(0, 1 << 20)
    for ranges in ([(8192, 9000)], [(0, 101)], [(0, 10), (90, 1 << 20)]):
        with pytest.raises(ValueError, match="behind the file"):
            read_ranges(client, file, block, ranges, 4)
    read_ranges(client, file, block, [(0, 100)], 4)
    read_ranges(client, file, block, [], 4)


def test_the_daemon_ends_while_weights_are_read(tmp_path):
    with Pair(tmp_path) as pair:
        with open(pair.beta.data / "large", "wb") as large:
            large.truncate(256 << 20)
        client = piped_io.Client(pair.alpha.socket)
        file = client.open_export("beta", "data", "large")

        class Ending(Other):
            calls = 0

            def lend_memfd(self, fd):
                self.calls += 1
                if self.calls == 3:
                    pair.alpha.stop(kill=True)
                return self.client.lend_memfd(fd)

        block = Block(0, file.length)
        with pytest.raises(OSError):
            read_ranges(Ending(client), file, block, [(0, file.length)], 4)
        until_none_is_left()


def piped_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "piped-lender"]


def until_none_is_left() -> None:
    """Waits for the end of threads that a read did not wait for any longer."""
    for thread in piped_threads():
        thread.join(60)
    assert piped_threads() == []


def test_an_interrupt_leaves_nothing_under_way(client, data):
    with open(data / "interrupted", "wb") as file:
        file.truncate(256 << 20)
    file = client.open_export("beta", "data", "interrupted")
    block = Block(0, file.length)

    class Interrupting(Other):
        parts = 0

        def lend_memfd(self, fd):
            self.parts += 1
            if self.parts == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return self.client.lend_memfd(fd)

    with pytest.raises(KeyboardInterrupt):
        read_ranges(Interrupting(client), file, block, [(0, file.length)], 4)
    until = time.monotonic() + 60
    while queue_of(client).underway:
        assert time.monotonic() < until
        queue_of(client).submit_nop().wait()
    until_none_is_left()


#: Reads from a daemon that stops in the middle, and hears Ctrl-C then.
HANGING = """
import os, signal, sys
import piped_io
from piped_io._ranges import Block, read_ranges

socket, daemon = sys.argv[1], int(sys.argv[2])
client = piped_io.Client(socket, timeout=3600)
file = client.open_export("beta", "data", "hanging")

class Stopping:
    parts = 0
    def __getattr__(self, name):
        return getattr(client, name)
    def lend_memfd(self, fd):
        self.parts += 1
        if self.parts == 3:
            os.kill(daemon, signal.SIGSTOP)
            os.kill(os.getpid(), signal.SIGINT)
        return client.lend_memfd(fd)

block = Block(0, file.length)
try:
    read_ranges(Stopping(), file, block, [(0, file.length)], 4)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.fixture
def hanging(tmp_path):
    """Nodes, the first of which a test stops; it goes on at last."""
    with Pair(tmp_path) as pair:
        with open(pair.beta.data / "hanging", "wb") as file:
            file.truncate(256 << 20)
        try:
            yield pair
        finally:
            pair.alpha.process.send_signal(signal.SIGCONT)


def test_an_interrupt_ends_a_read_of_a_daemon_that_hangs_and_so_the_program(hanging):
    daemon = str(hanging.alpha.process.pid)
    program = subprocess.Popen(
        [sys.executable, "-c", HANGING, hanging.alpha.socket, daemon],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        told = program.communicate(timeout=60)
    finally:
        program.kill()
        program.wait()
    assert told == (b"interrupted\n", b"") and program.returncode == 0


def test_a_reader_of_a_daemon_that_hangs_is_told_to_stop(hanging):
    client = piped_io.Client(hanging.alpha.socket)
    file = client.open_export("beta", "data", "hanging")
    stop, told = threading.Event(), []

    class Stopping(Other):
        parts = 0

        def lend_memfd(self, fd):
            self.parts += 1
            if self.parts == 3:
                hanging.alpha.process.send_signal(signal.SIGSTOP)
                stop.set()
            return self.client.lend_memfd(fd)

    def read() -> None:
        try:
            ranges = [(0, file.length)]
            read_ranges(
                Stopping(client), file, Block(0, file.length), ranges, 4, None, stop
            )
        except BaseException as error:
            told.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(60)
    assert [type(error) for error in told] == [InterruptedError]
    hanging.alpha.process.send_signal(signal.SIGCONT)
    until_none_is_left()


def test_without_a_queue_nothing_is_lent(client, data):
    class Queueless(Refusing):
        def queue(self):
            raise PipedError(11, "no more queues")

    (data / "queueless").write_bytes(bytes(1 << 20))
    file = client.open_export("beta", "data", "queueless")
    other = Queueless(client)
    with pytest.raises(PipedError, match="no more queues"):
        read_ranges(other, file, Block(0, 1 << 20), [(0, 1 << 20)], 4)
    assert next(other.numbers) == 0 and piped_threads() == []


def test_a_reader_that_is_told_to_stop_does(client, data):
    with open(data / "stopped", "wb") as file:
        file.truncate(64 << 20)
    file = client.open_export("beta", "data", "stopped")
    stop = threading.Event()
    stop.set()
    with pytest.raises(InterruptedError):
        read_ranges(client, file, Block(0, file.length), [(0, file.length)], 4, None, stop)
    assert piped_threads() == []


def test_a_reader_that_waits_for_room_in_a_queue_of_others_is_told_to_stop(
    pair, data, monkeypatch
):
    client = piped_io.Client(pair.alpha.socket, depth=1)
    (data / "roomless").write_bytes(bytes(1 << 20))
    file, queue = client.open_export("beta", "data", "roomless"), client.queue()
    channel, stop, told = client.offer_channel("roomless"), threading.Event(), []
    waits = queue.submit_receive(channel, client.allocate(64), timeout=3600)
    monkeypatch.setattr(_ranges, "queue_of", lambda _client: Full(queue))

    class Full(Other):
        def make_room(self, *limit):
            stop.set()
            self.client.make_room(*limit)

    def read() -> None:
        try:
            block, ranges = Block(0, file.length), [(0, file.length)]
            read_ranges(client, file, block, ranges, 4, None, stop)
        except BaseException as error:
            told.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    thread.join(60)
    waiting = thread.is_alive()
    waits.cancel()
    thread.join()
    assert not waiting and [type(error) for error in told] == [InterruptedError]


def test_parts_of_a_span_are_whole_pages_that_are_made_once():
    span = Span(10_000)
    view = memoryview(span)
    assert len(span) == len(view) == 12288 and span.address % (2 << 20) == 0
    end = 2**64 - 4096
    for offset, length in [(1, 4096), (0, 1), (0, 0), (8192, 8192), (end, 4096), (4096, end)]:
        with pytest.raises(ValueError, match="whole pages"):
            span.make(offset, length)
    view[0] = view[4096] = 1
    fd = span.make(4096, 4096)
    try:
        assert os.fstat(fd).st_size == 4096
        os.pwrite(fd, b"there", 0)
        with pytest.raises(OSError):
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)
    assert view[0] == 1 and view[4096:4101] == b"there"
    for offset, length in [(4096, 4096), (0, 8192), (4096, 8192), (0, 12288)]:
        with pytest.raises(ValueError, match="made once"):
            span.make(offset, length)
    for offset in (8192, 0):
        os.close(span.make(offset, 4096))
    assert bytes(view[:10]) == bytes(10) and view[4096:4101] == b"there"
    del span
    view[4096] = 7
    with pytest.raises(ValueError, match="no such addresses"):
        Span(2**64 - 1)
    for length in (1 << 62, 2**64 - 4096):
        with pytest.raises(MemoryError):
            Span(length)


def test_pages_that_cannot_be_made_are_an_error_and_the_memory_stays():
    span = Span(1 << 20)
    view = memoryview(span)
    view[:4] = b"here"
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Not to what there is: threads of tests before this one may close a descriptor meanwhile.
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            span.make(0, 4096)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert view[:4] == b"here"


class Failing:
    """A span that makes all parts but the fourth."""

    def __init__(self, span, error) -> None:
        self.span = span
        self.error = error
        self.made = 0

    def make(self, *part):
        self.made += 1
        if self.made == 4:
            raise self.error
        return self.span.make(*part)


@pytest.mark.parametrize(
    "error",
    [
        OSError(errno.EMFILE, "Too many open files"),
        OSError(errno.ENFILE, "Too many open files in system"),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        MemoryError("no pages"),
    ],
)
def test_what_cannot_be_made_to_be_lent_is_copied(client, data, error):
    content = random.Random(6).randbytes(5 * _ranges.PART)
    (data / "unlent").write_bytes(content)
    file = client.open_export("beta", "data", "unlent")
    block = Block(0, len(content))
    block.span = Failing(block.span, error)
    read_ranges(client, file, block, [(0, len(content))], 8)
    assert block.span.made == 5 and block.memory == content


def test_where_no_part_can_be_made_the_load_fails_and_its_threads_end(client, data):
    with open(data / "unmade", "wb") as file:
        file.truncate(128 << 20)
    file = client.open_export("beta", "data", "unmade")
    block = Block(0, file.length)

    block.span = Failing(block.span, ValueError("a wrong part"))
    with pytest.raises(ValueError, match="a wrong part"):
        read_ranges(client, file, block, [(0, file.length)], 8)
    assert piped_threads() == []


def test_a_file_that_is_cut_while_it_is_read(client, data):
    path = data / "cut"
    path.write_bytes(bytes(30_000_000))
    handle = client.open_export("beta", "data", "cut")
    os.truncate(path, 10_000_000)
    block = Block(0, handle.length)
    with pytest.raises(ValueError, match="shorter"):
        read_ranges(client, handle, block, [(0, handle.length)], 4)
    until_none_is_left()
