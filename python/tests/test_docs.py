"""The examples of docs/python.md, run as they are printed."""

from __future__ import annotations

import importlib.util
import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).parent.parent.parent / "docs" / "python.md"


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


def has_fastsafetensors() -> bool:
    """Whether the package is there, and a framework that it can load for."""
    return all(importlib.util.find_spec(name) for name in ("fastsafetensors", "paddle"))


def test_the_programs_are_those_that_are_there():
    programs = PAGE.parent.parent / "python" / "examples"
    there = {path.name for path in programs.glob("*.py")}
    page = PAGE.read_text()
    assert set(re.findall(r"^python (\w+\.py) ", page, re.MULTILINE)) == there
    assert set(re.findall(r"\(\.\./python/examples/(\w+\.py)\)", page)) == there


def test_examples(pair, data, monkeypatch, tmp_path):
    for package in ("pandas", "fsspec", "numpy"):
        pytest.importorskip(package)
    import numpy
    from piped_io import files
    from piped_io.safetensors import save_file

    monkeypatch.setenv("PIPED_CLIENT_SOCKET", pair.alpha.socket)
    monkeypatch.setattr(files, "_default", None)
    (data / "blocks").write_bytes(bytes(range(256)) * (8 << 12))
    (data / "table.csv").write_text("a,b\n1,2\n")
    (data / "set").mkdir()
    (data / "set" / "one").write_text("1")
    save_file({"w": numpy.arange(10.0)}, "piped://beta/data/model.safetensors")
    assert len(examples()) == 5
    for example in examples():
        if "fastsafetensors" in example and not has_fastsafetensors():
            continue
        example = example.replace("/tmp/set", str(tmp_path / "set"))
        exec(compile(example, str(PAGE), "exec"), {"__name__": "example"})
    assert (tmp_path / "set" / "one").read_text() == "1"
    assert (data / "checkpoint.safetensors").exists()
