"""Client of the piped daemon: moves bytes between memory, files and other nodes without copies.

>>> import piped_io
>>> client = piped_io.Client()                                             # doctest: +SKIP
>>> file = client.open_export("beta", "data", "blocks")                    # doctest: +SKIP
>>> buffer = client.allocate(1 << 20)                                      # doctest: +SKIP
>>> client.queue().read(file, 0, buffer)                                   # doctest: +SKIP
1048576
>>> memoryview(buffer)[:5].tobytes()                                       # doctest: +SKIP
b'piped'
"""

from __future__ import annotations

from typing import Any

from . import aio, errors
from ._calls import Calls
from ._native import Buffer, Client, Handle, Lent, Queue, Region, Request, StripReader
from ._types import Extent, Name, Space, Stat
from .errors import PipedError
from .files import RawFile, open, parse_url, replace

__all__ = [
    "Buffer",
    "Calls",
    "Client",
    "Extent",
    "Handle",
    "Lent",
    "Name",
    "PipedError",
    "Queue",
    "RawFile",
    "Region",
    "Request",
    "Space",
    "Stat",
    "StripReader",
    "aio",
    "errors",
    "lend",
    "open",
    "parse_url",
    "replace",
]


def lend(client: Client, memory: Any) -> Lent:
    """Lends memory that the program has to the daemon, without a copy for any request.

    `memory` is a `multiprocessing.shared_memory.SharedMemory`, a memfd that is sealed against
    shrinking (its number, or an object with `fileno`), or an object with whole pages of private
    anonymous memory, such as `mmap.mmap(-1, n, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)`, a
    numpy array over one, or a torch tensor over one.
    """
    shared = getattr(memory, "_fd", None)
    if isinstance(shared, int) and hasattr(memory, "buf"):
        return client.lend_shared(shared)
    if isinstance(memory, int):
        return client.lend_memfd(memory)
    if hasattr(memory, "data_ptr") and hasattr(memory, "numpy"):
        memory = memory.numpy()
    try:
        memoryview(memory)
    except TypeError:
        if not hasattr(memory, "fileno"):
            raise TypeError(
                "what is lent is a SharedMemory, a sealed memfd or an object with pages of memory,"
                f" not {type(memory).__name__}"
            ) from None
        return client.lend_memfd(memory.fileno())
    return client.lend_private(memory)
