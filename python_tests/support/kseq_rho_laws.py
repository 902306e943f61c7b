# SPDX-License-Identifier: Apache-2.0
"""The quality of a rho from kseq_rho: f, beta and the acceptance in float64, and a check of an op's results."""

import torch


def laws_of_logits(z, stats):
    """Return the float64 distributions of rows of logits with float32 stats, each divided by its sum as in the op."""
    scale, cutoff, log_norm, top = stats.double().unsqueeze(1).unbind(-1)
    z = z.double()
    p = torch.where(z >= cutoff, ((z - top) * scale - log_norm).exp(), 0.0)
    return p / p.sum(-1, keepdim=True)


def laws_of_probs(p):
    p = p.double().clamp(0, 1)
    return p / p.sum(-1, keepdim=True)


def widened(p, q):
    wide = max(p.shape[1], q.shape[1])
    return [torch.nn.functional.pad(x, (0, wide - x.shape[1])) for x in (p, q)]


def f(p, q, k, rho):
    """Return f(rho) (see csrc/ops/kseq_rho/kseq_rho.h), beta and p_acc of pairs of float64 distributions.

    They are computed in a form without cancellation.
    """
    beta = torch.minimum(q, p / rho[:, None]).sum(-1)
    rejected = torch.where(beta < 0.5, 1 - beta, (q - p / rho[:, None]).clamp(min=0).sum(-1))
    p_acc = torch.where(beta < 0.5, -torch.expm1(k * torch.log1p(-beta.clamp(max=0.5))), 1 - rejected**k)
    left = (p - rho[:, None] * q).clamp(min=0).sum(-1)
    return torch.where(rho * beta < 0.5, p_acc - rho * beta, left - rejected**k), beta, p_acc


def best(p, q, k, steps=35):
    """Return rho* of many pairs by bisection in float64."""
    low, high = torch.ones_like(k), k.clone()
    at_one = f(p, q, k, low)[0] <= 0
    for _ in range(steps):
        middle = (low + high) / 2
        valid = f(p, q, k, middle)[0] <= 0
        low, high = torch.where(valid, low, middle), torch.where(valid, middle, high)
    return torch.where(at_one, 1.0, high)


LEFT = 2.0**-20  # the largest |f| at the op's rho, and so the largest loss of acceptance (kseq_rho.h); below 1e-6
EXACT = 1e-14  # float64 is used here; LEFT allows for the sums of float32 weights, on every backend


def judge(p, q, k, out, weights_off=EXACT):
    """Check an op's results. p, q: float64 distributions; errors of the op's float32 weights may move f by
    weights_off."""
    excess, beta, p_acc = f(p, q, k, out.rho)
    assert ((out.rho >= 1) & (out.rho <= k)).all(), "a rho outside [1, k]"
    assert excess.max() <= weights_off, f"an invalid rho: f = {excess.max():.1e}"
    assert excess.min() >= -LEFT - weights_off, f"f = {excess.min():.1e}"
    lost = f(p, q, k, best(p, q, k))[2] - p_acc
    assert lost.max() <= LEFT + weights_off, f"acceptance lost: {lost.max():.1e}"
    for name, got, want in ("beta", out.beta, beta), ("p_acc", out.p_acc, p_acc):
        assert (got - want).abs().max() <= LEFT + weights_off, f"{name} is off by {(got - want).abs().max():.1e}"
    apart = beta == 0  # disjoint rows: any rho would do, the op returns k
    assert torch.equal(out.rho[apart], k[apart])
