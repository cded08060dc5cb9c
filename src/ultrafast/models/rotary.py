"""Rotary positions as files describe them: base, rotated part of a head, and the ways to stretch the context."""

from __future__ import annotations

import math

import numpy as np

from ultrafast.models.configuration import MAX_CONTEXT, Rotary
from ultrafast.models.facts import Facts, Float32Array, float32

_KINDS = "none, linear, llama3 and longrope"


def read_rotary(facts: Facts, head_size: int, *, base: float = 10_000.0, part: str = "") -> Rotary:
    """The rotary of ``facts``; ``base`` where the file does not tell.

    ``part`` is a key into config.json's ``rope_parameters``, for models that have several.
    """
    return _from_gguf(facts, head_size, base) if facts.is_gguf else _from_directory(facts, head_size, base, part)


def _from_gguf(facts: Facts, head_size: int, base: float) -> Rotary:
    size = _even(facts, facts.integer("rope.dimension_count", head_size, minimum=2, maximum=head_size))
    half = size // 2
    base = facts.real("rope.freq_base", base, minimum=1.0, maximum=1e12)
    kind = facts.string("rope.scaling.type", "none")
    factors = np.ones(half, np.float32)
    if kind == "linear":
        factors *= np.float32(facts.real("rope.scaling.factor", minimum=1.0, maximum=1e6))
    elif kind not in {"none", "longrope"}:
        facts.unsupported(f"this way to scale rotary positions is not supported; {_KINDS} are")
    stored = facts.factors("rope_freqs.weight", half)
    if stored is not None:
        factors *= stored
    short = facts.factors("rope_factors_short.weight", half)
    long = facts.factors("rope_factors_long.weight", half)
    if (short is None) != (long is None) or (kind == "longrope" and long is None):
        facts.damaged("rope_factors_short.weight and rope_factors_long.weight belong together, and one is missing")
    if short is None or long is None:
        return Rotary(size, base, _divisors(factors))
    return Rotary(
        size,
        base,
        _divisors(factors * short),
        magnitude=facts.real("rope.scaling.attn_factor", 1.0, minimum=1e-3, maximum=1e3),
        long_factors=_divisors(factors * long),
        short_context=facts.integer("rope.scaling.original_context_length", maximum=MAX_CONTEXT),
    )


def _from_directory(facts: Facts, head_size: int, base: float, part: str) -> Rotary:
    # Newer files keep everything in rope_parameters; older ones keep the base beside, and the rest in rope_scaling.
    for key in ("rope_parameters", "rope_scaling"):
        if not isinstance(facts.find(key), dict | None):
            facts.damaged(f"{facts.own(key)} is not an object")
    newer = isinstance(facts.find("rope_parameters"), dict)
    inner = "rope_parameters." + (f"{part}." if part else "") if newer else "rope_scaling."
    if newer or facts.find("rope_theta") is None:
        base = facts.real(inner + "rope_theta", base, minimum=1.0, maximum=1e12)
    else:
        base = facts.real("rope_theta", minimum=1.0, maximum=1e12)
    share = facts.real("partial_rotary_factor", 1.0, minimum=0.0, maximum=1.0)
    share = facts.real(inner + "partial_rotary_factor", share, minimum=0.0, maximum=1.0)
    size = _even(facts, int(head_size * share))
    kind = facts.string(inner + "rope_type", facts.string(inner + "type", "default"))
    if kind == "default":
        return Rotary(size, base)
    if kind == "linear":
        factor = facts.real(inner + "factor", minimum=1.0, maximum=1e6)
        return Rotary(size, base, (factor,) * (size // 2))
    if kind == "llama3":
        return Rotary(size, base, _divisors(_llama3_factors(facts, inner, size, base)))
    # "su" is what the first files with longrope called it.
    if kind in {"longrope", "su"}:
        return _longrope(facts, inner, size, base)
    return facts.unsupported(f"this way to scale rotary positions is not supported; {_KINDS} are")


def _llama3_factors(facts: Facts, inner: str, size: int, base: float) -> Float32Array:
    """Long waves are stretched by a factor, short ones kept, those between blended.

    In float32, which is how the converter to GGUF arrives at the factors it stores.
    """
    one = np.float32(1)
    factor = np.float32(facts.real(inner + "factor", minimum=1.0, maximum=1e6))
    low = np.float32(facts.real(inner + "low_freq_factor", minimum=1e-3, maximum=1e6))
    high = np.float32(facts.real(inner + "high_freq_factor", minimum=1e-3, maximum=1e6))
    if low >= high:
        facts.damaged("low_freq_factor is not below high_freq_factor")
    old = np.float32(facts.integer(inner + "original_max_position_embeddings", maximum=MAX_CONTEXT))
    # The powers in float64, then rounded: a float32 power differs between processors by its last bit.
    exponents = (np.arange(0, size, 2, dtype=np.float32) / np.float32(size)).tolist()
    frequencies = one / np.array([base**exponent for exponent in exponents], np.float32)
    wavelengths = np.float32(2 * math.pi) / frequencies
    smooth = (old / wavelengths - low) / (high - low)
    blended = one / ((one - smooth) / factor + smooth)
    factors = np.where(wavelengths < old / high, one, np.where(wavelengths > old / low, factor, blended))
    return factors.astype(np.float32)


def _longrope(facts: Facts, inner: str, size: int, base: float) -> Rotary:
    context = facts.integer("context_length", maximum=MAX_CONTEXT)
    original = facts.integer("original_max_position_embeddings", context, maximum=MAX_CONTEXT)
    original = facts.integer(inner + "original_max_position_embeddings", original, maximum=MAX_CONTEXT)
    ratio = facts.real(inner + "factor", context / original, minimum=1e-3, maximum=1e6)
    natural = math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 and original > 1 else 1.0
    return Rotary(
        size,
        base,
        _divisors(facts.numbers(inner + "short_factor", size // 2)),
        magnitude=facts.real(inner + "attention_factor", float32(natural), minimum=1e-3, maximum=1e3),
        long_factors=_divisors(facts.numbers(inner + "long_factor", size // 2)),
        short_context=original,
    )


def _even(facts: Facts, size: int) -> int:
    if size < 2 or size % 2:
        facts.damaged("the rotated part of a head is not of an even size")
    return size


def _divisors(factors: Float32Array) -> tuple[float, ...]:
    """The factors, or none where all are 1."""
    return () if (factors == 1).all() else tuple(float(factor) for factor in factors)
