"""The native half: client-lib as Python classes."""

from collections.abc import Sequence
from os import PathLike
from typing import Any, Self, final

from _typeshed import ReadableBuffer, WriteableBuffer

@final
class Buffer:
    """Memory that the daemon moves bytes to and from without a copy; has the buffer protocol."""

    @property
    def capacity(self) -> int:
        """Bytes that the buffer can have at most."""
    @property
    def is_here(self) -> bool:
        """Whether no request has it."""
    @property
    def address(self) -> int:
        """Address of the first byte, for other libraries."""
    def resize(self, length: int) -> None:
        """Changes the length, at most `capacity`. BufferError: there are views of it."""
    def free(self) -> None:
        """Gives the memory back now, and not when the object ends."""
    def read_into(self, target: WriteableBuffer, offset: int = 0) -> None:
        """Copies bytes from `offset` on into writable bytes. ValueError: they are not all there."""
    def write_from(self, source: ReadableBuffer, offset: int = 0) -> None:
        """Copies an object's bytes in, from `offset` on. ValueError: there is no room."""
    def tobytes(self, length: int | None = None) -> bytes:
        """A copy of the first bytes, all without a number."""
    def __len__(self) -> int:
        """Its length in bytes."""
    def __buffer__(self, flags: int, /) -> memoryview:
        """A view of the bytes. BufferError: a request has the buffer, or it was given back."""
    def __dlpack__(
        self,
        *,
        stream: None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any:
        """A tensor over the same memory, or a copy. BufferError: not for that device or stream."""
    def __dlpack_device__(self) -> tuple[int, int]:
        """The device of the tensor: the CPU."""

@final
class Handle:
    """Something open: a file, a directory, a region or a channel."""

    @property
    def length(self) -> int:
        """Length in bytes when it was opened. ValueError: the handle is closed."""
    @property
    def direct_alignment(self) -> int:
        """Offsets and lengths at multiples of so many bytes go past the page cache; 0: none."""
    @property
    def number(self) -> int:
        """The number that the daemon's reports have for it."""
    @property
    def closed(self) -> bool:
        """Whether it was closed."""
    def read_costs(self) -> tuple[float, float, float, float] | None:
        """Seconds of a request, of latency, of a byte; how well known (0 to 1). None: unknown."""
    def write_costs(self) -> tuple[float, float, float, float] | None:
        """What writing costs, as `read_costs` has it."""
    def close(self) -> None:
        """Closes it; requests that use it end as they do."""
    def __enter__(self) -> Self:
        """Itself."""
    def __exit__(self, *_ignored: object) -> None:
        """Closes it."""

@final
class Region:
    """Memory that others may read or write by name, until it is closed."""

    @property
    def handle(self) -> Handle:
        """The handle for requests of this client on its own region."""
    def read(self, offset: int, length: int) -> bytes:
        """A copy of bytes; others may be writing them."""
    def write(self, offset: int, data: ReadableBuffer) -> None:
        """Copies bytes in; others may be reading them."""
    def close(self) -> Buffer:
        """Ends the export, and returns the memory; Ctrl-C gives it back. ValueError: closed."""
    def __len__(self) -> int:
        """Its length in bytes."""

@final
class Lent:
    """Memory of the program that is lent to the daemon, until this and its buffers end."""

    @property
    def address(self) -> int:
        """Where the memory is mapped in this process."""
    def buffer(self, offset: int, length: int) -> Buffer:
        """A buffer of a part of the memory that is in no other buffer."""
    def __len__(self) -> int:
        """Its length in bytes."""

@final
class Request:
    """A request that was submitted; cancelled when nobody has its queue or requests of that."""

    @property
    def progress(self) -> int:
        """Contiguous bytes done from its start; 0 once it has ended."""
    @property
    def buffer(self) -> Buffer | None:
        """The buffer that it has, or had."""
    def done(self) -> bool:
        """Whether it has ended, as far as the queue has looked."""
    def result(self) -> Any:
        """What it came to, or its exception. BlockingIOError if it has not ended; never waits."""
    def wait(self, timeout: float | None = None) -> Any:
        """Waits for its end, and returns what it came to. TimeoutError after `timeout` seconds."""
    def cancel(self) -> bool:
        """Asks the daemon to end it. False: it has ended."""

@final
class Span:
    """Memory of whole pages for weights, whose pages are made and shared part by part."""

    def __new__(cls, length: int) -> Self:
        """Addresses for `length` bytes, zeros at first. MemoryError: there are none."""
    @property
    def address(self) -> int:
        """Where the memory is mapped in this process."""
    def make(self, offset: int, length: int) -> int:
        """Makes pages, none twice; returns their memfd, to be lent and closed."""
    def __len__(self) -> int:
        """Its length in bytes: whole pages."""
    def __buffer__(self, flags: int, /) -> memoryview:
        """A view of all the bytes, which keeps the memory."""

@final
class StripReader:
    """Iterates over strips of a range, in order: offset and memoryview of each."""

    def __new__(
        cls,
        client: Client,
        handle: Handle,
        start: int = 0,
        end: int | None = None,
        *,
        size: int | None = None,
        grain: int = 64,
        memory: int = ...,
        unroll: int | None = None,
        timeout: float | None = None,
    ) -> Self:
        """Strips of `start` to `end` (bytes); `memory`: 8 MiB. `timeout`: seconds of a request."""
    @property
    def compute_seconds_per_byte(self) -> float | None:
        """What a byte costs the computation between strips, in seconds; None: not known."""
    def __iter__(self) -> Self:
        """Itself."""
    def __next__(self) -> tuple[int, memoryview]:
        """Offset in bytes and view of the next strip. BufferError: views of the one before."""
    def __buffer__(self, flags: int, /) -> memoryview:
        """A view of the strip that is current. BufferError: there is none."""

@final
class Queue:
    """Submits requests and gives their results: best one for each thread."""

    @property
    def is_full(self) -> bool:
        """Whether it has no room for one more request."""
    @property
    def underway(self) -> int:
        """Requests that were submitted and have not ended."""
    @property
    def depth(self) -> int:
        """The most requests that can be under way."""
    @property
    def is_disconnected(self) -> bool:
        """Whether the daemon is known to be gone."""
    def read(
        self,
        handle: Handle,
        offset: int,
        buffer: Buffer,
        *,
        start: int = 0,
        length: int | None = None,
        timeout: float | None = None,
        urgency: str | None = None,
        resubmit: bool = False,
    ) -> int:
        """Reads into the buffer, and waits: bytes read, fewer only at the end of the file."""
    def write(
        self,
        handle: Handle,
        offset: int,
        buffer: Buffer,
        *,
        start: int = 0,
        length: int | None = None,
        timeout: float | None = None,
        urgency: str | None = None,
        resubmit: bool = False,
        durable: bool = False,
    ) -> int:
        """Writes the buffer at `offset` of a file or region, and waits: bytes written."""
    def submit_read(
        self,
        handle: Handle,
        offset: int,
        buffer: Buffer,
        *,
        start: int = 0,
        length: int | None = None,
        timeout: float | None = None,
        urgency: str | None = None,
        resubmit: bool = False,
    ) -> Request:
        """Submits a read; its result is the number of bytes read."""
    def submit_write(
        self,
        handle: Handle,
        offset: int,
        buffer: Buffer,
        *,
        start: int = 0,
        length: int | None = None,
        timeout: float | None = None,
        urgency: str | None = None,
        resubmit: bool = False,
        durable: bool = False,
        notify: int | None = None,
    ) -> Request:
        """Submits a write; its result is the number of bytes written."""
    def submit_send(
        self,
        channel: Handle,
        tag: int,
        buffer: Buffer,
        *,
        start: int = 0,
        length: int | None = None,
        timeout: float | None = None,
    ) -> Request:
        """Submits a message to a channel, under a tag."""
    def submit_receive(
        self,
        channel: Handle,
        buffer: Buffer,
        *,
        tag: int | None = None,
        timeout: float | None = None,
    ) -> Request:
        """Submits a receive of the next message; its result is the number of bytes and the tag."""
    def submit_copy(
        self,
        source: Handle,
        source_offset: int,
        target: Handle,
        target_offset: int,
        length: int,
        *,
        timeout: float | None = None,
        urgency: str | None = None,
    ) -> Request:
        """Submits a copy between two handles; its result is the number of bytes."""
    def submit_sync(self, handle: Handle, *, timeout: float | None = None) -> Request:
        """Submits a sync: completed writes of the handle come to stable storage."""
    def submit_nop(self, *, timeout: float | None = None) -> Request:
        """Submits a request that does nothing: the way to the daemon and back."""
    def submit_fetch_add(
        self, region: Handle, offset: int, addend: int, *, timeout: float | None = None
    ) -> Request:
        """Submits an addition to 8 bytes of a region; its result is what they were."""
    def submit_compare_swap(
        self,
        region: Handle,
        offset: int,
        expected: int,
        new: int,
        *,
        timeout: float | None = None,
    ) -> Request:
        """Submits a replacement of 8 bytes of a region; its result is what they were."""
    def submit_notify(
        self, region: Handle, id: int, *, timeout: float | None = None
    ) -> Request:
        """Submits a notification of a region's exporter."""
    def submit_wait(
        self, region: Handle, id: int, count: int = 1, *, timeout: float | None = None
    ) -> Request:
        """Submits a wait for notifications of a region; its result is how many are left."""
    def make_room(self, timeout: float | None = None) -> None:
        """Waits until there is room for one more request, or `timeout` seconds are over."""
    def poll(self) -> list[Request]:
        """Requests that ended since the last time, from the first call on. Never waits."""
    def arm(self) -> bool:
        """Asks for the descriptor to be readable. False: something has ended already."""
    def drain(self) -> None:
        """Silences the descriptor after it was readable."""
    def fileno(self) -> int:
        """The descriptor that says when something has ended."""

@final
class Client:
    """A session with the daemon of this node: memory, handles, queues. For all threads."""

    def __new__(
        cls,
        socket: str | PathLike[str] | None = None,
        *,
        arena_bytes: int = ...,
        depth: int = 255,
        urgency: str | None = None,
        weight: int = 0,
        timeout: float = 30.0,
        reconnect: float | None = None,
        wait: str | None = None,
        spread: bool = False,
    ) -> Self:
        """Connects; `arena_bytes`: 16 MiB; `wait`: "balanced", "latency" or "throughput".

        `spread`: all shards of the daemon serve the client's queues, each queue one, by turns.
        """
    @property
    def is_connected(self) -> bool:
        """Whether the daemon holds the session open."""
    @property
    def session(self) -> int:
        """The session's number, as `pipectl clients` shows it."""
    @property
    def generation(self) -> int:
        """The number of the connection: another one after each reconnect."""
    @property
    def timeout_default(self) -> float:
        """Seconds that a request may take that names no timeout."""
    def allocate(self, length: int) -> Buffer:
        """A buffer of `length` bytes. The arena grows if it must and may."""
    def queue(self) -> Queue:
        """A queue. One that ended is used again."""
    def lend_memfd(self, fd: int) -> Lent:
        """Lends a memfd that is sealed against shrinking."""
    def lend_shared(self, fd: int) -> Lent:
        """Lends POSIX shared memory, or a file below /dev/shm."""
    def lend_private(self, object: WriteableBuffer) -> Lent:
        """Lends whole pages of private memory, which no other thread may write meanwhile."""
    def open_file(
        self,
        path: str | PathLike[str],
        access: str = "r",
        *,
        create: str | None = None,
        mode: int | None = None,
        truncate: bool = False,
        direct: bool = True,
    ) -> Handle:
        """Opens a local file with this process's rights."""
    def open_fd(self, fd: int, access: str = "r") -> Handle:
        """Passes on a local file that is open already."""
    def open_export(
        self,
        peer: str | None,
        export: str,
        path: str | PathLike[str],
        access: str = "r",
        *,
        create: str | None = None,
        mode: int | None = None,
        parents: bool = False,
    ) -> Handle:
        """Opens a file below an export of a peer, or of this node (None)."""
    def open_directory(
        self, peer: str | None, export: str, path: str | PathLike[str], access: str = "r"
    ) -> Handle:
        """Opens a directory below an export of a peer, or of this node (None)."""
    def export_region(
        self,
        name: str,
        buffer: Buffer,
        access: str = "r",
        *,
        users: Sequence[int] | None = None,
        peers: Sequence[str] | None = None,
    ) -> Region:
        """Lets all (None) or these users and peers reach a buffer, which Ctrl-C gives back."""
    def open_region(self, peer: str | None, name: str, access: str = "r") -> Handle:
        """Opens a region that a client of a peer, or of this node (None), exports."""
    def offer_channel(self, name: str) -> Handle:
        """Receives messages under a name, from clients of this node and of others."""
    def open_channel(self, peer: str | None, name: str) -> Handle:
        """Opens a channel on which a client of a peer, or of this node (None), receives."""
    def reconnect(self) -> None:
        """Goes on with the next daemon, after the end of the one before."""

def call_stat(queue: Queue, handle: Handle, path: str | PathLike[str]) -> Request:
    """Submits the question what is known of a file or directory."""
def call_list(
    queue: Queue, handle: Handle, place: int, path: str | PathLike[str], stats: bool
) -> Request:
    """Submits the question for a page of names; its result: a list, and where to go on or None."""
def call_space(queue: Queue, handle: Handle) -> Request:
    """Submits the question for room on the file system."""
def call_make_directory(
    queue: Queue, handle: Handle, path: str | PathLike[str], mode: int, parents: bool
) -> Request:
    """Submits the making of a directory, and of those on the way with `parents`."""
def call_remove(queue: Queue, handle: Handle, path: str | PathLike[str], kind: str) -> Request:
    """Submits the removal of a name: of a file, an empty directory, or any."""
def call_rename(
    queue: Queue,
    handle: Handle,
    source: str | PathLike[str],
    target: str | PathLike[str],
    over: str,
    durable: bool,
) -> Request:
    """Submits a rename; `over`: replace, keep or exchange what has the new name."""
def call_link(
    queue: Queue, handle: Handle, source: str | PathLike[str], target: str | PathLike[str]
) -> Request:
    """Submits one more name for a file."""
def call_truncate(queue: Queue, handle: Handle, length: int) -> Request:
    """Submits a new length for a file."""
def call_allocate(
    queue: Queue, handle: Handle, offset: int, length: int, keep_length: bool
) -> Request:
    """Submits that a range shall have room on the device."""
def call_zero(
    queue: Queue, handle: Handle, offset: int, length: int, release: bool
) -> Request:
    """Submits that a range becomes zeros."""
def call_trim(queue: Queue, handle: Handle, offset: int, length: int) -> Request:
    """Submits that a range gives up its room on the device."""
def call_extents(queue: Queue, handle: Handle, place: int, end: int) -> Request:
    """Submits the question for a page of extents; its result is like that of `call_list`."""
def call_sync_range(
    queue: Queue, handle: Handle, offset: int, length: int, data_only: bool
) -> Request:
    """Submits that a range, or a directory's names, come to stable storage."""
def call_advise(
    queue: Queue, handle: Handle, offset: int, length: int, advice: str
) -> Request:
    """Submits what will be done with a range: normal, will_need or dont_need."""
def call_digest(queue: Queue, handle: Handle, offset: int, length: int) -> Request:
    """Submits the question for the BLAKE3 digest of a range, of 1 GiB at most."""
def call_copy_names(
    queue: Queue,
    handle: Handle,
    source: str | PathLike[str],
    target: str | PathLike[str],
    offset: int,
    length: int,
    durable: bool,
) -> Request:
    """Submits a copy between files of one node, at most 1 GiB; its result: the bytes copied."""
def call_lock(queue: Queue, handle: Handle, offset: int, length: int, lock: str) -> Request:
    """Submits a lock of a range (none, shared or exclusive); does not wait for others' locks."""
