# SPDX-License-Identifier: Apache-2.0
import torch

from specdec_kernels.ops.row_stats import row_stats


def calls(x):
    rows = x.rows(3)
    top_k = row_stats(rows, top_k=5)
    yield "of every row", {"logits": rows, "stats": top_k, "max_kept": 8}
    yield "more than there is room for", {"logits": rows, "stats": row_stats(rows, **x.filters(3)), "max_kept": 3}
    yield "of some", {"logits": rows, "stats": top_k, "max_kept": 8, "rows": x.tensor(2, 0, 2, 7)}
    asked = x.tensor(1, 0, 2, dtype=torch.int32)
    padded = {"rows": x.stale(asked, 2), "num_rows": x.integers(0, 3, 1)}
    yield "padded buffers", {"logits": rows, "stats": top_k, "max_kept": 8, **padded}
