# SPDX-License-Identifier: Apache-2.0
"""Checks of verify_chain. Each takes the function to test: the op passes all checks, and each mutant fails one."""

import math
from typing import NamedTuple

import numpy as np
import torch
from support import cases, flat, quadrature, tally
from support.answers import verify_chain as reference_verify
from support.plain import Plain, plain_sample

from specdec_kernels import testing
from specdec_kernels.reference.banded.band import EPS
from specdec_kernels.registry import SAMPLING

ALMOST_ONE = 1 - 2.0**-53


def ln(*p):
    """Return the logits of a golden distribution, shifted so that they are not log-probabilities."""
    with np.errstate(divide="ignore"):
        return torch.tensor(np.log(p) + 1.5, dtype=torch.float32)


# ---- 1. exact agreement ---------------------------------------------------------------------------------------------


def assert_same_tokens(out, ref, what=""):
    """Check that tokens, counts and status equal the reference's, except where rounding may decide (margin <= 1).

    Differences inside this band are counted and limited (tally.py).
    """
    same = (out.tokens == ref.tokens).all(-1) & (out.num_accepted == ref.num_accepted) & (out.status == ref.status)
    wrong = (~same & (ref.margin > 1)).nonzero()[:, 0].tolist()
    assert not wrong, (
        f"{what}: {len(wrong)} of {len(same)} requests differ, first {wrong[0]}: got {out.tokens[wrong[0]].tolist()} "
        f"status {int(out.status[wrong[0]])}, wanted {ref.tokens[wrong[0]].tolist()} "
        f"status {int(ref.status[wrong[0]])} (margin {float(ref.margin[wrong[0]]):.3g})"
    )
    tally.record(len(same), int((~same).sum()))
    return same


def assert_floats(got, want, torch_error, what, largest=None):
    """Check that errors are at most twice that of torch's own float32 evaluation on the same rows, plus a rounding.

    The rounding is EPS (1 + |want|).
    """
    assert (got.isnan() == want.isnan()).all(), f"{what}: NaN in other places"
    infinite = want.isinf()
    assert (got[infinite] == want[infinite]).all(), f"{what}: infinities differ"
    fine = want.isfinite()
    error = (got.double() - want)[fine].abs()
    allowed = 2 * torch_error + EPS * (1 + want[fine].abs())
    assert (error <= allowed).all(), f"{what}: error {float(error.max()):.3g}, torch's own {torch_error:.3g}"


def torch_logprob_error(rows, params):
    """Return the largest error of float32 log_softmax on these rows against float64, over ids with mass."""
    kept = Plain().cutoffs(rows.double(), **params)
    t = torch.as_tensor(1.0 if params.get("temperature") is None else params["temperature"]).reshape(-1, 1, 1)
    t = torch.where(t > 0, t, 1.0).double()
    z32 = torch.where(kept, rows.float(), -math.inf) / t.float()
    z64 = torch.where(kept, rows.double(), -math.inf) * (1 / t).float().double()
    error = (torch.log_softmax(z32, -1).double() - torch.log_softmax(z64, -1)).abs()
    return float(error[kept].max()) if kept.any() else 0.0


def split_params(args):
    return {name: args.get(name) for name in SAMPLING}


def check_agreement(verify, **case):
    verify = flat.of("verify_chain", verify)
    args = cases.chain(**case)
    out, ref = verify(**args), reference_verify(**args)
    same = assert_same_tokens(out, ref, f"agreement {case}")
    if args["target_logits"].numel():
        error = torch_logprob_error(args["target_logits"], split_params(args))
        assert_floats(out.logprobs[same], ref.logprobs[same], error, f"logprobs {case}")
    return out, ref


# ---- 2. quadrature --------------------------------------------------------------------------------------------------


