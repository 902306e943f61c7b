# SPDX-License-Identifier: Apache-2.0
from specdec_kernels.ops.row_stats import row_stats


def calls(x):
    rows = x.rows(3)
    few, raw = min(5, x.V), row_stats(rows)
    tokens = x.integers(0, x.V, 3, 2)
    yield "of a step", {"logits": rows, "stats": raw, "k": few, "tokens": tokens[:, :1]}
    yield "the best alone", {"logits": rows, "stats": row_stats(rows, top_k=3), "k": few}
    yield "ranks alone", {"logits": rows, "stats": raw, "k": 0, "tokens": tokens.int()}
    yield "every id", {"logits": rows, "stats": row_stats(rows, **x.filters(3)), "k": x.V}
    stale = {"logits": x.stale(rows, 2), "stats": x.stale(raw, 2), "tokens": x.stale(tokens, 2)}
    yield "padded buffers", {**stale, "k": few, "num_rows": x.integers(0, 3, 1)}
