"""Weights: equal for every type, and no file is believed."""

from __future__ import annotations

import json
import os
import random

import pytest
from piped_io import safetensors as ours
from piped_io.safetensors import load_file, parse_header, save_file

numpy = pytest.importorskip("numpy")

TYPES = ["?", "u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8"]


def arrays() -> dict[str, object]:
    random_ = numpy.random.default_rng(7)
    made = {}
    for word in TYPES:
        raw = random_.integers(0, 256, 3 * 5 * 8, dtype="u1")
        array = raw.view(word) if word != "?" else raw % 2 == 0
        made[f"of.{word}"] = array[: 3 * 5].reshape(3, 5)
    made["scalar"] = numpy.array(2.5, "f4")
    made["nothing"] = numpy.empty((0, 4), "f4")
    made["large"] = random_.integers(0, 256, (3000, 5001), dtype="u1")
    return made


def equal(one, other) -> bool:
    return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()


def test_what_others_write_is_read(client, data):
    theirs = pytest.importorskip("safetensors.numpy")
    wanted = arrays()
    theirs.save_file(wanted, data / "theirs.safetensors", metadata={"writer": "theirs"})
    got = load_file("piped://beta/data/theirs.safetensors", client=client)
    assert got.keys() == wanted.keys()
    assert all(equal(got[name], wanted[name]) for name in wanted)
    got["large"][0, 0] += 1


def test_what_we_write_is_read_by_others(client, data):
    theirs = pytest.importorskip("safetensors.numpy")
    wanted = arrays()
    save_file(wanted, "piped://beta/data/ours.safetensors", metadata={"a": "b"}, client=client)
    got = theirs.load_file(data / "ours.safetensors")
    assert got.keys() == wanted.keys()
    assert all(equal(got[name], wanted[name]) for name in wanted)
    local = load_file(str(data / "ours.safetensors"), client=client)
    assert all(equal(local[name], wanted[name]) for name in wanted)


def test_arrays_of_another_byte_order_are_turned(client, data):
    save_file({"x": numpy.arange(7, dtype=">i4")}, "piped://beta/data/turned", client=client)
    got = load_file("piped://beta/data/turned", client=client)["x"]
    assert got.tolist() == list(range(7)) and got.dtype == numpy.dtype("<i4")
    with pytest.raises(TypeError, match="has not"):
        save_file({"x": numpy.array(["a"])}, "piped://beta/data/turned", client=client)


def test_types_that_numpy_has_not(client, data):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for word in ("bfloat16", "float8_e4m3fn", "float8_e5m2"):
        wanted = numpy.arange(60, dtype="f4").astype(getattr(ml_dtypes, word)).reshape(4, 15)
        save_file({"x": wanted}, "piped://beta/data/small", client=client)
        assert equal(load_file("piped://beta/data/small", client=client)["x"], wanted)


def test_without_room_to_lend_it_comes_through_the_arena(client, data, monkeypatch):
    wanted = arrays()
    save_file(wanted, "piped://beta/data/staged", client=client)

    class Refusing:
        def __init__(self, client) -> None:
            self.client = client

        def __getattr__(self, name):
            return getattr(self.client, name)

        def lend_memfd(self, fd):
            raise ours.PipedError(12, "no room")

    block = ours._Block
    monkeypatch.setattr(ours, "_Block", lambda client, length: block(Refusing(client), length))
    got = load_file("piped://beta/data/staged", client=client, at_once=2)
    assert all(equal(got[name], wanted[name]) for name in wanted)


def header(entries: object) -> bytes:
    return json.dumps(entries).encode()


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"{",
        b"[]",
        b"[" * 100_000,
        header({"x": 1}),
        header({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 5]}}),
        header({"x": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}}),
        header({"x": {"dtype": "F32", "shape": [True], "data_offsets": [0, 4]}}),
        header({"x": {"dtype": "F31", "shape": [1], "data_offsets": [0, 4]}}),
        header({"x": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}}),
        header({"x": {"dtype": "F32", "shape": [1 << 62, 1 << 62], "data_offsets": [0, 4]}}),
        header({"x": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}),
        header(
            {
                "x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
                "y": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]},
            }
        ),
        header({"x": {"dtype": "U8", "shape": [3], "data_offsets": [1, 4]}}),
    ],
)
def test_headers_that_lie_are_refused(text):
    with pytest.raises(ValueError, match="not a safetensors file"):
        parse_header(text, 8 + len(text) + 4)


def test_any_bytes_are_no_file_or_one(client, data):
    generator = random.Random(3)
    save_file({"x": numpy.arange(100)}, "piped://beta/data/mutated", client=client)
    good = (data / "mutated").read_bytes()
    for number in range(60):
        bad = bytearray(good)
        for _ in range(generator.randint(1, 4)):
            bad[generator.randrange(100)] = generator.randrange(256)
        (data / f"bad-{number}").write_bytes(bad[: generator.randint(0, len(bad))])
        try:
            load_file(f"piped://beta/data/bad-{number}", client=client)
        except (ValueError, TypeError):
            pass


def test_a_file_that_is_cut_while_it_is_read(client, data):
    path = data / "cut"
    save_file({"x": numpy.zeros(30_000_000, "u1")}, "piped://beta/data/cut", client=client)
    handle = client.open_export("beta", "data", "cut")
    head = ours.read_header(client, handle)
    os.truncate(path, 10_000_000)
    block = ours._Block(client, handle.length)
    with pytest.raises(ValueError, match="shorter"):
        ours._read_all(client, handle, block, 0, handle.length, 4)
    assert head.tensors["x"].shape == (30_000_000,)


def test_a_queue_that_is_not_deep(pair, data):
    import piped_io

    shallow = piped_io.Client(pair.alpha.socket, depth=2)
    save_file({"x": numpy.ones(30_000_000, "u1")}, "piped://beta/data/shallow", client=shallow)
    got = load_file("piped://beta/data/shallow", client=shallow, at_once=8)
    assert got["x"].sum() == 30_000_000
