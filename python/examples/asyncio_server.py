"""Serve byte ranges of files of another node over HTTP, by tasks of asyncio.

    python asyncio_server.py piped://beta/data --port 8080

GET and HEAD of HTTP/1.1, with Range, for all who can reach the address: the server asks nobody who
they are. Memory is bounded: `--buffers` pieces of 256 KiB for all connections together.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import mimetypes
import re
import sys
from collections.abc import AsyncIterator
from email.utils import formatdate
from http import HTTPStatus
from typing import NamedTuple
from urllib.parse import unquote_to_bytes

import piped_io
from piped_io import aio

#: Bytes of one read from the node.
PIECE = 256 << 10

#: Bytes of a request's line and fields together.
HEAD_BYTES_MAX = 16 << 10

TARGET = re.compile(rb"(?:http://[^/?#]*)?(/[^?#]*)(?:\?.*)?")
FIELD = re.compile(rb"([!#$%&'*+.^_`|~0-9A-Za-z-]+):([\x20-\x7e\x80-\xff\t]*)")
RANGE = re.compile(rb"bytes=(?:([0-9]{1,18})-([0-9]{0,18})|-([0-9]{1,18}))", re.IGNORECASE)


class Refusal(Exception):
    """A status that is answered in place of a file, with fields of its own."""

    def __init__(self, status: HTTPStatus, *fields: str) -> None:
        super().__init__(status.phrase)
        self.status, self.fields = status, fields


class Asked(NamedTuple):
    """A request: its method, path, range, and whether others follow on the connection."""

    method: str
    path: str
    range: re.Match[bytes] | None
    keep_alive: bool


def parse(head: bytes) -> Asked:
    """Reads a request's line and fields; refuses what could be read in two ways."""
    bad = Refusal(HTTPStatus.BAD_REQUEST)
    line, *rows = head.removesuffix(b"\r\n\r\n").split(b"\r\n")
    fields: dict[bytes, list[bytes]] = {}
    for row in rows:
        field = FIELD.fullmatch(row)
        if field is None:
            raise bad
        fields.setdefault(field[1].lower(), []).append(field[2].strip(b" \t"))
    parts = line.split(b" ")
    if len(parts) != 3 or not re.fullmatch(rb"HTTP/[0-9]\.[0-9]", parts[2]):
        raise bad
    if not parts[2].startswith(b"HTTP/1."):
        raise Refusal(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
    if b"transfer-encoding" in fields or fields.get(b"content-length", [b"0"]) != [b"0"]:
        # Bytes of a body would be taken for the next request.
        raise bad
    is_new = parts[2] != b"HTTP/1.0"
    if len(fields.get(b"host", [])) != 1 and is_new:
        raise bad
    if parts[0] not in (b"GET", b"HEAD"):
        raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "Allow: GET, HEAD")
    target = TARGET.fullmatch(parts[1])
    path = unquote_to_bytes(target[1])[1:] if target else b""
    if not target or b"\0" in path or {b".", b".."} & set(path.split(b"/")):
        raise bad
    ranges = fields.get(b"range", [])
    # There are no validators here, so none is the one that the client has.
    whole = len(ranges) != 1 or b"if-range" in fields or parts[0] == b"HEAD"
    asked = None if whole else RANGE.fullmatch(ranges[0])
    if asked and asked[2] and int(asked[2]) < int(asked[1]):
        asked = None
    words = b",".join(fields.get(b"connection", [])).lower().replace(b" ", b"").split(b",")
    return Asked(
        parts[0].decode(),
        path.decode(errors="surrogateescape"),
        asked,
        is_new and b"close" not in words,
    )


def bounds(asked: re.Match[bytes], length: int) -> tuple[int, int]:
    """Start and end of a range in a file of `length` bytes."""
    first, last, final = asked.groups()
    if final is not None:
        start, end = max(0, length - int(final)), length
    else:
        start, end = int(first), min(length, int(last) + 1 if last else length)
    if start >= end:
        there = f"Content-Range: bytes */{length}"
        raise Refusal(HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE, there)
    return start, end


