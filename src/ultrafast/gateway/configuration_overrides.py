"""What environment variables and flags change of a configuration, and what of it can change while serving."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NoReturn

import msgspec

from ultrafast.errors import ConfigurationError
from ultrafast.gateway.configuration import ANY_MODEL, Configuration, EngineSettings, UpstreamSettings
from ultrafast.gateway.configuration_check import Fail, check, models_of
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


def changes_while_serving(old: Configuration, new: Configuration, engine_models: Mapping[str, str]) -> list[str]:
    """What ``new`` brings for the next request, by name: what is gone, new and changed. Aliases are told elsewhere."""
    before, after = models_of(old, engine_models), models_of(new, engine_models)
    servers = [{name: one for name, one in each.backends.items() if name not in _engines(each)} for each in (old, new)]
    gone = [f"model {name}" for name in sorted(before - after - new.aliases.keys())]
    gone += [f"backend {name}" for name in sorted(servers[0].keys() - servers[1].keys())]
    come = [f"model {name}" for name in sorted(after - before)]
    come += [f"backend {name}" for name in sorted(servers[1].keys() - servers[0].keys())]
    routes = [{name: [route for route in each.routes if route.model == name] for name in before} for each in (old, new)]
    changed = [f"routes of {name}" for name in sorted(before & after) if routes[0][name] != routes[1][name]]
    both = sorted(servers[0].keys() & servers[1].keys())
    changed += [f"backends.{name}" for name in both if servers[0][name] != servers[1][name]]
    changed += [f"tiers.{name}" for name, tier in new.tiers.items() if old.tiers.get(name) != tier]
    changed += [name for name in ("prices", "record_text") if getattr(old, name) != getattr(new, name)]
    words = {"gone": gone, "new": come, "changed": changed}
    return [f"{word}: {', '.join(names)}" for word, names in words.items() if names]


def reloaded(old: Configuration, new: Configuration, engine_models: Mapping[str, str], fail: Fail) -> Configuration:
    """``new`` as far as it can hold while serving: what needs a restart stays as in ``old``.

    Raises ConfigurationError through ``fail`` where that makes no whole, as with a route to an engine that does not
    run, or leaves no model under its name: a file that was emptied, or is half written, must not stop the service.
    """
    engines = _engines(old)
    servers = {name: settings for name, settings in new.backends.items() if isinstance(settings, UpstreamSettings)}
    kept = {name: getattr(old, name) for name in _FIXED}
    mixed = msgspec.structs.replace(new, **kept, backends={**servers, **engines})

    def fail_running(node: tuple[str | int, ...], message: str) -> NoReturn:
        fail(node, f"{message}; engines change at a restart only")

    if both := sorted(servers.keys() & engines.keys()):
        fail_running(("backends", both[0]), "cannot become another server: it is a running engine")
    left = ", ".join(sorted(engines.keys() - new.backends.keys()))
    if left and servers and not new.routes:
        fail_running(("backends",), f"leave out {left}, which runs: say with [[routes]] which of them answers what")
    check(mixed, fail_running, engine_models)
    served = models_of(old, engine_models)
    if served and not served & (models_of(mixed, engine_models) | mixed.aliases.keys()):
        names = ", ".join(sorted(served))
        fail((), f"leaves none of the models that are served ({names}): keep one, be it as an alias, or restart")
    return mixed


def _engines(configuration: Configuration) -> dict[str, EngineSettings]:
    return {name: one for name, one in configuration.backends.items() if isinstance(one, EngineSettings)}