def check_quadrature(verify, target=None, draft=None, n=1024):
    """Check every edge of the one-step distributions, position by position, to within 1/n and without random numbers.

    At each position, uniforms of 0 accept the drafts before it. Stratified uniforms (quadrature.py) then sweep one draw
    at a time: the test of each draft id, the draw from its residual, the plain draw where the draft ends, and the bonus
    token.
    """
    verify = flat.of("verify_chain", verify)
    if target is None:
        target, draft = (x.reshape(-1, 7) for x in cases.rows_pair(5, 4, 7, kinds=["dirichlet", "near"]))
    gamma, vocab = len(target) - 1, target.shape[-1]
    P, Q = Plain().laws(target[None])[0].numpy(), Plain().laws(draft[None, :gamma])[0].numpy()
    walk = [int((P[i] * (Q[i] > 0)).argmax()) for i in range(gamma)]  # ids that u = 0 accepts
    sweep = torch.from_numpy(quadrature.strata(n))

    def go(drafts, u):
        B = len(u)
        return verify(
            target.expand(B, -1, -1),
            torch.tensor([drafts] * B).reshape(B, gamma),
            draft[:gamma].expand(B, -1, -1),
            uniforms=u,
        )

    for i in range(gamma):
        for d in [d for d in range(vocab) if Q[i, d] > 0]:
            drafts = walk[:i] + [d] + walk[i + 1 :]
            u = torch.zeros(n, gamma + 1, dtype=torch.float64)
            u[:, i] = sweep
            share = float((go(drafts, u).num_accepted > i).double().mean())
            assert abs(share - min(1, P[i, d] / Q[i, d])) <= 1 / n + 1e-5, f"position {i}, draft {d}: accepts {share}"
            rest = np.maximum(P[i] - Q[i], 0)
            if P[i, d] < Q[i, d] * (1 - 1e-3):
                u[:, i], u[:, -1] = ALMOST_ONE, sweep
                out = go(drafts, u)
                assert (out.num_accepted == i).all(), f"position {i}, draft {d}: not rejected at u = 1 - 2^-53"
                what = f"residual at {i} after draft {d}"
                quadrature.assert_quadrature(out.tokens[:, i].numpy(), rest / rest.sum(), what)
        u = torch.zeros(n, gamma + 1, dtype=torch.float64)
        u[:, -1] = sweep
        out = go(walk[:i] + [-1] * (gamma - i), u)
        quadrature.assert_quadrature(out.tokens[:, i].numpy(), P[i], f"the draft ends at {i}")
    out = go(walk, u)
    assert (out.num_accepted == gamma).all()
    quadrature.assert_quadrature(out.tokens[:, gamma].numpy(), P[gamma], "bonus")


# ---- 3. joint distribution ------------------------------------------------------------------------------------------


class Scenario(NamedTuple):
    case: testing.Case
    target: dict  # parameters of each side
    draft: dict


def scenario(gamma, p, q, target=None, draft=None):
    """Return a Scenario. p, q: prefix -> logits [V] float32, or for q an id (one-hot)."""
    sides = target or {}, draft or {}
    laws = [lambda z, _, x=x: Plain().laws(torch.from_numpy(z)[None, None], **x)[0, 0].numpy() for x in sides]
    return Scenario(testing.Case("", "", p, q, gamma, *laws), *sides)


def noise(seed, vocab, width=1.5):
    def row(prefix):
        return torch.from_numpy(
            width * np.random.default_rng([seed, len(prefix), *prefix]).standard_normal(vocab)
        ).float()

    return row


def by_position(row):
    return lambda prefix: row((0,) * len(prefix))


SCENARIOS = {
    "positions": scenario(2, by_position(noise(1, 16)), by_position(noise(2, 16))),
    "prefixes": scenario(3, noise(3, 4), noise(4, 4)),
    "adversarial draft": scenario(2, noise(5, 6), lambda t: -1.2 * noise(5, 6)(t)),
    "filters": scenario(
        2, noise(7, 8), noise(8, 8), {"temperature": 0.7, "top_p": 0.9}, {"temperature": 1.4, "top_k": 6}
    ),
    "other filters": scenario(
        2,
        noise(9, 8),
        noise(10, 8),
        {"top_k": 5, "min_p": 0.05},
        {"top_p": 0.85, "temperature": 0.8, "top_n_sigma": 1.5},
    ),
    "narrow draft": scenario(2, noise(11, 8), noise(12, 5)),
    "wide draft": scenario(2, noise(13, 5), noise(14, 8)),
    "one-hot draft": scenario(3, noise(15, 4), lambda t: (2 * sum(t) + len(t)) % 4),
    "golden": scenario(1, lambda t: ln(0.4, 0.3, 0.2, 0.1), lambda t: ln(0.1, 0.2, 0.3, 0.4)),
}


