"""`ultrafast capacity`: how many sequences run at once at each tier."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from ultrafast.cli import options
from ultrafast.cli.administration import DataDirectory, administer, path_part, show, table
from ultrafast.gateway.records.limits import MAXIMUM_SLOTS

__all__ = ["app"]

app = typer.Typer(help="Show and set the tiers' slots.", no_args_is_help=True, rich_markup_mode=None)

Tier = Annotated[str, typer.Argument(metavar="TIER", help="ultrafast, priority, default or flex.")]


@app.command("show", short_help="Show the tiers' slots and their use.")
def show_(directory: DataDirectory = None, as_json: options.Json = False) -> None:
    """Show each tier's slots, how many of them are in use, and how many requests wait.

    Where no server runs, only what was set is known.
    """
    content = administer(directory, "GET", "/capacity")
    if as_json:
        show(content, [], as_json=True)
        return
    rows = [
        (row["tier"], _slots(row), *("" if row[name] is None else str(row[name]) for name in ("used", "waiting")))
        for row in content["data"]
    ]
    table(("tier", "slots", "used", "waiting"), rows)


# So that a negative number reaches the argument, which says what it must be.
@app.command("set", short_help="Set a tier's slots.", context_settings={"ignore_unknown_options": True})
def set_(
    tier: Tier,
    slots: Annotated[
        int,
        typer.Argument(
            parser=options.whole_number(0, MAXIMUM_SLOTS),
            metavar="N",
            help="Sequences that may run at once; 0 closes the tier.",
        ),
    ],
    directory: DataDirectory = None,
    as_json: options.Json = False,
) -> None:
    """Set how many sequences run at once at a tier, from now on and after a restart; what runs goes on."""
    content = administer(directory, "PUT", f"/capacity/{path_part(tier)}", body={"slots": slots})
    show(content, [f"{content['tier']}: {_slots(content)}"], as_json=as_json)


@app.command("reset", short_help="Give a tier its configured slots again.")
def reset(tier: Tier, directory: DataDirectory = None, as_json: options.Json = False) -> None:
    """Give a tier the slots again that are configured for it."""
    content = administer(directory, "DELETE", f"/capacity/{path_part(tier)}")
    show(content, [f"{content['tier']}: {_slots(content)}"], as_json=as_json)


def _slots(row: dict[str, Any]) -> str:
    if row["override"] is not None:
        return f"{row['override']} (set)"
    if row["used"] is None:
        return "as configured"
    return "as many as fit" if row["slots"] is None else str(row["slots"])
