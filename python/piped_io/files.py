"""Files of nodes as Python's file objects, by `piped://peer/export/path` or a local path."""

from __future__ import annotations

import builtins
import io
import os
import threading
from typing import Any

from ._calls import Calls, queue_of, run
from ._native import Buffer, Client, Handle
from ._unfinished import Unfinished
from ._urls import is_url
from ._urls import parse_url as parse_url

#: Bytes that go by one request between the daemon and a buffer of somebody else's.
PIECE = 1 << 20

_default: Client | None = None
_default_lock = threading.Lock()


def default_client() -> Client:
    """The client of those who name none: one for a process and a daemon.

    A forked process, and one whose daemon has ended, gets another client.
    """
    global _default
    with _default_lock:
        if _default is None or not _default.is_connected:
            _default = Client()
        return _default


def _forget_lock() -> None:
    """The child of a fork has no thread that would give the lock free."""
    global _default_lock
    _default_lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)


class RawFile(io.RawIOBase):
    """A file as Python has them: `io.BufferedReader(RawFile(...))` reads lines of it.

    Bytes pass through one buffer of the arena. Who wants none of that copy reads into a `Buffer`.
    """

    def __init__(
        self, client: Client, handle: Handle, name: str, mode: str, position: int = 0
    ) -> None:
        super().__init__()
        self.client = client
        self.handle = handle
        self.name = name
        self.mode = mode
        self._readable = "r" in mode or "+" in mode
        self._writable = mode != "rb"
        self._position = position
        self._buffer: Buffer | None = None

    def __repr__(self) -> str:
        return f"<piped_io.RawFile name={self.name!r} mode={self.mode!r}>"

    def readable(self) -> bool:
        self._check()
        return self._readable

    def writable(self) -> bool:
        self._check()
        return self._writable

    def seekable(self) -> bool:
        self._check()
        return True

    def readinto(self, target: Any) -> int:
        """Reads into an object's bytes: how many; 0 at the end of the file."""
        self._check()
        if not self._readable:
            raise io.UnsupportedOperation("not readable")
        view = memoryview(target).cast("B")
        buffer = self._room(len(view))
        length = min(len(view), len(buffer))
        if length == 0:
            return 0
        count = queue_of(self.client).read(self.handle, self._position, buffer, length=length)
        buffer.read_into(view[:count])
        self._position += count
        return count

    def write(self, data: Any) -> int:
        """Writes an object's bytes: how many, which may be fewer than there are."""
        self._check()
        if not self._writable:
            raise io.UnsupportedOperation("not writable")
        view = memoryview(data).cast("B")
        if len(view) == 0:
            return 0
        if "a" in self.mode:
            self._position = self._length()
        buffer = self._room(len(view))
        length = min(len(view), len(buffer))
        buffer.write_from(view[:length])
        count = queue_of(self.client).write(self.handle, self._position, buffer, length=length)
        self._position += count
        return count

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Moves the position; returns it, in bytes from the start."""
        self._check()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position}.get(whence)
        if whence == os.SEEK_END:
            base = self._length()
        if base is None:
            raise ValueError(f"whence {whence} is none of SEEK_SET, SEEK_CUR, SEEK_END")
        if base + offset < 0:
            raise ValueError("a position is not negative")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        self._check()
        return self._position

    def truncate(self, size: int | None = None) -> int:
        """Cuts the file off at `size` bytes, or at the position."""
        self._check()
        if not self._writable:
            raise io.UnsupportedOperation("not writable")
        size = self._position if size is None else size
        Calls(self.client, self.handle).truncate(size)
        return size

    def sync(self) -> None:
        """Brings what was written to stable storage."""
        self._check()
        run(self.client, lambda queue: queue.submit_sync(self.handle))

    def close(self) -> None:
        if not self.closed:
            super().close()
            self.handle.close()
            self._buffer = None

    def _check(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def _length(self) -> int:
        return int(Calls(self.client, self.handle).stat().length)

    def _room(self, wanted: int) -> Buffer:
        if self._buffer is None or len(self._buffer) < min(wanted, PIECE):
            self._buffer = None
            self._buffer = self.client.allocate(max(4096, min(wanted, PIECE)))
        return self._buffer


def _open_handle(client: Client, url: str, access: str, create: str | None) -> Handle:
    if is_url(url):
        peer, export, path = parse_url(url)
        return client.open_export(peer, export, path, access, create=create)
    return client.open_file(url, access, create=create)


def open(
    url: str | os.PathLike[str],
    mode: str = "rb",
    buffering: int = -1,
    *,
    client: Client | None = None,
    **text: Any,
) -> Any:
    """Opens `piped://peer/export/path`, or a local path, as Python's `open` does.

    Modes are those of `open`. `text` has `encoding`, `errors` and `newline` of modes without "b".
    """
    raw_mode = mode.replace("t", "").replace("b", "")
    if sorted(raw_mode.replace("+", "")) not in (["r"], ["w"], ["x"], ["a"]):
        raise ValueError(f"mode {mode!r} has none or several of r, w, x and a")
    client = client or default_client()
    name = os.fspath(url)
    access = "r" if raw_mode == "r" else "rw" if "+" in raw_mode else "w"
    if "a" in raw_mode:
        access = "rw"
    create = {"w": "open", "x": "new", "a": "open"}.get(raw_mode[0])
    handle = _open_handle(client, name, access, create)
    raw = RawFile(client, handle, name, raw_mode[0] + "b" + raw_mode[1:])
    try:
        if "w" in raw_mode and handle.length > 0:
            raw.truncate(0)
        if "a" in raw_mode:
            raw.seek(0, os.SEEK_END)
        if buffering == 0:
            if "b" not in mode:
                raise ValueError("can't have unbuffered text I/O")
            return raw
        size = buffering if buffering > 1 else PIECE
        buffered: Any
        if "+" in raw_mode:
            buffered = io.BufferedRandom(raw, size)
        elif raw_mode == "r":
            buffered = io.BufferedReader(raw, size)
        else:
            buffered = io.BufferedWriter(raw, size)
        return buffered if "b" in mode else io.TextIOWrapper(buffered, **text)
    except builtins.BaseException:
        raw.close()
        raise


def replace(
    url: str, data: Any, *, client: Client | None = None, mode: int = 0o640, durable: bool = True
) -> None:
    """Replaces a file of an export, or makes it, by the bytes of an object, or of several.

    Others see the old bytes or the new ones, and with `durable` so does who comes after a crash.
    The export must allow names.
    """
    client = client or default_client()
    peer, export, path = parse_url(url)
    directory = client.open_directory(peer, export, "", "rwn")
    unfinished = Unfinished(client, directory, (peer, export, path), mode=mode)
    try:
        # On a thread, because Ctrl-C may end the wait for it before the file is made.
        threading.Thread(target=unfinished.make, name="piped-replace").start()
        with RawFile(client, unfinished.handle(), unfinished.name, "wb") as raw:
            for part in data if isinstance(data, (list, tuple)) else [data]:
                view = memoryview(part).cast("B")
                while len(view) > 0:
                    view = view[raw.write(view) :]
            if durable:
                raw.sync()
        unfinished.finish("replace", durable)
    except builtins.BaseException:
        unfinished.give_up()
        raise