def check_joint_law(verify, scenario, n=1_000_000, sample=plain_sample):
    """Check that emitted tokens follow the exact joint distribution.

    Drafts use domain 2 of the random numbers, and verification domains 0 and 1 of the same seeds. n = 10^6 detects a
    bias of .004 (12 cells) to .012 (2,500 cells) in total variation; the result's `detects` is that bias.
    """
    verify, (case, target, draft) = flat.of("verify_chain", verify), SCENARIOS[scenario]
    law, wanted = case.law("token"), case.law()
    full = testing.complete_law(law, case.p.probabilities, case.length + 1)
    assert max(abs(full.get(t, 0.0) - m) for t, m in wanted.items()) < 1e-12

    def of(seed):
        return {"seed": seed % 1009, "offset": seed // 1009}

    def sampled(logits, seed, position):
        return flat.call(sample, logits, **of(seed), slot=position, **draft)

    def emitted(step):
        rows = None if step.one_hot else step.draft_logits
        params = target | {"draft_" + name: value for name, value in draft.items()}
        return verify(step.target_logits, step.draft_tokens, rows, **of(step.seed), **params).tokens

    return testing.assert_verifier(emitted, case, n, expected=law, draft=sampled, batch=250_000)


# ---- 4. single rules ------------------------------------------------------------------------------------------------


def check_golden(verify):
    """Check p = (.5, .3, .2), q = (.2, .5, .3) by hand.

    Ids are accepted with probability 1, .6 and 2/3, and the residual is (1, 0, 0).
    """
    verify = flat.of("verify_chain", verify)
    p, q = ln(0.5, 0.3, 0.2), ln(0.2, 0.5, 0.3)
    for d, edge in ((0, 1.0), (1, 0.6), (2, 2 / 3)):
        for u in (0.0, edge - 1e-4, min(edge + 1e-4, ALMOST_ONE)):
            out = verify(
                p.expand(1, 2, 3),
                torch.tensor([[d]]),
                q.expand(1, 1, 3),
                uniforms=torch.tensor([[u, 0.6]], dtype=torch.float64),
            )
            taken = u < edge
            assert out.num_accepted.tolist() == [int(taken)], f"draft {d} at u = {u}"
            assert out.tokens.tolist() == [[d, 1] if taken else [0, -1]]
            want = [math.log((0.5, 0.3, 0.2)[d]), math.log(0.3)] if taken else [math.log(0.5), 0.0]
            assert np.allclose(out.logprobs[0], want, atol=1e-6)


def check_strict(verify):
    """Check that u = 0 does not accept a token with p = 0."""
    verify = flat.of("verify_chain", verify)
    p, q = ln(0.5, 0.5, 0.0), ln(0.3, 0.3, 0.4)
    out = verify(
        p.expand(1, 2, 3), torch.tensor([[2]]), q.expand(1, 1, 3), uniforms=torch.zeros(1, 2, dtype=torch.float64)
    )
    assert out.num_accepted.tolist() == [0] and out.tokens.tolist() == [[0, -1]]


def check_streams(verify, B=400):
    """Check that seeds of 62 bits, also negative, and offsets of 40 bits select the uniforms of domains 0 and 1."""
    verify = flat.of("verify_chain", verify)
    args = cases.chain(21, B, 3, 11, dirty=False, kinds=["dirichlet", "near"])
    args.pop("uniforms")
    rng = torch.Generator().manual_seed(3)
    seed = torch.randint(-(2**62), 2**62, (B,), generator=rng)
    offset = torch.randint(0, 2**40, (B,), generator=rng)
    ref = reference_verify(**args, seed=seed, offset=offset)
    assert 0.2 < (ref.num_accepted < 3).double().mean() < 0.98
    assert_same_tokens(verify(**args, seed=seed, offset=offset), ref, "streams")


def check_ties(verify):
    """Check ties: greedy takes the lowest id, and top-k keeps all ties at the cutoff."""
    verify = flat.of("verify_chain", verify)
    z = torch.tensor([1.0, 3.0, 0.0, 3.0, 3.0])
    u = torch.tensor([[0.0, 0.999]], dtype=torch.float64)
    out = verify(z.expand(1, 2, 5), torch.tensor([[3]]), None, temperature=0.0, uniforms=u)
    assert out.tokens.tolist() == [[1, -1]]
    out = verify(z.expand(1, 2, 5), torch.tensor([[4]]), None, top_k=2, uniforms=u)
    assert out.tokens.tolist() == [[4, 4]]
    assert np.allclose(out.logprobs[0], math.log(1 / 3), atol=1e-6)
