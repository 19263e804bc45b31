"""The examples, run as programs against two nodes: what they do, and how they fail."""

from __future__ import annotations

import hashlib
import http.client
import os
import pathlib
import re
import signal
import socket
import subprocess
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import piped_io
import pytest
from piped_io._nodes import Pair
from programs import Programs, load

NAMES = ["parallel_reader", "asyncio_server", "shared_cache", "checkpoint"]
MIB = 1 << 20


@pytest.fixture
def programs() -> Iterator[Programs]:
    programs = Programs()
    try:
        yield programs
    finally:
        programs.end()


# What all have in common.


@pytest.mark.parametrize("name", NAMES)
def test_wrong_arguments_and_a_daemon_that_is_missing_are_told(programs, name):
    role, path = (["serve"], "") if name == "shared_cache" else ([], "/path")
    assert "usage:" in programs.run(None, name, *role, "piped://b/data", "--what", code=2)[1]
    _, err = programs.run(None, name, *role, "http://beta/data", code=1)
    assert f"{name}: " in err and "piped://peer/export/path" in err
    _, err = programs.run(None, name, *role, f"piped://localhost/data{path}", code=1)
    assert f"{name}: " in err and "is the daemon running" in err
    assert "piped://" in programs.run(None, name, "--help")[0]


# parallel_reader.py


def test_a_file_is_read_by_threads_and_digested_in_order(programs, pair, data):
    content = os.urandom(9 * MIB + 123)
    (data / "large").write_bytes(content)
    (data / "empty").touch()
    wanted = {
        "sha256": hashlib.sha256(content).hexdigest(),
        "blake2b": hashlib.blake2b(content).hexdigest(),
        "crc32": f"{zlib.crc32(content):08x}",
    }
    url = "piped://beta/data/large"
    for digest, value in wanted.items():
        options = ["--digest", digest, "--piece", "1", "--threads", "3"]
        out, err = programs.run(pair.alpha, "parallel_reader", url, *options)
        assert out == f"{value}  {url}\n" and "MB/s" in err
    out, _ = programs.run(pair.alpha, "parallel_reader", "piped://beta/data/empty")
    assert out.startswith(hashlib.sha256().hexdigest())
    out, _ = programs.run(pair.alpha, "parallel_reader", url, "--explain")
    assert "explain: " in out and "transfer " in out and "plan" in out


def test_a_file_that_cannot_be_read_is_named(programs, pair, data):
    for url, why in {
        "piped://beta/data/none": "no such file",
        "piped://beta/none/none": "export",
        "piped://gamma/data/none": "gamma",
        "piped://beta/data/": "the path is empty",
    }.items():
        _, err = programs.run(pair.alpha, "parallel_reader", url, code=1)
        assert url in err and why in err, err
    _, err = programs.run(pair.alpha, "parallel_reader", "piped://a/b/c", "--threads", "0", code=2)
    assert "above zero" in err


def test_a_file_that_becomes_shorter_is_no_whole_file(client, data):
    reader = load("parallel_reader")
    (data / "cut").write_bytes(bytes(3 * MIB))
    with client.open_export("beta", "data", "cut") as file:
        os.truncate(data / "cut", 2 * MIB)
        queue = client.queue()
        readers = [reader.Reader(client.allocate(MIB), queue, 30) for _ in range(2)]
        with pytest.raises(EOFError, match="shorter"):
            reader.digest_file(file, readers, hashlib.sha256())
    assert all(it.buffer.is_here for it in readers)


def test_ctrl_c_cancels_reads_of_a_node_that_does_not_answer(programs, pair, data):
    (data / "stopped").write_bytes(bytes(8 * MIB))
    assert pair.beta.process is not None
    change = f"""
read = example.Reader.read
def stopped(*arguments):
    os.kill({pair.beta.process.pid}, signal.SIGSTOP)
    os.kill(os.getpid(), signal.SIGINT)
    return read(*arguments)
example.Reader.read = stopped
"""
    options = ["piped://beta/data/stopped", "--piece", "1", "--timeout", "600"]
    try:
        _, err = programs.run(pair.alpha, "parallel_reader", *options, change=change, code=130)
        assert "interrupted" in err
    finally:
        pair.beta.process.send_signal(signal.SIGCONT)


# asyncio_server.py


