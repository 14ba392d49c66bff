# make demo    environment, then the main job on what ships with the package
# make test    environment, then lint (with the rings of imports), types and all tests
# make wheel   the wheel in dist/, tried in a new environment without the repository
# make docs    the site in build/site, strict: a broken link fails
# make kernels the GPU kernels in Triton's interpreter (installs triton, 640 MB)
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

.PHONY: demo test lint types unit docs wheel kernels format clean

demo: $(STAMP)
	$(BIN)/anisodiff demo --output demo

test: lint types unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache

types: $(STAMP)
	$(BIN)/mypy

unit: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2

wheel: $(STAMP)
	PYTHON=$(BIN)/python .ci/wheel

docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

kernels: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps triton==3.6.0
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/integrators/test_kernels.py tests/integrators/test_chain_kernel.py \
		tests/networks/test_network_kernels.py tests/test_keyed_kernels.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(STAMP): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
	touch $@

clean:
	rm -rf $(VENV) demo dist
