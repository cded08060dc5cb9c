"""A model's chat template: messages to prompt text and to tokens.

Control-token texts that arrive inside messages are encoded as the letters they are, never as the tokens they name, so
no message can end its turn or open another's. For messages without such texts the tokens are those of the plain way,
rendering and then encoding.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Self

from jinja2 import nodes
from jinja2.exceptions import SecurityError

from ultrafast.errors import ContextLengthError, ModelFileError, RequestError
from ultrafast.tokens.control_tokens import ControlTokens
from ultrafast.tokens.directory_files import read_chat_template
from ultrafast.tokens.sandbox import BoundedEnvironment, RefusedError, WorkLimitError
from ultrafast.tokens.tokenizer import Tokenizer
from ultrafast.weights.gguf import GgufFile

MAX_TEMPLATE_LETTERS: Final = 1 << 18
MAX_MESSAGE_NESTING: Final = 64

Message = Mapping[str, Any]


class ChatTemplate:
    """A compiled template; immutable, and safe to share between threads."""

    def __init__(self, source: str, tokenizer: Tokenizer) -> None:
        """Compile ``source`` and try it on one short message.

        Raises ``ModelFileError`` where it is too large, malformed, forbidden by the sandbox or without end.
        """
        if len(source) > MAX_TEMPLATE_LETTERS:
            raise ModelFileError(f"the chat template is longer than {MAX_TEMPLATE_LETTERS:,} letters")
        self._environment = BoundedEnvironment()
        self._tokenizer = tokenizer
        self._variables = {
            name: tokenizer.token_bytes(index).decode("utf-8", "replace")
            for name, index in (
                ("bos_token", tokenizer.beginning_of_sequence_id),
                ("eos_token", tokenizer.end_of_sequence_id),
            )
            if index is not None
        }
        try:
            with self._environment.budget():
                constants = self._environment.parse(source).find_all(nodes.Const)
                self._constants = frozenset(item.value for item in constants if isinstance(item.value, str))
                self._template = self._environment.compile_bounded(source)
        except Exception as error:  # compiling an unknown template may fail in any way, from syntax to recursion
            raise ModelFileError("the model's chat template cannot be compiled") from error
        # What stands around every message is encoded once.
        self._own_parts: dict[tuple[str, bool], list[int]] = {}
        try:
            self._own_parts = tokenizer.parts(self._render([{"role": "user", "content": "x"}], {}))
        except (WorkLimitError, RecursionError) as error:
            raise ModelFileError("the model's chat template does not end within its work limit") from error
        except SecurityError as error:
            raise ModelFileError("the model's chat template does what the sandbox forbids") from error
        except Exception:  # noqa: S110 - a template may well refuse this message; real ones get a real answer
            pass

    @classmethod
    def from_gguf(cls, gguf: GgufFile, tokenizer: Tokenizer) -> Self | None:
        """The template of an open model file; None where it carries none, as base models do."""
        if "tokenizer.chat_template" not in gguf.metadata:
            return None
        return cls(gguf.string("tokenizer.chat_template"), tokenizer)

    @classmethod
    def from_directory(cls, directory: Path, tokenizer: Tokenizer) -> Self | None:
        """The template of a Hugging Face directory; None where it has none."""
        source = read_chat_template(directory)
        return None if source is None else cls(source, tokenizer)

    def render(self, messages: Sequence[Message], **variables: Any) -> str:
        """The prompt text, ending where the assistant's answer begins; ``variables`` are added or override.

        Raises ``RequestError`` for messages the template refuses or cannot render.
        """
        try:
            return self._render(messages, variables)
        except RefusedError as error:
            # Only a text that stands in the template itself may be passed on: any other may hold the messages.
            reason = str(error) if str(error) in self._constants and str(error).isprintable() else ""
            detail = f": {reason[:200]}" if reason else ""
            raise RequestError(f"the model's chat template refuses these messages{detail}", param="messages") from None
        except WorkLimitError:
            raise RequestError("the messages exceed the chat template's work limit", param="messages") from None
        except Exception:  # the template is code from a file: whatever it raises is about these messages
            raise RequestError("the model's chat template cannot render these messages", param="messages") from None

    def render_tokens(self, messages: Sequence[Message], *, context: int | None = None, **variables: Any) -> list[int]:
        """The prompt's token ids; control tokens come from the template alone, never from a message.

        Raises ``ContextLengthError`` where they leave no room in ``context``, mostly before encoding them.
        """
        shield = _Shield(self._tokenizer.control_tokens)
        text = self.render(
            [shield.protect(message) for message in messages],
            **{name: shield.protect(value) for name, value in variables.items()},
        )
        if context is not None and len(text) >= context:  # a shorter one is encoded as soon as it is measured
            parts = self._tokenizer.control_tokens.cut(text)
            fewest = sum(
                self._tokenizer.minimum_tokens(shield.restore(part)) if isinstance(part, str) else 1 for part in parts
            )
            _check_room(fewest, context, "at least ")
        ids = self._tokenizer.encode(text, special=True, restore=shield.restore, known=self._own_parts)
        if context is not None:
            _check_room(len(ids), context)
        return ids

    def _render(self, messages: Sequence[Message], variables: Mapping[str, Any]) -> str:
        defaults: dict[str, Any] = {"add_generation_prompt": True, "tools": None, "documents": None}
        with self._environment.budget():
            return self._template.render(defaults | self._variables | dict(variables) | {"messages": list(messages)})


def _check_room(tokens: int, context: int, qualifier: str = "") -> None:
    if tokens >= context:
        raise ContextLengthError(
            f"this model's context holds {context} tokens, the answer included, "
            f"and the messages have {qualifier}{tokens}",
            param="messages",
        )


class _Shield:
    """Puts a placeholder where a message holds a control token's text, or ends with the beginning of one.

    Placeholders carry a random nonce, so that no message can forge one.
    """

    def __init__(self, control_tokens: ControlTokens) -> None:
        self._control_tokens = control_tokens
        self._nonce = ""
        self._originals: list[str] = []

    def protect(self, value: Any, depth: int = 0) -> Any:
        if isinstance(value, str):
            return self._protect_text(value)
        if depth > MAX_MESSAGE_NESTING:
            raise RequestError(f"messages are nested more than {MAX_MESSAGE_NESTING} deep", param="messages")
        if isinstance(value, Mapping):
            return {self.protect(key): self.protect(item, depth + 1) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self.protect(item, depth + 1) for item in value]
        return value

    def restore(self, text: str) -> str:
        if not self._originals:
            return text
        return re.sub(rf"\ufdd0{self._nonce}([0-9]+)\ufdd1", lambda match: self._originals[int(match.group(1))], text)

    def _protect_text(self, text: str) -> str:
        parts: list[str] = []
        position = 0
        for start, end, token in self._control_tokens.find(text):
            parts += (text[position:start], self._placeholder(token.text))
            position = end
        rest = text[position:]
        if begun := self._control_tokens.begun_at_end(rest):
            rest = rest[:-begun] + self._placeholder(rest[-begun:])
        return "".join([*parts, rest])

    def _placeholder(self, original: str) -> str:
        self._nonce = self._nonce or secrets.token_hex(8)
        self._originals.append(original)
        return f"\ufdd0{self._nonce}{len(self._originals) - 1}\ufdd1"
