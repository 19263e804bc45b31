"""Weights in the safetensors format, from a node's disk into the memory of the arrays.

All tensors of a file lie in one block of memory that is lent to the daemon, so their bytes get there
from the disk or the wire without a copy, with as many requests under way as the path is long. Beside
the tensors themselves that takes no memory. Where the daemon lends no block as large, bytes pass
through buffers of the arena, `at_once` of them.
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ._calls import queue_of
from ._native import Buffer, Client, Handle, Lent, Request
from .errors import PipedError
from .files import _open_handle, default_client, replace

#: The longest header that the format allows, in bytes.
HEADER_BYTES_MAX = 100_000_000

#: Bytes of one request.
PIECE = 4 << 20

#: Requests under way at once: the least, and the most.
AT_ONCE = (4, 64)

_PAGE = mmap.PAGESIZE
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW

#: Bytes of an element by the format's name of its type.
SIZES = {
    "BOOL": 1,
    "U8": 1,
    "I8": 1,
    "F8_E4M3": 1,
    "F8_E5M2": 1,
    "U16": 2,
    "I16": 2,
    "F16": 2,
    "BF16": 2,
    "U32": 4,
    "I32": 4,
    "F32": 4,
    "U64": 8,
    "I64": 8,
    "F64": 8,
    "C64": 8,
}

_NUMPY = {
    "BOOL": "?",
    "U8": "<u1",
    "I8": "<i1",
    "U16": "<u2",
    "I16": "<i2",
    "F16": "<f2",
    "U32": "<u4",
    "I32": "<i4",
    "F32": "<f4",
    "U64": "<u8",
    "I64": "<i8",
    "F64": "<f8",
    "C64": "<c8",
}

#: Types that numpy itself has not, and the package `ml_dtypes` has.
_ML_DTYPES = {"BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}

_TORCH = {
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "U16": "uint16",
    "I16": "int16",
    "F16": "float16",
    "BF16": "bfloat16",
    "U32": "uint32",
    "I32": "int32",
    "F32": "float32",
    "U64": "uint64",
    "I64": "int64",
    "F64": "float64",
    "C64": "complex64",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
}


class Tensor(NamedTuple):
    """A tensor as the header has it; `start` and `end` are offsets in the file, in bytes."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


