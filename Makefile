# demo, test, lint, bench and soak are the only verbs; each makes what it needs first.
# PYTHON=python3.12 chooses the interpreter, CXX=clang++ the compiler.
.PHONY: demo test lint bench soak
.SILENT:

VENV := .venv/bin

demo:
	sh scripts/install.sh test
	$(VENV)/python scripts/demo.py

test:
	sh scripts/install.sh test bench
	$(VENV)/python -m pytest -n 3 --dist loadfile -m "not soak"

lint:
	sh scripts/install.sh test lint
	sh scripts/lint.sh

bench:
	sh scripts/install.sh test bench
	$(VENV)/ultrafast bench fidelity --output build/fidelity.json
	$(VENV)/ultrafast bench speed --output build/speed.json --plot build/speed.svg

soak:
	sh scripts/install.sh test bench
	sh scripts/soak.sh
