# SPDX-License-Identifier: Apache-2.0
from specdec_kernels.ops.row_stats import row_stats


def calls(x):
    rows = x.rows(3)
    few, score = min(4, x.V), x.tensor(-1.5, -3000.0, 0.0)
    yield "a step of beam search", {"logits": rows, "score": score, "w": few}
    yield "of other laws", {"logits": rows, "score": score, "w": x.V, "stats": row_stats(rows, **x.filters(3))}
    stale = {"logits": x.stale(rows, 2), "score": x.stale(score, 2)}
    yield "padded buffers", {**stale, "w": few, "num_rows": x.integers(0, 3, 1)}
