"""The vocabulary that a GGUF file carries: byte-level BPE (``gpt2``) or scored SentencePiece pieces (``llama``)."""

from __future__ import annotations

import re
from typing import Any, Final

import numpy as np
import tokenizers
from numpy.typing import NDArray
from tokenizers.models import BPE

from ultrafast import _native
from ultrafast.errors import ModelFileError, UnsupportedModelError
from ultrafast.tokens.control_tokens import ControlToken
from ultrafast.tokens.encoders import SPACE, Encoder, LibraryEncoder, SentencePieceEncoder
from ultrafast.tokens.pre_tokenizers import PRE_TOKENIZERS, PreTokenizerFamily
from ultrafast.tokens.vocabulary import (
    END_TEXTS,
    Vocabulary,
    byte_level_bound,
    byte_level_bytes,
    check_texts,
    end_ids,
    is_byte_token,
    sentence_piece_bound,
    sentence_piece_bytes,
)
from ultrafast.weights.gguf import GgufFile

# Token types of the format.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _BYTE = 1, 2, 3, 4, 6

# In Phi 3's own tokenizer these alone leave the white space after them to the text.
_PHI_3_KEEPS_SPACE: Final = frozenset({"<unk>", "<s>", "<|endoftext|>"})


def read_vocabulary(gguf: GgufFile) -> Vocabulary:
    """Raises ``UnsupportedModelError`` for another kind of tokenizer or an unknown pre-tokeniser, ``ModelFileError``
    for a vocabulary that contradicts itself.
    """
    kind = gguf.string("tokenizer.ggml.model")
    if kind not in ("gpt2", "llama"):
        raise UnsupportedModelError(
            f"the tokenizer model {_plain(kind)} is not supported; byte-level BPE (gpt2) and SentencePiece (llama) are"
        )
    family = _family(gguf) if kind == "gpt2" else None
    texts = gguf.strings("tokenizer.ggml.tokens")
    check_texts(texts)
    types = _types(gguf, texts)
    control_ids = frozenset(np.flatnonzero((types == _CONTROL) | (types == _UNKNOWN)).tolist())
    literal_ids = control_ids.union(np.flatnonzero(types == _USER_DEFINED).tolist())
    encoder: Encoder
    if family is not None:
        encoder = _byte_level_encoder(gguf, family, texts, types)
        token_bytes = byte_level_bytes(texts, literal_ids)
        bound = byte_level_bound(texts, literal_ids, normalises=family.normalizer() is not None)
        space_prefix = False
    else:
        space_prefix = gguf.boolean("tokenizer.ggml.add_space_prefix", True)
        encoder = _sentence_piece_encoder(gguf, texts, types, space_prefix)
        byte_ids = frozenset(np.flatnonzero(types == _BYTE).tolist())
        token_bytes = sentence_piece_bytes(texts, control_ids, byte_ids)
        keeps_spaces = not gguf.boolean("tokenizer.ggml.remove_extra_whitespaces", False)
        bound = sentence_piece_bound(token_bytes, byte_ids, keeps_spaces=keeps_spaces)
    ids = {
        role: gguf.integer(f"tokenizer.ggml.{role}_token_id", maximum=len(texts) - 1)
        for role in ("bos", "eos", "eot", "eom")
        if f"tokenizer.ggml.{role}_token_id" in gguf.metadata
    }
    adds_beginning = gguf.boolean(
        "tokenizer.ggml.add_bos_token", family.adds_beginning_of_sequence if family is not None else True
    )
    ends = end_ids((texts[index], index) for index in control_ids)
    strips_right = kind == "llama" and gguf.metadata.get("general.architecture") == "phi3"
    return Vocabulary(
        encoder=encoder,
        token_bytes=token_bytes,
        control_tokens=[
            ControlToken(texts[index], index, strips_right=strips_right and texts[index] not in _PHI_3_KEEPS_SPACE)
            for index in sorted(control_ids)
        ],
        strips_leading_space=space_prefix,
        beginning_of_sequence_id=ids.get("bos"),
        adds_beginning_of_sequence="bos" in ids and adds_beginning,
        end_of_sequence_id=ids.get("eos"),
        end_ids=frozenset(ends.union(ids[role] for role in ("eos", "eot", "eom") if role in ids)),
        bound=bound,
    )


