"""Service tiers: from the words of a request to the tier that is served."""

from __future__ import annotations

from typing import Final

from ultrafast.errors import RequestError
from ultrafast.gateway.fields import Fields

DEFAULT_TIER: Final = "default"
ULTRAFAST: Final = "ultrafast"

# The tiers, most urgent first: separate slots, limits and prices. ``fast`` is another word for ``priority``.
TIERS: Final = (ULTRAFAST, "priority", DEFAULT_TIER, "flex")

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
    return "priority" if tier == "fast" else tier


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