def serve(programs, node, *options, url="piped://beta/data/web") -> tuple[str, int]:
    """Starts the server; its address."""
    program = programs.start(node, "asyncio_server", url, "--port", "0", *options)
    assert program.stdout is not None
    line = program.stdout.readline()
    address = re.fullmatch(r"serving http://(.*):([0-9]+)/\n", line)
    assert address, (line, program.communicate(timeout=10))
    return address[1], int(address[2])


def ask(address, method, path, connection=None, **fields):
    """Status, fields and body that are answered."""
    ours = connection or http.client.HTTPConnection(*address, timeout=60)
    ours.request(method, path, headers=fields)
    answer = ours.getresponse()
    body = answer.read()
    if connection is None:
        ours.close()
    return answer.status, answer.headers, body


def exchange(address, data: bytes) -> bytes:
    """All that is answered to bytes, until the server closes the connection."""
    with socket.create_connection(address, 60) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        with connection.makefile("rb") as answers:
            return answers.read()


@pytest.fixture
def web(data: pathlib.Path) -> bytes:
    """What the file `big file.txt` has, below the directory that is served."""
    content = os.urandom(MIB) * 3 + b"the end"
    (data / "web" / "deep").mkdir(parents=True, exist_ok=True)
    (data / "web" / "big file.txt").write_bytes(content)
    (data / "web" / "empty").touch()
    (data / "secret").write_bytes(b"secret")
    return content


