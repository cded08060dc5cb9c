"""Byte-level BPE, built from the vocabulary, merges and pre-tokeniser name that a GGUF file carries."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cached_property
from typing import Final, Self

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers.models import BPE

from ultrafast.errors import ModelFileError, RequestError, UnsupportedModelError
from ultrafast.tokens.pre_tokenizers import PRE_TOKENIZERS
from ultrafast.weights.gguf import GgufFile

MAX_VOCABULARY: Final = 1 << 20
_CONTROL, _USER_DEFINED = 3, 4  # GGUF token types; control tokens are "special": never text

# Control tokens that end a turn or a text in the families supported, besides those the metadata names.
_END_TEXTS: Final = frozenset(
    {"<|im_end|>", "<|endoftext|>", "<|end_of_text|>", "<|eot_id|>", "<|eom_id|>"},
)


def _byte_alphabet() -> dict[int, int]:
    """Translation from the printable letters that stand for bytes in a vocabulary to those bytes."""
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: byte for byte in printable} | {256 + index: byte for index, byte in enumerate(others)}


_BYTE_OF_LETTER: Final = _byte_alphabet()


class Tokenizer:
    """Text to token ids and back; immutable, and safe to share between threads.

    ``encode`` lets go of the GIL. Control ("special") tokens are recognised in text only where ``special=True``.
    """

    def __init__(
        self,
        *,
        texts: list[str],
        merges: list[tuple[str, str]],
        control_ids: frozenset[int],
        user_defined_ids: Sequence[int],
        family: str,
        beginning_of_sequence_id: int | None,
        adds_beginning_of_sequence: bool | None,
        end_of_sequence_id: int | None,
        end_ids: frozenset[int],
    ) -> None:
        rules = PRE_TOKENIZERS[family]
        # Control tokens are cut out here, by one regular expression, and never known to the library: so the same
        # immutable object serves text that may hold them and text that must not.
        backend = tokenizers.Tokenizer(
            BPE(
                {text: index for index, text in enumerate(texts)},
                merges,
                ignore_merges=rules.ignore_merges,
            )
        )
        backend.pre_tokenizer = rules.make()
        if rules.normalizer is not None:
            backend.normalizer = rules.normalizer()
        backend.add_tokens([tokenizers.AddedToken(texts[index], normalized=False) for index in user_defined_ids])
        self._backend = backend
        literal_ids = control_ids.union(user_defined_ids)
        self._bytes = _token_bytes(texts, literal_ids)
        # A literal token may yet be what merging makes of the bytes its letters stand for: both readings count.
        readings = [*self._bytes, *_token_bytes([texts[index] for index in literal_ids])]
        self._token_shares = _token_shares(readings, kept_letters={text for text in texts if len(text) == 1})
        self._control_ids = control_ids
        self.control_texts: dict[str, int] = {texts[index]: index for index in sorted(control_ids)}
        longest_first = sorted(self.control_texts, key=len, reverse=True)
        self._control_pattern = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self.beginning_of_sequence_id = beginning_of_sequence_id
        self.adds_beginning_of_sequence = beginning_of_sequence_id is not None and (
            rules.adds_beginning_of_sequence if adds_beginning_of_sequence is None else adds_beginning_of_sequence
        )
        self.end_of_sequence_id = end_of_sequence_id
        self.end_ids = end_ids

    @classmethod
    def from_gguf(cls, gguf: GgufFile) -> Self:
        """Build the tokenizer of an open model file.

        Raises ``UnsupportedModelError`` for another kind of tokenizer or an unknown pre-tokeniser, ``ModelFileError``
        for a vocabulary that contradicts itself.
        """
        kind = gguf.string("tokenizer.ggml.model")
        if kind != "gpt2":
            raise UnsupportedModelError(
                f"the tokenizer model {_plain(kind)} is not supported; byte-level BPE (gpt2) is"
            )
        family = gguf.string("tokenizer.ggml.pre", "default")
        if family not in PRE_TOKENIZERS:
            known = ", ".join(PRE_TOKENIZERS)
            raise UnsupportedModelError(f"the pre-tokenizer {_plain(family)} is not supported; supported are {known}")
        texts = gguf.strings("tokenizer.ggml.tokens")
        _check_vocabulary(texts)
        types = gguf.numbers("tokenizer.ggml.token_type", np.ones(len(texts), np.int32))
        if types.shape != (len(texts),) or types.dtype.kind not in "iu":
            raise ModelFileError("the vocabulary and its token types do not match")
        control_ids = frozenset(np.flatnonzero(types == _CONTROL).tolist())
        last = len(texts) - 1
        ids = {
            role: gguf.integer(f"tokenizer.ggml.{role}_token_id", maximum=last)
            for role in ("bos", "eos", "eot", "eom")
            if f"tokenizer.ggml.{role}_token_id" in gguf.metadata
        }
        ends = {ids[role] for role in ("eos", "eot", "eom") if role in ids}
        ends.update(index for index in control_ids if texts[index] in _END_TEXTS)
        adds_key = "tokenizer.ggml.add_bos_token"
        return cls(
            texts=texts,
            merges=_checked_merges(gguf.strings("tokenizer.ggml.merges"), set(texts)),
            control_ids=control_ids,
            user_defined_ids=np.flatnonzero(types == _USER_DEFINED).tolist(),
            family=family,
            beginning_of_sequence_id=ids.get("bos"),
            adds_beginning_of_sequence=gguf.boolean(adds_key) if adds_key in gguf.metadata else None,
            end_of_sequence_id=ids.get("eos"),
            end_ids=frozenset(ends),
        )

    @property
    def vocabulary_size(self) -> int:
        return len(self._bytes)

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of ``text``. With ``special``, control-token texts in it become control tokens; never by default.

        Nothing is added before or after. Bytes for which the vocabulary has no token are lost, as they were when the
        model was trained. Raises ``RequestError`` for text that is not valid Unicode.
        """
        if not special or self._control_pattern is None:
            return self._encode_plain(text)
        ids: list[int] = []
        position = 0
        for match in self._control_pattern.finditer(text):
            ids += self._encode_plain(text[position : match.start()])
            ids.append(self.control_texts[match.group()])
            position = match.end()
        return ids + self._encode_plain(text[position:])

    def minimum_tokens(self, text: str) -> int:
        """A number of tokens that ``encode(text)`` reaches for certain, at a hundredth of its cost.

        Each byte counts for one part in the length of the longest token that holds it, so that no token's bytes count
        for more than one; and a byte without a token of its own, which encoding may lose, for nothing.
        """
        data = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
        if self._backend.normalizer is not None:
            # Of what normalising leaves as it is, only this much is certain: ASCII with no mark to join it.
            ascii_only = data < 0x80
            data = data[ascii_only & np.append(ascii_only[1:], True)[: len(data)]]
        return int(np.bincount(data, minlength=256) @ self._token_shares)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids``, control tokens left out, each malformed byte sequence as U+FFFD."""
        return self.text_bytes(ids).decode("utf-8", "replace")

    def text_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of the text of ``ids``, control tokens left out."""
        control = self._control_ids
        return b"".join([self.token_bytes(index) for index in ids if index not in control])

    def token_bytes(self, index: int) -> bytes:
        """The bytes one token stands for, which need not be whole characters; a control token's are its name."""
        if not 0 <= index < len(self._bytes):
            raise RequestError("a token id lies outside the vocabulary")
        return self._bytes[index]

    @cached_property
    def whole_texts(self) -> dict[int, str]:
        """The text of every token that consists of whole characters; that of a control token is empty."""
        texts: dict[int, str] = {}
        for index, data in enumerate(self._bytes):
            with suppress(UnicodeDecodeError):
                texts[index] = "" if index in self._control_ids else data.decode()
        return texts

    def is_special(self, index: int) -> bool:
        """Whether a token is a control token: never text, and left out of decoded answers."""
        return index in self._control_ids

    def _encode_plain(self, text: str) -> list[int]:
        if not text:
            return []
        try:
            # The batch call, because it is the one that lets go of the GIL.
            ids: list[int] = self._backend.encode_batch_fast([text], add_special_tokens=False)[0].ids
        except TypeError:  # the library's word for a string that UTF-8 cannot express
            raise RequestError("the text holds a lone surrogate, which is not valid Unicode") from None
        return ids


