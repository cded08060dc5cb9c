"""Short digests: what the golden files keep instead of long results."""

from __future__ import annotations

import hashlib

DIGEST_LETTERS = 8


def digest(value: str) -> str:
    return hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=DIGEST_LETTERS // 2).hexdigest()


def digest_of_ids(ids: list[int]) -> str:
    return digest(" ".join(map(str, ids)))
