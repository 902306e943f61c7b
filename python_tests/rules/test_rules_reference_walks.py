# SPDX-License-Identifier: Apache-2.0
"""reference.verify_chain with rules and block verification on given uniforms: mixed batches, greedy rows, invalid data,
ties, margins and arguments."""

import math

import numpy as np
import pytest
import torch
from support.rule_laws import ALPHAS, LAWS, OTHERS, ROW_RULES, TOKEN_RULES, assert_equal, chain_args
from support.tree_laws import TELLING
from torch.utils._pytree import tree_map_only

from specdec_kernels.reference import banded
from specdec_kernels.reference.rules.one_step import pi_of
from specdec_kernels.reference.tree_law import plain_tree
from specdec_kernels.rows import Rows
from specdec_kernels.rules import RULES

ALMOST_ONE = 1 - 2.0**-53


def ln(row):
    with np.errstate(divide="ignore"):
        return torch.tensor(np.log(row), dtype=torch.float64)


def step(p, q, drafts, u, q_end=None, temperature=None, draft_temperature=None, **more):
    """Verify one request on rows [G+1, V] and [G, V] of probabilities, given as logits. u: the uniforms of the tests,
    then that of the final draw."""
    p, q = ln(np.asarray(p, dtype=float)), None if q is None else ln(np.asarray(q, dtype=float))
    if q_end is not None:
        q = torch.cat([q, ln(np.asarray([q_end], dtype=float))])
    return banded.verify_chain(
        Rows(p[None], temperature=temperature),
        torch.tensor([drafts]),
        None if q is None else Rows(q[None], temperature=draft_temperature),
        uniforms=torch.tensor([u], dtype=torch.float64),
        **more,
    )


# ---- block ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "drafts, u, tokens",
    [
        ([0, 0], (0.0, 0.249), [0, 0, 1]),
        ([0, 0], (0.0, 0.251), [1]),  # r = (.5, .25) and s_1 = 0: both or none, for any u_1
        ([0, 1], (0.999, 0.999), [0, 1, 1]),  # r = (.5, 1)
        ([1, 0], (0.999, 0.499), [1, 0, 1]),
        ([1, 0], (0.999, 0.501), [1, 1]),  # r = (1, .5), h_1 = 1
        ([1, 1], (0.999, 0.999), [1, 1, 1]),
    ],
)
def test_block_golden(drafts, u, tokens):
    """p = (1/3, 2/3), q = (2/3, 1/3): the worked example of Sun et al. 2024. A final uniform of .9 draws id 1."""
    out = step([[1 / 3, 2 / 3]] * 3, [[2 / 3, 1 / 3]] * 2, drafts, [*u, 0.9], method="block")
    assert out.tokens[0].tolist() == tokens + [-1] * (3 - len(tokens)) and out.status.item() == 0


def test_a_block_is_the_traversal_of_a_single_path():
    """Block verification and traversal, implemented from two papers, give the same tokens with the same uniforms. Test
    i reads column i in the chain, and its node's column in the tree."""
    args = chain_args(2, B=200, G=4, V=5)
    # drafts that are not drawn from q, so they are accepted less often
    q = args["draft"] = chain_args(3, B=200, G=4, V=5)["draft"]
    want = banded.verify_chain(**args, method="block")
    assert len(set(want.num_accepted.tolist())) == 5
    chains = [plain_tree([-1, 0, 1, 2, 3], [-1, *d]) for d in args["draft_tokens"].tolist()]
    tree = tuple(torch.cat([chain[i] for chain in chains]) for i in (0, 1))
    u = torch.cat([torch.zeros(200, 1, dtype=torch.float64), args["uniforms"]], 1)
    out = banded.verify_tree(tree, args["target"], q, method="traversal", uniforms=u)
    safe = want.margin > 1e-6
    assert safe.all() and torch.equal(out.tokens, want.tokens) and torch.equal(out.num_accepted, want.num_accepted)
    assert out.logprobs.numpy() == pytest.approx(want.logprobs.numpy(), abs=1e-12)


