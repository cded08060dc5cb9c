#!/bin/sh
# Every check of form, in the order of their speed; the first that fails ends it.
set -eu
bin=.venv/bin

"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/python" scripts/check_complexity.py
find native -name '*.h' -o -name '*.cpp' | LC_ALL=C sort | xargs "$bin/clang-format" --dry-run -Werror
"$bin/lint-imports" --no-cache
"$bin/mypy"
"$bin/mypy" --strict scripts examples
for script in scripts/*.sh; do sh -n "$script"; done
