# SPDX-License-Identifier: Apache-2.0
"""A new argument of an op needs changes in three files: the table of arguments, the op's header, the public function.

This test makes these changes in a copy of the tree and builds it. The argument then works on the CPU and over several
ranks, and shows in docs/ops.md. Triton and the reference do not support it and refuse it by name.

The quick half is in test_argument_table.py: if only the table has the argument, the test names each place that lacks
it.
"""

import pytest
from support.source_trees import copied, run

pytestmark = pytest.mark.thorough  # it builds the library again

CHANGES = [  # (file, its text, the new text): three files of the product
    (
        "specdec_kernels/arguments.py",
        '        *_randomness("request", "B, G+1"),\n        *_LAST,\n',
        '        *_randomness("request", "B, G+1"),\n        *_LAST,\n'
        '        Argument("heat", "float32", "B | 1", "request", True),\n',
    ),
    (
        "csrc/ops/verify_chain/verify_chain_op.h",
        "const OptTensor& num_requests, SPECDEC",
        "const OptTensor& num_requests, const OptTensor& heat, SPECDEC",
    ),
    (
        "csrc/ops/verify_chain/verify_chain_op.h",
        "a.target = chain_rows(op, a, target, of_target, bonus_tokens ? 0 : 1);\n",
        "a.target = chain_rows(op, a, target, of_target, bonus_tokens ? 0 : 1);\n"
        '  if (heat) a.target.sampling.temperature = floats_per_row(op, "heat", heat, B);\n',
    ),
    (
        "specdec_kernels/ops/verify_chain.py",
        "    num_requests: torch.Tensor | None = None,\n",
        "    num_requests: torch.Tensor | None = None,\n    heat: torch.Tensor | None = None,\n",
    ),
    (
        "specdec_kernels/ops/verify_chain.py",
        "        out: contiguous tensors of the result's shapes",
        "        heat: [B] float32, or one for all: temperatures in place of the target's own.\n"
        "        out: contiguous tensors of the result's shapes",
    ),
    ("specdec_kernels/ops/verify_chain.py", "(uniforms), num_requests)\n", "(uniforms), num_requests, heat)\n"),
    # Not product code: the list of arguments that Triton and the reference do not support yet.
    (
        "python_tests/package/test_argument_table.py",
        "NOT_YET: dict[tuple[str, str], list[str]] = {}",
        'NOT_YET: dict[tuple[str, str], list[str]] = {("verify_chain", "triton"): ["heat"], '
        '("verify_chain", "reference"): ["heat"]}',
    ),
]
STEP = """
import torch, specdec_kernels as sk
from specdec_kernels import example_calls
torch.manual_seed(0)
B, G, V = 6, 3, 40
rows, heat = torch.randn(B, G + 1, V), torch.tensor([0.0, 0.3, 0.5, 1.0, 2.0, 9.0])
step = dict(draft_tokens=torch.randint(V, (B, G)), draft=torch.randn(B, G, V))
step["uniforms"] = torch.rand(B, G + 1, dtype=torch.float64)
same = lambda got, want: all(x.equal(y) for x, y in zip(got, want, strict=True))
"""
CPU = """
want, plain = sk.verify_chain(sk.Rows(rows, temperature=heat), **step), sk.verify_chain(rows, **step)
assert not same(want, plain)
assert same(sk.verify_chain(rows, heat=heat, **step), want)
for x in (None, torch.ones(1)):
    assert same(sk.verify_chain(rows, heat=x, **step), plain)
out = sk.VerifyChainOutput(*map(torch.empty_like, want))
assert sk.verify_chain(rows, heat=heat, out=out, **step) is not None and same(out, want)

arguments = example_calls.op_arguments("verify_chain", sk.verify_chain, rows, heat=heat, **step)
op, check = torch.ops.specdec.verify_chain, torch.ops.specdec_check.verify_chain
arguments = arguments[: 1 + next(i for i, x in enumerate(arguments) if x is heat)]  # penalties follow
assert same(op(*arguments), want) and same(op(*arguments[:-1]), plain)
assert [x.shape for x in check(*arguments)] == [x.shape for x in want]
for call in (op, check):
    try:
        call(*arguments[:-1], heat[:4])
        raise SystemExit("nothing is raised")
    except RuntimeError as error:
        assert str(error).startswith("verify_chain: heat must have shape [6] or [1], got [4]"), error
assert [x.shape for x in op(*(x.to("meta") if isinstance(x, torch.Tensor) else x for x in arguments))] == [
    x.shape for x in want
]
torch.library.opcheck(op.default, arguments)
compiled = torch.compile(sk.verify_chain, fullgraph=True, backend="aot_eager")
assert same(compiled(rows, heat=heat, **step), want) and same(compiled(rows, **step), plain)
"""
RANKS = """
def on_rank(rank, exchange):
    from specdec_kernels import distributed
    shards = distributed.Shards(V, exchange=exchange)
    begin, end = shards.bounds[rank], shards.bounds[rank + 1]
    told = [distributed.verify_chain(rows[..., begin:end], shards=shards, heat=heat, **step)]
    try:
        distributed.verify_chain(rows[..., begin:end], shards=shards, heat=heat + rank, **step)
    except RuntimeError as error:
        told.append(str(error))
    return told

def main():
    from support.ranks import Ranks
    ranks, want = Ranks(2), sk.verify_chain(rows, heat=heat, **step)
    for exchange in ("chunks", "rows"):
        for told in ranks.call(on_rank, exchange):
            assert isinstance(told, list), told
            got, error = told
            assert same(got, want), exchange
            assert error.startswith("verify_chain: heat must be the same on all ranks"), error
    ranks.stop()
"""
REFUSED = """
same(sk.verify_chain(rows, **step), sk.verify_chain(rows, heat=None, **step))
for call, kind, says in (
    (sk.verify_chain, NotImplementedError, "verify_chain: Triton does not serve heat"),
    (sk.reference.verify_chain, TypeError, "unexpected keyword argument 'heat'"),
):
    try:
        call(rows, heat=heat, **step)
        raise SystemExit("nothing is raised")
    except kind as error:
        assert says in str(error), error
"""
LISTS = {  # tests that visit all arguments of an op
    "python_tests/package/test_argument_table.py": "verify_chain or page or everywhere or order",
    "python_tests/ops/test_example_calls.py": "verify_chain or every_parameter",
    "python_tests/ops/test_checks.py": "",
    "python_tests/ops/test_direct_calls.py": "verify_chain",
    "python_tests/ops/test_docstrings.py": "verify_chain",
    "python_tests/sharded/test_sharded_agreement.py": "every_argument",
}


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The tree with the argument in it, built for the CPU."""
    tree = copied(tmp_path_factory.mktemp("tree"))
    for file, old, new in CHANGES:
        text = (tree / file).read_text()
        assert text.count(old) == 1, (file, old)
        (tree / file).write_text(text.replace(old, new))
    run(tree, "setup.py", "--quiet", "build_ext", "--inplace", SPECDEC_CUDA="0")
    run(tree, "-m", "tools.docs.ops_page")
    return tree


def test_three_files_of_the_product():
    product = {file for file, *_ in CHANGES if not file.startswith("python_tests/")}
    assert len(product) <= 3


def test_the_cpu_takes_it(tree):
    run(tree, "-c", STEP + CPU)


def test_ranks_take_it(tree):
    (tree / "heat_over_ranks.py").write_text(STEP + RANKS)  # each rank imports it
    run(tree, "-c", "from heat_over_ranks import main; main()", PYTHONPATH=f"{tree}:{tree}/python_tests")


def test_triton_and_the_reference_refuse_it(tree):
    run(tree, "-c", STEP + REFUSED, SPECDEC_BACKEND="triton", TRITON_INTERPRET="1")


def test_the_page_shows_it(tree):
    assert "| `heat` | `heat` | float32, or None | [B] or [1] |" in (tree / "docs" / "ops.md").read_text()


@pytest.mark.parametrize("file", LISTS)
def test_lists_take_it(tree, file):
    command = ["-m", "pytest", "-p", "no:cacheprovider", file, "-k", LISTS[file]]
    assert " passed" in run(tree, *command, SPECDEC_TEST_BACKENDS="cpu")
