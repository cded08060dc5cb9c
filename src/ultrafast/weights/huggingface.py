"""A model as the Hugging Face hub keeps it: a directory with ``config.json`` and safetensors files."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from ultrafast.errors import ModelNotFoundError
from ultrafast.weights.gguf import gguf_models, is_gguf
from ultrafast.weights.json_text import read_object
from ultrafast.weights.safetensors import INDEX_NAME, WEIGHTS_NAME, inner_file, open_indexed, open_safetensors
from ultrafast.weights.source import Complaints, ModelSource, shown

CONFIGURATION_NAME: Final = "config.json"

ADAPTER_NAME: Final = "adapter_config.json"

LORA: Final = "a LoRA adapter, not a model: merge it into its base model, and name the merged model"

_FETCH_OTHER: Final = "which is not supported: fetch the model's safetensors or GGUF files"
_METHODS: Final = frozenset(
    ("gptq", "awq", "bitsandbytes", "fp8", "compressed-tensors", "mxfp4", "hqq", "aqlm", "quanto", "torchao")
)
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_NAMED_FILES: Final = 8  # in one line
_LISTED_ENTRIES: Final = 10_000  # of a directory; what lies beyond is not looked at


class HuggingFaceDirectory(ModelSource):
    """An open, validated directory; made by ``open_directory``.

    ``metadata`` is ``config.json`` as it stands. A key of the accessors may reach into it with dots
    (``rope_scaling.factor``); ``null`` counts as absent, and a list of numbers is an array of numbers.
    """

    def find(self, key: str) -> Any:
        """The value at ``key``, or None where there is none."""
        value: Any = self.metadata
        for part in key.split("."):
            if not isinstance(value, dict):
                return None
            value = value.get(part)
        if not isinstance(value, list) or all(isinstance(element, str) for element in value):
            return value
        if all(isinstance(element, int | float) and not isinstance(element, bool) for element in value):
            integral = all(isinstance(element, int) and -(2**63) <= element < 2**63 for element in value)
            return np.array([_number(element) for element in value], np.int64 if integral else np.float64)
        return tuple(value)


def _number(value: float) -> float:
    try:
        float(value)
    except OverflowError:  # an integer beyond all floats
        return float("inf") if value > 0 else float("-inf")
    return value


def open_directory(path: str | Path, *, any_type: bool = False) -> HuggingFaceDirectory:
    """Open and validate the model in the directory ``path``.

    Raises ``ModelNotFoundError`` where there is none, ``ModelFileError`` for a damaged or hostile one, and
    ``UnsupportedModelError`` for what this version cannot run. ``any_type`` is for inspection, as in ``open_gguf``.
    """
    directory = Path(path)
    complaints = Complaints(directory)
    names = entry_names(directory)
    if kind := other_directory(directory, names):
        complaints.unsupported(kind)
    configuration = read_object(inner_file(directory, CONFIGURATION_NAME, complaints))
    if not any_type and (scheme := quantised(configuration)):
        complaints.unsupported(f"its weights are quantised ({scheme}), which is not supported: fetch it as GGUF")
    if not isinstance(configuration.get("model_type"), str):
        Complaints(directory / CONFIGURATION_NAME).damaged("has no model_type: it describes no model")
    if WEIGHTS_NAME in names:
        weights = inner_file(directory, WEIGHTS_NAME, complaints)
        tensors = open_safetensors(weights, any_type=any_type)
        files: tuple[Path, ...] = (weights,)
    else:
        tensors, files = open_indexed(directory, any_type=any_type)
    return HuggingFaceDirectory(directory, configuration, tensors, files)


def weights_bytes(directory: Path) -> int:
    """The size of a model directory's weights. Raises as ``open_directory`` where it holds no model."""
    if kind := other_directory(directory, entry_names(directory)):
        Complaints(directory).unsupported(kind)
    return sum(path.stat().st_size for path in directory.glob("*.safetensors") if path.is_file())


def entry_names(directory: Path) -> set[str]:
    """What lies in a folder, up to a number. Raises ``ModelNotFoundError`` where it cannot be read."""
    names = set()
    try:
        for entry in directory.iterdir():
            names.add(entry.name)
            if len(names) >= _LISTED_ENTRIES:
                break
    except OSError as error:
        raise ModelNotFoundError(f"{shown(directory)}: {error.strerror or 'not a readable folder'}") from error
    return names


def is_model(names: set[str]) -> bool:
    """Whether a folder of these names is opened as a model."""
    return CONFIGURATION_NAME in names and (WEIGHTS_NAME in names or INDEX_NAME in names)


def other_directory(directory: Path, names: set[str]) -> str | None:
    """What a folder is that holds no model to open as one, and what to do; None for one that does."""
    if is_model(names):
        return None
    has_weights = WEIGHTS_NAME in names or INDEX_NAME in names
    gguf = [group[0] for group in gguf_models(names)] or sorted(name for name in names if is_gguf(name))
    describes = not names.isdisjoint((CONFIGURATION_NAME, "tokenizer.json", "tokenizer.model"))
    pickle = (
        "holds its weights as a pickle only, which may run any program when it is read, and so is never read: "
        "fetch the model as safetensors or GGUF"
    )
    odd_names = f"has safetensors files, but none named {WEIGHTS_NAME} nor an index: fetch the model in that form"
    kinds = (
        (ADAPTER_NAME in names, LORA),
        (bool(gguf), _one_of(gguf)),
        (not names, "an empty folder: name a .gguf file"),
        (has_weights, f"has weights but no {CONFIGURATION_NAME}: fetch the whole model"),
        (any(name.lower().endswith(_PICKLES) for name in names), pickle),
        (any(name.endswith(".onnx") for name in names), f"an ONNX model, {_FETCH_OTHER}"),
        ("weights.npz" in names, f"an MLX model, {_FETCH_OTHER}"),
        (any(name.endswith(".safetensors") for name in names), odd_names),
        (describes, "has no weights (a tokenizer or a description only): fetch the whole model"),
        (True, f"a folder without a model: name a .gguf file, or one with {CONFIGURATION_NAME} and {WEIGHTS_NAME}"),
    )
    return next(kind for applies, kind in kinds if applies)


def _one_of(gguf: list[str]) -> str:
    several = len(gguf) > 1
    named = ", ".join(shown(name) for name in gguf[:_NAMED_FILES]) + ", …" * (len(gguf) > _NAMED_FILES)
    return f"a folder with {len(gguf)} GGUF file{'s' * several}: name {'one of them' if several else 'it'}: {named}"


def quantised(configuration: dict[str, Any]) -> str | None:
    """The scheme by which the weights of a directory were quantised, or None for plain float weights."""
    scheme = configuration.get("quantization_config")
    if scheme is None and isinstance(configuration.get("text_config"), dict):
        scheme = configuration["text_config"].get("quantization_config")
    if isinstance(scheme, dict):
        method = scheme.get("quant_method")
        return method if method in _METHODS else "an unknown method"
    if scheme is not None:
        return "an unknown method"
    # MLX's converter writes this key, for weights packed into integers.
    return "mlx" if isinstance(configuration.get("quantization"), dict) else None
