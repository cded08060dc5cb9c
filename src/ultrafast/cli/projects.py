"""`ultrafast projects`: who is served and billed."""

from __future__ import annotations

from typing import Annotated

import typer

from ultrafast.cli import options
from ultrafast.cli.administration import DataDirectory, administer, path_part, show, show_project, table, when

__all__ = ["app"]

app = typer.Typer(help="List, create and change projects.", no_args_is_help=True, rich_markup_mode=None)

Tier = typer.Option(
    "--default-tier",
    metavar="TIER",
    help="What a request gets that names no tier: ultrafast, priority, default or flex.",
)


@app.command("list", short_help="List the projects.")
def list_(directory: DataDirectory = None, as_json: options.Json = False) -> None:
    """List the projects: their default tier, and whether they are in the preview of the tier ultrafast."""
    content = administer(directory, "GET", "/projects")
    if as_json:
        show(content, [], as_json=True)
        return
    rows = [
        (row["name"], row["default_tier"], "yes" if row["in_preview"] else "no", when(row["created"]))
        for row in content["data"]
    ]
    table(("name", "default tier", "in preview", "created"), rows)


@app.command("create", short_help="Create a project.")
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Letters, digits, dots, hyphens and underscores.")],
    default_tier: Annotated[str, Tier] = "default",
    directory: DataDirectory = None,
    as_json: options.Json = False,
) -> None:
    """Create a project: without a key (ultrafast keys create) and outside the preview (ultrafast preview grant)."""
    body = {"name": options.text_of_argument(name), "default_tier": options.text_of_argument(default_tier)}
    content = administer(directory, "POST", "/projects", body=body)
    show_project(content, f"created project {content['name']} ({content['id']})", as_json=as_json)


@app.command("update", short_help="Change a project's default tier.")
def update(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The project.")],
    default_tier: Annotated[str, Tier],
    directory: DataDirectory = None,
    as_json: options.Json = False,
) -> None:
    """Change the tier of a project's requests that name none, from the next request on."""
    body = {"default_tier": options.text_of_argument(default_tier)}
    content = administer(directory, "PATCH", f"/projects/{path_part(name)}", body=body)
    show_project(content, f"project {content['name']}: default tier {content['default_tier']}", as_json=as_json)
