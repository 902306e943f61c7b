# SPDX-License-Identifier: Apache-2.0


def calls(x):
    yield "rows", {"p": x.probs(3), "q": x.probs(3)}
    yield "ids of one-hot drafts", {"p": x.probs(3), "q": x.integers(-1, x.V, 3)}
    yield "a wider draft", {"p": x.probs(3), "q": x.probs(3, more=3)}
    yield "padded buffers", {"p": x.stale(x.probs(3), 2), "q": x.stale(x.probs(3), 2), "num_rows": x.integers(0, 3, 1)}
