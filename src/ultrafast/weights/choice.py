"""Which files of a repository are the model that was asked for, and which quantisation to take where none was named."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ultrafast import _native
from ultrafast.errors import ModelNotFoundError, UnsupportedModelError
from ultrafast.weights.gguf import PART_NAME, TENSOR_TYPES, gguf_models
from ultrafast.weights.huggingface import CONFIGURATION_NAME, other_directory
from ultrafast.weights.safetensors import INDEX_NAME, WEIGHTS_NAME

# Best first, for a processor: a token costs the bytes that it reads, so the smallest that loses little comes first,
# then larger ones, then smaller ones that lose more, then unquantised files; last what is hardly the model any more.
PREFERRED: Final = (
    *("Q4_K_M", "Q4_K_S", "Q4_1", "Q4_0", "IQ4_NL", "IQ4_XS", "MXFP4", "NVFP4", "Q5_K_M", "Q5_K_S", "Q5_1", "Q5_0"),
    *("Q6_K", "Q8_0", "Q4_K_L", "Q4_K_XL", "Q5_K_L", "Q5_K_XL", "Q6_K_L", "Q6_K_XL", "Q8_K_XL", "Q3_K_XL", "Q3_K_L"),
    *("Q3_K_M", "IQ3_M", "Q3_K_S", "IQ3_S", "IQ3_XS", "IQ3_XXS", "Q2_K_XL", "Q2_K_L", "Q2_K", "IQ2_M", "IQ2_S"),
    *("IQ2_XS", "IQ2_XXS", "BF16", "F16", "F32", "TQ2_0", "Q2_0", "TQ1_0", "IQ1_M", "IQ1_S", "Q1_0"),
)
# The tensor types a file of this label is mostly made of, where they are not the label itself.
_TYPES_OF: Final[dict[str, frozenset[str]]] = {
    "Q2_K": frozenset(("Q2_K", "Q3_K")),
    "Q3_K": frozenset(("Q3_K", "Q5_K")),
    "Q4_K": frozenset(("Q4_K", "Q6_K")),
    "Q5_K": frozenset(("Q5_K", "Q6_K")),
    "Q8_K": frozenset(("Q8_0",)),
    "IQ1": frozenset(("IQ1_S", "IQ1_M")),
    "IQ2": frozenset(("IQ2_XS", "IQ2_S")),
    "IQ3": frozenset(("IQ3_S", "Q4_K")),
    "IQ3_XS": frozenset(("IQ3_XXS", "IQ3_S")),
}
MEMORY_SHARE: Final = 0.8  # of the machine's memory that a model chosen for a person may take

_LABEL: Final = re.compile(
    r"(?:^|[-._/])([IT]?Q[1-8]_(?:[01]|K(?:_[SML]|_XL)?|XXS|XS|NL|[SM])|(?:MX|NV)FP4|BF16|FP?16|FP?32)(?=[-._/]|$)",
    re.IGNORECASE,
)
_SHARD: Final = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
# Besides the weights, what a model directory is read for: architecture, tokenizer, template, terms.
_COMPANIONS: Final = (
    *("generation_config.json", "tokenizer.json", "tokenizer_config.json", "tokenizer.model"),
    *("special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt"),
    *("chat_template.jinja", "chat_template.json", "LICENSE", "LICENSE.md", "LICENSE.txt"),
)


@dataclass(frozen=True, slots=True)
class Candidate:
    """One model among the files of a repository: a GGUF file, the parts of one, or a directory's files."""

    label: str  # the quantisation as its file name tells it; empty where it tells none
    files: tuple[str, ...]  # the one by which it is opened last, so that it appears when all others are there
    byte_count: int

    @property
    def is_directory(self) -> bool:
        """Whether it is opened as a Hugging Face directory."""
        return CONFIGURATION_NAME in self.files

    @property
    def entry(self) -> str:
        """The file by which it is opened or recognised."""
        return self.files[-1]


def label_of(name: str) -> str:
    """The quantisation that a file's name tells, in capitals, or an empty text."""
    found = [match.group(1).upper() for match in _LABEL.finditer(name.removesuffix(".gguf"))]
    return {"FP16": "F16", "FP32": "F32"}.get(found[-1], found[-1]) if found else ""


