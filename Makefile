# make study: install, measure on this machine, build the book. make test: all tests. See README.md.
PYTHON ?= python3
PROFILE ?= cpu-smollm2
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.9
TORCH := $(shell sed -n 's/^torch==\([^ ;]*+cpu\).*/\1/p' requirements/cpu.lock)
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install study test unit live cluster nbval lint deploy notebooks book lock fields clean

help:  ## show this list
	@sed -n 's/^\([a-z]*\):.*## /make \1\t/p' $(MAKEFILE_LIST) | expand -t 20

install: $(STAMP)  ## create .venv with the pinned CPU stack

# torch's CPU build comes from wherever pip is configured to look, else from PyTorch's own index. The lock is
# complete, so nothing is resolved again (--no-deps); uv only makes it quicker.
$(STAMP): requirements/cpu.lock pyproject.toml
	@echo "== installing the pinned CPU stack into $(VENV) (about 1 min on a fast network, 4 GB)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
	@echo "== torch $(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps torch==$(TORCH) \
	  || $(BIN)/python -m pip install --disable-pip-version-check --no-deps torch==$(TORCH) --extra-index-url https://download.pytorch.org/whl/cpu
	@echo "== everything else"
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -r requirements/cpu.lock
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

study: install  ## install, run the profile's chapters live, build the book (FRESH=1 measures anew)
	$(BIN)/specstudy study --profile $(PROFILE) $(if $(FRESH),--fresh)

test: install lint unit nbval live cluster  ## lint, unit tests, notebooks, live tests with a real vLLM and a real Kubernetes control plane

unit: install
	$(BIN)/python -m pytest tests/unit tests/notebooks

live: install
	$(BIN)/python -m pytest tests/live

# Where the control plane can't be built, this says why, and the tests that need it are skipped.
cluster: install  ## tests on a real control plane, which the first run builds (6 CPU-minutes)
	-$(BIN)/specstudy lab build
	$(BIN)/python -m pytest tests/cluster

nbval: install  ## execute every chapter in recorded mode and compare its outputs
	$(BIN)/python -m pytest --nbval --nbval-sanitize-with tests/notebooks/sanitize.cfg chapters

lint: install
	$(BIN)/ruff check src tests benchmarks scripts
	$(BIN)/ruff format --check src tests benchmarks scripts
	$(BIN)/mypy

notebooks: install  ## execute the chapters in recorded mode and keep their outputs
	$(BIN)/python scripts/execute_chapters.py

book: install  ## build the book from the recorded results, warnings as errors
	$(BIN)/jupyter-book build --all -W -n --keep-going .

deploy: install  ## render deploy/ anew from data/deploy.yaml
	$(BIN)/specstudy deploy shipped --out deploy

fields: install
	$(BIN)/specstudy fields > how-to/record-fields.md

lock:  ## resolve requirements/cpu.lock anew
	uv pip compile --universal --python-version 3.11 --extra cpu --extra train --extra book --extra dev --no-annotate pyproject.toml -o requirements/cpu.lock

clean:  ## remove what was built; results and the cache stay
	rm -rf _build
