# SPDX-License-Identifier: Apache-2.0
from specdec_kernels.ops.row_stats import row_stats


def calls(x):
    p, q = x.close_rows(3)
    yield "k of each row", {"p": p, "q": q, "k": x.tensor(1, 2, 64)}
    yield "one k", {"p": p, "q": q, "k": 3}
    stats = {"p_stats": row_stats(p, temperature=0.7), "q_stats": row_stats(q, top_k=5)}
    yield "stats", {"p": p, "q": q, "k": 3, "kind": "logits", **stats}
    yield "probabilities", {"p": x.probs(3), "q": x.probs(3, more=3), "k": 4, "kind": "probs"}