def test_nothing_behind_a_first_r_of_zero_is_read():
    nan = [math.nan] * 3
    p, q = [[0.5, 0.5, 0.0], [0.2, 0.3, 0.5], nan, nan], [[0.3, 0.3, 0.4], [0.2, 0.4, 0.4], nan]
    out = step(p, q, [2, 0, 0], [0.0] * 3 + [0.9], method="block")
    assert out.tokens[0].tolist() == [1, -1, -1, -1] and out.status.item() == 0


# ---- mixed batches --------------------------------------------------------------------------------------------------


def mixed(method, B):
    names = LAWS if method == "block" else [*ALPHAS]
    rules = [names[b % len(names)] for b in range(B)]
    alpha = torch.tensor([[*ALPHAS[rule], 0.0, 0.0][:2] for rule in rules])
    return rules, torch.tensor([RULES[rule] for rule in rules]), alpha


@pytest.mark.parametrize("method", ["token", "block"])
def test_a_request_in_a_mixed_batch_is_the_request_alone(method):
    B = 85
    args = chain_args(4, B=B)
    args["target"] = Rows(args["target"], temperature=torch.tensor([0.0, 0.7, 1.0, 1.3]).repeat(22)[:B])
    rules, codes, alpha = mixed(method, B)
    out = banded.verify_chain(**args, method=method, rule=codes, alpha=alpha)
    exact = banded.verify_chain(**args, method=method)
    assert 20 < (out.tokens != exact.tokens).any(-1).sum()
    for b in range(B):
        alone = tree_map_only(torch.Tensor, lambda x: x[b : b + 1], args)
        given = ALPHAS[rules[b]] or None
        want = banded.verify_chain(**alone, method=method, rule=rules[b], alpha=given)
        for got, expected in zip(out, want):
            assert torch.equal(got[b : b + 1].nan_to_num(9.0), expected.nan_to_num(9.0)), rules[b]


@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.parametrize("end_row", [False, True])
def test_ragged_equals_dense(method, end_row):
    B, G = 51, 3
    args = chain_args(5, B=B, end_row=end_row)
    lengths = torch.arange(B) % (G + 1)
    args["draft_tokens"][torch.arange(G)[None] >= lengths[:, None]] = -1
    _, codes, alpha = mixed(method, B)
    more = dict(method=method, rule=codes, alpha=alpha, uniforms=args.pop("uniforms"))
    ragged = {
        name: torch.cat(
            [rows[: n + (name == "target" or (end_row and name == "draft"))] for rows, n in zip(x, lengths)]
        )
        for name, x in args.items()
    }
    cu_draft = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    want = banded.verify_chain(**args, **more)
    for got, expected in zip(banded.verify_chain(**ragged, cu_draft=cu_draft, max_draft=G, **more), want):
        assert torch.equal(got, expected)


@pytest.mark.parametrize("method", ["token", "block"])
def test_the_bonus_follows_pi_where_the_drafts_row_is_given(method):
    """The bonus token follows pi if the rule defines one and the draft has a row for that position. Otherwise it
    follows p. A bonus token from the caller is emitted unchanged."""
    p, q = TELLING
    for rule in LAWS if method == "block" else ALPHAS:
        for end in (True, False):
            pi = pi_of(p, q, rule, ALPHAS[rule]) if rule in LAWS and end else p
            for v, x in [((pi[:x].sum() + pi[: x + 1].sum()) / 2, x) for x in range(3) if pi[x] > 0]:
                out = step(
                    [p],
                    np.zeros((0, 3)),
                    [],
                    [v],
                    q_end=q if end else None,
                    method=method,
                    rule=rule,
                    alpha=ALPHAS[rule] or None,
                )
                assert out.tokens.tolist() == [[x]], (rule, end, v)
    out = banded.verify_chain(
        ln(p)[None, None],
        torch.tensor([[1]]),
        ln([q, q])[None],
        bonus_tokens=torch.tensor([2]),
        method=method,
        rule="ensemble",
        alpha=0.5,
        uniforms=torch.zeros(1, 2, dtype=torch.float64),
    )
    assert out.tokens.tolist() == [[1, 2]]


