"""Requests for tasks of asyncio: by the queue's descriptor, without a thread and without polling.

Opening and allocating ask the daemon over its control socket, which may take long; they are done on
a thread of the loop's executor. Requests are not: their way is the shared memory.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from ._calls import NO_QUEUE, AsyncCalls
from ._native import Buffer, Client, Handle, Queue, Request
from .errors import BusyError, PipedError

__all__ = ["AsyncCalls", "AsyncQueue", "queue"]

#: Seconds between attempts to reach the next daemon, for requests with `resubmit`.
RECONNECT_PAUSE = 0.05


async def queue(client: Client) -> AsyncQueue:
    """A queue of a client for all tasks of the running loop.

    It is nobody else's: whoever shared it would take what the loop waits for. BusyError: there is
    none left.
    """
    try:
        native = await asyncio.to_thread(client.queue)
    except BusyError as error:
        error.add_note(NO_QUEUE)
        raise
    return AsyncQueue(client, native)


class AsyncQueue:
    """A queue for all tasks of one loop.

    A task that is cancelled has its request cancelled. The buffer stays with the daemon until it
    gives it back, and no view can be made of it until then.
    """

    def __init__(self, client: Client, native: Queue) -> None:
        self._client = client
        #: The queue of threads behind it, for `run`.
        self.native = native
        self._loop = asyncio.get_running_loop()
        self._futures: dict[Request, asyncio.Future[Any]] = {}
        self._room: deque[asyncio.Future[None]] = deque()
        self._watched: int | None = None
        self._turning = False
        self._closed = False
        self._connecting: asyncio.Future[None] | None = None
        self.native.poll()

    def calls(self, handle: Handle) -> AsyncCalls:
        """Calls of an open file or directory."""
        return AsyncCalls(self, handle)

    async def allocate(self, length: int) -> Buffer:
        """A buffer of `length` bytes."""
        return await asyncio.to_thread(self._client.allocate, length)

    async def run(self, submit: Callable[..., Request], *arguments: Any, **options: Any) -> Any:
        """Submits a request by a method of the native queue, and returns what it came to."""
        self._check()
        ahead = bool(self._room)
        while ahead or self.native.is_full:
            await self._its_turn()
            self._check()
            ahead = False
        request: Request = submit(*arguments, **options)
        future: asyncio.Future[Any] = self._loop.create_future()
        self._futures[request] = future
        self._turn_soon()
        try:
            return await future
        except asyncio.CancelledError:
            request.cancel()
            self._turn_soon()
            raise

    def read(self, handle: Handle, offset: int, buffer: Buffer, **options: Any) -> Any:
        """Reads into the buffer from `offset` on: bytes read. Options as of `Queue.read`."""
        return self.run(self.native.submit_read, handle, offset, buffer, **options)

    def write(self, handle: Handle, offset: int, buffer: Buffer, **options: Any) -> Any:
        """Writes the buffer at `offset`: bytes written. Options as of `Queue.submit_write`."""
        return self.run(self.native.submit_write, handle, offset, buffer, **options)

    def copy(
        self,
        source: Handle,
        source_offset: int,
        target: Handle,
        target_offset: int,
        length: int,
        **options: Any,
    ) -> Any:
        """Copies between two handles, without passing through this process: bytes copied."""
        arguments = (source, source_offset, target, target_offset, length)
        return self.run(self.native.submit_copy, *arguments, **options)

    def sync(self, handle: Handle, **options: Any) -> Any:
        """Brings completed writes of the handle to stable storage."""
        return self.run(self.native.submit_sync, handle, **options)

    def send(self, channel: Handle, tag: int, buffer: Buffer, **options: Any) -> Any:
        """Sends a message to a channel."""
        return self.run(self.native.submit_send, channel, tag, buffer, **options)

    def receive(self, channel: Handle, buffer: Buffer, **options: Any) -> Any:
        """Receives the next message of a channel: bytes and tag."""
        return self.run(self.native.submit_receive, channel, buffer, **options)

    def close(self) -> None:
        """Ends the queue: tasks that wait for a request or for room are cancelled."""
        self._closed = True
        self._unwatch()
        for future in (*self._futures.values(), *self._room):
            future.cancel()
        self._futures.clear()
        self._room.clear()

    def _check(self) -> None:
        if self._closed:
            raise ValueError("the queue is closed")

    async def _its_turn(self) -> None:
        """Waits for room, behind those that wait for it already."""
        waiter: asyncio.Future[None] = self._loop.create_future()
        self._room.append(waiter)
        self._turn_soon()
        try:
            await waiter
        except asyncio.CancelledError:
            # Its room is another's.
            self._unwatch()
            self._turn_soon()
            raise

    def _turn_soon(self) -> None:
        # Once for all that is submitted in one turn of the loop.
        if not self._turning and self._watched is None:
            self._turning = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._turning = False
        if self._closed:
            return
        for request in self.native.poll():
            future = self._futures.pop(request, None)
            if future is None or future.done():
                continue
            try:
                future.set_result(request.result())
            except PipedError as error:
                future.set_exception(error)
        # Buffers that the kernel holds have their places, too.
        room = 0 if self.native.is_full else self.native.depth - self.native.underway
        while self._room and room > 0:
            waiter = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)
                room -= 1
        if not self._futures and not self._room and self.native.underway == 0:
            return
        if self.native.is_disconnected:
            self._reconnect()
        elif self.native.arm():
            self._watched = self.native.fileno()
            self._loop.add_reader(self._watched, self._readable)
        else:
            self._turn_soon()

    def _readable(self) -> None:
        self._unwatch()
        self.native.drain()
        self._turn()

    def _unwatch(self) -> None:
        if self._watched is not None:
            self._loop.remove_reader(self._watched)
            self._watched = None

    def _reconnect(self) -> None:
        """Requests with `resubmit` wait for the next daemon, which somebody has to look for."""
        if self._connecting is None:
            self._connecting = self._loop.run_in_executor(None, self._client.reconnect)
            self._connecting.add_done_callback(self._reconnected)

    def _reconnected(self, done: asyncio.Future[None]) -> None:
        self._connecting = None
        failed: Callable[[], BaseException | None] = done.exception
        if not done.cancelled() and failed() is not None:
            self._loop.call_later(RECONNECT_PAUSE, self._turn_soon)
        else:
            self._turn_soon()
