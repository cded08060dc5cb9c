"""The vocabulary of a Hugging Face directory: tokenizer.json, as the ``tokenizers`` library reads it, and the settings
beside it.

The file is untrusted. The library's regular expressions may take any time, and its native code may give up: before a
tokenizer is used, it must get through hostile texts within ``MAX_TRIAL_SECONDS``.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import pre_tokenizers

from ultrafast.errors import ModelFileError, UltrafastError, UnsupportedModelError
from ultrafast.tokens.control_tokens import ControlToken
from ultrafast.tokens.directory_files import MAX_TOKENIZER_BYTES, read_bounded, read_settings
from ultrafast.tokens.encoders import LibraryEncoder, is_panic
from ultrafast.tokens.vocabulary import (
    MAX_VOCABULARY,
    Vocabulary,
    byte_level_bytes,
    check_texts,
    end_ids,
    is_byte_token,
    sentence_piece_bytes,
)

MAX_PATTERNS: Final = 64
MAX_PATTERN_LETTERS: Final = 16_384  # of all patterns together
MAX_TRIAL_SECONDS: Final = 8.0  # of processor time for all texts; what is in use needs less than one
_TRIAL_LENGTHS: Final = (64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)
_TRIAL_LETTERS: Final = " \n\taAé中1.'!\u0301"
_MAX_TRIAL_LETTERS: Final = 128


def read_vocabulary(directory: Path, vocabulary_size: int | None) -> Vocabulary:
    """See ``Tokenizer.from_directory``."""
    data = read_bounded(directory / "tokenizer.json", MAX_TOKENIZER_BYTES)
    if data is None:
        raise ModelFileError("there is no tokenizer.json in the model's directory")
    backend = _load(data)
    state = _state(backend.pre_tokenizer)
    later_state = _without_first_prefix(state)
    later = None
    if later_state != state:
        later = _load(data)
        cuts = pre_tokenizers.Sequence([])
        cuts.__setstate__(json.dumps(later_state).encode())
        later.pre_tokenizer = cuts
    added = backend.get_added_tokens_decoder()
    texts, named = _texts(backend, vocabulary_size)
    special = {index: token for index, token in added.items() if token.special}
    unnamed = frozenset(range(len(texts))) - named
    decoder = list(_parts(_state(backend.decoder)))
    kinds = {part.get("type") for part in decoder}
    if "ByteLevel" in kinds:
        token_bytes = byte_level_bytes(texts, frozenset(added))
    elif kinds & {"ByteFallback", "Metaspace"}:
        byte_ids = frozenset(index for index, text in enumerate(texts) if is_byte_token(text))
        token_bytes = sentence_piece_bytes(texts, frozenset(special), byte_ids - special.keys())
    else:
        raise UnsupportedModelError("the decoder in tokenizer.json is not supported; byte-level and byte-fallback are")
    for index in unnamed:
        token_bytes[index] = b""
    encoder = LibraryEncoder(backend, later)
    _try(backend, "".join(_patterns(state)) + "".join(_patterns(_state(backend.normalizer))))
    settings = _Settings(directory, backend, len(texts))
    ends = end_ids((token.content, index) for index, token in special.items())
    beginning = settings.token("bos_token")
    return Vocabulary(
        encoder=encoder,
        token_bytes=token_bytes,
        control_tokens=[
            ControlToken(token.content, index, strips_left=token.lstrip, strips_right=token.rstrip)
            for index, token in sorted(special.items())
        ],
        strips_leading_space=any(_strips_leading_space(part) for part in decoder),
        beginning_of_sequence_id=beginning,
        adds_beginning_of_sequence=beginning is not None and settings.adds_beginning(beginning),
        end_of_sequence_id=settings.token("eos_token"),
        end_ids=frozenset(ends | settings.ends()),
    )


class _Settings:
    """What the files beside tokenizer.json say."""

    def __init__(self, directory: Path, backend: tokenizers.Tokenizer, vocabulary_size: int) -> None:
        self._backend = backend
        self._size = vocabulary_size
        self._names = read_settings(directory / "special_tokens_map.json")
        self._tokenizer = read_settings(directory / "tokenizer_config.json")
        self._generation = read_settings(directory / "generation_config.json")
        self._model = read_settings(directory / "config.json")

    def token(self, role: str) -> int | None:
        """The id of the token that ``role`` names; None where none is named, or one that is not there."""
        named = self._tokenizer.get(role, self._names.get(role))
        text = named.get("content") if isinstance(named, dict) else named
        if not isinstance(text, str):
            return None
        index: int | None = self._backend.token_to_id(text)
        return index

    def adds_beginning(self, beginning: int) -> bool:
        wanted = self._tokenizer.get("add_bos_token")
        if isinstance(wanted, bool):
            return wanted
        frame: list[int] = self._backend.encode("", add_special_tokens=True).ids
        return frame[:1] == [beginning]

    def ends(self) -> set[int]:
        """The ids that end an answer, by the first file that names any, and the tokenizer's own."""
        found = {index for role in ("eos_token",) if (index := self.token(role)) is not None}
        for settings in (self._generation, self._model):
            value = settings.get("eos_token_id")
            ids = value if isinstance(value, list) else [value]
            numbers = [index for index in ids if isinstance(index, int) and not isinstance(index, bool)]
            if any(not 0 <= index < self._size for index in numbers):
                raise ModelFileError("an eos_token_id is outside the vocabulary")
            if numbers:
                return found.union(numbers)
        return found


