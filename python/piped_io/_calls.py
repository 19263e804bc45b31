"""Calls of files and directories as methods: for threads, and for tasks of asyncio."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import AsyncIterator, Callable, Iterator
from typing import TYPE_CHECKING, Any

from . import _native
from ._native import Client, Handle, Queue, Request
from ._types import Extent, Name
from .errors import BusyError, PipedError

if TYPE_CHECKING:
    from .aio import AsyncQueue

#: One copy by a node has at most so many bytes.
COPY_BYTES_MAX = 1 << 30

#: Seconds of a wait for room, until its caller is asked whether it goes on.
ROOM_SLICE = 0.1

_local = threading.local()

#: What an error says beside its text, where neither the daemon nor a thread has a queue to give.
NO_QUEUE = (
    "the program has all queues of this client: make fewer by `Client.queue()`, make that of"
    " asyncio before threads have them all, use another client, or raise client.queues_max"
)


class _Living:
    """Queues that threads have of one client.

    A queue is there as long as a thread or a request has it; then the client uses it again.
    """

    def __init__(self) -> None:
        # A finaliser may ask for a queue, too.
        self._lock = threading.RLock()
        self._queues: list[weakref.ref[Queue]] = []

    def queue(self, client: Client) -> Queue:
        """A queue for one more thread: one of its own, or another's."""
        # One thread at a time: where the daemon gives no more, those that it gave are known.
        with self._lock:
            # Kept while the daemon is asked: their threads may end meanwhile.
            living = [queue for it in self._queues if (queue := it()) is not None]
            try:
                queue = client.queue()
            except PipedError as error:
                if not living:
                    if isinstance(error, BusyError):
                        error.add_note(NO_QUEUE)
                    raise
                # In turn, so that threads spread over all of them.
                queue = living.pop(0)
            living.append(queue)
            self._queues = [weakref.ref(it) for it in living]
        return queue


class _All:
    """The queues of threads by their client. A client that waits for its daemon stops no other."""

    def __init__(self) -> None:
        # Of the dictionary alone: nobody waits for a daemon with it.
        self._lock = threading.RLock()
        self._of: weakref.WeakKeyDictionary[Client, _Living] = weakref.WeakKeyDictionary()

    def of(self, client: Client) -> _Living:
        """The queues of a client."""
        with self._lock:
            return self._of.setdefault(client, _Living())


_all = _All()


def _forget_all() -> None:
    """The child of a fork has no thread that would give the locks free."""
    global _all
    _all = _All()


os.register_at_fork(after_in_child=_forget_all)


def queue_of(client: Client) -> Queue:
    """The calling thread's queue of a client, made when it is first asked for.

    Where the daemon gives no more of them, threads share those that there are.
    """
    queues: weakref.WeakKeyDictionary[Client, Queue] | None = getattr(_local, "queues", None)
    if queues is None:
        queues = _local.queues = weakref.WeakKeyDictionary()
    queue = queues.get(client)
    if queue is None:
        queue = queues[client] = _all.of(client).queue(client)
    return queue


def submitted(
    queue: Queue,
    submit: Callable[[Queue], Request],
    check: Callable[[], None] = lambda: None,
) -> Request:
    """A request, once the queue has room for it: threads may share the queue.

    What `check` raises, every now and then, ends the wait.
    """
    while True:
        try:
            return submit(queue)
        except BusyError as error:
            # With a status it is not the queue that is full.
            if error.status is not None:
                raise
            check()
            queue.make_room(ROOM_SLICE)


def run(client: Client, submit: Callable[[Queue], Request]) -> Any:
    """What a request of the thread's queue came to."""
    return submitted(queue_of(client), submit).wait()


