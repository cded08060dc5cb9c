"""The limits of a connection, on a real server with an application that misbehaves on purpose (FAULTS rows 11, 20)."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from ultrafast.gateway import json_input, protocol
from ultrafast.gateway.failures import HttpError
from ultrafast.gateway.json_input import read_body


@asynccontextmanager
async def serving(app: ASGIApp, *, system_buffer_bytes: int | None = None) -> AsyncIterator[int]:
    listener = socket.create_server(("127.0.0.1", 0))
    if system_buffer_bytes is not None:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, system_buffer_bytes)  # inherited
    config = uvicorn.Config(app, http=protocol.LimitedHttpProtocol, ws="none", lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    running = asyncio.create_task(server._serve([listener]))
    try:
        yield listener.getsockname()[1]
    finally:
        server.should_exit = True
        await running


async def test_row_20_a_reader_that_stalls_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "WRITE_SECONDS", 0.3)
    ended = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        with contextlib.suppress(asyncio.CancelledError):
            watch = asyncio.create_task(receive())
            while not watch.done():
                await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
                await asyncio.sleep(0)
        ended.set()

    async with serving(endless) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        await reader.readline()
        async with asyncio.timeout(5):
            await ended.wait()
        writer.close()


def _client_that_reads_little(port: int) -> socket.socket:
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", port))
    return client


def _read_all(client: socket.socket) -> bytes:
    client.settimeout(5)
    received = b""
    with client, contextlib.suppress(ConnectionError):
        while data := client.recv(65536):
            received += data
    return received


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize(("length", "read"), [(60_000, 0), (150_000, 134_000)])
async def test_row_20_a_whole_answer_that_is_not_read_holds_its_connection_only_so_long(
    monkeypatch: pytest.MonkeyPatch, keeps: bool, length: int, read: int
) -> None:
    """Neither does one whose buffer was full at first, and is no more when the client stops reading."""
    monkeypatch.setattr(protocol, "WRITE_SECONDS", 0.3)
    body = b"x" * length

    async def whole(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"%d" % length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async with serving(whole, system_buffer_bytes=4096) as port:
        client = _client_that_reads_little(port)
        client.sendall(
            b"GET / HTTP/1.1\r\nhost: localhost\r\n" + (b"" if keeps else b"connection: close\r\n") + b"\r\n"
        )
        received = 0
        while received < read:
            received += len(await asyncio.to_thread(client.recv, read - received))
        await asyncio.sleep(1)
        assert received + len(await asyncio.to_thread(_read_all, client)) < length


async def test_row_20_a_client_that_ended_its_sending_side_and_reads_nothing_has_left() -> None:
    left = asyncio.Event()

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        watch = asyncio.create_task(receive())
        while not watch.done():
            await send({"type": "http.response.body", "body": b"x" * 65536, "more_body": True})
            await asyncio.sleep(0)
        left.set()

    async with serving(endless, system_buffer_bytes=4096) as port:
        with _client_that_reads_little(port) as client:
            client.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
            await asyncio.sleep(0.2)
            client.shutdown(socket.SHUT_WR)
            async with asyncio.timeout(2):
                await left.wait()


@pytest.mark.parametrize("noise", [b"\x00 noise", b"\r\n" * 20_000])
async def test_noise_in_the_middle_of_an_answer_ends_it(noise: bytes) -> None:
    left = asyncio.Event()

    async def streaming(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        watch = asyncio.create_task(receive())
        while not watch.done():
            await send({"type": "http.response.body", "body": b"hello", "more_body": True})
            await asyncio.sleep(0.01)
        left.set()

    async with serving(streaming) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        answer = await reader.readuntil(b"hello")
        writer.write(noise)
        async with asyncio.timeout(0.5):
            await left.wait()
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65536):
                answer += data
        assert answer.count(b"HTTP/1.1 ") == 1
        writer.close()


async def test_noise_in_the_middle_of_a_request_has_one_answer(caplog: pytest.LogCaptureFixture) -> None:
    async def slowly(scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await asyncio.sleep(0.2)
        await _says_hello(scope, receive, send)

    async with serving(slowly) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n")
        await asyncio.sleep(0.1)
        writer.write(b"noise")
        async with asyncio.timeout(5):
            answer = await reader.read()
        assert answer.count(b"HTTP/1.1 ") == answer.count(b"HTTP/1.1 400 ") == 1
        writer.close()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_row_11_slow_headers_are_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEADER_SECONDS", 0.3)

    async def never(scope: Scope, receive: Receive, send: Send) -> None:
        pytest.fail("no request was complete")

    async with serving(never) as port:
        for start in (b"", b"GET / HTTP/1.1\r\nx-slow: "):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(start)
            async with asyncio.timeout(5):
                assert await reader.read() == b""
            writer.close()


async def test_row_11_a_slow_body_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_input, "BODY_SECONDS", 0.3)
    failures: asyncio.Queue[HttpError] = asyncio.Queue()

    async def reading(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await read_body(scope, receive)
        except HttpError as error:
            failures.put_nowait(error)
        await send({"type": "http.response.start", "status": 408, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body"})

    async with serving(reading) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        head = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{"
        writer.write(head)
        async with asyncio.timeout(5):
            assert (await failures.get()).status == 408
        writer.close()


async def test_a_connection_serves_one_request_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """The header count begins anew with each request, however long a connection lives."""

    async def fine(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    request = b"GET / HTTP/1.1\r\nhost: localhost\r\nx-filling: " + b"x" * 20_000 + b"\r\n\r\n"
    async with serving(fine) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for _ in range(5):
            writer.write(request)
            assert await reader.readuntil(b"\r\n\r\n")
        writer.close()


@pytest.mark.parametrize("length", [None, b"300000"])
async def test_a_client_of_http_1_0_gets_no_chunks(length: bytes | None) -> None:
    """It knows none (RFC 9112, 7.1): the body ends where the connection does."""
    pieces = [b"x" * 100_000] * 3

    async def streaming(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [] if length is None else [(b"content-length", length)]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        # All at once: more than the buffer takes, so that they wait for each other.
        await asyncio.gather(*(send({"type": "http.response.body", "body": one, "more_body": True}) for one in pieces))
        await send({"type": "http.response.body"})

    async with serving(streaming) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.0\r\nhost: localhost\r\nconnection: keep-alive\r\n\r\n")
        async with asyncio.timeout(5):
            head, _, body = (await reader.read(-1)).partition(b"\r\n\r\n")
        assert body == b"".join(pieces)
        assert b"transfer-encoding" not in head
        assert b"connection: close" in head
        writer.close()


@pytest.mark.parametrize("apart", [False, True])
async def test_a_client_that_pipelines_and_leaves_is_noticed(apart: bool) -> None:
    """Its first request is worked on; nobody waits for the answer any more."""
    begun, left = asyncio.Event(), asyncio.Event()
    calls: list[str] = []

    async def working(scope: Scope, receive: Receive, send: Send) -> None:
        calls.append(scope["path"])
        await receive()
        begun.set()
        assert (await receive())["type"] == "http.disconnect"
        left.set()

    async with serving(working) as port:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        requests = [b"GET /%d HTTP/1.1\r\nhost: localhost\r\n\r\n" % index for index in range(3)]
        if apart:
            for request in requests:
                writer.write(request)
                await asyncio.sleep(0.05)
        else:
            writer.write(b"".join(requests))
        async with asyncio.timeout(5):
            await begun.wait()
            writer.transport.abort()
            await left.wait()
    assert calls == ["/0"]


async def test_after_a_pipelined_request_the_connection_closes() -> None:
    async def slowly(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(0.1)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": scope["path"].encode()})

    async with serving(slowly) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET /1 HTTP/1.1\r\nhost: localhost\r\n\r\nGET /2 HTTP/1.1\r\nhost: localhost\r\n\r\n")
        async with asyncio.timeout(5):
            answer = await reader.read()
        assert answer.count(b"HTTP/1.1 200") == 1
        assert b"connection: close" in answer
        assert answer.endswith(b"/1")
        writer.close()


async def _says_hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 401, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})


async def test_row_11_an_answer_before_the_body_closes_the_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 0.3)
    async with serving(_says_hello) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4000000\r\n\r\n")
        async with asyncio.timeout(5):
            answer = await reader.read()  # to the end of the stream, though the body never comes
            with contextlib.suppress(ConnectionError):
                while True:
                    writer.write(b"x")
                    await writer.drain()
                    await asyncio.sleep(0.05)
        assert answer.endswith(b"hello")
        writer.close()


async def test_row_11_an_answer_survives_a_body_that_nobody_wants() -> None:
    async with serving(_says_hello) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 4000000\r\n\r\n" + b"x" * 4_000_000)
        async with asyncio.timeout(5):
            assert (await reader.read()).endswith(b"hello")
        writer.close()


async def test_row_11_trailers_are_dropped_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAXIMUM_MESSAGE_BYTES", 100_000)
    names: list[bytes] = []

    async def reads(scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive())["type"] == "http.request" and message.get("more_body"):
            pass
        names.extend(name for name, _ in scope["headers"])
        await _says_hello(scope, receive, send)

    head = b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n0\r\n"
    async with serving(reads) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head + b"authorization: Bearer k\r\nhost: evil\r\n\r\n")
        async with asyncio.timeout(5):
            assert (await reader.readuntil(b"hello")).startswith(b"HTTP/1.1 401")
        assert names == [b"host", b"transfer-encoding"]
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(head)
        with pytest.raises(ConnectionError):
            async with asyncio.timeout(5):
                while True:
                    writer.write(b"x-a: " + b"a" * 10_000 + b"\r\n")
                    await writer.drain()
                    await asyncio.sleep(0)
        writer.close()


async def test_an_answer_to_head_comes_though_a_body_is_still_to_be_read(caplog: pytest.LogCaptureFixture) -> None:

    async def at_once(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async with serving(at_once) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"HEAD / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 5\r\n\r\n")
        async with asyncio.timeout(5):
            answer = await reader.read()
        assert answer.startswith(b"HTTP/1.1 200")
        assert answer.endswith(b"\r\n\r\n")
        writer.close()
    assert not caplog.records
