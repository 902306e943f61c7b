# SPDX-License-Identifier: Apache-2.0
"""In code, an op is its own files and three lines elsewhere. This test adds one to a copy of the tree and builds it.
Lists of ops then have it.

test_registry.py has the quick half: lists that are read in this process, with a name in the registry and no files.
"""

import pytest
from gates.wheel_check import on_cpu
from support.argument_copies import READERS
from support.source_trees import add, copied, run

pytestmark = pytest.mark.thorough  # it builds the library again

SPDX = "// SPDX-License-Identifier: Apache-2.0\n"
FILES = {
    "csrc/ops/in_vocabulary/in_vocabulary.h": """#pragma once
#include "../../core/ints.h"

namespace specdec {

struct InVocabulary {
  int64_t n = 0, V = 0;
  Ints ids;             // [n]
  bool* out = nullptr;  // [n]
  SPECDEC_HD void test(int64_t i) const { out[i] = ids[i] >= 0 && ids[i] < V; }
};

}  // namespace specdec
""",
    "csrc/ops/in_vocabulary/in_vocabulary_op.h": """#pragma once
#include "../../binding/check.h"
#include "in_vocabulary.h"

namespace specdec {

template <void (*Run)(const InVocabulary&, const Tensor& like)>
Tensor in_vocabulary_op(const Tensor& draft_tokens, int64_t V) {
  const Op op("in_vocabulary", draft_tokens);
  check_given(op, "draft_tokens", draft_tokens);
  check_dims(op, "draft_tokens", draft_tokens, "N");
  InVocabulary a;
  a.n = draft_tokens.size(0);
  a.V = V;
  a.ids = ints(op, "draft_tokens", draft_tokens, draft_tokens.stride(0));
  Tensor out = result(op, {a.n}, a.out);
  if (a.n > 0) Run(a, draft_tokens);
  return out;
}

}  // namespace specdec
""",
    "csrc/ops/in_vocabulary/in_vocabulary_cpu.cpp": """#include "../../binding/cpu_op.h"
#include "in_vocabulary_op.h"

namespace specdec {
namespace {
void run(const InVocabulary& a, const Tensor&) {
  for (int64_t i = 0; i < a.n; ++i) a.test(i);
}
}  // namespace
SPECDEC_CPU_OP("in_vocabulary", in_vocabulary_op)
}  // namespace specdec
""",
    "csrc/ops/in_vocabulary/in_vocabulary_cuda.cu": """#include "../../cuda/launch.h"
#include "in_vocabulary.h"

namespace specdec {
namespace {
__global__ void __launch_bounds__(kThreads) test(const InVocabulary a) {
  const int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x;
  if (i < a.n) a.test(i);
}
}  // namespace
void run(const InVocabulary& a, const Tensor& like) {
  const OnDeviceOf device(like);
  SPECDEC_LAUNCH("in_vocabulary", test, (a.n + kThreads - 1) / kThreads, device.stream, a);
}
}  // namespace specdec
""",
    "csrc/ops/in_vocabulary/in_vocabulary_op_cuda.cpp": """#include "../../cuda/cuda_op.h"
#include "in_vocabulary_op.h"

namespace specdec {
void run(const InVocabulary& a, const Tensor& like);
SPECDEC_CUDA_OP("in_vocabulary", in_vocabulary_op)
}  // namespace specdec
""",
    "specdec_kernels/ops/in_vocabulary.py": '''from __future__ import annotations

import torch

from specdec_kernels.ops import _call, _check
from specdec_kernels.ops._fake import fake

_in_vocabulary = _call.op("in_vocabulary")


def in_vocabulary(draft_tokens: torch.Tensor, V: int) -> torch.Tensor:
    """Which ids lie in a vocabulary.

    Args:
        draft_tokens: [N] int32 or int64.
        V: the vocabulary's size.

    Returns:
        bool [N].

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came.

    Example:
        >>> in_vocabulary(torch.tensor([-1, 0, 5]), 5)
        tensor([False,  True, False])

    Source: none, it is thrown away.
    """
    return _in_vocabulary(draft_tokens, _check.integer("in_vocabulary", "V", V, 1, 1 << 24, "in [1, 2^24]"))


@fake("in_vocabulary")
def _(draft_tokens):
    return draft_tokens.new_empty(draft_tokens.shape, dtype=torch.bool)
''',
    "specdec_kernels/reference/in_vocabulary.py": """import torch


def in_vocabulary(draft_tokens, V):
    return torch.tensor([0 <= x < V for x in draft_tokens.tolist()], dtype=torch.bool)
""",
    "specdec_kernels/triton/in_vocabulary.py": """import triton
import triton.language as tl

@triton.jit
def in_vocabulary_kernel(ids, out, n, stride, V, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(ids + at * stride, mask=at < n, other=0)
    tl.store(out + at, (x >= 0) & (x < V), mask=at < n)


def in_vocabulary(out, draft_tokens, V):
    n = draft_tokens.numel()
    if n:
        in_vocabulary_kernel[(triton.cdiv(n, 64),)](draft_tokens, out, n, draft_tokens.stride(0), V, BLOCK=64)
""",
    "specdec_kernels/example_calls/in_vocabulary.py": """def calls(x):
    yield "ids", {"draft_tokens": x.integers(-2, 9, 70), "V": 5}
""",
    "bench/in_vocabulary.py": '''"""in_vocabulary against eager torch."""

from types import SimpleNamespace

import torch

import specdec_kernels as sk
from bench.harness import Case, Work


def cases(device):
    x = SimpleNamespace(ids=torch.arange(1000, device=device))
    ours = lambda x: sk.in_vocabulary(x.ids, 500)
    eager = lambda x: (x.ids >= 0) & (x.ids < 500)
    yield Case("n=1000", lambda: Work(x, ours, 9000, peers={"eager": eager}, calls=10))
''',
    "python_tests/ops/test_in_vocabulary.py": """import torch
from support import backends


def test_ids(backend):
    got = backends.run("in_vocabulary", backend, torch.tensor([-1, 0, 4, 5, 2**40]), 5)
    assert got.tolist() == [False, True, True, False, False]
""",
}
LINES = [  # (file, the line before, the line)
    (
        "specdec_kernels/arguments.py",
        "TABLE: dict[str, tuple[Argument, ...]] = {\n",
        '    "in_vocabulary": (Argument("draft_tokens", "integers", "N", "row"), Argument("V", "code")),\n',
    ),
    ("specdec_kernels/arguments.py", "RESULTS = {\n", '    "in_vocabulary": "in_vocabulary bool [N]",\n'),
    (
        "specdec_kernels/__init__.py",
        "from specdec_kernels.ops.accept import accept as accept\n",
        "from specdec_kernels.ops.in_vocabulary import in_vocabulary as in_vocabulary\n",
    ),
]
FOUND_BY = {  # test file: how many of its tests run for the new op
    "python_tests/ops/test_in_vocabulary.py": 2,
    "python_tests/ops/test_example_calls.py": 4,
    "python_tests/ops/test_arguments.py": 4,
    "python_tests/ops/test_autograd.py": 8,
    "python_tests/ops/test_direct_calls.py": 2,
    "python_tests/ops/test_cuda_graph.py": 1,
    "python_tests/ops/test_hostile.py": 2,
    "python_tests/ops/test_docstrings.py": 2,
    "python_tests/package/test_argument_table.py": len(READERS),
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The tree with the op in it, built for the CPU."""
    tree = copied(tmp_path_factory.mktemp("tree"))
    for file, text in FILES.items():
        (tree / file).parent.mkdir(exist_ok=True)
        (tree / file).write_text((SPDX if file.startswith("csrc") else SPDX.replace("//", "#")) + text)
    for file, before, line in LINES:
        assert line.count("\n") == 1, file
        add(tree / file, before, line)
    run(tree, "setup.py", "--quiet", "build_ext", "--inplace", SPECDEC_CUDA="0")
    return tree


def test_tests_take_it(tree):
    command = ["-m", "pytest", "-p", "no:cacheprovider", "-vv", "-k", "in_vocabulary or draft_tokens-in_vocabulary"]
    out = run(tree, *command, *FOUND_BY, SPECDEC_TEST_BACKENDS="cpu,triton-interpret")
    passed = [line for line in out.splitlines() if " PASSED" in line]
    assert {file: sum(line.startswith(file) for line in passed) for file in FOUND_BY} == FOUND_BY, out
    run(tree, "-m", "pytest", "-p", "no:cacheprovider", "python_tests/package/test_registry.py")
    run(
        tree,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "python_tests/package/test_bench_plumbing.py",
        "-k",
        "every_op_has or every_example",
    )


def test_tools_take_it(tree):
    assert "n=1000" in run(tree, "-m", "bench.run", "in_vocabulary", "--rounds", "1")
    code = "from bench import sanitize; print({op for op, *_ in sanitize.calls('cpu')})"
    assert "'in_vocabulary'" in run(tree, "-c", code)
    assert "10 calls" in run(tree, "-m", "tools.record", "answers.json", "--calls", "10", "--op", "in_vocabulary")
    code = "from gates import wheel_check; print(wheel_check.on_cpu())"
    assert int(run(tree, "-c", code, PYTHONPATH=f"{tree}:{tree}/python_tests")) == 1 + on_cpu()
    assert "python_tests/ops/test_in_vocabulary.py" in run(tree, "python_tests/support/on_backends.py")


def test_the_simulated_device_takes_it(tree):
    code = """
import torch, specdec_kernels as sk
from specdec_kernels import example_calls
from tools.cuda_on_cpu.build import CSRC, load
load("fast", CSRC, ("in_vocabulary",))
[call] = example_calls.calls("in_vocabulary")
print(sk.in_vocabulary(**call.arguments).equal(sk.reference.in_vocabulary(**call.arguments)))
"""
    assert run(tree, "-c", code) == "True\n"


def test_the_readme_lacks_it(tree):
    """The README's table is compared with the registry, so a new op must be mentioned."""
    command = ["-m", "pytest", "-p", "no:cacheprovider", "python_tests/package/test_readme.py", "-k", "table_of_ops"]
    with pytest.raises(AssertionError, match="in_vocabulary"):
        run(tree, *command)
