# SPDX-License-Identifier: Apache-2.0
"""Engines call torch.ops.specdec.* without the wrapper: the op checks again, with one message whatever runs it."""

import re

import backends
import pytest
import surface
import torch

import specdec_kernels as sk

F64, I64 = torch.float64, torch.int64
SEED = torch.arange(3)
ROWS = torch.arange(33.0).reshape(3, 11).cos()
CALLS = {  # op, its arguments as the wrapper hands them over
    "uniforms": ((SEED, SEED), {"n": 2, "domain": 0}),
    "accept": ((ROWS[0], ROWS[1], ROWS[2].double()), {}),
    "residual": ((ROWS, ROWS), {}),
    "row_stats": ((ROWS,), {"temperature": 1.0}),
    "sample": ((ROWS,), {"k": 2, "seed": SEED, "offset": SEED}),
    "verify_chain": ((torch.zeros(4, 6, 11), torch.zeros(4, 5, dtype=I64), torch.zeros(4, 5, 11)), {"uniforms": torch.zeros(4, 6, dtype=F64)}),
}
WRONG = [  # op, index of the argument, what comes, message
    ("uniforms", 0, SEED.float(), "uniforms: seed must be int32 or int64, got Float"),
    ("uniforms", 1, SEED[None], r"uniforms: offset must have shape \[3\], got \[1, 3\]"),
    ("uniforms", 2, -1, "uniforms: n must be >= 0, got -1"),
    ("accept", 1, ROWS[:2, :11], r"accept: q must have shape \[11\], got \[2, 11\]"),
    ("accept", 2, ROWS[2], "accept: u must be Double, got Float"),
    ("residual", 0, ROWS[0], r"residual: p must have 2 dimensions, got shape \[11\]"),
    ("residual", 0, ROWS.double(), "residual: p must be float32, bfloat16 or float16, got Double"),
    ("residual", 1, ROWS[:2], r"residual: q must have shape \[3, 11\], got \[2, 11\]"),
    ("residual", 1, SEED[:2], r"residual: q must have shape \[3\], got \[2\]"),
    ("row_stats", 0, ROWS[0], r"row_stats: logits must have 2 dimensions, got shape \[11\]"),
    ("row_stats", 0, ROWS.T.contiguous().T, r"row_stats: logits must be contiguous in its last dimension, got strides \[1, 3\]"),
    ("row_stats", 0, torch.zeros(3, 0), "row_stats: logits must have a vocabulary of 1 to 2\\^24, got 0"),
    ("row_stats", 1, torch.ones(2), r"row_stats: temperature must have shape \[3\], got \[2\]"),
    ("row_stats", 1, torch.ones(3, dtype=F64), "row_stats: temperature must be Float, got Double"),
    ("sample", 1, torch.zeros(2, 4), r"sample: stats must have shape \[3, 4\], got \[2, 4\]"),
    ("sample", 2, -1, "sample: k must be >= 0, got -1"),
    ("sample", 8, None, "sample: seed and offset go together, got offset alone"),
    ("verify_chain", 0, torch.zeros(4, 11), r"verify_chain: target_logits must have 3 dimensions, got shape \[4, 11\]"),
    ("verify_chain", 0, torch.zeros(4, 5, 11), r"verify_chain: target_logits must have shape \[4, 6, 11\], got \[4, 5, 11\]"),
    ("verify_chain", 1, torch.zeros(4, 5), "verify_chain: draft_tokens must be int32 or int64, got Float"),
    ("verify_chain", 1, torch.zeros(4, 6, dtype=I64), r"verify_chain: target_logits must have shape \[4, 7, 11\], got \[4, 6, 11\]"),
    ("verify_chain", 2, torch.zeros(4, 4, 11), r"verify_chain: draft_logits must have shape \[4, 5, 11\], got \[4, 4, 11\]"),
    ("verify_chain", 11, torch.zeros(4, 6, 4), r"verify_chain: draft_stats must have shape \[4, 5, 4\], got \[4, 6, 4\]"),
    ("verify_chain", 16, 2, r"verify_chain: target_kind must be 0 \(logits\) or 1 \(probabilities\), got 2"),
    ("verify_chain", -1, torch.zeros(4, 5, dtype=F64), r"verify_chain: uniforms must have shape \[4, 6\], got \[4, 5\]"),
    ("verify_chain", -1, None, "verify_chain: needs seed and offset, or uniforms, got neither"),
]


def direct_call(name, args, kwargs, index, other):
    """The wrapper's own call of torch.ops.specdec.<name>, with one argument replaced."""
    _, (op, args, _) = surface.recorded_call(name, getattr(sk, name), *args, **kwargs)
    args = list(args)
    args[index] = other
    return op(*args)


@pytest.mark.parametrize("name, index, other, message", WRONG, ids=[f"{i}-{w[0]}-{w[1]}" for i, w in enumerate(WRONG)])
def test_the_op_checks_again(op_backend, name, index, other, message):
    with pytest.raises(RuntimeError) as caught:
        backends.there(op_backend, direct_call, name, *CALLS[name], index, other)
    assert re.match(message, str(caught.value)), caught.value
