# SPDX-License-Identifier: Apache-2.0
"""Each rule's decision just below and above values at which it turns: of the uniform, of a parameter or of the final
draw.

Mutants of the sources must fail these checks.
"""

import numpy as np
import pytest
import torch
from support import checks, rule_cases
from support.answers import verify_chain as reference_verify
from support.checks import ln

from specdec_kernels.reference.rules.one_step import one_step
from specdec_kernels.rules import TABLE

# The target is the more certain of the two, by its largest probability and by its entropy, at T = 1 and at its own
# temperature.
P1, Q1, T, TQ = (0.55, 0.2, 0.12, 0.08, 0.05), (0.3, 0.06, 0.14, 0.32, 0.18), 0.8, 1.25
ROWS = [ln(*P1), ln(*Q1)]
p1, q1, p, q = (torch.softmax(row.double() / t, -1).numpy() for row, t in zip(2 * ROWS, (1, 1, T, TQ)))
NEAR = 1e-4  # a hundred times float32's error
LAST = 0.47  # uniform of a final draw; not 1/2, because the first three ids hold half of Q1, and rounding would decide
# the parameters that are thresholds, swept one at a time
SWEPT = {name: [lambda x: (x,)] for name in [*TABLE][1:10]} | {
    "typical": [lambda x: (x, 3.0), lambda x: (1.0, x)],
    "relaxed": [lambda x: (5, x), lambda x: (1 + 3 * x, 1.0)],
    "thresholds": [lambda x: (max(x, 1e-9), 1.0), lambda x: (1.0, max(x, 1e-9))],
}

MOST = {"chow_log": 3.0, "diff_log": 3.0, "opt": 3.0, "opt_log": 3.0}


def step(name, alpha):
    return one_step(p, q, name, alpha, p1, q1)


def drawn(w, v):
    return int(np.searchsorted(np.cumsum(w), v * w.sum(), side="right"))


def turn(says, low, high):
    """Return an x in [low, high] at which says(x) changes; None if it is equal at both ends."""
    first = says(low)
    if says(high) == first:
        return None
    while high - low > 1e-9:
        x = (low + high) / 2
        low, high = (x, high) if says(x) == first else (low, x)
    return low


def decisions():
    """Yield (rule, alpha, draft token, uniform of the test, uniform of the final draw)."""
    for name, parameters in SWEPT.items():
        for alpha in parameters:
            found = [
                (d, turn(lambda x, d=d: 0.97 < step(name, alpha(x)).accept[d], 0.0, MOST.get(name, 1.0)))
                for d in range(5)
            ]
            found = [(d, x) for d, x in found if x is not None][: 2 if name.startswith("token") else 1]
            assert found, name
            yield from ((name, alpha(x * by), d, 0.97, 0.5) for d, x in found for by in (1 - NEAR, 1 + NEAR))
    for name in TABLE:
        for alpha in rule_cases.ALPHAS[name][: 1 if name in [*SWEPT][:6] else 2]:
            at = step(name, alpha)
            open_ = [d for d in range(5) if 0 < at.accept[d] < 0.99][:1]
            yield from ((name, alpha, d, at.accept[d] * by, 0.5) for d in open_ for by in (1 - NEAR, 1 + NEAR))
            for d in [d for d in range(5) if at.accept[d] < 0.99][:1]:
                edges = np.cumsum(at.final[d])[:-1]
                inside = edges[(edges > 0.02) & (edges < 0.98)]
                middle = inside[np.abs(inside - 0.5).argsort()][:1]
                yield from ((name, alpha, d, checks.ALMOST_ONE, x + by) for x in middle for by in (-NEAR, NEAR))


# Rows of five ids, or rows whose only five likely ids lie in two groups of four chunks. In the latter the largest come
# last, so that kernels must rescale the sums that they have.
AT = {"five ids": (5, [0, 1, 2, 3, 4]), "two groups of chunks": (4 * 1024 + 5, [4100, 2500, 1030, 4099, 17])}


def decide(verify, ids):
    V, at = AT[ids]
    wanted = [*decisions()]
    B = len(wanted)
    z, y = (torch.full((V,), -1e4) for _ in range(2))
    z[at], y[at] = ROWS
    alpha = torch.tensor([[*alpha, 0.5, 0.5][:2] for _, alpha, *_ in wanted])
    d, u = torch.tensor([d for _, _, d, *_ in wanted]), torch.tensor([w[3:] for w in wanted], dtype=torch.float64)
    args = dict(target_logits=z.expand(B, 2, V), draft_tokens=torch.tensor(at)[d][:, None],
                draft_logits=y.expand(B, 1, V), uniforms=u,
                rule=torch.tensor([TABLE[name].code for name, *_ in wanted]), alpha=alpha,
                temperature=T, draft_temperature=TQ)  # fmt: skip
    out = verify(**args)
    order = np.argsort(at)
    for b, (name, alpha, d, test, final) in enumerate(wanted):
        found = step(name, alpha)
        accepted = test < found.accept[d]
        token = at[d] if accepted else at[order[drawn(found.final[d][order], final)]]
        assert [int(out.num_accepted[b]), int(out.tokens[b, 0])] == [accepted, token], (
            f"{name} {alpha}, draft {d}, u = {test}, {final}"
        )
    assert {name for name, *_ in wanted} == set(TABLE)
    checks.assert_same_tokens(out, reference_verify(**args), ids)


