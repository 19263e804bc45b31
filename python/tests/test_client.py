"""Buffers, requests, messages, regions: what the native half does, and what it refuses."""

from __future__ import annotations

import gc
import mmap
import os
import pathlib
import resource
import signal
import subprocess
import sys
import threading
import time
from multiprocessing import shared_memory

import piped_io
import pytest
from piped_io import Calls, errors
from piped_io._nodes import Pair

MIB = 1 << 20


def content(length: int, seed: int = 1) -> bytes:
    return bytes((i * 7 + seed) % 251 for i in range(min(length, 65_521))) * (length // 65_521 + 1)


@pytest.fixture
def blocks(data: pathlib.Path) -> bytes:
    expected = content(3 * MIB)[: 3 * MIB]
    (data / "blocks").write_bytes(expected)
    return expected


def test_what_cannot_be_lent_is_named(client: piped_io.Client) -> None:
    for wrong in ("words", None, 1.5):
        with pytest.raises(TypeError, match=type(wrong).__name__):
            piped_io.lend(client, wrong)


def test_reads_and_writes(client, data, blocks):
    queue = client.queue()
    with client.open_export("beta", "data", "blocks", "rw") as file:
        assert file.length == 3 * MIB
        buffer = client.allocate(MIB)
        assert queue.read(file, MIB, buffer) == MIB
        assert bytes(buffer) == blocks[MIB : 2 * MIB]
        # Behind the end there is less, and then nothing.
        assert queue.read(file, 3 * MIB - 10, buffer) == 10
        assert queue.read(file, 4 * MIB, buffer) == 0
        memoryview(buffer)[:4] = b"\0new"
        assert queue.write(file, 5, buffer, start=1, length=3, durable=True) == 3
        assert (data / "blocks").read_bytes()[4:9] == blocks[4:5] + b"new" + blocks[8:9]
        assert queue.submit_copy(file, 0, file, 8, 4).wait() == 4
        queue.submit_sync(file).wait()
    assert file.closed
    with pytest.raises(ValueError, match="closed"):
        queue.read(file, 0, buffer)


def test_a_buffer_is_pythons_while_it_is_here(client, blocks):
    queue = client.queue()
    receiving = client.offer_channel("nobody-sends")
    buffer = client.allocate(4096)
    view = memoryview(buffer)
    view[:3] = b"abc"
    assert (buffer.tobytes(3), len(buffer), view.nbytes) == (b"abc", 4096, 4096)
    with pytest.raises(BufferError, match="views"):
        buffer.resize(10)
    with pytest.raises(BufferError, match="views"):
        buffer.free()
    request = queue.submit_receive(receiving, buffer, timeout=30)
    assert "under way" in repr(buffer) and not buffer.is_here and not request.done()
    with pytest.raises(BufferError, match="under way"):
        memoryview(buffer)
    with pytest.raises(BufferError, match="under way"):
        queue.submit_receive(receiving, buffer)
    with pytest.raises(BlockingIOError):
        request.result()
    begun = time.monotonic()
    with pytest.raises(TimeoutError):
        request.wait(timeout=0.05)
    assert time.monotonic() - begun < 10 and not request.done()
    assert request.cancel()
    with pytest.raises(errors.CancelledError) as cancelled:
        request.wait()
    assert cancelled.value.status == "Cancelled" and not request.cancel()
    assert buffer.is_here and memoryview(buffer)[:3] == b"abc"
    view.release()
    buffer.resize(10)
    assert (len(buffer), buffer.capacity) == (10, 4096)
    with pytest.raises(ValueError):
        buffer.resize(5000)
    buffer.free()
    with pytest.raises(BufferError, match="given back"):
        memoryview(buffer)


def test_wrong_pieces_and_arguments_leave_the_buffer_here(client, pair, blocks):
    queue, buffer = client.queue(), client.allocate(4096)
    file = client.open_export("beta", "data", "blocks")
    for start, length in ((0, 4097), (4096, 1), (2**64 - 1, 2**63), (10, 0)):
        with pytest.raises(OSError):
            queue.read(file, 0, buffer, start=start, length=length)
        assert buffer.is_here
    for options in ({"timeout": -1.0}, {"timeout": float("nan")}, {"urgency": "soon"}):
        with pytest.raises(ValueError):
            queue.read(file, 0, buffer, **options)
        assert buffer.is_here, options
    other = piped_io.Client(pair.alpha.socket)
    foreign = other.allocate(4096)
    with pytest.raises(errors.PipedError):
        queue.read(file, 0, foreign)
    assert foreign.is_here
    with pytest.raises(errors.DeniedError):
        queue.write(file, 0, buffer)
    with pytest.raises(ValueError):
        client.open_export("beta", "data", "blocks", "rx")


def test_errors_are_of_the_operating_systems_classes(client, pair, data):
    with pytest.raises(FileNotFoundError) as error:
        client.open_export("beta", "data", "none")
    assert error.value.errno == 2 and error.value.status == "NotFound"
    assert "no such file" in str(error.value)
    with pytest.raises(FileNotFoundError):
        client.open_export("beta", "nothing", "none")
    with pytest.raises(OSError):
        client.open_export("gamma", "data", "none")
    (data / "here").mkdir(exist_ok=True)
    with pytest.raises(IsADirectoryError):
        client.open_export("beta", "data", "here")
    with pytest.raises(FileNotFoundError):
        piped_io.Client("/nowhere/client.sock")
    calls = Calls(client, client.open_directory("beta", "data", "", "rwn"))
    with pytest.raises(FileExistsError):
        calls.mkdir("here")
    with pytest.raises(OSError) as full:
        (data / "here" / "x").write_bytes(b"")
        calls.remove("here", "directory")
    assert full.value.errno == 39


def test_all_calls_of_an_export(client, data):
    root = Calls(client, client.open_directory("beta", "data", "", "rwn"))
    root.makedirs("calls/deep")
    (data / "calls" / "one").write_bytes(b"x" * 100_000)
    stat = root.stat("calls/one")
    assert (stat.kind, stat.length) == ("file", 100_000)
    assert {name.name: name.kind for name in root.list("calls")} == {
        "deep": "directory",
        "one": "file",
    }
    assert next(iter(root.list("calls/deep", stats=True)), None) is None
    for number in range(700):
        (data / "calls" / "deep" / f"a-name-that-is-not-short-{number}").touch()
    names = list(root.list("calls/deep", stats=True))
    assert len({name.name for name in names}) == 700 and all(name.stat for name in names)
    root.link("calls/one", "calls/two")
    root.rename("calls/two", "calls/three")
    with pytest.raises(FileExistsError):
        root.rename("calls/three", "calls/one", "keep")
    client.open_export("beta", "data", "calls/copy", "w", create="new").close()
    assert root.copy("calls/one", "calls/copy", durable=True) == 100_000
    assert (data / "calls" / "copy").read_bytes() == b"x" * 100_000
    assert root.space().total > 0
    file = Calls(client, client.open_export("beta", "data", "calls/copy", "rw"))
    file.truncate(1 << 20)
    file.allocate(0, 4096)
    file.zero(0, 4096)
    file.trim(8192, 4096)
    extents = list(file.extents(0, 1 << 20))
    assert sum(extent.length for extent in extents) == 1 << 20
    assert {extent.kind for extent in extents} <= {"data", "hole", "zero"}
    file.advise(0, 0, "will_need")
    file.sync_range()
    assert len(file.digest(0, 4096)) == 32
    file.lock(0, 10)
    other = Calls(client, client.open_export("beta", "data", "calls/copy", "rw"))
    with pytest.raises(BlockingIOError):
        other.lock(5, 1)
    file.lock(0, 10, "none")
    other.lock(5, 1, "shared")
    with pytest.raises(ValueError, match="one of"):
        file.advise(0, 0, "perhaps")
    root.remove("calls/one")
    assert not (data / "calls" / "one").exists()


def test_messages_regions_and_atomics(pair):
    here, there = piped_io.Client(pair.alpha.socket), piped_io.Client(pair.beta.socket)
    mail = there.offer_channel("mail")
    incoming = there.queue().submit_receive(mail, into := there.allocate(100))
    letter = here.allocate(5)
    letter.write_from(b"hello")
    here.queue().submit_send(here.open_channel("beta", "mail"), 7, letter).wait()
    assert incoming.wait(10) == (5, 7) and into.tobytes(5) == b"hello"
    region = there.export_region("words", there.allocate(4096), "rwa")
    region.write(0, (41).to_bytes(8, "little"))
    words, queue = here.open_region("beta", "words", "rwa"), here.queue()
    assert queue.submit_fetch_add(words, 0, 1).wait() == 41
    assert queue.submit_compare_swap(words, 0, 42, 50).wait() == 42
    assert int.from_bytes(region.read(0, 8), "little") == 50
    waiting = there.queue().submit_wait(region.handle, 3, 2)
    queue.submit_write(words, 8, letter, notify=3).wait()
    queue.submit_notify(words, 3).wait()
    assert waiting.wait(10) == 0 and region.read(8, 5) == b"hello"
    assert len(region) == 4096
    with pytest.raises(ValueError):
        region.read(4090, 10)
    memory = region.close()
    assert memory.tobytes(13)[8:] == b"hello"
    with pytest.raises(ValueError, match="closed"):
        region.read(0, 1)


def test_strips(client, blocks):
    with client.open_export("beta", "data", "blocks") as file:
        seen = bytearray()
        for offset, view in piped_io.StripReader(client, file, 100, 3 * MIB - 7):
            assert offset == 100 + len(seen)
            seen += view
        assert bytes(seen) == blocks[100 : 3 * MIB - 7]
        sizes = [len(it) for _, it in piped_io.StripReader(client, file, size=MIB, grain=MIB)]
        assert sizes == [MIB] * 3
        strips = piped_io.StripReader(client, file, size=MIB)
        _, view = next(strips)
        kept = memoryview(strips)
        with pytest.raises(BufferError):
            next(strips)
        kept.release()
        assert next(strips)[0] == MIB
        with pytest.raises(ValueError):
            view[0]


def test_lent_memory(client, blocks):
    queue, file = client.queue(), client.open_export("beta", "data", "blocks")
    shared = shared_memory.SharedMemory(create=True, size=MIB)
    try:
        lent = piped_io.lend(client, shared)
        assert queue.read(file, 0, lent.buffer(4096, 8192)) == 8192
        assert bytes(shared.buf[4096 : 4096 + 8192]) == blocks[:8192]
        del lent
    finally:
        shared.close()
        shared.unlink()
    private = mmap.mmap(-1, MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    private[:3] = b"old"
    lent = piped_io.lend(client, private)
    assert private[:3] == b"old" and len(lent) == MIB
    part = lent.buffer(0, 4096)
    with pytest.raises(OSError, match="in another buffer"):
        lent.buffer(0, 1)
    queue.read(file, 0, part)
    assert private[:4096] == blocks[:4096]
    with pytest.raises(BufferError):
        private.resize(4096)
    with pytest.raises(OSError):
        piped_io.lend(client, bytearray(100))
    with pytest.raises(OSError, match="read-only"):
        piped_io.lend(client, bytes(4096))


def test_buffers_keep_memory_that_was_lent(client, blocks):
    queue, file = client.queue(), client.open_export("beta", "data", "blocks")
    private = mmap.mmap(-1, MIB, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    part = piped_io.lend(client, private).buffer(4096, 8192)
    del private
    gc.collect()
    assert queue.read(file, 0, part) == 8192
    assert bytes(part) == blocks[:8192]


def test_a_time_beyond_the_clocks_is_no_limit(client, pair, blocks):
    queue, buffer = client.queue(), client.allocate(64)
    file = client.open_export("beta", "data", "blocks")
    for long in (1e18, 1e300, float("inf")):
        assert queue.submit_nop(timeout=long).wait(long) is None
        assert queue.read(file, 0, buffer, timeout=long) == 64
        patient = piped_io.Client(pair.alpha.socket, timeout=long, reconnect=long)
        assert patient.queue().submit_nop().wait() is None


def test_strips_of_no_bytes_are_refused(client, blocks):
    file = client.open_export("beta", "data", "blocks")
    for name in ("size", "memory", "grain"):
        with pytest.raises(ValueError, match=name):
            piped_io.StripReader(client, file, **{name: 0})


def test_strips_that_fail_say_why(client, data):
    file = client.open_export("beta", "data", "only-written", "w", create="open")
    with pytest.raises(PermissionError):
        next(piped_io.StripReader(client, file, 0, MIB))


def test_numpy_and_dlpack_are_views(client, blocks):
    numpy = pytest.importorskip("numpy")
    queue, file = client.queue(), client.open_export("beta", "data", "blocks")
    buffer = client.allocate(4096)
    array, tensor = numpy.frombuffer(buffer, numpy.uint8), numpy.from_dlpack(buffer)
    queue.read(file, 0, buffer)
    assert array.tobytes() == tensor.tobytes() == blocks[:4096]
    array[0] = 1
    assert buffer.tobytes(1) == b"\1"
    with pytest.raises(BufferError, match="may move"):
        queue.read(file, 0, buffer, resubmit=True)
    address = array.ctypes.data
    assert address == buffer.address
    # The views keep the memory, also without the buffer and the client.
    del buffer, queue, file
    gc.collect()
    assert tensor.sum() == array.sum()
    del array, tensor


def test_dlpack_says_what_it_cannot_and_copies_when_asked(client):
    numpy = pytest.importorskip("numpy")
    buffer = client.allocate(4096)
    buffer.write_from(b"first")
    for refused in ({"dl_device": (2, 0)}, {"dl_device": (1, 1)}, {"stream": 1}):
        with pytest.raises(BufferError, match="CPU"):
            buffer.__dlpack__(**refused)
    same = {"dl_device": (1, 0), "stream": None, "max_version": (1, 1), "copy": False}
    assert '"dltensor_versioned"' in repr(view := buffer.__dlpack__(**same))
    assert '"dltensor"' in repr(buffer.__dlpack__(max_version=(0, 8)))
    with pytest.raises(BufferError, match="views"):
        buffer.resize(10)
    del view

    class Copied:
        def __init__(self, **options):
            self.options = options

        def __dlpack__(self, **_ignored):
            return buffer.__dlpack__(copy=True, **self.options)

        def __dlpack_device__(self):
            return buffer.__dlpack_device__()

    for options in ({}, {"max_version": (1, 0)}):
        copy = numpy.from_dlpack(Copied(**options))
        buffer.write_from(b"other")
        assert copy[:5].tobytes() == b"first" and len(copy) == 4096
        buffer.write_from(b"first")
    # A copy is no view.
    buffer.resize(10)
    assert len(buffer.tobytes()) == 10


#: Has the C library end tensors after the interpreter, as libraries with their own caches do.
LATE = """
import ctypes, sys
import piped_io

buffer = piped_io.Client(sys.argv[1]).allocate(4096)
python, c = ctypes.pythonapi, ctypes.CDLL(None)
python.PyCapsule_GetPointer.restype = ctypes.c_void_p
python.PyCapsule_GetPointer.argtypes = [ctypes.py_object, ctypes.c_char_p]
python.PyCapsule_SetName.argtypes = [ctypes.py_object, ctypes.c_char_p]
used = b"used_dltensor"
for copy in (False, True):
    capsule = buffer.__dlpack__(copy=copy)
    tensor = python.PyCapsule_GetPointer(capsule, b"dltensor")
    python.PyCapsule_SetName(capsule, used)
    # Behind DLTensor's 48 bytes and the manager's context.
    deleter = ctypes.c_void_p.from_address(tensor + 56)
    assert c.__cxa_atexit(deleter, ctypes.c_void_p(tensor), None) == 0
"""


def test_tensors_may_end_after_the_interpreter(pair):
    late = [sys.executable, "-c", LATE, pair.alpha.socket]
    ended = subprocess.run(late, capture_output=True, timeout=60)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_threads_run_while_one_waits(client):
    receiving, queue = client.offer_channel("silence"), client.queue()
    request = queue.submit_receive(receiving, client.allocate(64), timeout=30)
    ticks = []
    done = threading.Event()

    def tick() -> None:
        while not done.is_set():
            ticks.append(1)

    thread = threading.Thread(target=tick)
    thread.start()
    with pytest.raises(TimeoutError):
        request.wait(0.3)
    done.set()
    thread.join()
    assert len(ticks) > 10
    request.cancel()


@pytest.mark.parametrize("how", ["request", "read"])
def test_ctrl_c_ends_a_wait(client, pair, how):
    receiving, queue = client.offer_channel(f"ctrl-c-{how}"), client.queue()
    buffer = client.allocate(64)
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            if how == "request":
                queue.submit_receive(receiving, buffer, timeout=60).wait()
            else:
                # A dialled disk would do; a stopped peer does it for sure.
                file = client.open_export("beta", "data", "stopped", "rw", create="open")
                assert pair.beta.process is not None
                pair.beta.process.send_signal(signal.SIGSTOP)
                os.waitid(os.P_PID, pair.beta.process.pid, os.WSTOPPED)
                queue.write(file, 0, buffer, timeout=60)
    finally:
        if how == "read" and pair.beta.process is not None:
            pair.beta.process.send_signal(signal.SIGCONT)
        timer.join()
    if how == "read":
        # The request was cancelled, and its buffer comes back by itself.
        until = time.monotonic() + 30
        while not buffer.is_here and time.monotonic() < until:
            queue.submit_nop().wait()
            time.sleep(0.01)
        assert buffer.is_here


def test_a_daemon_that_ends_ends_all_requests(tmp_path):
    with Pair(tmp_path) as pair:
        client = piped_io.Client(pair.alpha.socket)
        buffer, queue = client.allocate(64), client.queue()
        request = queue.submit_receive(client.offer_channel("m"), buffer, timeout=60)
        pair.alpha.stop(kill=True)
        with pytest.raises(ConnectionError):
            request.wait(10)
        assert queue.is_disconnected and not client.is_connected
        with pytest.raises(ConnectionError):
            queue.submit_nop()
        again = piped_io.Client
        pair.alpha.start()
        assert again(pair.alpha.socket).queue().submit_nop().wait() is None


def test_a_client_goes_on_with_the_next_daemon(tmp_path):
    with Pair(tmp_path) as pair:
        (pair.beta.data / "f").write_bytes(b"x" * 4096)
        client = piped_io.Client(pair.alpha.socket, reconnect=20)
        file, queue = client.open_export("beta", "data", "f"), client.queue()
        buffer, viewed = client.allocate(4096), client.allocate(4096)
        assert queue.read(file, 0, buffer) == 4096
        view = memoryview(viewed)
        pair.alpha.stop(kill=True)
        pair.alpha.start()
        client.reconnect()
        until = time.monotonic() + 20
        while True:
            try:
                assert queue.read(file, 0, buffer) == 4096
                break
            except OSError:
                assert time.monotonic() < until
                time.sleep(0.05)
        # Its memory would move, and the view would be of nothing.
        with pytest.raises(BufferError, match="may move"):
            queue.read(file, 0, viewed)
        view.release()
        assert queue.read(file, 0, viewed) == 4096


def test_many_requests_leave_nothing_behind(client, blocks):
    file, queue = client.open_export("beta", "data", "blocks"), client.queue()
    buffer, file_calls = client.allocate(4096), Calls(client, file)
    count = int(os.environ.get("PIPED_PYTHON_REQUESTS", "10000"))

    def some(number: int) -> None:
        for _ in range(number // 4):
            queue.submit_nop().wait()
            file_calls.stat()
            queue.submit_read(file, 0, buffer).wait()
            queue.read(file, 0, buffer)

    some(count // 8)
    gc.collect()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    some(count)
    gc.collect()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2048, "KiB"
    assert queue.underway == 0
