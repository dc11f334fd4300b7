# Two commands for a machine that has nothing but Python: `make demo` and `make test`.

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
# Parallel test processes; each one that reads PyTorch models needs about 1 GB of memory.
JOBS ?= 2

export OMP_NUM_THREADS ?= 1

.PHONY: demo test lint types layers tests exhaustive extras clean help

help:
	@echo "make demo   predict a VGG16 at batch 32 on an A100 (installs the core into $(VENV), writes a 528 MiB file)"
	@echo "make test   lint, types, layers and tests (installs PyTorch and the rest that the tests need into $(VENV))"
	@echo "make exhaustive  the tests that repeat others in breadth, which make test leaves out"
	@echo "make extras each extra for a framework in an environment of its own, a real model read in each"
	@echo "make clean  remove $(VENV) and demo/"

demo: $(VENV)/.core demo/vgg16.onnx
	@echo "\$$ dippm predict demo/vgg16.onnx --batch 32 --device A100"
	@# A log is no terminal, but what it shows is read by people: ask for the table there too, without colours.
	@if [ -t 1 ]; then $(BIN)/dippm predict demo/vgg16.onnx --batch 32 --device A100; \
	else TTY_COMPATIBLE=1 TERM=dumb COLUMNS=100 $(BIN)/dippm predict demo/vgg16.onnx --batch 32 --device A100; fi

demo/vgg16.onnx: examples/write_vgg16.py | $(VENV)/.core
	$(BIN)/python examples/write_vgg16.py $@

test: lint types layers tests

lint: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.test
	$(BIN)/mypy

layers: $(VENV)/.test
	$(BIN)/lint-imports

tests: $(VENV)/.test
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal

# Not a part of `make test`: minutes for what its tests show on fewer models.
exhaustive: $(VENV)/.test
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal -m exhaustive

# Not a part of `make test`: it installs four environments.
extras:
	$(PYTHON) scripts/check_extras.py

clean:
	rm -rf $(VENV) demo

# Stamps inside the environment say what it holds; a change of what they hang on installs again.

$(BIN)/python:
	@command -v "$(PYTHON)" >/dev/null || { echo "dippm needs Python 3.11 or newer; '$(PYTHON)' is not there." >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "dippm needs Python 3.11 or newer. Got $$("$(PYTHON)" --version 2>&1) instead." \
	    "Name another one: make PYTHON=python3.12 ..." >&2; exit 1; }
	@"$(PYTHON)" -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "Python cannot make a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

# What is installed, and the compiled modules.
INSTALLED := pyproject.toml setup.py $(wildcard src/dippm/*/*.c src/dippm/*/*.h)

$(VENV)/.core: $(INSTALLED) | $(BIN)/python
	$(PIP) install --quiet --editable .
	@touch $@

# torchvision, timm, transformers and diffusers are installed without what they ask for: torchvision pins the torch that
# it was built with, and would replace the one pinned here; the few packages that they really need stand in the file.
# 25,000 files are compiled at the end, on all cores at once: pip compiles them one after another, which takes a minute
# longer. Some of them are templates, which no Python reads, and tests, which nothing here does.
$(VENV)/.test: $(INSTALLED) constraints-test.txt requirements-test.txt | $(BIN)/python
	$(PIP) install --quiet --no-compile --constraint constraints-test.txt --editable '.[dev,torch,tensorflow,paddle,train,measure,postgresql,serve,sweep,explore,ray]' \
	  --requirement requirements-test.txt
	$(PIP) install --quiet --no-compile --constraint constraints-test.txt --no-deps torchvision timm transformers diffusers
	$(BIN)/python -W ignore -m compileall -qq -j 0 -x '/(tests?|rllib)/' $(VENV)/lib || true
	@touch $@ $(VENV)/.core
