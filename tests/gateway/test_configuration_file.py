"""The configuration file: read, refused with the line, shown, overridden, reloaded."""

from __future__ import annotations

import os
import time
import tomllib
from pathlib import Path

import msgspec
import pytest
from msgspec import inspect

from ultrafast.directories import CONFIGURATION_VARIABLE
from ultrafast.errors import ConfigurationError, ModelNotFoundError
from ultrafast.gateway.assembly import build_engines
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


def load(file: Path, text: str, overrides: Overrides | None = None) -> Configuration:
    file.write_text(text, encoding="utf-8")
    return load_configuration(file, ENVIRONMENT, overrides)


def file_of(file: Path, text: str) -> Path:
    file.write_text(text, encoding="utf-8")
    return file


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
        'routes[0].backends[1] names "foo", which is no backend (known: local,',
    ),
    (SERVERS + ROUTE.replace('"far"', '"local"'), 11, 'routes[0].backends[1] names "local" twice'),
    (SERVERS + ROUTE.replace('"far"', '\n\n"foo"'), 13, 'routes[0].backends[1] names "foo", which is no backend'),
    (SERVERS + ROUTE + 'tiers = [\n"flex",\n"turbo"]', 14, 'routes[0].tiers[1] names "turbo", which is no tier'),
    (
        SERVERS + ROUTE + 'tiers = ["priority", "default", "flex"]\n' + ROUTE + 'tiers = ["ultrafast",\n"flex"]\n',
        17,
        'routes[1].tiers[1] has "flex", as routes[0] has for the same model: keep one',
    ),
    (SERVERS + ROUTE.replace('"local", "far"', ""), 11, "routes[0].backends must name one backend at least"),
    (SERVERS + ROUTE + 'tiers = ["fast"]', 12, 'routes[0].tiers[0] names "fast", which is no tier (known: ultrafast,'),
    (SERVERS + ROUTE + ROUTE, 12, 'routes[1].tiers[0] has "ultrafast", as routes[0] has for the same model'),
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
        """[aliases]
m = "*"
[backends.far]
kind = "upstream"
url = "http://far.example/v1"
model = "m"
""",
        2,
        "aliases.m is a model's own name",
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
            reloaded(Configuration(), found, {"local": "smollm2-135m"}, read_configuration(file)[1].fail)
    own = load(file, '[aliases]\nown = "*"\n')
    with pytest.raises(ConfigurationError, match=r":2: aliases\.own is a model's own name"):
        load_configuration(file, {}, engine_models={"local": "own"})
    with pytest.raises(ConfigurationError, match=r":2: aliases\.own is a model's own name"):
        reloaded(Configuration(), own, {"local": "own"}, read_configuration(file)[1].fail)
    # A model that is called as the default alias is served all the same.
    load_configuration(None, {}, engine_models={"local": "gpt-5.6-sol"})
    load(file, SERVERS + ROUTE.replace("chat", "gpt-5.6-sol"))


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
    file.write_bytes(b"\xef\xbb\xbfport = 81\n")  # as some editors begin a file
    assert load_configuration(file, {}).port == 81
    file.write_bytes(b"\xef\xbb\xbfport = x\n")
    with pytest.raises(ConfigurationError, match="toml:1: is no valid TOML"):
        load_configuration(file, {})
    file.write_bytes(b"port = 1\r\n[aliases]\r\nx = 5\r\n")
    with pytest.raises(ConfigurationError, match=r":3: aliases\.x must be a text"):
        load_configuration(file, {})


def test_relative_paths_go_by_the_folder_of_the_file(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = file.parent
    (folder / "elsewhere").mkdir()
    (folder / "beside").mkdir()
    key = folder / "key"
    key.write_text(SECRET)
    key.chmod(0o600)
    text = (
        'data_directory = "data"\n'
        + SERVERS.replace('key_variable = "OTHER_KEY"', 'key_file = "key"')
        + ROUTE
        + "[backends.near]\nkind = 'engine'\nthreads = 1\nmodel = '../m.gguf'\nchat_template = 't.jinja'\n"
    )
    file.write_text(text, encoding="utf-8")
    monkeypatch.chdir(folder / "elsewhere")
    for path in (file, Path("..") / file.name):
        found = load_configuration(path, ENVIRONMENT)
        assert found.data_directory is not None
        assert Path(found.data_directory) == path.absolute().parent / "data"
        near, far = found.backends["near"], found.backends["far"]
        assert isinstance(near, EngineSettings)
        assert isinstance(far, UpstreamSettings)
        assert (near.model, near.chat_template, far.key_file) == tuple(
            str(path.absolute().parent / name) for name in ("../m.gguf", "t.jinja", "key")
        )
    # What is absolute, of the user's home or no path at all stays, and so does what the environment says.
    text = 'data_directory = "~/data"\n[backends.local]\nkind = "engine"\nmodel = "{}"\n'
    monkeypatch.setenv("HOME", "/home/me")
    assert load(file, text.format("~/m.gguf")).backends["local"] == EngineSettings(model="/home/me/m.gguf")
    for name in ("smollm2-135m", "hf:ORG/REPO", "/m.gguf", "https://hf.co/ORG/REPO", "typo"):
        found = load(file, text.format(name))
        assert found.data_directory == "/home/me/data"
        assert found.backends["local"] == EngineSettings(model=name)
    assert load(file, text.format("beside")).backends["local"] == EngineSettings(model=str(folder / "beside"))
    assert load(file, 'data_directory = "data"', Overrides(data_directory="d")).data_directory == "d"


def test_a_model_that_is_missing_is_named_with_its_line(file: Path) -> None:
    text = "port = 1\n[backends.local]\nkind = 'engine'\nmodel = '{}'\n"
    for name, message in (("absent.gguf", "absent.gguf: there is no such file"), ("smolm2-135m", "did you mean smoll")):
        configuration, source = read_configuration(file_of(file, text.format(name)))
        with pytest.raises(ModelNotFoundError) as caught:
            build_engines(configuration, naming=source.naming)
        assert str(caught.value).startswith(f"{file}:4: backends.local.model: ")
        assert message in str(caught.value)
    # What no line of the file says is told without one.
    configuration, source = read_configuration(None, Overrides(model="smolm2-135m"))
    with pytest.raises(ModelNotFoundError, match=r"^no model of that name"):
        build_engines(configuration, naming=source.naming)


def test_which_file(file: Path) -> None:
    assert configuration_path(None, {}) is None
    assert configuration_path(None, {CONFIGURATION_VARIABLE: ""}) is None
    assert configuration_path(None, {CONFIGURATION_VARIABLE: str(file)}) == file
    assert configuration_path(Path("other"), {CONFIGURATION_VARIABLE: str(file)}) == Path("other")


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
