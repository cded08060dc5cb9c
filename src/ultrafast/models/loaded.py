"""A model ready to run: the typed face of the native runtime."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ultrafast import _native
from ultrafast.models.configuration import ModelConfiguration
from ultrafast.models.sampling import SamplingParameters

Int32Array = NDArray[np.int32]
Float32Array = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class StepResult:
    """What a step returns; w is the number of rows that wanted something, in ascending order."""

    rows: Int32Array  # [w] row indices
    tokens: Int32Array  # [w] sampled token, −1 where none was wanted or the row failed
    logprobs: Float32Array  # [w] log-softmax of the raw logits at that token; 0 where not wanted
    top_tokens: Int32Array  # [w, k] by (logprob descending, id ascending), padded with −1
    top_logprobs: Float32Array  # [w, k]
    logits: Float32Array  # [rows wanting logits, vocabulary_size]
    hidden: Float32Array  # [rows wanting the hidden state, hidden_size], after the final norm
    failed_sequences: Int32Array  # met a value that is not finite; their results are void


class LoadedModel:
    """Weights laid out per thread, a pool of KV blocks, and the step. One thread at a time may call it.

    A sequence is a slot in ``range(max_sequences)`` bound to KV blocks. Its entries are numbered in the order its rows
    were appended; on the committed line the entry is the position.
    """

    def __init__(
        self,
        native: _native.Model,
        configuration: ModelConfiguration,
        *,
        path: Path,
        files: tuple[Path, ...],
        instruction_set: str,
        cpus: list[int],
        threads: int,
        context: int,
        block_count: int,
        max_sequences: int,
        max_rows: int,
        weight_bytes_per_token: int,
        quantised_at_load: str | None,
        matrices_kept_float: int,
        load_seconds: float,
    ) -> None:
        self._native: _native.Model | None = native
        self.configuration = configuration
        self.path = path
        self.files = files  # that hold the weights
        self.instruction_set = instruction_set
        self.cpus = cpus  # one per thread, or empty where they are not pinned
        self.threads = threads
        self.context = context
        self.block_tokens = BLOCK_TOKENS
        self.block_count = block_count
        self.max_sequences = max_sequences
        self.max_rows = max_rows
        self.weight_bytes = native.weight_bytes
        self.weight_bytes_per_token = weight_bytes_per_token
        self.quantised_at_load = quantised_at_load  # to what; None where weights are as stored
        self.matrices_kept_float = matrices_kept_float  # by a quantisation, as their rows are not whole blocks
        self.kv_bytes_per_token = configuration.kv_values_per_token * 2
        self.load_seconds = load_seconds

    @property
    def _model(self) -> _native.Model:
        if self._native is None:
            raise ValueError("the model is closed")
        return self._native

    @property
    def huge_page_bytes(self) -> int:
        """Bytes of the weights that lie on huge pages now; 0 where the system does not tell."""
        return _huge_page_bytes(self._model.regions)

    def bind(
        self,
        sequence: int,
        blocks: Int32Array,
        sampling: SamplingParameters,
        prompt_length: int,
        choice: int = 0,
        *,
        history: Int32Array | None = None,
    ) -> None:
        """Give a free slot its KV blocks, int32[n], and sampling.

        ``history``: the first tokens, where the blocks hold their keys and values already because another sequence
        began with the same tokens; the length starts there, else at 0. Tokens at positions below ``prompt_length`` are
        the prompt. Raises ``ValueError`` where the slot is bound, a block lies outside the pool, the history outside
        the blocks or a value is out of range.
        """
        native = _native.Sampling(
            temperature=sampling.temperature,
            top_k=min(sampling.top_k, self.configuration.vocabulary_size),
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            repetition_penalty=sampling.repetition_penalty,
            presence_penalty=sampling.presence_penalty,
            frequency_penalty=sampling.frequency_penalty,
            seed=sampling.seed,
            choice=choice,
            top_logprobs=sampling.top_logprobs,
            logit_bias=list(sampling.logit_bias.items()),
        )
        self._model.bind(sequence, blocks, _NOTHING if history is None else history, prompt_length, native)

    def release(self, sequence: int) -> None:
        """Free the slot."""
        self._model.release(sequence)

    def length(self, sequence: int) -> int:
        """Entries of a bound sequence."""
        return self._model.length(sequence)

    def truncate(self, sequence: int, length: int) -> None:
        """Drop the entries from ``length`` on."""
        self._model.truncate(sequence, length)

    def copy_block(self, source: int, destination: int) -> None:
        """Copy all keys and values of a block over another block's."""
        self._model.copy_block(source, destination)

    def move(self, sequence: int, source: int, destination: int) -> None:
        """Copy entry ``source`` over entry ``destination`` <= source: keeps one branch of a tree."""
        self._model.move(sequence, source, destination)

    def step(  # noqa: PLR0917 - the order of the native step
        self,
        tokens: Int32Array,
        positions: Int32Array,
        sequences: Int32Array,
        parents: Int32Array,
        want: NDArray[np.uint8],
        allowed_mask: NDArray[np.uint32] | None = None,
    ) -> StepResult:
        """Run one forward pass over n <= max_rows rows (all arrays [n]) and append them to their sequences.

        ``parents[i]`` is −1 for a row that continues its sequence's committed history (then its position is the
        sequence's length), or an earlier row of the same sequence whose position is one less. So a chunk of a prompt,
        one next token and a tree of drafts are the same thing. ``want`` holds WANT_* bits. ``allowed_mask`` is
        uint32 [wanted rows, ceil(vocabulary_size / 32)]: bit t % 32 of word t / 32 allows token t.

        Raises ``ValueError`` and changes nothing where a row breaks these rules. The GIL is released while it runs.
        """
        return StepResult(*self._model.step(tokens, positions, sequences, parents, want, allowed_mask))

    def close(self) -> None:
        """Free weights, cache and threads."""
        self._native = None


_NOTHING = np.zeros(0, np.int32)
BLOCK_TOKENS = 32  # as kCacheBlock in native/kernels/kernels.h


def _huge_page_bytes(regions: list[tuple[int, int]]) -> int:
    try:
        lines = Path("/proc/self/smaps").read_text(encoding="utf-8").splitlines()
    except OSError:
        return 0
    total = 0
    inside = False
    for line in lines:
        head = line.split(maxsplit=1)[0]
        if "-" in head and ":" not in head:
            start, end = (int(part, 16) for part in head.split("-"))
            inside = any(address < end and start < address + size for address, size in regions)
        elif inside and head == "AnonHugePages:":
            total += int(line.split()[1]) * 1024
    return min(total, sum(size for _, size in regions))
