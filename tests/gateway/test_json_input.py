"""Bodies: only what is exactly one JSON object passes (FAULTS rows 1 and 10)."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.errors import RequestError
from ultrafast.gateway.json_input import parse_object

BAD = {
    "empty": b"",
    "not JSON": b"{",
    "no object": b"[]",
    "a string": b'"x"',
    "null": b"null",
    "two values": b"{} {}",
    "trailing comma": b'{"a": 1,}',
    "single quotes": b"{'a': 1}",
    "comment": b"{} // x",
    "byte order mark": b"\xef\xbb\xbf{}",
    "invalid UTF-8": b'{"a": "\xff"}',
    "raw surrogate": b'{"a": "\xed\xa0\x80"}',
    "lone high surrogate": rb'{"a": "\ud800"}',
    "lone low surrogate": rb'{"a": [{"b": "x\uDFFFy"}]}',
    "lone surrogate as key": rb'{"\ud800": 1}',
    "duplicate keys": b'{"a": 1, "a": 2}',
    "nested duplicate keys": b'{"x": [{"a": 1, "a": 1}]}',
    "deep lists": b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "deep objects": b'{"a": ' * 50_000 + b"1" + b"}" * 50_000,
    "control character": b'{"a": "\x01"}',
    "UTF-16": '{"a": 1}'.encode("utf-16"),
}


@pytest.mark.parametrize("body", BAD.values(), ids=BAD.keys())
def test_bad_bodies_are_one_clean_error(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        parse_object(body)
    assert caught.value.status == 400
    assert caught.value.code == "invalid_json"


def test_numbers_without_a_finite_value_are_left_for_the_field_to_name() -> None:
    parsed = parse_object(b'{"a": NaN, "b": Infinity, "c": -Infinity, "d": 1e999, "e": ' + b"9" * 5000 + b"}")
    assert not any(math.isfinite(value) for value in parsed.values())


def test_a_pair_of_surrogates_is_one_character() -> None:
    assert parse_object(rb'{"a": "\ud83d\ude00"}') == {"a": "😀"}


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@given(st.dictionaries(st.text(), json_values))
def test_what_is_valid_arrives_unchanged(value: dict[str, object]) -> None:
    for ascii_only in (True, False):
        body = json.dumps(value, ensure_ascii=ascii_only).encode()
        assert parse_object(body) == value


@given(st.binary(max_size=200))
def test_noise_is_an_error_or_an_object(body: bytes) -> None:
    try:
        parsed = parse_object(body)
    except RequestError:
        return
    assert isinstance(parsed, dict)
