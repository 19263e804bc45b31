"""Files of the fsspec file system, and how its calls wait for what the loop's thread does."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import errno
import io
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from fsspec.compression import compr
from fsspec.exceptions import FSTimeoutError
from fsspec.spec import AbstractBufferedFile

from ._native import Handle
from ._unfinished import TURN, Unfinished

if TYPE_CHECKING:
    from .fs import PipedFileSystem

#: Tasks that write files for the call that `run` waits for. fsspec starts them and forgets them
#: when it is cancelled.
_writers: contextvars.ContextVar[set[asyncio.Task[Any]]] = contextvars.ContextVar("writers")


def run(loop: Any, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
    """Runs a coroutine on the loop's thread, and returns what it came to.

    fsspec's own `sync` leaves the coroutine running when Ctrl-C ends the wait. This one cancels it,
    and waits until it has undone what it began. Ctrl-C may also come when it has ended and nobody
    has its result yet: what must not get lost with that is told by the coroutine itself.
    """
    if loop is None or loop.is_closed():
        raise RuntimeError("a file system with asynchronous=True has no loop for this call")
    if asyncio._get_running_loop() is loop:
        raise NotImplementedError("the loop's own thread cannot wait for it: await the coroutine")
    whole: list[asyncio.Task[Any]] = []
    writers: set[asyncio.Task[Any]] = set()
    ended, undone = threading.Event(), threading.Event()

    def begin() -> None:
        context = contextvars.copy_context()
        context.run(_writers.set, writers)
        whole.append(loop.create_task(function(*arguments, **options), context=context))
        whole[0].add_done_callback(lambda _: ended.set())

    def cancel() -> None:
        tasks = {*whole, *writers}
        if not tasks:
            undone.set()
            return
        for task in tasks:
            task.cancel()
        loop.create_task(asyncio.wait(tasks)).add_done_callback(lambda _: undone.set())

    try:
        # In here: a signal may come as soon as the loop knows of it.
        loop.call_soon_threadsafe(begin)
        # By turns: Python does not see a signal that comes as a wait begins until it ends.
        while not ended.wait(TURN):
            pass
    except BaseException:
        loop.call_soon_threadsafe(cancel)
        while not undone.wait(TURN):
            pass
        raise
    try:
        return whole[0].result()
    except TimeoutError as error:
        raise FSTimeoutError(*error.args) from error


@contextlib.contextmanager
def writing() -> Iterator[None]:
    """Has the calling task cancelled if Ctrl-C ends the call that it writes a file for."""
    writers, task = _writers.get(None), asyncio.current_task()
    if writers is None or task is None or task in writers:
        yield
        return
    writers.add(task)
    try:
        yield
    finally:
        writers.discard(task)


class PipedFile(AbstractBufferedFile):  # type: ignore[misc]
    """A file of an export, as fsspec has them.

    A file that is written gets its name when it is closed, whole. It is discarded if a write
    failed, or if it is closed while an exception is on its way: at the end of a `with` block, also
    one of a text file, a compressor, `fsspec.open` or pandas over it, whose ends look all the same
    from below. So close files behind the `except` that deals with an exception, and not in it.

    Bytes that are appended go to the end of the file itself, under a lock of the whole file that
    other appenders wait for. Discarded, they are cut off again.
    """

    fs: PipedFileSystem

    _handle: Handle | None = None
    _unfinished: Unfinished | None = None
    _start: int | None = None
    _position = 0
    _broken = False

    def __init__(
        self, fs: PipedFileSystem, path: str, mode: str, block_size: int, **options: Any
    ) -> None:
        # An exception that is dealt with now is none of this file's.
        self._before = sys.exception()
        if mode == "rb":
            self._handle = run(fs.loop, fs.session.open, path, "r")
            options["size"] = self._handle.length
        super().__init__(fs, path, mode, block_size, **options)
        if mode == "ab":
            with contextlib.suppress(FileNotFoundError):
                self.loc = fs.info(path)["size"]

    def _run(self, function: Any, *arguments: Any) -> Any:
        return run(self.fs.loop, function, *arguments)

    def _fetch_range(self, start: int, end: int) -> bytes:
        data: bytes = self._run(self.fs.session.cat, self._handle, start, end)
        return data

    @contextlib.contextmanager
    def _whole_or_not(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self._broken = True
            self.discard()
            raise

    def _initiate_upload(self) -> None:
        with self._whole_or_not():
            if "a" in self.mode:
                self._run(self.fs.session.open_end, self.path, self._know_end)
                self.loc = self._position + self.buffer.getbuffer().nbytes
            else:
                unfinished = self._run(self.fs.session.begin, self.path, self._know_unfinished)
                self._handle = unfinished.handle()

    def _know_end(self, handle: Handle, start: int) -> None:
        self._handle, self._start, self._position = handle, start, start

    def _know_unfinished(self, unfinished: Unfinished) -> None:
        self._unfinished = unfinished

    def _upload_chunk(self, final: bool = False) -> bool:
        with self._whole_or_not():
            with self.buffer.getbuffer() as data:
                self._run(self.fs.session.write_range, self._handle, self._position, data)
                self._position += len(data)
            if final:
                self._run(self.fs.session.settle, self._handle)
                if self.autocommit:
                    self._commit()
        return True

    def _commit(self) -> None:
        unfinished, start = self._unfinished, self._start
        with self._whole_or_not():
            if unfinished is not None:
                over = "keep" if "x" in self.mode else "replace"
                self._run(self.fs.session.finish, unfinished, self.path, over)
            elif start is not None:
                self._run(self.fs.session.check_still, self._handle, self.path)
        self._unfinished, self._start = None, None
        self._release()

    def commit(self) -> None:
        """Gives the file its name, in whole. A file that was discarded has none."""
        if not self.closed:
            self.close()
        if self._broken:
            raise OSError(errno.EIO, "a write failed, so the file was discarded", self.path)
        self._commit()

    def discard(self) -> None:
        """Removes what was written and has no name yet: what has the name stays as it is."""
        unfinished, start = self._unfinished, self._start
        self.forced = True
        try:
            if unfinished is not None:
                unfinished.give_up()
            elif start is not None:
                self._run(self.fs.session.cut_off, self._handle, start)
        finally:
            self._unfinished, self._start = None, None
            self._release()
            self.closed = True

    def close(self) -> None:
        """Ends the file, and gives it its name if nothing went wrong."""
        if self.closed:
            return
        if self.mode != "rb" and sys.exception() not in (None, self._before):
            self.discard()
            return
        if self.mode != "rb":
            with self._whole_or_not():
                super().close()
            return
        try:
            super().close()
        finally:
            self._release()

    def _release(self) -> None:
        if self._handle is not None:
            self._handle.close()
            self._handle = None

    def __del__(self) -> None:
        if sys.is_finalizing():
            # The loop's thread is gone, and what had no name was removed at the exit.
            return
        if asyncio._get_running_loop() is not None:
            # The loop's thread cannot wait for itself.
            if self.mode != "rb" and not self.closed or self._unfinished is not None:
                threading.Thread(target=self.discard).start()
        elif self.closed:
            # Nobody is left to commit it.
            self.discard()
        else:
            super().__del__()


class PackedFile(io.BufferedIOBase):
    """A compressor over a file, which ends with it: fsspec's own leave the file below open."""

    def __init__(self, file: PipedFile, compression: str | None) -> None:
        super().__init__()
        self._file = file
        self._packer = compr[compression](file, mode=file.mode[0])

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        """Packs bytes: how many there were."""
        count: int = self._packer.write(data)
        return count

    def close(self) -> None:
        """Writes what is left, and gives the file its name if nothing went wrong."""
        if self.closed:
            return
        try:
            self._packer.close()
        except BaseException:
            self._file.discard()
            raise
        finally:
            super().close()
            self._file.close()
