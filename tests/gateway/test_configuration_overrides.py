"""What the environment and flags change of a configuration, and what a reload does."""

from __future__ import annotations

from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from tests.gateway.test_configuration_file import ROUTE, SERVERS, file_of, load
from ultrafast.errors import ConfigurationError
from ultrafast.gateway.configuration import Configuration, EngineSettings, PriceSettings, UpstreamSettings
from ultrafast.gateway.configuration_file import read_configuration
from ultrafast.gateway.configuration_overrides import (
    Overrides,
    changes_needing_restart,
    changes_while_serving,
    environment_overrides,
    merged,
    reloaded,
)


def refuse(node: tuple[str | int, ...], message: str) -> NoReturn:
    raise ConfigurationError(f"{node}: {message}")


def test_the_environment_and_flags_override_the_file(file: Path) -> None:
    environment = {"ULTRAFAST_HOST": "::1", "ULTRAFAST_PORT": "81", "ULTRAFAST_DATA": "/d"}
    flags = Overrides(port=82, alias=("a", "b"), threads=3, allowed_host=("h",))
    found = load(file, 'host = "0.0.0.0"\nport = 80\n', merged(environment_overrides(environment), flags))
    assert (found.host, found.port, found.data_directory) == ("::1", 82, "/d")
    assert (found.aliases, found.allowed_hosts) == ({"a": "*", "b": "*"}, ("h",))
    assert found.backends == {"local": EngineSettings(threads=3)}
    assert environment_overrides({"ULTRAFAST_PORT": ""}) == Overrides()
    for port in ("x", "-1", "65536", "1.5", "٣", "9" * 5000):
        with pytest.raises(ConfigurationError, match="ULTRAFAST_PORT must be a whole number from 0 to 65,535"):
            environment_overrides({"ULTRAFAST_PORT": port})


def test_a_flag_of_the_engine_needs_one_engine(file: Path) -> None:
    assert load(file, SERVERS + ROUTE, Overrides(context=99)).backends["local"] == EngineSettings(threads=1, context=99)
    two = "".join(f"[backends.{name}]\nkind = 'engine'\nthreads = 1\n" for name in "ab")
    with pytest.raises(
        ConfigurationError, match=r"--threads, --chat-template: the configuration has 2 engines, not one"
    ):
        load(file, two, Overrides(threads=1, chat_template="x"))
    with pytest.raises(ConfigurationError, match="--model: the configuration has no engines"):
        load(file, SERVERS.replace('[backends.local]\nkind = "engine"\nthreads = 1\n', ""), Overrides(model="x"))
    with pytest.raises(ConfigurationError, match=r'toml: aliases\."a b" is no name'):
        load(file, "", Overrides(alias=("a b",)))


def test_what_needs_a_restart(file: Path) -> None:
    old = load(file, SERVERS + ROUTE)
    live = msgspec.structs.replace(
        old,
        aliases={},
        record_text=True,
        tiers={},
        routes=(),
        prices=PriceSettings(currency="EUR"),
        backends={"local": old.backends["local"], "new": UpstreamSettings(url="http://x/v1", model="m")},
    )
    assert changes_needing_restart(old, live) == []
    fixed = msgspec.structs.replace(
        old,
        host="::1",
        port=1,
        data_directory="/d",
        allowed_hosts=("h",),
        admin_key_variable="A",
        backends={"local": EngineSettings(threads=2), "more": EngineSettings()},
    )
    assert changes_needing_restart(old, fixed) == [
        "host",
        "port",
        "data_directory",
        "allowed_hosts",
        "admin_key_variable",
        "backends.local",
        "backends.more",
    ]


