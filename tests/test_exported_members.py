"""The public surface: each package says what it exports, and each public name says what it is for."""

from __future__ import annotations

import ast
import importlib
import pkgutil
from pathlib import Path

import pytest

import ultrafast

PACKAGE = Path(ultrafast.__file__).parent
MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages([str(PACKAGE)], "ultrafast.")
    if not module.name.endswith(("__main__", "._native"))
)
SOURCES = {name: importlib.util.find_spec(name) for name in MODULES}


def tree_of(name: str) -> ast.Module:
    spec = SOURCES[name]
    assert spec is not None
    assert spec.origin is not None
    return ast.parse(Path(spec.origin).read_text(encoding="utf-8"))


def public_definitions(body: list[ast.stmt]) -> list[ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    return [node for node in body if isinstance(node, kinds) and not node.name.startswith("_")]


@pytest.mark.parametrize("name", MODULES)
def test_a_module_says_what_it_is(name: str) -> None:
    assert ast.get_docstring(tree_of(name)), f"{name} has no docstring"


@pytest.mark.parametrize("name", MODULES)
def test_public_functions_and_classes_say_what_they_do(name: str) -> None:
    silent = [node.name for node in public_definitions(tree_of(name).body) if not ast.get_docstring(node)]
    assert silent == []


# The peers' scripts run in environments of their own, where the peers' packages are.
@pytest.mark.parametrize("name", [name for name in MODULES if not name.startswith("ultrafast.bench.peers.")])
def test_exported_names_exist_and_each_once(name: str) -> None:
    exported = list(getattr(importlib.import_module(name), "__all__", ()))
    assert len(exported) == len(set(exported))
    module = importlib.import_module(name)
    assert [member for member in exported if not hasattr(module, member)] == []


@pytest.mark.parametrize("name", [name for name in MODULES if (SOURCES[name].submodule_search_locations or [])])
def test_what_a_package_defines_for_others_is_exported(name: str) -> None:
    defined = {node.name for node in public_definitions(tree_of(name).body)}
    assert defined <= set(getattr(importlib.import_module(name), "__all__", ()))
