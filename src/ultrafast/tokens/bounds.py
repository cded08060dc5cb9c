"""How few tokens a text can have: what refuses a text far beyond a context before the work of encoding it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class TokenBound:
    """A number of tokens that a text reaches for certain, at a hundredth of the cost of encoding it.

    Each byte counts for one part in the length of the longest token that holds it, so that no token's bytes count for
    more than one; and a byte that encoding may lose or change, for nothing.
    """

    shares: NDArray[np.float64]  # [256]
    only_plain_ascii: bool  # normalising leaves only ASCII as it is, and only where no mark joins it

    def minimum_tokens(self, text: str) -> int:
        """At most the number of tokens of ``text``."""
        data = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
        if self.only_plain_ascii:
            plain = data < 0x80
            data = data[plain & np.append(plain[1:], True)[: len(data)]]
        return int(np.bincount(data, minlength=256) @ self.shares)


def token_bound(readings: list[bytes], kept_bytes: Collection[int], *, only_plain_ascii: bool) -> TokenBound:
    """``readings``: all that a token may stand for; ``kept_bytes``: those that always end up in some token."""
    lengths = np.array([len(token) for token in readings])
    data = np.frombuffer(b"".join(readings), np.uint8)
    longest = np.zeros(256)
    np.maximum.at(longest, data, np.repeat(lengths, lengths))
    kept = np.array(sorted(kept_bytes), np.int64)
    kept = kept[longest[kept] > 0]
    shares = np.zeros(256)
    shares[kept] = 1 / longest[kept]
    return TokenBound(shares, only_plain_ascii)
