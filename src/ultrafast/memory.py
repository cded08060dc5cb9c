"""Memory that lives as long as its process: left alone by the collector, on huge pages where the system has them."""

from __future__ import annotations

import atexit
import ctypes
import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_MAPS: Final = Path("/proc/self/maps")
_HUGE_PAGE_BYTES: Final = 2 << 20
_MADV_COLLAPSE: Final = 25  # Linux 6.1


def settle() -> None:
    """Call once, when everything that stays has been made; what the system does not offer is left as it is.

    Between two steps of the engine Python runs with cold caches, and every small page it touches costs a walk of page
    tables that come from memory, too. What the gateway adds to the time to a first token shows it.
    """
    gc.collect()
    gc.freeze()
    # At the interpreter's end it collects again: a native object in a cycle would outlive it, which nanobind reports.
    atexit.register(gc.unfreeze)
    try:
        regions = list(_writable_regions(_MAPS.read_text("ascii", "replace")))
        madvise = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):  # not Linux
        return
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for start, end in regions:
        madvise(start, end - start, _MADV_COLLAPSE)  # where it fails, nothing has changed


def _writable_regions(maps: str) -> Iterator[tuple[int, int]]:
    """The whole huge pages of anonymous writable memory, (start, end) each."""
    for line in maps.splitlines():
        addresses, permissions, _, _, inode, *name = line.split(maxsplit=5)
        if permissions == "rw-p" and inode == "0" and name in ([], ["[heap]"]):
            first, last = (int(address, 16) for address in addresses.split("-"))
            start, end = -(-first // _HUGE_PAGE_BYTES) * _HUGE_PAGE_BYTES, last // _HUGE_PAGE_BYTES * _HUGE_PAGE_BYTES
            if start < end:
                yield start, end
