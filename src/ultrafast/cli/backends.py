"""`ultrafast backends`: how the running server's backends are."""

from __future__ import annotations

import time
from typing import Any

from ultrafast.cli import options
from ultrafast.cli.administration import Cell, DataDirectory, administer, show, table

__all__ = ["backends"]


def backends(*, directory: DataDirectory = None, as_json: options.Json = False) -> None:
    """Show the running server's backends: models, state, requests that run, last error.

    The states are: ok; full; starting, restarting and not answering, of our engine; backing off, of another server that
    failed and is left alone for so long; failed, where the next request tries it. A state may hold at some tiers only.
    """
    content = administer(directory, "GET", "/backends")
    if as_json:
        show(content, [], as_json=True)
        return
    rows: list[tuple[Cell, ...]] = [
        (row["name"], row["kind"], tuple(row["models"]), _state(row), row["running"], _last_error(row))
        for row in content["data"]
    ]
    table(("backend", "kind", "models", "state", "running", "last error"), rows)


def _state(row: dict[str, Any]) -> str:
    state = str(row["state"])
    if row["tiers"]:
        state += f" at {', '.join(row['tiers'])}"
    return state if row["retry_seconds"] is None else f"{state}, {row['retry_seconds']:.0f} s more"


def _last_error(row: dict[str, Any]) -> str:
    if row["last_error"] is None:
        return ""
    return f"{row['last_error']} ({time.strftime('%Y-%m-%d %H:%M:%S', time.gmtime(row['last_error_at']))} UTC)"
