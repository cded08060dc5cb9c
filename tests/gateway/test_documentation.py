"""The limits in docs/api.md, and the way to the operator's interface in docs/operations.md, are those of the code."""

from __future__ import annotations

import re
from pathlib import Path

from ultrafast.gateway import answers, app, json_input, protocol, schema


def page(name: str) -> str:
    """A page of the documentation, in one line."""
    return re.sub(r"\s+", " ", (Path(__file__).parents[2] / "docs" / name).read_text(encoding="utf-8"))


PAGE = page("api.md")


def test_the_limits_of_requests() -> None:
    assert f"at most {json_input.MAXIMUM_BODY_BYTES >> 20} MiB, within {json_input.BODY_SECONDS:.0f} s" in PAGE
    assert f"at most {protocol.MAXIMUM_HEADER_BYTES >> 10} KiB, within {protocol.HEADER_SECONDS:.0f} s" in PAGE
    assert f"stops reading for {protocol.WRITE_SECONDS:.0f} s" in PAGE
    assert answers.KEEP_ALIVE_SECONDS == 5.0
    assert "for five seconds" in PAGE


def test_the_limits_of_parameters() -> None:
    assert f"`messages` | 1 to {schema.MAXIMUM_MESSAGES:,};" in PAGE
    assert f"never goes beyond the context | {schema.DEFAULT_MAX_TOKENS:,} |" in PAGE
    assert f"`n` | 1 to {schema.MAXIMUM_CHOICES} |" in PAGE
    assert f"up to {schema.MAXIMUM_STOP_STRINGS} strings of 1 to {schema.MAXIMUM_STOP_LETTERS} characters" in PAGE
    assert f"up to {schema.MAXIMUM_BIASED_TOKENS:,} token ids" in PAGE
    assert f"0 to {schema.MAXIMUM_TOP_LOGPROBS} alternatives" in PAGE


def test_the_operators_interface_over_http() -> None:
    text = page("operations.md")
    assert f"under `{app.OPERATOR_PATH}/`" in text
    assert "`admin_key_variable`" in text
    assert f"$HOST{app.OPERATOR_PATH}/projects" in text
