"""What crosses the border between a backend and the engine process: values, messages, frames.

A frame is a 4-byte big-endian length and one msgpack message. Both ends are this package, yet lengths are bounded and
types checked: a confused peer ends in a ``ProtocolError``, not in unbounded memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import Final, Generic, TypeVar

import msgspec

from ultrafast import errors
from ultrafast.models.sampling import SamplingParameters

MAXIMUM_FRAME_BYTES: Final = 64 << 20
MAXIMUM_RESERVED_SLOTS: Final = 64
_LENGTH: Final = struct.Struct(">I")

Message = TypeVar("Message")


class ProtocolError(errors.EngineError):
    """The other process sent something that is no message of ours."""


class GenerationRequest(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One prompt to continue, in tokens. ``request_id`` is unique among the requests in flight."""

    request_id: str
    prompt_tokens: list[int]
    sampling: SamplingParameters
    max_tokens: int  # new tokens per choice; the engine stops earlier where the context ends
    choices: int = 1
    stop: list[str] = []
    logprobs: bool = False
    ignore_end: bool = False  # benchmarks: an end token does not end the answer
    tier: str = "default"
    salt: str = ""  # a project's: prefixes are shared only among requests of one salt


class TopToken(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """An alternative at a position: its id, its raw bytes (perhaps half a character) and its log probability."""

    token_id: int
    token_bytes: bytes
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A generated token with its log probability under the model's raw logits, and the most likely alternatives."""

    token_id: int
    token_bytes: bytes
    logprob: float
    top: list[TopToken]


class Summary(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The account of one request that is over, over all its choices. Times are wall-clock seconds in the engine.

    ``cached_tokens`` of the prompt were not computed, since an earlier sequence began with them (by the first choice).
    ``queue`` ends where the first choice gets a slot, ``prefill`` where the first token exists, ``decode`` where the
    last choice ends; ``ttft`` is queue plus prefill. ``passes`` counts the steps that produced tokens, summed over
    choices: tokens ÷ passes is 1 unless drafts are accepted. Of a request that was cancelled, ``prompt_tokens`` are
    those that were computed, or spared it by the cache, until then.
    """

    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    queue_seconds: float
    prefill_seconds: float
    decode_seconds: float
    ttft_seconds: float
    passes: int


class GenerationEvent(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What one step gave one choice.

    ``token_ids`` holds every token generated, an end token included; ``text`` only what is certain, so it may lag
    (half a character, the possible beginning of a stop string). The last event of a choice has its ``finish_reason``
    ("stop" or "length"), the last of the request also its ``summary``; that of a cancelled request has nothing else.
    """

    choice: int
    token_ids: list[int]
    text: str
    logprobs: list[TokenLogprob] | None = None
    finish_reason: str | None = None
    summary: Summary | None = None


class ModelDescription(msgspec.Struct, frozen=True):
    """What a loaded model is and where it runs, as the engine process reports it."""

    name: str
    architecture: str
    created: int  # seconds since 1970: when the model file was last changed
    fingerprint: str  # short hash of the weights
    context: int  # tokens one sequence may hold
    model_context: int  # tokens the model was made for
    vocabulary_size: int
    max_sequences: int
    block_tokens: int
    block_count: int
    threads: int
    cpus: list[int]  # the CPU each thread is pinned to; empty where the system does not allow it
    instruction_set: str
    weight_bytes: int
    weight_bytes_per_token: int
    huge_page_bytes: int
    kv_bytes_per_token: int
    load_seconds: float
    quantised_at_load: str | None = None  # to what, where the weights are not the file's own
    matrices_kept_float: int = 0  # by that quantisation, as their rows are not whole blocks

    @property
    def quantisation(self) -> list[str]:
        """For people: how the weights differ from the file's; empty where they do not."""
        if self.quantised_at_load is None:
            return []
        tables = "" if self.quantised_at_load == "q8_0" else ", embedding and output layer to q8_0"
        kept = f"{self.matrices_kept_float} matrices kept as float: rows are not whole blocks of 32"
        return [f"quantised at load to {self.quantised_at_load}{tables}", *[kept] * bool(self.matrices_kept_float)]


class EngineStatus(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Counters for supervision and tests: when nothing runs, ``free_blocks`` equals ``block_count`` again.

    Blocks that are kept for their prefix are free: whoever needs them has them.
    """

    waiting: int
    running: int
    free_blocks: int
    block_count: int
    steps: int
    rows: int
    waiting_by_tier: dict[str, int] = {}  # sequences, preempted ones included
    running_by_tier: dict[str, int] = {}
    preemptions: int = 0  # since the start


# To the engine.


class Load(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """First message: which model to load, and how. ``None`` lets the loader choose."""

    path: str
    name: str
    threads: int | None
    context: int | None
    instruction_set: str | None
    quantize: str | None = None
    reserved_slots: int = 0  # sequences that run at once besides the usual number, ``ultrafast`` ones only


class Submit(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Run this request, sent at ``sent_seconds`` of ``time.monotonic``, which is one clock for all processes."""

    request: GenerationRequest
    sent_seconds: float


class Cancel(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Stop this request and free what it holds; a last event has its account. Unknown ids are ignored."""

    request_id: str


class Ping(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Answered by ``Pong`` between two steps: proof that the loop turns, not merely that a process exists."""

    number: int


class Shutdown(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """Exit; with ``drain`` only after the requests in flight have ended."""

    drain: bool


# From the engine.


class Progress(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The loader has reached this stage (a short phrase for people)."""

    stage: str


class Ready(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The model is loaded and warm."""

    description: ModelDescription


class Failed(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A request ended with an error; with an empty ``request_id``: the engine itself could not load or go on."""

    request_id: str
    kind: str
    message: str
    param: str | None = None
    code: str | None = None


class Events(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """All that one step produced: (request id, event) pairs in order."""

    items: list[tuple[str, GenerationEvent]]


class Pong(msgspec.Struct, frozen=True, array_like=True, tag=True, gc=False):
    """The answer to ``Ping``."""

    number: int
    status: EngineStatus


ToEngine = Load | Submit | Cancel | Ping | Shutdown
FromEngine = Progress | Ready | Failed | Events | Pong

_encoder: Final = msgspec.msgpack.Encoder()


def encode_frame(message: ToEngine | FromEngine) -> bytes:
    """One message as a frame."""
    buffer = bytearray(_LENGTH.size)
    _encoder.encode_into(message, buffer, _LENGTH.size)
    length = len(buffer) - _LENGTH.size
    if length > MAXIMUM_FRAME_BYTES:
        raise ProtocolError("a message to or from the engine is too large")
    _LENGTH.pack_into(buffer, 0, length)
    return bytes(buffer)


class FrameReader(Generic[Message]):
    """Cuts a byte stream into messages of one direction; bytes may arrive in any pieces."""

    def __init__(self, decoder: msgspec.msgpack.Decoder[Message]) -> None:
        self._decoder = decoder
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterable[Message]:
        """Every message completed by ``data``.

        Raises ProtocolError, at once or in iterating: a length beyond the bound, or bytes that are no message.
        """
        # While tokens flow, what comes is one frame. The way is short because caches are cold here: between two tokens
        # the engine has read the whole model through them.
        size = _LENGTH.size
        if not self._buffer and len(data) > size and _LENGTH.unpack_from(data)[0] == len(data) - size:
            return (self._decode(data[size:]),)
        return self._cut(data)

    def _decode(self, payload: bytes) -> Message:
        try:
            return self._decoder.decode(payload)
        except msgspec.MsgspecError:
            raise ProtocolError("the other process sent an unreadable message") from None

    def _cut(self, data: bytes) -> Iterator[Message]:
        buffer = self._buffer
        buffer += data
        start = 0
        try:
            while len(buffer) - start >= _LENGTH.size:
                (length,) = _LENGTH.unpack_from(buffer, start)
                if length > MAXIMUM_FRAME_BYTES:
                    raise ProtocolError("the other process announced an oversized message")
                end = start + _LENGTH.size + length
                if len(buffer) < end:
                    break
                # Copied: a live memoryview would forbid the buffer to shrink while the consumer holds the message.
                payload = bytes(buffer[start + _LENGTH.size : end])
                start = end
                yield self._decode(payload)
        finally:
            del buffer[:start]


def engine_side_reader() -> FrameReader[ToEngine]:
    """A reader for what the engine receives."""
    return FrameReader(msgspec.msgpack.Decoder(ToEngine))


def backend_side_reader() -> FrameReader[FromEngine]:
    """A reader for what a backend receives."""
    return FrameReader(msgspec.msgpack.Decoder(FromEngine))


def _kinds(root: type[errors.UltrafastError]) -> dict[str, type[errors.UltrafastError]]:
    found = {root.__name__: root}
    for child in root.__subclasses__():
        if child.__module__ == errors.__name__:
            found |= _kinds(child)
    return found


_KINDS: Final = _kinds(errors.UltrafastError)


def failure_message(request_id: str, error: errors.UltrafastError) -> Failed:
    """An error of our tree, ready to cross the border."""
    kind = next(base.__name__ for base in type(error).__mro__ if base.__name__ in _KINDS)
    if isinstance(error, errors.RequestError):
        return Failed(request_id, kind, error.message, error.param, error.code)
    return Failed(request_id, kind, str(error))


def failure_error(failed: Failed) -> errors.UltrafastError:
    """The error that ``failed`` carries, of its own class again."""
    error_class = _KINDS.get(failed.kind, errors.EngineError)
    if issubclass(error_class, errors.RequestError):
        return error_class(failed.message, param=failed.param, code=failed.code)
    return error_class(failed.message)
