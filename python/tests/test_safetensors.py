"""Weights: equal for every type, and no file is believed."""

from __future__ import annotations

import json
import os
import pathlib
import random

import piped_io
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
    alike = one.dtype == other.dtype and one.shape == other.shape
    return alike and one.tobytes() == other.tobytes()


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


@pytest.mark.parametrize("length, is_shared", [(30 << 17, True), (1 << 10, False)])
def test_a_fork_has_the_weights_too_and_shares_large_ones(client, data, length, is_shared):
    save_file({"x": numpy.arange(length)}, "piped://beta/data/forked", client=client)
    got = load_file("piped://beta/data/forked", client=client)["x"]
    child = os.fork()
    if child == 0:
        got[0] = 7
        os._exit(0 if int(got[-1]) == length - 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert int(got[0]) == (7 if is_shared else 0)


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


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "F32", "shape": [2**62] * 65, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1] * 100_000, "data_offsets": [0, 4]},
        {"dtype": ["F32"], "shape": [1], "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": {"0": 1}, "data_offsets": [0, 4]},
        {"dtype": "F32", "shape": [1], "data_offsets": [0, 2, 4]},
    ],
)
def test_entries_that_lie_are_refused_in_a_line(entry):
    text = header({"name" * 1000: entry})
    with pytest.raises(ValueError, match="not a safetensors file") as refused:
        parse_header(text, 8 + len(text) + 4)
    assert len(str(refused.value)) < 200


def test_the_longest_shape_without_elements_is_an_array(client, data):
    text = header({"x": {"dtype": "F64", "shape": [2**60 - 1, 0], "data_offsets": [0, 0]}})
    (data / "empty").write_bytes(len(text).to_bytes(8, "little") + text)
    got = load_file("piped://beta/data/empty", client=client)["x"]
    assert got.shape == (2**60 - 1, 0)
    for shape in ([0, 2**62, 2**62], [2**60, 0]):
        text = header({"x": {"dtype": "F64", "shape": shape, "data_offsets": [0, 0]}})
        with pytest.raises(ValueError, match="not a safetensors file"):
            parse_header(text, 8 + len(text))


def test_arguments_of_loads(client, data):
    save_file({"x": numpy.arange(100)}, "piped://beta/data/arguments", client=client)
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="at_once"):
            load_file("piped://beta/data/arguments", client=client, at_once=wrong)
    local = load_file(pathlib.Path(data / "arguments"), client=client, at_once=1)
    assert local["x"].sum() == 4950


def test_what_could_not_be_loaded_is_not_saved(client, data, monkeypatch):
    one = {"x": numpy.arange(3)}
    for metadata in ({"step": 3}, {3: "step"}, {"step": None}):
        with pytest.raises(TypeError, match="metadata"):
            save_file(one, "piped://beta/data/unsaved", metadata=metadata, client=client)
    with pytest.raises(TypeError, match="names of tensors"):
        save_file({1: one["x"]}, "piped://beta/data/unsaved", client=client)
    with pytest.raises(ValueError, match="no name for a tensor"):
        save_file({"__metadata__": one["x"]}, "piped://beta/data/unsaved", client=client)
    monkeypatch.setattr(ours, "HEADER_VALUES_MAX", 3)
    with pytest.raises(ValueError, match="more than 3 values"):
        save_file(one, "piped://beta/data/unsaved", client=client)
    monkeypatch.setattr(ours, "HEADER_BYTES_MAX", 10)
    with pytest.raises(ValueError, match="more than 10 bytes"):
        save_file(one, "piped://beta/data/unsaved", client=client)
    assert not (data / "unsaved").exists()


def test_metadata_are_words():
    for metadata in ([], {"a": 1}, {"a": {"b": "c"}}):
        with pytest.raises(ValueError, match="not a safetensors file"):
            text = header({"__metadata__": metadata})
            parse_header(text, 8 + len(text))


def test_a_header_costs_as_much_as_it_is_long(monkeypatch):
    counted = []
    natural = ours._natural

    def count(value):
        counted.append(value)
        return natural(value)

    monkeypatch.setattr(ours, "_natural", count)
    costs = []
    for tensors in (500, 1000, 2000):
        counted.clear()
        entries = {
            f"{'x' * 50}{n}": {"dtype": "U8", "shape": [1, 1], "data_offsets": [n, n + 1]}
            for n in range(tensors)
        }
        text = header(entries)
        assert len(parse_header(text, 8 + len(text) + tensors).tensors) == tensors
        costs.append(len(counted))
    assert costs == [2000, 4000, 8000]


def test_a_shape_is_multiplied_no_further_than_the_file_is_long():
    class Counted(int):
        times = 0

        def __rmul__(self, other):
            Counted.times += 1
            return int(self) * int(other)

    assert ours._elements([Counted(2)] * 1_000_000, 1 << 40) > 1 << 40
    assert Counted.times <= 41
    assert ours._elements([4096, 4096, 0], 100) == 0
    assert ours._elements([], 100) == 1


def test_a_header_of_too_many_values_is_not_parsed(monkeypatch):
    monkeypatch.setattr(ours, "HEADER_VALUES_MAX", 100)
    monkeypatch.setattr(ours.json, "loads", lambda text: pytest.fail("it is parsed"))
    with pytest.raises(ValueError, match="more than 100 values"):
        parse_header(header({"x": [[]] * 101}), 1 << 20)


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


def test_a_queue_that_is_not_deep(pair, data):
    shallow = piped_io.Client(pair.alpha.socket, depth=2)
    save_file({"x": numpy.ones(30_000_000, "u1")}, "piped://beta/data/shallow", client=shallow)
    got = load_file("piped://beta/data/shallow", client=shallow, at_once=8)
    assert got["x"].sum() == 30_000_000
