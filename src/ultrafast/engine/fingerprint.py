"""A short, stable name for the weights of a model file."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Final

_HEAD_BYTES: Final = 1 << 20
_SAMPLE_BYTES: Final = 4096
_SAMPLES: Final = 1024


def weights_fingerprint(path: Path, quantised_at_load: str | None = None) -> str:
    """Ten hexadecimal digits from the size, the head and evenly spaced samples of the file, and a quantisation at load.

    Not a checksum against tampering: it tells one model, or one quantisation of it, from another within milliseconds,
    where hashing gigabytes would delay every start.
    """
    size = path.stat().st_size
    digest = hashlib.sha256(size.to_bytes(8, "little"))
    with path.open("rb") as file:
        digest.update(file.read(_HEAD_BYTES))
        for index in range(_SAMPLES):
            file.seek(size * index // _SAMPLES)
            digest.update(file.read(_SAMPLE_BYTES))
    digest.update((quantised_at_load or "").encode())
    return digest.hexdigest()[:10]
