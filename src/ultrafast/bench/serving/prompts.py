"""Requests of a wanted length, every one of them new: excerpts of a shipped text, and an instruction."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from ultrafast.bench.text import text_tokens
from ultrafast.models.text import open_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

_INSTRUCTION = "\n\nWrite a very long story that goes on from here."
_NEVER = -100  # the bias that forbids a token


class Prompts:
    """Makes the bodies of requests; none begins as an earlier one did, so no prefix but the template's is shared."""

    def __init__(self, model_path: Path) -> None:
        self._text = text_tokens(model_path)
        self._tokenizer = open_tokenizer(model_path)
        self._numbers = itertools.count(1)

    def excerpt(self, tokens: int) -> str:
        """About so many tokens of text."""
        return self._tokenizer.decode(self._text.excerpt(tokens, next(self._numbers)))

    def body(self, tokens: int, *, tier: str, max_tokens: int) -> dict[str, Any]:
        """A request with an excerpt of ``tokens`` to continue at length."""
        content = self.excerpt(tokens) + _INSTRUCTION
        return {"messages": [{"role": "user", "content": content}], "service_tier": tier, "max_tokens": max_tokens}

    def endless(self, tokens: int, *, tier: str, max_tokens: int) -> dict[str, Any]:
        """The same, and the answer goes on to ``max_tokens`` whatever the model thinks."""
        bias = {str(index): _NEVER for index in self._tokenizer.end_ids}
        return self.body(tokens, tier=tier, max_tokens=max_tokens) | {"logit_bias": bias}
