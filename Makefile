# `make demo` runs the main recipe, `make test` checks tfopt, `make test-all` with the slow tests,
# `make docs` builds the site, `make notebooks` runs the notebooks.
# They set up .venv the first time and reuse it afterwards.

.DEFAULT_GOAL := help
VENV ?= .venv
BIN := $(VENV)/bin
# The newest supported Python there is; `make PYTHON=/path/to/python test` takes another one.
PYTHON ?= $(shell for p in python3.13 python3.12 python3.11 python3 python; do \
	command -v $$p >/dev/null 2>&1 && \
	$$p -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' \
	2>/dev/null && { echo $$p; break; }; done)
BASE := $(VENV)/.installed
STAMP := $(VENV)/.with_tests
SPHINX := $(VENV)/.with_docs
DEMO_FLAGS ?=
# Each takes up to four GiB, and a share of the GPU where there is one. One more than a small
# machine's cores, since a third of their time is spent waiting for processes.
TEST_PROCESSES ?= 3
PYTEST = TF_CPP_MIN_LOG_LEVEL=2 $(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist worksteal

.PHONY: help demo docs notebooks test test-all test-versions lint types walls unit unit-all clean

help:
	@echo "make demo      find what trains MNIST fastest and measure it; the report is in cnn_mnist_report/"
	@echo "make docs      the site, in site/: open site/index.html"
	@echo "make notebooks run docs/notebooks and keep what they show, in five minutes"
	@echo "make test      lint, types, import walls and all tests but the slow ones"
	@echo "make test-all  the same and the slow ones, with steps compiled by XLA as Keras chooses"
	@echo "make test-versions  the wheel on the oldest, the newest and the next TensorFlow and Keras, in .lanes/"
	@echo "make clean     remove .venv and caches"

$(BASE): pyproject.toml
	@if [ -z "$(PYTHON)" ]; then \
		echo "error: tfopt needs Python 3.11, 3.12 or 3.13 with venv, and found none."; \
		echo "  fix: install one (Debian: apt install python3-venv), or make PYTHON=/path/to/python"; \
		exit 1; fi
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip
	$(BIN)/python -m pip install --quiet --editable .
	@touch $@

$(STAMP): $(BASE)
	$(BIN)/python -m pip install --quiet --editable '.[test]'
	@touch $@

demo: $(BASE)
	$(BIN)/python -m tfopt.recipes.cnn_mnist $(DEMO_FLAGS)

# A warning, such as a link into nothing, is an error. Nothing is fetched.
docs: $(SPHINX)
	rm -rf site
	TF_CPP_MIN_LOG_LEVEL=2 $(BIN)/python -m sphinx -q -E -W --keep-going -b html -c docs -d $(VENV)/.doctrees . site
	rm -rf jupyter_execute    # copies of the notebooks, which MyST-NB leaves

notebooks: $(STAMP)
	$(BIN)/python tests/notebooks.py

$(SPHINX): $(BASE)
	$(BIN)/python -m pip install --quiet --editable '.[docs]'
	@touch $@

test: lint types walls unit

test-all: lint types walls docs unit-all

# Makes its own environments; with LANES="oldest --quick" only a part.
test-versions:
	$(PYTHON) tests/lanes.py $(LANES)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

walls: $(STAMP)
	$(BIN)/lint-imports

unit: $(STAMP)
	$(PYTEST) -m "not slow"

unit-all: $(STAMP)
	TFOPT_TESTS_XLA=1 $(PYTEST)

clean:
	rm -rf $(VENV) .lanes site build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
