"""`ultrafast keys`: what opens the API to a project's clients."""

from __future__ import annotations

from typing import Annotated

import typer

from ultrafast.cli import options, output
from ultrafast.cli.administration import DataDirectory, administer, path_part, show, table, when

__all__ = ["app"]

app = typer.Typer(help="List, create and revoke API keys.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list", short_help="List the keys.")
def list_(
    project: Annotated[str | None, typer.Option("--project", metavar="NAME", help="Only this project's.")] = None,
    directory: DataDirectory = None,
    as_json: options.Json = False,
) -> None:
    """List the keys, also revoked ones, by their ids and last letters; the keys themselves are kept nowhere."""
    parameters = {} if project is None else {"project": options.text_of_argument(project)}
    content = administer(directory, "GET", "/keys", parameters=parameters)
    if as_json:
        show(content, [], as_json=True)
        return
    rows = [
        (
            row["id"],
            row["project"],
            row["name"],
            f"…{row['hint']}" if row["hint"] else "",
            when(row["created"]),
            when(row["revoked"]),
        )
        for row in content["data"]
    ]
    table(("id", "project", "name", "key", "created", "revoked"), rows)


@app.command("create", short_help="Create a key for a project.")
def create(
    project: Annotated[str, typer.Option("--project", metavar="NAME", help="The project whose key it is.")],
    name: Annotated[str | None, typer.Option("--name", metavar="TEXT", help="What to call it in lists.")] = None,
    directory: DataDirectory = None,
    as_json: options.Json = False,
) -> None:
    """Create a key and print it, this once; only its hash is kept."""
    body = {"project": options.text_of_argument(project)}
    if name is not None:
        body["name"] = options.text_of_argument(name)
    content = administer(directory, "POST", "/keys", body=body)
    if not as_json:
        output.note(f"created {content['id']} for project {content['project']}; the key is shown only now:")
    show(content, [content["secret"]], as_json=as_json)


@app.command("revoke", short_help="Revoke a key.")
def revoke(
    key_id: Annotated[str, typer.Argument(metavar="ID", help="The key's id, key_…, as ultrafast keys list shows it.")],
    directory: DataDirectory = None,
    as_json: options.Json = False,
) -> None:
    """Let a key open nothing from now on; one that is revoked already stays so."""
    content = administer(directory, "POST", f"/keys/{path_part(key_id)}/revoke")
    done = "revoked" if content["was_active"] else "was revoked already:"
    show(content, [f"{done} {content['id']} ({content['name']}) of project {content['project']}"], as_json=as_json)
