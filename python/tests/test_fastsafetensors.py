"""The copier for fastsafetensors: the same tensors as the package's own `nogds` has."""

from __future__ import annotations

import gc
import json
import os
import random
import threading
import weakref

import pytest

pytest.importorskip("fastsafetensors", reason="the package fastsafetensors is not installed")
pytest.importorskip("paddle", reason="paddlepaddle, the framework of these tests, is missing")
numpy = pytest.importorskip("numpy")
theirs = pytest.importorskip("safetensors.numpy")

from fastsafetensors import SafeTensorsFileLoader  # noqa: E402
from fastsafetensors.copier.registry import get_copier_class  # noqa: E402
from fastsafetensors.parallel_loader import ParallelLoader  # noqa: E402
from piped_io import _ranges  # noqa: E402
from piped_io import fastsafetensors as ours  # noqa: E402
from piped_io.fastsafetensors import PipedCopier, PipedLoader, PipedParallelLoader  # noqa: E402

TYPES = ["u1", "i1", "i2", "f2", "i4", "f4", "i8", "f8"]


def write(path, seed: int, large: int = 2_000_000) -> None:
    generator = numpy.random.default_rng(seed)
    tensors = {
        f"{seed}.of.{word}": generator.integers(0, 100, (3, 5)).astype(word) for word in TYPES
    }
    for number in range(4):
        tensors[f"{seed}.large.{number}"] = generator.random((large // 8,), dtype="f4")
    tensors[f"{seed}.nothing"] = numpy.empty((0, 4), "f4")
    tensors[f"{seed}.scalar"] = numpy.array(2.5, "f4")
    theirs.save_file(tensors, path)


@pytest.fixture
def files(data):
    for seed in range(3):
        write(data / f"model-{seed}.safetensors", seed)
    return [f"model-{seed}.safetensors" for seed in range(3)]


def url(name: str) -> str:
    return f"piped://beta/data/{name}"


def loaded(loader, names: list[str], keep=None) -> dict[str, tuple]:
    """Bytes, type and shape of all tensors that a loader gives."""
    loader.set_tensor_filter(keep)
    loader.add_filenames({0: names})
    buffers = loader.copy_files_to_device()
    got = {name: buffers.get_tensor(name) for name in loader.get_keys()}
    # Tensors outlive what they were loaded by.
    buffers.close()
    loader.close()
    return {name: described(tensor) for name, tensor in got.items()}


def described(tensor) -> tuple:
    return tensor.numpy().tobytes(), str(tensor.dtype), tuple(tensor.shape)


def nogds() -> SafeTensorsFileLoader:
    return SafeTensorsFileLoader(None, "cpu", nogds=True, framework="paddle")


def piped(client, **options) -> PipedLoader:
    return PipedLoader(None, "cpu", client, framework="paddle", **options)


def test_no_requests_at_once_are_refused(client, files):
    with pytest.raises(ValueError, match="at_once"):
        loaded(piped(client, at_once=0), [url(files[0])])


def test_it_is_registered_by_name():
    assert get_copier_class("piped") is PipedCopier


def test_tensors_of_several_files_equal_those_of_nogds(client, data, files):
    wanted = loaded(nogds(), [str(data / name) for name in files])
    assert len(wanted) == 3 * (len(TYPES) + 6)
    assert loaded(piped(client), [url(name) for name in files]) == wanted
    assert loaded(piped(client, at_once=2), [str(data / name) for name in files]) == wanted


@pytest.mark.parametrize("keep", ["1.large.2", "of.f4", ".large.", "none"])
def test_filtered_tensors_equal_those_of_nogds(client, data, files, keep):
    def wants(name: str) -> bool:
        return keep in name

    wanted = loaded(nogds(), [str(data / name) for name in files], wants)
    assert loaded(piped(client), [url(name) for name in files], wants) == wanted


def noted_blocks(monkeypatch) -> list[_ranges.Block]:
    """Blocks that copiers make from now on."""
    blocks = []
    block = _ranges.Block

    def noted(*arguments):
        blocks.append(block(*arguments))
        return blocks[-1]

    monkeypatch.setattr(ours, "Block", noted)
    return blocks


def test_what_a_filter_leaves_out_is_not_read(client, files, monkeypatch):
    blocks = noted_blocks(monkeypatch)
    loader = piped(client)
    loader.set_tensor_filter(lambda name: name.endswith("large.0"))
    loader.add_filenames({0: [url(files[0])]})
    metadata, _ = loader.meta[url(files[0])]
    loader.copy_files_to_device().close()
    (block,) = blocks
    first, last = (metadata.header_length + at for at in metadata.tensors["0.large.3"].data_offsets)
    assert not any(block.memory[first - block.base : last - block.base])
    first, last = (metadata.header_length + at for at in metadata.tensors["0.large.0"].data_offsets)
    assert any(block.memory[first - block.base : last - block.base])


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("local", [False, True])
def test_chunks_of_the_planner_equal_those_of_nogds(client, data, files, whole, local):
    paths = [str(data / name) for name in files]
    options = {
        "max_batch_bytes": 1_500_000,
        "use_chunk_budget_as_allocation_size": whole,
        "use_tqdm_on_load": False,
        "framework": "paddle",
    }
    pipeline = ParallelLoader(None, paths, nogds=True, **options)
    wanted = {name: described(tensor) for name, tensor in pipeline.iterate_weights()}
    pipeline.close()
    names = paths if local else [url(name) for name in files]
    pipeline = PipedParallelLoader(None, names, client=client, **options)
    assert len(pipeline.weight_files_batches) > len(files)
    got = {name: described(tensor) for name, tensor in pipeline.iterate_weights()}
    pipeline.close()
    assert got == wanted


def test_a_budget_of_memory_is_planned_for(client, files):
    pipeline = PipedParallelLoader(
        None,
        [url(name) for name in files],
        client=client,
        framework="paddle",
        device_memory_budget=20_000_000,
        use_tqdm_on_load=False,
    )
    assert len([name for name, _ in pipeline.iterate_weights()]) == 3 * (len(TYPES) + 6)
    pipeline.close()


@pytest.mark.parametrize("borrowed", [False, True])
@pytest.mark.parametrize("queue_size", [-1, 0, 2])
def test_its_pipeline_gives_all_tensors(client, data, files, queue_size, borrowed):
    wanted = loaded(nogds(), [str(data / name) for name in files])
    pipeline = PipedParallelLoader(
        None,
        [url(name) for name in files],
        client=client,
        framework="paddle",
        queue_size=queue_size,
        borrowed_tensors=borrowed,
        accumulate_resident=not borrowed,
        use_tqdm_on_load=False,
    )
    got = {name: described(tensor) for name, tensor in pipeline.iterate_weights()}
    pipeline.close()
    assert got == wanted


@pytest.mark.parametrize("queue_size", [-1, 0, 2])
def test_a_pipeline_that_is_left_early_ends(client, files, queue_size):
    pipeline = PipedParallelLoader(
        None,
        [url(name) for name in files],
        client=client,
        framework="paddle",
        queue_size=queue_size,
        use_tqdm_on_load=False,
    )
    weights = pipeline.iterate_weights()
    name, tensor = next(weights)
    before = described(tensor)
    weights.close()
    pipeline.close()
    assert described(tensor) == before and name.startswith("0.")
    assert lenders() == []


def lenders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "piped-lender"]


def test_headers_of_any_length_align_the_tensors(client, data):
    for pad in range(9):
        entries = {"x": {"dtype": "F64", "shape": [500], "data_offsets": [0, 4000]}}
        text = json.dumps(entries).encode() + b" " * pad
        values = numpy.arange(500, dtype="f8")
        path = data / f"pad-{pad}"
        path.write_bytes(len(text).to_bytes(8, "little") + text + values.tobytes())
        loader = piped(client)
        loader.add_filenames({0: [url(path.name)]})
        buffers = loader.copy_files_to_device()
        tensor = buffers.get_tensor("x")
        assert tensor.data_ptr() % 8 == 0
        assert numpy.array_equal(tensor.numpy(), values)
        buffers.close()


def test_a_file_that_is_cut_between_header_and_read(client, data, files):
    write(data / "cut", 9)
    loader = piped(client)
    loader.add_filenames({0: [url(files[0]), url("cut")]})
    os.truncate(data / "cut", 1_000_000)
    with pytest.raises(ValueError, match="behind the file"):
        loader.copy_files_to_device()
    loader.close()


def test_a_file_that_is_cut_while_it_is_read(client, data, monkeypatch):
    path = data / "shorter"
    write(path, 8)
    opened = ours._open_handle

    def cutting(*arguments):
        handle = opened(*arguments)
        if cut.is_set():
            os.truncate(path, 1_000_000)
        return handle

    cut = threading.Event()
    monkeypatch.setattr(ours, "_open_handle", cutting)
    loader = piped(client)
    loader.add_filenames({0: [url("shorter")]})
    cut.set()
    with pytest.raises(ValueError, match="shorter"):
        loader.copy_files_to_device()


def test_files_that_are_not_there(client, data, files):
    with pytest.raises(FileNotFoundError):
        piped(client).add_filenames({0: [url("missing")]})
    loader = piped(client)
    write(data / "gone", 7)
    loader.add_filenames({0: [url("gone")]})
    (data / "gone").unlink()
    with pytest.raises(FileNotFoundError):
        loader.copy_files_to_device()
    pipeline = PipedParallelLoader(
        None, [url("gone")], client=client, framework="paddle", use_tqdm_on_load=False
    )
    with pytest.raises(Exception, match="gone|No such|not found"):
        list(pipeline.iterate_weights())
    pipeline.close()


def test_headers_that_lie_are_refused(client, data):
    write(data / "true", 6, 1000)
    good = (data / "true").read_bytes()
    generator = random.Random(4)
    refused = 0
    for number in range(40):
        bad = bytearray(good)
        for _ in range(generator.randint(1, 3)):
            bad[generator.randrange(300)] = generator.randrange(256)
        name = f"lie-{number}"
        (data / name).write_bytes(bad[: generator.randint(len(bad) // 2, len(bad))])
        try:
            loader = piped(client)
            loader.add_filenames({0: [url(name)]})
            loader.copy_files_to_device().close()
        except Exception as error:
            refused += 1
            assert not isinstance(error, (MemoryError, SystemError))
    assert refused > 20
    deep = {"x": {"dtype": "U8", "shape": [1] * 1000, "data_offsets": [0, 1]}}
    text = json.dumps(deep).encode()
    (data / "deep").write_bytes(len(text).to_bytes(8, "little") + text + b"1")
    with pytest.raises(ValueError, match="dimensions"):
        piped(client).add_filenames({0: [url("deep")]})


def test_closing_early_ends_what_is_under_way(client, data, files):
    framework = piped(client).framework
    construct = ours.new_piped_copier(piped(client).device, client)
    metadata = ours.metadata_of(client, url(files[0]), framework)
    first = construct(metadata, None, framework)
    second = construct(metadata, None, framework)
    first.submit_io(False, 1)
    second.submit_io(False, 1)
    for copier in (second, first):
        copier.finish_io()
        assert copier.reading is None
        copier.finish_io()
    assert lenders() == []


def test_memory_is_that_of_the_last_tensor(client, files, monkeypatch):
    blocks = noted_blocks(monkeypatch)
    loader = piped(client)
    loader.add_filenames({0: [url(files[0])]})
    buffers = loader.copy_files_to_device()
    tensor = buffers.get_tensor("0.large.1")
    before = tensor.numpy().copy()
    memory = weakref.ref(blocks.pop().span)
    buffers.close()
    loader.close()
    gc.collect()
    assert memory() is not None
    assert numpy.array_equal(tensor.numpy(), before)
    del tensor, buffers, loader
    gc.collect()
    assert memory() is None


def test_other_devices_are_refused(client):
    class Elsewhere:
        type = "cuda"

        def as_str(self) -> str:
            return "cuda:0"

    with pytest.raises(ValueError, match="not to cuda:0"):
        ours.new_piped_copier(Elsewhere(), client)