def _load(data: bytes) -> tokenizers.Tokenizer:
    try:
        backend = tokenizers.Tokenizer.from_buffer(data)
        if type(backend.model).__name__ != "BPE":
            raise UnsupportedModelError("the model in tokenizer.json is not supported; BPE is")
        backend.model.dropout = None
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True  # control tokens are cut out before
    except UltrafastError:
        raise
    except BaseException as error:
        if isinstance(error, Exception) or is_panic(error):
            raise ModelFileError("tokenizer.json cannot be read") from None
        raise
    return backend


def _texts(backend: tokenizers.Tokenizer, vocabulary_size: int | None) -> tuple[list[str], frozenset[int]]:
    """The text of every id, unique stand-ins for ids that have none, and the ids that have one."""
    by_text: dict[str, int] = backend.get_vocab(with_added_tokens=True)
    size = max(max(by_text.values(), default=-1) + 1, vocabulary_size or 0)
    if size > MAX_VOCABULARY:
        raise ModelFileError(f"the vocabulary does not have 1 to {MAX_VOCABULARY:,} tokens")
    if vocabulary_size is not None and size > vocabulary_size:
        raise ModelFileError(
            f"tokenizer.json has ids up to {size - 1:,}, but the model's vocabulary {vocabulary_size:,}"
        )
    texts = [f"\0{index}" for index in range(size)]
    for text, index in by_text.items():
        texts[index] = text
    check_texts(texts)
    return texts, frozenset(by_text.values())


def _state(part: Any) -> dict[str, Any]:
    """The settings of one of the library's objects."""
    return dict(json.loads(part.__getstate__())) if part is not None else {}


def _parts(state: Any) -> Iterator[dict[str, Any]]:
    """Every object in ``state``, itself included."""
    if isinstance(state, dict):
        yield state
    for item in state.values() if isinstance(state, dict) else state if isinstance(state, list) else ():
        yield from _parts(item)


def _patterns(state: dict[str, Any]) -> list[str]:
    """The regular expressions in ``state``; raises ``UnsupportedModelError`` where they are too many or too long."""
    found = [text for part in _parts(state) if isinstance(text := part.get("Regex"), str)]
    if len(found) > MAX_PATTERNS or sum(map(len, found)) > MAX_PATTERN_LETTERS:
        raise UnsupportedModelError("the regular expressions in tokenizer.json are too many or too long")
    return found


def _without_first_prefix(state: Any) -> Any:
    """``state`` for text that does not begin the whole: a prefix meant for its beginning only is left out."""
    if isinstance(state, Mapping):
        changed = {key: _without_first_prefix(value) for key, value in state.items()}
        if changed.get("type") == "Metaspace" and changed.get("prepend_scheme") == "first":
            changed["prepend_scheme"] = "never"
        return changed
    return [_without_first_prefix(item) for item in state] if isinstance(state, list) else state


def _strips_leading_space(part: dict[str, Any]) -> bool:
    if part.get("type") == "Strip":
        return part.get("content") == " " and part.get("start", 0) > 0
    return part.get("type") == "Metaspace" and part.get("prepend_scheme", "always") != "never"


def _try(backend: tokenizers.Tokenizer, patterns: str) -> None:
    """Cut long runs of letters, the patterns' own among them, at growing lengths.

    Where time grows faster than the text's square, a short text shows it before a long one could take too long.
    """
    letters = sorted({*patterns, *_TRIAL_LETTERS})
    units = [*letters[:_MAX_TRIAL_LETTERS], "aA", "a ", "a\n", " \n", "'s", "a1."] if patterns else []
    end = "\0" + "".join(letters)  # what a pattern needs at its end is there, but not where it looks for it
    started = time.process_time()
    for length in _TRIAL_LENGTHS:
        for unit in units:
            text = unit * (length // len(unit)) + end
            try:
                if backend.normalizer is not None:
                    text = backend.normalizer.normalize_str(text)
                if backend.pre_tokenizer is not None:
                    backend.pre_tokenizer.pre_tokenize_str(text)
            except BaseException as error:
                if isinstance(error, Exception) or is_panic(error):
                    raise UnsupportedModelError(
                        "the regular expressions in tokenizer.json give up on simple texts"
                    ) from None
                raise
            if time.process_time() - started > MAX_TRIAL_SECONDS:
                raise UnsupportedModelError("the regular expressions in tokenizer.json take too long on simple texts")
