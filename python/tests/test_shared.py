"""What several have at once: threads, forked processes, the interpreter's collector, Ctrl-C."""

from __future__ import annotations

import asyncio
import gc
import mmap
import os
import pathlib
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import piped_io
import pytest
from piped_io import Calls, aio, errors, files
from piped_io._calls import _Living, queue_of
from piped_io._nodes import Pair

MIB = 1 << 20
#: More than the daemon gives one session.
MANY_QUEUES = 40


@pytest.fixture
def stoppable(tmp_path: pathlib.Path) -> Iterator[Pair]:
    """Nodes for a test that stops them: peers that do not answer are given up."""
    with Pair(tmp_path) as pair:
        yield pair


@pytest.fixture
def block(data: pathlib.Path) -> bytes:
    expected = os.urandom(64 << 10)
    (data / "block").write_bytes(expected)
    return expected


def in_child(act: Callable[[], None]) -> str:
    """What an act in a forked process came to: nothing, or its exception."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            act()
        except BaseException as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as told:
        said = told.read().decode()
    os.waitpid(child, 0)
    return said


def test_a_forked_process_leaves_alone_what_its_parent_has(client, pair, block):
    file, queue = client.open_export("beta", "data", "block"), client.queue()
    buffer, channel = client.allocate(4096), client.offer_channel("forked")
    region = client.export_region("forked", client.allocate(4096), "rw")
    receiving = queue.submit_receive(channel, client.allocate(64), timeout=60)
    strips = piped_io.StripReader(client, file, size=4096, grain=4096)
    assert next(strips)[0] == 0
    private = mmap.mmap(-1, MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    lent = piped_io.lend(client, private)
    had: list[Any] = [client, file, queue, buffer, channel, region, receiving, strips, lent]

    def act() -> None:
        for use in (
            lambda: client.open_export("beta", "data", "block"),
            lambda: client.allocate(64),
            lambda: client.queue(),
            lambda: queue.read(file, 0, buffer),
            lambda: queue.submit_nop(),
            lambda: queue.poll(),
            lambda: receiving.wait(),
            lambda: receiving.cancel(),
            lambda: next(strips),
            lambda: file.read_costs(),
            lambda: region.close(),
            lambda: lent.buffer(0, 64),
        ):
            with pytest.raises(ConnectionError, match="forked"):
                use()
        assert not client.is_connected
        # Its own client works.
        own = piped_io.Client(pair.alpha.socket)
        assert own.queue().read(own.open_export("beta", "data", "block"), 0, own.allocate(64)) == 64

    def drop() -> None:
        nonlocal client, file, queue, buffer, channel, region, receiving, strips, lent
        had.clear()
        del client, file, queue, buffer, channel, region, receiving, strips, lent
        gc.collect()

    assert in_child(act) == ""
    assert in_child(drop) == ""
    # The daemon has done what it was told by now.
    client.open_export("beta", "data", "block").close()
    assert queue.read(file, 0, buffer) == 4096 and bytes(buffer) == block[:4096]
    assert queue.submit_write(region.handle, 0, buffer).wait() == 4096
    assert region.read(0, 4096) == block[:4096]
    assert next(strips)[0] == 4096
    assert queue.read(file, 0, lent.buffer(0, 4096)) == 4096 and private[:4096] == block[:4096]
    letter = client.allocate(5)
    letter.write_from(b"hello")
    queue.submit_send(client.open_channel(None, "forked"), 3, letter).wait()
    assert receiving.wait(30) == (5, 3)
    assert region.close().tobytes(5) == block[:5]


def test_the_default_client_is_another_one_after_a_fork_and_for_the_next_daemon(
    tmp_path, monkeypatch
):
    with Pair(tmp_path) as pair:
        monkeypatch.setenv("PIPED_CLIENT_SOCKET", pair.alpha.socket)
        monkeypatch.setattr(files, "_default", None)
        (pair.beta.data / "f").write_bytes(b"x" * 100)

        def read() -> None:
            with piped_io.open("piped://beta/data/f") as file:
                assert file.read() == b"x" * 100

        read()
        first = files.default_client()
        assert files.default_client() is first
        assert in_child(read) == ""
        pair.alpha.stop(kill=True)
        pair.alpha.start()
        until = time.monotonic() + 30
        while True:
            try:
                read()
                break
            except OSError:  # The daemons dial each other first.
                assert time.monotonic() < until
                time.sleep(0.02)
        assert files.default_client() is not first


def test_threads_one_after_another_use_the_same_queues(client, block):
    file = client.open_export("beta", "data", "block")
    lengths = []
    for _ in range(200):
        thread = threading.Thread(
            target=lambda: lengths.append(Calls(client, file).stat().length)
        )
        thread.start()
        thread.join()
    assert lengths == [len(block)] * 200


@pytest.mark.parametrize("depth", [255, 1])
def test_more_threads_than_queues_share_them(pair, block, depth):
    client = piped_io.Client(pair.alpha.socket, depth=depth)
    file, count = client.open_export("beta", "data", "block"), 100
    barrier, told = threading.Barrier(count), []

    def read(number: int) -> None:
        try:
            barrier.wait()
            for turn in range(5):
                buffer, at = client.allocate(512), (number * 5 + turn) % 128 * 512
                assert queue_of(client).read(file, at, buffer) == 512
                assert bytes(buffer) == block[at : at + 512]
                assert Calls(client, file).stat().length == len(block)
        except BaseException as error:
            told.append(error)
            raise

    threads = [threading.Thread(target=read, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == []


def test_a_thread_that_ends_while_a_queue_is_asked_for_leaves_its_own() -> None:
    class Queue:
        pass

    class Full:
        """Gives one queue; while it is asked for the next, the thread with the first one ends."""

        def __init__(self) -> None:
            self.first: list[Queue] = []

        def queue(self) -> Queue:
            if not self.first:
                self.first.append(Queue())
                return self.first[0]
            self.first.clear()
            raise errors.BusyError(11, "no more queues")

    living, full = _Living(), Full()
    first = weakref.ref(living.queue(full))
    assert living.queue(full) is first()


def test_a_client_that_waits_for_its_daemon_stops_no_other(client):
    asked, answered, told = threading.Event(), threading.Event(), []

    class Slow:
        def queue(self) -> object:
            asked.set()
            answered.wait(60)
            return threading.Event()

    slow = Slow()
    threads = [
        threading.Thread(target=lambda: queue_of(slow)),
        threading.Thread(target=lambda: told.append(queue_of(client).submit_nop().wait())),
    ]
    try:
        threads[0].start()
        assert asked.wait(30)
        threads[1].start()
        threads[1].join(30)
        assert told == [None]
    finally:
        answered.set()
        for thread in threads:
            thread.join()


def test_where_the_program_has_all_queues_the_error_says_what_to_do(client):
    queues: list[piped_io.Queue] = []
    with pytest.raises(BlockingIOError):
        while True:
            queues.append(client.queue())
    with pytest.raises(BlockingIOError) as refused:
        queue_of(client)
    assert any("client.queues_max" in note for note in refused.value.__notes__)
    with pytest.raises(BlockingIOError) as refused:
        asyncio.run(aio.queue(client))
    assert any("make that of asyncio before" in note for note in refused.value.__notes__)
    queues.pop()
    assert queue_of(client).submit_nop().wait() is None


def test_threads_that_share_a_short_queue_wait_for_room(pair, block):
    client = piped_io.Client(pair.alpha.socket, depth=1)
    file, queue, told = client.open_export("beta", "data", "block"), client.queue(), []

    def read() -> None:
        buffer = client.allocate(512)
        try:
            for turn in range(200):
                assert queue.read(file, turn % 128 * 512, buffer) == 512
        except BaseException as error:
            told.append(error)

    threads = [threading.Thread(target=read) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == []


def test_a_thread_hears_of_its_end_while_others_wait_on_the_same_queue(client):
    queue, channel = client.queue(), client.offer_channel("waiters")
    requests = [queue.submit_receive(channel, client.allocate(64), timeout=60) for _ in range(6)]
    told: list[BaseException] = []

    def wait(request: piped_io.Request) -> None:
        try:
            request.wait()
        except errors.CancelledError as error:
            told.append(error)

    threads = [threading.Thread(target=wait, args=(request,)) for request in requests]
    for thread in threads:
        thread.start()
    for number, (thread, request) in enumerate(zip(threads, requests)):
        assert queue.submit_nop().wait() is None
        assert request.cancel()
        thread.join()
        assert len(told) == number + 1


def test_requests_and_queues_that_nobody_has_are_given_back_without_the_collector(client, block):
    channel = client.offer_channel("dropped")
    file = client.open_export("beta", "data", "block")
    gc.disable()
    try:
        for _ in range(MANY_QUEUES):
            buffer = client.allocate(64)
            request = client.queue().submit_receive(channel, buffer, timeout=60)
            assert not buffer.is_here
            del request
            with pytest.raises(BufferError, match="given back"):
                memoryview(buffer)
            strips = piped_io.StripReader(client, file, size=4096, grain=4096)
            next(strips)
            del strips
        # Those that ended keep no queue either.
        ended = [client.queue().submit_nop() for _ in range(4)]
        assert [request.wait() for request in ended] == [None] * 4
        queues = [client.queue() for _ in range(8)]
        assert len(queues) == 8
    finally:
        gc.enable()


def test_requests_of_poll_are_equal_to_those_that_were_submitted(client):
    queue = client.queue()
    assert queue.poll() == []
    submitted = {queue.submit_nop() for _ in range(10)}
    seen: set[piped_io.Request] = set()
    while len(seen) < 10:
        seen.update(queue.poll())
    assert seen == submitted and queue.submit_nop() not in seen


def test_finalisers_may_use_the_queue_that_they_end_in(pair, block):
    client = piped_io.Client(pair.alpha.socket, depth=1)
    queue, file = client.queue(), client.open_export("beta", "data", "block")
    called: list[object] = []

    def use(_dead: object) -> None:
        called.append(queue.is_full)

    buffer = client.allocate(64)
    watched = weakref.ref(buffer, use)
    queue.submit_read(file, 0, buffer)
    del buffer
    while queue.is_full:
        pass
    assert called == [False] and watched() is None


def test_views_of_a_buffer_that_was_lost_stay(tmp_path):
    with Pair(tmp_path) as pair:
        client = piped_io.Client(pair.alpha.socket, reconnect=20)
        buffer, queue = client.allocate(4096), client.queue()
        view, part = memoryview(buffer), client.allocate(4096)
        view[:4] = b"kept"
        channel = client.offer_channel("lost")
        request = queue.submit_receive(channel, buffer, timeout=60)
        pair.alpha.stop(kill=True)
        pair.alpha.start()
        client.reconnect()
        with pytest.raises(ConnectionError):
            request.wait(30)
        # Nothing else keeps the memory of the first session.
        del queue, channel, part, request, client
        gc.collect()
        assert bytes(view[:4]) == b"kept"
        view[4:8] = b"more"
        with pytest.raises(BufferError, match="lost"):
            memoryview(buffer)
        assert not buffer.is_here
        view.release()
        with pytest.raises(BufferError, match="lost"):
            memoryview(buffer)


def test_a_region_keeps_memory_that_was_lent(client):
    private = mmap.mmap(-1, MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    there = weakref.ref(private)
    region = client.export_region("kept", piped_io.lend(client, private).buffer(0, 4096), "rw")
    del private
    gc.collect()
    assert there() is not None
    region.write(0, b"hello")
    assert region.read(0, 5) == b"hello"
    buffer = region.close()
    del region
    gc.collect()
    assert there() is not None and buffer.tobytes(5) == b"hello"
    del buffer
    gc.collect()
    assert there() is None


def interrupted(act: Callable[[], Any]) -> None:
    """Does something that waits, and ends the wait by Ctrl-C."""
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    with pytest.raises(KeyboardInterrupt):
        timer.start()
        act()
    timer.join()


def test_ctrl_c_ends_calls_to_a_daemon_that_does_not_answer(stoppable):
    # Without the interruption each would wait for an hour.
    client = piped_io.Client(stoppable.alpha.socket, timeout=3600, arena_bytes=MIB, depth=1)
    queue, buffer, channel = client.queue(), client.allocate(64), client.offer_channel("full")
    file = client.open_export(None, "data", "interrupted", "rw", create="open")
    private = mmap.mmap(-1, MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    process = stoppable.alpha.process
    assert process is not None
    waits = queue.submit_receive(channel, client.allocate(64), timeout=3600)
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    try:
        interrupted(lambda: piped_io.Client(stoppable.alpha.socket, timeout=3600))
        interrupted(lambda: client.offer_channel("late"))
        interrupted(lambda: client.open_export(None, "data", "interrupted"))
        interrupted(lambda: client.allocate(64 * MIB))
        interrupted(lambda: client.queue())
        interrupted(lambda: client.export_region("late", client.allocate(64), "r"))
        interrupted(lambda: piped_io.lend(client, private))
        interrupted(file.read_costs)
        # There is no room in the queue.
        interrupted(lambda: queue.read(file, 0, buffer))
    finally:
        process.send_signal(signal.SIGCONT)
    # What is opened after the interruption is closed: the names are free again.
    until = time.monotonic() + 60
    while True:
        try:
            client.offer_channel("late")
            client.export_region("late", client.allocate(64), "r")
            break
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.01)
    private[:4] = b"mine"
    assert len(piped_io.lend(client, private)) == MIB and private[:4] == b"mine"
    assert buffer.is_here and waits.cancel()


def test_other_threads_run_while_private_memory_is_offered(stoppable):
    client = piped_io.Client(stoppable.alpha.socket, timeout=3600)
    private = mmap.mmap(-1, MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    process = stoppable.alpha.process
    assert process is not None
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)
    # This thread would not come to let the daemon go on.
    goes_on = threading.Timer(0.2, lambda: process.send_signal(signal.SIGCONT))
    try:
        goes_on.start()
        assert len(piped_io.lend(client, private)) == MIB
    finally:
        goes_on.join()
        process.send_signal(signal.SIGCONT)
