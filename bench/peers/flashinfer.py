# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's fused kernels (``pip install flashinfer-python``), compiled on first use.

Its chain step takes probabilities, so the target's softmax is part of the timed step. The draft's softmax is too,
unless the drafter kept the probabilities that it drew from. In cases where our op gets the draft's stats, FlashInfer
gets these probabilities.
"""

from __future__ import annotations

import functools

import torch

from bench.harness import Unavailable

RANDOM = {"seed": 1234, "offset": 0}  # fixed, so the host reads no generator state and graphs can be captured


@functools.cache
def sampling():
    if not torch.cuda.is_available():
        raise Unavailable("needs a GPU")
    try:
        import flashinfer.sampling
    except Exception as error:  # its import looks for compilers and devices
        raise Unavailable(f"not installed ({type(error).__name__}: {error})".splitlines()[0]) from error
    return flashinfer.sampling


def probabilities(z: torch.Tensor, temperature=None, top_k: int = 0, top_p: float = 1.0) -> torch.Tensor:
    p = sampling().softmax(z, temperature)
    if top_k:
        p = sampling().top_k_renorm_probs(p, top_k)
    if top_p < 1:
        p = sampling().top_p_renorm_probs(p, top_p)
    return p


def chain(temperature: bool, top_k: int, top_p: float, draft_probs: bool):
    """Return the step on x.target, x.draft (or x.draft_probs) and x.tokens32.

    x.row_temperature and x.draft_row_temperature are per row.
    """
    sampling()

    def call(x):
        B, rows, V = x.target.shape
        p = probabilities(x.target.view(-1, V), x.row_temperature if temperature else None, top_k, top_p)
        if draft_probs:
            q = x.draft_probs
        else:
            q = probabilities(x.draft.view(-1, V), x.draft_row_temperature if temperature else None).view(x.draft.shape)
        return sampling().chain_speculative_sampling(q, x.tokens32, p.view(B, rows, V), **RANDOM)[0]

    return call


def sample():
    sampling()
    return lambda x: sampling().sampling_from_logits(x.logits, **RANDOM)


def law(top_k: int, top_p: float):
    """Return a call that computes filtered probabilities of x.logits."""
    sampling()
    return lambda x: probabilities(x.logits, None, top_k, top_p)
