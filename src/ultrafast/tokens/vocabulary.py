"""What a tokenizer is made of, whichever files it came from, and what the readers of those files share."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Final

from ultrafast.errors import ModelFileError
from ultrafast.tokens.bounds import TokenBound, token_bound
from ultrafast.tokens.control_tokens import ControlToken
from ultrafast.tokens.encoders import SPACE, Encoder

MAX_VOCABULARY: Final = 1 << 20

# Control tokens that end a turn or a text in the families supported, besides those that a model's files name.
END_TEXTS: Final = frozenset(
    {
        *("<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>", "<|end|>", "<end_of_turn>"),
        *(
            "<|return|>",
            "<|call|>",
            "</s>",
            "<eos>",
            "<EOT>",
            "[EOT]",
            "<｜end▁of▁sentence｜>",
            "<|END_OF_TURN_TOKEN|>",
        ),
    }
)
# Where both are there, an answer is several messages, each closed by <|end|>.
_HARMONY_TEXTS: Final = frozenset({"<|return|>", "<|call|>"})


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """``token_bytes``: what each id stands for, a control token's being its name."""

    encoder: Encoder
    token_bytes: list[bytes]
    control_tokens: list[ControlToken]
    strips_leading_space: bool  # the space that encoding puts before a text is no part of it
    beginning_of_sequence_id: int | None
    adds_beginning_of_sequence: bool
    end_of_sequence_id: int | None
    end_ids: frozenset[int]
    bound: TokenBound | None = None  # where how a text is encoded is known well enough


def _byte_alphabet() -> dict[int, int]:
    """Translation from the printable letters that stand for bytes in a vocabulary to those bytes."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {256 + index: byte for index, byte in enumerate(others)}


_BYTE_OF_LETTER: Final = _byte_alphabet()
_BYTE_TEXTS: Final = frozenset(f"<0x{byte:02X}>" for byte in range(256))


def byte_level_bytes(texts: list[str], literal_ids: Collection[int]) -> list[bytes]:
    """Bytes of every token: through the byte alphabet, except where a token is literal text or holds other letters."""
    alphabet = set(map(chr, _BYTE_OF_LETTER))
    return [
        text.encode()
        if index in literal_ids or not alphabet.issuperset(text)
        else text.translate(_BYTE_OF_LETTER).encode("latin-1")
        for index, text in enumerate(texts)
    ]


def byte_level_bound(texts: list[str], literal_ids: Collection[int], *, normalises: bool) -> TokenBound:
    """Bytes without a token of their own may be lost; a literal token may yet be what merging makes of its letters."""
    letters = {text for text in texts if len(text) == 1}
    readings = [*byte_level_bytes(texts, literal_ids), *byte_level_bytes([texts[index] for index in literal_ids], ())]
    kept = [byte for letter, byte in _BYTE_OF_LETTER.items() if chr(letter) in letters]
    return token_bound(readings, kept, only_plain_ascii=normalises)


def sentence_piece_bound(token_bytes: list[bytes], byte_ids: Collection[int], *, keeps_spaces: bool) -> TokenBound:
    """Only what falls back to bytes is never lost; the letter for spaces stands for one byte but is three."""
    kept = {token_bytes[index][0] for index in byte_ids} - set(SPACE.encode())
    return token_bound(token_bytes, kept if keeps_spaces else kept - {0x20}, only_plain_ascii=False)


def sentence_piece_bytes(texts: list[str], control_ids: Collection[int], byte_ids: Collection[int]) -> list[bytes]:
    """Bytes of every token: of ``<0xHH>`` in ``byte_ids`` the byte, of others the text with its spaces."""
    return [
        bytes([int(text[3:5], 16)])
        if index in byte_ids
        else (text if index in control_ids else text.replace(SPACE, " ")).encode()
        for index, text in enumerate(texts)
    ]


def is_byte_token(text: str) -> bool:
    """Whether a token is written as those that stand for one byte are."""
    return text in _BYTE_TEXTS


def check_texts(texts: list[str]) -> None:
    """Raises ``ModelFileError`` for tokens that no vocabulary may have."""
    if not 1 <= len(texts) <= MAX_VOCABULARY:
        raise ModelFileError(f"the vocabulary does not have 1 to {MAX_VOCABULARY:,} tokens")
    if len(set(texts)) != len(texts) or "" in texts:
        raise ModelFileError("the vocabulary holds an empty token, or one twice")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise ModelFileError("the vocabulary holds a token that is not UTF-8") from None


def end_ids(candidates: Iterable[tuple[str, int]]) -> set[int]:
    """The ids among ``candidates``, tokens by text, that end an answer by their name."""
    found = {text: index for text, index in candidates if text in END_TEXTS}
    if found.keys() >= _HARMONY_TEXTS:
        found.pop("<|end|>", None)
    return set(found.values())
