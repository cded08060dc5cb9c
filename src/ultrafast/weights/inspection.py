"""What a model's files say of it, without loading it: also of models that this version cannot run."""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ultrafast import _native
from ultrafast.errors import ModelError
from ultrafast.weights import gguf, safetensors
from ultrafast.weights.gguf import GgufFile
from ultrafast.weights.huggingface import HuggingFaceDirectory, quantised
from ultrafast.weights.json_text import read_object
from ultrafast.weights.source import ModelSource, Tensor

MAX_TOKENIZER_BYTES: Final = 128 << 20

_PLAIN: Final = re.compile(r"[A-Za-z0-9_.\- ]{1,60}")
# Read row by row where a token stands, not as a whole.
_LOOKED_UP: Final = (
    *("token_embd.weight", "position_embd.weight", "per_layer_token_embd.weight"),
    *("model.embed_tokens.weight", "language_model.model.embed_tokens.weight", "transformer.wte.weight"),
)
_RUNNABLE: Final = frozenset(kind.name for kind in gguf.TENSOR_TYPES.values())
_QUANTISED_COLUMNS: Final = 32  # rows of whole blocks are quantised at load
_OUTPUTS: Final = ("output.weight", "lm_head.weight", "language_model.lm_head.weight")


@dataclass(frozen=True, slots=True)
class TypeShare:
    """The tensors of one type."""

    name: str
    tensors: int
    byte_count: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """Facts about a model; None where its files do not tell."""

    format: str
    architecture: str | None
    parameters: int
    tensors: int
    types: tuple[TypeShare, ...]  # the largest first
    files: tuple[tuple[str, int], ...]  # names and sizes
    context: int | None
    bytes_per_token: int  # of weights that one step of decoding reads
    tokenizer: str | None
    chat_template: bool


def inspect_source(source: ModelSource) -> Inspection:
    """Look over an open model; open it with ``any_type``."""
    counts: Counter[str] = Counter()
    sizes: Counter[str] = Counter()
    for tensor in source.tensors.values():
        counts[tensor.type_name] += 1
        sizes[tensor.type_name] += tensor.byte_count
    types = tuple(TypeShare(name, counts[name], size) for name, size in sizes.most_common())
    if isinstance(source, GgufFile):
        form, prefix = f"GGUF {source.version}", _text(source, "general.architecture")
        context = _size(source, f"{prefix}.context_length")
        architecture, tokenizer = prefix, _gguf_tokenizer(source)
        template = isinstance(source.find("tokenizer.chat_template"), str)
    else:
        form, architecture = "safetensors", _text(source, "model_type")
        context = _size(source, "max_position_embeddings") or _size(source, "text_config.max_position_embeddings")
        tokenizer, template = _directory_tokenizer(source.path), _directory_template(source.path)
    return Inspection(
        format=form,
        architecture=architecture,
        parameters=sum(math.prod(tensor.shape) for tensor in source.tensors.values()),
        tensors=len(source.tensors),
        types=types,
        files=tuple((path.name, path.stat().st_size) for path in source.files),
        context=context,
        bytes_per_token=_bytes_per_token(source),
        tokenizer=tokenizer,
        chat_template=template,
    )


def unsupported_form(source: ModelSource) -> list[str]:
    """What this version does not run of the form of a model's weights, in at most one line."""
    if isinstance(source, HuggingFaceDirectory) and (scheme := quantised(source.metadata)):
        return [f"weights quantised by {scheme}"]
    runnable = _RUNNABLE if isinstance(source, GgufFile) else safetensors.ELEMENT_BYTES.keys()
    others = sorted({tensor.type_name for tensor in source.tensors.values()} - runnable)
    return [f"tensor type{'s' * (len(others) > 1)} {', '.join(others)}"] if others else []


def _bytes_per_token(source: ModelSource) -> int:
    """Matrices only. A looked-up embedding counts where it is the output layer too; experts by the share chosen."""
    tied = not any(name in source.tensors for name in _OUTPUTS)
    total = 0.0
    for name, tensor in source.tensors.items():
        if len(tensor.shape) < 2 or (name in _LOOKED_UP and not (tied and name == _first_embedding(source))):
            continue
        total += bytes_in_memory(tensor) * _expert_share(source, name, tensor)
    return round(total)


def bytes_in_memory(tensor: Tensor, quantised_to: str | None = None) -> int:
    """As the engine lays it out, matrices perhaps quantised; of a type that it does not run, as the file has it."""
    kind = tensor.type_name
    if kind not in _RUNNABLE or not tensor.shape:
        return tensor.byte_count
    columns = tensor.shape[-1]
    if quantised_to is not None and len(tensor.shape) > 1 and columns % _QUANTISED_COLUMNS == 0:
        kind = quantised_to
    return math.prod(tensor.shape[:-1]) * _native.row_bytes(kind, columns)


def _first_embedding(source: ModelSource) -> str | None:
    tokens = [name for name in _LOOKED_UP if not name.startswith(("position", "per_layer"))]
    return next((name for name in tokens if name in source.tensors), None)


def _expert_share(source: ModelSource, name: str, tensor: Tensor) -> float:
    if "_exps." not in name and ".experts." not in name:
        return 1.0
    architecture = _text(source, "general.architecture") if isinstance(source, GgufFile) else None
    keys = (
        [(f"{architecture}.expert_used_count", f"{architecture}.expert_count")]
        if architecture
        else [("num_experts_per_tok", "num_experts"), ("num_experts_per_tok", "num_local_experts")]
    )
    for used_key, count_key in keys:
        used, count = _size(source, used_key), _size(source, count_key)
        if used and count:
            return min(1.0, used / count)
    return 1.0


def _text(source: ModelSource, key: str) -> str | None:
    value = source.find(key)
    return value if isinstance(value, str) and _PLAIN.fullmatch(value) else None


def _size(source: ModelSource, key: str) -> int | None:
    value = source.find(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _gguf_tokenizer(source: GgufFile) -> str | None:
    model, pre = _text(source, "tokenizer.ggml.model"), _text(source, "tokenizer.ggml.pre")
    return f"{model} ({pre})" if model and pre else model


def _directory_tokenizer(directory: Path) -> str | None:
    """The kind that tokenizer.json names, or the file that there is."""
    try:
        model = read_object(directory / "tokenizer.json", max_bytes=MAX_TOKENIZER_BYTES).get("model")
    except ModelError:
        return "SentencePiece (tokenizer.model)" if (directory / "tokenizer.model").is_file() else None
    kind = model.get("type") if isinstance(model, dict) else None
    return f"{kind} (tokenizer.json)" if isinstance(kind, str) and _PLAIN.fullmatch(kind) else "tokenizer.json"


def _directory_template(directory: Path) -> bool:
    if any((directory / name).is_file() for name in ("chat_template.jinja", "chat_template.json")):
        return True
    try:
        return bool(read_object(directory / "tokenizer_config.json").get("chat_template"))
    except ModelError:
        return False
