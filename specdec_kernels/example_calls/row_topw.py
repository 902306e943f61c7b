# SPDX-License-Identifier: Apache-2.0
from specdec_kernels.ops.row_stats import row_stats
from specdec_kernels.rows import Rows


def calls(x):
    rows = x.rows(3)
    few, score = min(4, x.V), x.tensor(-1.5, -3000.0, 0.0)
    yield "a step of beam search", {"rows": rows, "score": score, "w": few}
    sampled = Rows(rows, **x.filters(3))
    yield "with temperature and filters", {"rows": sampled, "score": score, "w": few}
    yield "given stats, every id", {"rows": Rows(rows, stats=row_stats(sampled)), "score": score, "w": x.V}
    for name, given in x.row_views(3):
        yield name, {"rows": Rows(rows, **given), "score": score, "w": few}
    stale = {"rows": x.stale(rows, 2), "score": x.stale(score, 2)}
    yield "padded buffers", {**stale, "w": few, "num_rows": x.integers(0, 3, 1)}
