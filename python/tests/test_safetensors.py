"""Weights: equal for every type, and no file is believed."""

from __future__ import annotations

import itertools
import json
import os
import random
import resource
import signal
import threading
import weakref

import piped_io
import pytest
from piped_io import PipedError, _ranges
from piped_io import safetensors as ours
from piped_io._calls import queue_of
from piped_io._native import Span
from piped_io._nodes import Pair
from piped_io._ranges import Block
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


class Other:
    """A client that is as another one, but for what a subclass changes."""

    def __init__(self, client) -> None:
        self.client = client

    def __getattr__(self, name):
        return getattr(self.client, name)


class Refusing(Other):
    """Lends parts by their numbers: what is not in `lent` is refused."""

    def __init__(self, client, lent=()) -> None:
        super().__init__(client)
        self.lent = lent
        self.numbers = itertools.count()

    def lend_memfd(self, fd):
        if next(self.numbers) not in self.lent:
            raise PipedError(12, "no room")
        return self.client.lend_memfd(fd)


@pytest.mark.parametrize("lent", [(), (0,), (0, 1), (1, 3)])
def test_without_room_to_lend_it_comes_through_the_arena(client, data, lent):
    wanted = arrays()
    wanted["long"] = numpy.arange(60 << 17, dtype="u8")
    save_file(wanted, "piped://beta/data/staged", client=client)
    file = client.open_export("beta", "data", "staged")
    header = ours.read_header(client, file)
    block = Block(0, file.length)
    _ranges.read_ranges(Refusing(client, lent), file, block, [(0, file.length)], 2)
    tensor = header.tensors["long"]
    assert block.memory[tensor.start : tensor.end] == wanted["long"].tobytes()


def test_without_room_for_more_buffers_those_of_the_arena_are_used_again(client, data):
    class Tight(Refusing):
        buffers = 0

        def allocate(self, length):
            self.buffers += 1
            if self.buffers > 2:
                raise PipedError(12, "no room")
            return self.client.allocate(length)

    content = random.Random(5).randbytes(40 << 20)
    (data / "tight").write_bytes(content)
    file = client.open_export("beta", "data", "tight")
    block = Block(0, len(content))
    _ranges.read_ranges(Tight(client), file, block, [(0, len(content))], 8)
    assert block.memory == content
    none = Tight(client)
    none.buffers = 2
    with pytest.raises(PipedError, match="no room"):
        _ranges.read_ranges(none, file, block, [(0, 100)], 8)


def test_a_limit_on_lending_is_no_limit_on_weights(tmp_path):
    with Pair(tmp_path) as pair:
        pair.alpha.stop()
        with open(pair.alpha.config, "a") as config:
            config.write('limits.client.lent = "20MiB"\n')
        pair.alpha.start()
        client = piped_io.Client(pair.alpha.socket)
        wanted = numpy.arange(60 << 17, dtype="u8")
        path = tmp_path / "local"
        theirs = pytest.importorskip("safetensors.numpy")
        theirs.save_file({"x": wanted}, path)
        assert equal(load_file(str(path), client=client)["x"], wanted)


def test_little_is_lent_at_once_and_nothing_afterwards(client, data):
    class Counting(Other):
        def __init__(self, client) -> None:
            super().__init__(client)
            self.lent: list[weakref.ref] = []
            self.most = 0

        def lend_memfd(self, fd):
            lent = self.client.lend_memfd(fd)
            assert len(lent) <= _ranges.PART
            self.lent.append(weakref.ref(lent))
            self.most = max(self.most, sum(part() is not None for part in self.lent))
            return lent

    length = 2 * (_ranges.PARTS + 3) * _ranges.PART
    path = data / "many-parts"
    with open(path, "wb") as file:
        file.truncate(length)
        file.seek(length - 4)
        file.write(b"ends")
    counting, block = Counting(client), Block(0, length)
    file = client.open_export("beta", "data", "many-parts")
    _ranges.read_ranges(counting, file, block, [(0, length)], 4)
    assert block.memory[-4:] == b"ends"
    assert len(counting.lent) == length // _ranges.PART
    assert counting.most <= _ranges.PARTS
    assert not any(part() for part in counting.lent)
    path.unlink()