def check_opt_log_at_temperature_1(verify, op_backend, ids):
    """Check opt_log at T = 1, where a kernel may sum both entropies and TV in one pass, against values by hand.

    There are two positions, so that a kernel which uses sums of the first for the second is found.
    """
    if op_backend in rule_cases.SLOW and ids == "five ids":
        pytest.skip("the interpreter is slow: the rows of which the kernels do more")
    V, at = AT[ids]
    z, y = torch.full((2, 2, V), -1e4)
    z[:, at] = torch.stack([ROWS[0], ROWS[1]])
    y[:, at] = torch.stack([ROWS[1], ROWS[0].flip(0)])
    entropy = lambda x: -(np.array(x) * np.log(x)).sum()
    pairs = [(np.array(P1), np.array(Q1)), (np.array(Q1), np.array(P1)[::-1])]
    assert entropy(Q1) > entropy(P1)  # so the second position keeps its row for every alpha
    edge = (entropy(Q1) - entropy(P1)) / np.maximum(pairs[0][0] - pairs[0][1], 0).sum()
    first = 3  # p(d) < .97 q(d)
    second = int(np.argmin(pairs[1][0] / pairs[1][1]))
    assert all(p[d] < 0.9 * q[d] for (p, q), d in zip(pairs, (first, second)))
    args = dict(target_logits=torch.stack([*z, z[0]]).expand(2, 3, V), draft_logits=y.expand(2, 2, V),
                draft_tokens=torch.tensor([[at[first], at[second]]] * 2), rule="opt_log", temperature=1.0,
                uniforms=torch.tensor([[0.97, 0.97, 0.5]] * 2, dtype=torch.float64),
                alpha=torch.tensor([[edge * (1 - NEAR), 0.5], [edge * (1 + NEAR), 0.5]]).float())  # fmt: skip
    out = verify(**args)
    assert out.num_accepted.tolist() == [0, 2]
    checks.assert_same_tokens(out, reference_verify(**args), ids)


# chow and diff are left out: their pi is p or q, as that of opt
BLOCK = [name for name in rule_cases.LAWS if not name.startswith(("chow", "diff"))]


def block_decisions():
    """Yield (rule, alpha, two draft tokens, the uniforms of their tests, tokens).

    Both positions have the same two rows. r, s and h are those of csrc/ops/verify_chain/block_verification.h. The final
    uniform is 1/2; after both drafts it draws from p.
    """
    for name in BLOCK:
        for alpha in rule_cases.ALPHAS[name]:
            pi = step(name, alpha).pi
            ratios = pi / q
            most, least = int(np.argmax(ratios)), int(np.argmin(ratios))
            if ratios[most] > 1.05:  # r_1 is 1
                for x in (1 - NEAR, 1 + NEAR):
                    tokens = [most, least, drawn(p, 0.5)] if x < 1 else [most, drawn(np.maximum(pi - q, 0), 0.5)]
                    yield name, alpha, (most, least), (checks.ALMOST_ONE, ratios[least] * x), tokens
            below = [d for d in np.argsort(ratios) if ratios[d] < 0.95]  # empty if the rule keeps the row
            for a in below[:1] + below[1:][-1:]:  # one with little residual, one with much
                r = ratios[a]
                rest = np.maximum(r * pi - q, 0)
                s = rest.sum()
                h = s / (s + 1 - r)
                # r grows, but stays below 1
                above = [d for d in range(5) if ratios[d] > 1.05 and r * ratios[d] < 0.99][:1]
                for b in [*above, least]:
                    for x in (1 - NEAR, 1 + NEAR):
                        tokens = [a, b, drawn(p, 0.5)] if x < 1 else [drawn(np.maximum(pi - q, 0), 0.5)]
                        yield name, alpha, (a, b), (checks.ALMOST_ONE, r * ratios[b] * x), tokens
                        if s > 0:
                            tokens = [a, drawn(rest, 0.5)] if x < 1 else [drawn(np.maximum(pi - q, 0), 0.5)]
                            yield name, alpha, (a, b), (h * x, checks.ALMOST_ONE), tokens


