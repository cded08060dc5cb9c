"""The configuration file: read, refused with the line, shown, overridden, reloaded."""

from __future__ import annotations

import os
import time
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import inspect

from ultrafast.backends.settings import MAXIMUM_CONCURRENT
from ultrafast.directories import CONFIGURATION_VARIABLE
from ultrafast.errors import ConfigurationError
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
from ultrafast.gateway.configuration_file import (
    configuration_path,
    load_configuration,
    read_configuration,
    show,
)
from ultrafast.gateway.configuration_overrides import (
    Overrides,
    reloaded,
)
from ultrafast.gateway.tiers import TIERS

SECRET = "sk-canary-in-the-file-77e1"
ENVIRONMENT = {"OTHER_KEY": "k", "ADMIN_KEY": "k"}
SERVERS = """\
[backends.local]
kind = "engine"
threads = 1
[backends.far]
kind = "upstream"
url = "https://far.example/v1"
model = "m"
key_variable = "OTHER_KEY"
"""
ROUTE = '[[routes]]\nmodel = "chat"\nbackends = ["local", "far"]\n'


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "ultrafast.toml"


def load(file: Path, text: str, overrides: Overrides | None = None) -> Configuration:
    file.write_text(text, encoding="utf-8")
    return load_configuration(file, ENVIRONMENT, overrides)


def test_nothing_is_all_defaults(file: Path) -> None:
    assert load(file, "") == load_configuration(None, {}) == Configuration()
    default = Configuration()
    assert default.tiers["ultrafast"].slots == 2
    assert list(default.tiers) == list(TIERS)
    assert default.aliases == {"gpt-5.6-sol": "*"}


def test_a_whole_file(file: Path) -> None:
    text = (
        'port = 9000\nadmin_key_variable = "ADMIN_KEY"\n[aliases]\n"gpt-x" = "chat"\n'
        + SERVERS
        + 'tiers = {ultrafast = "priority"}\nfirst_token_seconds = 5\nomit = ["seed"]\n'
        + ROUTE
        + "[tiers.ultrafast]\nqueue_milliseconds = 100\n[tiers.ultrafast.limits]\nstreams = 3\n"
        + "[prices.multiples]\nultrafast = 8\n[prices.models.chat]\ninput = 2\ncached_input = 0\noutput = 8\n"
    )
    found = load(file, text)
    assert (found.port, found.aliases) == (9000, {"gpt-x": "chat"})
    far = found.backends["far"]
    assert isinstance(far, UpstreamSettings)
    assert (far.tiers, far.first_token_seconds, far.connect_seconds) == ({"ultrafast": "priority"}, 5.0, 2.0)
    assert found.routes == (RouteSettings("chat", ("local", "far")),)
    # What a tier's table leaves out is as before, and so are the other tiers and prices.
    assert found.tiers["ultrafast"] == TierSettings(2, 100, "downgrade", TierLimits(streams=3))
    assert found.tiers["flex"] == DEFAULT_TIERS["flex"]
    assert found.prices.multiples == {"ultrafast": 8.0, "priority": 2.0, "default": 1.0, "flex": 0.5}
    assert found.prices.models == {"*": Price(1.0, 0.1, 4.0), "chat": Price(2.0, 0.0, 8.0)}