def test_ranges_are_read_and_what_lies_between_is_not(client, data):
    content = random.Random(1).randbytes(40 << 20)
    (data / "sparse").write_bytes(content)
    file = client.open_export("beta", "data", "sparse")
    mib = 1 << 20
    ranges = [(5, 9), (5000, 5001), (mib + 7, 2 * mib), (15 * mib, 33 * mib + 1)]
    ranges.append((40 * mib - 1, 40 * mib))
    for base in (0, 5):
        block = Block(base, len(content) - base)
        _ranges.read_ranges(client, file, block, ranges, 4)
        for start, end in ranges:
            assert block.memory[start - base : end - base] == content[start:end]
        assert not any(block.memory[3 * mib : 14 * mib])
        assert not any(block.memory[34 * mib : 39 * mib])


@pytest.mark.parametrize("seed", range(20))
def test_parts_cover_ranges_and_never_meet(seed):
    generator = random.Random(seed)
    base = generator.choice([0, 4096, 77])
    limits = [generator.choice([10, 100_000, 3 << 20]) for _ in range(60)]
    lengths = [generator.randrange(1, most) for most in limits]
    ends = list(itertools.accumulate(lengths, initial=base))
    ranges = list(zip(ends[::2], ends[1::2]))
    block = Block(base, ends[-1] - base)
    parts = list(_ranges.cut(block, ranges))
    for start, end in parts:
        assert 0 <= start < end <= len(block.span)
        assert start % 4096 == 0 and end % 4096 == 0
        assert start // _ranges.PART == (end - 1) // _ranges.PART
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(parts))
    for start, end in ranges:
        at = start - base
        while at < end - base:
            at = next(part[1] for part in parts if part[0] <= at < part[1])
    assert list(_ranges.cut(block, [])) == []


def test_ranges_behind_the_end_are_refused(client, data):
    (data / "short").write_bytes(bytes(100))
    file = client.open_export("beta", "data", "short")
    block = Block(0, 1 << 20)
    for ranges in ([(8192, 9000)], [(0, 101)], [(0, 10), (90, 1 << 20)]):
        with pytest.raises(ValueError, match="behind the file"):
            _ranges.read_ranges(client, file, block, ranges, 4)
    _ranges.read_ranges(client, file, block, [(0, 100)], 4)
    _ranges.read_ranges(client, file, block, [], 4)


def test_the_daemon_ends_while_weights_are_read(tmp_path):
    with Pair(tmp_path) as pair:
        with open(pair.beta.data / "large", "wb") as large:
            large.truncate(256 << 20)
        client = piped_io.Client(pair.alpha.socket)
        file = client.open_export("beta", "data", "large")

        class Ending(Other):
            calls = 0

            def lend_memfd(self, fd):
                self.calls += 1
                if self.calls == 3:
                    pair.alpha.stop(kill=True)
                return self.client.lend_memfd(fd)

        block = Block(0, file.length)
        with pytest.raises(OSError):
            _ranges.read_ranges(Ending(client), file, block, [(0, file.length)], 4)
        assert piped_threads() == []


def piped_threads() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "piped-lender"]


def test_an_interrupt_leaves_nothing_under_way(client, data):
    with open(data / "interrupted", "wb") as file:
        file.truncate(256 << 20)
    file = client.open_export("beta", "data", "interrupted")
    block = Block(0, file.length)

    class Interrupting(Other):
        parts = 0

        def lend_memfd(self, fd):
            self.parts += 1
            if self.parts == 3:
                os.kill(os.getpid(), signal.SIGINT)
            return self.client.lend_memfd(fd)

    with pytest.raises(KeyboardInterrupt):
        _ranges.read_ranges(Interrupting(client), file, block, [(0, file.length)], 4)
    assert queue_of(client).underway == 0
    assert piped_threads() == []


def test_without_a_queue_nothing_is_lent(client, data):
    class Queueless(Refusing):
        def queue(self):
            raise PipedError(11, "no more queues")

    (data / "queueless").write_bytes(bytes(1 << 20))
    file = client.open_export("beta", "data", "queueless")
    other = Queueless(client)
    with pytest.raises(PipedError, match="no more queues"):
        _ranges.read_ranges(other, file, Block(0, 1 << 20), [(0, 1 << 20)], 4)
    assert next(other.numbers) == 0 and piped_threads() == []


