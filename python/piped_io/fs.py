"""`piped://peer/export/path` for fsspec, and so for pandas, pyarrow, dask, zarr and others.

The peer `localhost` is this node. A range is read by many requests at once, past Python, and a file
that is written appears whole, when it is closed.
"""

from __future__ import annotations

import asyncio
import errno
import io
import os
import posixpath
import stat as modes
from collections.abc import Callable
from datetime import datetime, timezone
from functools import partial
from glob import has_magic
from typing import Any

from fsspec.asyn import AsyncFileSystem, _run_coros_in_chunks
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.core import get_compression
from fsspec.utils import stringify_path

from ._fsfile import PackedFile, PipedFile, run, writing
from ._native import Client, Handle
from ._session import PIECE, Session, split
from ._types import Name, Stat
from ._unfinished import is_unfinished, replacing
from ._urls import SCHEME

#: What fsspec calls by the name without the underscore. These are run by `run`, which Ctrl-C ends.
CALLS = (
    "_cat",
    "_cat_file",
    "_cat_ranges",
    "_copy",
    "_cp_file",
    "_get",
    "_get_file",
    "_lexists",
    "_makedirs",
    "_mkdir",
    "_mv",
    "_pipe",
    "_pipe_file",
    "_put",
    "_put_file",
    "_rm",
    "_rm_file",
    "_rmdir",
)

#: Why a directory is not moved.
INTO_ITSELF = "a directory cannot be moved into itself"


class Kept(type(AsyncFileSystem)):  # type: ignore[misc]
    """Makes file systems: fsspec keeps each for good, but none that has a program's client."""

    def __call__(cls, *arguments: Any, **options: Any) -> Any:
        if options.get("client") is not None:
            options["skip_instance_cache"] = True
        return super().__call__(*arguments, **options)


