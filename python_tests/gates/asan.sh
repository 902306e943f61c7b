#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The CPU ops under AddressSanitizer and UndefinedBehaviorSanitizer: tests of edges and of ops, then hostile requests on
# each instruction set of this CPU.
# An error that they find ends the process; build/asan/last then names the hostile call that ran. The package's own _C.so is kept.
#
#   PYTHON=python3         the interpreter, with torch and pytest
#   REQUESTS=100000        hostile requests, shared between the instruction sets; SEED= repeats a run
set -euo pipefail
cd "$(dirname "$0")/../.."
PYTHON=${PYTHON:-python3} REQUESTS=${REQUESTS:-100000} SEED=${SEED:-$RANDOM}
PYTHON=$(cd "$(dirname "$(command -v "$PYTHON")")" && pwd)/$(basename "$PYTHON")

SPECDEC_CUDA=0 SPECDEC_SANITIZE=address,undefined,float-cast-overflow "$PYTHON" setup.py --quiet build_py --build-lib build/asan \
  build_ext --build-lib build/asan 2>&1 | { grep -v byte-compiling || true; }

# The sanitizers must be loaded before torch, and libstdc++ before they look up its functions for exceptions.
preload=
for library in libasan libubsan libstdc++; do preload+=" $(${CXX:-g++} -print-file-name=$library.so)"; done
export ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0:abort_on_error=1:allocator_may_return_null=1
export UBSAN_OPTIONS=print_stacktrace=1:halt_on_error=1
watched() { LD_PRELOAD=$preload PYTHONPATH=build/asan "$PYTHON" -P "$@"; }

watched python_tests/gates/asan_teeth.py
SPECDEC_TEST_BACKENDS=cpu watched -m pytest -p no:cacheprovider -o pythonpath='build/asan .' -n 0 python_tests/*/test_*_edges.py \
  python_tests/ops/test_{arguments,direct_calls,row_stats,sample,top_logprobs,row_topw,support,residual,row_gap,kseq_rho,budget,build_tree,grow_tree,tree_mask,count_tokens_,uniforms,accept,penalties,bias,allowed,views,top_n_sigma,sparse_rows,vocab_map,entry_ids}.py

isas=base
grep -qsw avx2 /proc/cpuinfo && isas+=" avx2"
grep -qsw avx512f /proc/cpuinfo && isas+=" avx512"
set -- $isas
for isa in "$@"; do
  SPECDEC_ISA=$isa watched python_tests/gates/hostile.py --requests $((REQUESTS / $#)) --seed "$SEED" --last build/asan/last
  SEED=$((SEED + 1))
done
