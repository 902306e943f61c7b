# SPDX-License-Identifier: Apache-2.0
"""A request's results do not depend, bit for bit, on what batch mates compute from rows that they share in memory."""

import numpy as np
import pytest
import torch
from support import answers as reference
from support import backends, cases, rule_cases
from support.backends import scale

import specdec_kernels as sk

MATES = ["exact", "chow_log", "diff_log", "opt_log", "opt"]


def shared_rows(n, V, seed=11):
    """Return pairs of rows. The draft's are peaked, so that their entropies are small and float32 resolves them
    finely."""
    rng = torch.Generator().manual_seed(seed)
    q = 4 * torch.randn(n, V, generator=rng)
    return q.roll(1, -1) + 0.1 * torch.randn(n, V, generator=rng), q


def thresholds(q):
    """Return the float nearest to each row's entropy, and the floats just below and above. Sums in different orders
    round to different ones of these."""
    h = reference.row_gap(q, q)[:, 3].numpy().astype(np.float32)
    return torch.from_numpy(np.stack([np.nextafter(h, np.float32(0)), h, np.nextafter(h, np.float32(9))], 1))


def requests(op, p, q, rules, alpha):
    """Return one request for each rule, all on the same two rows in memory. The target is unlikely to accept the draft
    token."""
    B, V = len(rules), len(p)
    d = int(q.argmax())
    u = torch.tensor([[0.0, 0.999, 0.5]], dtype=torch.float64).expand(B, 3)
    how = {"rule": torch.tensor([sk.RULES[name] for name in rules]), "alpha": torch.tensor(alpha, dtype=torch.float32)}
    if op == "verify_chain":
        rows = {
            "target_logits": p.expand(B, 2, V),
            "draft_tokens": torch.tensor([[d]]).expand(B, 1),
            "draft_logits": q.expand(B, 1, V),
        }
        return rows | how | {"uniforms": u[:, 1:]}
    tree = torch.tensor([[-1, 0]]).expand(B, 2), torch.tensor([[-1, d]]).expand(B, 2)
    return {
        "tree": tree,
        "target_logits": p.expand(B, 2, V),
        "draft_logits": q.expand(B, 2, V),
        "method": "recursive",
        "uniforms": u,
    } | how


@pytest.mark.parametrize("op", ["verify_chain", pytest.param("verify_tree", marks=pytest.mark.not_triton)])
@pytest.mark.slow_in_triton
def test_entropies_are_not_handed_on(backend, op):
    """A chow_log request with alpha at its draft's entropy gets the same result alone and after an opt_log request,
    which sums the same entropy in another order."""
    if backend == "reference":
        pytest.skip("it sums in one order")
    n = 240 if backend == "cpu" else scale(8, backend, least=1)  # one row in thirty distinguishes the orders
    P, Q = shared_rows(n, 33)
    for p, q, alphas in zip(P, Q, thresholds(Q)):
        for a in alphas.tolist() if n > 1 else alphas[1:2].tolist():
            together = backends.run(op, backend, **requests(op, p, q, ["opt_log", "chow_log"], [0.5, a]))
            alone = backends.run(op, backend, **requests(op, p, q, ["chow_log"], [a]))
            for got, want in zip(together, alone):
                assert torch.equal(got[1:], want), f"alpha {a}"


@pytest.mark.parametrize("op", ["verify_chain", pytest.param("verify_tree", marks=pytest.mark.not_triton)])
@pytest.mark.slow_in_triton
def test_any_mates_in_any_order(backend, op):
    if backend == "reference":
        pytest.skip("it takes requests one by one")
    P, Q = shared_rows(scale(16, backend, least=1), 1100)
    for i, (p, q) in enumerate(zip(P, Q)):
        rules = MATES[i % 5 :] + MATES[: i % 5]
        rules = rules[2:4] if backend in rule_cases.SLOW else rules
        alpha = [float(thresholds(q[None])[0, 1]) if name == "chow_log" else 0.3 for name in rules]
        together = backends.run(op, backend, **requests(op, p, q, rules, alpha))
        for b, name in enumerate(rules):
            alone = backends.run(op, backend, **requests(op, p, q, [name], [alpha[b]]))
            for got, want in zip(together, alone):
                assert torch.equal(got[b : b + 1], want), name


def test_sums_of_a_row_are_not_handed_on(backend):
    """Sums of a row are not reused under other stats. Target and draft share a row in memory, but the target's stats
    are given and the draft's are made in the call. Each request that draws from the target must sum the row again."""
    if backend == "reference":
        pytest.skip("it takes requests one by one")
    V, n = 3000, scale(64, backend, least=2)
    z, _ = cases.rows_pair(5, 1, V, kinds=["near"])
    stats = sk.row_stats(z)
    d = int(z[0].argmax())
    u = torch.cat([torch.zeros(n, 1, dtype=torch.float64), torch.linspace(0, 1, n, dtype=torch.float64)[:, None]], 1)
    how = {"target_logits": z.expand(n, 2, V), "draft_tokens": torch.full((n, 1), d), "draft_logits": z.expand(n, 1, V),
           "target_stats": stats.expand(n, 2, 4), "uniforms": u}  # fmt: skip
    together = backends.run("verify_chain", backend, **how)
    for b in range(n):
        alone = backends.run("verify_chain", backend, **{name: x[b : b + 1] for name, x in how.items()})
        for got, want in zip(together, alone):
            assert torch.equal(got[b : b + 1], want)