class Server:
    """Answers connections from an export of a node."""

    def __init__(
        self, client: piped_io.Client, queue: aio.AsyncQueue, options: argparse.Namespace
    ) -> None:
        self._client, self._queue = client, queue
        self._peer, self._export, self._below = piped_io.parse_url(options.url)
        self._patience: float = options.patience
        self._connections_max: int = options.connections
        self._spares: list[piped_io.Buffer] = []
        self._room = asyncio.Semaphore(options.buffers)
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, host: str, port: int) -> None:
        """Listens until the task is cancelled."""
        server = await asyncio.start_server(self._connected, host, port, limit=HEAD_BYTES_MAX)
        try:
            for socket in server.sockets:
                at = socket.getsockname()
                print(f"serving http://{at[0]}:{at[1]}/", flush=True)
            await asyncio.get_running_loop().create_future()
        finally:
            server.close()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        # When `drain` returns, the transport has no view of a buffer any more.
        writer.transport.set_write_buffer_limits(0)
        try:
            while await self._answer(reader, writer):
                pass
            # A socket that is closed with bytes to read takes back what was sent last.
            writer.write_eof()
            async with asyncio.timeout(min(1, self._patience)):
                while await reader.read(HEAD_BYTES_MAX):
                    pass
        except (OSError, EOFError, BufferError):
            pass  # The client went away or was too slow, or the node failed in the middle.
        except asyncio.CancelledError:
            pass  # The server ends; streams of Python 3.11 report cancelled tasks as errors.
        finally:
            writer.transport.abort()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answers one request: whether the connection goes on."""
        head, goes_on = b"", False
        try:
            if len(self._tasks) > self._connections_max:
                raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "Retry-After: 1")
            try:
                async with asyncio.timeout(self._patience):
                    head = await reader.readuntil(b"\r\n\r\n")
            except TimeoutError:
                raise Refusal(HTTPStatus.REQUEST_TIMEOUT) from None
            except asyncio.LimitOverrunError:
                raise Refusal(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE) from None
            asked = parse(head)
            goes_on = asked.keep_alive
            await self._serve(asked, writer)
        except Refusal as refusal:
            body = f"{refusal.status.phrase}\n".encode()
            fields = [*refusal.fields, f"Content-Length: {len(body)}", "Content-Type: text/plain"]
            await self._send_head(writer, refusal.status, fields, goes_on)
            if not head.startswith(b"HEAD "):
                await self._send(writer, body)
        return goes_on

    async def _serve(self, asked: Asked, writer: asyncio.StreamWriter) -> None:
        try:
            file = await asyncio.to_thread(self._open, asked.path)
        except (FileNotFoundError, IsADirectoryError, NotADirectoryError):
            raise Refusal(HTTPStatus.NOT_FOUND) from None
        except PermissionError:
            raise Refusal(HTTPStatus.FORBIDDEN) from None
        except (OSError, ValueError) as error:
            raise self._failed(error) from None
        kind = mimetypes.guess_type(asked.path)[0] or "application/octet-stream"
        with file:
            fields = ["Accept-Ranges: bytes", f"Content-Type: {kind}"]
            start, end, status = 0, file.length, HTTPStatus.OK
            if asked.range:
                start, end = bounds(asked.range, file.length)
                status = HTTPStatus.PARTIAL_CONTENT
                fields.append(f"Content-Range: bytes {start}-{end - 1}/{file.length}")
            fields.append(f"Content-Length: {end - start}")
            if asked.method == "HEAD" or start == end:
                await self._send_head(writer, status, fields, asked.keep_alive)
                return
            async with self._buffer() as buffer:
                for at in range(start, end, PIECE):
                    wanted = min(PIECE, end - at)
                    try:
                        count = await self._queue.read(file, at, buffer, length=wanted)
                    except piped_io.PipedError as error:
                        if at > start:
                            raise
                        raise self._failed(error) from None
                    if at == start:
                        # The first bytes are there before the status promises them.
                        await self._send_head(writer, status, fields, asked.keep_alive)
                    if count < wanted:
                        raise EOFError("the file became shorter")
                    with memoryview(buffer) as view:
                        await self._send(writer, view[:wanted])

    def _open(self, path: str) -> piped_io.Handle:
        if not self._client.is_connected:
            self._client.reconnect()
        below = f"{self._below.rstrip('/')}/{path}".lstrip("/")
        return self._client.open_export(self._peer, self._export, below)

    @contextlib.asynccontextmanager
    async def _buffer(self) -> AsyncIterator[piped_io.Buffer]:
        """A buffer that no other connection has; waits for one."""
        async with self._room:
            buffer = self._spares.pop() if self._spares else await self._queue.allocate(PIECE)
            try:
                yield buffer
            finally:
                # A read that was cancelled keeps its buffer for a while: another takes its place.
                if buffer.is_here:
                    self._spares.append(buffer)

    async def _send_head(
        self,
        writer: asyncio.StreamWriter,
        status: HTTPStatus,
        fields: list[str],
        keep_alive: bool,
    ) -> None:
        lines = [f"HTTP/1.1 {status.value} {status.phrase}", f"Date: {formatdate(usegmt=True)}"]
        connection = "keep-alive" if keep_alive else "close"
        text = "\r\n".join([*lines, *fields, f"Connection: {connection}", "", ""])
        await self._send(writer, text.encode("latin-1"))

    async def _send(self, writer: asyncio.StreamWriter, data: bytes | memoryview) -> None:
        """Sends bytes; whoever does not take them in time is cut off."""
        try:
            async with asyncio.timeout(self._patience):
                writer.write(data)
                await writer.drain()
        except BaseException:
            writer.transport.abort()
            raise

    def _failed(self, error: Exception) -> Refusal:
        print(f"asyncio_server: {error}", file=sys.stderr)
        away = isinstance(error, (ConnectionError, TimeoutError))
        return Refusal(HTTPStatus.SERVICE_UNAVAILABLE if away else HTTPStatus.BAD_GATEWAY)


def positive(text: str) -> int:
    """A number above zero, for the command line."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not above zero")
    return number


