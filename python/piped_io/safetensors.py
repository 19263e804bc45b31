"""Weights in the safetensors format, from a node's disk into the memory of the arrays.

All tensors of a file lie in one block of memory. Parts of it are lent to the daemon while bytes
travel into them, so these get there from the disk or the wire without a copy, with as many requests
under way as the path is long. Beside the tensors themselves that takes no memory. Where the daemon
lends nothing, bytes pass through buffers of the arena, `at_once` of them.
"""

from __future__ import annotations

import json
import os
import reprlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from ._calls import queue_of
from ._native import Client, Handle
from ._ranges import PAGE, Block, at_once_of, read_ranges
from .files import _open_handle, default_client, replace

#: The entry of a header that is no tensor.
METADATA = "__metadata__"

#: The longest header that the format allows, in bytes.
HEADER_BYTES_MAX = 100_000_000

#: Values of a header, at most: 16 of each of half a million tensors. One takes up to 100 bytes.
HEADER_VALUES_MAX = 8 << 20

#: Dimensions of a tensor, at most: as many as numpy and torch have.
DIMENSIONS_MAX = 64

#: Elements that a tensor without any would have, but for its dimensions of length 0: numpy and
#: torch count them, in at most 8 bytes each.
EMPTY_ELEMENTS_MAX = (1 << 60) - 1

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
    """A file's header: tensors, free words of the writer, and where the tensors' bytes begin."""

    tensors: dict[str, Tensor]
    metadata: dict[str, str]
    data: int


def _wrong(what: str) -> ValueError:
    return ValueError(f"not a safetensors file: {what}")


def _elements(shape: list[int], most: int) -> int:
    """How many elements a shape has; more than `most` are not counted to the end.

    A dimension of length 0 makes it none, if the others are not too long for arrays.
    """
    is_empty = 0 in shape
    if is_empty:
        most = EMPTY_ELEMENTS_MAX
    count = 1
    for length in shape:
        if count > most:
            break
        count *= length or 1
    return 0 if is_empty and count <= most else count


def _natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 63


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(map(_natural, value))


#: A value of others', for a message: not longer than a line.
_shown = reprlib.repr


def _entries(text: bytes) -> dict[str, Any]:
    """The entries of a header's JSON, of which nothing else is believed yet."""
    if sum(map(text.count, (b",", b"[", b"{"))) > HEADER_VALUES_MAX:
        raise _wrong(f"its header has more than {HEADER_VALUES_MAX} values")
    try:
        entries = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong(f"its header is no JSON ({error})") from None
    if not isinstance(entries, dict):
        raise _wrong("its header is no object")
    for name, entry in entries.items():
        if not isinstance(entry, dict):
            raise _wrong(f"{_shown(name)} is no object")
        shape = entry.get("shape")
        if isinstance(shape, list) and len(shape) > DIMENSIONS_MAX:
            raise _wrong(f"{_shown(name)} has more than {DIMENSIONS_MAX} dimensions")
    return entries


def parse_header(text: bytes, length: int) -> Header:
    """Reads a header. `length`: that of the file, in bytes; nothing lies outside of it."""
    data = 8 + len(text)
    entries = _entries(text)
    metadata = entries.pop(METADATA, {})
    if not all(isinstance(word, str) for word in metadata.values()):
        raise _wrong("its metadata are no words")
    tensors = {}
    for name, entry in entries.items():
        dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
        if not isinstance(dtype, str) or dtype not in SIZES:
            raise _wrong(f"{_shown(name)} has the type {_shown(dtype)}")
        if not _naturals(shape):
            raise _wrong(f"the shape of {_shown(name)} is {_shown(shape)}")
        if not _naturals(offsets) or len(offsets) != 2:
            raise _wrong(f"{_shown(name)} lies at {_shown(offsets)}")
        start, end = (data + offset for offset in offsets)
        if end > length or end - start != _elements(shape, length) * SIZES[dtype]:
            raise _wrong(f"{_shown(name)} does not have the bytes of its shape")
        tensors[name] = Tensor(dtype, tuple(shape), start, end)
    at = data
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1][2:]):
        if tensor.start != at:
            raise _wrong(f"{_shown(name)} does not begin where the tensor before it ends")
        at = tensor.end
    if at != length:
        raise _wrong(f"{length - at} bytes belong to no tensor")
    return Header(tensors, metadata, data)


def read_header(client: Client, handle: Handle) -> Header:
    """Reads the header of an open file."""
    return parse_header(_text(client, handle), handle.length)


def header_text(client: Client, handle: Handle) -> bytes:
    """The JSON of an open file's header, for other readers: no longer and deeper than allowed."""
    text = _text(client, handle)
    _entries(text)
    return text


def _text(client: Client, handle: Handle) -> bytes:
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
        count = queue.read(handle, 0, buffer)
    if count < 8 + size:
        raise _wrong("its header is cut off")
    return buffer.tobytes(8 + size)[8:]


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
    url: str | os.PathLike[str],
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
    with _open_handle(client, os.fspath(url), "r", None) as handle:
        header = read_header(client, handle)
        end = handle.length
        requests = at_once_of(handle, at_once)
        # The same place in a page as in the file: then nothing is copied to be aligned.
        base = header.data // PAGE * PAGE
        block = Block(base, end - base)
        if end > header.data:
            read_ranges(client, handle, block, [(base, end)], requests, timeout)

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
    Nothing is written of what `load_file` would not take: TypeError or ValueError.
    """
    import numpy

    words = () if metadata is None else (*metadata.keys(), *metadata.values())
    if not all(isinstance(word, str) for word in (*words, *tensors)):
        raise TypeError("names of tensors, and metadata with their names, are str")
    if METADATA in tensors:
        raise ValueError(f"{METADATA} is no name for a tensor: the format has metadata there")

    names = {numpy.dtype(word).str: name for name, word in _NUMPY.items()}
    named = {word: name for name, word in _ML_DTYPES.items()}
    entries: dict[str, Any] = {} if metadata is None else {METADATA: dict(metadata)}
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
    if len(text) > HEADER_BYTES_MAX:
        raise ValueError(f"the header would have more than {HEADER_BYTES_MAX} bytes: save less")
    _entries(text)
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
