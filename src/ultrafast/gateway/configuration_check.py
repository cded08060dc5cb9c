"""What must hold between the parts of a configuration, beyond each value's own type and bounds."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, NoReturn
from urllib.parse import urlsplit

from ultrafast.backends.upstream import read_key
from ultrafast.errors import ConfigurationError
from ultrafast.gateway.catalogue import DEFAULT_ALIASES, check_alias
from ultrafast.gateway.configuration import ANY_MODEL, Configuration, EngineSettings, UpstreamSettings
from ultrafast.gateway.tiers import LOWEST_TIERS, TIERS

# Raises ConfigurationError about the value at a path.
Fail = Callable[[tuple[str | int, ...], str], NoReturn]

_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,127}")
_BACKEND: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NEVER_OMITTED: Final = ("model", "messages", "stream", "max_tokens")


def check(configuration: Configuration, fail: Fail, engine_models: Mapping[str, str]) -> None:
    """Check the whole but for its secrets; the first thing that is wrong is raised through ``fail``.

    ``engine_models`` names the models of our engines by their backend, as far as they are known yet.
    """
    for name, settings in configuration.backends.items():
        if not _BACKEND.fullmatch(name):
            fail(("backends", name), "is no name for a backend: 1 to 64 letters, digits, and . _ - after the first")
        if isinstance(settings, UpstreamSettings):
            _check_upstream(name, settings, fail)
    _check_engines(configuration, fail)
    _check_routes(configuration, fail)
    _check_models(configuration, engine_models, fail)
    for tiers, node in ((configuration.tiers, ("tiers",)), (configuration.prices.multiples, ("prices", "multiples"))):
        _check_tiers(tiers, node, fail)
    for tier in LOWEST_TIERS:
        if tier in configuration.tiers:
            _check_rule(configuration.tiers[tier].over_capacity, (tier,), ("tiers", tier), fail)
    if configuration.admin_key_variable is not None:
        _check_variable(configuration.admin_key_variable, ("admin_key_variable",), fail)


def check_secrets(configuration: Configuration, environment: Mapping[str, str], fail: Fail) -> None:
    """Check that every secret that is named can be had, of a configuration that is sound otherwise."""
    for node, (_, problem) in secrets_of(configuration, environment).items():
        if problem is not None:
            fail(node, problem)


def secrets_of(
    configuration: Configuration, environment: Mapping[str, str]
) -> dict[tuple[str | int, ...], tuple[str, str | None]]:
    """Where the secrets are named: how each is had, and what is wrong with that."""
    found: dict[tuple[str | int, ...], tuple[str, str | None]] = {}
    variable = configuration.admin_key_variable
    if variable is not None:
        found["admin_key_variable",] = (
            "is set",
            None if environment.get(variable) else f"names {variable}, which is not set",
        )
    for name, settings in configuration.backends.items():
        if isinstance(settings, UpstreamSettings) and (settings.key_variable or settings.key_file):
            field, words = ("key_file", "is read") if settings.key_variable is None else ("key_variable", "is set")
            problem = None
            try:
                read_key(settings, environment)
            except ConfigurationError as error:
                problem = f"gives no key: {error}"
            found["backends", name, field] = (words, problem)
    return found


def _check_upstream(name: str, settings: UpstreamSettings, fail: Fail) -> None:
    node = ("backends", name)
    _check_url(settings.url, (*node, "url"), fail)
    _check_tiers(settings.tiers, (*node, "tiers"), fail)
    for place, field in enumerate(settings.omit):
        if field in _NEVER_OMITTED:
            fail((*node, "omit", place), "names a field that a request cannot do without")
    if settings.key_variable is not None:
        if settings.key_file is not None:
            fail((*node, "key_file"), "and key_variable are both given: keep one of them")
        _check_variable(settings.key_variable, (*node, "key_variable"), fail)


def _check_url(url: str, node: tuple[str | int, ...], fail: Fail) -> None:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
    if not sound or any(map(str.isspace, url)):
        fail(node, "must be an address that begins with http:// or https://")
    if parts.username is not None or parts.password is not None:
        fail(node, "must be without a login: keys go into key_variable or key_file")
    if parts.query or parts.fragment:
        fail(node, "must end with the path, such as /v1")


def _check_variable(name: str, node: tuple[str | int, ...], fail: Fail) -> None:
    if not _VARIABLE.fullmatch(name):  # perhaps the secret itself: it is not repeated
        fail(node, "must be the name of an environment variable")


def _check_tiers(names: Iterable[str], node: tuple[str | int, ...], fail: Fail) -> None:
    for name in names:
        if name not in TIERS:
            fail((*node, name), f"is no tier (known: {', '.join(TIERS)})")


def _check_rule(rule: str | None, tiers: Iterable[str], node: tuple[str | int, ...], fail: Fail) -> None:
    if rule == "downgrade" and set(tiers) <= set(LOWEST_TIERS):
        fail((*node, "over_capacity"), f'must be "queue" or "refuse": no tier is below {", ".join(tiers)}')


def _check_engines(configuration: Configuration, fail: Fail) -> None:
    engines = {name: one for name, one in configuration.backends.items() if isinstance(one, EngineSettings)}
    if len(engines) > 1:
        for name, settings in engines.items():
            if settings.threads is None:
                fail(("backends", name), "needs threads: several engines share the processors")


def _check_routes(configuration: Configuration, fail: Fail) -> None:
    backends = configuration.backends
    if not backends:
        fail(("backends",), "must have one at least")
    if not configuration.routes and len(backends) > 1:
        fail(("backends",), "are several: say with [[routes]] which of them answers what")
    routed: dict[str, dict[str, int]] = {}
    for place, route in enumerate(configuration.routes):
        node = ("routes", place)
        for field, values, known, word in (
            ("backends", route.backends, tuple(backends), "backend"),
            ("tiers", route.tiers, TIERS, "tier"),
        ):
            if not values:
                fail((*node, field), f"must name one {word} at least")
            for number, value in enumerate(values):
                if value not in known:
                    fail((*node, field, number), f'names "{value}", which is no {word} (known: {", ".join(known)})')
                if value in values[:number]:
                    fail((*node, field, number), f'names "{value}" twice')
        _check_rule(route.over_capacity, route.tiers, node, fail)
        for number, tier in enumerate(route.tiers):
            earlier = routed.setdefault(route.model, {}).setdefault(tier, place)
            if earlier != place:
                fail((*node, "tiers", number), f'has "{tier}", as routes[{earlier}] has for the same model: keep one')
    for model, tiers in routed.items():
        missing = [tier for tier in TIERS if tier not in tiers]
        if missing:
            fail(("routes", min(tiers.values())), f'leaves {", ".join(missing)} of "{model}" without a route: add one')


def models_of_backends(configuration: Configuration, engine_models: Mapping[str, str]) -> dict[str, list[str]]:
    """The models that each backend answers for: by the routes, else, of the one backend, its own, where it is known."""
    found: dict[str, list[str]] = {name: [] for name in configuration.backends}
    for route in configuration.routes:
        for name in route.backends:
            if route.model not in found[name]:
                found[name].append(route.model)
    if not configuration.routes:
        ((name, settings),) = configuration.backends.items()
        model = settings.model if isinstance(settings, UpstreamSettings) else engine_models.get(name)
        found[name] = [] if model is None else [model]
    return found


def models_of(configuration: Configuration, engine_models: Mapping[str, str]) -> set[str]:
    """The models that are served, as far as they are known."""
    return {model for models in models_of_backends(configuration, engine_models).values() for model in models}


def _check_models(configuration: Configuration, engine_models: Mapping[str, str], fail: Fail) -> None:
    """Names of models: aliases and prices lead to those that are served."""
    models = models_of(configuration, engine_models)
    known = f"{'of [[routes]]' if configuration.routes else 'that is served'} (known: {', '.join(sorted(models))})"
    for place, route in enumerate(configuration.routes):
        _check_name(route.model, ("routes", place, "model"), fail)
    aliases = configuration.aliases
    for name in aliases:
        node = ("aliases", name)
        _check_name(name, node, fail)
        if name in models and (name not in DEFAULT_ALIASES or aliases[name] != ANY_MODEL):  # the default does no harm
            fail(node, "is a model's own name")
        seen, target = {name}, aliases[name]
        while target in aliases:
            if target in seen:
                fail(node, "leads back to itself")
            seen.add(target)
            target = aliases[target]
        if models and target != ANY_MODEL and target not in models:
            fail(node, f'leads to "{target}", which is no model {known}')
    for name in configuration.prices.models:
        if models and name != ANY_MODEL and name not in models:
            fail(("prices", "models", name), f"is no model {known}")


def _check_name(name: str, node: tuple[str | int, ...], fail: Fail) -> None:
    try:
        check_alias(name)
    except ConfigurationError:
        fail(node, "is no name that a request can ask for: 1 to 256 printable letters, no spaces")
