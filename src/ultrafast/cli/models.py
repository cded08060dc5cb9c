"""`ultrafast models`: the models known by name, and the files that are here."""

from __future__ import annotations

from typing import Annotated

import typer

from ultrafast.cli import options, output

__all__ = ["app"]

app = typer.Typer(help="Download models and list them.", no_args_is_help=True, rich_markup_mode=None)


@app.command("pull", short_help="Download a model by name.")
def pull(
    name: Annotated[str | None, typer.Argument(metavar="NAME", help="Default: the default model.")] = None,
) -> None:
    """Download a model by name and check its SHA-256; one that is here and intact is kept."""
    from ultrafast.cli.progress import download_progress
    from ultrafast.weights.store import DEFAULT_MODEL, pull_model

    wanted = DEFAULT_MODEL if name is None else options.text_of_argument(name)
    with download_progress() as progress:
        location = pull_model(wanted, progress=progress)
    output.write(f"{location.name}  {location.size_bytes / 1e6:.1f} MB  {location.path}\n")


@app.command("list", short_help="List the known models and their files.")
def list_() -> None:
    """List the models known by name, and where the downloaded ones are."""
    from ultrafast.weights.store import DEFAULT_MODEL, list_models

    for entry in list_models():
        here = str(entry.path) if entry.path is not None else "not downloaded"
        default = " (default)" if entry.name == DEFAULT_MODEL else ""
        description = f"  {entry.description}" if entry.description else ""
        output.write(f"{entry.name}{default}  {entry.byte_count / 1e6:.1f} MB{description}\n")
        output.write(f"    {here}\n")