class PipedFileSystem(AsyncFileSystem, metaclass=Kept):  # type: ignore[misc]
    """Files of exports.

    Storage options: `socket` is the daemon's, otherwise the default one; `client` has a client
    already; `timeout` is the seconds that an open, a read, a write or another request may take;
    `durable` has each file on stable storage before its name appears.

    Paths are names as they stand: nothing in them is escaped. Where a path may be a pattern, and
    something has just that name, it is the name. As in fsspec's local file system, links are
    followed by what reads, and removed themselves; what is written takes the name of a link.
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
        # The client's own patience is longer: what it opens after the time is closed or removed.
        if client is None:
            self.session = Session(None, socket, timeout, durable)
        else:
            self.session = Session.of(client, timeout, durable)

    def __reduce__(self) -> Any:
        if self.storage_options.get("client") is not None:
            raise TypeError(
                "a file system with a client cannot be pickled: the client is of this process;"
                " name its socket instead (socket=...)"
            )
        return super().__reduce__()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return stringify_path(path).removeprefix(SCHEME).strip("/")

    @staticmethod
    def _entry(path: str, stat: Stat, target: Stat | None = None) -> dict[str, Any]:
        """What fsspec tells of a file; of a link, its target's type, size and times."""
        formats = {"file": modes.S_IFREG, "directory": modes.S_IFDIR, "link": modes.S_IFLNK}
        shown = target or stat
        return {
            "name": path,
            "size": shown.length if shown.kind == "file" else 0,
            "type": shown.kind if shown.kind in ("file", "directory") else "other",
            "mode": formats.get(shown.kind, 0) | shown.mode,
            "mtime": shown.modified_ns / 1e9,
            "ino": shown.inode,
            "uid": shown.user,
            "gid": shown.group,
            "nlink": shown.links,
            "islink": stat.kind == "link",
        }

    async def _info(self, path: str, **_options: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        stat = await self.session.stat(path)
        target = await self.session.target(path) if stat.kind == "link" else None
        return self._entry(path, stat, target)

    async def _listed(self, path: str, stat: Stat) -> dict[str, Any]:
        """An entry of a listing. A link to a directory is none there: trees have no loops."""
        target = None
        if stat.kind == "link":
            try:
                target = await self.session.target(path)
            except FileNotFoundError:
                pass
        if target is not None and target.kind == "directory":
            target = None
        return self._entry(path, stat, target)

    async def _names(self, path: str, detail: bool) -> list[Name]:
        """All names in a directory, with what is known of each if `detail`."""
        calls, below = await self.session.below(path, "r")
        return [name async for name in calls.list(below, detail)]

    async def _entries(self, path: str, names: list[Name]) -> list[dict[str, Any]]:
        """What fsspec tells of names in a directory."""
        there = [(f"{path}/{name.name}", name.stat) for name in names if name.stat is not None]
        entries = await _run_coros_in_chunks([self._listed(*one) for one in sorted(there)])
        return list(entries)

    async def _ls(self, path: str, detail: bool = True, **_options: Any) -> list[Any]:
        path = self._strip_protocol(path)
        info = await self._info(path)
        if info["type"] != "directory":
            return [info] if detail else [path]
        names = [name for name in await self._names(path, detail) if not is_unfinished(name.name)]
        if not detail:
            return sorted(f"{path}/{name.name}" for name in names)
        return await self._entries(path, names)

    async def _lexists(self, path: str, **_options: Any) -> bool:
        try:
            await self.session.stat(self._strip_protocol(path))
            return True
        except FileNotFoundError:
            return False

    async def _expand_path(self, path: Any, *arguments: Any, **options: Any) -> Any:
        # A file with the name of a pattern is that file, and nothing else is removed for it.
        if isinstance(path, str) and has_magic(path) and await self._lexists(path):
            options["assume_literal"] = True
            path = [path]
        return await super()._expand_path(path, *arguments, **options)

    async def _cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **_options: Any
    ) -> bytes:
        with await self.session.open(self._strip_protocol(path), "r") as handle:
            return await self.session.cat(handle, start, end)

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
                opening = self.session.open(self._strip_protocol(path), "r")
                handles[path] = asyncio.ensure_future(opening)

        async def one(path: str, start: int | None, end: int | None) -> Any:
            try:
                return await self.session.cat(await handles[path], start, end)
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
        with writing():
            unfinished = await self.session.begin(path)
            try:
                with unfinished.handle() as handle:
                    await fill(handle, unfinished.name)
                    await self.session.settle(handle)
                over = "keep" if mode == "create" else "replace"
                await self.session.finish(unfinished, path, over)
            except BaseException:
                await self.session.give_up(unfinished, path)
                raise

    async def _pipe_file(
        self, path: str, value: bytes, mode: str = "overwrite", **_options: Any
    ) -> None:
        async def fill(handle: Handle, _name: str) -> None:
            await self.session.write_range(handle, 0, memoryview(value).cast("B"))

        await self._write_new(self._strip_protocol(path), fill, mode)

    async def _get_file(
        self, rpath: str, lpath: Any, callback: Any = DEFAULT_CALLBACK, **_options: Any
    ) -> None:
        rpath = self._strip_protocol(rpath)
        if await self._isdir(rpath):
            os.makedirs(lpath, exist_ok=True)
            return
        if hasattr(lpath, "write"):
            lpath.write(await self._cat_file(rpath))
            return
        with writing(), await self.session.open(rpath, "r") as handle:
            with replacing(os.fspath(lpath)) as name:
                with await self.session.open_local(name, "w", truncate=True) as local:
                    await self.session.copy(handle, local, callback)

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
            with await self.session.open_local(os.fspath(lpath), "r") as local:
                await self.session.copy(local, handle, callback)

        await self._write_new(rpath, fill, mode)

    async def _cp_file(self, path1: str, path2: str, **_options: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        info = await self._info(path1)
        if info["type"] == "directory":
            await self._makedirs(path2, exist_ok=True)
            return
        here, there = split(path1), split(path2)

        async def fill(handle: Handle, name: str) -> None:
            if here[:2] == there[:2] and not info["islink"]:
                # The node copies, and shares the room where its file system can.
                calls, _ = await self.session.below(path2)
                await calls.copy(here[2], name, self.session.durable)
                return
            with await self.session.open(path1, "r") as source:
                await self.session.copy(source, handle, DEFAULT_CALLBACK)

        await self._write_new(path2, fill)

    async def _rm_file(self, path: str, **_options: Any) -> None:
        calls, below = await self.session.below(self._strip_protocol(path))
        await calls.remove(below, "any")

    async def _rm(
        self, path: Any, recursive: bool = False, maxdepth: int | None = None, **_options: Any
    ) -> None:
        if maxdepth is not None:
            raise NotImplementedError("a directory is removed whole or not at all: no maxdepth")
        paths = [path] if isinstance(path, str) else path
        for one in {name for path in paths for name in await self._expand_path(path)}:
            # A link goes, and what it leads to stays.
            if (await self.session.stat(one)).kind != "directory":
                await self._rm_file(one)
            elif recursive:
                await self._remove_all(await self._tree(one))
            else:
                raise IsADirectoryError(errno.EISDIR, "a directory: say recursive=True", one)

    async def _tree(self, path: str) -> dict[str, dict[str, Any]]:
        """Entries of a directory and of all below it, also of files that are being written.

        Unlike `find`, it fails if one is missing.
        """
        found: dict[str, dict[str, Any]] = {path: await self._info(path)}
        ahead = [path]
        while ahead:
            above = ahead.pop()
            for entry in await self._entries(above, await self._names(above, True)):
                found[entry["name"]] = entry
                if entry["type"] == "directory":
                    ahead.append(entry["name"])
        return found

    async def _remove_all(
        self, tree: dict[str, dict[str, Any]], copied: dict[str, Stat] | None = None
    ) -> None:
        """Removes a tree, and nothing that came to it meanwhile: that directory is not empty.

        Files that were copied are as they were before that, or they stay.
        """
        directories = {name for name, entry in tree.items() if entry["type"] == "directory"}
        files = tree.keys() - directories
        remove = self._rm_file if copied is None else partial(self._rm_copied, copied)
        await _run_coros_in_chunks([remove(name) for name in files])
        for name in sorted(directories, key=lambda name: name.count("/"), reverse=True):
            await self._rmdir(name)

    async def _rm_copied(self, copied: dict[str, Stat], path: str) -> None:
        """Removes a file that is what it was before it was copied."""
        before, now = copied[path], await self.session.stat(path)
        for field in ("inode", "length", "modified_ns"):
            if getattr(before, field) != getattr(now, field):
                reason = "it changed while it was moved to another export, so it stays"
                raise OSError(errno.ESTALE, reason, path)
        await self._rm_file(path)

    async def _is_at(self, stat: Stat, path: str) -> bool:
        """Whether a path leads to the very file that is known: exports may overlap."""
        try:
            return await self.session.stat(path) == stat
        except FileNotFoundError:
            return False

    async def _rmdir(self, path: str) -> None:
        calls, below = await self.session.below(self._strip_protocol(path))
        await calls.remove(below, "directory")

    async def _mkdir(self, path: str, create_parents: bool = True, **_options: Any) -> None:
        path = self._strip_protocol(path)
        calls, below = await self.session.below(path)
        if not below:
            raise FileExistsError(errno.EEXIST, "an export is there", path)
        parent = posixpath.dirname(below)
        if create_parents and parent:
            await calls.makedirs(parent)
        await calls.mkdir(below)

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        path = self._strip_protocol(path)
        calls, below = await self.session.below(path)
        if not exist_ok and await self._exists(path):
            raise FileExistsError(errno.EEXIST, "it is there", path)
        if below:
            await calls.makedirs(below)

    async def _mv(self, path1: str, path2: str, **_options: Any) -> None:
        path1, path2 = self._strip_protocol(path1), self._strip_protocol(path2)
        if path1 == path2:
            return
        stat = await self.session.stat(path1)
        if await self._isdir(path2):
            path2 = f"{path2}/{posixpath.basename(path1)}"
        if stat.kind == "directory" and path2.startswith(f"{path1}/"):
            raise OSError(errno.EINVAL, INTO_ITSELF, path1)
        here, there = split(path1), split(path2)
        if here[:2] == there[:2]:
            try:
                calls, _ = await self.session.below(path1)
                await calls.rename(here[2], there[2], "replace", self.session.durable)
                return
            except OSError as error:
                if error.errno != errno.EXDEV:
                    raise
        if stat.kind == "directory":
            above = path2
            while "/" in (above := posixpath.dirname(above)):
                if await self._is_at(stat, above):
                    raise OSError(errno.EINVAL, INTO_ITSELF, path1)
            tree = await self._tree(path1)
        else:
            tree = {path1: await self._info(path1)}
        for name, entry in sorted(tree.items()):
            if entry["type"] == "other" or (entry["islink"] and entry["type"] == "directory"):
                reason = "neither a file nor a directory: it cannot be moved to another export"
                raise OSError(errno.EOPNOTSUPP, reason, name)
        copied: dict[str, Stat] = {}
        # Directories come before what is in them.
        for name, entry in sorted(tree.items()):
            target = path2 + name[len(path1) :]
            if entry["type"] == "directory":
                await self._makedirs(target, exist_ok=True)
                continue
            copied[name] = await self.session.stat(name)
            if await self._is_at(copied[name], target):
                reason = f"it is the file of {target}, by another export, so it stays"
                raise OSError(errno.EINVAL, reason, name)
            await self._cp_file(name, target)
        await self._remove_all(tree, copied)

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

    def open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | str | None = None,
        cache_options: dict[str, Any] | None = None,
        compression: str | None = None,
        **options: Any,
    ) -> Any:
        """Opens a file as fsspec does. One that is compressed has its name when that is closed."""
        options.update(block_size=block_size, cache_options=cache_options)
        if compression is None or "r" in mode:
            return super().open(path, mode, compression=compression, **options)
        is_text = "b" not in mode
        text = {name: options.pop(name) for name in TEXT if is_text and name in options}
        file = super().open(path, mode.replace("t", "").replace("b", "") + "b", **options)
        packed = PackedFile(file, get_compression(path, compression))
        return io.TextIOWrapper(packed, **text) if is_text else packed

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: int | str | None = None,
        autocommit: bool = True,
        **options: Any,
    ) -> PipedFile:
        if "x" in mode and self.exists(path):
            # Known now; and when it is closed, for those that come meanwhile.
            raise FileExistsError(errno.EEXIST, "it is there", path)
        block = block_size if isinstance(block_size, int) else 4 * PIECE
        # Known when it is opened, and not before: a file that is pickled names it.
        options.pop("size", None)
        return PipedFile(self, path, mode, block, autocommit=autocommit, **options)


#: What text files are told beside their mode.
TEXT = ("encoding", "errors", "newline")


def _waiting(name: str) -> Callable[..., Any]:
    def call(self: PipedFileSystem, *arguments: Any, **options: Any) -> Any:
        return run(self.loop, getattr(self, name), *arguments, **options)

    call.__name__ = name[1:]
    call.__doc__ = getattr(getattr(AsyncFileSystem, name[1:], None), "__doc__", None)
    return call


for _name in CALLS:
    setattr(PipedFileSystem, _name[1:], _waiting(_name))
