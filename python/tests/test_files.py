"""Files of nodes as file objects of Python's."""

from __future__ import annotations

import io
import os

import piped_io
import pytest


@pytest.fixture
def url(client, data) -> str:
    (data / "text").write_bytes(b"first\nsecond\nthird\n" * 100_000)
    return "piped://beta/data/text"


def test_as_pythons_own(client, data, url, tmp_path):
    """The same steps on a local file by Python, and on a node's file, say the same."""
    local = tmp_path / "text"
    local.write_bytes((data / "text").read_bytes())
    for mode in ("rb", "r+b", "r", "ab", "a+b", "wb", "w+b", "w"):
        told = []
        for file in (open(local, mode), piped_io.open(url, mode, client=client)):
            with file:
                seen: list[object] = [file.tell(), file.readable(), file.writable()]
                if file.readable():
                    seen += [file.readline(), file.read(10), file.tell()]
                    file.seek(0, os.SEEK_END)
                    seen += [file.tell(), file.read()]
                if file.writable():
                    line = "line\n" if "b" not in mode else b"line\n"
                    seen += [file.write(line), file.tell()]
                    file.seek(2)
                    seen += [file.write(line), file.truncate(20_000), file.tell()]
                told.append(seen)
            with pytest.raises(ValueError):
                file.tell()
        assert told[0] == told[1], mode
        assert local.read_bytes() == (data / "text").read_bytes(), mode


def test_modes(client, data, url):
    with pytest.raises(FileExistsError):
        piped_io.open(url, "xb", client=client)
    with piped_io.open(url + "2", "x", client=client, encoding="utf-8") as file:
        file.write("grüße\n")
    assert (data / "text2").read_text("utf-8") == "grüße\n"
    with piped_io.open(url, "rb", buffering=0, client=client) as raw:
        assert isinstance(raw, piped_io.RawFile) and raw.read(5) == b"first"
        with pytest.raises(io.UnsupportedOperation):
            raw.write(b"x")
        with pytest.raises(ValueError):
            raw.seek(-1)
        into = bytearray(7)
        assert raw.readinto(into) == 7 and into == b"\nsecond"
    for mode in ("", "rw", "b", "z"):
        with pytest.raises(ValueError):
            piped_io.open(url, mode, client=client)
    with pytest.raises(FileNotFoundError):
        piped_io.open(url + "-none", client=client)
    for wrong in ("piped://beta", "piped:///data/x", "http://a/b"):
        with pytest.raises(ValueError):
            piped_io.parse_url(wrong)
    assert piped_io.parse_url("piped://localhost/data/a%20b/c") == (None, "data", "a%20b/c")


def test_a_local_path(client, tmp_path):
    path = tmp_path / "local"
    with piped_io.open(path, "wb", client=client) as file:
        file.write(b"0123456789" * 1000)
    with piped_io.open(path, client=client) as file:
        assert file.read() == path.read_bytes()


def test_replace_is_whole_or_nothing(client, data):
    url = "piped://beta/data/state.json"
    piped_io.replace(url, b"old", client=client)
    piped_io.replace(url, memoryview(b"new" * 1_000_000), client=client)
    assert (data / "state.json").read_bytes() == b"new" * 1_000_000
    (data / "busy").mkdir()
    with pytest.raises(OSError):
        piped_io.replace("piped://beta/data/busy", b"x", client=client)
    assert not [name for name in os.listdir(data) if name.startswith(".piped-")]
