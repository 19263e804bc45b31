"""New files that get a name when they are whole, and are removed when they are given up."""

from __future__ import annotations

import atexit
import functools
import os
import posixpath
import secrets
from concurrent.futures import Future, wait

from ._calls import Calls
from ._native import Client, Handle

#: Seconds of one turn of a wait that signals may end.
TURN = 1.0


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
    ) -> None:
        peer, export, self.path = place
        #: The name below the export until the file is whole: of the same directory, nobody else's.
        self.name = posixpath.join(posixpath.dirname(self.path), f".piped-{secrets.token_hex(8)}")
        self.directory = directory
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
        _all.discard(self)
        # A child that was forked leaves the files of its parent alone.
        if self._process == os.getpid():
            self._made.add_done_callback(self._remove)

    def _remove(self, made: Future[Handle]) -> None:
        error = made.exception()
        if error is None:
            made.result().close()
        elif not isinstance(error, TimeoutError):
            return
        try:
            self._calls.remove(self.name)
        except OSError:
            pass  # It has its name already, or the node is gone.


_all: set[Unfinished] = set()


@atexit.register
def _give_up_all() -> None:
    for unfinished in list(_all):
        unfinished.give_up()
