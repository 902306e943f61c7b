# SPDX-License-Identifier: Apache-2.0
"""A rule is its row of the registry, a row and a case in C++, a case in Triton and a function of the reference. This
test adds one to a copy of the tree and builds it, and results are the same on every backend.

test_registry.py has the quick half: every column of C++'s table equals the registry's.
"""

import pytest
from support.source_trees import add, copied, run

pytestmark = pytest.mark.thorough  # it builds the library again

LINES = [  # (file, the line before, the lines)
    (
        "specdec_kernels/registry.py",
        "        keeps_target_at=(1.0, 1.0),\n    ),\n",
        '    "sure": Rule(17, (_unit("eps", 0.25),), False, "accepts iff p(d) >= eps, else draws from p"),\n',
    ),
    (
        "csrc/rules/rule.h",
        "false,  NAN,      positive(),   positive())       \\\n",
        '  RULE(kSure, "sure", false, false, false, NAN, unit(0.25), any()) \\\n',
    ),
    ("csrc/rules/acceptance.h", "  switch (rule) {\n", "    case Rule::kSure: return p.prob(d) >= alpha.first;\n"),
    (
        "specdec_kernels/triton/rules/rule.py",
        "from ..core.memory import Values, get_value, load_value\n",
        "from . import SURE\n",
    ),
    (
        "specdec_kernels/triton/rules/rule.py",
        "    accepted |= (rule == RELAXED) & relaxed\n",
        "    accepted |= (rule == SURE) & (p_d >= alpha.first)\n",
    ),
    (
        "specdec_kernels/reference/rules/acceptance.py",
        "    return False, (w,)\n",
        "\n\ndef sure(chain, i, d, p, eps):\n    return chain.chance.reaches(p.p[d], eps), ()\n",
    ),
    # Not product code: the parameters that random batches use.
    (
        "python_tests/support/rule_cases.py",
        '    "thresholds": [(0.9, 0.95), (0.35, 0.6)],\n',
        '    "sure": [(0.25,), (0.1,)],\n',
    ),
]
CALLS = """
import numpy as np, torch, specdec_kernels as sk
from specdec_kernels.reference.rules.one_step import one_step
torch.manual_seed(0)
x = dict(target=torch.randn(64, 4, 9), draft_tokens=torch.randint(9, (64, 3)), draft=torch.randn(64, 3, 9))
x |= dict(uniforms=torch.rand(64, 4, dtype=torch.float64))
each = torch.linspace(0, 0.9, 64)
mixed = dict(rule=torch.arange(64) % 18, alpha=torch.tensor([[1.0, 0.5]]))
mixed["rule"][mixed["rule"] == 11] = 17  # lossy's range ends below 1
seen = []
for rule in (dict(rule="sure"), dict(rule="sure", alpha=0.1), dict(rule="sure", alpha=each), mixed):
    got, want = (f(**x, **rule) for f in (sk.verify_chain, sk.reference.verify_chain))
    assert got.tokens.tolist() == want.tokens.tolist()
    seen.append(got.num_accepted.double().mean().item())
assert seen[1] > seen[0] > 0, seen
p, q = np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3])
assert abs(one_step(p, q, "sure", (0.25,)).emitted - (q * [1, 1, 0] + 0.3 * p)).max() < 1e-15
"""
OUT_OF_RANGE = """
try:
    sk.verify_chain(**x, rule="sure", alpha=each + 0.5)
    raise SystemExit("nothing is raised")
except ValueError as error:
    assert str(error) == "verify_chain: alpha of rule 'sure' must be in [0, 1], got 1.01429 at index 36", error
"""


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The tree with the rule in it, built for the CPU."""
    tree = copied(tmp_path_factory.mktemp("tree"))
    for file, before, lines in LINES:
        add(tree / file, before, lines)
    run(tree, "setup.py", "--quiet", "build_ext", "--inplace", SPECDEC_CUDA="0")
    return tree


def test_the_cpu_takes_it(tree):
    run(tree, "-c", CALLS + OUT_OF_RANGE)


def test_triton_takes_it(tree):
    run(tree, "-c", CALLS + OUT_OF_RANGE, SPECDEC_BACKEND="triton", TRITON_INTERPRET="1")


def test_the_simulated_device_takes_it(tree):
    """The simulated device checks no values before kernels run, so nothing is raised."""
    loaded = 'from tools.cuda_on_cpu.build import CSRC, load\nload("fast", CSRC, ("verify_chain",))\n'
    run(tree, "-c", loaded + CALLS)


def test_lists_take_it(tree):
    run(tree, "-m", "pytest", "-p", "no:cacheprovider", "python_tests/package/test_registry.py")
    assert "sure" in run(tree, "-m", "specdec_kernels", "generate", "--help")
