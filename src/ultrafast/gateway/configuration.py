"""What an operator configures: backends, routes, tiers, limits, prices. Values only; each has its default here."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from ultrafast.gateway.tiers import TIERS

OverCapacity = Literal["queue", "downgrade", "refuse"]

LOCAL: Final = "local"  # the backend's name where nothing is configured


class EngineSettings(msgspec.Struct, frozen=True, tag_field="kind", tag="engine", forbid_unknown_fields=True):
    """A backend that is our own engine; ``None`` lets the loader choose."""

    model: str | None = None
    threads: int | None = None
    context: int | None = None
    chat_template: str | None = None
    quantize: str | None = None


class UpstreamSettings(msgspec.Struct, frozen=True, tag_field="kind", tag="upstream", forbid_unknown_fields=True):
    """A backend that is any server with OpenAI's API."""

    url: str  # with its /v1
    model: str  # the name it knows the model by
    key_variable: str | None = None  # an environment variable, or
    key_file: str | None = None  # a file of our own (0600), that holds its key
    tiers: dict[str, str] = {}  # our tier → its word for service_tier; a tier that is not named sends none
    connect_seconds: float = 2.0
    first_token_seconds: float = 30.0
    concurrent: int = 64  # requests at once


class RouteSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where requests for ``model`` at ``tiers`` go: the first backend, the next where it fails before a token."""

    model: str
    backends: tuple[str, ...]
    tiers: tuple[str, ...] = TIERS
    over_capacity: OverCapacity | None = None  # None: the tier's own
    queue_milliseconds: int | None = None


class TierLimits(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What one project may do at one tier; ``None`` is no limit."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    streams: int | None = None  # requests at once


class TierSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One tier: how many sequences run at once, and what happens to the next one."""

    slots: int | None = None  # None: as many as the engine takes
    queue_milliseconds: int = 250
    over_capacity: OverCapacity = "queue"
    limits: TierLimits = TierLimits()


class Price(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Per million tokens, in the currency of the table."""

    input: float
    cached_input: float
    output: float


class PriceSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The price table: a price per model (``"*"`` any other) at the tier ``default``, and every tier's multiple.

    The multiples are public ones: OpenAI's Ultrafast at 6 times, priority at twice, flex at half the standard price.
    """

    currency: str = "USD"
    models: dict[str, Price] = msgspec.field(
        default_factory=lambda: {"*": Price(input=1.0, cached_input=0.1, output=4.0)}
    )
    multiples: dict[str, float] = msgspec.field(
        default_factory=lambda: {"ultrafast": 6.0, "priority": 2.0, "default": 1.0, "flex": 0.5}
    )


_TIERS: Final = {
    "ultrafast": TierSettings(slots=2, over_capacity="downgrade"),
    "priority": TierSettings(over_capacity="downgrade"),
    "default": TierSettings(queue_milliseconds=60_000),
    "flex": TierSettings(queue_milliseconds=0, over_capacity="refuse"),
}


class Configuration(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of it. The defaults are a server with one engine, the default model, and every tier on it."""

    host: str = "127.0.0.1"
    port: int = 8000
    data_directory: str | None = None  # None: the user's own
    aliases: dict[str, str] = {}  # another name → the model it stands for
    allowed_hosts: tuple[str, ...] = ()
    record_text: bool = False  # keep prompts and answers in the ledger
    admin_key_variable: str | None = None  # switches the HTTP admin API on
    backends: dict[str, EngineSettings | UpstreamSettings] = msgspec.field(
        default_factory=lambda: {LOCAL: EngineSettings()}
    )
    routes: tuple[RouteSettings, ...] = ()  # empty: every tier to the one engine
    tiers: dict[str, TierSettings] = msgspec.field(default_factory=lambda: dict(_TIERS))
    prices: PriceSettings = PriceSettings()
