"""A short, stable name for the weights of a model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_HEAD_BYTES: Final = 1 << 20
_SAMPLE_BYTES: Final = 4096
_SAMPLES: Final = 1024


def weights_fingerprint(files: Iterable[Path], quantised_at_load: str | None = None) -> str:
    """Ten hexadecimal digits from size, head and evenly spaced samples of each file, and a quantisation at load.

    Not a checksum against tampering: it tells one model, or one quantisation of it, from another within milliseconds,
    where hashing gigabytes would delay every start.
    """
    digest = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        digest.update(size.to_bytes(8, "little"))
        with path.open("rb") as file:
            digest.update(file.read(_HEAD_BYTES))
            for index in range(_SAMPLES):
                file.seek(size * index // _SAMPLES)
                digest.update(file.read(_SAMPLE_BYTES))
    digest.update((quantised_at_load or "").encode())
    return digest.hexdigest()[:10]