class Header(NamedTuple):
    """A file's header: its tensors, free words of the writer, and where the tensors' bytes begin."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    data: int


def _wrong(what: str) -> ValueError:
    return ValueError(f"not a safetensors file: {what}")


def _natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def parse_header(text: bytes, length: int) -> Header:
    """Reads a header. `length`: that of the file, in bytes; nothing lies outside of it."""
    data = 8 + len(text)
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"its header is no JSON ({error})") from None
    if not isinstance(entries, dict):
        raise _wrong("its header is no object")
    metadata = entries.pop("__metadata__", {})
    tensors = {}
    for name, entry in entries.items():
        if not isinstance(entry, dict):
            raise _wrong(f"{name!r} is no tensor")
        dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
        if dtype not in SIZES:
            raise _wrong(f"{name!r} has the type {dtype!r}")
        if not isinstance(shape, list) or not all(map(_natural, shape)):
            raise _wrong(f"the shape of {name!r} is {shape!r}")
        if not (isinstance(offsets, list) and len(offsets) == 2 and all(map(_natural, offsets))):
            raise _wrong(f"{name!r} lies at {offsets!r}")
        start, end = (data + offset for offset in offsets)
        if end > length or end - start != math.prod(shape) * SIZES[dtype]:
            raise _wrong(f"{name!r} does not have the bytes of its shape")
        tensors[name] = Tensor(dtype, tuple(shape), start, end)
    at = data
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1][2:]):
        if tensor.start != at:
            raise _wrong(f"{name!r} does not begin where the tensor before it ends")
        at = tensor.end
    if at != length:
        raise _wrong(f"{length - at} bytes belong to no tensor")
    return Header(tensors, metadata, data)


def read_header(client: Client, handle: Handle) -> Header:
    """Reads the header of an open file."""
    queue, length = queue_of(client), handle.length
    buffer = client.allocate(64 << 10)
    count = queue.read(handle, 0, buffer)
    if count < 8:
        raise _wrong(f"it has {count} bytes")
    size = int.from_bytes(buffer.tobytes(8), "little")
    if size > min(HEADER_BYTES_MAX, length - 8):
        raise _wrong(f"its header would have {size} bytes")
    if 8 + size > len(buffer):
        buffer = client.allocate(8 + size)
        if queue.read(handle, 0, buffer) < 8 + size:
            raise _wrong("its header is cut off")
    return parse_header(buffer.tobytes(8 + size)[8:], length)


def _at_once(handle: Handle) -> int:
    """As many requests as the path has bytes under way, and one more."""
    costs = handle.read_costs()
    least, most = AT_ONCE
    if costs is None or costs[2] <= 0:
        return least
    under_way = costs[1] / costs[2]
    return min(most, max(least, math.ceil(under_way / PIECE) + 1))


class _Block:
    """Memory for the tensors of a file, from the page on in which they begin."""

    def __init__(self, client: Client, length: int) -> None:
        whole = -(-max(length, 1) // _PAGE) * _PAGE
        fd = os.memfd_create("piped-weights", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, whole)
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
            self.memory = memoryview(mmap.mmap(fd, whole))
            try:
                self.lent: Lent | None = client.lend_memfd(fd)
            except PipedError as error:
                if error.errno in (errno.ENOTCONN, errno.ETIMEDOUT):
                    raise
                # The daemon's limits have no room for a block as large.
                self.lent = None
        finally:
            os.close(fd)


def _read_all(
    client: Client, handle: Handle, block: _Block, base: int, length: int, at_once: int, **options: Any
) -> None:
    """Reads `length` bytes of the file from `base` on into the block."""
    queue = queue_of(client)
    under_way: deque[tuple[Request, int, int]] = deque()
    spares: list[Buffer] = []

    def finish() -> None:
        request, at, wanted = under_way.popleft()
        count = request.wait()
        buffer = request.buffer
        if block.lent is None and buffer is not None:
            buffer.read_into(block.memory[at : at + count])
            spares.append(buffer)
        if count < wanted:
            raise _wrong("it became shorter while it was read")

    try:
        for at in range(0, length, PIECE):
            while len(under_way) >= at_once or (under_way and queue.is_full):
                finish()
            wanted = min(PIECE, length - at)
            if block.lent is not None:
                buffer = block.lent.buffer(at, wanted)
            else:
                buffer = spares.pop() if spares else client.allocate(PIECE)
            request = queue.submit_read(handle, base + at, buffer, length=wanted, **options)
            under_way.append((request, at, wanted))
        while under_way:
            finish()
    except BaseException:
        # Nothing writes to the block any more when it ends.
        for request, _, _ in under_way:
            request.cancel()
        for request, _, _ in under_way:
            try:
                request.wait()
            except OSError:
                pass
        raise


def _to_numpy() -> Callable[[memoryview, Tensor], Any]:
    import numpy

    def made(view: memoryview, tensor: Tensor) -> Any:
        name = _NUMPY.get(tensor.dtype)
        if name is None:
            try:
                import ml_dtypes
            except ImportError:
                raise TypeError(
                    f"numpy has no type {tensor.dtype}: install ml_dtypes, or load for torch"
                ) from None
            dtype = numpy.dtype(getattr(ml_dtypes, _ML_DTYPES[tensor.dtype]))
        else:
            dtype = numpy.dtype(name)
        if tensor.start == tensor.end:
            return numpy.empty(tensor.shape, dtype)
        return numpy.frombuffer(view, dtype).reshape(tensor.shape)

    return made


def _to_torch() -> Callable[[memoryview, Tensor], Any]:
    import torch

    def made(view: memoryview, tensor: Tensor) -> Any:
        dtype = getattr(torch, _TORCH[tensor.dtype])
        if tensor.start == tensor.end:
            return torch.empty(tensor.shape, dtype=dtype)
        return torch.frombuffer(view, dtype=dtype).reshape(tensor.shape)

    return made


_FRAMEWORKS = {"numpy": _to_numpy, "torch": _to_torch}


def load_file(
    url: str,
    *,
    client: Client | None = None,
    framework: str = "numpy",
    at_once: int | None = None,
    timeout: float | None = None,
) -> dict[str, Any]:
    """The tensors of `piped://peer/export/path`, or of a local file, by their names.

    `framework` is "numpy" or "torch". `at_once` is the number of requests of 4 MiB that are under
    way together; by default what the path's latency is worth. Arrays can be written; together they
    keep the block in which they lie. Raises ValueError for what is no such file, and OSError for
    what cannot be read.
    """
    if framework not in _FRAMEWORKS:
        raise ValueError(f"framework is one of {', '.join(_FRAMEWORKS)}, not {framework!r}")
    made = _FRAMEWORKS[framework]()
    client = client or default_client()
    with _open_handle(client, url, "r", None) as handle:
        header = read_header(client, handle)
        end = handle.length
        # The same place in a page as in the file: then nothing is copied to be aligned.
        base = header.data // _PAGE * _PAGE
        block = _Block(client, end - base)
        options = {} if timeout is None else {"timeout": timeout}
        if end > header.data:
            _read_all(client, handle, block, base, end - base, at_once or _at_once(handle), **options)

    def views() -> Iterator[tuple[str, Any]]:
        for name, tensor in header.tensors.items():
            view = block.memory[tensor.start - base : tensor.end - base]
            yield name, _unaligned(made, view, tensor)

    return dict(views())


def _unaligned(made: Callable[[memoryview, Tensor], Any], view: memoryview, tensor: Tensor) -> Any:
    """An array over the bytes; writers align tensors, and what is not aligned is copied."""
    if tensor.start % SIZES[tensor.dtype]:
        view = memoryview(bytearray(view))
    return made(view, tensor)


def save_file(
    tensors: dict[str, Any],
    url: str,
    *,
    metadata: dict[str, str] | None = None,
    client: Client | None = None,
    durable: bool = True,
) -> None:
    """Writes numpy arrays or torch tensors to `piped://peer/export/path`.

    Others see the old file or the new one, whole; with `durable` so does who comes after a crash.
    """
    import numpy

    names = {numpy.dtype(word).str: name for name, word in _NUMPY.items()}
    named = {word: name for name, word in _ML_DTYPES.items()}
    entries: dict[str, Any] = {} if metadata is None else {"__metadata__": metadata}
    at, parts = 0, []
    # Large elements first, so that all are aligned.
    arrays = {name: _array(tensor) for name, tensor in tensors.items()}
    for name, array in sorted(arrays.items(), key=lambda item: (-item[1].dtype.itemsize, item[0])):
        word = named.get(array.dtype.name) or names.get(array.dtype.str)
        if word is None:
            raise TypeError(f"{name!r} has the type {array.dtype}, which the format has not")
        size = array.nbytes
        entries[name] = {
            "dtype": word,
            "shape": list(array.shape),
            "data_offsets": [at, at + size],
        }
        parts.append(array.reshape(-1).view(numpy.uint8))
        at += size
    text = json.dumps(entries, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    head = len(text).to_bytes(8, "little") + text
    replace(url, [head, *parts], client=client, durable=durable)


def _array(tensor: Any) -> Any:
    import numpy

    if hasattr(tensor, "detach"):
        tensor = tensor.detach().cpu()
        if str(tensor.dtype) == "torch.bfloat16":
            import ml_dtypes
            import torch

            return tensor.view(torch.uint16).numpy().view(ml_dtypes.bfloat16)
        tensor = tensor.numpy()
    array = numpy.ascontiguousarray(tensor).reshape(numpy.shape(tensor))
    return array.astype(array.dtype.newbyteorder("<"), copy=False)
