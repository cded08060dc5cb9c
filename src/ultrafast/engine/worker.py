"""The engine process: ``python -m ultrafast.engine.worker FD``, started by a backend and never by hand.

It owns one model. Messages come and go over an inherited socket; end of file there means that the parent is gone, and
ends this process too. Between two steps it reads what has come without waiting; with nothing to do it sleeps in the
kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import socket
import sys
import time
import traceback
from pathlib import Path

from ultrafast.engine import messages
from ultrafast.engine.engine import Engine
from ultrafast.engine.fingerprint import weights_fingerprint
from ultrafast.engine.messages import (
    MAXIMUM_RESERVED_SLOTS,
    Cancel,
    Events,
    Failed,
    FromEngine,
    GenerationEvent,
    Load,
    ModelDescription,
    Ping,
    Pong,
    Progress,
    Ready,
    Shutdown,
    Submit,
    ToEngine,
)
from ultrafast.errors import ConfigurationError, EngineError, UltrafastError
from ultrafast.models import MAX_SEQUENCES, load_model, resources
from ultrafast.models.loaded import LoadedModel
from ultrafast.models.text import open_tokenizer

EXIT_BROKEN = 70  # EX_SOFTWARE
_RECEIVE_BYTES = 1 << 16
_PR_SET_PDEATHSIG = 1


class ParentGoneError(Exception):
    """The socket is closed: nobody is left to work for."""


class Channel:
    """The socket to the parent: framed messages, blocking writes, reads that wait only when asked to."""

    def __init__(self, connection: socket.socket) -> None:
        self._socket = connection
        self._reader = messages.engine_side_reader()
        self._poll = select.poll()
        self._poll.register(connection, select.POLLIN)

    def send(self, message: FromEngine) -> None:
        """Send one message. A parent that does not read stops us here, which bounds what is in flight."""
        try:
            self._socket.sendall(messages.encode_frame(message))
        except OSError:
            raise ParentGoneError from None

    def receive(self, *, wait: bool) -> list[ToEngine]:
        """Every message that has come; with ``wait`` sleep until there is something to read."""
        received: list[ToEngine] = []
        # Between two steps there is mostly nothing: asking first is cheaper than an exception.
        if not self._poll.poll(None if wait else 0):
            return received
        while True:
            try:
                data = self._socket.recv(_RECEIVE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return received
            except OSError:
                raise ParentGoneError from None
            if not data:
                raise ParentGoneError
            received.extend(self._reader.feed(data))
            if len(data) < _RECEIVE_BYTES:
                return received


class Worker:
    """Serves one engine over one channel until told to stop."""

    def __init__(self, channel: Channel, engine: Engine) -> None:
        self._channel = channel
        self._engine = engine
        self._draining = False
        self._stopped = False

    def run(self) -> None:
        """Work until shutdown. Raises ParentGoneError at end of file."""
        engine, channel = self._engine, self._channel
        while True:
            for message in channel.receive(wait=not engine.has_work):
                self._handle(message)
            if self._stopped or (self._draining and not engine.has_work):
                return
            if engine.has_work:
                events = engine.step()
                if events:
                    channel.send(Events(events))
                for request_id, error in engine.take_failures():
                    channel.send(messages.failure_message(request_id, error))

    def _handle(self, message: ToEngine) -> None:
        match message:
            case Submit(request, sent_seconds):
                try:
                    # It came while a step ran, perhaps: that was waiting, too.
                    self._engine.add(request, waited_seconds=max(0.0, time.monotonic() - sent_seconds))
                except UltrafastError as error:
                    self._channel.send(messages.failure_message(request.request_id, error))
            case Cancel(request_id):
                summary = self._engine.cancel(request_id)
                if summary is not None:  # else its end is under way
                    self._channel.send(Events([(request_id, GenerationEvent(0, [], "", summary=summary))]))
            case Ping(number):
                self._channel.send(Pong(number, self._engine.status))
            case Shutdown(drain):
                self._draining = True
                self._stopped = not drain
            case Load():
                raise messages.ProtocolError("a second model was asked for")


def _await_load(channel: Channel) -> Load:
    while True:
        for message in channel.receive(wait=True):
            if isinstance(message, Load):
                return message
            if isinstance(message, Shutdown):
                raise ParentGoneError
            raise messages.ProtocolError("the first message must name a model")


def _load(channel: Channel, load: Load) -> tuple[Engine, ModelDescription]:
    started = time.perf_counter()
    if not 0 <= load.reserved_slots <= MAXIMUM_RESERVED_SLOTS:
        raise ConfigurationError(f"the slots reserved for ultrafast must be 0 to {MAXIMUM_RESERVED_SLOTS}")
    channel.send(Progress("reading the model file"))
    path = Path(load.path)
    tokenizer = open_tokenizer(path)
    channel.send(Progress("laying out the weights"))
    model = load_model(
        path,
        threads=load.threads,
        instruction_set=load.instruction_set,
        context=load.context,
        memory_budget_bytes=None,
        quantize=load.quantize,
        max_sequences=MAX_SEQUENCES + load.reserved_slots,
    )
    channel.send(Progress("warming up"))
    engine = Engine(model, tokenizer, reserved_slots=load.reserved_slots)
    engine.warm_up()
    if model.cpus:
        # Where this thread computes as a member of the team. A request would otherwise wake it on the gateway's core.
        resources.run_on(model.cpus[:1])
    return engine, _describe(load, model, time.perf_counter() - started)


def _describe(load: Load, model: LoadedModel, load_seconds: float) -> ModelDescription:
    configuration = model.configuration
    return ModelDescription(
        name=load.name,
        architecture=configuration.architecture,
        created=int(max(file.stat().st_mtime for file in model.files)),
        fingerprint=weights_fingerprint(model.files, model.quantised_at_load),
        context=model.context,
        model_context=configuration.context_length,
        vocabulary_size=configuration.vocabulary_size,
        max_sequences=model.max_sequences,
        block_tokens=model.block_tokens,
        block_count=model.block_count,
        threads=model.threads,
        cpus=list(model.cpus),
        instruction_set=model.instruction_set,
        weight_bytes=model.weight_bytes,
        weight_bytes_per_token=model.weight_bytes_per_token,
        huge_page_bytes=model.huge_page_bytes,
        kv_bytes_per_token=model.kv_bytes_per_token,
        load_seconds=load_seconds,
        quantised_at_load=model.quantised_at_load,
        matrices_kept_float=model.matrices_kept_float,
    )


def _serve(channel: Channel) -> None:
    load = _await_load(channel)
    try:
        engine, description = _load(channel, load)
    except UltrafastError as error:
        channel.send(messages.failure_message("", error))
        return
    except MemoryError:
        channel.send(messages.failure_message("", EngineError("not enough memory for this model and context")))
        return
    channel.send(Ready(description))
    Worker(channel, engine).run()


def _tie_to_parent() -> None:
    # The parent decides about Ctrl-C and about a stop signal to the whole group: it may still drain.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.platform == "linux":
        # End of file on the socket is seen between two steps; this also ends a step that never returns.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _fault_line(error: BaseException) -> str:
    """Where a bug struck, without any value: values may hold a prompt."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} in {frames[-1].name}" if frames else "unknown place"
    return f"the engine met a bug: {type(error).__name__} at {place}"


def main(arguments: list[str]) -> int:
    """Entry of the process; the one argument is the number of the inherited socket."""
    _tie_to_parent()
    resources.compute_in_long_slices()
    channel = Channel(socket.socket(fileno=int(arguments[0])))
    try:
        _serve(channel)
    except ParentGoneError:
        return 0
    except Exception as error:
        with contextlib.suppress(ParentGoneError):
            channel.send(Failed("", EngineError.__name__, _fault_line(error)))
        return EXIT_BROKEN
    return 0


if __name__ == "__main__":
    # Skips interpreter teardown: the threads of the native runtime and gigabytes of arenas need no farewell.
    os._exit(main(sys.argv[1:]))
