"""Fail when a file or a Python function outgrows the project's limits, which keep each readable in one sitting."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

MAXIMUM_FILE_LINES = 500
MAXIMUM_FUNCTION_LINES = 60
FOLDERS = ("src", "native", "scripts", "tests", "benchmarks", "examples")
SUFFIXES = frozenset({".py", ".sh", ".h", ".cpp", ".cmake"})


def long_functions(path: Path, source: str) -> Iterator[str]:
    for node in ast.walk(ast.parse(source, filename=str(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if lines > MAXIMUM_FUNCTION_LINES:
                yield f"{path}:{node.lineno}: function {node.name} has {lines} lines (limit {MAXIMUM_FUNCTION_LINES})"


def findings() -> Iterator[str]:
    for folder in FOLDERS:
        for path in sorted(Path(folder).rglob("*")):
            if path.suffix not in SUFFIXES or not path.is_file():
                continue
            source = path.read_text(encoding="utf-8")
            lines = source.count("\n")
            if lines > MAXIMUM_FILE_LINES:
                yield f"{path}: {lines} lines (limit {MAXIMUM_FILE_LINES})"
            if path.suffix == ".py":
                yield from long_functions(path, source)


def main() -> None:
    found = list(findings())
    print("\n".join(found) or "Complexity: every file and function is within its limit")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
