"""New files that get a name when they are whole, and are removed when they are given up."""

from __future__ import annotations

import atexit
import contextlib
import errno
import functools
import os
import posixpath
import re
import secrets
import stat
import time
from collections.abc import Iterator
from concurrent.futures import Future, wait

from ._calls import Calls, queue_of
from ._native import Client, Handle, Queue, Request, call_remove

#: Seconds of one turn of a wait that signals may end.
TURN = 1.0

#: Seconds that the end of the process waits for the removal of all that nobody finished.
EXIT_PATIENCE = 3.0

#: What begins the names of this process's open descriptors: what they lead to is written itself.
DESCRIPTORS = ("/dev/stdin", "/dev/stdout", "/dev/stderr", "/dev/fd/", "/proc/")

_NAME = re.compile(r"\.piped-[0-9a-f]{16}")


def _new_name() -> str:
    """A name of nobody else's for a file that is not whole yet."""
    return f".piped-{secrets.token_hex(8)}"


def is_unfinished(name: str) -> bool:
    """Whether a name is one that files have until they are whole."""
    return _NAME.fullmatch(name) is not None


class Unfinished:
    """A new file beside the one whose name it gets when it is whole.

    Opening may wait for a peer, and Ctrl-C or a timeout may end the wait before the daemon answers.
    So one thread makes the file, and whoever waits can give it up meanwhile: then the thread
    removes what it made. At the end of the process, all that nobody finished is given up.
    """

    def __init__(
        self,
        client: Client,
        directory: Handle,
        place: tuple[str | None, str, str],
        *,
        mode: int | None = None,
        parents: bool = False,
        queue: Queue | None = None,
    ) -> None:
        peer, export, self.path = place
        #: The name below the export until the file is whole: of the same directory, nobody else's.
        self.name = posixpath.join(posixpath.dirname(self.path), _new_name())
        self._directory = directory
        # The end of the process makes no new one: the daemon may stand still then.
        self._queue = queue or queue_of(client)
        self._calls = Calls(client, directory)
        self._opened = functools.partial(
            client.open_export,
            peer,
            export,
            self.name,
            "w",
            create="new",
            mode=mode,
            parents=parents,
        )
        self._made: Future[Handle] = Future()
        self._process = os.getpid()
        _all.add(self)

    def make(self) -> None:
        """Makes the file; whoever waits for `handle` learns what came of it."""
        try:
            handle = self._opened()
        except BaseException as error:
            self._made.set_exception(error)
        else:
            self._made.set_result(handle)

    def handle(self) -> Handle:
        """The open file; waits until it was made."""
        # By turns: Python does not see a signal that comes as a wait begins until it ends.
        while not wait([self._made], TURN).done:
            pass
        return self._made.result()

    def is_made(self) -> bool:
        """Whether the file is there: it was made, as far as is known by now."""
        return self._made.done() and self._made.exception() is None

    def finish(self, over: str, durable: bool) -> None:
        """Gives the file its name; `over`: replace or keep what has it."""
        self._calls.rename(self.name, self.path, over, durable)
        self.finished()

    def finished(self) -> None:
        """Notes that the file has its name."""
        _all.discard(self)

    def give_up(self) -> None:
        """Removes the file: now, or when it was made."""
        if self._is_own():
            self._made.add_done_callback(self._remove)
        else:
            self.finished()

    def _is_own(self) -> bool:
        """Whether this process made it: a forked child leaves the files of its parent alone."""
        return self._process == os.getpid()

    def _may_be_there(self) -> bool:
        """Whether the file was made, or it is not known: the time was over."""
        return self._made.done() and isinstance(self._made.exception(), TimeoutError | None)

    def _remove(self, made: Future[Handle]) -> None:
        if made.exception() is None:
            made.result().close()
        if self._may_be_there():
            try:
                self._calls.remove(self.name)
            except FileNotFoundError:
                pass  # It has its name already.
            except OSError:
                return  # The end of the process tries again.
        self.finished()

    def submit_removal(self) -> Request | None:
        """Has the file removed, without a wait; None: there is nothing to be removed."""
        if not self._is_own() or not self._may_be_there():
            return None
        return call_remove(self._queue, self._directory, self.name, "file")


_all: set[Unfinished] = set()


@atexit.register
def _give_up_all() -> None:
    """Removes all that nobody finished; Ctrl-C ends the wait."""
    until = time.monotonic() + EXIT_PATIENCE
    removals = []
    with contextlib.suppress(KeyboardInterrupt):
        for unfinished in list(_all):
            with contextlib.suppress(OSError):
                removals.append(unfinished.submit_removal())
        for removal in filter(None, removals):
            with contextlib.suppress(OSError):
                removal.wait(max(0.0, until - time.monotonic()))


@contextlib.contextmanager
def replacing(path: str) -> Iterator[str]:
    """Names a file that is to be written, and gives it a local path when it is whole.

    Links are followed, and the file has the mode of the one that it replaces. What is no regular
    file, and what this process has open by that path, is written itself.
    """
    old = os.stat(path) if os.path.exists(path) else None
    if path.startswith(DESCRIPTORS) or (old is not None and not stat.S_ISREG(old.st_mode)):
        yield path
        return
    target = os.path.realpath(path)
    if old is not None and not os.access(target, os.W_OK):
        raise PermissionError(errno.EACCES, "the file may not be written", path)
    name = os.path.join(os.path.dirname(target), _new_name())
    mode = 0o666 if old is None else stat.S_IMODE(old.st_mode)
    try:
        # Never readable by more people than the old file. Its writer opens it, whatever the mode.
        os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, (mode & 0o777) | 0o200))
        yield name
        if old is not None:
            with contextlib.suppress(PermissionError):
                os.chown(name, old.st_uid, old.st_gid)
            os.chmod(name, mode)
        os.replace(name, target)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
