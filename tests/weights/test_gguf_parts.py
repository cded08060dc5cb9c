"""A GGUF model in several files: any part opens all, and what does not fit together is named."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.weights.gguf_bytes import F32, STRING, UINT16, UINT32, entry, gguf, scalar, string, tensor
from ultrafast.errors import ModelFileError
from ultrafast.weights import gguf as reader
from ultrafast.weights import open_model


def part(number: int, count: int, names: str, *, total: int = 3, says: int | None = None) -> bytes:
    entries = [
        entry("split.no", UINT16, scalar(UINT16, number - 1 if says is None else says)),
        entry("split.count", UINT16, scalar(UINT16, count)),
        entry("split.tensors.count", UINT32, scalar(UINT32, total)),
    ]
    if number == 1:
        entries.insert(0, entry("general.architecture", STRING, string("llama")))
    tensors = [tensor(name, [8], F32, 32 * index) for index, name in enumerate(names)]
    return gguf(entries, tensors, b"".join(name.encode() * 32 for name in names))


def write(directory: Path, *parts: bytes, stem: str = "m") -> list[Path]:
    paths = [directory / f"{stem}-{number:05}-of-{len(parts):05}.gguf" for number in range(1, len(parts) + 1)]
    for path, content in zip(paths, parts, strict=True):
        path.write_bytes(content)
    return paths


def test_any_part_opens_all(tmp_path: Path) -> None:
    paths = write(tmp_path, part(1, 3, "a"), part(2, 3, "b"), part(3, 3, "c"))
    for given in paths:
        with open_model(given) as model:
            assert model.files == tuple(paths)
            assert model.path == paths[0]
            assert model.string("general.architecture") == "llama"
            assert {name: item.data.tobytes() for name, item in model.tensors.items()} == {
                name: name.encode() * 32 for name in "abc"
            }


def test_a_first_part_of_metadata_only(tmp_path: Path) -> None:
    paths = write(tmp_path, part(1, 2, "", total=1), part(2, 2, "a", total=1))
    assert set(open_model(paths[0]).tensors) == {"a"}


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    paths = write(tmp_path, part(1, 3, "a"), part(2, 3, "b"), part(3, 3, "c"))
    paths[1].unlink()
    for given in (paths[0], paths[2]):
        with pytest.raises(ModelFileError, match=r"part 2 of 3 is missing: m-00002-of-00003\.gguf"):
            open_model(given)


@pytest.mark.parametrize(
    ("parts", "match"),
    [
        ((part(1, 2, "a", total=2), part(2, 2, "a", total=2)), "two parts hold the tensor 'a'"),
        ((part(1, 2, "a"), part(2, 2, "b")), "as many tensors"),
        ((part(1, 2, "a", total=2), part(2, 2, "b", says=0)), "part 2 of 2 does not say that it is that part"),
        ((part(1, 2, "a", total=2), part(2, 3, "b")), "part 2 of 2 does not say"),
        ((part(1, 3, "a", total=2), part(2, 3, "b")), "one of 3 parts, but its name"),
        ((part(1, 2, "a", total=2), b""), "empty file"),
        ((part(1, 2, "a", total=2), part(2, 2, "b", total=2)[:-1]), "reaches beyond the end of the file"),
    ],
)
def test_parts_that_do_not_fit(tmp_path: Path, parts: tuple[bytes, ...], match: str) -> None:
    paths = write(tmp_path, *parts)
    with pytest.raises(ModelFileError, match=match) as caught:
        open_model(paths[0])
    assert str(caught.value).isprintable()


def test_headers_share_one_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = write(tmp_path, part(1, 2, "a", total=2), part(2, 2, "b", total=2))
    monkeypatch.setattr(reader, "MAX_HEADER_BYTES", 300)
    with pytest.raises(ModelFileError, match="header is longer than"):
        open_model(paths[0])
