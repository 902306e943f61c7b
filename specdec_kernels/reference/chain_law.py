# SPDX-License-Identifier: Apache-2.0
"""The exact law of what one verified step emits, by enumeration: small vocabularies only."""

from collections import defaultdict

import numpy as np


def chain_law(p, q, gamma):
    """The law of what one step emits, {tokens: probability}; len(tokens) - 1 drafts were accepted.

    p(prefix) -> [V] float64. q(prefix) -> [Vq] float64, or one id (a one-hot draft). Every draft tuple is enumerated,
    the uniforms are integrated by hand: a draft x ~ q is accepted with min(1, p/q), so x is emitted as a draft with
    min(p, q), and with what is left of q the residual norm((p - q)+) speaks.
    """
    law = defaultdict(float)

    def visit(prefix, mass):
        row = p(prefix)
        if len(prefix) == gamma:
            rejected, rest = 1.0, row
        else:
            draft = q(prefix)
            if np.ndim(draft) == 0:
                draft = np.eye(1, len(row), draft)[0]
            size = min(len(row), len(draft))
            padded = np.zeros(len(row))
            padded[:size] = draft[:size]
            kept = np.minimum(row, padded)
            for x in np.flatnonzero(kept):
                visit(prefix + (int(x),), mass * kept[x])
            rejected, rest = draft.sum() - kept.sum(), np.maximum(row - padded, 0.0)
        if rejected > 1e-15:
            for y in np.flatnonzero(rest):
                law[prefix + (int(y),)] += mass * rejected * rest[y] / rest.sum()

    visit((), 1.0)
    return dict(law)