def _family(gguf: GgufFile) -> PreTokenizerFamily:
    name = gguf.string("tokenizer.ggml.pre", "default")
    if name not in PRE_TOKENIZERS:
        raise UnsupportedModelError(
            f"the pre-tokenizer {_plain(name)} is not supported; supported are {', '.join(PRE_TOKENIZERS)}"
        )
    return PRE_TOKENIZERS[name]


def _types(gguf: GgufFile, texts: list[str]) -> NDArray[np.int32]:
    types: NDArray[Any] = gguf.numbers("tokenizer.ggml.token_type", np.full(len(texts), _NORMAL, np.int32))
    if types.shape != (len(texts),) or types.dtype.kind not in "iu":
        raise ModelFileError("the vocabulary and its token types do not match")
    types = types.astype(np.int32)
    for index in np.flatnonzero(types == _USER_DEFINED).tolist():
        # Some converters call these user-defined; no answer may show them. But to some vocabularies </s> is HTML.
        if texts[index] in END_TEXTS and texts[index] != "</s>":
            types[index] = _CONTROL
    return types


def _byte_level_encoder(
    gguf: GgufFile, family: PreTokenizerFamily, texts: list[str], types: NDArray[np.int32]
) -> LibraryEncoder:
    merges = _checked_merges(gguf.strings("tokenizer.ggml.merges"), set(texts))
    # Control tokens are cut out before, and never known to the library: so the same immutable object serves text that
    # may hold them and text that must not.
    backend = tokenizers.Tokenizer(
        BPE({text: index for index, text in enumerate(texts)}, merges, ignore_merges=family.ignore_merges)
    )
    backend.pre_tokenizer = family.make()
    if (normalizer := family.normalizer()) is not None:
        backend.normalizer = normalizer
    user_defined = np.flatnonzero(types == _USER_DEFINED).tolist()
    backend.add_tokens([tokenizers.AddedToken(texts[index], normalized=False) for index in user_defined])
    return LibraryEncoder(backend)


def _sentence_piece_encoder(
    gguf: GgufFile, texts: list[str], types: NDArray[np.int32], space_prefix: bool
) -> SentencePieceEncoder:
    scores = gguf.numbers("tokenizer.ggml.scores")
    if scores.shape != types.shape:
        raise ModelFileError("the vocabulary and its scores do not match")
    for index in np.flatnonzero(types == _BYTE).tolist():
        if not is_byte_token(texts[index]):
            raise ModelFileError(f"token {index} is a byte, but not written <0xHH>")
    known = set(texts)
    pieces = list(texts)
    for index in np.flatnonzero(types == _USER_DEFINED).tolist():  # converters put real spaces into these
        if (spaced := texts[index].replace(" ", SPACE)) not in known:
            pieces[index] = spaced
    unknown = np.flatnonzero(types == _UNKNOWN).tolist()
    last = len(texts) - 1
    try:
        native = _native.SentencePiece(
            texts=pieces,
            scores=scores.astype(np.float32),
            types=types,
            unknown=gguf.integer("tokenizer.ggml.unknown_token_id", next(iter(unknown), -1), minimum=-1, maximum=last),
        )
    except ValueError as error:
        raise ModelFileError("the vocabulary's scores are not numbers") from error
    return SentencePieceEncoder(
        native,
        space_prefix=space_prefix,
        # Mistral's tokenizers from the third version on, known by their control tokens.
        prefixes_first_only=any(types[index] == _CONTROL for index, text in enumerate(texts) if text == "[INST]"),
        removes_extra_spaces=gguf.boolean("tokenizer.ggml.remove_extra_whitespaces", False),
    )


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


def _plain(name: str) -> str:
    return f"'{name}'" if re.fullmatch(r"[A-Za-z0-9_.\-]{1,40}", name) else "of the file"