WRONG = [
    ("port = ", 1, "is no valid TOML: Invalid value"),
    ("port = 1\nport = 2", 2, "is no valid TOML: Cannot overwrite a value"),
    ('\n\nhost = "a\n', 3, "is no valid TOML"),
    ("port = 70000", 1, "port must be a whole number from 0 to 65,535"),
    ("\nport = -1", 2, "port must be a whole number from 0 to 65,535"),
    ("port = true", 1, "port must be a whole number"),
    ("port = 80.0", 1, "port must be a whole number"),
    ('port = "80"', 1, "port must be a whole number"),
    (f"port = {10**30}", 1, "port must be a whole number"),
    ("record_text = 1", 1, "record_text must be true or false"),
    ('host = ""', 1, "host must be a text of 1 to 4,096 letters"),
    ('host = "a\\nb"', 1, "host must be a text of 1 to 4,096 letters"),
    ("ports = 5", 1, "ports is no field of this table (known: host, port, "),
    ("host.name = 5", 1, "host must be a text"),
    ("backends = 5", 1, "backends must be a table"),
    ("backends = {}", 1, "backends must have one at least"),
    ("routes = 5", 1, "routes must be a list"),
    ("routes = [\n 5]", 2, "routes[0] must be a table"),
    ('allowed_hosts = ["a",\n 5]', 2, "allowed_hosts[1] must be a text"),
    ("[aliases]\nx = 5", 2, "aliases.x must be a text"),
    ('[aliases]\nx = "y"\ny = "x"', 2, "aliases.x leads back to itself"),
    ('[aliases]\n"a b" = "*"', 2, 'aliases."a b" is no name that a request can ask for'),
    ("[backends.a]\nkind = 'engin'", 2, 'backends.a.kind must be "engine" or "upstream"'),
    ("[backends.a]\nmodel = 'x'", 1, 'backends.a.kind must be "engine" or "upstream"'),
    ("[backends.'a b']\nkind = 'engine'", 1, 'backends."a b" is no name for a backend'),
    ("[backends.a]\nkind = 'engine'\nthreads = 0", 3, "backends.a.threads must be a whole number from 1 to 256"),
    (
        "[backends.a]\nkind = 'engine'\nthreads = 1\n[backends.b]\nkind = 'engine'\n",
        4,
        "backends.b needs threads: several engines share the processors",
    ),
    (SERVERS, 1, "backends are several: say with [[routes]] which of them answers what"),
    (SERVERS + "connect_seconds = 0\n" + ROUTE, 9, "backends.far.connect_seconds must be a number above 0"),
    (SERVERS + "connect_seconds = inf\n" + ROUTE, 9, "backends.far.connect_seconds must be a number above 0"),
    (SERVERS + "connect_seconds = nan\n" + ROUTE, 9, "backends.far.connect_seconds must be a number above 0"),
    (SERVERS + 'omit = ["seed", "model"]\n' + ROUTE, 9, "backends.far.omit[1] names a field that a request cannot"),
    (SERVERS + 'key_file = "/x"\n' + ROUTE, 9, "backends.far.key_file and key_variable are both given"),
    (
        SERVERS + 'tiers = {turbo = "x"}\n' + ROUTE,
        9,
        "backends.far.tiers.turbo is no tier (known: ultrafast, priority,",
    ),
    (SERVERS.replace("OTHER_KEY", "NOT_SET") + ROUTE, 8, "environment variable NOT_SET is not set"),
    (SERVERS.replace("OTHER_KEY", SECRET) + ROUTE, 8, "backends.far.key_variable must be the name of an environment"),
    (SERVERS.replace("key_variable", "key") + ROUTE, 8, "backends.far.key is no field of this table (known: kind, url"),
    (SERVERS.replace('url = "https', 'url = "ftp') + ROUTE, 6, "backends.far.url must be an address that begins with"),
    (SERVERS.replace("far.example", "") + ROUTE, 6, "backends.far.url must be an address"),
    (SERVERS.replace("far.example", "far.example:99999") + ROUTE, 6, "backends.far.url must be an address"),
    (SERVERS.replace("far.example", f"u:{SECRET}@far.example") + ROUTE, 6, "backends.far.url must be without a login"),
    (SERVERS.replace("/v1", f"/v1?key={SECRET}") + ROUTE, 6, "backends.far.url must end with the path"),
    (SERVERS.replace('model = "m"\n', "") + ROUTE, 4, "backends.far needs model"),
    (
        SERVERS + ROUTE.replace('"far"', '"foo"'),
        11,
        'routes[0].backends names "foo", which is no backend (known: local,',
    ),
    (SERVERS + ROUTE.replace('"far"', '"local"'), 11, 'routes[0].backends names "local" twice'),
    (SERVERS + ROUTE.replace('"local", "far"', ""), 11, "routes[0].backends must name one backend at least"),
    (SERVERS + ROUTE + 'tiers = ["fast"]', 12, 'routes[0].tiers names "fast", which is no tier (known: ultrafast,'),
    (SERVERS + ROUTE + ROUTE, 12, 'routes[1].tiers has "ultrafast", as routes[0] has for the same model'),
    (
        SERVERS + ROUTE + 'tiers = ["ultrafast", "flex"]',
        9,
        'leaves priority, default of "chat" without a route: add one',
    ),
    (SERVERS + ROUTE + 'over_capacity = "drop"', 12, 'must be "downgrade" or "queue" or "refuse"'),
    (SERVERS + ROUTE.replace('"chat"', '"a chat"'), 10, "routes[0].model is no name that a request can ask for"),
    ('aliases = {chat = "chat"}\n' + SERVERS + ROUTE, 1, "aliases.chat is a model's own name"),
    ('aliases = {x = "chatt"}\n' + SERVERS + ROUTE, 1, 'aliases.x leads to "chatt", which is no model of [[routes]]'),
    ("[tiers.turbo]\nslots = 1", 1, "tiers.turbo is no tier (known: ultrafast, priority, default, flex)"),
    (
        '[tiers.flex]\nover_capacity = "downgrade"',
        2,
        'tiers.flex.over_capacity must be "queue" or "refuse": no tier is below flex',
    ),
    (
        '[tiers.default]\nslots = 1\nover_capacity = "downgrade"',
        3,
        'tiers.default.over_capacity must be "queue" or "refuse": no tier is below default',
    ),
    (
        SERVERS + ROUTE + 'tiers = ["ultrafast", "priority"]\n' + ROUTE + 'tiers = ["default", "flex"]\n'
        'over_capacity = "downgrade"',
        17,
        'routes[1].over_capacity must be "queue" or "refuse": no tier is below default, flex',
    ),
    ("[tiers.flex]\nslots = -1", 2, "tiers.flex.slots must be a whole number from 0"),
    ("[tiers.flex.limits]\nstreams = 1.5", 2, "tiers.flex.limits.streams must be a whole number"),
    ("[prices.multiples]\nfast = 2", 2, "prices.multiples.fast is no tier"),
    ("[prices.multiples]\nflex = -0.1", 2, "prices.multiples.flex must be a number from 0"),
    ("[prices.models.x]\ninput = 1\noutput = 1", 1, "prices.models.x needs cached_input"),
    (
        SERVERS + ROUTE + "[prices.models.chatt]\ninput = 1\ncached_input = 1\noutput = 1",
        12,
        "prices.models.chatt is no model of [[routes]] (known: chat)",
    ),
    (
        """[prices.models.chat]
input = 1
cached_input = 1
output = 1
[backends.far]
kind = "upstream"
url = "http://far.example/v1"
model = "m"
""",
        1,
        "prices.models.chat is no model that is served (known: m)",
    ),
    ('admin_key_variable = "NOT_SET"', 1, "admin_key_variable names NOT_SET, which is not set"),
    (f'admin_key_variable = "{SECRET}"', 1, "admin_key_variable must be the name of an environment variable"),
]


