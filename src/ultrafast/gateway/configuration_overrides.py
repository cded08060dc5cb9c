"""What environment variables and flags change of a configuration, and what of it can change while serving."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn

import msgspec

from ultrafast.errors import ConfigurationError
from ultrafast.gateway.configuration import ANY_MODEL, Configuration, EngineSettings, UpstreamSettings
from ultrafast.gateway.configuration_check import check
from ultrafast.gateway.configuration_values import dotted
from ultrafast.gateway.records.directory import DATA_VARIABLE

HOST_VARIABLE: Final = "ULTRAFAST_HOST"
PORT_VARIABLE: Final = "ULTRAFAST_PORT"


# A listener, an engine's process and an open database stay what they are until the server starts anew.
_FIXED: Final = ("host", "port", "data_directory", "allowed_hosts", "admin_key_variable")


class Overrides(msgspec.Struct, frozen=True):
    """Values that take the place of the file's; ``None`` leaves it. Named as the flags are."""

    host: str | None = None
    port: int | None = None
    data_directory: str | None = None
    alias: tuple[str, ...] | None = None  # other names of the first model, in place of the file's aliases
    allowed_host: tuple[str, ...] | None = None
    model: str | None = None  # from here on: of the one engine
    threads: int | None = None
    context: int | None = None
    chat_template: str | None = None
    quantize: str | None = None


def environment_overrides(environment: Mapping[str, str]) -> Overrides:
    """What the environment says. Raises ConfigurationError for a port that is none."""
    port = environment.get(PORT_VARIABLE) or None
    if port is not None and not (port.isascii() and port.isdecimal() and len(port) <= 5 and int(port) <= 65_535):
        raise ConfigurationError(f"{PORT_VARIABLE} must be a whole number from 0 to 65,535")
    return Overrides(
        host=environment.get(HOST_VARIABLE) or None,
        port=None if port is None else int(port),
        data_directory=environment.get(DATA_VARIABLE) or None,
    )


def merged(first: Overrides, second: Overrides) -> Overrides:
    """Both; where they differ, the second."""
    values = {name: value for name, value in msgspec.structs.asdict(second).items() if value is not None}
    return msgspec.structs.replace(first, **values)


def override(configuration: Configuration, overrides: Overrides) -> Configuration:
    """``configuration`` with ``overrides``. Raises ConfigurationError where a flag has no single engine to be about."""
    given = {name: value for name, value in msgspec.structs.asdict(overrides).items() if value is not None}
    of_engine = {name: given.pop(name) for name in EngineSettings.__struct_fields__ if name in given}
    if "alias" in given:
        given["aliases"] = dict.fromkeys(given.pop("alias"), ANY_MODEL)
    if "allowed_host" in given:
        given["allowed_hosts"] = given.pop("allowed_host")
    if of_engine:
        given["backends"] = _with_engine(configuration, of_engine)
    return msgspec.structs.replace(configuration, **given)


def _with_engine(configuration: Configuration, values: dict[str, object]) -> dict[str, object]:
    engines = list(_engines(configuration))
    if len(engines) != 1:
        flags = ", ".join("--" + name.replace("_", "-") for name in values)
        raise ConfigurationError(
            f"{flags}: the configuration has {len(engines) or 'no'} engines, not one: say it there, per backend"
        )
    (name,) = engines
    return {**configuration.backends, name: msgspec.structs.replace(configuration.backends[name], **values)}


def changes_needing_restart(old: Configuration, new: Configuration) -> list[str]:
    """What differs and cannot change while serving, by name; everything else takes effect for the next request."""
    changed = [name for name in _FIXED if getattr(old, name) != getattr(new, name)]
    before, after = _engines(old), _engines(new)
    names = sorted(before.keys() | after.keys())
    return changed + [f"backends.{name}" for name in names if before.get(name) != after.get(name)]


def reloaded(
    old: Configuration, new: Configuration, environment: Mapping[str, str], engine_models: Mapping[str, str]
) -> Configuration:
    """``new`` as far as it can hold while serving: what needs a restart stays as in ``old``.

    Raises ConfigurationError where that makes no whole, as with a route to an engine that does not run.
    """
    engines = _engines(old)
    servers = {name: settings for name, settings in new.backends.items() if isinstance(settings, UpstreamSettings)}
    kept = {name: getattr(old, name) for name in _FIXED}
    mixed = msgspec.structs.replace(new, **kept, backends={**servers, **engines})

    def fail(node: tuple[str | int, ...], message: str) -> NoReturn:
        raise ConfigurationError(f"without a restart, {dotted(node)} {message}")

    if both := sorted(servers.keys() & engines.keys()):
        fail(("backends", both[0]), "cannot become another server: it is a running engine")
    check(mixed, environment, fail, engine_models)
    return mixed


def _engines(configuration: Configuration) -> dict[str, EngineSettings]:
    return {name: one for name, one in configuration.backends.items() if isinstance(one, EngineSettings)}
