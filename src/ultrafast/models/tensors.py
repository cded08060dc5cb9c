"""The tensors of a model by one set of names, GGUF's, whatever the format and however they are fused or stacked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ultrafast.errors import ModelFileError, UnsupportedModelError
from ultrafast.models.architecture import LAYER_NAMES, Architecture
from ultrafast.models.architectures import parts_of
from ultrafast.models.facts import Float32Array, float_values
from ultrafast.weights import ModelSource
from ultrafast.weights.gguf import GgufFile
from ultrafast.weights.source import Tensor, quoted, shown

# Where a directory keeps the decoder; the latter two are of models that also see.
_ROOTS: Final = ("model.", "language_model.model.", "model.language_model.")
_HEADS: Final = ("lm_head.weight", "language_model.lm_head.weight")
_EXPERTS: Final = "mlp.experts."


class TensorSource:
    """Takes tensors out of a model by name and shape, and remembers which were taken.

    A name is that of GGUF without ``.weight``: ``token_embd``, ``attn_q`` of a layer. Errors name the file's own.
    """

    def __init__(self, source: ModelSource, architecture: Architecture, described: Iterable[str] = ()) -> None:
        self._source = source
        self._architecture = architecture
        self._taken = set(described)
        self._is_gguf = isinstance(source, GgufFile)
        tensors = source.tensors
        self._root = next((root for root in _ROOTS if f"{root}embed_tokens.weight" in tensors), _ROOTS[0])
        self._head = next((head for head in _HEADS if head in tensors), _HEADS[0])

    def matrix(self, name: str, rows: int, columns: int, *, layer: int | None = None) -> Tensor:
        """One matrix."""
        return self._take(self._name(name, "weight", layer), (rows, columns))

    def matrices(self, names: Sequence[str], rows: Sequence[int], columns: int, *, layer: int) -> list[Tensor]:
        """Matrices with the same input, which the architecture may keep as one."""
        whole = self._architecture.fused.get(tuple(names))
        if whole is None:
            return [self.matrix(name, count, columns, layer=layer) for name, count in zip(names, rows, strict=True)]
        tensor = self.matrix(whole, sum(rows), columns, layer=layer)
        ends = np.cumsum(rows).tolist()
        return [_rows(tensor, end - count, end) for end, count in zip(ends, rows, strict=True)]

    def experts(self, rows: int, columns: int, count: int, *, layer: int) -> tuple[list[Tensor], ...]:
        """(gates, ups, downs) of all experts of a layer; gates and ups are ``[rows, columns]``, downs the reverse."""
        names, shapes = ("ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"), (rows, rows, columns)
        if self._is_gguf:
            return tuple(
                _stack(self._take(self._name(name, "weight", layer), (count, height, rows + columns - height)))
                for name, height in zip(names, shapes, strict=True)
            )
        stacked = f"{self._root}layers.{layer}.{_EXPERTS}"
        if f"{stacked}gate_up_proj" in self._source.tensors:
            both = _stack(self._take(f"{stacked}gate_up_proj", (count, 2 * rows, columns)))
            downs = _stack(self._take(f"{stacked}down_proj", (count, columns, rows)))
            return [_rows(one, 0, rows) for one in both], [_rows(one, rows, 2 * rows) for one in both], downs
        return tuple(
            [
                self._take(self._name(name, "weight", layer).format(index), (height, rows + columns - height))
                for index in range(count)
            ]
            for name, height in zip(names, shapes, strict=True)
        )

    def vector(self, name: str, length: int, *, layer: int | None = None, kind: str = "weight") -> Float32Array:
        """A small float tensor as float32, all finite; ``kind`` is weight or bias.

        A failed training leaves its mark here too. A matrix may have such rows: they fail what reads them only.
        """
        tensor = self._take(self._name(name, kind, layer), (length,))
        values = float_values(tensor, self._source)
        if not np.isfinite(values).all():
            raise ModelFileError(
                f"{shown(self._source.path)}: tensor {tensor.name} holds values that are not finite: a damaged file, "
                "or a model whose training failed"
            )
        return values

    def norm(self, name: str, length: int, *, layer: int | None = None) -> Float32Array:
        """The factors of a norm."""
        values = self.vector(name, length, layer=layer)
        return values if self._is_gguf else values + np.float32(self._architecture.norm_offset)

    def refuse_rest(self, *, tied: bool) -> None:
        """Raise ``UnsupportedModelError`` if a tensor was not taken: to ignore it would change answers."""
        rest = sorted(name for name in self._source.tensors.keys() - self._taken if not self._is_idle(name, tied))
        if rest:
            raise UnsupportedModelError(
                f"{shown(self._source.path)}: {len(rest)} tensors, such as {quoted(rest[0])}, have no place in this "
                f"architecture as supported here ({parts_of(rest) or 'of an unknown part'})"
            )

    def _is_idle(self, name: str, tied: bool) -> bool:
        """Whether a tensor of a directory plays no part: a copy of the embedding, a table that can be computed."""
        if self._is_gguf:
            return False
        if name.startswith(self._architecture.skipped) if self._architecture.skipped else False:
            return True
        return name.endswith(".rotary_emb.inv_freq") or (tied and name == self._head)

    def _name(self, name: str, kind: str, layer: int | None) -> str:
        if self._is_gguf:
            return f"{name}.{kind}" if layer is None else f"blk.{layer}.{name}.{kind}"
        if layer is None:
            return {
                "token_embd": f"{self._root}embed_tokens.{kind}",
                "output_norm": f"{self._root}norm.{kind}",
                "output": self._head,
            }[name]
        return f"{self._root}layers.{layer}.{self._architecture.names.get(name) or LAYER_NAMES[name]}.{kind}"

    def _take(self, name: str, shape: tuple[int, ...]) -> Tensor:
        tensor = self._source.tensors.get(name)
        if tensor is None:
            raise ModelFileError(f"{shown(self._source.path)}: tensor {name} is missing")
        if tensor.shape != shape:
            raise ModelFileError(
                f"{shown(self._source.path)}: tensor {name} has shape {tensor.shape}, expected {shape}"
            )
        self._taken.add(name)
        return tensor


def _rows(tensor: Tensor, start: int, end: int) -> Tensor:
    """Rows of a matrix: they lie one after the other, so a slice of its bytes."""
    row_bytes = tensor.byte_count // tensor.shape[0]
    data = tensor.data[start * row_bytes : end * row_bytes]
    return replace(tensor, shape=(end - start, *tensor.shape[1:]), byte_count=len(data), data=data)


def _stack(tensor: Tensor) -> list[Tensor]:
    """The matrices of a tensor of three axes."""
    return [
        replace(one, shape=tensor.shape[1:])
        for one in (_rows(tensor, index, index + 1) for index in range(tensor.shape[0]))
    ]
