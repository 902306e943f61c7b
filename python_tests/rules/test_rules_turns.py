# SPDX-License-Identifier: Apache-2.0
"""Rules that sum over a row (its entropy, total variation or rank) decide as float64 does, close to the parameter at
which they turn.

Each case has two parameters, just below and above the value at which the decision turns in float64. They are as near to
it as the rounding of float32 sums allows.
"""

import math

import pytest
import torch
from support import backends, flat
from support.checks import ALMOST_ONE

import specdec_kernels as sk
from specdec_kernels.reference.banded.band import EPS

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SHAPES = {"one chunk": (900, 900), "chunks": (5003, 5003), "narrow draft": (5003, 1030), "wide draft": (2100, 5003)}
LAWS = {"T=1": {}, "T=.7": {"temperature": 0.7}, "top_k": {"top_k": 40}}


def rows(n, V, Vq, dtype):
    """Return [n, V] peaked and [n, Vq] flatter logits. The mean falls by about 4 per chunk of 1024. The third chunk is
    300 lower still, so its exp is 0; the second is -inf in every other row."""
    generator = torch.Generator().manual_seed(1)
    p, q = (
        scale * torch.randn(6, width, generator=generator).repeat(-(-n // 6), 1)[:n]
        for width, scale in ((V, 3.0), (Vq, 1.5))
    )
    for z in (p, q):
        z -= 0.004 * torch.arange(z.shape[1])
        z[:, 2048:3072] -= 300
        z[1::2, 1024:2048] = -math.inf
    return p.to(dtype), q.to(dtype)


def softmax(z, temperature=1.0, top_k=0):
    z = z.double() / temperature
    if top_k:
        z = torch.where(z >= z.topk(top_k).values[:, -1:], z, -math.inf)
    return z.softmax(-1)


def entropy(p):
    return -torch.special.xlogy(p, p).sum(-1)


def turns(rule, p, q, how):
    """Return, for each row, the parameter at which its decision turns, a draft token, and how far rounding can move the
    parameter.

    The parameters are [n]. The draft tokens [n, 1] are accepted on one side of them only. The last value is a relative
    distance at which rounding cannot change the decision.
    """
    V = min(p.shape[1], q.shape[1])
    law_p, law_q, p1, q1 = softmax(p, **how), softmax(q, **how), softmax(p), softmax(q)
    # the tolerance of an entropy in test_row_gap.py
    off = (64 + 8 * math.log(q.shape[1])) * EPS * (1 + math.log(q.shape[1]))
    if rule == "typical":
        likely = (law_p > 1e-4).double()
        d = likely.multinomial(1, generator=torch.Generator().manual_seed(3))
        return law_p.gather(1, d)[:, 0] / (-entropy(law_p)).exp(), d, 2 * off
    if rule == "relaxed":
        # the draft is the largest entry of the row below the last chunk's maximum, so of the last chunk only this
        # maximum ranks above it
        last = p[:, (p.shape[1] - 1) // 1024 * 1024 :].amax(-1, keepdim=True)
        d = torch.where(p < last, p, -math.inf).argmax(-1, keepdim=True)
        return (p > p.gather(1, d)).sum(-1) + 0.5, d, 0
    most = max(p.shape[1], q.shape[1])
    d = (law_q[:, :V] - law_p[:, :V]).argmax(-1, keepdim=True)
    wide_p, wide_q = (torch.nn.functional.pad(x, (0, most - x.shape[1])) for x in (law_p, law_q))
    tv = (wide_p - wide_q).clamp(min=0).sum(-1)
    lack = {"chow_log": entropy(q1), "opt": p1.amax(-1) - q1.amax(-1)}.get(rule, entropy(q1) - entropy(p1))
    assert (lack > 0.05).all() and (tv > 0.1).all(), "the decision would be another's"
    return lack / (tv if rule in ("opt", "opt_log") else 1), d, 4 * off / float(torch.minimum(lack, tv).min())


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rule", ["typical", "relaxed", "chow_log", "diff_log", "opt", "opt_log"])
@pytest.mark.slow_in_triton
def test_decides_as_float64_does(op_backend, rule, shape, law):
    """The decision is the same whether the op makes the stats or they are given. If it makes them, it may sum what the
    rule needs in the same pass."""
    verify = backends.call("verify_chain", op_backend)
    how, n = LAWS[law], backends.scale(6, op_backend, least=2)
    for dtype in list(DTYPES)[: 1 if op_backend != "cpu" else 3]:
        p, q = rows(n, *SHAPES[shape], DTYPES[dtype])
        at, d, distance = turns(rule, p, q, how)
        if rule == "relaxed":
            sides = [(torch.stack([(at + side).round(), torch.ones(n)], 1), side > 0) for side in (-0.4, 0.4)]
        elif rule == "typical":
            sides = [(torch.stack([torch.ones(n), at * (1 + side * distance)], 1), side < 0) for side in (-1, 1)]
        else:
            sides = [(at * (1 + side * distance), side > 0) for side in (-1, 1)]
        args = {"target_logits": p[:, None].expand(n, 2, -1), "draft_tokens": d, "draft_logits": q[:, None]}
        args["uniforms"] = torch.tensor([ALMOST_ONE, 0.5], dtype=torch.float64).expand(n, 2)
        sampled = how | {"draft_" + k: v for k, v in how.items()}
        p_stats, q_stats = (backends.run("row_stats", op_backend, z, **how) for z in (p, q))
        stats = {"target_stats": p_stats[:, None].expand(n, 2, 4), "draft_stats": q_stats[:, None]}
        for given in (sampled, how | {"draft_stats": stats["draft_stats"]}, stats):
            for alpha, accepted in sides:
                out = verify(**args, **given, rule=rule, alpha=alpha.float())
                assert (out.num_accepted == int(accepted)).all(), (
                    f"{dtype}, {sorted(given)}, {alpha.tolist()}: {out.num_accepted}"
                )


def laws_kept():
    """Return this process's instruction set, and whether the rule "typical" gives the exact rule's results bit for bit.

    "typical" sums an entropy in the pass that makes the stats. This must change neither logprobs nor bonus tokens.
    """
    n = 64
    for dtype in DTYPES.values():
        for V in (900, 5003):
            p, _ = rows(n, V, 1, dtype)
            d = p.topk(3).indices[:, 2:]
            args = {
                "target_logits": p[:, None].expand(n, 2, V),
                "draft_tokens": d,
                "temperature": torch.linspace(0.2, 2, n),
            }
            args["uniforms"] = torch.stack([torch.zeros(n), torch.linspace(0, 1 - 1e-6, n)], 1).double()
            exact, typical = (
                flat.call(sk.verify_chain, **args),
                flat.call(sk.verify_chain, **args, rule="typical", alpha=(0.0, 0.0)),
            )
            if not (exact.num_accepted == 1).all() or not all(
                torch.equal(a, b) for a, b in zip(exact[:4], typical[:4])
            ):
                return sk.backends.cpu_isa(), False
    return sk.backends.cpu_isa(), True


@pytest.mark.parametrize("isa", ["base", "avx2", "avx512"])
@pytest.mark.slow
def test_summing_an_entropy_leaves_the_law_as_it_is(isa):
    if isa not in backends.ISAS:
        pytest.skip(f"this CPU has no {isa}")
    assert backends.there(f"cpu-{isa}", laws_kept) == (isa, True)
