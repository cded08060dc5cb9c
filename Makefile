# demo, test, lint, bench and soak are the only verbs; each makes what it needs first.
# PYTHON=python3.12 chooses the interpreter, CXX=clang++ the compiler.
.PHONY: demo test lint bench soak
.SILENT:

VENV := .venv/bin

demo:
	sh scripts/install.sh test
	$(VENV)/python scripts/demo.py

test:
	sh scripts/install.sh test
	$(VENV)/python -m pytest -m "not soak"

lint:
	sh scripts/install.sh test lint
	sh scripts/lint.sh

bench:
	sh scripts/install.sh test
	$(VENV)/ultrafast bench speed --output build/speed.json

soak:
	sh scripts/install.sh test
	sh scripts/soak.sh
