# Two commands do everything on a fresh machine: make demo, make test.
# The first of them makes the environment in .venv, from constraints.txt; nothing to prepare.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# One thread per process: the tests and the demo use the cores by running several processes.
ONE_THREAD := OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 MKL_NUM_THREADS=1
WORKERS ?= auto

.PHONY: help demo test docs lint types test-deep fuzz mutants golden bench clean
help:
	@echo "make demo       continual learning on handwritten digits, two minutes: a table and a picture"
	@echo "make test       lint, types and all tests"
	@echo "make docs       the documentation site, in docs/_build/html (one minute)"
	@echo "make test-deep  the property tests on more than 100,000 cases (half an hour)"
	@echo "make fuzz       thousands of hostile run folders, and grids of 200 runs whose workers are killed (half an hour)"
	@echo "make mutants    change the core in about 200 places, which the tests must notice (ten to thirty minutes; ONLY='gem* sums': some)"
	@echo "make golden     record the results of new methods (AGAIN=1: of all), which later code must repeat"
	@echo "make bench      cost of each part, as ratios from one run (QUICK=1: one minute, to check that it runs)"
	@echo "make clean      remove the environment and what tools left behind"

$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(PIP) install -q -c constraints.txt pip setuptools
	@echo "installing the environment into $(VENV) (a few minutes the first time) …"
	$(PIP) install -q -c constraints.txt -e ".[all]" --group dev
	@touch $@

demo: $(VENV)/ready
	$(BIN)/gradproj demo

test: lint types
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS)
	$(ONE_THREAD) $(BIN)/python -m pytest -n $(WORKERS) tests/core --library cupy-standin-device1

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/phrases.py

# Checked as users see it: installed, not as folders of a checkout.
types: $(VENV)/ready
	@rm -rf build $(VENV)/typed
	$(PIP) install -q --no-deps --no-build-isolation --target $(VENV)/typed .
	cd $(VENV) && MYPYPATH=typed bin/mypy --config-file ../pyproject.toml -p gradproj

test-deep: $(VENV)/ready
	$(ONE_THREAD) HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest -n $(WORKERS) tests/core

fuzz: $(VENV)/ready
	$(ONE_THREAD) HYPOTHESIS_PROFILE=deep $(BIN)/python -m pytest tests/experiments/reports/test_hostile_folders.py tests/experiments/runs/test_faults.py tests/experiments/runs/test_random_kills.py

# Resumes after an interruption. ONLY takes names of mutants, of modules, or patterns.
mutants: $(VENV)/ready
	@set -f; $(BIN)/python tests/mutants/run.py $(ONLY)

# AGAIN=1 only in a commit that is meant to change results.
golden: $(VENV)/ready
	$(ONE_THREAD) $(BIN)/python tests/golden/record.py $(if $(AGAIN),--again)

$(VENV)/bench: $(VENV)/ready
	$(PIP) install -q -c constraints.txt --group bench
	@touch $@

$(VENV)/docs: $(VENV)/ready
	$(PIP) install -q -c constraints.txt --group docs
	@touch $@

# Warnings are errors: a broken link, a missing picture, a docstring that is not valid.
docs: $(VENV)/docs
	$(ONE_THREAD) $(BIN)/sphinx-build -q -W --keep-going docs docs/_build/html
	$(BIN)/python docs/check_links.py docs/_build/html
	@echo "open docs/_build/html/index.html"

# Every script with a main function; the other files in benchmarks/ are helpers.
# QUICK=1: the smallest sizes, about one minute in total.
BENCHMARKS := $(shell grep -l '^def main' benchmarks/*.py)

bench: $(VENV)/bench
	@set -e; for script in $(BENCHMARKS); do \
	  echo; echo "== $$script"; $(BIN)/python $$script $(if $(QUICK),--quick); \
	done

clean:
	rm -rf $(VENV) build *.egg-info .tox .hypothesis .mypy_cache .ruff_cache .pytest_cache
