"""Where things stand in a TOML text, compared with what the standard reader finds in it."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ultrafast.gateway.toml_lines import Path, line_of_deep_key, lines_of

TEXT = '''\
# a comment = 1
one = 1  # [not] = "a table"
"two.three" = "a # b ] } \\" ,"
four.five . 'six' = [1, 2.5, # ] comment
  [3], {x = 1, "y.z" = [4,
  5]},
]
when = 1979-05-27 07:32:00
long = """
[no.table]
key = ""\\"" """""
raw = \'\'\'
it's = 1 \'\'\'\'
last = true

[table]
key = 'x'
[table.inner."deep.er"]
key = -0.5e3

[[items]]
name = "a"
[items.more]
x = 1
[[items]]
[[items.parts]]
x = 1
[[items.parts]]
y = {a = {b = 1}}
[empty]
'''

EXPECTED = {
    ("one",): 2,
    ("two.three",): 3,
    ("four", "five", "six"): 4,
    ("four", "five", "six", 2, 0): 5,
    ("four", "five", "six", 3, "x"): 5,
    ("four", "five", "six", 3, "y.z", 1): 6,
    ("when",): 8,
    ("long",): 9,
    ("raw",): 12,
    ("last",): 14,
    ("table",): 16,
    ("table", "key"): 17,
    ("table", "inner", "deep.er", "key"): 19,
    ("items", 0): 21,
    ("items", 0, "name"): 22,
    ("items", 0, "more", "x"): 24,
    ("items", 1): 25,
    ("items", 1, "parts", 0, "x"): 27,
    ("items", 1, "parts", 1, "y", "a", "b"): 29,
    ("empty",): 30,
}


def paths_of(value: Any, path: Path = ()) -> Iterator[Path]:
    """Every place in a parsed text."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in inner:
        yield (*path, name)
        yield from paths_of(item, (*path, name))


def test_every_way_to_write_a_key() -> None:
    lines = lines_of(TEXT)
    assert {path: lines[path] for path in EXPECTED} == EXPECTED
    assert set(paths_of(tomllib.loads(TEXT))) == set(lines)


@pytest.mark.parametrize("text", ["", "\n\n", "# only", "a = 1", "a=1\n#", "[a]", "x = []"])
def test_short_texts(text: str) -> None:
    assert set(lines_of(text)) == set(paths_of(tomllib.loads(text)))


EIGHT = 'a.\'b.c\' . "d\\"." .e-1.f_2.7.g.h'


@pytest.mark.parametrize("text", [f"{EIGHT} = 1.5", f"[[{EIGHT}]]", f"x = {{{EIGHT} = 1}}", f"[x]\n{EIGHT} = 1\n"])
def test_a_key_of_more_parts_than_any_setting_is_found_wherever_it_stands(text: str) -> None:
    assert tomllib.loads(text)
    assert line_of_deep_key(text) is None
    deeper = TEXT + "\n" + text.replace("g.h", "g.h .\ti")
    assert line_of_deep_key(deeper) == (TEXT + text[: text.index("a.'b")]).count("\n") + 2


@pytest.mark.parametrize("quote", ['"', "'", '"""', "'''"])
def test_what_looks_like_a_deep_key_within_a_string_or_a_comment_is_none(quote: str) -> None:
    words = "a.b.c.d.e.f.g.h.i.j"
    assert line_of_deep_key(f"x = {quote}{words}{quote} # {words}\ny = 1") is None
    assert line_of_deep_key(f"# {words}\n\n{words} = {quote}{words}") == 3


VALUES = st.recursive(
    st.sampled_from(["1", "-2.5", "true", '"# ] }"', "'\\'", '"""a\n]\n"b"""', "'''\n[x]\n'''", "1979-05-27"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda items: "[" + ", # ]\n ".join(items) + "\n]")
        | st.lists(inner, max_size=3).map(
            lambda items: "{" + ", ".join(f"k{place} = {item}" for place, item in enumerate(items)) + "}"
        )
    ),
    max_leaves=6,
)


@given(st.lists(st.tuples(st.sampled_from(["", "[t{}]\n", "[[r]]\n", '[r2."x.y{}"]\n']), VALUES), max_size=8))
def test_whatever_the_standard_reader_takes(parts: list[tuple[str, str]]) -> None:
    text = "".join(f"{header.format(place)}key{place} = {value}\n" for place, (header, value) in enumerate(parts))
    lines = lines_of(text)
    assert set(paths_of(tomllib.loads(text))) == set(lines)
    for path, line in lines.items():
        name = next(part for part in reversed(path) if isinstance(part, str))
        assert isinstance(path[-1], int) or name in text.splitlines()[line - 1]
