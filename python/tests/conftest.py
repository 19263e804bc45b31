"""Two real nodes for all tests: PIPED_BIN names the directory of the programs."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Iterator

import piped_io
import pytest
from piped_io._nodes import Pair


def pytest_configure(config: pytest.Config) -> None:
    # The tests that zarr lends are asynchronous, and their fixtures too.
    if hasattr(config.option, "asyncio_mode"):
        config.option.asyncio_mode = "auto"


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    with Pair(tmp_path_factory.mktemp("nodes")) as pair:
        yield pair


@pytest.fixture(scope="module", autouse=True)
def nothing_of_others(pair: Pair) -> None:
    """Each module begins with empty directories: modules may use the same names."""
    for node in (pair.alpha, pair.beta):
        for entry in node.data.iterdir():
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry)
            else:
                entry.unlink()


@pytest.fixture
def client(pair: Pair) -> piped_io.Client:
    return piped_io.Client(pair.alpha.socket)


@pytest.fixture
def data(pair: Pair) -> pathlib.Path:
    """The directory that the other node exports as `data`."""
    return pair.beta.data
