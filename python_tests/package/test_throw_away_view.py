# SPDX-License-Identifier: Apache-2.0
"""A view of a row is its own file and one place of a backend: one that negates the logits of odd ids is added to a copy
of the tree, built, and every op answers as it does to rows written out, bit for bit. So nobody reads around that place.
"""

import json
import random

import pytest
import torch
from gates import hostile
from support import flat, written_out
from support.source_trees import copied, run

from specdec_kernels import example_calls, registry
from specdec_kernels.arguments import TABLE
from specdec_kernels.rows import Rows
from specdec_kernels.rules import TABLE as RULES

pytestmark = pytest.mark.thorough  # it builds the library anew

VIEW = """// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace specdec {

inline float viewed(float z, int64_t v) { return v % 2 ? -z : z; }

// The first m of n entries from an even id on; the others are padding.
inline const float* viewed(const float* z, int m, int n, float* buf) {
  std::copy(z, z + padded(n), buf);
  for (int i = 1; i < m; i += 2) buf[i] = -buf[i];
  return buf;
}

}  // namespace specdec
"""
PLACE = "csrc/cpu/row_reader.h"
LINES = {  # what a line says, and what it says with the view
    '#include "simd_kernels.h"': '#include "simd_kernels.h"\n#include "odd_view.h"',
    "z = number_at(row.pointer(), row.dtype, place(row, v));": (
        "z = viewed(number_at(row.pointer(), row.dtype, place(row, v)), v);"
    ),
    "const bool in_place = n == padded(n) && ": "const bool in_place = false && ",
    "kernels.load(at(row, c), m, n, pad, buf), buf);": (
        "viewed(kernels.load(at(row, c), m, n, pad, buf), m, n, buf), buf);"
    ),
}
READ_ROWS = [op for op, row in TABLE.items() if any(x.type.startswith("rows") for x in row)]
IN_TREE = """
import json, sys, torch
from support.written_out import answers
calls = torch.load("calls.pt", weights_only=False)
json.dump([answers(calls, view) for view in (True, False)], open("answers.json", "w"))
"""


def public(op, arguments):
    return op, flat.folded(op, (), arguments)[1]


def calls():
    """Ordinary and hostile ones, and every form of a call on rows of many chunks."""
    for op in READ_ROWS:
        for i in range(1500 if op.startswith("verify") else 150):
            yield public(op, hostile.call(op, random.Random(f"{op} {i}")))
        for V, dtype in ((37, torch.float32), (3001, torch.bfloat16), (40_000, torch.float16)):
            yield from ((op, call.arguments) for call in example_calls.calls(op, V=V, dtype=dtype, seed=V))


def rules_of(arguments):
    rule = arguments.get("rule", "exact")
    codes = {RULES[rule].code} if isinstance(rule, str) else set(torch.as_tensor(rule).flatten().tolist())
    return {name for name, known in RULES.items() if known.code in codes}


@pytest.fixture(scope="module")
def given():
    return list(calls())


@pytest.fixture(scope="module")
def viewed(tmp_path_factory, given):
    """What the tree with the view answers: to rows that it sees as they were given, and to those as they lie."""
    tree = copied(tmp_path_factory.mktemp("tree"))
    (tree / PLACE).with_name("odd_view.h").write_text(VIEW)
    text = (tree / PLACE).read_text()
    for line, with_view in LINES.items():
        assert text.count(line) == 1, line
        text = text.replace(line, with_view)
    (tree / PLACE).write_text(text)
    run(tree, "setup.py", "--quiet", "build_ext", "--inplace", SPECDEC_CUDA="0")
    torch.save(given, tree / "calls.pt")
    run(tree, "-c", IN_TREE, PYTHONPATH=f"{tree}:{tree}/python_tests")
    return tree, *json.loads((tree / "answers.json").read_text())


def test_calls_are_of_every_kind(given):
    """Every method and rule; stores, ragged and padded batches; each dtype."""
    seen = {op: [arguments for name, arguments in given if name == op] for op in READ_ROWS}
    for method in ("token", "block"):
        rules = [rules_of(x) for x in seen["verify_chain"] if x.get("method", "token") == method]
        able = {name for name, rule in RULES.items() if rule.defines_distribution or method == "token"}
        assert able <= set().union(*rules), method
    for method, known in registry.TREE_METHODS.items():
        rules = [rules_of(x) for x in seen["verify_tree"] if x["method"] == method]
        assert set(known.rules) <= set().union(*rules), method
    chains = seen["verify_chain"]
    assert any(isinstance(x["target"], Rows) and x["target"].row is not None for x in chains)
    assert any(x.get("cu_draft") is not None for x in chains)
    assert all(any(name.startswith("num_r") for x in seen[op] for name in x) for op in READ_ROWS if padded(op))


def padded(op):
    return any(x.name.startswith("num_r") for x in TABLE[op])


def test_ops_see_rows_as_if_written_out(given, viewed):
    _, with_view, as_they_lie = viewed
    plain = written_out.answers(given, False)
    different = [(i, op) for i, (op, _) in enumerate(given) if plain[i] != with_view[i]]
    assert not different
    changed = {op for i, (op, _) in enumerate(given) if plain[i] != as_they_lie[i]}
    assert changed == set(READ_ROWS)


def test_shards_are_seen_alike(viewed):
    """What ranks make of their chunks is what the op makes of whole rows, both with the view."""
    chosen = ("-k", "chunks or many_rows", "python_tests/sharded/test_sharded_ops.py")
    out = run(viewed[0], "-m", "pytest", "-p", "no:cacheprovider", "-q", *chosen)
    assert "...." in out
