"""The examples of docs/python.md, run as they are printed."""

from __future__ import annotations

import pathlib
import re

import pytest

PAGE = pathlib.Path(__file__).parent.parent.parent / "docs" / "python.md"


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


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
    assert len(examples()) == 4
    for example in examples():
        example = example.replace("/tmp/set", str(tmp_path / "set"))
        exec(compile(example, str(PAGE), "exec"), {"__name__": "example"})
    assert (tmp_path / "set" / "one").read_text() == "1"
    assert (data / "checkpoint.safetensors").exists()