def arguments() -> argparse.Namespace:
    """Reads the command line, and ends the program where it is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("url", help="what is served: piped://PEER/EXPORT, or a directory below it")
    parser.add_argument("--host", default="127.0.0.1", help="address; default: 127.0.0.1")
    parser.add_argument("--port", type=int, default=8080, help="default: 8080; 0: a free one")
    parser.add_argument("--buffers", type=positive, default=64, help="in memory; default: 64")
    parser.add_argument("--connections", type=positive, default=512, help="at once; default: 512")
    parser.add_argument(
        "--patience", type=positive, default=30, help="seconds for a head or a piece; default: 30"
    )
    parser.add_argument("--socket", help="socket of the daemon; default: PIPED_CLIENT_SOCKET")
    return parser.parse_args()


async def run(options: argparse.Namespace) -> None:
    """Serves until the task is cancelled."""
    peer, export, below = piped_io.parse_url(options.url)
    client = await asyncio.to_thread(piped_io.Client, options.socket, reconnect=5)
    # What is not there is told before anybody asks for it.
    (await asyncio.to_thread(client.open_directory, peer, export, below)).close()
    await Server(client, await aio.queue(client), options).run(options.host, options.port)


def main() -> int:
    """Runs the command line: 0, or 1 for an error, or 130 after Ctrl-C."""
    options = arguments()
    try:
        asyncio.run(run(options))
    except KeyboardInterrupt:
        print("asyncio_server: interrupted", file=sys.stderr)
        return 130
    except (OSError, ValueError, OverflowError) as error:
        print(f"asyncio_server: {options.url}: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
