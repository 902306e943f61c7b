# SPDX-License-Identifier: Apache-2.0
from specdec_kernels.example_calls.inputs import FILTERS
from specdec_kernels.rows import Rows


def calls(x):
    rows = x.rows(3)
    yield "the rows as they are", {"rows": rows}
    yield "plain", {"rows": Rows(rows, temperature=1.0)}
    yield "temperature", {"rows": Rows(rows, temperature=0.7)}
    yield "greedy", {"rows": Rows(rows, temperature=0.0)}
    yield "top-k", {"rows": Rows(rows, top_k=5)}
    yield "top-p", {"rows": Rows(rows, top_p=0.8)}
    yield "min-p", {"rows": Rows(rows, min_p=0.1)}
    yield "top-n-sigma", {"rows": Rows(rows, top_n_sigma=1.0)}
    yield "all filters", {"rows": Rows(rows, **FILTERS)}
    yield "per row", {"rows": Rows(rows, **x.filters(3))}
    for name, given in x.row_views(3):
        yield name, {"rows": Rows(rows, temperature=0.7, top_p=0.9, **given)}
    for name, given in x.listed(3):
        yield f"{name} rows", {"rows": Rows(**given, **x.filters(3))}
    stale = {name: x.stale(values, 2) for name, values in x.filters(3).items()}
    yield "padded buffers", {"rows": Rows(x.stale(x.rows(3), 2), **stale), "num_rows": x.integers(0, 3, 1)}
