# SPDX-License-Identifier: Apache-2.0
"""Engines call torch.ops.specdec.* without the Python wrapper: the op checks its arguments again, with the same error
on every backend."""

import re

import pytest
import torch
from support import backends, surface, worker

import specdec_kernels as sk
from specdec_kernels import example_calls
from specdec_kernels.arguments import called
from specdec_kernels.registry import OPS

# Wrong arguments of each op's first example call, with a vocabulary of 11: rows [3, 11], B=4 and G=5, trees of 4 nodes
F64, I64 = torch.float64, torch.int64
SEED = torch.arange(3)
ROWS = torch.arange(33.0).reshape(3, 11).cos()
TREES = torch.tensor([[-1, 0, 0, 1], [-1, 0, 1, -1]])
WRONG = [  # op, argument, wrong value, error
    ("uniforms", "seed", SEED.float(), "uniforms: seed must be int64, got float32"),
    ("uniforms", "offset", SEED[None], r"uniforms: offset must have shape \[B=3\], got \[1, 3\]"),
    ("uniforms", "n", -1, r"uniforms: n must be in \[0, 2\^33\], got -1"),
    ("accept", "q", ROWS[:2], r"accept: q must have shape \[3, 11\], got \[2, 11\]"),
    ("accept", "u", ROWS, "accept: u must be float64, got float32"),
    ("residual", "p", ROWS[0], r"residual: p must have shape \[N, V\], got \[11\]"),
    ("residual", "p", ROWS.double(), "residual: p must be float32, bfloat16 or float16, got float64"),
    ("residual", "q", ROWS[:2], r"residual: q must have shape \[N=3, Vq=11\], got \[2, 11\]"),
    ("residual", "q", SEED[:2], r"residual: q must have shape \[N=3\], got \[2\]"),
    ("row_gap", "p", ROWS[0], r"row_gap: p.logits must have shape \[N, V\], got \[11\]"),
    ("row_gap", "q", ROWS[:2], r"row_gap: q.logits must have shape \[N=3, Vq=11\], got \[2, 11\]"),
    ("row_gap", "p_stats", None, "row_gap: p.stats and q.stats go together, got q.stats alone"),
    ("row_gap", "q_stats", torch.zeros(3, 3), r"row_gap: q.stats must have shape \[N=3, 4\], got \[3, 3\]"),
    ("row_stats", "logits", ROWS[0], r"row_stats: rows.logits must have shape \[N, V\], got \[11\]"),
    (
        "row_stats",
        "logits",
        ROWS.T.contiguous().T,
        r"row_stats: rows.logits must be contiguous in its last dimension, got strides \[1, 3\]",
    ),
    ("row_stats", "logits", torch.zeros(3, 0), r"row_stats: rows.logits must have a vocabulary of 1 to 2\^24, got 0"),
    (
        "row_stats",
        "temperature",
        torch.ones(2),
        r"row_stats: rows.temperature must have shape \[3\] or \[1\], got \[2\]",
    ),
    ("row_stats", "temperature", torch.ones(3, dtype=F64), "row_stats: rows.temperature must be float32, got float64"),
    ("kseq_rho", "p", ROWS[0], r"kseq_rho: p.logits must have shape \[N, V\], got \[11\]"),
    ("kseq_rho", "q", ROWS[:2], r"kseq_rho: q.logits must have shape \[N=3, Vq=11\], got \[2, 11\]"),
    ("kseq_rho", "q", ROWS.double(), "kseq_rho: q.logits must be float32, bfloat16 or float16, got float64"),
    ("kseq_rho", "k", SEED[:2], r"kseq_rho: k must have shape \[3\] or \[1\], got \[2\]"),
    ("kseq_rho", "p_stats", None, "kseq_rho: p.stats and q.stats go together, got q.stats alone"),
    ("kseq_rho", "q_stats", torch.zeros(3, 3), r"kseq_rho: q.stats must have shape \[N=3, 4\], got \[3, 3\]"),
    ("build_tree", "draft_tokens", SEED, r"build_tree: draft_tokens must have shape \[B, K, L\], got \[3\]"),
    (
        "build_tree",
        "draft_tokens",
        torch.zeros(2, 3, 4),
        "build_tree: draft_tokens must be int32 or int64, got float32",
    ),
    (
        "build_tree",
        "draft_tokens",
        torch.zeros(1, 1025, 2, dtype=I64),
        "build_tree: draft_tokens must hold at most 1024 drafts a request, got 1025",
    ),
    (
        "build_tree",
        "draft_tokens",
        SEED[:1].expand(2, 1, 1 + (1 << 20)),
        r"build_tree: draft_tokens must have at most 2\^20 levels, got 1048577",
    ),
    ("tree_mask", "parents", SEED, r"tree_mask: parents must have shape \[B, N\], got \[3\]"),
    ("tree_mask", "parents", TREES.float(), "tree_mask: parents must be int32 or int64, got float32"),
    (
        "tree_mask",
        "parents",
        SEED[:1].expand(2, 1 + (1 << 20)),
        r"tree_mask: parents must have at most 2\^20 nodes, got 1048577",
    ),
    ("tree_mask", "prefix_len", SEED, r"tree_mask: prefix_len must have shape \[2\] or \[1\], got \[3\]"),
    ("tree_mask", "prefix_len", torch.zeros(2), "tree_mask: prefix_len must be int32 or int64, got float32"),
    ("tree_mask", "tree_start", SEED, r"tree_mask: tree_start must have shape \[2\] or \[1\], got \[3\]"),
    ("tree_mask", "num_keys", -2, r"tree_mask: num_keys must be in \[0, 2\^30\], or -1 for the nodes alone, got -2"),
    ("tree_mask", "format", 8, r"tree_mask: format must be in \[0, 8\), got 8"),
    ("sample", "stats", torch.zeros(2, 4), r"sample: rows.stats must have shape \[N=3, 4\], got \[2, 4\]"),
    ("sample", "k", -1, r"sample: k must be in \[0, 2\^33\], got -1"),
    ("sample", "seed", None, "sample: seed and offset go together, got offset alone"),
    ("top_logprobs", "logits", ROWS[0], r"top_logprobs: rows.logits must have shape \[N, V\], got \[11\]"),
    ("top_logprobs", "stats", torch.zeros(2, 4), r"top_logprobs: rows.stats must have shape \[N=3, 4\], got \[2, 4\]"),
    ("top_logprobs", "k", 12, r"top_logprobs: k must be in \[0, V=11\], got 12"),
    ("top_logprobs", "tokens", SEED, r"top_logprobs: tokens must have shape \[N, m\], got \[3\]"),
    ("top_logprobs", "tokens", SEED[:2, None], r"top_logprobs: tokens must have shape \[N=3, m=1\], got \[2, 1\]"),
    ("top_logprobs", "tokens", ROWS, "top_logprobs: tokens must be int32 or int64, got float32"),
    ("row_topw", "logits", ROWS[0], r"row_topw: rows.logits must have shape \[N, V\], got \[11\]"),
    ("row_topw", "score", torch.zeros(2), r"row_topw: score must have shape \[N=3\], got \[2\]"),
    ("row_topw", "score", torch.zeros(3, dtype=F64), "row_topw: score must be float32, got float64"),
    ("row_topw", "score", torch.zeros(6)[::2], r"row_topw: score must be contiguous, got strides \[2\]"),
    ("row_topw", "w", 12, r"row_topw: w must be in \[0, V=11\], got 12"),
    ("row_topw", "stats", torch.zeros(2, 4), r"row_topw: rows.stats must have shape \[N=3, 4\], got \[2, 4\]"),
    ("support", "logits", ROWS.double(), "support: rows.logits must be float32, bfloat16 or float16, got float64"),
    ("support", "stats", torch.zeros(3, 4, dtype=F64), "support: rows.stats must be float32, got float64"),
    ("support", "max_kept", -1, r"support: max_kept must be in \[0, 2\^24\], got -1"),
    ("support", "row", ROWS, r"support: rows.row must have shape \[M\], got \[3, 11\]"),
    ("support", "row", ROWS[0], "support: rows.row must be int32 or int64, got float32"),
    ("verify_chain", "method", 3, r"verify_chain: method must be 0 \(token\), 1 \(block\) or 2 \(race\), got 3"),
    ("verify_chain", "rule", SEED, r"verify_chain: rule must have shape \[4\] or \[1\], got \[3\]"),
    ("verify_chain", "alpha", torch.zeros(4), "verify_chain: alpha needs a rule, got none"),
    (
        "verify_chain",
        "target_logits",
        torch.zeros(4, 11),
        r"verify_chain: target.logits must have shape \[B, G\+1, V\], got \[4, 11\]",
    ),
    (
        "verify_chain",
        "target_logits",
        torch.zeros(4, 5, 11),
        r"verify_chain: target must have G\+1=6 rows for G=5 drafts \(one after the last draft\), got 5",
    ),
    (
        "verify_chain",
        "draft_tokens",
        torch.zeros(4, 5),
        "verify_chain: draft_tokens must be int32 or int64, got float32",
    ),
    (
        "verify_chain",
        "draft_tokens",
        torch.zeros(4, 7, dtype=I64),
        r"verify_chain: draft_tokens must have shape \[B=4, G=5\], got \[4, 7\]",
    ),
    (
        "verify_chain",
        "draft_logits",
        torch.zeros(4, 4, 11),
        r"verify_chain: draft.logits must have shape \[B=4, G=5, Vq=11\], got \[4, 4, 11\]",
    ),
    (
        "verify_chain",
        "draft_stats",
        torch.zeros(4, 6, 4),
        r"verify_chain: draft.stats must have shape \[B=4, G=5, 4\], got \[4, 6, 4\]",
    ),
    ("verify_chain", "target_kind", 2, r"verify_chain: target.kind must be 0 \(logits\) or 1 \(probabilities\), got 2"),
    (
        "verify_chain",
        "uniforms",
        torch.zeros(4, 5, dtype=F64),
        r"verify_chain: uniforms must have shape \[4, 6\], got \[4, 5\]",
    ),
    ("verify_chain", "target_row", SEED, r"verify_chain: target.row must have shape \[B=4, G\+1=6\], got \[3\]"),
    ("verify_chain", "target_row", torch.zeros(4, 6), "verify_chain: target.row must be int32 or int64, got float32"),
    ("verify_chain", "draft_row", SEED, r"verify_chain: draft.row must have shape \[B, G\], got \[3\]"),
    ("verify_chain", "draft_row", TREES[:1], r"verify_chain: draft.row must have shape \[B=4, G=5\], got \[1, 4\]"),
    ("verify_chain", "uniforms", None, "verify_chain: needs seed and offset, or uniforms, got neither"),
    ("verify_tree", "parents", SEED, r"verify_tree: parents must have shape \[B, N\], got \[3\]"),
    (
        "verify_tree",
        "parents",
        torch.zeros(2, 0, dtype=I64),
        r"verify_tree: parents must have at least the root, got shape \[2, 0\]",
    ),
    ("verify_tree", "node_tokens", TREES.float(), "verify_tree: tokens must be int32 or int64, got float32"),
    ("verify_tree", "node_tokens", TREES[:, :3], r"verify_tree: tokens must have shape \[B=2, N=4\], got \[2, 3\]"),
    (
        "verify_tree",
        "draft_nodes",
        torch.zeros(2, 3, dtype=I64),
        r"verify_tree: draft_nodes must have shape \[B, K, L\], got \[2, 3\]",
    ),
    (
        "verify_tree",
        "target_logits",
        torch.zeros(2, 3, 11),
        r"verify_tree: target.logits must have shape \[B=2, N=4, V=11\], got \[2, 3, 11\]",
    ),
    (
        "verify_tree",
        "target_logits",
        torch.zeros(1, 4, 11),
        r"verify_tree: target.logits must have shape \[B=2, N=4, V=11\], got \[1, 4, 11\]",
    ),
    (
        "verify_tree",
        "draft_logits",
        torch.zeros(2, 5, 11),
        r"verify_tree: draft.logits must have shape \[B=2, N=4, Vq=11\], got \[2, 5, 11\]",
    ),
    ("verify_tree", "draft_logits", None, "verify_tree: method 'kseq' needs draft, got None"),
    ("verify_tree", "method", 7, "verify_tree: method must be 0 to 6, got 7"),
    ("verify_tree", "method", 5, "verify_tree: draft_nodes are for methods that test drafts, got method 5"),
    ("verify_tree", "max_depth", -1, r"verify_tree: max_depth must be in \[0, 2\^31 - 1\), got -1"),
    ("verify_tree", "target_row", SEED, r"verify_tree: target.row must have shape \[B=2, N=4\], got \[3\]"),
    (
        "verify_tree",
        "first_child",
        TREES,
        r"verify_tree: links give no order where method '\w+' tests the drafts of draft_nodes, got both",
    ),
    (
        "verify_tree",
        "next_sibling",
        TREES,
        r"verify_tree: links must be \(first_child, next_sibling\), got one of them",
    ),
    (
        "verify_tree",
        "target_stats",
        torch.zeros(2, 3, 4),
        r"verify_tree: target.stats must have shape \[B=2, N=4, 4\], got \[2, 3, 4\]",
    ),
    ("verify_tree", "rule", SEED, r"verify_tree: rule must have shape \[2\] or \[1\], got \[3\]"),
    ("verify_tree", "alpha", torch.zeros(2), "verify_tree: alpha needs a rule, got none"),
    ("verify_tree", "draft_kind", 2, r"verify_tree: draft.kind must be 0 \(logits\) or 1 \(probabilities\), got 2"),
    (
        "verify_tree",
        "uniforms",
        torch.zeros(2, 5, dtype=F64),
        r"verify_tree: uniforms must have shape \[2, 4\], got \[2, 5\]",
    ),
    ("verify_tree", "uniforms", None, "verify_tree: needs seed and offset, or uniforms, got neither"),
]
for op in ("row_stats", "sample", "residual", "top_logprobs", "row_topw", "support", "verify_chain", "verify_tree"):
    number = "num_requests" if op.startswith("verify") else "num_rows"
    WRONG += [
        (op, number, torch.zeros(1), f"{op}: {number} must be int32 or int64, got float32"),
        (op, number, SEED, rf"{op}: {number} must have shape \[1\], got \[3\]"),
    ]


