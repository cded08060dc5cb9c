"""What speaks against running a model: all of it, where loading ends at the first."""

from __future__ import annotations

from pathlib import Path

from ultrafast.errors import ModelError, UnsupportedModelError
from ultrafast.models import check_model
from ultrafast.models.description import describe
from ultrafast.models.text import read_template, read_tokenizer
from ultrafast.weights import ModelSource, open_model
from ultrafast.weights.gguf import GgufFile, other_content
from ultrafast.weights.inspection import unsupported_form
from ultrafast.weights.source import shown


def reasons_against(source: ModelSource, template_file: Path | None = None) -> list[str]:
    """Why this version does not run an open model, without its path; open it with ``any_type``.

    Of a file that is no language model only that is said: what else it lacks helps nobody.
    """
    if isinstance(source, GgufFile) and (kind := other_content(source.metadata, len(source.tensors))):
        return [kind]
    reasons = unsupported_form(source)
    try:
        # Of weights in another form, no more than the description can be judged.
        if reasons:
            describe(source)
        else:
            check_model(source)
    except ModelError as error:
        reasons.append(_without_path(error, source.path))
    try:
        read_template(source, read_tokenizer(source), template_file)
    except ModelError as error:
        # A directory's tokenizer is read by the description, which may have failed before.
        if (reason := _without_path(error, source.path)) not in reasons:
            reasons.append(reason)
    return reasons


def in_full(error: UnsupportedModelError, path: Path, template_file: Path | None = None) -> UnsupportedModelError:
    """``error``, the first thing found against the model at ``path``, with whatever else there is."""
    try:
        with open_model(path, any_type=True) as source:
            reasons = reasons_against(source, template_file)
            return UnsupportedModelError(f"{shown(source.path)}: {in_one_line(reasons)}") if reasons[1:] else error
    except ModelError:
        return error


def in_one_line(reasons: list[str]) -> str:
    """All of them, for a person."""
    return "; also: ".join(reasons)


def _without_path(error: ModelError, path: Path) -> str:
    return str(error).removeprefix(f"{shown(path)}: ").removeprefix(f"{path.name}: ")
