"""Exact accounting of KV cache blocks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.engine.kv_cache import BlockPool


def test_reserving_is_all_or_nothing() -> None:
    pool = BlockPool(4, 32)
    assert pool.reserve(5) is None
    assert pool.free_count == 4
    blocks = pool.reserve(4)
    assert blocks is not None
    assert sorted(blocks) == [0, 1, 2, 3]
    assert pool.reserve(1) is None


def test_a_block_released_twice_is_an_error() -> None:
    pool = BlockPool(2, 32)
    blocks = pool.reserve(1)
    assert blocks is not None
    pool.release(blocks)
    with pytest.raises(ValueError, match="twice"):
        pool.release(blocks)


@given(tokens=st.integers(0, 10_000), block_tokens=st.integers(1, 128))
def test_blocks_are_just_enough(tokens: int, block_tokens: int) -> None:
    blocks = BlockPool(1, block_tokens).blocks_for(tokens)
    assert (blocks - 1) * block_tokens < tokens <= blocks * block_tokens or tokens == blocks == 0


@given(st.lists(st.integers(0, 8)))
def test_no_block_has_two_owners(counts: list[int]) -> None:
    pool = BlockPool(20, 32)
    owners: list[list[int]] = []
    for count in counts:
        blocks = pool.reserve(count)
        if blocks is None and owners:
            pool.release(owners.pop(0))
        elif blocks is not None:
            owners.append(blocks)
        owned = [block for blocks in owners for block in blocks]
        assert len(set(owned)) == len(owned) == 20 - pool.free_count
