"""The configuration as it is shown: a file again, without secrets."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.gateway.test_configuration_file import ENVIRONMENT, ROUTE, SECRET, SERVERS, file_of, load
from ultrafast.backends.settings import MAXIMUM_CONCURRENT
from ultrafast.gateway.configuration import (
    DEFAULT_TIERS,
    Configuration,
    EngineSettings,
    Price,
    PriceSettings,
    RouteSettings,
    TierLimits,
    TierSettings,
    UpstreamSettings,
)
from ultrafast.gateway.configuration_check import check
from ultrafast.gateway.configuration_file import read_configuration, show
from ultrafast.gateway.tiers import TIERS

NAMES = st.from_regex(r"[a-z][a-z0-9._-]{0,6}", fullmatch=True)
WORDS = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=9)
PATHS = WORDS.map("/".__add__)
COUNTS = st.integers(0, 10**9)
AMOUNTS = st.floats(0, 1e9)
LIMITS = st.builds(TierLimits, *[st.none() | COUNTS] * 3)
MILLISECONDS = st.integers(0, 3_600_000)
OVER = st.sampled_from(["queue", "downgrade", "refuse"])
LOWEST_OVER = st.sampled_from(["queue", "refuse"])
SECONDS = st.floats(0.001, 86_400)


def over_of(tiers: tuple[str, ...]) -> st.SearchStrategy[str]:
    return OVER if set(tiers) & {"ultrafast", "priority"} else LOWEST_OVER


@st.composite
def configurations(draw: st.DrawFn) -> Configuration:
    """Any configuration that a file can say: a default that is a number cannot be taken back to none."""
    backends: dict[str, Any] = draw(
        st.dictionaries(
            NAMES,
            st.builds(
                EngineSettings,
                st.none() | PATHS,
                st.integers(1, 256),
                st.none() | st.integers(1, 10**7),
            )
            | st.builds(
                UpstreamSettings,
                st.sampled_from(["http://x/v1", "https://x.example:8/a/v1/"]),
                WORDS,
                st.sampled_from([None, "OTHER_KEY"]),
                st.none(),
                st.dictionaries(st.sampled_from(TIERS), WORDS),
                st.lists(st.sampled_from(["seed", "stop"]), unique=True).map(tuple),
                SECONDS,
                SECONDS,
                SECONDS,
                st.integers(1, MAXIMUM_CONCURRENT),
            ),
            min_size=1,
            max_size=3,
        )
    )
    order = st.lists(st.sampled_from(sorted(backends)), min_size=1, unique=True).map(tuple)
    routes: list[RouteSettings] = []
    for model in draw(st.lists(NAMES, unique=True, min_size=len(backends) > 1, max_size=2)):
        cut = draw(st.integers(1, len(TIERS)))
        routes += [
            RouteSettings(model, draw(order), tiers, draw(st.none() | over_of(tiers)), draw(st.none() | MILLISECONDS))
            for tiers in (TIERS[:cut], TIERS[cut:])
            if tiers
        ]
    models = [route.model for route in routes]
    prices = draw(st.dictionaries(st.sampled_from([*models, "*"]), st.builds(Price, *[AMOUNTS] * 3)))
    slots = {tier: COUNTS if DEFAULT_TIERS[tier].slots is not None else st.none() | COUNTS for tier in TIERS}
    return Configuration(
        host=draw(WORDS),
        port=draw(st.integers(0, 65_535)),
        data_directory=draw(st.none() | PATHS),
        allowed_hosts=tuple(draw(st.lists(WORDS, max_size=2))),
        record_text=draw(st.booleans()),
        admin_key_variable=draw(st.sampled_from([None, "ADMIN_KEY"])),
        aliases=draw(st.dictionaries(WORDS.filter(lambda name: name not in models), st.just("*"), max_size=2)),
        backends=backends,
        routes=tuple(routes),
        tiers={
            tier: TierSettings(draw(slots[tier]), draw(MILLISECONDS), draw(over_of((tier,))), draw(LIMITS))
            for tier in TIERS
        },
        prices=PriceSettings(
            draw(WORDS), {**PriceSettings().models, **prices}, {tier: draw(AMOUNTS) for tier in TIERS}
        ),
    )


@settings(suppress_health_check=list(HealthCheck), deadline=None, max_examples=30)
@given(configurations())
def test_what_is_shown_is_what_is_loaded(file: Path, configuration: Configuration) -> None:
    text = show(configuration, ENVIRONMENT)
    assert load(file, text) == configuration
    assert show(load(file, text), ENVIRONMENT) == text


def test_what_is_shown_is_readable_and_holds_no_secret(file: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(SECRET)
    key.chmod(0o600)
    text = SERVERS.replace('key_variable = "OTHER_KEY"', f'key_file = "{key}"') + ROUTE
    shown = show(load(file, text), {})
    assert SECRET not in shown
    assert f'key_file = "{key}"  # is read\n' in shown
    assert tomllib.loads(shown)["tiers"]["ultrafast"]["slots"] == 2


def test_what_is_shown_says_whether_secrets_are_set_and_needs_none(file: Path, tmp_path: Path) -> None:
    text = 'admin_key_variable = "ADMIN_KEY"\n' + SERVERS + ROUTE
    configuration, source = read_configuration(file_of(file, text))
    check(configuration, source.fail, {})
    shown = show(configuration, {"OTHER_KEY": SECRET})
    assert 'admin_key_variable = "ADMIN_KEY"  # names ADMIN_KEY, which is not set\n' in shown
    assert 'key_variable = "OTHER_KEY"  # is set\n' in shown
    assert SECRET not in shown
    missing = "gives no key: the environment variable OTHER_KEY is not set"
    assert f'key_variable = "OTHER_KEY"  # {missing}\n' in show(configuration, {})
    absent = SERVERS.replace('key_variable = "OTHER_KEY"', f'key_file = "{tmp_path}/absent"') + ROUTE
    shown = show(read_configuration(file_of(file, absent))[0], {})
    assert 'absent"  # gives no key: the key file' in shown
    assert tomllib.loads(shown)["backends"]["far"]["key_file"] == f"{tmp_path}/absent"
