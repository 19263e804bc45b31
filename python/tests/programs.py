"""Runs the examples as programs, for their tests."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import signal
import subprocess
import sys
from types import ModuleType

import pytest

EXAMPLES = pathlib.Path(__file__).parent.parent / "examples"

#: Runs an example after a change of what it does; the change is Python in argv[1].
CHANGED = """
import os, pathlib, signal, sys
change, file = sys.argv[1:3]
sys.path.insert(0, os.path.dirname(file))
name = pathlib.Path(file).stem
example = __import__(name)
sys.argv[:] = [file, *sys.argv[3:]]
exec(change)
sys.exit(example.main())
"""


def load(name: str) -> ModuleType:
    """An example as a module, to do its steps one by one."""
    spec = importlib.util.spec_from_file_location(name, EXAMPLES / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Programs:
    """Starts examples by the daemon of a node, and ends all that are left."""

    def __init__(self) -> None:
        self.all: list[subprocess.Popen[str]] = []

    def start(self, node, name, *arguments, change=None) -> subprocess.Popen[str]:
        if name == "checkpoint":
            pytest.importorskip("numpy")
        path = os.pathsep.join([os.environ.get("PIPED_BIN", ""), os.environ["PATH"]])
        where = node.directory if node else pathlib.Path("/nowhere")
        sockets = {f"PIPED_{it.upper()}_SOCKET": f"{where}/{it}.sock" for it in ("admin", "client")}
        changed = ["-c", CHANGED, change] if change else []
        program = subprocess.Popen(
            [sys.executable, "-W", "error", *changed, str(EXAMPLES / f"{name}.py"), *arguments],
            **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE),
            text=True,
            env={**os.environ, "PATH": path, **sockets},
        )
        self.all.append(program)
        return program

    def run(self, node, name, *arguments, change=None, stdin="", code=0) -> tuple[str, str]:
        """What an example wrote to its outputs, after an end with a code and without traceback."""
        program = self.start(node, name, *arguments, change=change)
        out, err = program.communicate(stdin, 60)
        assert program.returncode == code, (out, err)
        assert "Traceback" not in err and "Warning" not in err, err
        return out, err

    def interrupt(self, program) -> None:
        """Ends an example by Ctrl-C."""
        program.send_signal(signal.SIGINT)
        # Not before its end: an input that is closed would end some of them as well.
        program.wait(60)
        _, err = program.communicate()
        assert program.returncode == 130 and "interrupted" in err and "Traceback" not in err, err

    def end(self) -> None:
        for program in self.all:
            if program.poll() is None:
                program.kill()
            program.communicate()