def test_ranges_are_served(programs, pair, web):
    address, length = serve(programs, pair.alpha), len(web)
    kept = http.client.HTTPConnection(*address, timeout=60)
    status, fields, body = ask(address, "GET", "/big%20file.txt?x=1", kept)
    assert (status, body) == (200, web) and fields["Content-Type"] == "text/plain"
    for text, start, end in (
        ("bytes=0-0", 0, 1),
        (f"bytes=100-{length // 2}", 100, length // 2 + 1),
        (f"bytes={length - 7}-", length - 7, length),
        (f"bytes=5-{length * 9}", 5, length),
        ("bytes=-7", length - 7, length),
    ):
        status, fields, body = ask(address, "GET", "/big%20file.txt", kept, Range=text)
        assert (status, body) == (206, web[start:end]), text
        assert fields["Content-Range"] == f"bytes {start}-{end - 1}/{length}"
    for text in ("bytes=1-2,4-5", "bytes=9-1", "lines=1-2", "bytes=-", "bytes=x-2"):
        assert ask(address, "GET", "/big%20file.txt", kept, Range=text)[::2] == (200, web), text
    # Nobody can have said which version the client has.
    changed = {"Range": "bytes=0-0", "If-Range": '"x"'}
    assert ask(address, "GET", "/big%20file.txt", kept, **changed)[0] == 200
    for text in (f"bytes={length}-", "bytes=-0", "bytes=99999999999999999-"):
        status, fields, _ = ask(address, "GET", "/big%20file.txt", kept, Range=text)
        assert status == 416 and fields["Content-Range"] == f"bytes */{length}"
    status, fields, body = ask(address, "HEAD", "/big%20file.txt", kept)
    assert (status, body, fields["Content-Length"]) == (200, b"", str(length))
    assert ask(address, "GET", "/empty", kept)[::2] == (200, b"")
    assert ask(address, "GET", "/empty", kept, Range="bytes=0-")[0] == 416
    for path in ("/none", "/deep", "/", "/big%20file.txt/x"):
        assert ask(address, "GET", path, kept)[0] == 404, path
        assert ask(address, "HEAD", path, kept)[::2] == (404, b""), path
    kept.close()


def test_requests_that_follow_each_other_are_answered_in_turn(programs, pair, web):
    address = serve(programs, pair.alpha)
    head = b"GET /empty HTTP/1.1\r\nHost: x\r\n"
    two = head + b"\r\n" + head + b"Connection: close\r\n\r\n" + head + b"\r\n"
    assert exchange(address, two).count(b"HTTP/1.1 200 OK") == 2
    old = exchange(address, b"GET /empty HTTP/1.0\r\n\r\n" + head + b"\r\n")
    assert old.count(b"200 OK") == 1 and b"Connection: close" in old


FINE = b"GET /empty HTTP/1.1\r\nHost: x\r\n"


@pytest.mark.parametrize("flight", [False, True], ids=["alone", "behind-another"])
def test_hostile_input_is_refused(programs, pair, web, flight):
    address = serve(programs, pair.alpha)
    # After a refusal nothing of what follows is taken for a request.
    before, count = (FINE + b"\r\n", 1) if flight else (b"", 0)
    for data, status in (
        (b"GET /../secret HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /deep/../../secret HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /%2e%2e/secret HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /deep%2f..%2F..%2fsecret HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /empty%00 HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET empty HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET  /empty HTTP/1.1\r\nHost: x\r\n\r\n", 400),
        (b"GET /empty\r\n\r\n", 400),
        (b"\r\n\r\n", 400),
        (b"\0\xff\x16\x03\x01\r\n\r\n", 400),
        (b"GET /empty HTTP/1.1\r\n\r\n", 400),
        (FINE + b"Host: y\r\n\r\n", 400),
        (FINE + b"Field : x\r\n\r\n", 400),
        (FINE + b"Field: x\r\n folded\r\n\r\n", 400),
        (FINE + b"Field: x\nOther: y\r\n\r\n", 400),
        (FINE + b": x\r\n\r\n", 400),
        (FINE + b"Content-Length: 30\r\n\r\n" + FINE + b"\r\n", 400),
        (FINE + b"Content-Length: 0\r\nContent-Length: 0\r\n\r\n", 400),
        (FINE + b"Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400),
        (b"POST /empty HTTP/1.1\r\nHost: x\r\n\r\n", 405),
        (b"GET /empty HTTP/2.0\r\nHost: x\r\n\r\n", 505),
        (FINE + b"Field: " + b"x" * (17 << 10) + b"\r\n\r\n", 431),
        (FINE + b"a: b\r\n" * 4096 + b"\r\n", 431),
        (b"x" * MIB, 431),
    ):
        answer = exchange(address, before + data + FINE + b"\r\n")
        assert answer.count(b"200 OK") == count, data[:80]
        assert answer.count(b"HTTP/1.1 ") == count + 1, data[:80]
        assert f"HTTP/1.1 {status} ".encode() in answer and b"secret\n" not in answer, data[:80]
    # What never becomes a request is not answered.
    assert exchange(address, before + b"GET /empty HT").count(b"HTTP/1.1") == count
    assert ask(address, "GET", "/empty")[0] == 200


def test_a_client_that_goes_away_or_stops_gives_its_buffer_back(programs, pair, web, data):
    (data / "web" / "long").write_bytes(web * 8)
    address = serve(programs, pair.alpha, "--buffers", "1", "--patience", "2")
    for _ in range(3):
        with socket.create_connection(address, 60) as connection:
            connection.sendall(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.recv(15) == b"HTTP/1.1 200 OK"
        assert ask(address, "GET", "/big%20file.txt")[::2] == (200, web)
    with socket.create_connection(address, 60) as connection:
        # It takes no more bytes, and has not gone away.
        connection.sendall(b"GET /long HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(15) == b"HTTP/1.1 200 OK"
        assert ask(address, "GET", "/big%20file.txt")[::2] == (200, web)


def test_a_client_that_says_nothing_is_told_so(programs, pair, web):
    address = serve(programs, pair.alpha, "--patience", "1")
    with socket.create_connection(address, 60) as connection:
        connection.sendall(FINE)
        with connection.makefile("rb") as answers:
            assert answers.read().startswith(b"HTTP/1.1 408 ")


def test_many_clients_get_their_own_bytes(programs, pair, web):
    address = serve(programs, pair.alpha, "--buffers", "3")

    def get(number: int) -> bool:
        start, end = number * 20_011, len(web) - number * 10_007
        status, _, body = ask(address, "GET", "/big%20file.txt", Range=f"bytes={start}-{end - 1}")
        return status == 206 and body == web[start:end]

    with ThreadPoolExecutor(32) as threads:
        assert all(threads.map(get, range(64)))


def test_one_connection_too_many_is_sent_away(programs, pair, web):
    address = serve(programs, pair.alpha, "--connections", "1")
    kept = http.client.HTTPConnection(*address, timeout=60)
    assert ask(address, "GET", "/empty", kept)[0] == 200
    assert ask(address, "GET", "/empty")[0] == 503
    assert ask(address, "GET", "/empty", kept)[0] == 200
    kept.close()


def test_ctrl_c_ends_the_server_and_its_connections(programs, pair, web):
    address = serve(programs, pair.alpha)
    kept = http.client.HTTPConnection(*address, timeout=60)
    assert ask(address, "GET", "/empty", kept)[0] == 200
    programs.interrupt(programs.all[-1])
    kept.close()


def test_what_cannot_be_served_is_told_at_the_start(programs, pair, web):
    for url in ("piped://beta/none", "piped://gamma/data", "piped://beta/data/none"):
        programs.run(pair.alpha, "asyncio_server", url, "--port", "0", code=1)
    url = "piped://beta/data/web"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        _, err = programs.run(pair.alpha, "asyncio_server", url, "--port", port, code=1)
        assert "in use" in err
    programs.run(pair.alpha, "asyncio_server", url, "--port", "70000", code=1)


def test_programs_outlive_a_daemon_or_say_that_it_is_gone(programs, tmp_path):
    with Pair(tmp_path) as pair:
        (pair.beta.data / "one").write_bytes(b"one")
        address = serve(programs, pair.alpha, url="piped://beta/data")
        cache = programs.start(pair.alpha, "shared_cache", "serve", "piped://localhost/cache")
        assert "serving" in cache.stderr.readline()
        assert ask(address, "GET", "/one")[::2] == (200, b"one")
        pair.alpha.stop(kill=True)
        assert "the daemon is gone" in cache.communicate("", 60)[1] and cache.returncode == 1
        pair.alpha.start()
        answer = 503
        while answer == 503:
            # The new daemon has to find its peer.
            answer, _, body = ask(address, "GET", "/one")
        assert (answer, body) == (200, b"one")


# shared_cache.py


class Process(NamedTuple):
    """A process with a cache."""

    program: subprocess.Popen[str]

    def say(self, line: str) -> str:
        """What it answers to a command."""
        self.program.stdin.write(line + "\n")
        self.program.stdin.flush()
        return self.program.stdout.readline().rstrip("\n")


@pytest.fixture
def cache(programs, pair, request) -> tuple[Process, str]:
    """A process of node beta that has a cache, and the address by which alpha knows it."""
    name = f"cache-{abs(hash(request.node.name))}"
    options = ["--slots", "2", "--patience", "0"]
    url = f"piped://localhost/{name}"
    program = programs.start(pair.beta, "shared_cache", "serve", url, *options)
    assert "serving" in program.stderr.readline()
    return Process(program), f"piped://beta/{name}"


def test_both_nodes_see_each_others_values(programs, pair, cache):
    here, url = cache
    there = Process(programs.start(pair.alpha, "shared_cache", "join", url))
    assert here.say("get a") == there.say("get a") == "no value"
    assert there.say("put a 1 and 2") == "done" and here.say("get a") == "value 1 and 2"
    assert here.say("put a 3") == "done" and there.say("get a") == "value 3"
    # Two slots: of three keys one at least takes the place of another, and none has its value.
    for key in "bcd":
        assert there.say(f"put {key} of-{key}") == "done"
        assert here.say(f"get {key}") == f"value of-{key}"
    assert {here.say(f"get {key}") for key in "abcd"} <= {
        "no value", "value 3", "value of-b", "value of-c", "value of-d"
    }
    for wrong in ("", "get", "put a", "drop a", "get a b"):
        assert there.say(wrong).startswith("error: a line is")
    assert "4000 bytes" in there.say("put a " + "x" * 4000)
    assert there.say("put a " + "x" * 3999) == "done" and here.say("get a") == "value " + "x" * 3999
    programs.interrupt(there.program)
    programs.interrupt(here.program)
    _, err = programs.run(pair.alpha, "shared_cache", "join", url, code=1)
    assert "shared_cache: " in err


def test_values_are_whole_while_both_write(programs, pair, cache):
    here, url = cache
    values = {letter * 3000 for letter in "hx"}
    there = programs.start(pair.alpha, "shared_cache", "join", url)
    with ThreadPoolExecutor(2) as threads:
        lines = "".join(f"put k {'x' * 3000}\nget k\n" for _ in range(100))
        others = threads.submit(there.communicate, lines, 60)
        ours = [here.say(line) for _ in range(100) for line in (f"put k {'h' * 3000}", "get k")]
    answers = ours + others.result()[0].splitlines()
    assert len(answers) == 400
    assert set(answers) <= {"done", *(f"value {value}" for value in values)}


@pytest.mark.parametrize(
    "change",
    [
        "example.Cache._write = lambda *_: die()",
        """
def torn(self, at, serial, key, value):
    self._new.write_from(b"x" * 100)
    self._queue.write(self._region, at + 8 + serial % 2 * self._cell, self._new, length=100)
    die()
example.Cache._write = torn
""",
        """
write = example.Cache._write
def whole(*arguments):
    write(*arguments)
    die()
example.Cache._write = whole
""",
    ],
    ids=["before-the-value", "in-the-value", "behind-the-value"],
)
def test_a_writer_that_is_killed_leaves_the_old_value(programs, pair, cache, change):
    here, url = cache
    die = "def die(): os.kill(os.getpid(), signal.SIGKILL)\nimport builtins; builtins.die = die\n"
    for old in ("", "first", "second"):
        if old:
            assert here.say(f"put k {old}") == "done"
        killed = programs.start(pair.alpha, "shared_cache", "join", url, change=die + change)
        assert killed.communicate("put k torn\n", 60)[0] == ""
        assert killed.returncode == -signal.SIGKILL
        assert here.say("get k") == (f"value {old}" if old else "no value")


def test_a_writer_that_was_only_slow_writes_again(client, pair, cache):
    here, url = cache
    module, (peer, name, _) = load("shared_cache"), piped_io.parse_url(cache[1])
    slow = module.Cache(client, client.open_region(peer, name, "rwa"))
    write, calls = slow._write, []

    def late(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            # Without patience: its token is replaced at once.
            assert here.say("put k fast") == "done"
        write(*arguments)

    slow._write = late
    slow.put(b"k", b"slow")
    assert len(calls) == 2 and here.say("get k") == "value slow"


def test_memory_that_is_no_cache_is_refused_and_bad_bytes_are_no_value(client, programs, pair):
    module, there = load("shared_cache"), piped_io.Client(pair.beta.socket)
    size = module.region_bytes(1, 100)
    region = there.export_region("strange", there.allocate(size), "rwa")
    region.write(0, bytes(size))
    for head in (b"", module.HEAD.pack(module.MAGIC, 2, 100), module.HEAD.pack(b"other", 1, 100)):
        region.write(0, head)
        _, err = programs.run(pair.alpha, "shared_cache", "join", "piped://beta/strange", code=1)
        assert "is no cache" in err
    head = module.HEAD.pack(module.MAGIC, 0, 100)
    empty = there.export_region("empty", there.allocate(len(head)), "rwa")
    empty.write(0, head)
    _, err = programs.run(
        pair.alpha, "shared_cache", "join", "piped://beta/empty", stdin="get k\n", code=1
    )
    assert "is no cache" in err
    empty.close()
    region.write(0, module.HEAD.pack(module.MAGIC, 1, 100))
    cache = module.Cache(client, client.open_region("beta", "strange", "rwa"))
    module.TRIES_MAX = 3
    cache.put(b"k", b"v")
    assert cache.get(b"k") == b"v"
    # The first value has the serial number 1, and so is in the second cell.
    start = module.HEAD.size + 8 + module.cell_bytes(100)
    cell = region.read(start, module.cell_bytes(100))
    for at in range(module.CELL.size + 2):
        region.write(start + at, bytes([cell[at] ^ 0x80]))
        assert cache.get(b"k") is None, at
        region.write(start + at, cell[at : at + 1])
    assert cache.get(b"k") == b"v"
    region.close()


def test_who_may_join_and_where_a_cache_is_are_checked(programs, pair):
    _, err = programs.run(pair.beta, "shared_cache", "serve", "piped://alpha/cache", code=1)
    assert "piped://localhost/NAME" in err
    _, err = programs.run(pair.alpha, "shared_cache", "join", "piped://beta/none", code=1)
    assert "none" in err
    _, err = programs.run(pair.alpha, "shared_cache", "join", "piped://beta/a/b", code=1)
    assert "join piped://PEER/NAME" in err
    options = ["piped://localhost/mine", "--allow", "gamma"]
    program = programs.start(pair.beta, "shared_cache", "serve", *options)
    assert "serving" in program.stderr.readline()
    programs.run(pair.alpha, "shared_cache", "join", "piped://beta/mine", code=1)


# checkpoint.py

RUN = ["--steps", "50", "--every", "10", "--size", "1000"]


def train(programs, pair, name, *more, **options) -> tuple[str, str]:
    return programs.run(
        pair.alpha, "checkpoint", f"piped://beta/data/{name}", *RUN, *more, **options
    )


def saved(data: pathlib.Path, name: str) -> list[str]:
    return sorted(it.name for it in (data / name).iterdir() if it.name != "lock")


def at(*steps: int) -> list[str]:
    return [f"step-{step:012}.safetensors" for step in steps]


def test_a_run_that_was_killed_goes_on_as_if_it_was_not(programs, pair, data):
    whole, _ = train(programs, pair, "whole")
    assert whole.startswith("begins after step 0\nsaved step 10\n")
    assert saved(data, "whole") == at(30, 40, 50)
    # The second checkpoint is written, and has not got its name.
    change = """
import piped_io
rename, calls = piped_io.Calls.rename, []
def killed(*arguments):
    calls.append(arguments)
    if len(calls) == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return rename(*arguments)
piped_io.Calls.rename = killed
"""
    out, _ = train(programs, pair, "killed", change=change, code=-signal.SIGKILL)
    assert out.splitlines()[1:] == ["saved step 10"]
    left = saved(data, "killed")
    assert at(10)[0] in left and at(20)[0] not in left and len(left) == 2, left
    again, _ = train(programs, pair, "killed")
    assert again.startswith("begins after step 10\nsaved step 20\n")
    assert again.splitlines()[-1] == whole.splitlines()[-1]
    assert saved(data, "killed") == at(30, 40, 50)
    # Nothing is left to do.
    assert train(programs, pair, "killed")[0].splitlines() == [
        "begins after step 50", whole.splitlines()[-1]
    ]


def test_ctrl_c_leaves_the_checkpoint_before(programs, pair, data):
    change = """
save = example.save_file
def interrupted(arrays, url, **options):
    if "20." in url:
        os.kill(os.getpid(), signal.SIGINT)
    save(arrays, url, **options)
example.save_file = interrupted
"""
    _, err = train(programs, pair, "interrupted", change=change, code=130)
    assert "run it again" in err and saved(data, "interrupted") == at(10)


def test_a_checkpoint_that_is_not_whole_is_left_out(programs, pair, data):
    train(programs, pair, "bad", "--keep", "4")
    assert saved(data, "bad") == at(20, 30, 40, 50)
    whole = (data / "bad" / at(50)[0]).read_bytes()
    (data / "bad" / at(50)[0]).write_bytes(whole[:-1])
    flipped = bytearray(whole)
    flipped[-100] ^= 1
    (data / "bad" / at(40)[0]).write_bytes(flipped)
    out, err = train(programs, pair, "bad", "--keep", "1", "--steps", "35")
    assert out.startswith("begins after step 30\nsaved step 35\n")
    assert "step 50 is left out" in err and "step 40 is left out" in err
    # Those that are not whole did not take the place of the one that is.
    assert saved(data, "bad") == at(35, 40, 50)
    out, _ = train(programs, pair, "bad", "--keep", "1")
    assert out.startswith("begins after step 35\n") and saved(data, "bad") == at(50)


def test_a_directory_is_for_one_run_and_one_model(programs, pair, client, data):
    train(programs, pair, "taken")
    _, err = train(programs, pair, "taken", "--size", "7", code=1)
    assert "another model" in err
    lock = piped_io.Calls(client, client.open_export("beta", "data", "taken/lock", "rw"))
    lock.lock(0, 0)
    _, err = train(programs, pair, "taken", "--patience", "0", code=1)
    assert "another run" in err
    lock.handle.close()
    train(programs, pair, "taken")
    (data / "file").touch()
    wrong = {"none/run": "none", "data/": "a directory below", "data/file": "data/file"}
    for url, why in wrong.items():
        _, err = programs.run(pair.alpha, "checkpoint", f"piped://beta/{url}", code=1)
        assert why in err, err
