"""A copier for the package `fastsafetensors`: weights from nodes and disks by the daemon.

>>> from piped_io.fastsafetensors import PipedLoader                       # doctest: +SKIP
>>> loader = PipedLoader(None, framework="paddle")                         # doctest: +SKIP
>>> loader.add_filenames({0: ["piped://beta/data/model.safetensors"]})     # doctest: +SKIP
>>> tensors = loader.copy_files_to_device()                                # doctest: +SKIP

Names are `piped://peer/export/path` or local paths. Bytes travel into the memory of the tensors
without a copy. Importing this registers the copier `piped` beside those of the package. It loads
into memory of the CPU: tensors for another device are moved there by their framework.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from typing import Any

from fastsafetensors import cpp, parallel_loader
from fastsafetensors.common import SafeTensorsMetadata
from fastsafetensors.copier.base import (
    CopierInterface,
    DummyDeviceBuffer,
    validated_byte_ranges,
    validated_chunk_allocation_size,
)
from fastsafetensors.copier.registry import register_copier_constructor
from fastsafetensors.frameworks import get_framework_op
from fastsafetensors.loader import BaseSafeTensorsFileLoader
from fastsafetensors.st_types import DeviceType, DType

from ._native import Client
from ._ranges import PAGE, PATIENCE, Block, at_once_of, read_ranges
from ._urls import is_url
from .files import _open_handle, default_client
from .safetensors import header_text

#: Tensors lie as they lie in the file's pages where that aligns them to so many bytes.
_ALIGNED = 8


class _Memory(DummyDeviceBuffer):  # type: ignore[misc]
    """A block as the package has buffers: it ends with the last tensor over it.

    The package frees buffers of others by the C library. It leaves a dummy one to Python.
    """

    def __init__(self, block: Block) -> None:
        cpp.gds_device_buffer.__init__(self, block.span.address, len(block.span), False)
        self.block = block


class PipedCopier(CopierInterface):  # type: ignore[misc]
    """Reads one file, or ranges of it, into a block of memory on the reader's thread."""

    def __init__(
        self,
        metadata: SafeTensorsMetadata,
        device: Any,
        framework: Any,
        client: Client,
        reader: ThreadPoolExecutor,
        *,
        at_once: int | None = None,
        timeout: float | None = None,
    ) -> None:
        self.metadata = metadata
        self.device = device
        self.framework = framework
        self.client = client
        self.reader = reader
        self.at_once = at_once
        self.timeout = timeout
        self.byte_ranges: list[tuple[int, int]] | None = None
        self.chunk_names: set[str] | None = None
        self.allocation_size: int | None = None
        self.base = metadata.header_length
        self.stop = threading.Event()
        self.reading: Future[None] | None = None

    def set_byte_ranges(self, byte_ranges: list[tuple[int, int]] | None) -> None:
        """Reads only these ranges of the file; memory of others stays zero. None: all."""
        self.byte_ranges = validated_byte_ranges(self.metadata, byte_ranges)

    def set_chunk(
        self,
        byte_ranges: list[tuple[int, int]],
        names: set[str],
        allocation_size: int | None = None,
    ) -> None:
        """Loads `names` alone, into memory as long as their ranges, or `allocation_size`."""
        self.set_byte_ranges(byte_ranges)
        self.chunk_names = names
        self.allocation_size = validated_chunk_allocation_size(
            self.byte_ranges or [], allocation_size
        )

    @classmethod
    def chunk_transient_multiplier(cls, paths: list[str]) -> int:
        """Memory of a chunk as a multiple of its length: no byte has a second place."""
        return 1

    @classmethod
    def chunk_device_overhead(cls, paths: list[str]) -> int:
        """Bytes of a chunk's first and last page that belong to others."""
        return 2 * PAGE

    @classmethod
    def fixed_device_overhead(cls, paths: list[str]) -> int:
        """Bytes that the copier keeps whatever it loads: none."""
        return 0

    def submit_io(self, use_buf_register: bool, max_copy_block_size: int) -> _Memory:
        """Begins to read, and returns the memory."""
        start = self.metadata.header_length
        ranges = self.byte_ranges
        if ranges is None:
            ranges = [(start, self.metadata.size_bytes)]
        end = self.metadata.size_bytes
        if self.chunk_names is not None:
            start = min((first for first, _ in ranges), default=start)
            end = max((last for _, last in ranges), default=start)
        if self.metadata.header_length % _ALIGNED == 0:
            # The same place in a page as in the file: the disk's bytes need no copy.
            self.base = start // PAGE * PAGE
        else:
            self.base = start
        length = max(end, start + (self.allocation_size or 0)) - self.base
        block = Block(self.base, length)
        wanted = [(first, last) for first, last in ranges if first < last]
        if wanted:
            self.reading = self.reader.submit(self._read, block, wanted)
        return _Memory(block)

    def _read(self, block: Block, ranges: list[tuple[int, int]]) -> None:
        with _open_handle(self.client, self.metadata.src, "r", None) as handle:
            at_once = at_once_of(handle, self.at_once)
            read_ranges(self.client, handle, block, ranges, at_once, self.timeout, self.stop)

    def wait_io(
        self,
        gbuf: _Memory,
        dtype: Any = DType.AUTO,
        noalign: bool = False,
        owner: Any = None,
    ) -> dict[str, Any]:
        """Waits for the bytes, and makes the tensors over them."""
        reading, self.reading = self.reading, None
        if reading is not None:
            try:
                reading.result()
            except BaseException:
                self.reading = reading
                self.finish_io()
                raise
        tensors: dict[str, Any] = self.metadata._get_tensors(
            gbuf, self.device, self.base, dtype=dtype, names=self.chunk_names, owner=owner
        )
        return tensors

    def finish_io(self) -> None:
        """Ends what is under way; a daemon that hangs may still write to the memory later."""
        reading, self.reading = self.reading, None
        if reading is not None and not reading.cancel():
            self.stop.set()
            # What it came to matters to nobody any more.
            wait([reading], PATIENCE)


