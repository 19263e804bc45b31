"""`piped://peer/export/path` for fsspec, and so for pandas, pyarrow, dask, zarr and others.

The peer `localhost` is this node. A range is read by many requests at once, past Python, and a file
that is written appears whole, when it is closed.
"""

from __future__ import annotations

import asyncio
import errno
import os
import posixpath
import stat as modes
from datetime import datetime, timezone
from typing import Any

from fsspec.asyn import AsyncFileSystem, sync, sync_wrapper
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.spec import AbstractBufferedFile
from fsspec.utils import stringify_path

from ._native import Buffer, Client, Handle
from ._types import Stat
from .aio import AsyncQueue
from .aio import queue as new_queue
from .errors import NotDirectoryError, PipedError
from .files import THIS_NODE, beside

#: Bytes of one request, and requests under way at once for one range.
PIECE = 1 << 20
AT_ONCE = 4


class PipedFileSystem(AsyncFileSystem):  # type: ignore[misc]
    """Files of exports.

    Storage options: `socket` is the daemon's, otherwise the default one; `client` has a client
    already; `timeout` is the seconds that a request may take; `durable` has each file on stable
    storage before its name appears.
    """

    protocol = "piped"
    root_marker = ""
    async_impl = True

    def __init__(
        self,
        socket: str | None = None,
        *,
        client: Client | None = None,
        timeout: float | None = None,
        durable: bool = False,
        asynchronous: bool = False,
        loop: Any = None,
        **options: Any,
    ) -> None:
        super().__init__(asynchronous=asynchronous, loop=loop, **options)
        self.client = client or Client(socket)
        self.timeout = timeout
        self.durable = durable
        self._queues: dict[Any, AsyncQueue] = {}
        self._directories: dict[tuple[str, str, str], Handle] = {}
        self._spares: list[Buffer] = []

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        if path.startswith("piped://"):
            path = path[len("piped://") :]
        return path.strip("/")

    @staticmethod
    def _split(path: str) -> tuple[str, str, str]:
        peer, _, rest = path.partition("/")
        export, _, below = rest.partition("/")
        if not peer or not export:
            raise FileNotFoundError(
                errno.ENOENT, "a path names peer and export: piped://peer/export/path", path
            )
        return peer, export, below

    async def _queue(self) -> AsyncQueue:
        loop = asyncio.get_running_loop()
        found = self._queues.get(loop)
        if found is None:
            found = await new_queue(self.client)
            found = self._queues.setdefault(loop, found)
        return found

    async def _directory(self, path: str, access: str) -> tuple[Any, str]:
        """Calls of the export that a path is below, and the path below it."""
        peer, export, below = self._split(path)
        key = (peer, export, access)
        handle = self._directories.get(key)
        if handle is None:
            name = None if peer == THIS_NODE else peer
            handle = await asyncio.to_thread(self.client.open_directory, name, export, "", access)
            handle = self._directories.setdefault(key, handle)
        return (await self._queue()).calls(handle), below

    async def _open_handle(
        self, path: str, access: str, create: str | None = None, parents: bool = False
    ) -> Handle:
        peer, export, below = self._split(path)
        name = None if peer == THIS_NODE else peer

        def opened() -> Handle:
            return self.client.open_export(
                name, export, below, access, create=create, parents=parents
            )

        return await asyncio.to_thread(opened)

    async def _buffer(self) -> Buffer:
        if self._spares:
            return self._spares.pop()
        return await (await self._queue()).allocate(PIECE)

    def _give_back(self, buffer: Buffer) -> None:
        if buffer.is_here and len(self._spares) < 4 * AT_ONCE:
            self._spares.append(buffer)

    def _options(self) -> dict[str, Any]:
        return {} if self.timeout is None else {"timeout": self.timeout}

    async def _move(self, pieces: Any, count: int) -> None:
        """Runs the pieces, `AT_ONCE` at a time, each with a buffer."""

        async def work() -> None:
            for piece in pieces:
                buffer = await self._buffer()
                try:
                    await piece(buffer)
                finally:
                    self._give_back(buffer)

        tasks = [asyncio.ensure_future(work()) for _ in range(min(AT_ONCE, max(count, 1)))]
        try:
            await asyncio.gather(*tasks)
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    async def _read_range(self, handle: Handle, start: int, target: memoryview) -> int:
        """Fills `target` from `start` on: contiguous bytes that the file had."""
        queue = await self._queue()
        length = len(target)
        ends = [length]

        def piece_at(at: int) -> Any:
            async def piece(buffer: Buffer) -> None:
                wanted = min(PIECE, length - at)
                done = await queue.read(handle, start + at, buffer, length=wanted, **self._options())
                buffer.read_into(target[at : at + done])
                if done < wanted:
                    ends.append(at + done)

            return piece

        pieces = (piece_at(at) for at in range(0, length, PIECE))
        await self._move(pieces, -(-length // PIECE))
        return min(ends)

    async def _write_range(self, handle: Handle, start: int, source: memoryview) -> None:
        queue = await self._queue()

        def piece_at(at: int) -> Any:
            async def piece(buffer: Buffer) -> None:
                part = source[at : at + PIECE]
                buffer.write_from(part)
                await queue.write(handle, start + at, buffer, length=len(part), **self._options())

            return piece

        pieces = (piece_at(at) for at in range(0, len(source), PIECE))
        await self._move(pieces, -(-len(source) // PIECE))

    def _entry(self, path: str, stat: Stat) -> dict[str, Any]:
        formats = {"file": modes.S_IFREG, "directory": modes.S_IFDIR, "link": modes.S_IFLNK}
        return {
            "name": path,
            "size": stat.length if stat.kind == "file" else 0,
            "type": stat.kind,
            "mode": formats.get(stat.kind, 0) | stat.mode,
            "mtime": stat.modified_ns / 1e9,
            "ino": stat.inode,
            "uid": stat.user,
            "gid": stat.group,
            "nlink": stat.links,
            "islink": stat.kind == "link",
        }

    async def _info(self, path: str, **_options: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        calls, below = await self._directory(path, "r")
        try:
            stat = await calls.stat(below)
        except NotDirectoryError as error:
            raise FileNotFoundError(errno.ENOENT, error.strerror, path) from error
        return self._entry(path, stat)

    async def _ls(self, path: str, detail: bool = True, **_options: Any) -> list[Any]:
        path = self._strip_protocol(path)
        info = await self._info(path)
        if info["type"] != "directory":
            return [info] if detail else [path]
        calls, below = await self._directory(path, "r")
        names = [name async for name in calls.list(below, detail)]
        if not detail:
            return sorted(f"{path}/{name.name}" for name in names)
        there = (name for name in names if name.stat is not None)
        entries = [self._entry(f"{path}/{name.name}", name.stat) for name in there]
        return sorted(entries, key=lambda entry: str(entry["name"]))

    async def _cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_options: Any
    ) -> bytes:
        path = self._strip_protocol(path)
        with await self._open_handle(path, "r") as handle:
            return await self._cat_handle(handle, start, end)

    async def _cat_handle(self, handle: Handle, start: int | None, end: int | None) -> bytes:
        length = handle.length
        first, last, _ = slice(start, end).indices(length)
        target = bytearray(max(0, last - first))
        done = await self._read_range(handle, first, memoryview(target))
        return bytes(memoryview(target)[:done])

    async def _cat_ranges(
        self,
        paths: list[str],
        starts: Any,
        ends: Any,
        max_gap: int | None = None,
        batch_size: int | None = None,
        on_error: str = "return",
        **_options: Any,
    ) -> list[Any]:
        if max_gap is not None:
            raise NotImplementedError("ranges are not merged: they travel together anyway")
        starts = list(starts) if isinstance(starts, (list, tuple)) else [starts] * len(paths)
        ends = list(ends) if isinstance(ends, (list, tuple)) else [ends] * len(paths)
        if not len(paths) == len(starts) == len(ends):
            raise ValueError("paths, starts and ends are not equally many")
        handles: dict[str, Any] = {}
        for path in paths:
            if path not in handles:
                stripped = self._strip_protocol(path)
                handles[path] = asyncio.ensure_future(self._open_handle(stripped, "r"))

        async def one(path: str, start: int | None, end: int | None) -> Any:
            try:
                return await self._cat_handle(await handles[path], start, end)
            except Exception as error:
                if on_error == "return":
                    return error
                raise

        try:
            return await asyncio.gather(*map(one, paths, starts, ends))
        finally:
            for opened in await asyncio.gather(*handles.values(), return_exceptions=True):
                if isinstance(opened, Handle):
                    opened.close()

    async def _write_new(self, path: str, fill: Any, mode: str = "overwrite") -> None:
        """Has a new file filled, by its handle or name, and gives it the path when it is whole."""
        if mode not in ("overwrite", "create"):
            raise ValueError(f"mode is overwrite or create, not {mode!r}")
        peer, export, below = self._split(path)
        new = beside(below)
        calls, _ = await self._directory(path, "rwn")
        handle = await self._open_handle(f"{peer}/{export}/{new}", "w", "new", parents=True)
        try:
            with handle:
                await fill(handle, new)
                if self.durable:
                    await (await self._queue()).sync(handle)
            over = "keep" if mode == "create" else "replace"
            await calls.rename(new, below, over, self.durable)
        except BaseException:
            try:
                await calls.remove(new)
            except PipedError:
                pass  # The first error counts.
            raise

    async def _copy_bytes(self, source: Handle, target: Handle, callback: Any) -> None:
        """Has the daemon copy all of a file; its bytes do not pass here."""
        queue, at, length = await self._queue(), 0, source.length
        callback.set_size(length)
        while at < length:
            part = min(64 * PIECE, length - at)
            done = await queue.copy(source, at, target, at, part, **self._options())
            callback.relative_update(done)
            at += done
            if done < part:
                return

    async def _pipe_file(
        self, path: str, value: bytes, mode: str = "overwrite", **_options: Any
    ) -> None:
        path = self._strip_protocol(path)

        async def fill(handle: Handle, _name: str) -> None:
            await self._write_range(handle, 0, memoryview(value).cast("B"))

        await self._write_new(path, fill, mode)

    async def _get_file(
        self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, **_options: Any
    ) -> None:
        rpath = self._strip_protocol(rpath)
        if await self._isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        if hasattr(lpath, "write"):
            data = await self._cat_file(rpath)
            lpath.write(data)
            return
        with await self._open_handle(rpath, "r") as handle:

            def made() -> Handle:
                return self.client.open_file(
                    os.fspath(lpath), "w", create="open", truncate=True, mode=0o666
                )

            with await asyncio.to_thread(made) as local:
                await self._copy_bytes(handle, local, callback)

    async def _put_file(
        self,
        lpath: str,
        rpath: str,
        mode: str = "overwrite",
        callback: Any = DEFAULT_CALLBACK,
        **_options: Any,
    ) -> None:
        rpath = self._strip_protocol(rpath)
        if os.path.isdir(lpath):
            await self._makedirs(rpath, exist_ok=True)
            return

        async def fill(handle: Handle, _name: str) -> None:
            opened = await asyncio.to_thread(self.client.open_file, os.fspath(lpath), "r")
            with opened as local:
                await self._copy_bytes(local, handle, callback)

        await self._write_new(rpath, fill, mode)

    async def _cp_file(self, path1: str, path2: str, **_options: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        info = await self._info(path1)
        if info["type"] == "directory":
            await self._makedirs(path2, exist_ok=True)
            return
        here, there = self._split(path1), self._split(path2)

        async def fill(handle: Handle, name: str) -> None:
            if here[:2] == there[:2]:
                # The node copies, and shares the room where its file system can.
                calls, _ = await self._directory(path2, "rwn")
                await calls.copy(here[2], name, self.durable)
                return
            with await self._open_handle(path1, "r") as source:
                await self._copy_bytes(source, handle, DEFAULT_CALLBACK)

        await self._write_new(path2, fill)

    async def _rm_file(self, path: str, **_options: Any) -> None:
        path = self._strip_protocol(path)
        calls, below = await self._directory(path, "rwn")
        await calls.remove(below, "any")

    async def _rm(
        self, path: Any, recursive: bool = False, batch_size: int | None = None, **options: Any
    ) -> None:
        paths = await self._expand_path(path, recursive=recursive)
        # What is deeper first: only empty directories are removed.
        for one in sorted(paths, key=lambda name: name.count("/"), reverse=True):
            if not recursive and await self._isdir(one):
                raise IsADirectoryError(errno.EISDIR, "a directory: say recursive=True", one)
            await self._rm_file(one)

    async def _rmdir(self, path: str) -> None:
        path = self._strip_protocol(path)
        calls, below = await self._directory(path, "rwn")
        await calls.remove(below, "directory")

    rmdir = sync_wrapper(_rmdir)

    async def _mkdir(self, path: str, create_parents: bool = True, **_options: Any) -> None:
        path = self._strip_protocol(path)
        calls, below = await self._directory(path, "rwn")
        if not below:
            raise FileExistsError(errno.EEXIST, "an export is there", path)
        parent = posixpath.dirname(below)
        if create_parents and parent:
            await calls.makedirs(parent)
        await calls.mkdir(below)

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path)
        calls, below = await self._directory(path, "rwn")
        if not exist_ok and await self._exists(path):
            raise FileExistsError(errno.EEXIST, "it is there", path)
        if below:
            await calls.makedirs(below)

    async def _mv(self, path1: str, path2: str, **_options: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        here, there = self._split(path1), self._split(path2)
        if here[:2] == there[:2]:
            calls, _ = await self._directory(path1, "rwn")
            await calls.rename(here[2], there[2], "replace", self.durable)
            return
        await self._copy(path1, path2, recursive=True)
        await self._rm(path1, recursive=True)

    def mv(self, path1: str, path2: str, **options: Any) -> None:
        """Gives a file or directory another name, in one step within an export."""
        sync(self.loop, self._mv, path1, path2, **options)

    def created(self, path: str) -> datetime:
        """Not kept by exports: the time of the last change."""
        return self.modified(path)

    def modified(self, path: str) -> datetime:
        """The time of the last change of a file's bytes."""
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=timezone.utc)

    def ukey(self, path: str) -> str:
        """A key that changes with the file: its inode, length and time of change."""
        info = self.info(path)
        return f"{info['ino']}-{info['size']}-{info['mtime']}"

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | str | None = None,
        autocommit: bool = True,
        cache_options: dict[str, Any] | None = None,
        **options: Any,
    ) -> PipedFile:
        info = self.info(path) if mode == "rb" else {"type": "file", "size": None}
        if info["type"] == "directory":
            raise IsADirectoryError(errno.EISDIR, "a directory", path)
        if "x" in mode and self.exists(path):
            # Known now; and when it is closed, for those that come meanwhile.
            raise FileExistsError(errno.EEXIST, "it is there", path)
        block = block_size if isinstance(block_size, int) else 4 * PIECE
        return PipedFile(
            self,
            path,
            mode,
            block,
            autocommit=autocommit,
            cache_options=cache_options,
            size=info["size"],
            **options,
        )


class PipedFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file of an export, as fsspec has them. Written ones appear whole, at their end."""

    fs: PipedFileSystem

    _handle: Handle | None = None
    _beside: str | None = None
    _written = 0

    def _run(self, function: Any, *arguments: Any) -> Any:
        return sync(self.fs.loop, function, *arguments)

    def _fetch_range(self, start: int, end: int) -> bytes:
        if self._handle is None:
            self._handle = self._run(self.fs._open_handle, self.path, "r")
        data: bytes = self._run(self.fs._cat_handle, self._handle, start, end)
        return data

    def _initiate_upload(self) -> None:
        peer, export, below = self.fs._split(self.path)
        name = self._beside = beside(below)
        made = self._run(self.fs._open_handle, f"{peer}/{export}/{name}", "w", "new", True)
        self._handle = made
        if "a" in self.mode and self._run(self.fs._exists, self.path):
            self._write(self._run(self.fs._cat_file, self.path))

    def _write(self, data: bytes) -> None:
        self._run(self.fs._write_range, self._handle, self._written, memoryview(data))
        self._written += len(data)

    def _upload_chunk(self, final: bool = False) -> bool:
        self.buffer.seek(0)
        self._write(self.buffer.read())
        if final and self.autocommit:
            self.commit()
        return True

    async def _rename(self) -> None:
        calls, below = await self.fs._directory(self.path, "rwn")
        if self.fs.durable and self._handle is not None:
            await (await self.fs._queue()).sync(self._handle)
        over = "keep" if "x" in self.mode else "replace"
        await calls.rename(self._beside, below, over, self.fs.durable)

    async def _remove(self) -> None:
        calls, _ = await self.fs._directory(self.path, "rwn")
        await calls.remove(self._beside)

    def commit(self) -> None:
        """Gives the file its path."""
        if self._beside is not None:
            self._run(self._rename)
            self._beside = None

    def discard(self) -> None:
        """Removes what was written."""
        if self._beside is not None:
            self._run(self._remove)
            self._beside = None

    def close(self) -> None:
        if not self.closed:
            try:
                super().close()
            finally:
                if self._handle is not None:
                    self._handle.close()
                    self._handle = None
