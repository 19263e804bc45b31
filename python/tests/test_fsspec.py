"""fsspec's own tests of a file system, and what they leave out."""

from __future__ import annotations

import secrets

import piped_io
import pytest

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("fsspec.tests.abstract")

from fsspec.implementations.local import LocalFileSystem  # noqa: E402
from fsspec.tests import abstract  # noqa: E402
from piped_io.fs import PipedFileSystem  # noqa: E402


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture(scope="class")
    def fs(self, pair):
        return PipedFileSystem(pair.alpha.socket)

    @pytest.fixture
    def fs_path(self):
        return f"piped://beta/data/abstract-{secrets.token_hex(4)}"

    @pytest.fixture
    def fs_join(self):
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def fs_sanitize_path(self, fs):
        # Listings have paths without the protocol, as those of fsspec's own file systems.
        return fs._strip_protocol

    @pytest.fixture
    def local_fs(self):
        return LocalFileSystem(auto_mkdir=True)


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


@pytest.fixture
def fs(pair):
    return fsspec.filesystem("piped", socket=pair.alpha.socket)


def test_by_its_url(pair, data):
    (data / "by-url").write_bytes(b"0123456789" * 1_000_000)
    with fsspec.open("piped://beta/data/by-url", socket=pair.alpha.socket) as file:
        file.seek(5_000_003)
        assert file.read(10) == b"3456789012"
        assert len(file.read()) == 10_000_000 - 5_000_013


def test_names(fs, data):
    fs.pipe({f"beta/data/names/{n}/f": b"x" * n for n in range(20)})
    assert len(fs.find("beta/data/names")) == 20
    assert sorted(fs.glob("beta/data/names/1?/f"))[0] == "beta/data/names/10/f"
    assert fs.du("beta/data/names") == sum(range(20))
    fs.mv("beta/data/names/3", "beta/data/names/moved")
    assert fs.cat("beta/data/names/moved/f") == b"xxx"
    fs.cp("beta/data/names/4/f", "beta/data/names/copied")
    assert fs.info("beta/data/names/copied")["size"] == 4
    fs.rm("beta/data/names", recursive=True)
    assert not fs.exists("beta/data/names")
    with pytest.raises(FileNotFoundError):
        fs.info("beta/data/names/1/f")
    with pytest.raises(FileNotFoundError):
        fs.ls("piped://beta")
    for path in ("beta/data/../data/x", "beta/data/a/../../../etc/passwd"):
        with pytest.raises((FileNotFoundError, OSError)):
            fs.cat(path)


def test_ranges(fs, data):
    (data / "ranges").write_bytes(bytes(range(256)) * 100)
    path = "beta/data/ranges"
    got = fs.cat_ranges([path, path, "beta/data/none"], [0, -6, 0], [5, None, 5])
    assert got[:2] == [bytes(range(5)), bytes(range(250, 256))]
    assert isinstance(got[2], FileNotFoundError)
    assert fs.cat_file(path, 10, 12) == b"\n\v"
    assert fs.head(path, 3) == b"\0\1\2" and fs.tail(path, 2) == b"\xfe\xff"


def test_written_files_appear_whole(fs, data):
    with fs.open("beta/data/whole", "wb", block_size=1 << 20) as file:
        for _ in range(5):
            file.write(b"z" * 700_000)
        assert not (data / "whole").exists()
    assert (data / "whole").stat().st_size == 3_500_000
    with pytest.raises(ZeroDivisionError), fs.transaction:
        with fs.open("beta/data/undone", "wb") as file:
            file.write(b"x")
        raise ZeroDivisionError
    assert not (data / "undone").exists()
    with fs.open("beta/data/whole", "ab") as file:
        file.write(b"end")
    assert (data / "whole").read_bytes()[-4:] == b"zend"
    assert not list(data.glob(".piped-*"))


def test_pandas_and_zarr_where_they_are_installed(pair):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": range(1000), "b": [f"w{n}" for n in range(1000)]})
    options = {"socket": pair.alpha.socket}
    frame.to_csv("piped://beta/data/frame.csv", index=False, storage_options=options)
    assert pandas.read_csv("piped://beta/data/frame.csv", storage_options=options).equals(frame)


def test_zarr(pair):
    zarr = pytest.importorskip("zarr")
    numpy = pytest.importorskip("numpy")
    store = zarr.storage.FsspecStore.from_url(
        "piped://beta/data/array.zarr",
        storage_options={"socket": pair.alpha.socket, "asynchronous": True},
    )
    array = zarr.create_array(store, shape=(1000, 100), chunks=(100, 100), dtype="f8")
    numbers = numpy.random.default_rng(1).random((1000, 100))
    array[:] = numbers
    assert numpy.array_equal(zarr.open_array(store)[:], numbers)


def test_clients_of_their_own(pair):
    given = PipedFileSystem(client=piped_io.Client(pair.alpha.socket), durable=True, timeout=20)
    given.pipe("beta/data/durable", b"d")
    assert given.cat("beta/data/durable") == b"d" and given.modified("beta/data/durable")
    assert given.ukey("beta/data/durable")


def test_from_one_node_to_another(fs, pair):
    (pair.alpha.data / "tree" / "deep").mkdir(parents=True)
    (pair.alpha.data / "tree" / "deep" / "f").write_bytes(b"from alpha" * 300_000)
    fs.cp("piped://localhost/data/tree", "piped://beta/data/copied-tree", recursive=True)
    assert (pair.beta.data / "copied-tree" / "deep" / "f").stat().st_size == 3_000_000
    fs.mv("piped://beta/data/copied-tree/deep/f", "piped://localhost/data/back")
    assert (pair.alpha.data / "back").read_bytes() == b"from alpha" * 300_000
    assert not (pair.beta.data / "copied-tree" / "deep" / "f").exists()
