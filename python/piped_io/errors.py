"""Exceptions: all are subclasses of OSError, with the number and the class that fit."""

from __future__ import annotations

import errno as _errno

__all__ = [
    "PipedError",
    "NotFoundError",
    "ExistsError",
    "DeniedError",
    "DeadlineError",
    "IsDirectoryError",
    "NotDirectoryError",
    "BusyError",
    "DisconnectedError",
    "CancelledError",
]


class PipedError(OSError):
    """A request, call or connection that failed.

    ``errno`` is Linux's number for the reason, and ``strerror`` says it with the way out.
    """

    #: The daemon's word for the reason, such as ``"NoSpace"``; None if it is not the daemon's.
    status: str | None = None
    #: Contiguous bytes that were moved from the request's start all the same.
    bytes_done: int = 0


class NotFoundError(PipedError, FileNotFoundError):
    """No such file, export, region, channel or daemon."""


class ExistsError(PipedError, FileExistsError):
    """Something has the name."""


class DeniedError(PipedError, PermissionError):
    """The export, the region or the daemon does not allow it."""


class DeadlineError(PipedError, TimeoutError):
    """The time is over. A change may have been made."""


class IsDirectoryError(PipedError, IsADirectoryError):
    """A file was expected."""


class NotDirectoryError(PipedError, NotADirectoryError):
    """A directory was expected."""


class BusyError(PipedError, BlockingIOError):
    """It would have to wait: for room in the queue, for a message, or for another's lock."""


class DisconnectedError(PipedError, ConnectionError):
    """The daemon, or its connection to the peer, is gone."""


class CancelledError(PipedError):
    """The request was cancelled."""


_CLASSES: dict[int, type[PipedError]] = {
    _errno.ENOENT: NotFoundError,
    _errno.EEXIST: ExistsError,
    _errno.EACCES: DeniedError,
    _errno.EPERM: DeniedError,
    _errno.ETIMEDOUT: DeadlineError,
    _errno.EISDIR: IsDirectoryError,
    _errno.ENOTDIR: NotDirectoryError,
    _errno.EAGAIN: BusyError,
    _errno.ENOTCONN: DisconnectedError,
    _errno.ECONNREFUSED: DisconnectedError,
    _errno.ECONNRESET: DisconnectedError,
    _errno.EHOSTUNREACH: DisconnectedError,
    _errno.ECANCELED: CancelledError,
}


def make(errno: int, text: str, status: str | None, bytes_done: int) -> PipedError:
    """The exception for a reason; the native half calls it."""
    error = _CLASSES.get(errno, PipedError)(errno, text)
    error.status = status
    error.bytes_done = bytes_done
    return error
