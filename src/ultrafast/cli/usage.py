"""`ultrafast usage`: who used what, at which tier, and what it costs."""

from __future__ import annotations

import csv
import io
import re
import sys
import time
from datetime import UTC, datetime
from typing import Annotated, Any, Final

import typer

from ultrafast.cli import options, output
from ultrafast.cli.administration import Cell, DataDirectory, administer, money, show, table
from ultrafast.errors import ConfigurationError
from ultrafast.gateway.tiers import TIERS

__all__ = ["app"]

app = typer.Typer(help="Show what was used, and what it costs.", rich_markup_mode=None)

_ASKED: Final = ("auto", *TIERS)
_COUNTS: Final = (
    "requests",
    "succeeded",
    "cancelled",
    "failed",
    "prompt_tokens",
    "cached_tokens",
    "completion_tokens",
    "accepted_prediction_tokens",
    "rejected_prediction_tokens",
)
_UNIT_SECONDS: Final = {"m": 60, "h": 3600, "d": 86400, "w": 604800}


def _moment(text: str) -> float:
    if span := re.fullmatch(r"([0-9]{1,6})([mhdw])", text, re.ASCII):
        return time.time() - int(span[1]) * _UNIT_SECONDS[span[2]]
    try:
        moment = datetime.fromisoformat(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (ValueError, OverflowError, OSError):
        raise typer.BadParameter(
            "must be a date such as 2026-11-30 or 2026-11-30T14:00, or a time before now such as 30m, 24h, 7d or 4w"
        ) from None


@app.callback(invoke_without_command=True)
def usage(
    *,
    context: typer.Context,
    by: Annotated[
        str,
        typer.Option("--by", metavar="NAMES", help="Sums by some of: project,key,model,tier,backend,day."),
    ] = "project,tier",
    since: Annotated[
        float | None,
        typer.Option(
            "--since", parser=_moment, metavar="TIME", help="From this date on, or for so long: 30m, 24h, 7d, 4w."
        ),
    ] = None,
    until: Annotated[
        float | None, typer.Option("--until", parser=_moment, metavar="TIME", help="Before this date or time.")
    ] = None,
    as_csv: Annotated[bool, typer.Option("--csv", help="Print comma-separated values instead of text.")] = False,
    as_json: options.Json = False,
    directory: DataDirectory = None,
) -> None:
    """Show requests, tokens, tiers asked for and served, and cost, by project and tier.

    The sums are exact. Costs are in units of the currency with six decimals; --json has them as whole numbers, named
    cost_millionths. Days and times are those of UTC. A tier that was not named counts as auto.
    """
    if context.invoked_subcommand is not None:
        for name in context.params:
            source = context.get_parameter_source(name)
            if source is not None and source.name == "COMMANDLINE":
                option = "--data-directory" if name == "directory" else f"--{name.removeprefix('as_')}"
                raise typer.BadParameter(f"{option} goes after `{context.invoked_subcommand}`, if it has it")
        return
    if as_csv and as_json:
        raise typer.BadParameter("--csv and --json exclude each other")
    parameters = {"by": options.text_of_argument(by)}
    parameters |= {name: repr(moment) for name, moment in (("since", since), ("until", until)) if moment is not None}
    content = administer(directory, "GET", "/usage", parameters=parameters)
    if as_json:
        show(content, [], as_json=True)
    elif as_csv:
        output.write(_csv(content))
    elif not content["data"]:
        output.note("nothing was used")
    else:
        _table(content)


@app.command("prune", short_help="Delete old requests from the ledger.")
def prune(
    *,
    before: Annotated[
        float, typer.Option("--before", parser=_moment, metavar="TIME", help="What began before this date or time.")
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    directory: DataDirectory = None,
    as_json: options.Json = False,
) -> None:
    """Delete requests from the ledger, with their costs and texts, for ever; usage then begins later."""
    if not yes:
        content = administer(directory, "GET", "/usage", parameters={"by": "project", "until": repr(before)})
        count = sum(row["requests"] for row in content["data"])
        day = datetime.fromtimestamp(before, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
        what = f"{_requests(count)} before {day}"
        if not sys.stdin or not sys.stdin.isatty():
            raise ConfigurationError(f"{what} would be deleted from the ledger; --yes does it without asking")
        typer.confirm(f"Delete {what} from the ledger?", abort=True, err=True)
    content = administer(directory, "DELETE", "/usage", parameters={"before": repr(before)})
    show(content, [f"deleted {_requests(content['deleted'])}"], as_json=as_json)


def _requests(count: int) -> str:
    return f"{count:,} request{'' if count == 1 else 's'}"


def _csv(content: Any) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    tiers = [*(f"asked_{tier}" for tier in _ASKED), *(f"served_{tier}" for tier in TIERS)]
    writer.writerow([*content["by"], *_COUNTS, *tiers, "cost", "currency"])
    for row in content["data"]:
        counts = [row[name] for name in _COUNTS]
        asked = [row["asked"].get(tier, 0) for tier in _ASKED]
        served = [row["served"].get(tier, 0) for tier in TIERS]
        group = [row["group"][name] for name in content["by"]]
        writer.writerow([*group, *counts, *asked, *served, money(row["cost_millionths"]), row["currency"]])
    return text.getvalue()


def _table(content: Any) -> None:
    by, data = content["by"], content["data"]
    currencies = {row["currency"] for row in data}
    rows = data
    if by and len(data) > 1 and len(currencies) == 1:
        group = dict.fromkeys(by, "") | {by[0]: "total"}
        rows = [*data, _total(data) | {"group": group}]
    one_currency = currencies.pop() if len(currencies) == 1 else None
    columns: dict[str, list[Cell]] = {name: [row["group"][name] for row in rows] for name in by}
    columns["requests"] = [row["requests"] for row in rows]
    if any(row["failed"] for row in rows):
        columns["failed"] = [row["failed"] for row in rows]
    columns["input"] = [row["prompt_tokens"] for row in rows]
    if any(row["cached_tokens"] for row in rows):
        columns["cached"] = [row["cached_tokens"] for row in rows]
    columns["output"] = [row["completion_tokens"] + row["rejected_prediction_tokens"] for row in rows]
    columns["asked"] = [_tiers(row["asked"], _ASKED) for row in rows]
    if "tier" not in by:  # else it stands there already
        columns["served"] = [_tiers(row["served"], TIERS) for row in rows]
    if one_currency is None:
        columns["cost"] = [f"{money(row['cost_millionths'])} {row['currency']}" for row in rows]
    else:
        columns[one_currency] = [money(row["cost_millionths"]) for row in rows]
    table(list(columns), list(zip(*columns.values(), strict=True)))


def _tiers(counts: dict[str, int], order: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{tier} {counts[tier]:,}" for tier in order if tier in counts)


def _total(data: list[dict[str, Any]]) -> dict[str, Any]:
    total: dict[str, Any] = {name: sum(row[name] for row in data) for name in (*_COUNTS, "cost_millionths")}
    for name, tiers in (("asked", _ASKED), ("served", TIERS)):
        sums = {tier: sum(row[name].get(tier, 0) for row in data) for tier in tiers}
        total[name] = {tier: count for tier, count in sums.items() if count}
    return total
