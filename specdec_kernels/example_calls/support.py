# SPDX-License-Identifier: Apache-2.0
import torch

from specdec_kernels.ops.row_stats import row_stats
from specdec_kernels.rows import Rows


def calls(x):
    rows = x.rows(3)
    top_k = Rows(rows, stats=row_stats(Rows(rows, top_k=5)))
    yield "of every row", {"rows": top_k, "max_kept": 8}
    yield "more than there is room for", {"rows": Rows(rows, **x.filters(3)), "max_kept": 3}
    yield "of some", {"rows": top_k._replace(row=x.tensor(2, 0, 2, 7)), "max_kept": 8}
    for name, given in x.row_views(3):
        yield name, {"rows": Rows(rows, top_p=0.8, **given), "max_kept": 8}
    asked = x.stale(x.tensor(1, 0, 2, dtype=torch.int32), 2)
    yield "padded buffers", {"rows": top_k._replace(row=asked), "max_kept": 8, "num_rows": x.integers(0, 3, 1)}
