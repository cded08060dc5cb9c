"""``ultrafast serve``: socket, engine, application, signals; from the first line printed to exit code 0."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

import uvicorn

from ultrafast.backends.local import LocalBackend
from ultrafast.backends.prompt import ChatPrompt
from ultrafast.errors import ConfigurationError
from ultrafast.gateway.app import Gateway
from ultrafast.gateway.auth import KEY_VARIABLE, ApiKey, obtain_key
from ultrafast.gateway.catalogue import DEFAULT_ALIASES, check_alias
from ultrafast.gateway.hosts import HostPolicy, is_loopback
from ultrafast.gateway.protocol import LimitedHttpProtocol
from ultrafast.weights.store import ModelLocation, Progress, cache_directory, resolve_model

DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000
DRAIN_SECONDS = 10.0

_VENDOR_PREFIX = "gpt-"  # of the default alias's family: names that people know as another's models
_BACKLOG = 1024
_KEEP_ALIVE_SECONDS = 30
_LAST_WRITES_SECONDS = 3


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What an operator can choose; ``None`` lets the loader decide."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT  # 0: any free port, reported in the line "Listening on …"
    model: str | None = None
    aliases: tuple[str, ...] = DEFAULT_ALIASES
    threads: int | None = None
    context: int | None = None
    chat_template: Path | None = None
    instruction_set: str | None = None
    quantize: str | None = None
    require_key: bool = True  # False only on a loopback address
    allowed_hosts: tuple[str, ...] = ()  # further names clients may use, such as a proxy's
    drain_seconds: float = DRAIN_SECONDS


def serve(options: ServeOptions, *, progress: Progress | None = None, output: TextIO | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain and return.

    Lines for people go to ``output`` (standard error by default). Raises an ``UltrafastError`` where serving cannot
    begin.
    """
    output = output or sys.stderr
    for alias in options.aliases:
        check_alias(alias)
    if not options.require_key and not is_loopback(options.host):
        raise ConfigurationError("serving without a key is possible on a loopback address only")
    key = None
    if options.require_key:
        key = obtain_key(cache_directory(), terminal=output.isatty())
    with _logging_to(output), contextlib.closing(_bind(options.host, options.port)) as listener:
        location = resolve_model(options.model, progress=progress)
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            runner.run(_Service(options, location, key, listener, output).run())


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield  # signals are ours: uvicorn would end the process by the signal it caught


class _Service:
    """One run of the server."""

    def __init__(
        self,
        options: ServeOptions,
        location: ModelLocation,
        key: ApiKey | None,
        listener: socket.socket,
        output: TextIO,
    ) -> None:
        self._options = options
        self._location = location
        self._key = key
        self._listener = listener
        self._output = output
        self._signalled = asyncio.Event()
        self._urgent = asyncio.Event()
        self._backend = LocalBackend(
            location,
            threads=options.threads,
            context=options.context,
            instruction_set=options.instruction_set,
            quantize=options.quantize,
        )
        self._gateway = Gateway(
            self._backend,
            key=None if key is None else key.value,
            hosts=HostPolicy(options.host, options.allowed_hosts),
            aliases=options.aliases,
        )
        config = uvicorn.Config(
            self._gateway,
            http=LimitedHttpProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_keep_alive=_KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=_LAST_WRITES_SECONDS,
        )
        self._server = _Server(config)

    async def run(self) -> None:
        """Serve from now on (503 until the model is loaded) to the signal, then drain."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        signalled = asyncio.create_task(self._signalled.wait())
        opening = asyncio.create_task(self._open())
        try:
            await asyncio.wait((opening, signalled), return_when=asyncio.FIRST_COMPLETED)
            if opening.done():
                opening.result()
                self._announce()
                await signalled
                await self._drain()
        finally:
            signalled.cancel()
            opening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((opening,))
            await self._backend.stop()
            self._server.should_exit = True
            await serving

    async def _open(self) -> None:
        prompt = await asyncio.to_thread(ChatPrompt.from_file, self._location.path, self._options.chat_template)
        await self._backend.start()
        self._gateway.open(prompt)

    async def _drain(self) -> None:
        """Let answers end by themselves for a while; what is left ends with an error event when the backend stops."""
        self._print("Stopping: answers in progress may end (again to stop at once)")
        draining = asyncio.create_task(self._gateway.drain(self._options.drain_seconds))
        urgent = asyncio.create_task(self._urgent.wait())
        await asyncio.wait((draining, urgent), return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
        urgent.cancel()
        await self._backend.stop()
        await self._gateway.drain(_LAST_WRITES_SECONDS)

    def _on_signal(self) -> None:
        if self._signalled.is_set():
            self._urgent.set()
        self._signalled.set()

    def _announce(self) -> None:
        model = self._backend.model
        self._print(
            f"Model {model.name}: context {model.context}, {model.threads} thread{'s' if model.threads > 1 else ''}, "
            f"{model.instruction_set}, loaded in {model.load_seconds:.1f} s"
        )
        for line in model.quantisation:
            self._print(f"Weights: {line}")
        for alias in dict.fromkeys(self._options.aliases):
            vendor = ", not that vendor's model" if alias.startswith(_VENDOR_PREFIX) else ""
            self._print(f"Alias {alias}: answered by {model.name}{vendor}")
        if self._key is None:
            self._print("No API key is asked for (loopback only)")
        elif self._key.path is not None:
            self._print(f"The API key is in {self._key.path}")
        elif self._key.generated:
            self._print(f"API key, made for this run (set {KEY_VARIABLE} to choose one):")
            self._print(self._key.value)  # alone, to be copied whole
        self._print(f"Listening on {_url(self._options.host, self._listener)}")

    def _print(self, line: str) -> None:
        print(line, file=self._output, flush=True)


def _url(host: str, listener: socket.socket) -> str:
    port = listener.getsockname()[1]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _bind(host: str, port: int) -> socket.socket:
    """A bound socket. Raises ConfigurationError in one line, before a model is fetched or loaded."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, OverflowError, UnicodeError) as error:
        raise ConfigurationError("the host name or port is not usable") from error
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ConfigurationError(
            f"port {port} on {host} cannot be used: {os.strerror(error.errno or 0).lower()}; choose another with --port"
        ) from error
    return listener


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:  # not made for this platform
        return None
    return uvloop.new_event_loop


@contextlib.contextmanager
def _logging_to(output: TextIO) -> Iterator[None]:
    """Our own loggers on ``output``; of uvicorn's only what has gone wrong."""
    handler = logging.StreamHandler(output)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    ours, server = logging.getLogger("ultrafast"), logging.getLogger("uvicorn")
    levels = ours.level, server.level
    ours.addHandler(handler)
    ours.setLevel(logging.INFO)
    server.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        ours.removeHandler(handler)
        ours.setLevel(levels[0])
        server.setLevel(levels[1])
