"""The local backend: our own engine in a process of its own, watched and restarted."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable

from ultrafast.backends import placement
from ultrafast.backends.base import BackendState, LastError
from ultrafast.backends.connection import EngineConnection, LocalStream
from ultrafast.engine.messages import EngineStatus, GenerationRequest, Load, ModelDescription
from ultrafast.errors import EngineUnavailableError, UltrafastError
from ultrafast.weights.store import ModelLocation

logger = logging.getLogger(__name__)

MAXIMUM_IN_FLIGHT = 256  # of a tier: a crowd at one does not refuse another's

# A beat is a ping, answered between two steps. Beats are counted, not seconds: after a stall of our own loop (a
# suspended laptop) one beat has passed, not a minute. The beat in which the engine fell silent may count as heard, so
# silence is noticed up to one beat late.
BEAT_SECONDS = 0.5
BEATS_UNTIL_UNREADY = 8
BEATS_UNTIL_KILLED = 20

FIRST_BACK_OFF_SECONDS = 0.5
MAXIMUM_BACK_OFF_SECONDS = 30.0
STABLE_SECONDS = 60.0  # an engine that lived this long starts the back-off anew


class LocalBackend:
    """Runs one model file in a supervised engine process.

    A crash ends the streams in flight with ``EngineUnavailableError``; the process is started again, at once the first
    time, then ever more slowly. An engine that does not answer is unready after four seconds and replaced after ten, or
    half a second later.
    """

    name = "local"

    def __init__(
        self,
        location: ModelLocation,
        *,
        threads: int | None = None,
        context: int | None = None,
        instruction_set: str | None = None,
        quantize: str | None = None,
        reserved_slots: int = 0,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._load = Load(
            str(location.path), location.name, threads, context, instruction_set, quantize, reserved_slots
        )
        self._progress = progress or (lambda stage: None)
        self._connection: EngineConnection | None = None
        self._model: ModelDescription | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self._core: list[int] = []
        self._serving = False
        self._silent_beats = 0
        self._last_error: LastError | None = None

    @property
    def ready(self) -> bool:
        """Whether the engine is loaded and answers."""
        return self._serving and self._silent_beats < BEATS_UNTIL_UNREADY

    @property
    def state(self) -> BackendState:
        """How the engine is, for its operator."""
        if self._serving:
            state = "ok" if self.ready else "not answering"
        else:
            state = "starting" if self._model is None else "restarting"
        running = 0 if self._connection is None else self._connection.in_flight()
        return BackendState(state, running, self._last_error)

    @property
    def model(self) -> ModelDescription:
        """The loaded model. Raises EngineUnavailableError before ``start`` has returned."""
        if self._model is None:
            raise EngineUnavailableError("the engine is starting")
        return self._model

    @property
    def process_id(self) -> int | None:
        """The process id of the running engine."""
        return None if self._connection is None else self._connection.process_id

    async def start(self) -> None:
        """Start the engine, load the model, begin to supervise. Raises the loader's ``UltrafastError``."""
        await self._launch()
        self._supervisor = asyncio.create_task(self._supervise(), name="engine supervisor")

    async def stop(self) -> None:
        """End the engine; requests in flight fail with ``EngineUnavailableError``. Safe twice."""
        self._serving = False
        if self._supervisor is not None:
            self._supervisor.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._supervisor
            self._supervisor = None
        self._take_core([])
        if self._connection is not None:
            await self._connection.close()

    def generate(self, request: GenerationRequest) -> LocalStream:
        """Submit a request. Raises EngineUnavailableError while not ready, or with too many of its tier in flight."""
        connection = self._connection
        if connection is None or not self.ready:
            raise EngineUnavailableError("the engine is starting or restarting")
        if connection.in_flight(request.tier) >= MAXIMUM_IN_FLIGHT:
            raise EngineUnavailableError("too many requests are in flight")
        return connection.submit(request)

    async def status(self) -> EngineStatus:
        """The engine's counters of this moment. Raises EngineUnavailableError where it does not answer."""
        connection = self._connection
        if connection is None:
            raise EngineUnavailableError("the engine is starting")
        try:
            async with asyncio.timeout(BEATS_UNTIL_UNREADY * BEAT_SECONDS):
                return await connection.ping()
        except TimeoutError:
            raise EngineUnavailableError("the engine does not answer") from None
        except asyncio.CancelledError:
            if connection.ended.is_set():
                raise EngineUnavailableError("the engine is restarting") from None
            raise

    async def _launch(self) -> None:
        connection = EngineConnection(self._progress)
        self._connection = connection
        try:
            self._model = await connection.launch(self._load)
        except BaseException:
            await connection.kill()
            raise
        self._take_core(self._model.cpus[:1])  # where the thread runs that also runs the engine's loop
        self._silent_beats = 0
        self._serving = True

    def _take_core(self, cpus: list[int]) -> None:
        placement.take(cpus)
        placement.give_back(self._core)
        self._core = cpus

    async def _supervise(self) -> None:
        back_off = 0.0
        loop = asyncio.get_running_loop()
        while True:
            started = loop.time()
            assert self._connection is not None
            await self._watch(self._connection)
            self._serving = False
            reason = await self._connection.exit_reason()
            self._last_error = LastError(f"the engine stopped: {reason}", time.time())
            logger.error("engine stopped: %s; restarting", reason)
            await self._connection.kill()
            if loop.time() - started > STABLE_SECONDS:
                back_off = 0.0
            back_off = await self._restart(back_off)

    async def _restart(self, back_off: float) -> float:
        """Launch until it works; returns the pause to begin with next time."""
        while True:
            await asyncio.sleep(back_off)
            back_off = min(MAXIMUM_BACK_OFF_SECONDS, max(FIRST_BACK_OFF_SECONDS, back_off * 2))
            try:
                await self._launch()
            except UltrafastError as error:
                self._last_error = LastError(f"the engine cannot be restarted: {error}", time.time())
                logger.error("engine restart failed: %s; next try in %.1f s", error, back_off)
            else:
                logger.warning("engine restarted")
                return back_off

    async def _watch(self, connection: EngineConnection) -> None:
        """Return when the engine has ended, or has been silent for too long and was killed."""
        while not connection.ended.is_set():
            connection.heard = False
            pong = connection.ping()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(BEAT_SECONDS):
                    await connection.ended.wait()
                    return
            pong.cancel()
            self._silent_beats = 0 if connection.heard else self._silent_beats + 1
            if self._silent_beats >= BEATS_UNTIL_KILLED:
                logger.error("engine does not answer: killed")
                await connection.kill()
                await connection.ended.wait()
