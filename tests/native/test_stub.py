"""The typed stub names exactly what the built module offers, parameter by parameter."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import ultrafast
from ultrafast import _native

STUB = Path(ultrafast.__file__).with_name("_native.pyi")
Signatures = dict[str, list[str]]


def stub_signatures() -> Signatures:
    found: Signatures = {}

    def visit(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{node.name}.")
            elif isinstance(node, ast.FunctionDef):
                arguments = [argument.arg for argument in node.args.args + node.args.kwonlyargs]
                found[prefix + node.name] = [name for name in arguments if name != "self"]

    visit(ast.parse(STUB.read_text(encoding="utf-8")).body, "")
    return found


def built_signatures() -> Signatures:
    found: Signatures = {}

    def visit(owner: Any, prefix: str) -> None:
        for name, value in vars(owner).items():
            if name in {"__init__", "__doc__"} or not name.startswith("_"):
                if isinstance(value, type) or type(value).__name__ == "module":
                    visit(value, f"{name}.")
                elif isinstance(value, property):
                    found[prefix + name] = []
                elif hasattr(value, "__nb_signature__"):
                    signature = value.__nb_signature__[0][0]
                    inside = signature[signature.index("(") + 1 : signature.rindex(")")]
                    names = re.findall(r"(?:^|, )(\w+)(?=[:,]|$)", re.sub(r"\[.*?\]+", "", inside))
                    found[prefix + name] = [each for each in names if each != "self"]

    visit(_native, "")
    return found


def test_stub_and_module_agree() -> None:
    stub, built = stub_signatures(), built_signatures()
    assert sorted(stub) == sorted(built)
    for name, parameters in stub.items():
        assert parameters == built[name], name
