"""From chat messages, or a text to be continued, to prompt tokens: tokenizer and chat template of one model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from ultrafast.errors import RequestError, UnsupportedModelError
from ultrafast.models.support import in_full
from ultrafast.models.text import read_template, read_tokenizer
from ultrafast.tokens.chat_template import ChatTemplate
from ultrafast.tokens.tokenizer import Tokenizer
from ultrafast.weights import open_model


class ChatPrompt:
    """Renders and tokenises conversations. Thread-safe: no state changes after construction."""

    def __init__(self, template: ChatTemplate | None, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._template = template

    @classmethod
    def from_file(cls, path: Path, template_file: Path | None = None) -> ChatPrompt:
        """Read both from a model, or the template from a file of its own.

        Raises ``ModelFileError``, ``UnsupportedModelError`` with all that speaks against the model or, for the
        template's file, ``ConfigurationError``.
        """
        try:
            with open_model(path) as source:
                tokenizer = read_tokenizer(source)
                return cls(read_template(source, tokenizer, template_file), tokenizer)
        except UnsupportedModelError as error:
            raise in_full(error, path, template_file) from None

    @property
    def can_chat(self) -> bool:
        """False for a base model, which only continues texts."""
        return self._template is not None

    def tokens(self, messages: Sequence[Mapping[str, str]], *, context: int | None = None) -> list[int]:
        """The prompt for the next assistant turn after ``messages`` (each with ``role`` and ``content``).

        Raises ``ContextLengthError`` where it leaves no room for an answer in ``context``, ``RequestError`` where the
        model has no chat template or it refuses the messages.
        """
        if self._template is None:
            raise RequestError(
                "the model has no chat template: it continues texts, as ultrafast run does; "
                "start with --chat-template FILE to chat",
                param="messages",
                code="chat_template_missing",
            )
        return self._template.render_tokens(messages, context=context)

    def text_tokens(self, text: str) -> list[int]:
        """The prompt for a continuation of ``text`` as it stands."""
        return self.tokenizer.encode_prompt(text)
