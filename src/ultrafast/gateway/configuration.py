"""What an operator configures: backends, routes, tiers, limits, prices. Values only; each has its default here.

Each field describes itself for ``docs/configuration.md``. ``configuration_file`` reads it from TOML.
"""

from __future__ import annotations

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ultrafast.backends.settings import EngineSettings, Text, UpstreamSettings
from ultrafast.gateway.catalogue import DEFAULT_ALIASES
from ultrafast.gateway.tiers import TIERS, OverCapacity

__all__ = [
    "ANY_MODEL",
    "DEFAULT_TIERS",
    "LOCAL",
    "Configuration",
    "EngineSettings",
    "OverCapacity",
    "Price",
    "PriceSettings",
    "RouteSettings",
    "TierLimits",
    "TierSettings",
    "UpstreamSettings",
]

LOCAL: Final = "local"  # the backend's name where nothing is configured
ANY_MODEL: Final = "*"  # in prices: every model without a price of its own; in aliases: the first model

Count = Annotated[int, Meta(ge=0, le=1_000_000_000)]
Milliseconds = Annotated[int, Meta(ge=0, le=3_600_000)]
Money = Annotated[float, Meta(ge=0, le=1_000_000_000)]


class RouteSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where requests for ``model`` at ``tiers`` go: the first backend, the next where it fails before a token."""

    model: Annotated[Text, Meta(description="the name that clients ask for and that answers bear")]
    backends: Annotated[
        tuple[str, ...], Meta(description="in order: the next is tried where one fails before its first token")
    ]
    tiers: Annotated[tuple[str, ...], Meta(description="the tiers that go this way")] = TIERS
    over_capacity: Annotated[
        OverCapacity | None, Meta(description="what happens where the tier is full; default: as the tier says")
    ] = None
    queue_milliseconds: Annotated[Milliseconds | None, Meta(description="default: as the tier says")] = None


class TierLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one project may do at one tier; ``None`` is no limit."""

    requests_per_minute: Annotated[Count | None, Meta(description="of one project; default: no limit")] = None
    tokens_per_minute: Annotated[Count | None, Meta(description="of one project; default: no limit")] = None
    streams: Annotated[Count | None, Meta(description="requests of one project at once; default: no limit")] = None


class TierSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tier: how many sequences run at once, and what happens to the next one."""

    slots: Annotated[
        Count | None, Meta(description="sequences at once; 0 closes the tier; default: what the engine takes")
    ] = None
    queue_milliseconds: Annotated[Milliseconds, Meta(description="how long a request may wait for a slot")] = 250
    over_capacity: Annotated[
        OverCapacity,
        Meta(
            description="what happens after that, unless the route or the client says otherwise; "
            "`default` and `flex` cannot be downgraded"
        ),
    ] = "queue"
    limits: TierLimits = TierLimits()


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Per million tokens, in the currency of the table."""

    input: Annotated[Money, Meta(description="per million tokens of prompt")]
    cached_input: Annotated[Money, Meta(description="per million tokens of prompt that were not computed again")]
    output: Annotated[Money, Meta(description="per million tokens of answer")]


class PriceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The price table: a price per model (``"*"`` any other) at the tier ``default``, and every tier's multiple.

    The multiples are public ones: OpenAI's Ultrafast at 6 times, priority at twice, flex at half the standard price.
    """

    currency: Annotated[Text, Meta(description="a word for people; nothing is converted")] = "USD"
    models: dict[str, Price] = msgspec.field(
        default_factory=lambda: {ANY_MODEL: Price(input=1.0, cached_input=0.1, output=4.0)}
    )
    multiples: Annotated[
        dict[str, Money], Meta(description="tier → times the model's price; a tier that is not named keeps its own")
    ] = msgspec.field(default_factory=lambda: {"ultrafast": 6.0, "priority": 2.0, "default": 1.0, "flex": 0.5})


DEFAULT_TIERS: Final = {
    "ultrafast": TierSettings(slots=2, over_capacity="downgrade"),
    "priority": TierSettings(over_capacity="downgrade"),
    "default": TierSettings(queue_milliseconds=60_000),
    "flex": TierSettings(queue_milliseconds=0, over_capacity="refuse"),
}


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of it. The defaults are a server with one engine, the default model, and every tier on it."""

    host: Annotated[Text, Meta(description="as `--host`")] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65_535, description="as `--port`; 0 takes a free one")] = 8000
    data_directory: Annotated[
        Text | None, Meta(description="folder for projects, keys and the ledger; default: your user's own")
    ] = None
    allowed_hosts: Annotated[tuple[Text, ...], Meta(description="as `--allowed-host`")] = ()
    record_text: Annotated[bool, Meta(description="keep prompts and answers in the ledger")] = False
    admin_key_variable: Annotated[
        Text | None,
        Meta(description="the environment variable with the admin API's key, which switches that API on"),
    ] = None
    aliases: Annotated[
        dict[str, Text], Meta(description='another name → the model it stands for, `"*"` for the first one')
    ] = msgspec.field(default_factory=lambda: dict.fromkeys(DEFAULT_ALIASES, ANY_MODEL))
    backends: dict[str, EngineSettings | UpstreamSettings] = msgspec.field(
        default_factory=lambda: {LOCAL: EngineSettings()}
    )
    routes: tuple[RouteSettings, ...] = ()  # empty: every tier to the one backend
    tiers: dict[str, TierSettings] = msgspec.field(default_factory=lambda: dict(DEFAULT_TIERS))
    prices: PriceSettings = PriceSettings()
