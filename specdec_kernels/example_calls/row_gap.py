# SPDX-License-Identifier: Apache-2.0
from specdec_kernels.ops.row_stats import row_stats
from specdec_kernels.rows import Rows


def calls(x):
    p, q = x.close_rows(3)
    yield "logits", {"p": p, "q": q}
    stats = row_stats(Rows(p, temperature=0.7)), row_stats(Rows(q, top_k=5))
    yield "stats", {"p": Rows(p, stats=stats[0]), "q": Rows(q, stats=stats[1])}
    yield "filters", {"p": Rows(p, **x.filters(3)), "q": Rows(q, **x.filters(3))}
    yield "probabilities", {"p": Rows(x.probs(3), kind="probs"), "q": Rows(x.probs(3), kind="probs")}
    yield "a wider draft", {"p": p, "q": x.rows(3, more=3)}
    for name, given in x.listed(3):
        yield f"a {name} draft", {"p": p, "q": Rows(**given, temperature=0.7)}
