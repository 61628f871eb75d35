# make compare   makes .venv, installs, and compares attention variants on a text that is already here
# make test      makes .venv if needed, installs, and runs every check and test
# make mutants   breaks the built-in variants blindly, and counts what the suite notices
SHELL := /bin/bash
BIN := .venv/bin
INSTALLED := .venv/.installed
PYTHON ?=

.PHONY: install compare check hall-of-faults test bench mutants gpu-check gpu-check-wheels clean
.DEFAULT_GOAL := install

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	@set -euo pipefail; \
	python=""; \
	for candidate in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
	  if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	    python="$$candidate"; break; \
	  fi; \
	done; \
	if [ -z "$$python" ]; then \
	  echo "error: polyattn needs Python 3.11 or newer, found $$(python3 --version 2>/dev/null || echo none);" \
	    "install one, or name it: make PYTHON=/path/to/python3.11" >&2; \
	  exit 1; \
	fi; \
	if ! "$$python" -c 'import ensurepip, venv' 2>/dev/null; then \
	  echo "error: $$python cannot make virtual environments;" \
	    "install its venv module (Debian: apt install python3-venv)" >&2; \
	  exit 1; \
	fi; \
	"$$python" -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[report,dev]'
	@touch $@

compare: $(INSTALLED)
	$(BIN)/polyattn compare $(ARGS)

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

# One process a core, each with one thread; the same order of sets in all of them.
test: export PYTHONHASHSEED = 0
test: export OMP_NUM_THREADS = 1
test: check
	$(BIN)/python -m pytest -n auto

# Raised before the process starts, or fresh buffers pay page faults that exceed the work.
bench: export MALLOC_MMAP_THRESHOLD_ = 4294967296
bench: export MALLOC_TRIM_THRESHOLD_ = 4294967296
bench: $(INSTALLED)
	$(BIN)/python -m pytest benchmarks --benchmark-only

mutants: export OMP_NUM_THREADS = 1
mutants: $(INSTALLED)
	$(BIN)/python -m tests.mutants.run $(ARGS)
	$(BIN)/python -m tests.mutants.page

# Checks released attention code; the packages go into an environment of their own.
hall-of-faults: hall/.venv/.installed
	cd hall && .venv/bin/python hall.py $(ARGS)

hall/.venv/.installed: hall/requirements.txt $(INSTALLED)
	$(BIN)/python -m venv hall/.venv
	hall/.venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e .
	hall/.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps -r hall/requirements.txt
	@touch $@

# On a machine with a network: polyattn, and what a machine with a GPU lacks, for its Python.
GPU_PYTHON ?= 3.12
GPU_WHEELS ?= build/gpu-check
gpu-check-wheels: $(INSTALLED)
	rm -rf $(GPU_WHEELS)
	$(BIN)/python -m build --wheel --no-isolation --outdir $(GPU_WHEELS) .
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps \
	  --only-binary=:all: --python-version $(GPU_PYTHON) --platform manylinux_2_17_x86_64 \
	  --platform manylinux2014_x86_64 -c constraints.txt --dest $(GPU_WHEELS) \
	  pydantic pydantic-core annotated-types typing-inspection typing-extensions safetensors

# On the machine with a GPU, with the torch of its own Python: writes gpu-check.json.
gpu-check:
	$(or $(PYTHON),python3) tests/gpu/check.py --wheels $(GPU_WHEELS) $(ARGS)

clean:
	rm -rf .venv hall/.venv build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .benchmarks
