# SPDX-License-Identifier: Apache-2.0


def calls(x):
    rows = x.rows(3)
    yield "plain", {"logits": rows, "temperature": 1.0}
    yield "temperature", {"logits": rows, "temperature": 0.7}
    yield "greedy", {"logits": rows, "temperature": 0.0}
    yield "top-k", {"logits": rows, "top_k": 5}
    yield "top-p", {"logits": rows, "top_p": 0.8}
    yield "min-p", {"logits": rows, "min_p": 0.1}
    yield "all filters", {"logits": rows, "temperature": 0.7, "top_k": 50, "top_p": 0.9, "min_p": 0.01}
    yield "per row", {"logits": rows, **x.filters(3)}
    stale = {name: x.stale(values, 2) for name, values in x.filters(3).items()}
    yield "padded buffers", {"logits": x.stale(x.rows(3), 2), **stale, "num_rows": x.integers(0, 3, 1)}