class _Verbs:
    """The calls with an answer of a fixed length. What `_run` returns is what they return."""

    handle: Handle

    def _run(self, call: Callable[..., Request], *arguments: Any) -> Any:
        raise NotImplementedError

    def stat(self, path: str = "") -> Any:
        """What is known of a file or directory: a `Stat`. Links are not followed."""
        return self._run(_native.call_stat, path)

    def space(self) -> Any:
        """Room on the file system: a `Space`."""
        return self._run(_native.call_space)

    def mkdir(self, path: str, mode: int = 0o777) -> Any:
        """Makes a directory."""
        return self._run(_native.call_make_directory, path, mode, False)

    def makedirs(self, path: str, mode: int = 0o777) -> Any:
        """Makes a directory and those on the way; one that is there is no error."""
        return self._run(_native.call_make_directory, path, mode, True)

    def remove(self, path: str, kind: str = "file") -> Any:
        """Removes a name: of a "file", an empty "directory", or "any" of the two."""
        return self._run(_native.call_remove, path, kind)

    def rename(
        self, source: str, target: str, over: str = "replace", durable: bool = False
    ) -> Any:
        """Gives something another name in one step; `over`: "replace", "keep" or "exchange"."""
        return self._run(_native.call_rename, source, target, over, durable)

    def link(self, source: str, target: str) -> Any:
        """Gives a file one more name."""
        return self._run(_native.call_link, source, target)

    def truncate(self, length: int) -> Any:
        """Cuts the file off at a length in bytes, or makes it longer by zeros."""
        return self._run(_native.call_truncate, length)

    def allocate(self, offset: int, length: int, keep_length: bool = False) -> Any:
        """Makes sure that a range in bytes has room on the device."""
        return self._run(_native.call_allocate, offset, length, keep_length)

    def zero(self, offset: int, length: int, release: bool = True) -> Any:
        """Makes a range in bytes zeros."""
        return self._run(_native.call_zero, offset, length, release)

    def trim(self, offset: int, length: int) -> Any:
        """Gives up a range's room on the device; its bytes are zeros then."""
        return self._run(_native.call_trim, offset, length)

    def sync_range(self, offset: int = 0, length: int = 0, data_only: bool = False) -> Any:
        """Brings a range, or a directory's names, to stable storage. Length 0: to the end."""
        return self._run(_native.call_sync_range, offset, length, data_only)

    def advise(self, offset: int, length: int, advice: str) -> Any:
        """Tells the page cache: "normal", "will_need" or "dont_need". Length 0: to the end."""
        return self._run(_native.call_advise, offset, length, advice)

    def digest(self, offset: int, length: int) -> Any:
        """The BLAKE3 digest of a range of the file, of 1 GiB at most: 32 bytes."""
        return self._run(_native.call_digest, offset, length)

    def lock(self, offset: int, length: int, lock: str = "exclusive") -> Any:
        """Locks a range ("shared", "exclusive"), or gives the lock up ("none").

        Length 0: all behind the offset. Does not wait: `BusyError` if another has a part of it.
        """
        return self._run(_native.call_lock, offset, length, lock)


class Calls(_Verbs):
    """Calls of an open file or directory, by the queue of the thread that makes them."""

    def __init__(self, client: Client, handle: Handle) -> None:
        self.client = client
        self.handle = handle

    def _run(self, call: Callable[..., Request], *arguments: Any) -> Any:
        return run(self.client, lambda queue: call(queue, self.handle, *arguments))

    def list(self, path: str = "", stats: bool = False) -> Iterator[Name]:
        """Names in a directory, in no order, with what is known of each if `stats`."""
        return self._paged(_native.call_list, 0, path, stats)

    def extents(self, offset: int, length: int) -> Iterator[Extent]:
        """Where a range of a file has data and where holes, in order."""
        first = offset if length > 0 else None
        return self._paged(_native.call_extents, first, offset + length)

    def _paged(
        self, call: Callable[..., Request], place: int | None, *arguments: Any
    ) -> Iterator[Any]:
        """What a call answers page by page, each with the place where the next one begins."""
        while place is not None:
            page, place = self._run(call, place, *arguments)
            yield from page

    def copy(self, source: str, target: str, durable: bool = False) -> int:
        """Copies a file to another one, which is there, by their node: bytes copied."""
        offset = 0
        while True:
            copied: int = self._run(
                _native.call_copy_names, source, target, offset, COPY_BYTES_MAX, durable
            )
            offset += copied
            if copied < COPY_BYTES_MAX:
                return offset


class AsyncCalls(_Verbs):
    """Calls of an open file or directory, for tasks: each of the methods is to be awaited."""

    def __init__(self, queue: AsyncQueue, handle: Handle) -> None:
        self.queue = queue
        self.handle = handle

    def _run(self, call: Callable[..., Request], *arguments: Any) -> Any:
        return self.queue.run(call, self.queue.native, self.handle, *arguments)

    def list(self, path: str = "", stats: bool = False) -> AsyncIterator[Name]:
        """Names in a directory, in no order, with what is known of each if `stats`."""
        return self._paged(_native.call_list, 0, path, stats)

    def extents(self, offset: int, length: int) -> AsyncIterator[Extent]:
        """Where a range of a file has data and where holes, in order."""
        first = offset if length > 0 else None
        return self._paged(_native.call_extents, first, offset + length)

    async def _paged(
        self, call: Callable[..., Request], place: int | None, *arguments: Any
    ) -> AsyncIterator[Any]:
        while place is not None:
            page, place = await self._run(call, place, *arguments)
            for item in page:
                yield item

    async def copy(self, source: str, target: str, durable: bool = False) -> int:
        """Copies a file to another one, which is there, by their node: bytes copied."""
        offset = 0
        while True:
            copied: int = await self._run(
                _native.call_copy_names, source, target, offset, COPY_BYTES_MAX, durable
            )
            offset += copied
            if copied < COPY_BYTES_MAX:
                return offset
