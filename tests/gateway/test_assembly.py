"""From the configuration to what runs."""

from __future__ import annotations

import msgspec

from ultrafast.gateway.assembly import reserved_slots
from ultrafast.gateway.configuration import Configuration, EngineSettings, RouteSettings, TierSettings


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
