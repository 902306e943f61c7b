# SPDX-License-Identifier: Apache-2.0
"""Checks of verify_chain with rules and with block verification. Mutants of the sources must fail them."""

import math

import numpy as np
import torch
from support import cases, checks, quadrature, rule_cases
from support.answers import verify_chain as reference_verify
from support.checks import ln

import specdec_kernels as sk
from specdec_kernels.rules import TABLE

AGREEMENT = {
    "tiny": {"B": 350, "G": 3, "V": 5},
    "one id": {"B": 60, "G": 3, "V": 1},
    "draft scores the end": {"B": 350, "G": 2, "V": 9, "bonus_row": True},
    "filters": {"B": 350, "G": 3, "V": 33, "filtered": True, "bonus_row": True},
    "chunk and one, bf16": {"B": 120, "G": 2, "V": 1025, "filtered": True, "dtype": torch.bfloat16},
    "chunks": {"B": 120, "G": 2, "V": 3001, "bonus_row": True},
    "narrow draft": {"B": 350, "G": 3, "V": 40, "Vq": 23, "filtered": True, "bonus_row": True},
    "wide draft": {"B": 350, "G": 3, "V": 23, "Vq": 40, "filtered": True, "bonus_row": True},
    "narrow draft, chunks": {"B": 80, "G": 2, "V": 2100, "Vq": 1030},
    "wide draft, chunks": {"B": 80, "G": 2, "V": 1030, "Vq": 2100},
    "one-hot": {"B": 350, "G": 3, "V": 40, "one_hot": True, "filtered": True},
    "near": {"B": 350, "G": 3, "V": 40, "kinds": ["near", "dirichlet", "identical"]},
    "long chain": {"B": 200, "G": 16, "V": 12, "kinds": ["near", "identical"]},
}


def agrees_with_the_reference(verify, op_backend, name, method):
    """Compare a batch of one case with the reference. A batch of 70 requests or more has all rules of the method."""
    case = AGREEMENT[name]
    case = case | {"B": rule_cases.count(case["B"], op_backend)}
    args = rule_cases.chain(23, method=method, shift=case["B"] * list(AGREEMENT).index(name), **case)
    assert case["B"] < 70 or len(args["rule"].unique()) == (len(TABLE) if method == "token" else len(rule_cases.LAWS))
    out, ref = verify(**args), reference_verify(**args)
    same = checks.assert_same_tokens(out, ref, f"{name}, {method}")
    assert (ref.margin <= 1).double().mean() < 0.2, "the band would hide too much"
    error = checks.torch_logprob_error(args["target_logits"], checks.split_params(args))
    checks.assert_floats(out.logprobs[same], ref.logprobs[same], error, "logprobs")


def agrees_on_probability_rows(verify, op_backend, method):
    args = rule_cases.chain(5, rule_cases.count(400, op_backend), 3, 37, method, bonus_row=True)
    for side in ("target", "draft"):
        args |= {f"{side}_logits": args[f"{side}_logits"].softmax(-1), f"{side}_kind": "probs"}
    checks.assert_same_tokens(verify(**args), reference_verify(**args), method)


# The golden pair; a pair whose ratios p / q increase with the id; a pair whose residual depends on beta.
PAIRS = {
    "golden": ((0.5, 0.3, 0.2), (0.2, 0.5, 0.3)),
    "other": ((0.2, 0.4, 0.4), (0.5, 0.35, 0.15)),
    "five": ((0.5, 0.2, 0.1, 0.1, 0.1), (0.3, 0.02, 0.08, 0.4, 0.2)),
}


def measured_law(verify, p, q, rule, alpha, n, method="token"):
    """Return the distribution of the first emitted token, within 3 / n, by quadrature.

    Every draft token gets n stratified uniforms for its test, and n for its replacement.
    """
    V, sweep = len(p), torch.from_numpy(quadrature.strata(n))
    law = np.zeros(V)
    for d in range(V):
        u = torch.zeros(2 * n, 2, dtype=torch.float64)
        u[:n, 0], u[n:, 0], u[n:, 1] = sweep, checks.ALMOST_ONE, sweep
        out = verify(ln(*p).expand(2 * n, 2, V), torch.full((2 * n, 1), d), ln(*q).expand(2 * n, 1, V), uniforms=u,
                     rule=rule, alpha=alpha, method=method)  # fmt: skip
        accepted = float((out.num_accepted[:n] == 1).double().mean())
        law[d] += q[d] * accepted
        if accepted < 1:
            assert (out.num_accepted[n:] == 0).all(), f"draft {d} is not rejected at u = 1 - 2^-53"
            law += q[d] * (1 - accepted) * np.bincount(out.tokens[n:, 0], minlength=V) / n
    return law