def _check_vocabulary(texts: list[str]) -> None:
    if not 1 <= len(texts) <= MAX_VOCABULARY:
        raise ModelFileError(f"the vocabulary does not have 1 to {MAX_VOCABULARY:,} tokens")
    if len(set(texts)) != len(texts) or "" in texts:
        raise ModelFileError("the vocabulary holds an empty token, or one twice")
    try:
        "".join(texts).encode()
    except UnicodeEncodeError:
        raise ModelFileError("the vocabulary holds a token that is not UTF-8") from None


def _checked_merges(merges: list[str], vocabulary: set[str]) -> list[tuple[str, str]]:
    """Pairs of tokens; a pair is separated by the first space that is not its first letter."""
    pairs: list[tuple[str, str]] = []
    for merge in merges:
        space = merge.find(" ", 1)
        left, right = merge[:space], merge[space + 1 :]
        if space < 0 or left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise ModelFileError(f"merge {len(pairs)} of the vocabulary is not of two tokens that make a third")
        pairs.append((left, right))
    return pairs


def _token_bytes(texts: list[str], literal_ids: frozenset[int] = frozenset()) -> list[bytes]:
    """Bytes of every token: through the byte alphabet, except where a token is literal text or holds other letters."""
    alphabet = set(map(chr, _BYTE_OF_LETTER))
    return [
        text.encode()
        if index in literal_ids or not alphabet.issuperset(text)
        else text.translate(_BYTE_OF_LETTER).encode("latin-1")
        for index, text in enumerate(texts)
    ]


def _token_shares(tokens: list[bytes], kept_letters: set[str]) -> npt.NDArray[np.float64]:
    """Of each byte, the share of a token it makes up at least; see ``Tokenizer.minimum_tokens``."""
    lengths = np.array([len(token) for token in tokens])
    data = np.frombuffer(b"".join(tokens), np.uint8)
    longest = np.zeros(256)
    np.maximum.at(longest, data, np.repeat(lengths, lengths))
    kept = [byte for letter, byte in _BYTE_OF_LETTER.items() if chr(letter) in kept_letters]
    shares = np.zeros(256)
    shares[kept] = 1 / longest[kept]
    return shares


def _plain(name: str) -> str:
    return f"'{name}'" if re.fullmatch(r"[A-Za-z0-9_.\-]{1,40}", name) else "of the file"
