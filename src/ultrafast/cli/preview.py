"""`ultrafast preview`: which projects may use the tier ultrafast."""

from __future__ import annotations

from typing import Annotated

import typer

from ultrafast.cli import options
from ultrafast.cli.administration import DataDirectory, administer, path_part, show, show_project

__all__ = ["app"]

app = typer.Typer(help="Say which projects may use the tier ultrafast.", no_args_is_help=True, rich_markup_mode=None)

Project = Annotated[str, typer.Argument(metavar="PROJECT", help="The project's name.")]


@app.command("list", short_help="List the projects in the preview.")
def list_(directory: DataDirectory = None, as_json: options.Json = False) -> None:
    """List the projects in the preview, a name a line."""
    content = administer(directory, "GET", "/preview")
    show(content, [row["name"] for row in content["data"]], as_json=as_json)


@app.command("grant", short_help="Let a project into the preview.")
def grant(project: Project, directory: DataDirectory = None, as_json: options.Json = False) -> None:
    """Let a project into the preview, from its next request on."""
    content = administer(directory, "PUT", f"/preview/{path_part(project)}")
    show(content, [f"project {content['name']} is in the preview"], as_json=as_json)


@app.command("revoke", short_help="Take a project out of the preview.")
def revoke(project: Project, directory: DataDirectory = None, as_json: options.Json = False) -> None:
    """Take a project out of the preview, from its next request on."""
    content = administer(directory, "DELETE", f"/preview/{path_part(project)}")
    show_project(content, f"project {content['name']} is not in the preview", as_json=as_json)
