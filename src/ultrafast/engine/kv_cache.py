"""Which blocks of the KV cache are free; the cache itself lives in the native runtime."""

from __future__ import annotations


class BlockPool:
    """Hands out block ids ``0 … block_count - 1``, each to one owner at a time.

    All blocks a sequence can ever need are reserved when it is admitted, so a running sequence never waits for one.
    """

    def __init__(self, block_count: int, block_tokens: int) -> None:
        self.block_count = block_count
        self.block_tokens = block_tokens
        # Last in, first out: a block released a moment ago is the likeliest to be in a CPU cache.
        self._free = list(range(block_count - 1, -1, -1))
        self._is_free = bytearray(b"\x01") * block_count

    @property
    def free_count(self) -> int:
        """How many blocks nobody owns."""
        return len(self._free)

    def blocks_for(self, tokens: int) -> int:
        """How many blocks hold ``tokens`` tokens."""
        return -(-tokens // self.block_tokens)

    def reserve(self, count: int) -> list[int] | None:
        """Take ``count`` blocks, or none at all (``None``) where fewer are free."""
        if count > len(self._free):
            return None
        taken = [self._free.pop() for _ in range(count)]
        for block in taken:
            self._is_free[block] = 0
        return taken

    def release(self, blocks: list[int]) -> None:
        """Give blocks back. Raises ValueError for a block that is free already: its new owner's data is at stake."""
        for block in blocks:
            if self._is_free[block]:
                raise ValueError(f"block {block} is released twice")
            self._is_free[block] = 1
            self._free.append(block)