def direct_call(name, index, other):
    """Make the wrapper's own call of torch.ops.specdec.<name>, with one argument replaced."""
    arguments = worker.here(example_calls.calls(name, V=11)[0].arguments)
    _, (op, args, _) = surface.recorded_call(name, getattr(sk, name), **arguments)
    args, names = list(args), [argument.name for argument in op._schema.arguments]
    index = names.index(index) if isinstance(index, str) else index
    for i, argument in enumerate(names):
        # a sampling parameter is passed either as a tensor or as a number
        if argument.endswith("numbers") and argument != "rule_numbers":
            args[i] = ()
    args[index] = other(args[index]) if callable(other) else other
    return op(*args)


@pytest.mark.one_backend
@pytest.mark.parametrize("name, index, other, message", WRONG, ids=[f"{i}-{w[0]}-{w[1]}" for i, w in enumerate(WRONG)])
@pytest.mark.slow_in_triton
def test_the_op_checks_again(op_backend, name, index, other, message):
    with pytest.raises(RuntimeError) as caught:
        backends.there(op_backend, direct_call, name, index, other)
    assert re.match(message, str(caught.value)), caught.value


REQUIRED = [
    (op, i, argument.name)
    for op in OPS
    for i, argument in enumerate(getattr(torch.ops.specdec, op).default._schema.arguments)
    if str(argument.type) == "Tensor"
]


@pytest.mark.one_backend
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
@pytest.mark.parametrize(
    "name, index, argument", REQUIRED, ids=[f"{name}-{argument}" for name, _, argument in REQUIRED]
)
@pytest.mark.slow_in_triton
def test_what_no_kernel_takes(op_backend, name, index, argument):
    with pytest.raises(RuntimeError, match=f"^{name}: {argument} must be a tensor, got None"):
        backends.there(op_backend, direct_call, name, index, None)
    for other, what in ((torch.Tensor.to_sparse, "sparse_coo"), (nested, "a nested tensor")):
        with pytest.raises(
            NotImplementedError, match=f"^{name}: {called(name)[argument]} must be a dense tensor, got {what}"
        ):
            backends.there(op_backend, direct_call, name, index, other)


def nested(t):
    return torch.nested.nested_tensor([t, t])