# ---- greedy targets -------------------------------------------------------------------------------------------------

P1, Q1 = (0.5, 0.3, 0.2), (0.1, 0.36, 0.54)  # argmax 0 and 2


def greedy_step(d, rule, alpha, u=0.5, v=0.5, q_temperature=0.0, method="token", end=False):
    out = step(
        [P1, P1],
        [Q1],
        [d],
        [u, v],
        q_end=Q1 if end else None,
        rule=rule,
        alpha=alpha,
        temperature=0.0,
        draft_temperature=q_temperature,
        method=method,
    )
    return out.tokens[0].tolist()


@pytest.mark.parametrize("method", ["token", "block"])
def test_greedy_rows(method):
    """The target is at T = 0, and so is the draft unless q_temperature is given. A rule that defers emits the argmax of
    p. Under a rule that keeps the draft's row, the draft is accepted, and the bonus is the argmax of q if the draft is
    greedy. Confidences come from the unscaled rows."""
    assert greedy_step(2, "diff", 0.0, method=method) == [2, 0] and greedy_step(2, "chow", 0.4, method=method) == [
        0,
        -1,
    ]
    assert greedy_step(2, "diff", 0.0, method=method, end=True) == [2, 2]  # the bonus token too
    assert greedy_step(0, "chow", 0.4, q_temperature=1.0, method=method) == [0, 0]
    for alpha, kept in ((0.25, False), (0.35, True)):  # token_v2: .2 >= .5 - alpha
        assert greedy_step(2, "token_v2", alpha, method=method) == ([2, 0] if kept else [0, -1])
        assert greedy_step(2, "token_v3", 2 * alpha, method=method) == (
            [2, 0] if kept else [0, -1]
        )  # .2 >= (1 - 2 alpha) .5
    assert greedy_step(1, "token_v1", 0.1, q_temperature=1.0, method=method) == [0, -1]  # .36 < .4
    assert greedy_step(1, "token_v1", 0.2, q_temperature=1.0, method=method) == [1, 0]
    assert greedy_step(0, "token_v1", 0.1, q_temperature=1.0, method=method) == [
        0,
        0,
    ]  # the argmax of p is accepted, whether the rule keeps it or not
    for d in (0, 1, 2):
        # as under the exact rule
        assert greedy_step(d, "lossy", 0.4, ALMOST_ONE, method=method) == ([0, 0] if d == 0 else [0, -1])


def test_greedy_lenience_is_the_argmax_variant():
    """At T = 0, lenience accepts x iff p1(x) >= l max p1, without a random number: here .3 >= .5 l, up to l = .6. At l
    = 1 it rejects a tied token that is not the argmax, as the exact rule does."""
    for l, kept in ((0.59, True), (0.61, False)):
        for u in (0.0, ALMOST_ONE):
            assert greedy_step(1, "lenience", l, u) == ([1, 0] if kept else [0, -1])
    out = step([(0.4, 0.4, 0.2)] * 2, None, [1], [0.0, 0.0], rule="lenience", alpha=1.0, temperature=0.0)
    assert out.tokens.tolist() == [[0, -1]]
    out = step([(0.4, 0.4, 0.2)] * 2, None, [1], [0.0, 0.0], rule="lenience", alpha=0.99, temperature=0.0)
    assert out.tokens.tolist() == [[1, 0]]


