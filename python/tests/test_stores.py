"""Other people's tests of stores and file systems, held against `piped://` on two nodes."""

from __future__ import annotations

import inspect
import os
import pathlib
import pickle
import secrets
import shutil
import warnings

import pytest

fsspec = pytest.importorskip("fsspec")

from piped_io.fs import PipedFileSystem  # noqa: E402

try:
    with warnings.catch_warnings():
        # Its marks are those of its own conftest.
        warnings.simplefilter("ignore", pytest.PytestUnknownMarkWarning)
        from pyarrow import fs as arrow
        from pyarrow.tests import test_fs as arrow_tests
except ImportError as error:
    arrow = None
    _NO_ARROW = str(error)

try:
    import pytest_asyncio  # noqa: F401
    from zarr.core.buffer import cpu
    from zarr.storage import FsspecStore
    from zarr.testing.store import StoreTests
except ImportError as error:
    FsspecStore = None
    _NO_ZARR = str(error)

try:
    import upath

    # Its tests are in its source distribution alone.
    upath.__path__.append(os.path.join(os.environ["UPATH_SOURCES"], "upath"))
    from upath.tests.cases import BaseTests
except (ImportError, KeyError) as error:
    BaseTests = None
    _NO_UPATH = repr(error)

#: Tests of pyarrow that take any file system.
ARROW_TESTS = 21


if FsspecStore is None:

    @pytest.mark.skip(reason=f"zarr's tests are not installed: {_NO_ZARR}")
    def test_zarr() -> None:
        """Stands for zarr's tests in reports."""

else:

    class TestZarr(StoreTests[FsspecStore, cpu.Buffer]):
        """zarr's tests of a store. What they set up and look at goes past the store: by paths."""

        store_cls = FsspecStore
        buffer_cls = cpu.Buffer

        @pytest.fixture
        def store_kwargs(self, pair):
            name = f"zarr-{secrets.token_hex(4)}"
            self.folder = pair.beta.data / name
            fs = PipedFileSystem(pair.alpha.socket, asynchronous=True)
            return {"fs": fs, "path": f"beta/data/{name}"}

        async def set(self, store, key, value):
            file = self.folder / key
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(value.to_bytes())

        async def get(self, store, key):
            return self.buffer_cls.from_bytes((self.folder / key).read_bytes())

        def test_store_repr(self, store):
            assert repr(store) == f"<FsspecStore(PipedFileSystem, {store.path})>"

        def test_store_supports_writes(self, store):
            assert store.supports_writes and store.supports_deletes

        def test_store_supports_listing(self, store):
            assert store.supports_listing


if arrow is None:

    @pytest.mark.skip(reason=f"pyarrow's tests are not installed: {_NO_ARROW}")
    def test_arrow() -> None:
        """Stands for pyarrow's tests in reports."""

else:

    @pytest.fixture
    def filesystem_config(pair):
        root = f"beta/data/arrow-{secrets.token_hex(4)}"
        return {
            "fs": arrow.PyFileSystem(arrow.FSSpecHandler(PipedFileSystem(pair.alpha.socket))),
            "pathfn": lambda path: f"{root}/{path}",
            "allow_move_dir": True,
            "allow_append_to_file": True,
        }

    @pytest.fixture
    def pickle_module():
        return pickle

    for _name in ("fs", "pathfn", "allow_move_dir", "allow_append_to_file"):
        globals()[_name] = getattr(arrow_tests, _name)
    pickle_with_and_without_subtree_filesystem = (
        arrow_tests.pickle_with_and_without_subtree_filesystem
    )
    _taken = {
        name.replace("test_", "test_arrow_", 1): test
        for name, test in vars(arrow_tests).items()
        if name.startswith("test_") and "fs" in inspect.signature(test).parameters
    }
    globals().update(_taken)

    def test_arrow_has_its_tests():
        assert len(_taken) >= ARROW_TESTS


if BaseTests is None:

    @pytest.mark.skip(reason=f"UPATH_SOURCES names no source of universal_pathlib: {_NO_UPATH}")
    def test_upath() -> None:
        """Stands for universal_pathlib's tests in reports."""

else:

    @pytest.fixture
    def local_testdir(tmp_path):
        """The files that the tests look for."""
        (tmp_path / "folder1").mkdir()
        for name in ("file1.txt", "file2.txt"):
            (tmp_path / "folder1" / name).write_text(name)
            (tmp_path / name).write_text("hello world")
        return str(tmp_path)

    @pytest.fixture
    def pathlib_base(local_testdir):
        return pathlib.Path(local_testdir)

    @pytest.fixture
    def clear_fsspec_memory_cache(monkeypatch):
        """Gives back to others what was in the file system in memory."""
        memory = fsspec.get_filesystem_class("memory")
        monkeypatch.setattr(memory, "store", dict(memory.store))
        monkeypatch.setattr(memory, "pseudo_dirs", list(memory.pseudo_dirs))

    # Its default for file systems that it does not know, which it warns of.
    @pytest.mark.filterwarnings("ignore:UPath 'piped' filesystem not explicitly implemented")
    class TestUPath(BaseTests):
        """universal_pathlib's tests of paths that are read and written."""

        @pytest.fixture(autouse=True)
        def path(self, pair, local_testdir):
            name = f"upath-{secrets.token_hex(4)}"
            shutil.copytree(local_testdir, pair.beta.data / name)
            self.path = upath.UPath(f"piped://beta/data/{name}", socket=pair.alpha.socket)

        def test_is_correct_class(self):
            assert isinstance(self.path, upath.UPath) and self.path.protocol == "piped"

        @pytest.mark.skip(reason="paths of URLs are below no working directory")
        def test_rename_with_target_absolute(self):
            """Moves to a path that begins at the working directory."""
