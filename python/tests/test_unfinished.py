"""Files that are written by fsspec or `replace`: whole under their name, or not there at all."""

from __future__ import annotations

import asyncio
import concurrent.futures
import gzip
import os
import resource
import secrets
import signal
import subprocess
import sys

import piped_io
import pytest

fsspec = pytest.importorskip("fsspec")

from piped_io import _fsfile  # noqa: E402
from piped_io._fsfile import run as _fsfile_run  # noqa: E402
from piped_io._unfinished import Unfinished  # noqa: E402
from piped_io.fs import PipedFileSystem  # noqa: E402


@pytest.fixture
def fs(pair):
    return PipedFileSystem(pair.alpha.socket)


def _left(folder):
    return [name for name in folder.iterdir() if name.name.startswith(".piped-")]


class Broken(Exception):
    """What the tests break a write off with."""


def _write_bytes(fs, path, _socket):
    with fs.open(path, "wb", block_size=1 << 16) as file:
        file.write(b"x" * 200_000)
        raise Broken


def _write_text(fs, path, _socket):
    with fs.open(path, "w", encoding="utf-8", block_size=1 << 16) as file:
        file.write("x" * 200_000)
        raise Broken


def _write_packed(fs, path, _socket):
    with fs.open(path, "wb", compression="gzip", block_size=1 << 10) as file:
        file.write(secrets.token_bytes(20_000))
        raise Broken


def _write_packed_text(fs, path, _socket):
    with fs.open(path, "wt", compression="gzip", block_size=1 << 10) as file:
        file.write(secrets.token_hex(20_000))
        raise Broken


def _write_by_url(_fs, path, socket):
    with fsspec.open(f"piped://{path}", "wt", compression="gzip", socket=socket) as file:
        file.write("x" * 200_000)
        raise Broken


def _write_at_last(fs, path, _socket):
    file = fs.open(path, "wb")
    try:
        file.write(b"x")
        raise Broken
    finally:
        file.close()


def _write_in_a_handler(fs, path, _socket):
    try:
        raise KeyError
    except KeyError:
        with fs.open(path, "wb") as file:
            file.write(b"x")
            raise Broken from None


def _write_a_table(_fs, path, socket):
    pandas = pytest.importorskip("pandas")

    class Cell:
        def __str__(self):
            raise Broken

    frame = pandas.DataFrame({"a": [*range(200_000), Cell()]})
    frame.to_csv(f"piped://{path}", storage_options={"socket": socket}, chunksize=1000)


def _write_in_a_transaction(fs, path, _socket):
    with fs.transaction:
        with fs.open(path, "wb") as file:
            file.write(b"x")
        with fs.open(f"{path}.2", "wb") as file:
            file.write(b"y")
        raise Broken


def _append(fs, path, _socket):
    with fs.open(path, "ab", block_size=1 << 16) as file:
        file.write(b"x" * 200_000)
        raise Broken


@pytest.mark.parametrize(
    "write",
    [
        _write_bytes,
        _write_text,
        _write_packed,
        _write_packed_text,
        _write_by_url,
        _write_at_last,
        _write_in_a_handler,
        _write_a_table,
        _write_in_a_transaction,
        _append,
    ],
)
def test_what_is_broken_off_leaves_the_old_file(fs, pair, data, write):
    folder = data / f"broken-{secrets.token_hex(4)}"
    folder.mkdir()
    (folder / "old").write_bytes(b"old")
    for name in ("old", "new"):
        with pytest.raises(Broken):
            write(fs, f"beta/data/{folder.name}/{name}", pair.alpha.socket)
        assert (folder / "old").read_bytes() == b"old"
        if write is _append and name == "new":
            # Appending makes the file, as in a local file system.
            assert (folder / "new").read_bytes() == b""
        else:
            assert [one.name for one in folder.iterdir()] == ["old"]
    assert not _left(folder)


def test_what_is_written_in_a_handler_counts(fs, data):
    try:
        raise KeyError
    except KeyError:
        with fs.open("beta/data/handled", "wb") as file:
            file.write(b"1")
        fs.pipe("beta/data/handled-2", b"2")
    with fs.open("beta/data/packed.gz", "wt", compression="infer") as file:
        file.write("text")
    assert (data / "handled").read_bytes() == b"1" and (data / "handled-2").exists()
    assert gzip.decompress((data / "packed.gz").read_bytes()) == b"text"
    with fs.open("beta/data/packed.gz", "rt", compression="infer") as file:
        assert file.read() == "text"


