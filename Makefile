# make demo    environment, then the main job on what ships with the package
# make test    environment, then lint (with the rings of imports, and THIRD_PARTY.md), types and all tests
# make wheel   the wheel in dist/, tried in a new environment without the repository
# make docs    the site in build/site, strict: a broken link fails
# make oldest  the tests with the oldest versions that pyproject.toml allows (torch apart)
# make sbom    dist/sbom.json (CycloneDX) and THIRD_PARTY.md: what this environment consists of, with licenses
# make lock    requirements-dev.lock: the versions of this environment with the sha256 of their wheels
# make kernels the GPU kernels in Triton's interpreter (installs triton, 640 MB)
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
export PIP_CONSTRAINT := $(CURDIR)/constraints.txt

.PHONY: demo test lint types unit docs wheel kernels oldest sbom lock format clean

demo: $(STAMP)
	$(BIN)/anisodiff demo --output demo

test: lint types unit

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-cache
	$(BIN)/python .ci/sbom --check

types: $(STAMP)
	$(BIN)/mypy

unit: $(STAMP)
	OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

wheel: $(STAMP)
	PYTHON=$(BIN)/python .ci/wheel

docs: $(STAMP)
	$(BIN)/python -m pip install --quiet --editable ".[docs]"
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

kernels: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps triton==3.6.0
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/integrators/test_kernels.py tests/integrators/test_chain_kernel.py \
		tests/networks/test_network_kernels.py tests/test_keyed_kernels.py

oldest: $(STAMP)
	$(BIN)/python -m pip install --quiet --no-deps --only-binary=:all: --upgrade --target build/oldest \
	    --requirement requirements-oldest.txt
	PYTHONPATH=$(CURDIR)/build/oldest:$(CURDIR)/src OMP_NUM_THREADS=1 $(BIN)/pytest -n 2 --dist worksteal

sbom: $(STAMP)
	$(BIN)/python .ci/sbom

lock: $(STAMP)
	$(BIN)/python .ci/lock

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(STAMP): pyproject.toml constraints.txt requirements-dev.lock
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) torch
ifdef LOCKED  # Python 3.11 on Linux, as continuous integration has it
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps --requirement requirements-dev.lock
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
else
	$(BIN)/python -m pip install --quiet --editable ".[dev]"
endif
	touch $@

clean:
	rm -rf $(VENV) build demo dist
