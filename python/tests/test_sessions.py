"""Sessions of the fsspec file system: daemons that restart, clients that are given, and copies."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import signal
import time

import piped_io
import pytest
from piped_io._nodes import PATIENCE, Node, Pair

pytest.importorskip("fsspec")

from piped_io.fs import PipedFileSystem  # noqa: E402


@pytest.fixture
def twice(tmp_path):
    """A node that exports one directory by two names."""
    node = Node(tmp_path, "twice", "")
    with node.config.open("a") as config:
        config.write(f'exports.other.path = "{node.data}"\n')
        config.write("exports.other.write = true\nexports.other.names = true\n")
    node.start()
    yield node
    node.stop()


def test_a_file_system_outlives_its_daemon(tmp_path):
    with Pair(tmp_path) as pair:
        (pair.beta.data / "f").write_bytes(b"f")
        fs = PipedFileSystem(pair.alpha.socket)
        assert fs.cat("beta/data/f") == b"f"
        file = fs.open("beta/data/f")
        pair.alpha.stop(kill=True)
        # That there is no daemon says nothing of the file.
        with pytest.raises(ConnectionError):
            fs.exists("beta/data/f")
        pair.alpha.start()
        pair._wait_for_peers()
        assert fs.ls("beta/data", detail=False) == ["beta/data/f"]
        assert fs.cat("beta/data/f") == b"f"
        fs.pipe("beta/data/g", b"g")
        assert PipedFileSystem(pair.alpha.socket) is fs and fs.cat("beta/data/g") == b"g"
        with pytest.raises(OSError):
            file.read()


def test_a_directory_that_a_reconnect_lost_is_opened_again(twice):
    (twice.data / "f").write_bytes(b"f")
    fs = PipedFileSystem(client=piped_io.Client(twice.socket, reconnect=20))
    fs.pipe("localhost/other/f", b"f")
    assert fs.ls("localhost/other", detail=False) == ["localhost/other/f"]
    with_other = twice.config.read_text()
    twice.stop(kill=True)
    twice.config.write_text("".join(_without_other(with_other)))
    twice.start()
    # Goes on with the next daemon, which has no such export yet.
    assert fs.ls("localhost/data", detail=False) == ["localhost/data/f"]
    twice.config.write_text(with_other)
    twice.process.send_signal(signal.SIGHUP)
    _wait_for_other(piped_io.Client(twice.socket))
    assert fs.ls("localhost/other", detail=False) == ["localhost/other/f"]
    fs.pipe("localhost/other/g", b"g")
    assert fs.cat("localhost/other/g") == b"g"


def _without_other(config):
    return [line for line in config.splitlines(True) if not line.startswith("exports.other")]


def _wait_for_other(client):
    until = time.monotonic() + PATIENCE
    while True:
        try:
            client.open_directory(None, "other", "", "r").close()
            return
        except FileNotFoundError:
            assert time.monotonic() < until
        time.sleep(0.02)


def test_a_given_client_without_reconnect_stays_disconnected(tmp_path):
    with Pair(tmp_path) as pair:
        fs = PipedFileSystem(client=piped_io.Client(pair.alpha.socket))
        fs.ls("localhost/data")
        pair.alpha.stop()
        pair.alpha.start()
        with pytest.raises(ConnectionError):
            fs.ls("localhost/data")


def _descriptors():
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def test_file_systems_with_a_client_end_with_it(pair):
    def use():
        fs = PipedFileSystem(client=piped_io.Client(pair.alpha.socket))
        fs.pipe("beta/data/given-client", b"x")
        assert fs.cat("beta/data/given-client") == b"x"

    use()
    before = _descriptors()
    for _ in range(5):
        use()
    assert _descriptors() <= before


def test_file_systems_of_one_client_share_its_queues(pair, client):
    # More than a client has queues.
    given = [PipedFileSystem(client=client) for _ in range(40)]
    assert len({id(fs) for fs in given}) == 40
    for fs in given:
        assert isinstance(fs.ls("localhost/data"), list)


def test_file_systems_are_pickled_by_their_socket(pair, client):
    fs = PipedFileSystem(pair.alpha.socket, timeout=20, skip_instance_cache=True)
    fs.pipe("beta/data/pickled", b"p")
    again = pickle.loads(pickle.dumps(fs))
    assert again.session.timeout == 20 and again.cat("beta/data/pickled") == b"p"
    with fs.open("beta/data/pickled") as file:
        assert pickle.loads(pickle.dumps(file)).read() == b"p"
    with pytest.raises(TypeError, match="name its socket"):
        pickle.dumps(PipedFileSystem(client=client))


def test_what_two_exports_have_is_not_moved_onto_itself(twice):
    (twice.data / "d").mkdir()
    for name in ("f", "d/g"):
        (twice.data / name).write_bytes(b"kept")
    fs = PipedFileSystem(twice.socket, skip_instance_cache=True)
    for name, reason in (("f", "so it stays"), ("d", "into itself")):
        with pytest.raises(OSError, match=reason) as caught:
            fs.mv(f"localhost/data/{name}", f"localhost/other/{name}")
        assert caught.value.errno == errno.EINVAL
    # Also where it was not seen before the copy.
    fs._is_at = _never
    with pytest.raises(OSError, match="so it stays") as caught:
        fs.mv("localhost/data/f", "localhost/other/f")
    assert caught.value.errno == errno.ESTALE
    for name in ("f", "d/g"):
        assert (twice.data / name).read_bytes() == b"kept"
    fs.mv("localhost/data/d", "localhost/other/e")
    assert (twice.data / "e" / "g").read_bytes() == b"kept"
    assert sorted(os.listdir(twice.data)) == ["e", "f"]


async def _never(*_arguments):
    return False


def _append(file):
    with file.open("ab") as appended:
        appended.write(b"more")


def _replace(file):
    (file.parent / "new").write_bytes(b"oth")
    (file.parent / "new").rename(file)


@pytest.mark.parametrize("change", [_append, _replace])
def test_what_changes_while_it_is_moved_stays(pair, data, change):
    source = pair.alpha.data / "changes"
    source.write_bytes(b"old")
    fs = PipedFileSystem(pair.alpha.socket, skip_instance_cache=True)
    copy = fs._cp_file

    async def copy_and_change(*paths):
        await copy(*paths)
        change(source)

    fs._cp_file = copy_and_change
    with pytest.raises(OSError, match="so it stays") as caught:
        fs.mv("localhost/data/changes", "beta/data/changes")
    assert caught.value.errno == errno.ESTALE
    assert source.read_bytes() == (b"oldmore" if change is _append else b"oth")
    fs._cp_file = copy
    fs.mv("localhost/data/changes", "beta/data/changes")
    assert not source.exists() and (data / "changes").exists()


@pytest.mark.parametrize("way", ["get", "put", "cp_file", "mv"])
def test_a_copy_of_what_becomes_shorter_fails(pair, data, tmp_path, way):
    here = tmp_path if way == "put" else pair.alpha.data
    source, target = here / "shrinks", (tmp_path if way == "get" else data) / "shrunk"
    source.write_bytes(b"x" * 100_000)
    target.write_bytes(b"old")
    fs = PipedFileSystem(pair.alpha.socket, skip_instance_cache=True)
    copy = fs.session.copy

    async def shrink_and_copy(*arguments):
        os.truncate(source, 10)
        await copy(*arguments)

    fs.session.copy = shrink_and_copy
    paths = {
        "get": ("localhost/data/shrinks", str(target)),
        "put": (str(source), "beta/data/shrunk"),
    }
    with pytest.raises(OSError):
        getattr(fs, way)(*paths.get(way, ("localhost/data/shrinks", "beta/data/shrunk")))
    assert source.stat().st_size == 10 and target.read_bytes() == b"old"
    assert not list(target.parent.glob(".piped-*"))
