"""Ultrafast's kernels and runtime (C++). tests/native/test_stub.py holds this file against the built module.

Arrays are C-contiguous; a wrong dtype is a TypeError, a value out of range a ValueError.
"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Int32Array = NDArray[np.int32]
Float32Array = NDArray[np.float32]

def instruction_sets() -> list[str]:
    """Instruction sets this processor runs, fastest first."""

def row_bytes(type: str, columns: int) -> int:
    """Bytes of a row of a matrix of that type as the engine holds it."""

def measure_read_bandwidth(threads: int, cpus: Sequence[int], byte_count: int, seconds: float) -> float:
    """Bytes per second that ``threads`` threads read together, each from its own share of ``byte_count``."""

class Sampling:
    def __init__(
        self,
        *,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        repetition_penalty: float,
        presence_penalty: float,
        frequency_penalty: float,
        seed: int,
        choice: int,
        top_logprobs: int,
        logit_bias: Sequence[tuple[int, float]],
    ) -> None: ...

class Model:
    """Declared matrix by matrix and operation by operation, then ``finish``ed; see native/runtime/model.h."""

    def __init__(
        self,
        *,
        instruction_set: str,
        threads: int,
        cpus: Sequence[int],
        vocabulary_size: int,
        hidden_size: int,
        layer_count: int,
        head_count: int,
        kv_head_count: int,
        head_size: int,
        attention_scale: float,
        context: int,
        block_count: int,
        max_sequences: int,
        max_rows: int,
    ) -> None: ...
    def add_matrix(
        self, type: str, data: NDArray[np.uint8], rows: int, columns: int, interleaved_head_size: int, layout: str
    ) -> int: ...
    def add_vector(self, values: Float32Array) -> int: ...
    def add_buffer(self, width: int) -> int: ...
    def add_rotary(self, size: int, base: float, factors: Float32Array, magnitude: float) -> int: ...
    def embed(self, table: int, destination: int, scale: float) -> None: ...
    def linear(
        self,
        source: int,
        norm: int,
        epsilon: float,
        matrices: Sequence[int],
        destination: int,
        accumulate: bool,
        biases: Sequence[int],
        scale: float,
    ) -> None: ...
    def gated(
        self, source: int, norm: int, epsilon: float, gate: int, up: int, destination: int, activation: str
    ) -> None: ...
    def norm(
        self, source: int, norm: int, epsilon: float, destination: int, accumulate: bool, scale: float
    ) -> None: ...
    def attention(
        self,
        layer: int,
        source: int,
        destination: int,
        rotary: int,
        window: int,
        query_norm: int,
        key_norm: int,
        epsilon: float,
        softcap: float,
    ) -> None: ...
    def mixture(
        self,
        source: int,
        norm: int,
        epsilon: float,
        router: int,
        gates: Sequence[int],
        ups: Sequence[int],
        downs: Sequence[int],
        used: int,
        normalise: bool,
        destination: int,
        activation: str,
        scale: float,
    ) -> None: ...
    def output(self, source: int, norm: int, epsilon: float, matrix: int, scale: float, softcap: float) -> None: ...
    def finish(self) -> None: ...
    def bind(
        self, sequence: int, blocks: Int32Array, history: Int32Array, prompt_length: int, sampling: Sampling
    ) -> None: ...
    def release(self, sequence: int) -> None: ...
    def truncate(self, sequence: int, length: int) -> None: ...
    def copy_block(self, source: int, destination: int) -> None: ...
    def move(self, sequence: int, source: int, destination: int) -> None: ...
    def length(self, sequence: int) -> int: ...
    def step(
        self,
        tokens: Int32Array,
        positions: Int32Array,
        sequences: Int32Array,
        parents: Int32Array,
        want: NDArray[np.uint8],
        allowed_mask: NDArray[np.uint32] | None = None,
    ) -> tuple[
        Int32Array, Int32Array, Float32Array, Int32Array, Float32Array, Float32Array, Float32Array, Int32Array
    ]: ...
    @property
    def weight_bytes(self) -> int: ...
    @property
    def kv_cache_bytes(self) -> int: ...
    @property
    def regions(self) -> list[tuple[int, int]]: ...

class SentencePiece:
    """Text to pieces by score; see native/runtime/sentence_piece.h."""

    def __init__(self, *, texts: Sequence[str], scores: Float32Array, types: Int32Array, unknown: int) -> None: ...
    def encode(self, text: str) -> list[int]:
        """Token ids of text whose spaces are U+2581 already; lets go of the GIL."""

class kernels:  # noqa: N801 - a submodule
    """Single kernels, for tests against their plain twins."""

    @staticmethod
    def linear(
        instruction_set: str,
        type: str,
        data: NDArray[np.uint8],
        rows: int,
        columns: int,
        interleaved_head_size: int,
        x: Float32Array,
    ) -> Float32Array: ...
    @staticmethod
    def linear_rate(
        instruction_set: str,
        type: str,
        data: NDArray[np.uint8],
        rows: int,
        columns: int,
        x: Float32Array,
        seconds: float,
    ) -> float: ...
    @staticmethod
    def split_linear(
        instruction_set: str, data: NDArray[np.uint8], rows: int, columns: int, x: Float32Array
    ) -> tuple[Float32Array, Float32Array, Float32Array, Float32Array]: ...
    @staticmethod
    def quantise(instruction_set: str, x: Float32Array) -> tuple[NDArray[np.int8], Float32Array, Int32Array]: ...
    @staticmethod
    def rms_norm(
        instruction_set: str, x: Float32Array, weight: Float32Array, epsilon: float
    ) -> tuple[Float32Array, bool]: ...
    @staticmethod
    def dequantise(
        instruction_set: str,
        type: str,
        data: NDArray[np.uint8],
        rows: int,
        columns: int,
        interleaved_head_size: int,
        in_parts: bool = False,
    ) -> Float32Array: ...
    @staticmethod
    def quantise_weights(type: str, data: NDArray[np.uint8], layout: str) -> NDArray[np.uint8]: ...
    @staticmethod
    def exp_sum(instruction_set: str, x: Float32Array, shift: float) -> tuple[Float32Array, float]: ...
    @staticmethod
    def log(instruction_set: str, x: float) -> float: ...
    @staticmethod
    def activate_multiply(
        instruction_set: str, activation: str, gate: Float32Array, up: Float32Array
    ) -> Float32Array: ...
    @staticmethod
    def attention(
        instruction_set: str,
        query: Float32Array,
        keys: Float32Array,
        values: Float32Array,
        window: int,
        scale: float,
        softcap: float,
    ) -> Float32Array: ...
    @staticmethod
    def attention_rate(
        instruction_set: str,
        query: Float32Array,
        keys: Float32Array,
        values: Float32Array,
        scale: float,
        seconds: float,
    ) -> float: ...
    @staticmethod
    def soft_cap(instruction_set: str, x: Float32Array, cap: float) -> Float32Array: ...
    @staticmethod
    def gumbel(
        instruction_set: str, seed: int, choice: int, output_index: int, count: int, ids: Sequence[int]
    ) -> Float32Array: ...
    @staticmethod
    def half_to_float(instruction_set: str, x: NDArray[np.uint16]) -> Float32Array: ...
    @staticmethod
    def arg_max(instruction_set: str, x: Float32Array) -> int: ...
