"""Which matrices are quantised while they are laid out, where that was asked for, and to which types."""

from __future__ import annotations

from typing import Final

from ultrafast.errors import ConfigurationError
from ultrafast.weights.gguf import TENSOR_TYPES
from ultrafast.weights.source import Tensor

# By name: the type of the products between the layers' states, and that of the embedding and the output layer. The
# latter lose most by four bits, and common four-bit files keep more there too.
QUANTISATIONS: Final = {"q8_0": ("Q8_0", "Q8_0"), "q4_1": ("Q4_1", "Q8_0")}
_FLOATS: Final = ("F32", "F16", "BF16")
_TYPES: Final = {kind.name: kind for kind in TENSOR_TYPES.values()}


class Quantisation:
    """Chooses the type each matrix is laid out as. ``name`` is a key of ``QUANTISATIONS``, or None: as stored.

    Raises ``ConfigurationError`` for another name.
    """

    def __init__(self, name: str | None) -> None:
        if name is not None and name not in QUANTISATIONS:
            raise ConfigurationError(f"weights are quantised at load (--quantize) to {' or '.join(QUANTISATIONS)} only")
        self.name = name
        self.quantised = 0  # matrices so far
        self.kept_float = 0  # of those that would have been quantised if their rows were whole blocks

    def layout(self, tensor: Tensor, *, table: bool) -> str:
        """The type for a matrix; ``table`` for the embedding and the output layer.

        Raises ``ConfigurationError`` where the file is quantised already.
        """
        if self.name is None:
            return tensor.type_name
        if tensor.type_name not in _FLOATS:
            raise ConfigurationError(
                f"the model is quantised already ({tensor.name} is {tensor.type_name}): load it without --quantize"
            )
        wanted = QUANTISATIONS[self.name][table]
        if tensor.shape[-1] % _TYPES[wanted].block_elements:
            self.kept_float += 1
            return tensor.type_name
        self.quantised += 1
        return wanted

    def check(self) -> None:
        """After the last matrix: raise ``ConfigurationError`` if nothing could be quantised."""
        if self.name is not None and not self.quantised:
            raise ConfigurationError("no row of this model is whole blocks of 32 values: load it without --quantize")