def candidates(sizes: Mapping[str, int]) -> list[Candidate]:
    """The models among a repository's files, given with their sizes; a split model whose parts are not all there is
    none.
    """
    found = []
    for names in gguf_models(sizes):
        ordered = names[::-1]  # the first part last
        part = PART_NAME.fullmatch(ordered[-1])
        if part is None or (int(part["number"]) == 1 and int(part["count"]) == len(ordered)):
            found.append(Candidate(label_of(ordered[-1]), tuple(ordered), sum(sizes[name] for name in names)))
    weights = [WEIGHTS_NAME] if WEIGHTS_NAME in sizes else sorted(filter(_SHARD.fullmatch, sizes))
    if weights and CONFIGURATION_NAME in sizes and (WEIGHTS_NAME in sizes or INDEX_NAME in sizes):
        index = [INDEX_NAME] if WEIGHTS_NAME not in sizes else []
        companions = [name for name in _COMPANIONS if name in sizes]
        # The configuration first in a pull, to judge it; last into the cache, where it makes a directory a model.
        files = (*companions, *index, *weights, CONFIGURATION_NAME)
        found.append(Candidate("", files, sum(sizes[name] for name in files)))
    return found


def runs(label: str) -> bool:
    """Whether this version runs the tensor types that a file of this label is mostly made of."""
    return not label or _types_of(label) <= {kind.name for kind in TENSOR_TYPES.values()}


def _types_of(label: str) -> frozenset[str]:
    stem = re.sub(r"_(?:S|M|L|XL)$", "", label)
    return _TYPES_OF.get(stem, frozenset((stem,)))


def memory_taken(candidate: Candidate) -> int:
    """Bytes that a candidate's weights take, at most: types with codebooks are laid out in more than the file has."""
    types = _types_of(candidate.label)
    growth = [
        _native.row_bytes(kind.name, kind.block_elements) / kind.block_bytes
        for kind in TENSOR_TYPES.values()
        if kind.name in types
    ]
    return round(candidate.byte_count * max(growth, default=1.0))


def memory_bytes() -> int:
    """The memory of this machine. Not what is free right now: the same name is to mean the same file tomorrow."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def named(found: list[Candidate], repository: str, *, file: str | None, quantisation: str | None) -> Candidate:
    """The candidate that was asked for by file name or quantisation.

    Raises ``ModelNotFoundError`` where there is none, and lists the quantisations that there are.
    """
    if file is not None:
        fitting = [one for one in found if file in one.files and not one.is_directory]
        wanted = "GGUF file of that name"
    else:
        fitting = [one for one in found if quantisation and one.label == quantisation.upper()]
        wanted = "file of that quantisation"
    if not fitting:
        labels = sorted({one.label for one in found if one.label})
        there_are = f"; there are {', '.join(labels[:30])}" if labels else ""
        raise ModelNotFoundError(f"{repository} has no {wanted}{there_are}")
    return min(fitting, key=lambda one: (len(one.entry), one.entry))


def best(found: list[Candidate], names: Iterable[str], repository: str, *, memory: int | None) -> tuple[Candidate, str]:
    """The candidate to take where none was named, and why, in a few words.

    ``memory`` bounds its size; None where it is here already. Raises ``UnsupportedModelError`` where nothing can be
    run.
    """
    if not found:
        kind = other_directory(Path(), set(names)) or "it has no model"
        raise UnsupportedModelError(f"{repository}: {kind}")
    quantised = [one for one in found if not one.is_directory]
    if not quantised:
        fitting = found
    else:
        fitting = [one for one in quantised if runs(one.label)] or ([] if memory is not None else quantised)
    if not fitting:
        labels = ", ".join(sorted({one.label for one in quantised}))
        raise UnsupportedModelError(f"{repository}: none of its quantisations can be run by this version ({labels})")
    small = [one for one in fitting if memory is None or memory_taken(one) <= memory * MEMORY_SHARE]
    if not small:
        least = min(map(memory_taken, fitting))
        raise UnsupportedModelError(
            f"{repository}: takes {least / 1e9:.1f} GB of memory and this machine has {(memory or 0) / 1e9:.1f} GB; "
            "name a quantisation (:Q4_0) or a file to fetch it all the same"
        )
    ranks = {label: rank for rank, label in enumerate(PREFERRED)}
    chosen = min(small, key=lambda one: (ranks.get(one.label, len(ranks)), len(one.entry), one.entry))
    if chosen.is_directory:
        return chosen, "float weights"
    if len(quantised) == 1:
        return chosen, "the only one there"
    return chosen, f"of {len(quantised)} the best that this version runs and this machine holds"