def check_block_decisions(verify):
    wanted = [*block_decisions()]
    B = len(wanted)
    z, y = (2 * ROWS)[:2]
    args = dict(target_logits=z.expand(B, 3, 5), draft_tokens=torch.tensor([d for _, _, d, *_ in wanted]),
                draft_logits=y.expand(B, 2, 5),
                uniforms=torch.tensor([[*u, 0.5] for *_, u, _ in wanted], dtype=torch.float64), temperature=T,
                draft_temperature=TQ, rule=torch.tensor([TABLE[name].code for name, *_ in wanted]), method="block",
                alpha=torch.tensor([[*alpha, 0.5, 0.5][:2] for _, alpha, *_ in wanted]))  # fmt: skip
    out = verify(**args)
    for got, (name, alpha, d, u, tokens) in zip(out.tokens.tolist(), wanted):
        assert got == tokens + [-1] * (3 - len(tokens)), f"{name} {alpha}, drafts {d}, u = {u}"
    assert {name for name, *_ in wanted} == set(BLOCK)
    checks.assert_same_tokens(out, reference_verify(**args))


def check_a_block_ends_before_a_draft_that_q_forbids(verify):
    """Check a draft token with q = 0, which makes r 0.

    Both the decision to stop before it and a final draw there need all of pi, which nothing else has summed.
    """
    rows = ln(*(0.98 * x for x in P1), 0.02), ln(*Q1, 0.0)
    a, b = (torch.softmax(row.double(), -1).numpy() for row in rows)
    wanted = []
    for name in BLOCK:
        for alpha in rule_cases.ALPHAS[name]:
            pi = one_step(a, b, name, alpha).pi
            first = drawn(np.maximum(pi - b, 0), LAST)
            wanted.append(
                (name, alpha, (5, 0), 0.0, [first if first < 6 else drawn(pi, LAST)])
            )  # if pi = q, the residual is empty and pi itself is drawn from
            for d in [d for d in range(5) if pi[d] < 0.95 * b[d]]:
                r = pi[d] / b[d]
                rest = np.maximum(r * pi - b, 0)
                h = rest.sum() / (rest.sum() + 1 - r)
                if h > 0:
                    wanted += [
                        (name, alpha, (d, 5), h * (1 - NEAR), [d, drawn(rest, LAST)]),
                        (name, alpha, (d, 5), h * (1 + NEAR), [first]),
                    ]
    B = len(wanted)
    u = torch.tensor([[u, 0.0, LAST] for *_, u, _ in wanted], dtype=torch.float64)
    args = dict(target_logits=rows[0].expand(B, 3, 6), draft_tokens=torch.tensor([d for _, _, d, *_ in wanted]),
                uniforms=u, draft_logits=rows[1].expand(B, 2, 6),
                rule=torch.tensor([TABLE[name].code for name, *_ in wanted]), method="block",
                alpha=torch.tensor([[*alpha, 0.5, 0.5][:2] for _, alpha, *_ in wanted]))  # fmt: skip
    out = verify(**args)
    assert out.tokens.tolist() == [tokens + [-1] * (3 - len(tokens)) for *_, tokens in wanted]
    assert (
        (out.status & 4 == 4).all() and out.status.max() == 6 and ((out.status == 6) <= (out.num_accepted == 0)).all()
    )
    assert {name for name, *_ in wanted} >= {"exact", "token_v1", "token_v2", "lossy", "ensemble"}
    checks.assert_same_tokens(out, reference_verify(**args))


def check_lossy_beta_of_broad_rows(verify, alpha):
    """Check bonus tokens from pi at 32 quantiles of 6,000 ids, in descending order of p / q.

    If beta were off by a thousandth, half of the tokens would differ.
    """
    z, y = 1.5 * torch.randn(2, 6000, generator=torch.Generator().manual_seed(4))
    order = (z.log_softmax(-1) - y.log_softmax(-1)).argsort(descending=True)
    u = torch.stack((torch.zeros(32), (torch.arange(32) + 0.5) / 32), 1).double()
    args = dict(target_logits=z[order].expand(32, 2, -1), draft_tokens=torch.full((32, 1), 7),
                draft_logits=y[order].expand(32, 2, -1), rule="lossy", alpha=alpha, uniforms=u)  # fmt: skip
    out, ref = verify(**args), reference_verify(**args)
    checks.assert_same_tokens(out, ref)
    assert (ref.num_accepted == 1).all() and (ref.margin > 1).double().mean() > 0.7


def check_lossy_bonus_of_a_greedy_draft(verify, alpha, edge):
    """Check the bonus token where q is one-hot at id 0: pi(0) = min(1, p(0) / (1 - alpha)).

    The other ids share the rest in the ratios of p = (.6, .3, .1).
    """
    z, y = ln(0.6, 0.3, 0.1), ln(0.5, 0.3, 0.2)
    edges = edge * (1 - NEAR), edge * (1 + NEAR), edge + (1 - edge) * 0.74, edge + (1 - edge) * 0.76
    u = torch.tensor([[0.0, min(v, checks.ALMOST_ONE)] for v in edges], dtype=torch.float64)
    out = verify(z.expand(4, 2, 3), torch.zeros(4, 1, dtype=torch.int64), y.expand(4, 2, 3), draft_temperature=0.0,
                 rule="lossy", alpha=alpha, uniforms=u)  # fmt: skip
    assert out.tokens.tolist() == [[0, x] for x in ((0, 1, 1, 2) if edge < 1 else (0, 0, 0, 0))]
