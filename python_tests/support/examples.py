# SPDX-License-Identifier: Apache-2.0
"""Example calls of every public function: keyword arguments that it takes, small, each way of calling it once.

Tests that walk over ops, or over arguments, take these: an op without one fails test_arguments.py.
"""

import torch

F64, I64, I32 = torch.float64, torch.int64, torch.int32
SEED = torch.arange(3)
ROWS = torch.arange(33.0).reshape(3, 11).cos()
LAWS = ROWS.softmax(-1)
STATS = torch.tensor([[1.0, -2.0, 2.0, 1.0]] * 3)  # all of a row kept
TREES = torch.tensor([[-1, 0, 0, 1], [-1, 0, 1, -1]])
RANDOM = {"seed": SEED, "offset": SEED}
SAMPLING = {"temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.05}
B, G, V, R = 4, 5, 11, 9  # R rows of a ragged batch

_pair = [{}, {"p_stats": STATS, "q_stats": STATS, "kind": "logits"}]
_chain = {
    "target_logits": torch.zeros(B, G + 1, V),
    "draft_tokens": torch.zeros(B, G, dtype=I64),
    "draft_logits": torch.zeros(B, G, V),
}
_u = {"uniforms": torch.zeros(B, G + 1, dtype=F64)}
_ragged = {
    "target_logits": torch.zeros(R, V),
    "draft_tokens": torch.zeros(R - B, dtype=I64),
    "draft_logits": torch.zeros(R - B, V),
    "cu_draft": torch.tensor([0, 2, 2, 3, 5]),
    "max_draft": 2,
    "seed": torch.arange(B),
    "offset": torch.arange(B),
}
_draft_nodes = torch.ones(2, 3, 1, dtype=I32)
_tree = {
    "tree": (TREES, TREES, None, _draft_nodes),
    "target_logits": torch.zeros(2, 4, V),
    "draft_logits": torch.zeros(2, 4, V),
}
_rows = torch.arange(4).expand(2, 4)

CALLS = {
    "uniforms": [{**RANDOM, "n": 2, "domain": 0}],
    "accept": [{"p": ROWS[0], "q": ROWS[1], "u": ROWS[2].double()}, {"p": ROWS[0], "q": torch.arange(11), "u": ROWS[2].double()}],
    "residual": [{"p": LAWS, "q": LAWS}, {"p": LAWS, "q": SEED}],
    "row_gap": [{"p": ROWS, "q": ROWS, **more} for more in _pair] + [{"p": LAWS, "q": LAWS, "kind": "probs"}],
    "row_stats": [{"logits": ROWS, "temperature": 1.0}, {"logits": ROWS, **SAMPLING}],
    "kseq_rho": [{"p": ROWS, "q": ROWS, "k": torch.tensor([1, 2, 64])}] + [{"p": ROWS, "q": ROWS, "k": 3, **more} for more in _pair],
    "build_tree": [{"draft_tokens": torch.zeros(2, 3, 4, dtype=I64)}],
    "tree_mask": [{"parents": TREES, "prefix_len": torch.tensor([3, 4]), "num_keys": 9, "tree_start": SEED[:2]},
                  {"parents": TREES[0], "prefix_len": 3, "format": "additive", "dtype": torch.bfloat16, "tree_start": 4}],
    "tree_mask_mod": [{"parents": TREES, "prefix_len": torch.tensor([3, 4]), "tree_start": SEED[:2]}, {"parents": TREES[0]}],
    "sample": [{"logits": ROWS, "k": 2, **RANDOM}, {"logits": ROWS, "slot": SEED, "replacement": False, **SAMPLING, **RANDOM},
               {"logits": ROWS, "stats": STATS, "uniforms": torch.zeros(3, 1, dtype=F64)}],
    "verify_chain": [
        _chain | _u,
        _chain | _u | SAMPLING | {"draft_" + name: x for name, x in SAMPLING.items()} | {"method": "block"},
        _chain | _u | {"target_stats": STATS[0].expand(B, G + 1, 4), "draft_stats": STATS[0].expand(B, G, 4)},
        _chain | _u | {"target_logits": LAWS[0].expand(B, G, V), "target_kind": "probs", "bonus_tokens": torch.zeros(B, dtype=I64)},
        _ragged | {"rule": "thresholds", "alpha": (0.5, 0.4)},
        _ragged | {"rule": torch.arange(4), "alpha": torch.full((B,), 0.4)},
    ],
    "verify_tree": [
        _tree | {"method": "kseq", "uniforms": torch.zeros(2, 4, dtype=F64)},
        _tree | {"tree": (TREES, TREES), "method": "traversal", "max_depth": 2, "target_row": _rows, "draft_row": _rows, "rule": "lossy",
                 "alpha": 0.3, "links": (TREES.flip(1), TREES.flip(1)), "seed": SEED[:2], "offset": SEED[:2], **SAMPLING},
        _tree | {"method": "recursive", "target_stats": STATS[0].expand(2, 4, 4), "draft_stats": STATS[0].expand(2, 4, 4),
                 "seed": SEED[:2], "offset": SEED[:2]},
        _tree | {"target_logits": LAWS[0].expand(2, 4, V), "method": "target_only", "target_kind": "probs", "rule": torch.tensor([0, 16]),
                 "uniforms": torch.zeros(2, 5, dtype=F64)},
    ],
}  # fmt: skip