def without_a_row_at_the_end_the_bonus_is_of_p(verify):
    """Check the bonus token under a rule that keeps everything, with and without a row of the draft for its position.

    p = (.5, .3, .2), q = (.2, .5, .3). At u = .45 the bonus token is 0 under p and 1 under q.
    """
    p, q = ln(0.5, 0.3, 0.2).expand(1, 2, 3), ln(0.2, 0.5, 0.3).expand(1, 2, 3)
    u = torch.tensor([[0.0, 0.45]], dtype=torch.float64)
    for method in ("token", "block"):
        for rows, token in ((q[:, :1], 0), (q, 1)):
            out = verify(p, torch.tensor([[2]]), rows, uniforms=u, rule="chow", alpha=0.6, method=method)
            assert out.tokens.tolist() == [[2, token]]
    assert sk.RULES["chow"] == 1


def ragged_equals_dense(verify, op_backend, method):
    """Check drafts of unequal length, with the draft's row for the bonus position."""
    B = rule_cases.count(140, op_backend)
    args = rule_cases.chain(8, B, 4, 50, method, bonus_row=True, filtered=True, dirty=False)
    lengths = torch.randint(0, 5, (B,), generator=torch.Generator().manual_seed(0))
    args["draft_tokens"][torch.arange(4)[None] >= lengths[:, None]] = -1
    ragged = args | {"cu_draft": torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]), "max_draft": 4}
    ragged["draft_tokens"] = torch.cat([row[:g] for row, g in zip(args["draft_tokens"], lengths)])
    for name in ("target_logits", "draft_logits"):
        ragged[name] = torch.cat([rows[: g + 1] for rows, g in zip(args[name], lengths)])
    dense, out = verify(**args), verify(**ragged)
    for got, want in zip(out[:4], dense[:4]):
        assert torch.equal(got.nan_to_num(9.0), want.nan_to_num(9.0))
    checks.assert_same_tokens(out, reference_verify(**ragged), "ragged")


NAN = math.nan


def one(p, q, d, u=0.5, v=0.5, **how):
    """Return the arguments of one request with one draft token. p and q are logits."""
    rows = torch.stack([p, p])[None]
    return dict(target_logits=rows, draft_tokens=torch.tensor([[d]]), draft_logits=q[None, None],
                uniforms=torch.tensor([[u, v]], dtype=torch.float64)) | how  # fmt: skip


