# SPDX-License-Identifier: Apache-2.0
from specdec_kernels.example_calls.inputs import FILTERS
from specdec_kernels.ops.row_stats import row_stats
from specdec_kernels.rows import Rows


def calls(x):
    rows = x.rows(3)
    yield "two tokens", {"rows": rows, "k": 2, **x.random(3)}
    yield "one token", {"rows": rows, "slot": 5, **x.random(3)}
    yield "stats", {"rows": Rows(rows, stats=row_stats(Rows(rows, top_p=0.9))), "uniforms": x.uniforms(3, 1)}
    yield "filters", {"rows": Rows(rows, **FILTERS), **x.random(3)}
    without = {"k": 3, "replacement": False}
    yield "without replacement", {"rows": rows, "slot": x.tensor(0, 4, 9), **without, **x.random(3)}
    yield "of a few", {"rows": Rows(rows, **x.filters(3)), **without, **x.random(3)}
    yield "greedy", {"rows": Rows(rows, temperature=0.0)}
    for name, given in x.row_views(3):
        yield name, {"rows": Rows(rows, **given), **x.random(3)}
    for name, given in x.listed(3):
        yield f"{name} rows", {"rows": Rows(**given, temperature=0.7), "k": 2, "replacement": False, **x.random(3)}
    race = {"race": True, "k": 3}
    yield "a race", {"rows": Rows(rows, **FILTERS), **race, **x.random(3)}
    yield "a race by noise keys", {"rows": Rows(rows, stats=row_stats(rows)), **race, **x.keys(3)}
    for name, given in x.row_views(3):
        yield f"{name}, a race", {"rows": Rows(rows, **given), **race, **x.random(3)}
    for name, given in x.listed(3):
        yield f"{name} rows, a race", {"rows": Rows(**given, temperature=0.7), **race, **x.random(3)}
    stale = {name: x.stale(values, 2) for name, values in x.filters(3).items()}
    random = {name: x.stale(values, 2) for name, values in x.random(3).items()}
    yield "padded buffers", {"rows": Rows(x.stale(rows, 2), **stale), "k": 2, **random, "num_rows": x.integers(0, 3, 1)}