def test_greedy_rows_of_the_other_rules():
    assert greedy_step(1, "relaxed", (2, 0.21)) == [1, 0] and greedy_step(1, "relaxed", (2, 0.19)) == [0, -1]
    assert greedy_step(2, "relaxed", (2, 1.0)) == [0, -1]
    for d in (0, 1):
        for rule, alpha in (("typical", None), ("thresholds", (0.4, 0.5))):
            assert greedy_step(d, rule, alpha) == ([0, 0] if d == 0 else [0, -1])
    assert greedy_step(1, "synthetic", 0.6) == [1, 0] and greedy_step(1, "synthetic", 0.4) == [0, -1]
    assert greedy_step(1, "ensemble", 0.3, 0.69, q_temperature=1.0) == [1, 0] and greedy_step(
        1, "ensemble", 0.3, 0.71, q_temperature=1.0
    ) == [0, -1]


# ---- bad data -------------------------------------------------------------------------------------------------------

NAN = (math.nan, 0.5, 0.5)


@pytest.mark.parametrize("rule", [*ROW_RULES, *TOKEN_RULES])
def test_nan_confidences_defer(rule):
    """If the draft's probabilities contain NaN, a cascade tests id 1 as the exact rule does, and the residual counts
    the NaN as 0. With these parameters it keeps a finite row."""
    alpha = {"chow_log": 9.0, "diff_log": 9.0, "opt": 9.0, "opt_log": 9.0}.get(rule, 1.0)
    for d, u, tokens in ((1, 0.59, [1, 0]), (1, 0.61, [0, -1])):
        target = Rows(torch.tensor([[[0.5, 0.3, 0.2]] * 2], dtype=torch.float64), kind="probs")
        draft = Rows(torch.tensor([[NAN]], dtype=torch.float64), kind="probs")
        args = dict(rule=rule, alpha=alpha, uniforms=torch.tensor([[u, 0.0]], dtype=torch.float64))
        finite = draft._replace(logits=draft.logits.nan_to_num(0.0))
        kept = banded.verify_chain(target, torch.tensor([[d]]), finite, **args)
        assert kept.num_accepted.item() == 1
        out = banded.verify_chain(target, torch.tensor([[d]]), draft, **args)
        assert out.tokens[0].tolist() == tokens, "the rule did not defer"


@pytest.mark.parametrize("rule", ALPHAS)
def test_bad_rows_and_drafts_emit_a_token_of_the_vocabulary(rule):
    good, bad = np.array([0.5, 0.3, 0.2]), np.array([math.nan, 0.5, 0.5])
    for method in ("token", "block") if rule in LAWS else ("token",):
        more = dict(rule=rule, alpha=ALPHAS[rule] or None, method=method)
        reads_q = rule not in OTHERS[1:]
        out = step([good, good], [bad], [1], [0.0, 0.7], **more)
        assert out.status.item() == (5 if reads_q else 0) and (out.num_accepted.item() == 0 or not reads_q)
        # a uniform of .7 under p: the residual subtracts nothing
        assert not reads_q or out.tokens[0].tolist() == [1, -1]
        out = step([bad, good], [good], [1], [0.0, 0.7], **more)
        assert (
            out.status.item() == 1 and out.tokens[0].tolist() == [1, -1] and out.logprobs[0, 0].isnan()
        )  # invalid target row: emits its largest finite entry
        out = step([good, good], [(0.7, 0.0, 0.3)], [1], [0.0, 0.0], **more)  # q(d) = 0
        assert not reads_q or (out.status.item() & 4 and out.num_accepted.item() == 0)
        for d in (-1, 7):
            out = step([good, good], [good], [d], [0.0, 0.7], **more)
            assert out.tokens[0].tolist() == [1, -1] and out.status.item() == 0


def test_a_token_the_target_forbids_is_not_accepted():
    """These rules define no distribution. They reject a draft with p(d) = 0 even at very loose parameters."""
    p = (0.6, 0.4, 0.0)
    for rule, alpha in (
        ("typical", (0.0, 0.0)),
        ("relaxed", (9, 1.0)),
        ("thresholds", (1e-6, 1e-6)),
        ("lenience", 1e-6),
    ):
        for temperature in (0.0, 1.0):
            out = step([p, p], [(0.2, 0.2, 0.6)], [2], [0.0, 0.0], rule=rule, alpha=alpha, temperature=temperature)
            assert out.num_accepted.item() == 0, rule


