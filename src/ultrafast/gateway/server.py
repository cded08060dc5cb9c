"""``ultrafast serve``: socket, engine, application, signals; from the first line printed to exit code 0."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

from ultrafast import memory
from ultrafast.backends.engine_chat import EngineChat
from ultrafast.backends.key_file import check_key
from ultrafast.backends.upstream import UpstreamBackend
from ultrafast.errors import ConfigurationError, UltrafastError
from ultrafast.gateway.admin import AdminApplication
from ultrafast.gateway.admin_socket import serving_admin
from ultrafast.gateway.app import Gateway
from ultrafast.gateway.assembly import build_engines, build_routes, build_upstreams, changed_reservations, doubtful_urls
from ultrafast.gateway.auth import KEY_VARIABLE, ApiKey, obtain_key
from ultrafast.gateway.catalogue import check_alias
from ultrafast.gateway.configuration import Configuration
from ultrafast.gateway.configuration_check import check, check_secrets
from ultrafast.gateway.configuration_file import Source, configuration_path, read_configuration, show
from ultrafast.gateway.configuration_overrides import (
    Overrides,
    changes_needing_restart,
    changes_while_serving,
    environment_overrides,
    merged,
    reloaded,
)
from ultrafast.gateway.hosts import HostPolicy, is_loopback
from ultrafast.gateway.protocol import LAST_WRITES_SECONDS, QuietServer
from ultrafast.gateway.records.directory import SOCKET_FILE, data_directory
from ultrafast.gateway.records.store import Records
from ultrafast.gateway.service import Service
from ultrafast.weights.store import Progress

DRAIN_SECONDS = 10.0

_VENDOR_PREFIX = "gpt-"  # of the default alias's family: names that people know as another's models
_BACKLOG = 1024
_KEEP_ALIVE_SECONDS = 30


@dataclass(frozen=True, slots=True)
class ServeOptions:
    """What is said on the command line beside the configuration."""

    configuration_file: Path | None = None  # read again at SIGHUP
    overrides: Overrides = field(default_factory=Overrides)
    instruction_set: str | None = None
    require_key: bool = True  # False only on a loopback address
    drain_seconds: float = DRAIN_SECONDS

    def read(self) -> tuple[Configuration, Source]:
        """The file's settings, or the defaults, under those of the command line, and where they stand; unchecked.

        Raises ConfigurationError.
        """
        for alias in self.overrides.alias or ():
            check_alias(alias)
        overrides = merged(environment_overrides(os.environ), self.overrides)
        return read_configuration(configuration_path(self.configuration_file, os.environ), overrides)

    def shown(self) -> str:
        """The configuration that would be served by, for people, whether or not its secrets are there.

        Raises ConfigurationError.
        """
        configuration, source = self.read()
        check(configuration, source.fail, {})
        return show(configuration, os.environ)


def serve(options: ServeOptions, *, progress: Progress | None = None, output: TextIO | None = None) -> None:
    """Serve until SIGTERM or SIGINT, then drain and return.

    Lines for people go to ``output`` (standard error by default). Raises an ``UltrafastError`` where serving cannot
    begin.
    """
    output = output or sys.stderr
    configuration, source = options.read()
    check(configuration, source.fail, {})
    check_secrets(configuration, os.environ, source.fail)
    if not options.require_key and not is_loopback(configuration.host):
        raise ConfigurationError("serving without a key is possible on a loopback address only")
    directory = data_directory(configuration.data_directory)
    with (
        _logging_to(output),
        contextlib.closing(_bind(configuration.host, configuration.port)) as listener,
        Records.open(directory, prices=configuration.prices, record_text=configuration.record_text) as records,
    ):
        key = obtain_key(directory, terminal=output.isatty()) if options.require_key else None
        if key is not None:
            records.adopt_key(key.value)
        engines = build_engines(
            configuration,
            instruction_set=options.instruction_set,
            progress=progress,
            naming=source.naming if options.overrides.model is None else lambda node: contextlib.nullcontext(),
        )
        names = {name: engine.model_name for name, engine in engines.items()}
        check(configuration, source.fail, names)  # once more, all named
        with asyncio.Runner(loop_factory=_loop_factory()) as runner:
            run = _Run(
                options,
                configuration,
                engines,
                records,
                directory=directory,
                key=key,
                listener=listener,
                output=output,
            )
            runner.run(run.run())


class _Run:
    """One run of the server."""

    def __init__(
        self,
        options: ServeOptions,
        configuration: Configuration,
        engines: Mapping[str, EngineChat],
        records: Records,
        *,
        directory: Path,
        key: ApiKey | None,
        listener: socket.socket,
        output: TextIO,
    ) -> None:
        self._options = options
        self._engines = engines
        self._directory = directory
        self._key = key
        self._listener = listener
        self._output = output
        self._signalled = asyncio.Event()
        self._urgent = asyncio.Event()
        self._retiring: set[asyncio.Task[None]] = set()
        self._upstreams = build_upstreams(configuration, os.environ)
        routes = build_routes(configuration, engines, self._upstreams)
        self._service = Service(configuration, engines, routes, records)
        self._gateway = Gateway(
            self._service,
            require_key=key is not None,
            hosts=HostPolicy(configuration.host, configuration.allowed_hosts),
            administration=self._http_administration(),
        )
        self._server = QuietServer(self._gateway, backlog=_BACKLOG, timeout_keep_alive=_KEEP_ALIVE_SECONDS)

    def _http_administration(self) -> AdminApplication | None:
        """The operator's interface on the port, where the configuration names the variable with its key."""
        variable = self._service.configuration.admin_key_variable
        if variable is None:
            return None
        key = os.environ.get(variable, "")
        if not key:
            raise ConfigurationError(f"admin_key_variable names {variable}, which is not set: it holds the admin key")
        check_key(key, variable)
        return AdminApplication(self._service.records, self._service, key=key)

    async def run(self) -> None:
        """Serve from now on (503 until the models are loaded) to the signal, then drain."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        loop.add_signal_handler(signal.SIGHUP, self._reload)
        self._service.follow_orders()
        serving = asyncio.create_task(self._server.serve(sockets=[self._listener]))
        signalled = asyncio.create_task(self._signalled.wait())
        opening = asyncio.create_task(self._open())
        administration = AdminApplication(self._service.records, self._service, key=None)
        try:
            async with serving_admin(administration, self._directory / SOCKET_FILE):
                await self._serve_until_signalled(opening, signalled)
        finally:
            for task in (signalled, opening):
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait((opening,))
            await self._stop_backends()
            self._server.should_exit = True
            await serving

    async def _serve_until_signalled(self, opening: asyncio.Task[None], signalled: asyncio.Task[bool]) -> None:
        await asyncio.wait((opening, signalled), return_when=asyncio.FIRST_COMPLETED)
        if opening.done():
            opening.result()
            self._announce()
            await signalled
            await self._drain()

    async def _open(self) -> None:
        for engine in self._engines.values():
            await engine.start()
        memory.settle()
        self._service.begin()

    async def _stop_backends(self) -> None:
        """What is still being answered ends with an error event."""
        self._service.end_all()
        for engine in self._engines.values():
            await engine.stop()
        await self._gateway.drain(LAST_WRITES_SECONDS)
        for upstream in self._upstreams.values():
            self._retire(upstream)
        if self._retiring:
            await asyncio.wait(self._retiring, timeout=LAST_WRITES_SECONDS)

    def _retire(self, upstream: UpstreamBackend) -> None:
        task = asyncio.create_task(upstream.retire())
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)

    async def _drain(self) -> None:
        """Let answers end by themselves for a while; what is left ends with an error event when the backends stop."""
        self._print("Stopping: answers in progress may end (again to stop at once)")
        draining = asyncio.create_task(self._gateway.drain(self._options.drain_seconds))
        urgent = asyncio.create_task(self._urgent.wait())
        await asyncio.wait((draining, urgent), return_when=asyncio.FIRST_COMPLETED)
        draining.cancel()
        urgent.cancel()

    def _on_signal(self) -> None:
        if self._signalled.is_set():
            self._urgent.set()
        self._signalled.set()

    def _reload(self) -> None:
        """SIGHUP: serve by the file as it is now; where it is wrong, go on as before and say why."""
        service = self._service
        try:
            wanted, source = self._options.read()
            check(wanted, source.fail, {})
            check_secrets(wanted, os.environ, source.fail)
            fixed = changes_needing_restart(service.configuration, wanted)
            fixed += changed_reservations(wanted, self._engines)
            names = {name: engine.model_name for name, engine in self._engines.items()}
            configuration = reloaded(service.configuration, wanted, names, source.fail)
            changes = changes_while_serving(service.configuration, configuration, names)
            upstreams = build_upstreams(configuration, os.environ, self._upstreams)
            routes = build_routes(configuration, self._engines, upstreams)
            service.records.configure(configuration.prices, record_text=configuration.record_text)
        except UltrafastError as error:
            self._print(f"The configuration was not reloaded: {error}")
            return
        for name, upstream in self._upstreams.items():
            if upstreams.get(name) is not upstream:
                self._retire(upstream)
        for line in doubtful_urls(
            {name: one for name, one in upstreams.items() if self._upstreams.get(name) is not one}
        ):
            self._print(line)
        self._upstreams = upstreams
        known = self._aliases()
        service.reconfigure(configuration, routes)
        self._announce_aliases(known)
        changes += [f"takes effect at the next start: {', '.join(fixed)}"] if fixed else []
        self._print("; ".join(("The configuration was reloaded", *changes)))

    def _announce(self) -> None:
        for name, engine in self._engines.items():
            model = engine.model
            self._print(
                f"Model {model.name}: context {model.context}, {model.threads} "
                f"thread{'s' if model.threads > 1 else ''}, {model.instruction_set}, loaded in "
                f"{model.load_seconds:.1f} s" + (f" ({name})" if len(self._engines) > 1 else "")
            )
            for line in model.quantisation:
                self._print(f"Weights: {line}")
            if not engine.prompt.can_chat:
                self._print(
                    f"Warning: {model.name} has no chat template, so chat requests to it are refused; "
                    "give one with --chat-template FILE"
                )
        self._announce_aliases({})
        for line in doubtful_urls(self._upstreams):
            self._print(line)
        if self._key is None:
            self._print("No API key is asked for (loopback only)")
        elif self._key.path is not None:
            self._print(f"The API key is in {self._key.path}")
        elif self._key.generated:
            self._print(f"API key, made for this run (set {KEY_VARIABLE} to choose one):")
            self._print(self._key.value)  # alone, to be copied whole
        self._print(f"Listening on {_url(self._service.configuration.host, self._listener)}")

    def _aliases(self) -> dict[str, str]:
        """Every alias with its model; none before serving began, when an engine's model has no name yet."""
        service = self._service
        aliases = service.configuration.aliases if service.open else ()
        return {alias: service.routes.model_of(alias) for alias in aliases}

    def _announce_aliases(self, known: Mapping[str, str]) -> None:
        """Say which aliases are gone that were ``known``, and what each stands for that was not, or otherwise."""
        aliases = self._aliases()
        for alias in [name for name in known if name not in aliases and name not in self._service.routes.models]:
            self._print(f"Alias {alias}: gone, requests for it are refused")
        for alias, model in aliases.items():
            if known.get(alias) != model:
                vendor = ", not that vendor's model" if alias.startswith(_VENDOR_PREFIX) else ""
                self._print(f"Alias {alias}: answered by {model}{vendor}")

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
