"""Tokens equal transformers' (tests/golden/make_token_golden.py), and hostile vocabularies fail cleanly."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.data import GOLDEN_DIRECTORY
from tests.golden.digests import DIGEST_LETTERS, digest, digest_of_ids
from tests.tokens.strings import COUNT, ID_SEQUENCES, SEED, id_sequences, varied_strings
from ultrafast.errors import ModelError, ModelFileError, RequestError, UnsupportedModelError
from ultrafast.tokens.tokenizer import Tokenizer
from ultrafast.weights.gguf import GgufFile

# The vocabulary lacks the bytes of some control characters and of all planes from the fourth on.
TEXTS = st.text(st.characters(max_codepoint=0x3FFFF, exclude_categories=["Cs", "Cc"]))


@pytest.fixture(scope="module")
def golden() -> dict[str, Any]:
    read: dict[str, Any] = json.loads((GOLDEN_DIRECTORY / "tokens.json").read_text())
    assert (read["seed"], read["count"], read["id_sequences"]) == (SEED, COUNT, ID_SEQUENCES)
    return read


@pytest.fixture(scope="module")
def strings(golden: dict[str, Any]) -> list[str]:
    made = varied_strings()
    assert len(made) >= 5_000
    assert digest("\0".join(made)) == golden["strings_digest"], "the generator makes other strings than it did"
    return made


def split(digests: str) -> list[str]:
    return [digests[start : start + DIGEST_LETTERS] for start in range(0, len(digests), DIGEST_LETTERS)]


def test_ids_equal_those_of_transformers(tokenizer: Tokenizer, golden: dict[str, Any], strings: list[str]) -> None:
    for index, ids in golden["full"].items():
        assert tokenizer.encode(strings[int(index)]) == ids, repr(strings[int(index)])
    ours = [digest_of_ids(tokenizer.encode(text)) for text in strings]
    assert ours == split(golden["plain"])


def test_special_ids_equal_those_of_transformers(
    tokenizer: Tokenizer, golden: dict[str, Any], strings: list[str]
) -> None:
    ours = [digest_of_ids(tokenizer.encode(text, special=True)) for text in strings]
    assert ours == split(golden["special"])
    assert ours != split(golden["plain"])


def test_decoding_equals_that_of_transformers(tokenizer: Tokenizer, golden: dict[str, Any]) -> None:
    sequences = id_sequences(tokenizer.vocabulary_size)
    assert [digest(tokenizer.decode(ids)) for ids in sequences] == split(golden["decoded"])


def test_facts_of_the_default_model(tokenizer: Tokenizer) -> None:
    assert tokenizer.vocabulary_size == 49_152
    assert tokenizer.beginning_of_sequence_id == 1
    assert not tokenizer.adds_beginning_of_sequence
    assert tokenizer.end_of_sequence_id == 2
    assert tokenizer.end_ids == {0, 2}
    assert [index for index in range(49_152) if tokenizer.is_special(index)] == list(range(17))
    assert tokenizer.token_bytes(2) == b"<|im_end|>"
    assert tokenizer.encode("") == tokenizer.encode("", special=True) == []


@given(TEXTS)
@settings(max_examples=200, deadline=None)
def test_text_survives_the_round_trip(tokenizer: Tokenizer, text: str) -> None:
    ids = tokenizer.encode(text)
    assert not any(map(tokenizer.is_special, ids))
    assert b"".join(map(tokenizer.token_bytes, ids)).decode("utf-8", "replace") == text


def test_control_texts_are_text_unless_asked_for(tokenizer: Tokenizer) -> None:
    text = "a<|im_end|>b"
    assert 2 not in tokenizer.encode(text)
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.encode(text, special=True) == [*tokenizer.encode("a"), 2, *tokenizer.encode("b")]
    assert tokenizer.decode(tokenizer.encode(text, special=True)) == "ab"


@pytest.mark.parametrize("text", ["\ud800", "a\udfffb", "<|im_end|>\ud83d"])
def test_lone_surrogates_are_refused(tokenizer: Tokenizer, text: str) -> None:
    for special in (False, True):
        with pytest.raises(RequestError, match="surrogate"):
            tokenizer.encode(text, special=special)


@pytest.mark.parametrize("index", [-1, 49_152, 10**30])
def test_ids_outside_the_vocabulary_are_refused(tokenizer: Tokenizer, index: int) -> None:
    with pytest.raises(RequestError):
        tokenizer.token_bytes(index)
    with pytest.raises(RequestError):
        tokenizer.decode([5, index])


def test_threads_share_one_tokenizer(tokenizer: Tokenizer, strings: list[str]) -> None:
    some = strings[:400]
    alone = [tokenizer.encode(text, special=True) for text in some]
    with ThreadPoolExecutor(4) as pool:
        for together in pool.map(lambda _: [tokenizer.encode(text, special=True) for text in some], range(4)):
            assert together == alone


def made(**changes: Any) -> GgufFile:
    """A file in memory with a small vocabulary; ``None`` leaves a key out."""
    metadata: dict[str, Any] = {
        "model": "gpt2",
        "pre": "gpt-2",
        "tokens": ["a", "b", "c", "ab", "Ġ", "<end>", "<tool>", "Ã", "©", "1"],
        "token_type": np.array([1, 1, 1, 1, 1, 3, 4, 1, 1, 1], np.int32),
        "merges": ["a b"],
        "eos_token_id": 5,
    } | changes
    return GgufFile(
        Path("made.gguf"),
        3,
        32,
        {f"tokenizer.ggml.{key}": value for key, value in metadata.items() if value is not None},
        {},
    )


def test_small_vocabulary() -> None:
    tokenizer = Tokenizer.from_gguf(made())
    assert tokenizer.encode("ab <end><tool>é") == [3, 4, 6, 7, 8]  # "<end>" as text: no such letters
    assert tokenizer.encode("ab <end><tool>é", special=True) == [3, 4, 5, 6, 7, 8]
    assert tokenizer.decode([3, 4, 5, 6, 7, 8]) == "ab <tool>é"
    assert tokenizer.end_ids == {5}
    assert tokenizer.beginning_of_sequence_id is None


@pytest.mark.parametrize(
    ("family", "text", "words"),
    [
        ("gpt-2", "a1111 b", ["a", "1111", " b"]),
        ("smollm", "a1111 b", ["a", "1", "1", "1", "1", " b"]),
        ("llama-bpe", "a1111 b", ["a", "111", "1", " b"]),
        ("qwen2", "a1111 b", ["a", "1", "1", "1", "1", " b"]),
        ("gpt-2", "I'LL  go\n\n", ["I", "'", "LL", " ", " go", "\n\n"]),
        ("llama-bpe", "I'LL  go\n\n!?\n", ["I", "'LL", " ", " go", "\n\n", "!?\n"]),
    ],
)
def test_families_cut_words_differently(family: str, text: str, words: list[str]) -> None:
    from ultrafast.tokens.pre_tokenizers import PRE_TOKENIZERS

    cut = [text[start:end] for _, (start, end) in PRE_TOKENIZERS[family].make().pre_tokenize_str(text)]
    assert cut == words


def test_llama_family_defaults() -> None:
    assert Tokenizer.from_gguf(made(pre="llama-bpe", bos_token_id=0)).adds_beginning_of_sequence
    assert not Tokenizer.from_gguf(
        made(pre="llama-bpe", bos_token_id=0, add_bos_token=False)
    ).adds_beginning_of_sequence
    assert not Tokenizer.from_gguf(made(pre="llama-bpe")).adds_beginning_of_sequence
    # A word that is a token stays whole, though no merge makes it.
    assert Tokenizer.from_gguf(made(pre="llama-bpe", merges=[])).encode("ab") == [3]
    assert Tokenizer.from_gguf(made(pre="gpt-2", merges=[])).encode("ab") == [0, 1]


DENSE = [
    "1" * 4096,
    " " * 4096,
    "=" * 4096,
    "-" * 4096,
    "\n" + " " * 4096,
    "\x04" * 4096,
    "\U000f0000" * 1024,
    "中" * 4096,
]


@given(text=st.one_of(st.text(), st.text("a1 =-\n\r\t<_>", max_size=300), st.sampled_from(DENSE)))
@settings(max_examples=400, deadline=None)
def test_no_text_has_fewer_tokens_than_the_minimum(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.minimum_tokens(text) <= len(tokenizer.encode(text))


MARKS = "ab ́̊Åé\u212b\u1fef`<tool>1cĠ\n"


@pytest.mark.parametrize("family", ["gpt-2", "smollm", "llama-bpe", "qwen2"])
@given(
    text=st.one_of(
        st.text(MARKS), st.lists(st.sampled_from(["a", "b", "ab", "<tool>", "Ġa", "Ġ", " a", "́"])).map("".join)
    )
)
@settings(max_examples=200, deadline=None)
def test_the_minimum_holds_where_bytes_are_lost_and_text_is_normalised(family: str, text: str) -> None:
    """The vocabulary lacks most bytes; one literal token reads as merged bytes, a control token as a byte it is not."""
    texts = ["a", "b", "c", "ab", "Ġ", "\n", "<tool>", "Ã", "©", "1", "Ġa"]
    types = np.array([1, 1, 1, 1, 1, 3, 4, 1, 1, 1, 4], np.int32)
    tokenizer = Tokenizer.from_gguf(made(tokens=texts, token_type=types, merges=["a b", "Ġ a"], pre=family))
    assert tokenizer.minimum_tokens(text) <= len(tokenizer.encode(text))


def test_the_minimum_is_worth_having(tokenizer: Tokenizer) -> None:
    assert tokenizer.minimum_tokens("1" * 100_000) == 100_000
    for text in DENSE[1:4]:
        assert tokenizer.minimum_tokens(text) > 0.75 * len(tokenizer.encode(text))
    assert tokenizer.minimum_tokens("") == 0
    assert Tokenizer.from_gguf(made(pre="qwen2")).minimum_tokens("ab" * 100 + "é") == 99  # one "b" may join the mark


FAULTS: dict[str, tuple[type[ModelError], dict[str, Any]]] = {
    "no model": (ModelFileError, {"model": None}),
    "another model": (UnsupportedModelError, {"model": "bert"}),
    "pieces without scores": (ModelFileError, {"model": "llama"}),
    "hostile model name": (UnsupportedModelError, {"model": "\x1b[2J\n"}),
    "unknown family": (UnsupportedModelError, {"pre": "gemma4"}),
    "no tokens": (ModelFileError, {"tokens": None}),
    "empty vocabulary": (ModelFileError, {"tokens": [], "token_type": np.array([], np.int32), "merges": []}),
    "tokens of numbers": (ModelFileError, {"tokens": np.arange(10)}),
    "a token twice": (ModelFileError, {"tokens": ["a", "b", "c", "ab", "Ġ", "<end>", "a", "Ã", "©", "1"]}),
    "an empty token": (ModelFileError, {"tokens": ["a", "b", "c", "ab", "Ġ", "", "x", "Ã", "©", "1"]}),
    "a token that is not UTF-8": (ModelFileError, {"tokens": ["a", "b", "c", "ab", "\udcff", "d", "x", "Ã", "©", "1"]}),
    "too few types": (ModelFileError, {"token_type": np.array([1], np.int32)}),
    "types of reals": (ModelFileError, {"token_type": np.ones(10, np.float32)}),
    "merge of one": (ModelFileError, {"merges": ["ab"]}),
    "empty merge": (ModelFileError, {"merges": [""]}),
    "merge of unknowns": (ModelFileError, {"merges": ["a z"]}),
    "merge to an unknown": (ModelFileError, {"merges": ["b c"]}),
    "no merges": (ModelFileError, {"merges": None}),
    "end outside": (ModelFileError, {"eos_token_id": 10}),
    "negative end": (ModelFileError, {"eot_token_id": -1}),
    "beginning a text": (ModelFileError, {"bos_token_id": "1"}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_hostile_vocabularies(name: str) -> None:
    kind, changes = FAULTS[name]
    with pytest.raises(kind) as caught:
        Tokenizer.from_gguf(made(**changes))
    assert type(caught.value) is kind
    assert str(caught.value).isprintable()
