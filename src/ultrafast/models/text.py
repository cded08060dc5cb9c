"""Tokenizer and chat template of a model, whichever files hold it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ultrafast.errors import ConfigurationError
from ultrafast.models.description import describe
from ultrafast.tokens.chat_template import ChatTemplate
from ultrafast.tokens.directory_files import read_bounded
from ultrafast.tokens.tokenizer import Tokenizer
from ultrafast.weights import ModelSource, open_model
from ultrafast.weights.gguf import GgufFile

MAX_TEMPLATE_BYTES: Final = 1 << 20


def read_tokenizer(source: ModelSource) -> Tokenizer:
    """The tokenizer of an open model. Raises ``ModelFileError`` or ``UnsupportedModelError``."""
    if isinstance(source, GgufFile):
        return Tokenizer.from_gguf(source)
    return Tokenizer.from_directory(source.path, vocabulary_size=describe(source)[0].vocabulary_size)


def open_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of the model at ``path``, a file or a directory."""
    with open_model(path) as source:
        return read_tokenizer(source)


def read_template(source: ModelSource, tokenizer: Tokenizer, file: Path | None = None) -> ChatTemplate | None:
    """The chat template in ``file``, else the model's own; None where it has none, as base models do.

    Raises ``ConfigurationError`` for a ``file`` that cannot be read, ``ModelFileError`` for a template that is wrong.
    """
    if file is not None:
        data = read_bounded(file, MAX_TEMPLATE_BYTES)
        if data is None:
            raise ConfigurationError("--chat-template: there is no such file")
        try:
            return ChatTemplate(data.decode(), tokenizer)
        except UnicodeDecodeError as error:
            raise ConfigurationError("--chat-template: the file is not UTF-8 text") from error
    if isinstance(source, GgufFile):
        return ChatTemplate.from_gguf(source, tokenizer)
    return ChatTemplate.from_directory(source.path, tokenizer)
