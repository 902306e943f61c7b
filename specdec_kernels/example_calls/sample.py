# SPDX-License-Identifier: Apache-2.0
from specdec_kernels.ops.row_stats import row_stats


def calls(x):
    rows = x.rows(3)
    yield "two tokens", {"logits": rows, "k": 2, **x.random(3)}
    yield "one token", {"logits": rows, "slot": 5, **x.random(3)}
    yield "stats", {"logits": rows, "stats": row_stats(rows, top_p=0.9), "uniforms": x.uniforms(3, 1)}
    yield "filters", {"logits": rows, "temperature": 0.7, "top_k": 50, "top_p": 0.9, "min_p": 0.01, **x.random(3)}
    yield (
        "without replacement",
        {"logits": rows, "k": 3, "replacement": False, "slot": x.tensor(0, 4, 9), **x.random(3)},
    )
    yield "of a few", {"logits": rows, "k": 3, "replacement": False, **x.filters(3), **x.random(3)}
    yield "greedy", {"logits": rows, "temperature": 0.0}
    stale = {name: x.stale(values, 2) for name, values in (x.random(3) | x.filters(3)).items()}
    yield "padded buffers", {"logits": x.stale(rows, 2), "k": 2, **stale, "num_rows": x.integers(0, 3, 1)}
