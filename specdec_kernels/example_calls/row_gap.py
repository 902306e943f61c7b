# SPDX-License-Identifier: Apache-2.0
from specdec_kernels.ops.row_stats import row_stats


def calls(x):
    p, q = x.close_rows(3)
    yield "logits", {"p": p, "q": q}
    stats = {"p_stats": row_stats(p, temperature=0.7), "q_stats": row_stats(q, top_k=5)}
    yield "stats", {"p": p, "q": q, "kind": "logits", **stats}
    yield "probabilities", {"p": x.probs(3), "q": x.probs(3), "kind": "probs"}
    yield "a wider draft", {"p": p, "q": x.rows(3, more=3)}
