"""Service tiers: from the words of a request to the tier that it is admitted to."""

from __future__ import annotations

from http import HTTPStatus
from typing import Final, Literal, Protocol, get_args

from ultrafast.engine.tiers import TIER_NAMES, TIER_RANKS
from ultrafast.errors import RequestError
from ultrafast.gateway.failures import Headers, HttpError
from ultrafast.gateway.fields import Fields

OverCapacity = Literal["queue", "downgrade", "refuse"]
OVER_CAPACITY_HEADER: Final = "x-ultrafast-over-capacity"

DEFAULT_TIER: Final = "default"
ULTRAFAST: Final = "ultrafast"

# The tiers, most urgent first: separate slots, limits and prices. ``fast`` is another word for ``priority``.
TIERS: Final = TIER_NAMES
LOWEST_TIERS: Final = (DEFAULT_TIER, "flex")  # whose requests nothing takes over when they are full

# What a request may say → how it is served and reported. ``auto`` and nothing are the same: the project's own tier.
SERVICE_TIERS: Final = {
    "auto": None,
    "default": DEFAULT_TIER,
    "standard": DEFAULT_TIER,
    "flex": "flex",
    "priority": "priority",
    "fast": "fast",
    ULTRAFAST: ULTRAFAST,
}
# Accepted from any client; only the last one means something to a model that does not reason: the tier.
REASONING_EFFORTS: Final = ("none", "minimal", "low", "medium", "high", "xhigh", "max", ULTRAFAST)


def lane_of(tier: str) -> str:
    """The tier of ``TIERS`` that a served tier, whatever word it is reported by, belongs to."""
    return TIER_NAMES[TIER_RANKS[tier]] if tier in TIER_RANKS else tier


def read_tier(fields: Fields) -> str | None:
    """The tier asked for by ``service_tier`` or ``reasoning_effort``, None where neither does.

    Raises RequestError where the two differ.
    """
    word = fields.choice("service_tier", SERVICE_TIERS)
    effort = fields.choice("reasoning_effort", REASONING_EFFORTS)
    tier = SERVICE_TIERS[word] if word is not None else None
    if effort == ULTRAFAST and tier not in (None, ULTRAFAST):
        raise RequestError(
            "'service_tier' and 'reasoning_effort' ask for different tiers", param="service_tier", code="invalid_value"
        )
    return ULTRAFAST if effort == ULTRAFAST else tier


class Entitled(Protocol):
    """What of a project decides its tiers."""

    @property
    def default_tier(self) -> str: ...

    @property
    def in_preview(self) -> bool: ...


def tier_of(asked: str | None, project: Entitled) -> str:
    """The tier a request is for: its own word, or the project's default.

    Raises HttpError 403 where it asks for ``ultrafast`` and the project is not in the preview; a project that left the
    preview with that default is served at ``default``.
    """
    if asked is None:
        tier = project.default_tier
        return DEFAULT_TIER if tier == ULTRAFAST and not project.in_preview else tier
    if asked == ULTRAFAST and not project.in_preview:
        raise HttpError(
            HTTPStatus.FORBIDDEN,
            "this project is not in the preview of the tier 'ultrafast': its operator can grant it",
            code="tier_not_enabled",
            param="service_tier",
            headers=[(b"x-should-retry", b"false")],
        )
    return asked


def over_capacity_of(headers: Headers) -> OverCapacity | None:
    """What the client wants where its tier is full. Raises RequestError for another word."""
    name = OVER_CAPACITY_HEADER.encode()
    values = {value.strip().lower() for header, value in headers if header == name}
    for word in get_args(OverCapacity):
        if values == {word.encode()}:
            return word  # type: ignore[no-any-return]
    if values:
        raise RequestError(
            f"the header '{OVER_CAPACITY_HEADER}' must be one of: {', '.join(get_args(OverCapacity))}",
            param=OVER_CAPACITY_HEADER,
        )
    return None