def test_a_reader_that_is_told_to_stop_does(client, data):
    with open(data / "stopped", "wb") as file:
        file.truncate(64 << 20)
    file = client.open_export("beta", "data", "stopped")
    stop = threading.Event()
    stop.set()
    with pytest.raises(InterruptedError):
        _ranges.read_ranges(client, file, Block(0, file.length), [(0, file.length)], 4, None, stop)
    assert piped_threads() == []


def test_parts_of_a_span_are_whole_pages_that_are_made_once():
    span = Span(10_000)
    view = memoryview(span)
    assert len(span) == len(view) == 12288 and span.address % (2 << 20) == 0
    end = 2**64 - 4096
    for offset, length in [(1, 4096), (0, 1), (0, 0), (8192, 8192), (end, 4096), (4096, end)]:
        with pytest.raises(ValueError, match="whole pages"):
            span.make(offset, length)
    view[0] = view[4096] = 1
    fd = span.make(4096, 4096)
    try:
        assert os.fstat(fd).st_size == 4096
        os.pwrite(fd, b"there", 0)
        with pytest.raises(OSError):
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)
    assert view[0] == 1 and view[4096:4101] == b"there"
    for offset, length in [(4096, 4096), (0, 8192), (4096, 8192), (0, 12288)]:
        with pytest.raises(ValueError, match="made once"):
            span.make(offset, length)
    for offset in (8192, 0):
        os.close(span.make(offset, 4096))
    assert bytes(view[:10]) == bytes(10) and view[4096:4101] == b"there"
    del span
    view[4096] = 7
    with pytest.raises(ValueError, match="no such addresses"):
        Span(2**64 - 1)
    for length in (1 << 62, 2**64 - 4096):
        with pytest.raises(MemoryError):
            Span(length)


def test_pages_that_cannot_be_made_are_an_error_and_the_memory_stays():
    span = Span(1 << 20)
    view = memoryview(span)
    view[:4] = b"here"
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    last = os.open("/dev/null", os.O_RDONLY)
    resource.setrlimit(resource.RLIMIT_NOFILE, (last + 1, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            span.make(0, 4096)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        os.close(last)
    assert view[:4] == b"here"


def test_without_memory_for_a_part_the_load_fails_and_its_threads_end(client, data):
    with open(data / "unmade", "wb") as file:
        file.truncate(128 << 20)
    file = client.open_export("beta", "data", "unmade")
    block = Block(0, file.length)

    class Failing:
        def __init__(self, span) -> None:
            self.span = span
            self.made = 0

        def make(self, *part):
            self.made += 1
            if self.made == 4:
                raise MemoryError("no pages")
            return self.span.make(*part)

    block.span = Failing(block.span)
    with pytest.raises(MemoryError, match="no pages"):
        _ranges.read_ranges(client, file, block, [(0, file.length)], 8)
    assert piped_threads() == []


def test_a_fork_has_the_weights_too(client, data):
    save_file({"x": numpy.arange(30 << 17)}, "piped://beta/data/forked", client=client)
    got = load_file("piped://beta/data/forked", client=client)["x"]
    child = os.fork()
    if child == 0:
        os._exit(0 if int(got[-1]) == (30 << 17) - 1 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


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
    assert ours._elements([1 << 62, 1 << 62, 0], 100) == 0
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


def test_a_file_that_is_cut_while_it_is_read(client, data):
    path = data / "cut"
    save_file({"x": numpy.zeros(30_000_000, "u1")}, "piped://beta/data/cut", client=client)
    handle = client.open_export("beta", "data", "cut")
    head = ours.read_header(client, handle)
    os.truncate(path, 10_000_000)
    block = Block(0, handle.length)
    with pytest.raises(ValueError, match="shorter"):
        _ranges.read_ranges(client, handle, block, [(0, handle.length)], 4)
    assert piped_threads() == []
    assert head.tensors["x"].shape == (30_000_000,)


def test_a_queue_that_is_not_deep(pair, data):
    shallow = piped_io.Client(pair.alpha.socket, depth=2)
    save_file({"x": numpy.ones(30_000_000, "u1")}, "piped://beta/data/shallow", client=shallow)
    got = load_file("piped://beta/data/shallow", client=shallow, at_once=8)
    assert got["x"].sum() == 30_000_000
