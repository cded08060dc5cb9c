"""Costs are exact integers."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.errors import ConfigurationError
from ultrafast.gateway.configuration import Price, PriceSettings
from ultrafast.gateway.records.prices import PriceTable, TokenCounts

MILLION = TokenCounts(prompt=1_000_000, cached=0, output=0)


def test_the_default_table_shows_the_public_multiples() -> None:
    table = PriceTable(PriceSettings())
    assert table.currency == "USD"
    standard = table.cost("any", "default", MILLION)
    assert standard == 1_000_000  # one dollar
    costs = [table.cost("any", tier, MILLION) for tier in ("ultrafast", "priority", "fast", "default", "flex")]
    assert costs == [6 * standard, 2 * standard, 2 * standard, standard, standard // 2]


def test_cached_input_is_cheaper_and_output_dearer() -> None:
    table = PriceTable(PriceSettings())
    assert table.cost("m", "default", TokenCounts(100, 0, 0)) == 100
    assert table.cost("m", "default", TokenCounts(100, 100, 0)) == 10
    assert table.cost("m", "default", TokenCounts(100, 40, 10)) == 60 + 4 + 40
    assert table.cost("m", "default", TokenCounts(0, 0, 0)) == 0


def test_a_models_own_price_goes_before_any() -> None:
    named, other = Price(input=3, cached_input=0.3, output=15), Price(input=1, cached_input=1, output=1)
    table = PriceTable(PriceSettings(models={"large": named, "*": other}, multiples={"flex": 0.5}))
    assert table.cost("large", "default", TokenCounts(10, 0, 2)) == 60
    assert table.cost("small", "default", TokenCounts(10, 0, 2)) == 12
    assert table.cost("small", "flex", TokenCounts(10, 0, 2)) == 6
    assert table.cost("small", "ultrafast", TokenCounts(10, 0, 2)) == 12  # no multiple: as default
    assert PriceTable(PriceSettings(models={"large": named})).cost("small", "default", MILLION) == 0
    free = Price(input=0, cached_input=0, output=0)
    assert PriceTable(PriceSettings(models={"m": free, "*": other})).cost("m", "default", MILLION) == 0


def test_halves_are_rounded_upwards_once() -> None:
    tenth = PriceTable(PriceSettings(models={"*": Price(input=0.1, cached_input=0.1, output=0.1)}))
    costs = [tenth.cost("m", "default", TokenCounts(prompt, 0, 0)) for prompt in (4, 5, 14, 15, 24, 25)]
    assert costs == [0, 1, 1, 2, 2, 3]
    # Of each part alone nothing would be left.
    assert tenth.cost("m", "default", TokenCounts(prompt=4, cached=2, output=3)) == 1


@given(
    st.tuples(*[st.decimals("0", "1000", places=3).map(float)] * 3),
    st.decimals("0", "100", places=2).map(float),
    st.tuples(*[st.integers(0, 10**7)] * 3),
)
def test_no_drift(prices: tuple[float, float, float], multiple: float, counts: tuple[int, int, int]) -> None:
    price = Price(*prices)
    table = PriceTable(PriceSettings(models={"*": price}, multiples={"flex": multiple}))
    prompt, cached, output = counts
    cached = min(cached, prompt)
    exact = [Fraction(str(value)) for value in prices]
    sum_ = (prompt - cached) * exact[0] + cached * exact[1] + output * exact[2]
    expected = sum_ * Fraction(str(multiple))
    cost = table.cost("m", "flex", TokenCounts(prompt, cached, output))
    assert isinstance(cost, int)
    assert Fraction(-1, 2) < cost - expected <= Fraction(1, 2)


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_impossible_prices(value: float) -> None:
    with pytest.raises(ConfigurationError):
        PriceTable(PriceSettings(models={"*": Price(input=1, cached_input=value, output=1)}))
    with pytest.raises(ConfigurationError):
        PriceTable(PriceSettings(multiples={"flex": value}))