@pytest.mark.parametrize(("text", "line", "message"), WRONG, ids=lambda value: value if isinstance(value, str) else "")
def test_what_is_wrong_is_named_with_its_line(file: Path, text: str, line: int, message: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(file, text)
    said = str(caught.value)
    assert said.startswith(f"{file}:{line}: ")
    assert message in said
    assert "\n" not in said
    assert SECRET not in said
    assert caught.value.__cause__ is None


def test_without_routes_names_are_those_of_the_one_engines_model(file: Path) -> None:
    price = "[prices.models.chat]\ninput = 1\ncached_input = 1\noutput = 1\n"
    alias = '[aliases]\nx = "chat"\n'
    for text, place in ((price, "1: prices.models.chat is"), (alias, '2: aliases.x leads to "chat", which is')):
        file.write_text(text, encoding="utf-8")
        found = load_configuration(file, {})  # what the engine runs is not known yet
        assert load_configuration(file, {}, engine_models={"local": "chat"}) == found
        with pytest.raises(ConfigurationError, match="no model that is served") as caught:
            load_configuration(file, {}, engine_models={"local": "smollm2-135m"})
        assert f":{place} no model that is served (known: smollm2-135m)" in str(caught.value)
        with pytest.raises(ConfigurationError, match="no model that is served"):
            reloaded(Configuration(), found, {}, {"local": "smollm2-135m"}, read_configuration(file)[1].fail)
    # A model that is called as the default alias is served all the same.
    load_configuration(None, {}, engine_models={"local": "gpt-5.6-sol"})


def test_files_that_cannot_be_read(file: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read: No such file"):
        load_configuration(file, {})
    with pytest.raises(ConfigurationError, match="cannot be read: Is a directory"):
        load_configuration(file.parent, {})
    file.write_bytes(b"host = 1\n\xff\xfe = 1")
    with pytest.raises(ConfigurationError, match=":2: is not UTF-8 text"):
        load_configuration(file, {})
    file.write_bytes(b" " * (1 << 20))
    with pytest.raises(ConfigurationError, match="more than 256 KiB"):
        load_configuration(file, {})
    file.write_bytes(b"\nport = " + b"1" * 5000)
    with pytest.raises(ConfigurationError, match="toml:2: is no valid TOML: a number has too many digits"):
        load_configuration(file, {})
    file.write_bytes(b"a = " + b"[" * 100_000)
    with pytest.raises(ConfigurationError, match="nested too deeply"):
        load_configuration(file, {})
    file.write_bytes(b"port = 1\r\n[aliases]\r\nx = 5\r\n")
    with pytest.raises(ConfigurationError, match=r":3: aliases\.x must be a text"):
        load_configuration(file, {})


def test_which_file(file: Path) -> None:
    assert configuration_path(None, {}) is None
    assert configuration_path(None, {CONFIGURATION_VARIABLE: ""}) is None
    assert configuration_path(None, {CONFIGURATION_VARIABLE: str(file)}) == file
    assert configuration_path(Path("other"), {CONFIGURATION_VARIABLE: str(file)}) == Path("other")


NAMES = st.from_regex(r"[a-z][a-z0-9._-]{0,6}", fullmatch=True)
WORDS = st.text(st.characters(codec="utf-8", categories=["L", "N", "P", "S"]), min_size=1, max_size=9)
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
            st.builds(EngineSettings, st.none() | WORDS, st.integers(1, 256), st.none() | st.integers(1, 10**7))
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
        data_directory=draw(st.none() | WORDS),
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
    text = show(configuration)
    assert load(file, text) == configuration
    assert show(load(file, text)) == text


def test_the_example_is_a_whole_configuration() -> None:
    example = Path(__file__).parents[2] / "examples" / "ultrafast.toml"
    found = load_configuration(example, {})
    assert [(route.tiers, route.backends) for route in found.routes] == [
        (("ultrafast", "priority"), ("local", "rack")),
        (("default", "flex"), ("rack", "local")),
    ]
    assert found.aliases == {"gpt-5.6-sol": "assistant"}
    assert found.prices.models["assistant"] == Price(0.1, 0.01, 0.4)
    # The provider's part is a comment, and right all the same.
    text = example.read_text(encoding="utf-8")
    provider = "".join(line[2:] + "\n" for line in text.splitlines() if line.startswith("# ") and " = " in line)
    table = tomllib.loads(provider)
    found_tiers = msgspec.convert(table, UpstreamSettings).tiers
    assert list(found_tiers) == list(TIERS)


def test_every_field_describes_itself_or_is_a_table() -> None:
    structs = (Configuration, EngineSettings, UpstreamSettings, RouteSettings, TierSettings, TierLimits, PriceSettings)
    silent = {
        f"{struct.__name__}.{field.name}"
        for struct in (*structs, Price)
        for field in inspect.type_info(struct).fields  # type: ignore[attr-defined]
        if not (getattr(field.type, "extra_json_schema", None) or {}).get("description")
    }
    tables = {"backends", "routes", "tiers", "prices"}
    assert silent == {f"Configuration.{name}" for name in tables} | {"TierSettings.limits", "PriceSettings.models"}


def test_what_is_shown_is_readable_and_holds_no_secret(file: Path, tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text(SECRET)
    key.chmod(0o600)
    text = SERVERS.replace('key_variable = "OTHER_KEY"', f'key_file = "{key}"') + ROUTE
    shown = show(load(file, text))
    assert SECRET not in shown
    assert str(key) in shown
    assert tomllib.loads(shown)["tiers"]["ultrafast"]["slots"] == 2


@pytest.mark.parametrize(
    "text",
    [
        "\n" + "a." * 40_000 + "a = 1",  # the reader's time grows with the square of a key's parts
        "\n[" + "a . " * 40_000 + "a]",
        "\nx = {" + '"a.\\"" . \'b\'.' * 8_000 + "a = 1}",
    ],
    ids=["key", "header", "quoted"],
)
def test_a_key_of_thousands_of_parts_is_refused_at_once(file: Path, text: str) -> None:
    file.write_text(text, encoding="utf-8")
    started = time.process_time()
    with pytest.raises(ConfigurationError) as caught:
        load_configuration(file, {})
    assert time.process_time() - started < 2
    assert str(caught.value) == f"{file}:2: a key has more than 8 parts; no setting has so many"


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "ultrafast.toml"
    os.mkfifo(path)
    with pytest.raises(ConfigurationError, match="is not a file"):
        load_configuration(path, {})
