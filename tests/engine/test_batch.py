"""The arrays of a step against the rules of the native side, for any mix of chunks and single tokens."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.engine.batch import Batch

ITEMS = st.lists(
    st.tuples(st.integers(0, 7), st.integers(0, 1000), st.integers(0, 3), st.lists(st.integers(0, 99), max_size=6)),
    max_size=8,
)


@given(steps=st.lists(ITEMS, min_size=1, max_size=4))
def test_rows_are_as_planned_and_nothing_stays_from_the_step_before(
    steps: list[list[tuple[int, int, int, list[int]]]],
) -> None:
    batch = Batch(64)
    for items in steps:
        batch.clear()
        expected: list[tuple[int, int, int, int, int]] = []
        for sequence, start, want, tokens in items:
            first = len(expected)
            if tokens:
                batch.add_chunk(np.array(tokens, np.int32), start, sequence, want)
            else:
                batch.add_token(5, start, sequence, want)
            for offset, token in enumerate(tokens or [5]):
                parent = -1 if offset == 0 else first + offset - 1
                is_last = offset == len(tokens or [5]) - 1
                expected.append((token, start + offset, sequence, parent, want if is_last else 0))
        arrays = batch.arrays()
        assert [array.dtype for array in arrays] == [np.int32] * 4 + [np.uint8]
        assert list(zip(*(array.tolist() for array in arrays), strict=True)) == expected