def test_a_reload_takes_what_it_can(file: Path) -> None:
    old = load(file, SERVERS + ROUTE)
    text = "port = 9\n" + SERVERS.replace("threads = 1", "threads = 2") + ROUTE
    new = load(file, text.replace("far", "near"))
    found = reloaded(old, new, {}, refuse)
    assert (found.port, found.routes) == (old.port, new.routes)
    assert found.backends == {"near": new.backends["near"], "local": old.backends["local"]}
    assert changes_needing_restart(old, new) == ["port", "backends.local"]
    assert changes_needing_restart(old, found) == []
    # A file without servers leaves the engine that runs.
    bare = load(file, 'routes = [{model = "chat", backends = ["local"]}]')
    assert reloaded(old, bare, {}, refuse).backends == {"local": old.backends["local"]}


@pytest.mark.parametrize("text", ["", "# only words", SERVERS + ROUTE.replace("chat", "other")])
def test_a_reload_never_takes_every_model_away(file: Path, text: str) -> None:
    old = load(file, SERVERS + ROUTE + ROUTE.replace("chat", "talk"))
    engines = {"local": "smollm2-135m"}
    new, source = read_configuration(file_of(file, text))
    with pytest.raises(ConfigurationError) as caught:
        reloaded(old, new, engines, source.fail)
    assert str(caught.value).startswith(f"{file}: leaves none of the models that are served (chat, talk): keep one, ")
    # One of them, or its name as an alias, is enough.
    for kept in (ROUTE, ROUTE.replace("chat", "other") + '[aliases]\ntalk = "other"\n'):
        new, source = read_configuration(file_of(file, SERVERS + kept))
        assert reloaded(old, new, engines, source.fail).routes == new.routes


def test_what_a_reload_changes_is_named(file: Path) -> None:
    old = load(file, SERVERS + ROUTE + ROUTE.replace("chat", "talk"))
    text = (SERVERS + ROUTE.replace('"local", "far"', '"near", "local"')).replace(".far]", ".near]")
    text += '[[routes]]\nmodel = "song"\nbackends = ["local"]\n[tiers.flex]\nslots = 3\n[prices]\ncurrency = "EUR"\n'
    new = load(file, "record_text = true\nport = 9\n" + text)
    assert changes_while_serving(old, new, {}) == [
        "gone: model talk, backend far",
        "new: model song, backend near",
        "changed: routes of chat, tiers.flex, prices, record_text",
    ]
    assert changes_while_serving(old, old, {}) == []
    quicker = load(file, SERVERS + "idle_seconds = 3\n" + ROUTE + '[aliases]\ntalk = "chat"\n')
    assert changes_while_serving(old, quicker, {}) == ["changed: backends.far"]  # aliases have lines of their own
    # Without routes the model is the engine's.
    plain = Configuration()
    assert changes_while_serving(plain, load(file, SERVERS + ROUTE), {"local": "m"}) == [
        "gone: model m",
        "new: model chat, backend far",
    ]


def test_a_reload_that_needs_another_engine(file: Path) -> None:
    old = load(file, SERVERS + ROUTE)
    another = load(file, (SERVERS + ROUTE).replace("local", "more"))
    with pytest.raises(ConfigurationError) as caught:
        reloaded(old, another, {}, read_configuration(file)[1].fail)
    assert str(caught.value) == (
        f'{file}:11: routes[0].backends[0] names "more", which is no backend (known: far, local); '
        "engines change at a restart only"
    )
    swapped = load(
        file,
        (SERVERS + ROUTE)
        .replace("local", "x")
        .replace("far", "local")
        .replace("[backends.x]", "[backends.far]")
        .replace('"x"', '"far"'),
    )
    with pytest.raises(ConfigurationError, match=r":4: backends\.local cannot become another server"):
        reloaded(old, swapped, {}, read_configuration(file)[1].fail)
    alone = load(file, '[backends.far]\nkind = "upstream"\nurl = "http://127.0.0.1:9/v1"\nmodel = "m"\n')
    with pytest.raises(ConfigurationError, match=r"backends leave out local, which runs: say with \[\[routes\]\]"):
        reloaded(old, alone, {}, read_configuration(file)[1].fail)
