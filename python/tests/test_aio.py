"""Requests of asyncio's tasks: by the descriptor, without threads and without polling."""

from __future__ import annotations

import asyncio
import os
import threading
import time

import piped_io
import pytest
from piped_io import aio, errors
from piped_io._nodes import Pair

MIB = 1 << 20


def test_many_tasks_share_a_queue(client, data):
    expected = os.urandom(4 * MIB)
    (data / "many").write_bytes(expected)

    async def run() -> None:
        file = client.open_export("beta", "data", "many")
        queue = await aio.queue(client)
        buffers = [client.allocate(8192) for _ in range(512)]
        before = threading.active_count()
        # More than the queue is deep: the others wait for room.
        reads = [queue.read(file, at * 8192, buffer) for at, buffer in enumerate(buffers)]
        assert set(await asyncio.gather(*reads)) == {8192}
        assert threading.active_count() == before
        assert b"".join(map(bytes, buffers)) == expected

    asyncio.run(run())


def test_a_cancelled_task_leaves_its_buffer_with_the_daemon_until_it_is_free(client):
    async def run() -> None:
        queue, buffer = await aio.queue(client), client.allocate(64)
        channel = client.offer_channel("cancelled")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await queue.receive(channel, buffer, timeout=60)
        until = time.monotonic() + 10
        while not buffer.is_here and time.monotonic() < until:
            await asyncio.sleep(0.001)
        assert buffer.is_here
        # The queue goes on.
        await queue.run(queue.native.submit_nop)
        with pytest.raises(errors.DeadlineError):
            await queue.receive(channel, buffer, timeout=0.02)

    asyncio.run(run())


def test_the_room_of_a_cancelled_task_is_anothers(pair, data):
    (data / "room").write_bytes(bytes(4096))
    client = piped_io.Client(pair.alpha.socket, depth=1)

    async def run() -> None:
        queue = await aio.queue(client)
        channel, buffer = client.offer_channel("room"), client.allocate(64)
        file = client.open_export("beta", "data", "room")
        waits = asyncio.ensure_future(queue.receive(channel, buffer, timeout=60))
        await asyncio.sleep(0)
        buffers = [client.allocate(4096) for _ in range(20)]
        reads = [asyncio.ensure_future(queue.read(file, 0, it)) for it in buffers]
        await asyncio.sleep(0.01)
        for read in reads[::2]:
            read.cancel()
        waits.cancel()
        rest = await asyncio.wait_for(asyncio.gather(*reads, return_exceptions=True), 20)
        assert [it for it in rest if not isinstance(it, asyncio.CancelledError)] == [4096] * 10

    asyncio.run(run())


def test_the_end_of_a_queue_ends_all_tasks_that_wait(pair):
    client = piped_io.Client(pair.alpha.socket, depth=1)

    async def run() -> None:
        queue = await aio.queue(client)
        channel = client.offer_channel("closed")
        waits = [queue.receive(channel, client.allocate(64), timeout=60) for _ in range(4)]
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        while len(queue._room) < 3:
            await asyncio.sleep(0)
        queue.close()
        ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 20)
        assert [type(error) for error in ended] == [asyncio.CancelledError] * 4
        # Those that were cancelled had the queue look once more.
        await asyncio.sleep(0.01)
        assert queue._watched is None
        with pytest.raises(ValueError, match="closed"):
            await queue.run(queue.native.submit_nop)

    asyncio.run(run())


def test_a_waiting_loop_sleeps(client):
    async def run() -> None:
        queue, buffer = await aio.queue(client), client.allocate(64)
        channel = client.offer_channel("sleeps")
        waiting = asyncio.ensure_future(queue.receive(channel, buffer, timeout=60))
        await asyncio.sleep(0.05)
        before = time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - before < 0.1
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting

    asyncio.run(run())


def test_calls(client, data):
    (data / "listed").mkdir(exist_ok=True)
    for number in range(300):
        (data / "listed" / f"{number}").write_bytes(b"x" * number)

    async def run() -> None:
        queue = await aio.queue(client)
        root = queue.calls(client.open_directory("beta", "data", "", "rwn"))
        names = [name async for name in root.list("listed", True)]
        assert {int(name.name): name.stat.length for name in names} == {n: n for n in range(300)}
        await root.rename("listed/1", "listed/0")
        with pytest.raises(FileNotFoundError):
            await root.stat("listed/1")
        file = queue.calls(client.open_export("beta", "data", "listed/200"))
        assert sum([it.length async for it in file.extents(0, 200)]) == 200
        client.open_export("beta", "data", "listed/c", "w", create="new").close()
        assert await root.copy("listed/200", "listed/c") == 200

    asyncio.run(run())


def test_the_end_of_the_daemon_ends_all_tasks(tmp_path):
    with Pair(tmp_path) as pair:
        client = piped_io.Client(pair.alpha.socket)

        async def run() -> None:
            queue = await aio.queue(client)
            channel = client.offer_channel("m")
            waits = [queue.receive(channel, client.allocate(64), timeout=60) for _ in range(3)]
            tasks = [asyncio.ensure_future(wait) for wait in waits]
            await asyncio.sleep(0.05)
            pair.alpha.stop(kill=True)
            ended = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 10)
            assert all(isinstance(error, ConnectionError) for error in ended), ended

        asyncio.run(run())


def test_resubmitted_requests_of_tasks_outlive_the_daemon(tmp_path):
    with Pair(tmp_path) as pair:
        (pair.beta.data / "f").write_bytes(b"y" * 4096)
        client = piped_io.Client(pair.alpha.socket, reconnect=20)

        async def run() -> None:
            queue, buffer = await aio.queue(client), client.allocate(4096)
            file = client.open_export("beta", "data", "f")
            assert await queue.read(file, 0, buffer) == 4096
            pair.alpha.stop(kill=True)
            reading = asyncio.ensure_future(
                queue.read(file, 0, buffer, timeout=30, resubmit=True)
            )
            await asyncio.sleep(0.1)
            await asyncio.to_thread(pair.alpha.start)
            assert await asyncio.wait_for(reading, 30) == 4096

        asyncio.run(run())
