"""From the tokens of one choice to what its reader sees: text, stop strings, the reason of the end."""

from __future__ import annotations

from collections.abc import Sequence

from ultrafast.engine.messages import TokenLogprob, TopToken
from ultrafast.tokens.detokenizer import IncrementalDetokenizer
from ultrafast.tokens.stop import StopStringFilter
from ultrafast.tokens.tokenizer import Tokenizer


class ChoiceOutput:
    """The text side of one choice.

    Concatenated, the texts returned equal the decoding of all tokens at once, cut at the first stop string.
    """

    def __init__(
        self, tokenizer: Tokenizer, stop: Sequence[str], *, ignore_end: bool, previous: int | None = None
    ) -> None:
        """``previous``: the prompt's last token."""
        self._detokenizer = IncrementalDetokenizer(tokenizer, previous=previous)
        self._filter = StopStringFilter(stop) if stop else None
        self._end_ids = frozenset[int]() if ignore_end else tokenizer.end_ids

    def add(self, token: int, *, is_last: bool) -> tuple[str, str | None]:
        """The text now certain and, at the end, the finish reason. ``is_last``: no room for a further token."""
        if token in self._end_ids:
            text, stopped = self._finish("")
            return text, "stop"
        text = self._detokenizer.add((token,))
        if is_last:
            text, stopped = self._finish(text)
            return text, "stop" if stopped else "length"
        if self._filter is None:
            return text, None
        text, stopped = self._filter.add(text)
        return text, "stop" if stopped else None

    def is_end(self, token: int) -> bool:
        """Whether ``token`` ends this choice without being part of its text."""
        return token in self._end_ids

    def _finish(self, text: str) -> tuple[str, bool]:
        text += self._detokenizer.finish()
        if self._filter is None:
            return text, False
        text, stopped = self._filter.add(text)
        return (text, True) if stopped else (text + self._filter.finish(), False)


def token_logprob(
    tokenizer: Tokenizer, token: int, logprob: float, top_ids: Sequence[int], top_logprobs: Sequence[float]
) -> TokenLogprob:
    """The log probability entry of one generated token."""
    top = [
        TopToken(top_id, tokenizer.token_bytes(top_id), top_logprob)
        for top_id, top_logprob in zip(top_ids, top_logprobs, strict=True)
    ]
    return TokenLogprob(token, tokenizer.token_bytes(token), logprob, top)
