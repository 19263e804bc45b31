"""What the fsspec file system does with handles: opens, moves of bytes, new files."""

from __future__ import annotations

import asyncio
import errno
import threading
import weakref
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

from ._calls import AsyncCalls
from ._native import Buffer, Client, Handle, Request
from ._types import Stat
from ._unfinished import Unfinished
from ._urls import parts_of
from .aio import AsyncQueue
from .aio import queue as new_queue
from .errors import BusyError, DisconnectedError, NotDirectoryError, PipedError

#: Bytes of one request, and requests under way at once for one range.
PIECE = 1 << 20
AT_ONCE = 4

#: Seconds between attempts at another's lock: the first, and the most.
LOCK_PAUSES = (0.001, 0.064)


def split(path: str) -> tuple[str | None, str, str]:
    """Peer (None: this node), export and path below it of a path without its protocol."""
    if "\0" in path:
        raise OSError(errno.EINVAL, "no name has a zero byte", path)
    parts = parts_of(path)
    if parts is None:
        raise FileNotFoundError(
            errno.ENOENT,
            "a path names peer and export, piped://peer/export/path; what a peer exports is not"
            " told to others (`pipectl exports` shows it there)",
            path,
        )
    return parts


class TimedCalls(AsyncCalls):
    """Calls of an open file or directory, each of which ends with TimeoutError after a time."""

    def __init__(self, queue: AsyncQueue, handle: Handle, timeout: float | None) -> None:
        super().__init__(queue, handle)
        self.timeout = timeout

    def _run(self, call: Callable[..., Request], *arguments: Any) -> Any:
        return asyncio.wait_for(super()._run(call, *arguments), self.timeout)


class RootCalls(TimedCalls):
    """Calls of an export's root, which is opened again where a reconnect lost it."""

    def __init__(
        self,
        queue: AsyncQueue,
        handle: Handle,
        timeout: float | None,
        again: Callable[[Handle], Awaitable[Handle]],
    ) -> None:
        super().__init__(queue, handle, timeout)
        self._again = again

    async def _run(self, call: Callable[..., Request], *arguments: Any) -> Any:
        try:
            return await super()._run(call, *arguments)
        except OSError as error:
            if error.errno != errno.ESTALE:
                raise
        self.handle = await self._again(self.handle)
        return await super()._run(call, *arguments)