# ---- edges ----------------------------------------------------------------------------------------------------------


def probs_step(rule, alpha, d, u, p, q):
    return banded.verify_chain(
        Rows(torch.tensor([[p, p]], dtype=torch.float64), kind="probs"),
        torch.tensor([[d]]),
        Rows(torch.tensor([[q]], dtype=torch.float64), kind="probs"),
        rule=rule,
        alpha=alpha,
        uniforms=torch.tensor([[u, 0.0]], dtype=torch.float64),
    )


def test_a_tie_keeps_the_draft():
    """These rules compare with >=, so a tie keeps the draft; only "typical" compares with >. Probability rows are not
    rounded, so these ties are exact."""
    p, q = [0.5, 0.25, 0.25], [0.125, 0.75, 0.125]
    for rule, alpha, d in (("chow", 0.25, 1), ("token_v2", 0.25, 1), ("token_v3", 0.5, 1)):
        below = float(np.nextafter(np.float32(alpha), np.float32(0)))
        assert probs_step(rule, alpha, d, ALMOST_ONE, p, q).num_accepted.item() == 1, rule
        assert probs_step(rule, below, d, ALMOST_ONE, p, q).num_accepted.item() == 0, rule
    p, q = [0.75, 0.125, 0.125], [0.25, 0.5, 0.25]
    assert probs_step("diff", 0.25, 2, ALMOST_ONE, p, q).num_accepted.item() == 1
    assert probs_step("diff", 0.2499, 2, ALMOST_ONE, p, q).num_accepted.item() == 0
    assert probs_step("opt", 0.5, 2, ALMOST_ONE, p, q).num_accepted.item() == 1  # TV = .5
    assert probs_step("token_v1", 0.25, 1, ALMOST_ONE, p, q).num_accepted.item() == 1  # .5 >= .75 - .25
    # typical compares with >, as Medusa does
    assert probs_step("typical", (0.125, 1.0), 1, 0.0, p, q).num_accepted.item() == 0
    assert probs_step("relaxed", (2, 0.0), 1, 0.0, [0.5, 0.25, 0.25], q).num_accepted.item() == 0
    assert (
        probs_step("relaxed", (2, 0.25), 2, 0.0, [0.5, 0.25, 0.25], q).num_accepted.item() == 1
    )  # ties with the n-th are kept


@pytest.mark.parametrize(
    "rule, alpha, edges",
    [
        ("chow", 0.5, None),
        ("diff", 0.05, None),
        ("token_v2", 0.1999, None),  # close to its threshold
        ("lossy", 0.2, {1: 0.75, 2: 5 / 6}),
        ("ensemble", 0.5, {1: 0.8, 2: 5 / 6}),
        ("lenience", 0.8, {1: 0.75}),
        ("token_v3", 0.5, {2: 0.2}),
        ("synthetic", 0.7, {0: 0.7}),
        ("thresholds", (0.9, 0.8), {0: 0.625, 1: 0.375}),
    ],
)
def test_margins(rule, alpha, edges):
    """The margin is small at the edge of an acceptance and large elsewhere. "synthetic" rounds nothing, so its margin
    is never small."""
    p, q = (0.5, 0.3, 0.2), (0.2, 0.5 + 1e-8, 0.3 - 1e-8)
    if edges is None:
        q = (0.2, 0.5 - 1e-8, 0.3 + 1e-8) if rule == "chow" else (0.2, 0.45 - 1e-8, 0.35) if rule == "diff" else q
        p = p if rule != "token_v2" else (0.5, 0.3001 - 1e-8, 0.1999)
        assert step([p, p], [q], [1], [0.3, 0.3], rule=rule, alpha=alpha).margin < 1
        far = (0.2, 0.4, 0.4) if rule != "token_v2" else q
        assert step([(0.5, 0.31, 0.19), p], [far], [1], [0.3, 0.3], rule=rule, alpha=alpha).margin > 1
        return
    for d, edge in edges.items():
        for distance in (3e-9, 1e-4):
            below, above = (
                step([p, p], [q], [d], [edge + x, 0.1], rule=rule, alpha=alpha) for x in (-distance, distance)
            )
            near = distance < 1e-8 and rule != "synthetic"
            assert (below.margin < 1) == (above.margin < 1) == near, (rule, d, edge)
            if distance > 1e-8:
                assert below.num_accepted.item() == 1 and above.num_accepted.item() == 0, (rule, d, edge)


