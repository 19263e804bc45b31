"""Two nodes on this machine, from the installed binaries: for the demo and for tests."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import time
from typing import Any

from ._native import Client
from .errors import PipedError

#: Seconds until a node must answer.
PATIENCE = 30.0


def program(name: str) -> str:
    """The path of one of piped's programs: below PIPED_BIN, or on the PATH."""
    where = os.environ.get("PIPED_BIN")
    found = shutil.which(name, path=where) if where else shutil.which(name)
    if found is None:
        raise FileNotFoundError(
            f"{name} is not {'in ' + where if where else 'on the PATH'}; install piped, or set"
            " PIPED_BIN to the directory of its programs"
        )
    return found


def _free_address() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class Node:
    """A daemon with a directory of its own, which it exports as `data`."""

    def __init__(self, directory: pathlib.Path, name: str, more: str) -> None:
        self.name = name
        self.directory = directory / name
        self.data = self.directory / "data"
        self.data.mkdir(parents=True)
        self.socket = str(self.directory / "client.sock")
        lines = [
            f"node.name = {json.dumps(name)}",
            f"client.socket = {json.dumps(self.socket)}",
            f"admin.socket = {json.dumps(str(self.directory / 'admin.sock'))}",
            'shards.pin = false',
            'limits.global.staging = "16MiB"',
            f"exports.data.path = {json.dumps(str(self.data))}",
            "exports.data.write = true",
            "exports.data.names = true",
            more,
        ]
        self.config = self.directory / "piped.toml"
        self.config.write_text("\n".join(lines) + "\n")
        self.log = self.directory / "log"
        self.process: subprocess.Popen[bytes] | None = None
        self._guard: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Starts the daemon and waits until it takes clients."""
        clean = {name: it for name, it in os.environ.items() if not name.startswith("PIPED_")}
        with open(self.log, "ab") as log:
            self.process = subprocess.Popen(
                [program("piped"), "--config", str(self.config)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=clean,
                start_new_session=True,
                # A write over RLIMIT_FSIZE is an error to the daemon, as to Python, and no end.
                restore_signals=False,
            )
        # Reads until this process is gone, whatever ended it, and ends the daemon then. A signal at
        # a parent's death comes already at the end of the thread that started the child.
        self._guard = subprocess.Popen(
            ["/bin/sh", "-c", 'read -r _; kill -9 "$0"', str(self.process.pid)],
            stdin=subprocess.PIPE,
            start_new_session=True,
        )
        until = time.monotonic() + PATIENCE
        while True:
            try:
                Client(self.socket)
                return
            except PipedError:
                if self.process.poll() is not None or time.monotonic() > until:
                    self.stop()
                    raise RuntimeError(f"node {self.name} did not start:\n{self.log.read_text()}")
            time.sleep(0.02)

    def stop(self, kill: bool = False) -> None:
        """Ends the daemon and waits for its end."""
        process, self.process = self.process, None
        if process is None:
            return
        (process.kill if kill else process.terminate)()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        # Only now: until then the number was the daemon's.
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.kill()
            guard.communicate()


class Pair(contextlib.AbstractContextManager["Pair"]):
    """Two nodes that know each other: `alpha` and `beta`."""

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        root = pathlib.Path(directory)
        here, there = _free_address(), _free_address()
        self.alpha = Node(
            root, "alpha", f'listen.address = "{here}"\npeers.beta.address = "{there}"'
        )
        self.beta = Node(
            root, "beta", f'listen.address = "{there}"\npeers.alpha.address = "{here}"'
        )

    def __enter__(self) -> Pair:
        try:
            self.alpha.start()
            self.beta.start()
            self._wait_for_peers()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _wait_for_peers(self) -> None:
        client, until = Client(self.alpha.socket), time.monotonic() + PATIENCE
        while True:
            try:
                client.open_directory("beta", "data", "", "r").close()
                return
            except PipedError:
                if time.monotonic() > until:
                    raise
            time.sleep(0.02)

    def __exit__(self, *_ignored: Any) -> None:
        self.alpha.stop()
        self.beta.stop()
