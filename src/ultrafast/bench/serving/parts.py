"""The parts of the benchmark: what each asks of the server, what it measures, and the bars it is held to."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ultrafast.bench.results import Bar
from ultrafast.bench.serving import crowded, single
from ultrafast.bench.statistics import percentile

if TYPE_CHECKING:
    from ultrafast.bench.serving.stage import Measurements, Stage
    from ultrafast.bench.statistics import Summary

PERCENTILE: Final = 0.99


@dataclass(frozen=True)
class Part:
    """``tiers`` is the part's TOML for the server; ``load`` says what was asked of it."""

    name: str
    measure: Callable[[Stage], Awaitable[Measurements]]
    bars: Callable[[dict[str, Summary]], list[Bar]]
    load: Callable[[Stage], str]
    tiers: str = ""


def _stream_bars(found: dict[str, Summary]) -> list[Bar]:
    return [Bar("output speed over HTTP ÷ in process", 0.95, found["http_over_in_process"].median, at_least=True)]


def _gateway_bars(found: dict[str, Summary]) -> list[Bar]:
    return [Bar("seconds that the gateway adds to TTFT", 0.003, found["added_seconds"].median)]


def _turn_bars(found: dict[str, Summary]) -> list[Bar]:
    return [Bar("TTFT of a next turn ÷ with an empty cache", 0.25, found["next_over_empty"].median)]


def _beside_bars(found: dict[str, Summary]) -> list[Bar]:
    return [
        Bar(
            "an ultrafast stream beside 16 default ones ÷ alone", 0.8, found["beside_over_alone"].median, at_least=True
        ),
        Bar("share of their own total that the 16 keep", 0.15, found["kept_share"].median, at_least=True),
        Bar("longest wait of the 16 for a token, seconds", 1.0, found["longest_wait_seconds"].maximum),
    ]


def _flood_bars(found: dict[str, Summary]) -> list[Bar]:
    loaded, idle = (percentile(found[f"{state}_ttft_seconds"].samples, PERCENTILE) for state in ("loaded", "idle"))
    return [Bar("p99 TTFT of ultrafast, lower tiers at 3 × their capacity ÷ idle", 1.2, loaded / idle)]


def _refusal_bars(found: dict[str, Summary]) -> list[Bar]:
    return [Bar("seconds to refuse when full, p99", 0.010, percentile(found["refusal_seconds"].samples, PERCENTILE))]


def _overload_bars(found: dict[str, Summary]) -> list[Bar]:
    return [Bar("goodput at 5 × load ÷ peak", 0.9, found["goodput_over_peak"].median, at_least=True)]


PARTS: Final = {
    part.name: part
    for part in (
        Part("stream", single.stream, _stream_bars, single.stream_load),
        Part("gateway", single.gateway, _gateway_bars, single.gateway_load),
        Part("turn", single.turn, _turn_bars, single.turn_load),
        Part("beside", crowded.beside, _beside_bars, crowded.beside_load),
        Part("flood", crowded.flood, _flood_bars, crowded.flood_load),
        Part("refusal", crowded.refusal, _refusal_bars, crowded.refusal_load),
        Part("overload", crowded.overload, _overload_bars, crowded.overload_load, crowded.OVERLOAD_TIERS),
    )
}
