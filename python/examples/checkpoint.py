"""Train a small model, save it to another node every few steps, and go on where a run ended.

    python checkpoint.py piped://beta/data/run --steps 1000 --every 100 --keep 3

A checkpoint is a safetensors file that appears whole and on stable storage, or not at all. A run
that was killed, by Ctrl-C or without warning, goes on from the newest checkpoint that is whole when
the same command is run again. The directory belongs to one run at a time; the export must allow
names. The model stands for one of yours: numpy arrays that change from step to step.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import sys
import time
from typing import Any

import piped_io
from piped_io.safetensors import load_file, save_file

try:
    import numpy
except ImportError:
    sys.exit("checkpoint: numpy is missing: pip install 'piped-io[numpy]'")

NAME = re.compile(r"step-([0-9]{12})\.safetensors")

#: Seconds between two attempts to have the directory for this run.
LOCK_PAUSE = 0.1

Arrays = dict[str, Any]


def digest(arrays: Arrays) -> str:
    """A digest of names, types, shapes and bytes of arrays."""
    whole = hashlib.blake2b(digest_size=16)
    for name in sorted(arrays):
        array = arrays[name]
        whole.update(f"{name} {array.dtype} {array.shape}\n".encode())
        whole.update(numpy.ascontiguousarray(array).tobytes())
    return whole.hexdigest()


class Checkpoints:
    """The checkpoints of one run in a directory of an export."""

    def __init__(self, options: argparse.Namespace) -> None:
        peer, export, path = piped_io.parse_url(options.url)
        if not path.strip("/"):
            raise ValueError("name a directory below the export, for this run alone")
        self._client = client = piped_io.Client(options.socket)
        self._keep: int = options.keep
        self._url = options.url.rstrip("/")
        self._path = path.strip("/")
        self._root = piped_io.Calls(client, client.open_directory(peer, export, "", "rwn"))
        self._root.makedirs(self._path)
        # The lock ends with the process, however that ends.
        lock = client.open_export(peer, export, self._below("lock"), "rw", create="open")
        self._lock = piped_io.Calls(client, lock)
        self._take_lock(options.patience)
        self._remove_leftovers()

    def _below(self, name: str) -> str:
        return f"{self._path}/{name}"

    def _take_lock(self, patience: float) -> None:
        """Waits for the lock: that of a run which was killed is given up a moment later."""
        until = time.monotonic() + patience
        while True:
            try:
                self._lock.lock(0, 0)
                return
            except BlockingIOError:
                if time.monotonic() > until:
                    raise RuntimeError(
                        "another run saves there: end it, or name another directory"
                    ) from None
            time.sleep(LOCK_PAUSE)

    def _remove_leftovers(self) -> None:
        """Removes files that runs which were killed had begun: nobody else has the lock."""
        for name in list(self._root.list(self._path)):
            if name.kind == "file" and name.name.startswith(".piped-"):
                self._root.remove(self._below(name.name))

    def steps(self) -> list[int]:
        """Steps with a checkpoint, the newest first."""
        names = [NAME.fullmatch(it.name) for it in self._root.list(self._path)]
        return sorted((int(name[1]) for name in names if name), reverse=True)

    def save(self, step: int, arrays: Arrays) -> None:
        """Saves the arrays of a step durably, and removes checkpoints that are too old."""
        with_digest = {**arrays, "digest": numpy.frombuffer(digest(arrays).encode(), "u1")}
        save_file(with_digest, self._at(step), client=self._client, durable=True)
        # A newer one that was not whole counts for nothing.
        before = [old for old in self.steps() if old < step]
        for old in before[self._keep - 1 :]:
            self._root.remove(self._below(f"step-{old:012}.safetensors"))

    def newest(self) -> tuple[int, Arrays] | None:
        """Step and arrays of the newest checkpoint that is whole."""
        for step in self.steps():
            try:
                arrays = load_file(self._at(step), client=self._client)
                said = arrays.pop("digest", numpy.empty(0, "u1")).tobytes()
                if said == digest(arrays).encode():
                    return step, arrays
                why = "its bytes are not those that were saved"
            except ValueError as error:
                why = str(error)
            print(f"step {step} is left out: {why}", file=sys.stderr)
        return None

    def _at(self, step: int) -> str:
        return f"{self._url}/step-{step:012}.safetensors"


def begin(size: int) -> Arrays:
    """The model before the first step."""
    return {"weights": numpy.zeros(size), "momentum": numpy.zeros(size)}


def train(arrays: Arrays, step: int) -> None:
    """One step of gradient descent with momentum, on data that the step's number gives."""
    size = arrays["weights"].size
    wanted = numpy.linspace(-1, 1, size)
    noise = numpy.random.default_rng(step).normal(0, 0.01, size)
    arrays["momentum"] = 0.9 * arrays["momentum"] + (wanted - arrays["weights"] + noise)
    arrays["weights"] = arrays["weights"] + 0.05 * arrays["momentum"]


def positive(text: str) -> int:
    """A number above zero, for the command line."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not above zero")
    return number


def arguments() -> argparse.Namespace:
    """Reads the command line, and ends the program where it is wrong."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("url", help="a directory: piped://PEER/EXPORT/PATH; localhost is this node")
    parser.add_argument("--steps", type=positive, default=1000, help="in all; default: 1000")
    parser.add_argument("--every", type=positive, default=100, help="steps to a save; default: 100")
    parser.add_argument("--keep", type=positive, default=3, help="checkpoints; default: 3")
    parser.add_argument("--size", type=positive, default=1 << 16, help="weights; default: 65536")
    parser.add_argument(
        "--patience", type=float, default=5, help="seconds for another run's end; default: 5"
    )
    parser.add_argument("--socket", help="socket of the daemon; default: PIPED_CLIENT_SOCKET")
    return parser.parse_args()


def run(options: argparse.Namespace) -> None:
    """Trains from the newest checkpoint on to the last step."""
    checkpoints = Checkpoints(options)
    done, arrays = checkpoints.newest() or (0, begin(options.size))
    if arrays.keys() != {"weights", "momentum"} or arrays["weights"].shape != (options.size,):
        raise RuntimeError(f"step {done} is of another model: name another directory or --size")
    print(f"begins after step {done}", flush=True)
    for step in range(done + 1, options.steps + 1):
        train(arrays, step)
        if step % options.every == 0 or step == options.steps:
            checkpoints.save(step, arrays)
            print(f"saved step {step}", flush=True)
    print(f"ends with {digest(arrays)}")


def main() -> int:
    """Runs the command line: 0, or 1 for an error, or 130 after Ctrl-C."""
    options = arguments()
    try:
        run(options)
    except KeyboardInterrupt:
        print("checkpoint: interrupted; run it again to go on", file=sys.stderr)
        return 130
    except (OSError, ValueError, RuntimeError) as error:
        print(f"checkpoint: {options.url}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