def test_commit_and_discard(fs, data):
    folder = data / "commits"
    folder.mkdir()
    with fs.open("beta/data/commits/a", "wb", autocommit=False) as file:
        file.write(b"1")
    assert not (folder / "a").exists()
    file.commit()
    assert (folder / "a").read_bytes() == b"1"
    with fs.open("beta/data/commits/a", "wb", autocommit=False) as file:
        file.write(b"2")
    file.discard()
    file.commit()
    assert (folder / "a").read_bytes() == b"1" and not _left(folder)
    file = fs.open("beta/data/commits/a", "wb", autocommit=False)
    file.write(b"3")
    file.commit()
    assert (folder / "a").read_bytes() == b"3"
    with fs.open("beta/data/commits/a", "ab", autocommit=False) as file:
        file.write(b"4")
    file.discard()
    assert (folder / "a").read_bytes() == b"3"
    with fs.transaction:
        with fs.open("beta/data/commits/b", "wb") as file:
            file.write(b"5")
        with pytest.raises(Broken), fs.open("beta/data/commits/a", "wb") as file:
            file.write(b"6")
            raise Broken
        assert not (folder / "b").exists()
    assert (folder / "b").read_bytes() == b"5" and (folder / "a").read_bytes() == b"3"
    with pytest.raises(FileExistsError):
        fs.open("beta/data/commits/a", "xb")
    with fs.open("beta/data/commits/c", "xb") as file:
        file.write(b"7")
        (folder / "c").write_bytes(b"another's")
        with pytest.raises(FileExistsError):
            file.close()
    assert (folder / "c").read_bytes() == b"another's" and not _left(folder)