# ---- arguments ------------------------------------------------------------------------------------------------------

RANGES = {
    "chow": r"\[0, 1\]",
    "chow_log": r"\[0, inf\)",
    "diff": r"\[0, 1\]",
    "diff_log": r"\[0, inf\)",
    "opt": r"\[0, inf\)",
    "opt_log": r"\[0, inf\)",
    "token_v1": r"\[0, 1\]",
    "token_v2": r"\[0, 1\]",
    "token_v3": r"\[0, 1\]",
    "lenience": r"\(0, 1\]",
    "lossy": r"\[0, 1\)",
    "ensemble": r"\[0, 1\]",
    "typical": r"\[0, 1\]",
    "relaxed": r"\[1, inf\)",
    "synthetic": r"\[0, 1\]",
    "thresholds": r"\(0, 1\]",
}


def test_alpha_outside_its_range_is_refused():
    args = chain_args(6, B=2)
    for rule, text in RANGES.items():
        for alpha in (-0.1, math.nan, math.inf):
            with pytest.raises(
                ValueError, match=f"verify_chain: alpha of rule {rule} must be in {text}, got {alpha:g}"
            ):
                banded.verify_chain(**args, rule=rule, alpha=alpha)
    with pytest.raises(ValueError, match=r"the second alpha of rule thresholds must be in \(0, 1\], got 0"):
        banded.verify_chain(**args, rule="thresholds", alpha=(1.0, 0.0))
    with pytest.raises(ValueError, match=r"alpha of rule lossy must be in \[0, 1\), got 1"):
        banded.verify_chain(
            **args, rule=torch.tensor([0, RULES["lossy"]]), alpha=torch.tensor([7.0, 1.0])
        )  # the exact rule takes no parameter


def test_what_else_is_refused():
    args = chain_args(6, B=2)
    for rule in OTHERS:
        with pytest.raises(
            ValueError, match=f"verify_chain: rule {rule} defines no distribution, so method must be token, got block"
        ):
            banded.verify_chain(**args, rule=rule, method="block")
    with pytest.raises(
        ValueError, match="verify_chain: rule must be one of 'exact', 'chow', .* or a tensor of codes, got 'x'"
    ):
        banded.verify_chain(**args, rule="x")
    with pytest.raises(ValueError, match="verify_chain: rule codes must be 0 ... 16, got 17"):
        banded.verify_chain(**args, rule=torch.tensor([0, 17]))
    with pytest.raises(ValueError, match="verify_chain: rule 'exact' takes no alpha, got 0.5"):
        banded.verify_chain(**args, alpha=0.5)


def test_defaults_are_the_strictest_values_and_medusas():
    args = chain_args(7, B=30)
    for rule in ALPHAS:
        default = {"typical": (0.09, 0.3), "relaxed": (1, 0.0), "thresholds": (1.0, 1.0)}.get(rule)
        alpha = default or {"lenience": 1.0, "ensemble": 1.0, "exact": None}.get(rule, 0.0)
        assert_equal(banded.verify_chain(**args, rule=rule), banded.verify_chain(**args, rule=rule, alpha=alpha), rule)
    only_eps = banded.verify_chain(**args, rule="typical", alpha=0.2)
    assert_equal(only_eps, banded.verify_chain(**args, rule="typical", alpha=(0.2, 0.3)))
