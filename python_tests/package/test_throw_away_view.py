# SPDX-License-Identifier: Apache-2.0
"""A view of a row is its own file and one place of a backend. This test adds one, which negates the logits of odd ids,
to a copy of the tree. Every op that reads rows then gives, bit for bit, its results on rows with the view already
applied: no code reads rows without ids elsewhere."""

import json
import random

import pytest
import torch
from gates import hostile
from support import backends, flat, written_out
from support.odd_views import VIEWS
from support.source_trees import copied, run

from specdec_kernels import example_calls, registry
from specdec_kernels.arguments import TABLE
from specdec_kernels.rows import Rows
from specdec_kernels.rules import TABLE as RULES

pytestmark = pytest.mark.thorough  # it builds the library again

SLOWER = {"cpu": 1, "cuda-on-cpu": 4, "triton-interpret": 16, "reference": 4}
READ_ROWS = [op for op, row in TABLE.items() if any(x.type.startswith("rows") for x in row)]
IN_TREE = """
import json, sys, torch
from support.written_out import answers, ops_that_change
backend = sys.argv[1]
calls = torch.load("calls.pt", weights_only=False)
with_view = answers(backend, calls, True)
json.dump([with_view, sorted(ops_that_change(backend, calls, with_view))], open("answers.json", "w"))
"""


def public(op, arguments):
    return op, flat.folded(op, (), arguments)[1]


def rules_of(arguments):
    rule = arguments.get("rule", "exact")
    codes = {RULES[rule].code} if isinstance(rule, str) else set(torch.as_tensor(rule).flatten().tolist())
    return {name for name, known in RULES.items() if known.code in codes}


def has_ids(arguments):
    return any(x.ids is not None or x.vocab_map is not None for x in arguments.values() if isinstance(x, Rows))


def hostile_calls(op, backend):
    """Yield as many calls as a backend can run in short time, then those with a method or rule not among these."""
    seen, enough = set(), (1600 if op.startswith("verify") else 160)
    for i in range(enough):
        _, arguments = call = public(op, hostile.call(op, random.Random(f"{op} {i}")))
        if has_ids(arguments):
            continue
        kinds = {(arguments.get("method"), rule) for rule in rules_of(arguments)}
        if i < enough // SLOWER[backend] or not kinds <= seen:
            seen |= kinds
            yield call


def calls(backend):
    """Yield hostile calls, and the example calls with three vocabularies, without those on sparse or mapped rows.

    Rows of that kind have ids, and are read elsewhere. test_views.py compares their views.
    """
    for op in READ_ROWS:
        yield from hostile_calls(op, backend)
        for V, dtype in ((37, torch.float32), (3001, torch.bfloat16), (40_000, torch.float16)):
            given = [call.arguments for call in example_calls.calls(op, V=V, dtype=dtype, seed=V)]
            yield from ((op, arguments) for arguments in given if not has_ids(arguments))


@pytest.fixture(scope="module", params=VIEWS)
def given(request):
    """Return a backend and the calls that it supports."""
    return request.param, [x for x in calls(request.param) if backends.serves(request.param, *x)]


@pytest.fixture(scope="module")
def tree(tmp_path_factory):
    """The tree with every backend's view in it."""
    tree = copied(tmp_path_factory.mktemp("tree"))
    for view in VIEWS.values():
        view.add(tree)
    run(tree, "setup.py", "--quiet", "build_ext", "--inplace", SPECDEC_CUDA="0")
    return tree


def test_calls_are_of_every_kind(given):
    """Every method occurs with each of its rules that the backend supports, and so do stores, ragged and padded
    batches."""
    backend, asked = given
    seen = {op: [arguments for name, arguments in asked if name == op] for op in READ_ROWS}
    for method in ("token", "block"):
        rules = [rules_of(x) for x in seen["verify_chain"] if x.get("method", "token") == method]
        able = {name for name, rule in RULES.items() if rule.defines_distribution or method == "token"}
        assert able <= set().union(*rules), method
    for method, known in registry.TREE_METHODS.items():
        rules = [rules_of(x) for x in seen["verify_tree"] if x["method"] == method]
        able = {name for name in known.rules if backends.serves(backend, "verify_tree", {"rule": name})}
        assert (able or {"exact"}) <= set().union(*rules), method
    chains = seen["verify_chain"]
    assert any(isinstance(x["target"], Rows) and x["target"].row is not None for x in chains)
    assert any(x.get("cu_draft") is not None for x in chains)
    assert all(any(name.startswith("num_r") for x in seen[op] for name in x) for op in READ_ROWS if padded(op))


def padded(op):
    return any(x.name.startswith("num_r") for x in TABLE[op])


def test_ops_see_rows_as_if_written_out(given, tree):
    """Applying the view twice changes nothing: on negated rows the tree with the view gives this tree's results, on
    plain rows it does not."""
    backend, asked = given
    torch.save(asked, tree / "calls.pt")
    run(tree, "-c", IN_TREE, backend, PYTHONPATH=f"{tree}:{tree}/python_tests")
    with_view, changed = json.loads((tree / "answers.json").read_text())
    plain = written_out.answers(backend, asked, False)
    different = [(i, op) for i, (op, _) in enumerate(asked) if plain[i] != with_view[i]]
    assert not different
    assert changed == sorted(READ_ROWS)


def test_shards_are_seen_alike(tree):
    """Ranks' results from chunks equal the op's on whole rows, both with the view."""
    chosen = ("-k", "chunks or many_rows", "python_tests/sharded/test_sharded_ops.py")
    out = run(tree, "-m", "pytest", "-p", "no:cacheprovider", "-q", *chosen)
    assert "...." in out
