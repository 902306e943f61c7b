# SPDX-License-Identifier: Apache-2.0
from specdec_kernels.ops.row_stats import row_stats
from specdec_kernels.rows import Rows


def calls(x):
    rows = x.rows(3)
    few, raw = min(5, x.V), row_stats(rows)
    tokens = x.integers(0, x.V, 3, 2)
    yield "of a step", {"rows": Rows(rows, stats=raw), "k": few, "tokens": tokens[:, :1]}
    yield "the best alone", {"rows": Rows(rows, top_k=3), "k": few}
    yield "ranks alone", {"rows": rows, "k": 0, "tokens": tokens.int()}
    yield "every id", {"rows": Rows(rows, **x.filters(3)), "k": x.V}
    for name, given in x.row_views(3):
        yield name, {"rows": Rows(rows, **given), "k": few, "tokens": tokens}
    stale = {"rows": Rows(x.stale(rows, 2), stats=x.stale(raw, 2)), "tokens": x.stale(tokens, 2)}
    yield "padded buffers", {**stale, "k": few, "num_rows": x.integers(0, 3, 1)}
