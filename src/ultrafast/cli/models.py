"""`ultrafast models`: the models known by name and those that are here; fetching, looking into and removing them."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ultrafast.cli import options, output
from ultrafast.errors import ConfigurationError, ModelError

if TYPE_CHECKING:
    from ultrafast.weights.cache import ModelLocation
    from ultrafast.weights.inspection import Inspection

__all__ = ["app"]

NAMES = "A known name, hf:ORG/REPO, hf:ORG/REPO:QUANTISATION or hf:ORG/REPO/FILE."

app = typer.Typer(help="Fetch models, list, inspect and remove them.", no_args_is_help=True, rich_markup_mode=None)


@app.command("pull", short_help="Fetch a model by name.")
def pull(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help=f"{NAMES} Default: the default model.")] = None,
) -> None:
    """Fetch a model and check its hashes; what is here and intact is kept.

    From a repository of the Hugging Face hub, without a quantisation named, comes the best that this version runs and
    this machine holds. An interrupted pull from the hub goes on where it stopped.
    """
    from ultrafast.cli.progress import download_progress
    from ultrafast.weights.store import DEFAULT_MODEL, pull_model

    wanted = DEFAULT_MODEL if name is None else options.text_of_argument(name)
    with download_progress() as progress:
        location = pull_model(wanted, progress=progress)
    output.write(f"{location.name}  {megabytes(location.size_bytes)}  {location.path}\n")


@app.command("list", short_help="List the known models and those that are here.")
def list_() -> None:
    """List the models known by name and those fetched from a hub, with their sizes and places."""
    from ultrafast.weights.store import DEFAULT_MODEL, list_models

    for entry in list_models():
        here = str(entry.path) if entry.path is not None else "not downloaded"
        default = " (default)" if entry.name == DEFAULT_MODEL else ""
        description = f"  {entry.description}" if entry.description else ""
        output.write(f"{entry.name}{default}  {megabytes(entry.byte_count)}{description}\n")
        output.write(f"    {here}\n")


@app.command("inspect", short_help="Show what is in a model, and what of it runs here.")
def inspect(
    models: Annotated[list[str], typer.Argument(metavar="MODEL", help="A name, a .gguf file or a folder; or several.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each model, one a line.")] = False,
) -> None:
    """Show whether a model runs here, its architecture, parameters, tensor types and sizes.

    The model is not loaded, so it may be one that cannot be run: then the exit code is 1. A file that is no model is
    named for what it is. Of several, and of a folder of files, each gets one line.
    """
    from ultrafast.weights.folders import collected_files

    wanted = [options.text_of_argument(model) for model in models]
    if len(wanted) == 1:
        wanted = collected_files(wanted[0]) or wanted
    show = _show_json if as_json else _show_line if len(wanted) > 1 else _show_table
    verdicts = [show(model) for model in wanted]
    if not all(verdicts):
        raise typer.Exit(1)


def _look_into(model: str) -> tuple[ModelLocation, Inspection, list[str]]:
    """Where the model is, what there is to know, and what speaks against running it. Raises ``ModelError``."""
    from ultrafast.models.support import reasons_against
    from ultrafast.weights import open_model
    from ultrafast.weights.inspection import inspect_source
    from ultrafast.weights.store import resolve_model

    location = resolve_model(model, fetch=False)
    with open_model(location.path, any_type=True) as source:
        return location, inspect_source(source), reasons_against(source)


def _show_table(model: str) -> bool:
    """All about one model; whether this version runs it. Raises ``ModelError`` for what is none."""
    location, facts, unsupported = _look_into(model)
    output.write(_table(location.name, facts, unsupported))
    return not unsupported


def _show_json(model: str) -> bool:
    """The same as one JSON object."""
    try:
        location, facts, unsupported = _look_into(model)
    except ModelError as error:
        output.write(json.dumps({"model": model, "error": output.one_line(str(error))}) + "\n")
        return False
    record = asdict(facts) | {"unsupported": unsupported, "types": [asdict(share) for share in facts.types]}
    record["files"] = [{"name": name, "byte_count": size} for name, size in facts.files]
    output.write(json.dumps({"model": location.name, "path": str(location.path), **record}) + "\n")
    return not unsupported


def _show_line(model: str) -> bool:
    """The verdict and the least that tells one model from another."""
    from ultrafast.models.support import in_one_line
    from ultrafast.weights.source import shown

    try:
        _, facts, unsupported = _look_into(model)
    except ModelError as error:
        unsupported = [_without_path(str(error), model)]
    if unsupported:
        line = f"unsupported  {shown(model)}: {in_one_line(unsupported)}"
    else:
        size = megabytes(sum(size for _, size in facts.files))
        line = (
            f"supported    {shown(model)}: {facts.architecture}, {_millions(facts)} parameters, "
            f"{facts.types[0].name}, {size}"
        )
    output.write(line + "\n")
    return not unsupported


def _without_path(reason: str, model: str) -> str:
    """A reason without the path at its beginning, where the line has it already."""
    from ultrafast.weights.source import shown

    for path in (shown(Path(model).absolute()), shown(model)):
        if reason.startswith((f"{path}:", f"{path}/")):
            return reason[len(path) :].lstrip(":/ ")
    return reason


def _table(name: str, facts: Inspection, unsupported: list[str]) -> str:
    rows = [
        *([("unsupported", reason) for reason in unsupported] or [("supported", "all of it")]),
        ("model", f"{name}  ({facts.format})"),
        ("architecture", facts.architecture or "not told"),
        ("parameters", _millions(facts)),
        ("context", f"{facts.context:,} tokens" if facts.context else "not told"),
        ("tensors", str(facts.tensors)),
        *(("", f"{share.name:<8}{share.tensors:>6}{megabytes(share.byte_count):>14}") for share in facts.types),
        *(("file", f"{megabytes(size)}  {file}") for file, size in facts.files),
        ("per token", f"{megabytes(facts.bytes_per_token)} of weights are read to decode one token"),
        ("tokenizer", facts.tokenizer or "none"),
        ("template", "yes" if facts.chat_template else "none: a base model, for text to be continued"),
    ]
    return "".join(f"{label:<14}{output.one_line(value) if label else value}\n" for label, value in rows)


def _millions(facts: Inspection) -> str:
    return f"{facts.parameters / 1e6:,.1f} million"


@app.command("remove", short_help="Delete a model's files from the cache.")
def remove(
    name: Annotated[str, typer.Argument(metavar="NAME", help=NAMES)],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete a model's files from the cache; files elsewhere are never touched.

    hf:ORG/REPO stands for all that is here of the repository, also of an interrupted pull.
    """
    from ultrafast.weights.store import files_to_remove, remove_model

    wanted = options.text_of_argument(name)
    files = files_to_remove(wanted)
    size = megabytes(sum(path.stat().st_size for path in files))
    count = f"{len(files)} file{'s' * (len(files) > 1)}"
    if not yes:
        if not sys.stdin or not sys.stdin.isatty():
            raise ConfigurationError(f"{count} of {size} would be deleted; --yes does it without asking")
        typer.confirm(f"Delete {count} of {size} ({files[0]}{', …' * (len(files) > 1)})?", abort=True, err=True)
    remove_model(wanted)
    output.write(f"removed {count}, {size}\n")


def megabytes(byte_count: int) -> str:
    """A size for a person."""
    return f"{byte_count / 1e6:,.1f} MB"
