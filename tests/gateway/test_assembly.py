"""From the configuration to what runs."""

from __future__ import annotations

import msgspec

from ultrafast.gateway.assembly import build_upstreams, doubtful_urls, reserved_slots
from ultrafast.gateway.configuration import Configuration, EngineSettings, RouteSettings, TierSettings, UpstreamSettings


def configuration(slots: int | None, *routes: RouteSettings) -> Configuration:
    default = Configuration(backends={"here": EngineSettings(), "there": EngineSettings()}, routes=routes)
    return msgspec.structs.replace(default, tiers={**default.tiers, "ultrafast": TierSettings(slots=slots)})


def test_slots_are_reserved_where_the_tier_ultrafast_goes() -> None:
    urgent = RouteSettings("model", ("here",), tiers=("ultrafast",))
    others = RouteSettings("model", ("there", "here"), tiers=("priority", "default", "flex"))
    split = configuration(3, urgent, others)
    assert (reserved_slots(split, "here"), reserved_slots(split, "there")) == (3, 0)
    assert reserved_slots(configuration(3), "here") == 3  # no routes: everything goes there
    assert reserved_slots(configuration(None), "here") == 0
    assert reserved_slots(configuration(0), "here") == 0


def test_more_slots_than_an_engine_reserves_do_not_keep_it_from_starting() -> None:
    assert reserved_slots(configuration(1_000), "here") == 64


async def test_an_address_without_a_path_is_warned_of() -> None:
    urls = ("http://rack:8000", "http://rack:8000/", "https://far.example/v1", "https://far.example/openai/v1/")
    settings = {f"b{place}": UpstreamSettings(url=url, model="m") for place, url in enumerate(urls)}
    upstreams = build_upstreams(Configuration(backends=dict(settings)), {})
    warning = (
        "Warning: backends.b{}.url has no path, so requests go to http://rack:8000/chat/completions; most servers "
    )
    lines = doubtful_urls(upstreams)
    assert [line.startswith(warning.format(place)) for place, line in enumerate(lines)] == [True, True]
    for upstream in upstreams.values():
        await upstream.retire()