class Link:
    """A client with the queues, directories and buffers that tasks share."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.directories: dict[tuple[str | None, str, str], Handle] = {}
        self.spares: list[Buffer] = []
        self._queues: dict[asyncio.AbstractEventLoop, AsyncQueue] = {}

    async def queue(self) -> AsyncQueue:
        """The queue of the loop that runs."""
        loop = asyncio.get_running_loop()
        found = self._queues.get(loop)
        if found is None:
            for ended in [one for one in self._queues if one.is_closed()]:
                del self._queues[ended]
            found = await new_queue(self.client)
            found = self._queues.setdefault(loop, found)
        return found

    async def buffer(self) -> Buffer:
        """A buffer of one piece; `give_back` keeps it for the next one."""
        if self.spares:
            return self.spares.pop()
        return await (await self.queue()).allocate(PIECE)

    def give_back(self, buffer: Buffer) -> None:
        """Takes a buffer back that nobody needs now."""
        if buffer.is_here and len(self.spares) < 4 * AT_ONCE:
            self.spares.append(buffer)


class Session:
    """What a file system asks of the daemon, and of the next one when that has ended.

    A client that was given is the program's: it goes on only if it was told to (`reconnect`).
    """

    def __init__(
        self, client: Client | None, socket: str | None, timeout: float | None, durable: bool
    ) -> None:
        self.timeout = timeout
        self.durable = durable
        self._link = Link(client or Client(socket))
        self._socket = socket
        self._is_given = client is not None
        self._renewing = threading.Lock()

    @classmethod
    def of(cls, client: Client, timeout: float | None, durable: bool) -> Session:
        """The session of a program's client, which all file systems with that client share."""
        key = (id(client), timeout, durable)
        session = _given.get(key)
        if session is None:
            session = _given[key] = cls(client, None, timeout, durable)
        return session

    @property
    def client(self) -> Client:
        """The client that is used now."""
        return self._link.client

    async def _linked(self) -> Link:
        """The connection to the daemon that runs."""
        if not self._link.client.is_connected:
            await asyncio.to_thread(self._renew)
        return self._link

    def _renew(self) -> None:
        with self._renewing:
            if self._link.client.is_connected:
                return
            try:
                if self._is_given:
                    self._link.client.reconnect()
                else:
                    self._link = Link(Client(self._socket))
            except PipedError as error:
                # A daemon that is not there says nothing of files: none is missing.
                raise DisconnectedError(errno.ENOTCONN, error.strerror) from error

    async def queue(self) -> AsyncQueue:
        """The queue of the loop that runs."""
        return await (await self._linked()).queue()

    async def _asked(self, open: Callable[[], Handle]) -> Handle:
        """Opens something on a thread. What comes after the time, or after Ctrl-C, is closed."""
        opening = asyncio.ensure_future(asyncio.to_thread(open))
        try:
            return await asyncio.wait_for(asyncio.shield(opening), self.timeout)
        except BaseException:
            opening.add_done_callback(_close_late)
            raise

    async def open(self, path: str, access: str, create: str | None = None) -> Handle:
        """Opens a file; directories on the way to one that is made are made too."""
        peer, export, below = split(path)
        options: dict[str, Any] = {"create": create, "parents": create is not None}
        client = (await self._linked()).client
        return await self._asked(
            lambda: client.open_export(peer, export, below, access, **options)
        )

    async def open_local(self, path: str, access: str, **options: Any) -> Handle:
        """Opens a file of this machine with this process's rights."""
        client = (await self._linked()).client
        return await self._asked(lambda: client.open_file(path, access, **options))

    async def _directory(
        self, link: Link, path: str, access: str, lost: Handle | None = None
    ) -> Handle:
        """The root of the export that a path is below, and none that was lost."""
        peer, export, _ = split(path)
        key = (peer, export, access)
        handle = link.directories.get(key)
        if handle is None or handle is lost:
            link.directories.pop(key, None)
            handle = await self._asked(
                lambda: link.client.open_directory(peer, export, "", access)
            )
            handle = link.directories.setdefault(key, handle)
        return handle

    async def calls(self, handle: Handle) -> TimedCalls:
        """Calls of an open file or directory."""
        return TimedCalls(await self.queue(), handle, self.timeout)

    async def below(self, path: str, access: str = "rwn") -> tuple[TimedCalls, str]:
        """Calls of the export that a path is below, and the path below it."""
        below, link = split(path)[2], await self._linked()

        async def again(lost: Handle) -> Handle:
            return await self._directory(link, path, access, lost)

        directory, queue = await self._directory(link, path, access), await link.queue()
        return RootCalls(queue, directory, self.timeout, again), below

    async def stat(self, path: str) -> Stat:
        """What is known of a name; a link is not followed."""
        if "\0" in path:
            raise FileNotFoundError(errno.ENOENT, "no name has a zero byte", path)
        calls, below = await self.below(path, "r")
        try:
            stat: Stat = await calls.stat(below)
        except NotDirectoryError as error:
            raise FileNotFoundError(errno.ENOENT, error.strerror, path) from error
        return stat

    async def target(self, path: str) -> Stat:
        """What is known of what a path leads to, through links."""
        stat = await self.stat(path)
        if stat.kind != "link":
            return stat
        try:
            calls, below = await self.below(path, "r")
            try:
                directory: Stat = await calls.stat(f"{below}/.")
                return directory
            except NotDirectoryError:
                with await self.open(path, "r") as handle:
                    target: Stat = await (await self.calls(handle)).stat()
                    return target
        except (DisconnectedError, TimeoutError):
            raise
        except PipedError as error:
            reason = f"a link to nothing that can be opened: {error.strerror}"
            raise FileNotFoundError(errno.ENOENT, reason, path) from error

    def _options(self) -> dict[str, Any]:
        return {} if self.timeout is None else {"timeout": self.timeout}

    async def _move(
        self, length: int, piece: Callable[[int, Buffer], Awaitable[None]]
    ) -> None:
        """Moves the pieces of a length, `AT_ONCE` at a time, each by a buffer."""
        link, places = await self._linked(), iter(range(0, length, PIECE))

        async def work(places: Iterator[int]) -> None:
            for at in places:
                buffer = await link.buffer()
                try:
                    await piece(at, buffer)
                finally:
                    link.give_back(buffer)

        count = min(AT_ONCE, -(-length // PIECE))
        tasks = [asyncio.ensure_future(work(places)) for _ in range(count)]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def read_range(self, handle: Handle, start: int, target: memoryview) -> int:
        """Fills `target` from `start` on: contiguous bytes that the file had."""
        queue = await self.queue()
        length = len(target)
        ends = [length]

        async def piece(at: int, buffer: Buffer) -> None:
            wanted = min(PIECE, length - at)
            done = await queue.read(
                handle, start + at, buffer, length=wanted, **self._options()
            )
            buffer.read_into(target[at : at + done])
            if done < wanted:
                ends.append(at + done)

        await self._move(length, piece)
        return min(ends)

    async def write_range(self, handle: Handle, start: int, source: memoryview) -> None:
        """Writes all of `source` from `start` on."""
        queue = await self.queue()

        async def piece(at: int, buffer: Buffer) -> None:
            part = source[at : at + PIECE]
            buffer.write_from(part)
            await queue.write(handle, start + at, buffer, length=len(part), **self._options())

        await self._move(len(source), piece)

    async def cat(self, handle: Handle, start: int | None, end: int | None) -> bytes:
        """Bytes of a file, with the numbers that slices have."""
        first, last, _ = slice(start, end).indices(handle.length)
        target = bytearray(max(0, last - first))
        done = await self.read_range(handle, first, memoryview(target))
        return bytes(memoryview(target)[:done])

    async def copy(self, source: Handle, target: Handle, callback: Any) -> None:
        """Has the daemon copy all of a file; its bytes do not pass here."""
        queue, at, length = await self.queue(), 0, source.length
        callback.set_size(length)
        while at < length:
            part = min(64 * PIECE, length - at)
            done = await queue.copy(source, at, target, at, part, **self._options())
            callback.relative_update(done)
            at += done
            if done < part:
                raise OSError(errno.EIO, "the file became shorter while it was copied")

    async def begin(
        self, path: str, tell: Callable[[Unfinished], None] | None = None
    ) -> Unfinished:
        """Makes a new file that is to have the path; `tell` knows it before it is there."""
        link = await self._linked()
        directory, queue = await self._directory(link, path, "rwn"), await link.queue()
        unfinished = Unfinished(
            link.client, directory, split(path), parents=True, queue=queue.native
        )
        if tell is not None:
            tell(unfinished)
        making = asyncio.ensure_future(asyncio.to_thread(unfinished.make))
        try:
            await asyncio.wait_for(asyncio.shield(making), self.timeout)
            unfinished.handle()
        except BaseException:
            await self.give_up(unfinished, path)
            raise
        return unfinished

    async def give_up(self, unfinished: Unfinished, path: str) -> None:
        """Removes a new file; one that is still being made is removed when it was."""
        if not unfinished.is_made():
            # Not by the loop's executor: its threads may all be waiting for the same node.
            threading.Thread(target=unfinished.give_up, name="piped-give-up").start()
            return
        unfinished.handle().close()
        try:
            # The directory of now: the one that it was made in may be lost with its daemon.
            calls, _ = await self.below(path)
            await calls.remove(unfinished.name)
        except FileNotFoundError:
            pass  # Its rename was carried out, though nobody heard of it.
        except OSError:
            return  # The end of the process tries again.
        unfinished.finished()

    async def settle(self, handle: Handle) -> None:
        """Brings a file to stable storage, if that is asked for."""
        if self.durable:
            await (await self.queue()).sync(handle, **self._options())

    async def finish(self, unfinished: Unfinished, path: str, over: str) -> None:
        """Gives a new file its path; `over`: replace or keep what has it."""
        calls, below = await self.below(path)
        await calls.rename(unfinished.name, below, over, self.durable)
        unfinished.finished()

    async def open_end(self, path: str, tell: Callable[[Handle, int], None]) -> None:
        """Opens a file for appending, and tells the handle and its length.

        It is locked until it is closed.
        """
        while True:
            handle = await self.open(path, "rw", "open")
            try:
                calls = await self.calls(handle)
                patience = self.timeout or self.client.timeout_default
                await asyncio.wait_for(_lock(calls), patience)
                stat = await calls.stat()
                if stat.inode == (await self.target(path)).inode:
                    tell(handle, stat.length)
                    return
            except BaseException:
                handle.close()
                raise
            # Somebody replaced it before there was the lock.
            handle.close()

    async def check_still(self, handle: Handle, path: str) -> None:
        """Refuses what was appended to a file that lost its name: nobody would find it."""
        stat = await (await self.calls(handle)).stat()
        if stat.inode != (await self.target(path)).inode:
            reason = "another file has the name now; what was appended is not in it"
            raise OSError(errno.ESTALE, reason, path)

    async def cut_off(self, handle: Handle, length: int) -> None:
        """Takes away what was appended."""
        await (await self.calls(handle)).truncate(length)


async def _lock(calls: TimedCalls) -> None:
    pause, most = LOCK_PAUSES
    while True:
        try:
            await calls.lock(0, 0)
            return
        except BusyError:
            await asyncio.sleep(pause)
            pause = min(2 * pause, most)


#: Sessions of clients that programs gave, for as long as a file system has one: it keeps the
#: client, so its number is no other's.
_given: weakref.WeakValueDictionary[tuple[int, float | None, bool], Session] = (
    weakref.WeakValueDictionary()
)


def _close_late(opening: asyncio.Future[Handle]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