@register_copier_constructor("piped", PipedCopier)  # type: ignore[untyped-decorator]
def new_piped_copier(
    device: Any,
    client: Client | None = None,
    at_once: int | None = None,
    timeout: float | None = None,
    **_of_others: Any,
) -> Callable[..., PipedCopier]:
    """Makes copiers of a client: files are read one after the other, each by many requests."""
    if device.type != DeviceType.CPU:
        raise ValueError(f"piped loads into the CPU's memory, not to {device.as_str()}: load there")
    client = client or default_client()
    reader = ThreadPoolExecutor(1, "piped-weights")

    def construct(metadata: SafeTensorsMetadata, device: Any, framework: Any) -> PipedCopier:
        return PipedCopier(
            metadata, device, framework, client, reader, at_once=at_once, timeout=timeout
        )

    return construct


def metadata_of(client: Client, url: str, framework: Any) -> SafeTensorsMetadata:
    """Reads the header of a file of a node."""
    with _open_handle(client, url, "r", None) as handle:
        text = header_text(client, handle)
        return SafeTensorsMetadata(
            text.decode(), 8 + len(text), handle.length, framework, url
        )


class PipedLoader(BaseSafeTensorsFileLoader):  # type: ignore[misc]
    """Loads .safetensors files lazily by the daemon, as the package's loaders do.

    `client` is by default that of the process. `at_once` is the number of requests of 4 MiB under
    way together; by default what the path's latency is worth. `timeout`: seconds of a request.
    """

    def __init__(
        self,
        pg: Any,
        device: str = "cpu",
        client: Client | None = None,
        at_once: int | None = None,
        timeout: float | None = None,
        debug_log: bool = False,
        framework: str = "pytorch",
        **others: Any,
    ) -> None:
        self.client = client or default_client()
        operations = get_framework_op(framework)
        cpp.set_debug_log(debug_log)
        super().__init__(
            pg,
            operations.get_device(device, operations.get_process_group(pg)),
            copier_type="piped",
            framework=framework,
            client=self.client,
            at_once=at_once,
            timeout=timeout,
            **others,
        )

    def add_filenames(self, filenames: Mapping[int, list[str]]) -> None:
        """Registers files for ranks: `piped://peer/export/path`, or local paths."""
        urls = {name for names in filenames.values() for name in names if is_url(name)}
        new = urls - self._metadata_cache.keys()
        for url in new:
            self._metadata_cache[url] = metadata_of(self.client, url, self.framework)
        try:
            super().add_filenames(dict(filenames))
        finally:
            # A later registration reads the header as it is then.
            for url in new:
                self._metadata_cache.pop(url, None)


_planning = threading.Lock()


@contextmanager
def _headers_of_nodes(client: Client) -> Iterator[None]:
    """Has the package's planner read headers of nodes; it opens names as local files itself."""

    class Metadata(SafeTensorsMetadata):  # type: ignore[misc]
        @classmethod
        def from_file(cls, filename: str, framework: Any) -> SafeTensorsMetadata:
            if is_url(filename):
                return metadata_of(client, filename, framework)
            return SafeTensorsMetadata.from_file(filename, framework)

    with _planning:
        parallel_loader.SafeTensorsMetadata = Metadata
        try:
            yield
        finally:
            parallel_loader.SafeTensorsMetadata = SafeTensorsMetadata


class PipedParallelLoader(parallel_loader.PipelineParallel):  # type: ignore[misc]
    """The package's pipeline over a `PipedLoader`: one batch loads while another is used.

    Takes the options of `fastsafetensors.ParallelLoader` that are not of its copiers.
    """

    def __init__(
        self,
        pg: Any,
        hf_weights_files: list[str],
        *,
        device: str = "cpu",
        client: Client | None = None,
        at_once: int | None = None,
        timeout: float | None = None,
        debug_log: bool = False,
        framework: str = "pytorch",
        **pipeline: Any,
    ) -> None:
        loader = PipedLoader(pg, device, client, at_once, timeout, debug_log, framework)
        super().__init__(pg, loader, hf_weights_files, **pipeline)

    def _create_batches(self, pg: Any) -> list[list[Any]]:
        with _headers_of_nodes(self.loader.client):
            batches: list[list[Any]] = super()._create_batches(pg)
        return batches
