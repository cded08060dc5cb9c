"""What a request costs: exact integers, in millionths of the currency's unit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction

from ultrafast.errors import ConfigurationError
from ultrafast.gateway.configuration import Price, PriceSettings
from ultrafast.gateway.tiers import lane_of

ANY_MODEL = "*"


@dataclass(frozen=True, slots=True)
class TokenCounts:
    """The tokens of a request that have a price: ``cached`` is a part of ``prompt``; ``output`` is what came out,
    with what of a prediction was rejected.
    """

    prompt: int
    cached: int
    output: int


class PriceTable:
    """The price table. A price is per million tokens, so a token costs as many millionths as the price says.

    A sum is rounded once for each request, to the nearest millionth, halves upwards. A model that is neither named nor
    covered by ``"*"`` costs nothing, and a tier without a multiple costs what ``default`` does.
    """

    def __init__(self, settings: PriceSettings) -> None:
        """Raises ConfigurationError for a price or a multiple that is negative or not finite."""
        self.currency = settings.currency
        # By model, then tier; None is a tier without a multiple.
        multiples = {None: Fraction(1)} | {tier: _exact(multiple) for tier, multiple in settings.multiples.items()}
        self._rates = {
            model: {tier: _rate(price, multiple) for tier, multiple in multiples.items()}
            for model, price in settings.models.items()
        }

    def cost(self, model: str, tier: str, tokens: TokenCounts) -> int:
        """Millionths of the currency for ``tokens`` of ``model`` at the tier that was served."""
        rates = self._rates.get(model) or self._rates.get(ANY_MODEL)
        if rates is None:
            return 0
        rate = rates.get(lane_of(tier)) or rates[None]
        cached = min(tokens.cached, tokens.prompt)
        share = (tokens.prompt - cached) * rate.input + cached * rate.cached_input + tokens.output * rate.output
        return (2 * share + rate.shares) // (2 * rate.shares)


@dataclass(frozen=True, slots=True)
class _Rate:
    """What a token costs, in whole shares of a millionth: ``shares`` of them make one."""

    input: int
    cached_input: int
    output: int
    shares: int


def _rate(price: Price, multiple: Fraction) -> _Rate:
    exact = [_exact(value) * multiple for value in (price.input, price.cached_input, price.output)]
    shares = math.lcm(*(value.denominator for value in exact))
    new_input, cached_input, output = (int(value * shares) for value in exact)
    return _Rate(new_input, cached_input, output, shares)


def _exact(value: float) -> Fraction:
    """The number as it was written: 0.1 is a tenth, not the binary fraction beside it."""
    if not math.isfinite(value) or value < 0:
        raise ConfigurationError("a price or a multiple must be a number, 0 or more")
    return Fraction(repr(value))