def bad_rows_among_good_ones(verify, method):
    """Check a batch with several rules, in which every other request has an invalid row."""
    args = rule_cases.chain(29, 24, 1, 1100, method, dirty=False, kinds=["near"], shift=1)
    bad = [row for row, _ in cases.bad_rows(1100)]
    for b in range(0, 24, 2):
        args["target_logits" if b % 4 else "draft_logits"][b, 0] = bad[b // 2 % len(bad)]
    out, ref = verify(**args), reference_verify(**args)
    checks.assert_same_tokens(out, ref, method)
    assert (out.status[1::2] == 0).all() and (out.status != 0).sum() > 4


def a_greedy_draft_behind_the_vocabulary(verify, method):
    """Check a draft whose only token lies outside the target's vocabulary of three.

    Every rule rejects it, and replaces it by a draw from p.
    """
    names = rule_cases.LAWS if method == "block" else [*TABLE]
    B = len(names)
    u = torch.tensor([[0.0, 0.6]], dtype=torch.float64).expand(B, 2)
    out = verify(ln(0.5, 0.3, 0.2).expand(B, 2, 3), torch.full((B, 1), 4),
                 torch.tensor([0.0, 1, 2, 3, 4]).expand(B, 1, 5), uniforms=u, draft_temperature=0.0,
                 rule=torch.tensor([TABLE[name].code for name in names]), method=method,
                 alpha=torch.tensor([1.0 if name == "relaxed" else 0.9 for name in names]))  # fmt: skip
    assert out.tokens.tolist() == [[1, -1]] * B and out.status.tolist() == [0] * B


def nan_probabilities_defer(verify, name):
    """Check a row of probabilities with NaN at another id than the draft token.

    Its confidence is NaN, so the rule defers, and the draft is tested against p.
    """
    p, q = torch.tensor([0.2, 0.4, 0.4, 0.0]), torch.tensor([0.5, 0.35, 0.15, NAN])
    alpha = rule_cases.ALPHAS[name][-1]
    kinds = {"target_kind": "probs", "draft_kind": "probs"}
    rule = {"rule": name, "alpha": alpha[0] if alpha else None}
    args = one(p, q, 0, 0.6, **kinds)  # p / q = .4
    out, ref = verify(**args, **rule), reference_verify(**args, **rule)
    assert out.tokens.tolist() == ref.tokens.tolist() and out.num_accepted.tolist() == ref.num_accepted.tolist()
    if name not in ("lossy", "ensemble"):
        assert out.num_accepted.tolist() == [0], "a NaN decided for the draft"


def thresholds_at_the_edge(verify):
    """Check that a confidence equal to the threshold keeps, since rules compare by >=.

    Probabilities and thresholds are binary fractions, so nothing is rounded there.
    """
    p, q = torch.tensor([0.5, 0.25, 0.25]), torch.tensor([0.25, 0.5, 0.25])
    probs = {"target_kind": "probs", "draft_kind": "probs"}
    below = 1e-6
    for name, alpha, d in [("chow", 0.5, 1), ("token_v2", 0.25, 1), ("token_v3", 0.5, 1), ("token_v1", 0.25, 2)]:
        for a, kept in ((alpha, True), (alpha - below, False)):
            out = verify(**one(p, q, d, 0.999, **probs), rule=name, alpha=a)
            assert out.num_accepted.tolist() == [int(kept)], f"{name} {a}"
    even = torch.tensor([0.5, 0.25, 0.25])
    for a, kept in ((0.25, True), (0.25 - below, False)):  # diff keeps iff .25 >= .5 - alpha
        q_even = torch.full((4,), 0.25)
        out = verify(**one(torch.cat([even, torch.zeros(1)]), q_even, 3, 0.0, **probs), rule="diff", alpha=a)
        assert out.num_accepted.tolist() == [int(kept)]


def top_n_keeps_ties(verify):
    """Check that all ties with the n-th id are kept: a token is kept if fewer than n ids are more probable."""
    z = torch.tensor([3.0, 2.0, 2.0, 1.0])
    taken = [int(verify(**one(z, z, d), rule="relaxed", alpha=(2, 1.0)).num_accepted) for d in range(4)]
    assert taken == [1, 1, 1, 0]
    taken = [
        int(verify(**one(z, z, d), rule="relaxed", alpha=(4, 0.4)).num_accepted) for d in range(4)
    ]  # .53, .20, .20, .07
    assert taken == [1, 1, 1, 0]


def greedy(verify, method):
    """Check T = 0.

    Row rules emit the argmax of p or of q, and token rules the draft token or the argmax of p. lossy accepts the argmax
    of p only. lenience accepts every token with p1 >= l max p1.
    """
    p, q = ln(0.5, 0.3, 0.2), ln(0.1, 0.3, 0.6)

    def go(rule, alpha, d):
        out = verify(
            **one(p, q, d, 0.99, method=method), temperature=0.0, draft_temperature=0.0, rule=rule, alpha=alpha
        )
        return out.tokens[0].tolist()

    assert go("chow", 0.5, 2) == [2, 0] and go("chow", 0.3, 2) == [0, -1]
    assert go("diff", 0.0, 2) == [2, 0]
    assert go("token_v1", 0.0, 2) == [2, 0] and go("token_v2", 0.35, 2) == [2, 0] and go("token_v2", 0.25, 2) == [0, -1]
    assert go("lossy", 0.5, 0) == [0, 0] and go("lossy", 0.5, 2) == [0, -1]
    if method == "token":
        assert (
            go("lenience", 0.59, 1) == [1, 0]
            and go("lenience", 0.61, 1) == [0, -1]
            and go("lenience", 0.39, 2) == [2, 0]
        )


def block_through_a_greedy_row(verify):
    """Check a block whose second row of three is greedy, by its stats, after r_1 = 1/2.

    r_i and h_i are those of csrc/ops/verify_chain/block_verification.h. If the draft token is that row's argmax,
    r_2 = 1/2 and h_1 = 0, since r_1 p leaves no residual over a one-hot draft. Then d_3 gives h_2 = 1/5 and
    h_3 = r_3 = 1/6. If it is not the argmax, h_1 = r_1.
    """
    p = torch.stack([ln(0.25, 0.75), ln(0.6, 0.4), ln(0.75, 0.25), ln(0.5, 0.5)])
    q = torch.stack([ln(0.5, 0.5), ln(0.3, 0.7), ln(0.25, 0.75)])
    # draft tokens: {uniforms of the three tests: tokens}. A final uniform of .9 draws id 1 from rows that are not
    # greedy.
    taken = {
        (0, 0, 1): {(0.9, 0.9, 0.16): [0, 0, 1, 1], (0.9, 0.19, 0.17): [0, 0, 0], (0.0, 0.21, 0.17): [1]},
        (0, 1, 1): {(0.49, 0.0, 0.0): [0, 0], (0.501, 0.0, 0.0): [1]},
    }
    cases = [(d, u, tokens + [-1] * (4 - len(tokens))) for d, by_u in taken.items() for u, tokens in by_u.items()]
    stats = sk.row_stats(sk.Rows(p, temperature=torch.tensor([1.0, 0.0, 1.0, 1.0])))
    B = len(cases)
    args = dict(target_logits=p.expand(B, 4, 2), draft_tokens=torch.tensor([d for d, _, _ in cases]),
                draft_logits=q.expand(B, 3, 2), target_stats=stats.expand(B, 4, 4),
                uniforms=torch.tensor([[*u, 0.9] for _, u, _ in cases], dtype=torch.float64))  # fmt: skip
    out, ref = verify(**args, method="block"), reference_verify(**args, method="block")
    assert ref.tokens.tolist() == [tokens for _, _, tokens in cases] and (ref.margin > 1).all()
    checks.assert_same_tokens(out, ref)


def block_where_nothing_is_lacking(verify):
    """Check p = q with r_1 = 1, and then a draft token that has probability 0 in both.

    h_1 is 0 / 0. The block stops there, and the token after d_1 is drawn from p itself.
    """
    rows = ln(0.5, 0.5, 0.0)
    u = torch.tensor([[checks.ALMOST_ONE, 0.0, 0.6]], dtype=torch.float64)
    out = verify(rows.expand(1, 3, 3), torch.tensor([[0, 2]]), rows.expand(1, 2, 3), uniforms=u, method="block")
    assert out.tokens.tolist() == [[0, 1, -1]] and out.status.tolist() == [6]


def defaults_of_typical(verify):
    """Check that without alpha eps = .09 and delta = .3. The threshold is the smaller of eps and delta exp(-H).

    For p = (.78, .1, .08, .04), .3 exp(-H) is .14, so eps is the threshold. For ten equal ids and one of .026 it is
    .028, which is then the threshold.
    """
    rule = torch.tensor([TABLE["typical"].code])
    for p, drafts, taken in (((0.78, 0.1, 0.08, 0.04), [1, 2], [1, 0]), ((*[0.0974] * 10, 0.026), [0, 10], [1, 0])):
        z = ln(*p).expand(2, 2, -1)
        u = torch.full((2, 2), 0.5, dtype=torch.float64)
        assert verify(z, torch.tensor(drafts)[:, None], z[:, :1], uniforms=u, rule=rule).num_accepted.tolist() == taken
    z = ln(*[0.0305] * 30, 0.085).expand(1, 2, -1)  # .3 exp(-H) = .01; with delta = 3 the first draft would be rejected
    assert verify(
        z, torch.zeros(1, 1, dtype=torch.int64), z[:, :1], uniforms=u[:1], rule=rule
    ).num_accepted.tolist() == [1]