def test_a_failed_write_leaves_the_old_file(fs, pair, data):
    folder = data / "full"
    folder.mkdir()
    (folder / "old").write_bytes(b"old")
    daemon = pair.beta.process.pid
    before = resource.prlimit(daemon, resource.RLIMIT_FSIZE)
    resource.prlimit(daemon, resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(OSError):
            fs.pipe("beta/data/full/old", b"x" * (3 << 20))
        with pytest.raises(OSError), fs.open("beta/data/full/old", "wb") as file:
            file.write(b"x" * (5 << 20))
        file = fs.open("beta/data/full/old", "wb", autocommit=False)
        with pytest.raises(OSError):
            file.write(b"x" * (5 << 20))
        with pytest.raises(OSError):
            file.commit()
        with pytest.raises(OSError), fs.open("beta/data/full/old", "ab") as file:
            file.write(b"x" * (5 << 20))
    finally:
        resource.prlimit(daemon, resource.RLIMIT_FSIZE, before)
    assert (folder / "old").read_bytes() == b"old" and not _left(folder)


#: Writes files, and is interrupted while the node that makes one stands still.
INTERRUPTED = """
import os, signal, sys, threading
import piped_io
from piped_io._unfinished import Unfinished
from piped_io.fs import PipedFileSystem

socket, way, node, source = sys.argv[1:]
fs = PipedFileSystem(socket)
main, make, stopped = threading.main_thread().ident, Unfinished.make, threading.Event()

def stop_and_make(self):
    if not stopped.is_set():
        os.kill(int(node), signal.SIGSTOP)
        stopped.set()
    make(self)

def interrupt():
    stopped.wait()
    while sys._current_frames()[main].f_code.co_filename != threading.__file__:
        pass  # It does not wait yet.
    os.kill(os.getpid(), signal.SIGINT)

Unfinished.make = stop_and_make
threading.Thread(target=interrupt).start()
try:
    if way == "pipe":
        fs.pipe("beta/data/ctrl-c/old", b"new")
    elif way == "put":
        fs.put(source, "beta/data/ctrl-c/put", recursive=True)
    elif way == "open":
        with fs.open("beta/data/ctrl-c/old", "wb") as file:
            file.write(b"new")
    else:
        piped_io.replace("piped://beta/data/ctrl-c/old", b"new", client=fs.session.client)
except KeyboardInterrupt:
    print("interrupted")
finally:
    os.kill(int(node), signal.SIGCONT)
"""


@pytest.mark.parametrize("way", ["pipe", "put", "open", "replace"])
def test_ctrl_c_leaves_the_old_file(pair, data, tmp_path, way):
    folder = data / "ctrl-c"
    folder.mkdir(exist_ok=True)
    (folder / "old").write_bytes(b"old")
    for number in range(20):
        (tmp_path / str(number)).write_bytes(b"x")
    command = [sys.executable, "-c", INTERRUPTED, pair.alpha.socket, way]
    command += [str(pair.beta.process.pid), str(tmp_path)]
    assert subprocess.run(command, stdout=subprocess.PIPE, timeout=60).stdout == b"interrupted\n"
    # What was being made when the signal came is gone as well: the program ended after that.
    assert (folder / "old").read_bytes() == b"old" and not _left(folder)
    assert not (folder / "put").exists() or not list((folder / "put").iterdir())


#: Leaves a file open.
UNCLOSED = """
import sys
from piped_io.fs import PipedFileSystem

file = PipedFileSystem(sys.argv[1]).open("beta/data/unclosed/old", "wb", block_size=10)
file.write(b"more than a block")
print("written")
if sys.argv[2] == "raise":
    raise ValueError
"""


@pytest.mark.parametrize("end", ["raise", "return"])
def test_the_end_of_the_process_discards(pair, data, end):
    folder = data / "unclosed"
    folder.mkdir(exist_ok=True)
    (folder / "old").write_bytes(b"old")
    command = [sys.executable, "-c", UNCLOSED, pair.alpha.socket, end]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    assert done.stdout == b"written\n" and (end == "return" or b"ValueError" in done.stderr)
    assert (folder / "old").read_bytes() == b"old" and not _left(folder)


def test_a_timeout_holds_for_all(pair, data):
    folder = data / "late"
    folder.mkdir()
    (folder / "old").write_bytes(b"old")
    fs = PipedFileSystem(client=piped_io.Client(pair.alpha.socket), timeout=0.2)
    assert fs.cat("beta/data/late/old") == b"old"
    fs.ls("beta/data")
    daemon = pair.beta.process.pid
    os.kill(daemon, signal.SIGSTOP)
    try:
        for call in (
            lambda: fs.info("beta/data/late/old"),
            lambda: fs.ls("beta/data/late"),
            lambda: fs.cat("beta/data/late/old"),
            lambda: fs.open("beta/data/late/old"),
            lambda: fs.pipe("beta/data/late/old", b"new"),
            lambda: fs.mv("beta/data/late/old", "beta/data/late/moved"),
            lambda: PipedFileSystem(pair.alpha.socket, timeout=0.2).ls("beta/data"),
        ):
            with pytest.raises(TimeoutError):
                call()
    finally:
        os.kill(daemon, signal.SIGCONT)


def test_appenders_wait_for_each_other(pair, data):
    def append(number):
        own = PipedFileSystem(pair.alpha.socket, skip_instance_cache=True)
        for turn in range(10):
            with own.open("beta/data/appended", "ab") as file:
                file.write(f"{number}.{turn}\n".encode() * 10)

    with concurrent.futures.ThreadPoolExecutor(4) as threads:
        list(threads.map(append, range(4)))
    lines = (data / "appended").read_text().split()
    assert len(lines) == 400 and len(set(lines)) == 40
    assert all(len(set(lines[at : at + 10])) == 1 for at in range(0, 400, 10))


def test_appending_to_what_is_replaced_is_an_error(fs, data):
    file = fs.open("beta/data/moved-on", "ab", block_size=10)
    file.write(b"more than a block")
    fs.pipe("beta/data/moved-on", b"new")
    with pytest.raises(OSError, match="another file"):
        file.close()
    assert (data / "moved-on").read_bytes() == b"new"


def test_what_is_given_up_before_it_is_made_is_removed(client, data):
    (data / "given-up").mkdir()
    directory = client.open_directory("beta", "data", "", "rwn")
    unfinished = Unfinished(client, directory, ("beta", "data", "given-up/f"))
    unfinished.give_up()
    unfinished.make()
    assert not list((data / "given-up").iterdir())
    kept = Unfinished(client, directory, ("beta", "data", "given-up/f"))
    kept.make()
    assert kept.is_made() and len(_left(data / "given-up")) == 1
    kept.finish("keep", False)
    assert [one.name for one in (data / "given-up").iterdir()] == ["f"]


class InterruptedLoop:
    """A loop for which Ctrl-C comes as it is told of a call, before it knows or after."""

    def __init__(self, loop, before):
        self._loop = loop
        self._before = before
        self._told = 0
        self.tasks = []

    def is_closed(self):
        return False

    def create_task(self, *arguments, **options):
        self.tasks.append(self._loop.create_task(*arguments, **options))
        return self.tasks[-1]

    def call_soon_threadsafe(self, callback):
        self._told += 1
        if self._told > 1 or not self._before:
            self._loop.call_soon_threadsafe(callback)
        if self._told == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize("before", [True, False])
def test_ctrl_c_as_a_call_begins_ends_it(fs, before):
    async def wait():
        await asyncio.Event().wait()

    loop = InterruptedLoop(fs.loop, before)
    with pytest.raises(KeyboardInterrupt):
        _fsfile.run(loop, wait)
    assert all(task.done() for task in loop.tasks) and bool(loop.tasks) != before


def _interrupt_the_end(monkeypatch, function):
    """Has Ctrl-C come when a call of the session has ended, and nobody has its result yet."""

    def run(loop, called, *arguments, **options):
        result = _fsfile_run(loop, called, *arguments, **options)
        if called.__name__ == function:
            raise KeyboardInterrupt
        return result

    monkeypatch.setattr(_fsfile, "run", run)


@pytest.mark.parametrize("function", ["begin", "write_range", "settle", "finish"])
def test_ctrl_c_loses_no_new_file(fs, data, monkeypatch, function):
    folder = data / "interrupted"
    folder.mkdir(exist_ok=True)
    (folder / "f").write_bytes(b"old")
    _interrupt_the_end(monkeypatch, function)
    with pytest.raises(KeyboardInterrupt) as kept, fs.open("beta/data/interrupted/f", "wb") as f:
        f.write(b"new")
    assert (folder / "f").read_bytes() == (b"new" if function == "finish" else b"old")
    assert kept.value.__traceback__ is not None and not _left(folder)


@pytest.mark.parametrize("function", ["open_end", "write_range", "settle"])
def test_ctrl_c_loses_no_lock(fs, pair, data, monkeypatch, function):
    (data / "interrupted-end").write_bytes(b"old")
    with monkeypatch.context() as patch:
        _interrupt_the_end(patch, function)
        path = "beta/data/interrupted-end"
        with pytest.raises(KeyboardInterrupt) as kept, fs.open(path, "ab") as file:
            file.write(b"new")
    assert (data / "interrupted-end").read_bytes() == b"old"
    own = PipedFileSystem(pair.alpha.socket, timeout=5, skip_instance_cache=True)
    with own.open("beta/data/interrupted-end", "ab") as file:
        file.write(b"er")
    assert kept.value.__traceback__ is not None
    assert (data / "interrupted-end").read_bytes() == b"older"


#: Ends with files that are not finished, while a daemon stands still.
STOPPED = """
import os, signal, sys
import piped_io
from piped_io import _unfinished
from piped_io.fs import PipedFileSystem

socket, daemon, interrupt = sys.argv[1:]
fs = PipedFileSystem(client=piped_io.Client(socket, timeout=1000))
files = [fs.open(f"beta/data/stopped/{n}", "wb", block_size=4) for n in range(3)]
for file in files:
    file.write(b"more than a block")
if interrupt:
    call, _unfinished.EXIT_PATIENCE = _unfinished.call_remove, 1000

    def call_and_interrupt(*arguments):
        os.kill(os.getpid(), signal.SIGINT)
        return call(*arguments)

    _unfinished.call_remove = call_and_interrupt
os.kill(int(daemon), signal.SIGSTOP)
"""


@pytest.mark.parametrize("interrupt", ["", "interrupt"])
@pytest.mark.parametrize("stopped", ["alpha", "beta"])
def test_the_process_ends_though_a_daemon_stands_still(pair, data, stopped, interrupt):
    (data / "stopped").mkdir(exist_ok=True)
    daemon = getattr(pair, stopped).process.pid
    command = [sys.executable, "-c", STOPPED, pair.alpha.socket, str(daemon), interrupt]
    try:
        done = subprocess.run(command, capture_output=True, timeout=60)
    finally:
        os.kill(daemon, signal.SIGCONT)
    assert done.returncode == 0 and done.stderr == b""
