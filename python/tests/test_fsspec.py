"""fsspec's own tests of a file system, and what they leave out."""

from __future__ import annotations

import glob
import os
import secrets
import subprocess
import sys

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
    with pytest.raises(NotImplementedError):
        fs.rm("beta/data/names", recursive=True, maxdepth=1)
    with pytest.raises(IsADirectoryError):
        fs.rm("beta/data/names")
    assert len(fs.find("beta/data/names")) == 21
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
    with fs.open("beta/data/written-whole", "wb", block_size=1 << 20) as file:
        for _ in range(5):
            file.write(b"z" * 700_000)
        assert not (data / "written-whole").exists()
    assert (data / "written-whole").stat().st_size == 3_500_000
    with pytest.raises(ZeroDivisionError), fs.transaction:
        with fs.open("beta/data/written-undone", "wb") as file:
            file.write(b"x")
        raise ZeroDivisionError
    assert not (data / "written-undone").exists()
    with fs.open("beta/data/written-whole", "ab") as file:
        file.write(b"end")
    assert (data / "written-whole").read_bytes()[-4:] == b"zend"
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


NAMES = [
    "a#1",
    "a?b",
    "a%20b",
    " with space ",
    "quo'te\"s",
    "grüße",
    "no\udcfftext",
    "a[1]",
    "star*",
    "back\\slash",
    "a:b",
    "semi;colon&more=x",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_taken_as_they_stand(fs, pair, data, name):
    folder = data / f"names-{secrets.token_hex(4)}"
    folder.mkdir()
    near = [folder / other for other in ("a", "a b", "axb", "a1", "starry")]
    for other in near:
        other.write_bytes(b"another")
    below, path = f"beta/data/{folder.name}", f"beta/data/{folder.name}/{name}"
    fs.pipe(path, b"1")
    assert (folder / name).read_bytes() == b"1"
    with fs.open(f"piped://{path}", "wb") as file:
        file.write(b"12")
    assert path in fs.ls(below, detail=False) and path in fs.find(below)
    assert [one["size"] for one in fs.ls(below) if one["name"] == path] == [2]
    assert fs.glob(f"{below}/{glob.escape(name)}") == [path]
    assert fs.info(path)["name"] == path and fs.isfile(path)
    with fs.open(path) as file, fsspec.open(f"piped://{path}", socket=pair.alpha.socket) as same:
        assert file.read() == same.read() == b"12"
    assert fs.cat(path) == b"12"
    fs.cp_file(path, f"{path}.copied")
    fs.mv(f"{path}.copied", f"{path}.moved")
    assert fs.cat_file(f"{path}.moved") == b"12"
    fs.rm(f"{path}.moved")
    client = piped_io.Client(pair.alpha.socket)
    piped_io.replace(f"piped://{path}", b"123", client=client, durable=False)
    with piped_io.open(f"piped://{path}", client=client) as file:
        assert file.read() == b"123"
    fs.rm(path)
    assert all(other.read_bytes() == b"another" for other in near)
    assert sorted(folder.iterdir()) == sorted(near)


def test_links(fs, data):
    folder = data / "links"
    (folder / "tree").mkdir(parents=True)
    (folder / "tree" / "f").write_bytes(b"12345")
    for name, target in (
        ("file", "tree/f"),
        ("dir", "tree"),
        ("nowhere", "none"),
        ("outside", "/etc/passwd"),
        ("tree/up", ".."),
    ):
        (folder / name).symlink_to(target)
    path = "beta/data/links"
    info = fs.info(f"{path}/file")
    assert (info["type"], info["size"], info["islink"]) == ("file", 5, True)
    assert fs.cat(f"{path}/file") == b"12345"
    with fs.open(f"{path}/file") as file:
        assert file.read() == b"12345"
    assert fs.isdir(f"{path}/dir") and fs.info(f"{path}/dir")["islink"]
    assert fs.ls(f"{path}/dir", detail=False) == [f"{path}/dir/f", f"{path}/dir/up"]
    for name in ("nowhere", "outside"):
        assert not fs.exists(f"{path}/{name}") and fs.lexists(f"{path}/{name}")
        with pytest.raises(FileNotFoundError):
            fs.info(f"{path}/{name}")
        with pytest.raises(OSError):
            fs.cat(f"{path}/{name}")
    listed = {one["name"].removeprefix(f"{path}/"): one for one in fs.ls(path)}
    kinds = {name: (one["type"], one["size"], one["islink"]) for name, one in listed.items()}
    assert kinds == {
        "file": ("file", 5, True),
        "dir": ("other", 0, True),
        "nowhere": ("other", 0, True),
        "outside": ("other", 0, True),
        "tree": ("directory", 0, False),
    }
    local = LocalFileSystem()
    found = {one.removeprefix(path) for one in fs.find(path)}
    assert found == {one.removeprefix(str(folder)) for one in local.find(str(folder))}
    with pytest.raises(OSError, match="neither a file nor a directory"):
        fs.mv(path, "localhost/data/moved-links")
    assert (folder / "tree" / "f").exists() and (folder / "nowhere").is_symlink()
    fs.cp_file(f"{path}/file", f"{path}/copied")
    assert (folder / "copied").read_bytes() == b"12345"
    assert not (folder / "copied").is_symlink()
    fs.rm(f"{path}/dir", recursive=True)
    fs.rm(f"{path}/nowhere")
    assert (folder / "tree" / "f").exists() and not (folder / "dir").is_symlink()
    fs.rm(path, recursive=True)
    assert not folder.exists() and (data / "links").parent.exists()


def test_what_cannot_be_moved_stays(fs, pair, data):
    here = pair.alpha.data / "stays"
    (here / "deep").mkdir(parents=True)
    (here / "deep" / "f").write_bytes(b"f")
    (here / "nowhere").symlink_to("none")
    (data / "a-file").write_bytes(b"")
    with pytest.raises(OSError):
        fs.mv("localhost/data/stays", "beta/data/came")
    with pytest.raises(OSError):
        fs.mv("localhost/data/stays/deep", "beta/data/a-file/below")
    with pytest.raises(OSError):
        fs.mv("localhost/data/stays/deep", "beta/nothing/below")
    with pytest.raises(FileNotFoundError):
        fs.mv("localhost/data/stays/none", "beta/data/came")
    with pytest.raises(OSError):
        fs.mv("localhost/data/stays", "localhost/data/stays/deep/below")
    assert (here / "deep" / "f").read_bytes() == b"f" and (here / "nowhere").is_symlink()
    (data / "there").mkdir()
    fs.mv("localhost/data/stays/deep", "beta/data/there")
    assert (data / "there" / "deep" / "f").read_bytes() == b"f" and not (here / "deep").exists()
    fs.mv("beta/data/there/deep/f", "beta/data/there")
    assert (data / "there" / "f").read_bytes() == b"f"


def test_exports_of_a_peer_are_not_told(fs):
    for path in ("piped://", "piped://beta", "beta"):
        with pytest.raises(FileNotFoundError, match="pipectl exports"):
            fs.ls(path)


def test_what_is_got_takes_the_place_of_a_local_file(fs, pair, tmp_path):
    exported = pair.alpha.data / "got"
    exported.write_bytes(b"exported" * 1000)
    # Onto itself.
    fs.get("localhost/data/got", str(exported))
    assert exported.read_bytes() == b"exported" * 1000
    local = tmp_path / "local"
    local.write_bytes(b"old and long")
    local.chmod(0o604)
    (tmp_path / "link").symlink_to("local")

    class Broken(fsspec.Callback):
        def relative_update(self, inc=1):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fs.get_file("localhost/data/got", str(local), callback=Broken())
    assert local.read_bytes() == b"old and long"
    fs.get("localhost/data/got", str(tmp_path / "link"))
    assert local.read_bytes() == b"exported" * 1000 and (tmp_path / "link").is_symlink()
    assert local.stat().st_mode & 0o7777 == 0o604
    assert sorted(os.listdir(tmp_path)) == ["link", "local"]
    (tmp_path / "new").write_bytes(b"")
    fs.get("localhost/data/got", str(tmp_path / "another"))
    assert (tmp_path / "another").stat().st_mode == (tmp_path / "new").stat().st_mode


#: Gets a file into what a path leads to.
GETS = """
import sys
from piped_io.fs import PipedFileSystem

PipedFileSystem(sys.argv[1]).get_file("beta/data/special", sys.argv[2])
"""


def test_special_files_are_not_replaced(fs, pair, data, tmp_path):
    (data / "special").write_bytes(b"special" * 100)
    os.mkfifo(tmp_path / "pipe")
    command = [sys.executable, "-c", GETS, pair.alpha.socket]
    # The daemon writes regular files alone, and says so.
    pipe = os.open(tmp_path / "pipe", os.O_RDWR)
    with pytest.raises(PermissionError, match="regular files"):
        fs.get_file("beta/data/special", str(tmp_path / "pipe"))
    os.close(pipe)
    assert os.listdir(tmp_path) == ["pipe"] and (tmp_path / "pipe").is_fifo()
    with open(tmp_path / "out", "wb") as out:
        subprocess.run([*command, "/dev/stdout"], stdout=out, timeout=60, check=True)
        assert os.fstat(out.fileno()).st_size == 700


def test_what_is_being_written_is_not_listed(fs, data):
    folder = data / "listed"
    (folder / "deep").mkdir(parents=True)
    likely = [".piped-0123456789abcde", ".piped-0123456789ABCDEF", ".piped-0123456789abcdef.txt"]
    for name in (*likely, "deep/f", ".piped-0123456789abcdef", "deep/.piped-fedcba9876543210"):
        (folder / name).write_bytes(b"x")
    path = "beta/data/listed"
    shown = sorted(f"{path}/{name}" for name in likely)
    assert fs.ls(path, detail=False) == [*shown, f"{path}/deep"]
    assert [one["name"] for one in fs.ls(path)] == [*shown, f"{path}/deep"]
    assert fs.find(path) == [*shown, f"{path}/deep/f"]
    assert fs.glob(f"{path}/*/*") == [f"{path}/deep/f"]
    assert fs.exists(f"{path}/.piped-0123456789abcdef")
    fs.rm(path, recursive=True)
    assert not folder.exists()


def test_errors_tell_what_is_wrong(fs, data):
    (data / "wrong" / "deep").mkdir(parents=True)
    for target in ("wrong/deep", "wrong/new", "wrong/deep/new"):
        with pytest.raises(OSError, match="into itself"):
            fs.mv("beta/data/wrong", f"beta/data/{target}")
    assert not fs.exists("beta/data/a\0b") and not fs.lexists("beta/data/a\0b")
    with pytest.raises(OSError, match="zero byte"):
        fs.pipe("beta/data/a\0b", b"x")


def test_an_appender_tells_where_it_is(fs, data):
    (data / "told").write_bytes(b"12345")
    with fs.open("beta/data/told", "ab", block_size=4) as file:
        assert file.tell() == 5
        # Another one comes first.
        fs.pipe("beta/data/told", b"1234567")
        assert file.write(b"89") == 2 and file.tell() == 7
        file.write(b"abc")
        assert file.tell() == 12
        file.write(b"d")
        assert file.tell() == 13
    assert (data / "told").read_bytes() == b"123456789abcd"
    with fs.open("beta/data/told-new", "ab") as file:
        assert file.tell() == 0
