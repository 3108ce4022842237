# One task a line. `make setup` first; everything runs in .venv.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: setup check format test test-all chaos bench demo build clean

setup: $(BIN)/mlxq ## virtual environment with everything a developer needs

$(BIN)/mlxq: pyproject.toml
	test -d .venv || $(PYTHON) -m venv .venv
	$(BIN)/pip install -q -e ".[dev]"
	touch $@

check: setup ## lint, format, types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright -p pyproject.toml --pythonpath $(BIN)/python

format: setup
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: setup
	$(BIN)/pytest

test-all: setup ## with the slow tests and those that kill processes
	$(BIN)/pytest -n 0 -m "not bench and not gpu"

chaos: setup ## the long form: about half an hour; prints tables of what was done and what came of it
	cd tests && ../$(BIN)/python -m chaos
	cd tests && ../$(BIN)/python -m chaos --only kills,idle --lease 12 --jobs 100 --kills 8 --idle 4

bench: setup
	$(BIN)/pytest -n 0 -m bench -s

demo: setup
	$(BIN)/mlxq demo

build: setup ## wheel and source archive in dist/
	rm -rf build dist
	$(BIN)/python -m build

clean:
	rm -rf build dist .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
