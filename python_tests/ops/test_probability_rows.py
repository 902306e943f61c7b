# SPDX-License-Identifier: Apache-2.0
"""Invalid target probabilities under every rule, in chains and trees: negative ones count as 0, and ones that are not
finite make the row invalid wherever it is needed. No logprob is NaN while status is 0."""

import itertools
import math

import pytest
import torch
from support import answers as reference
from support import backends, checks, flat, rule_cases

import specdec_kernels as sk
from specdec_kernels.registry import TREE_METHODS
from specdec_kernels.rules import LAWS, RULES, TABLE, of_tree_method

POISON = (math.nan, math.inf, -math.inf, -0.25)
V = 5
P, Q = torch.tensor([0.4, 0.05, 0.3, 0.15, 0.1]), torch.tensor([0.05, 0.6, 0.1, 0.2, 0.05])
DRAFT = 1  # likely under the draft, unlikely under the target


def requests(names, thin=1):
    """Return (target rows, uniforms, other arguments), one request per combination, of which every `thin`-th is kept.

    The combinations run over every rule with its parameters, every invalid value, its place (at the draft token, at ids
    that may be drawn, in the bonus row), and some uniforms.
    """
    rules = [(name, alpha) for name in names for alpha in rule_cases.ALPHAS[name]]
    uniforms = itertools.product((0.02, 0.97), (0.1, 0.7))
    every = list(itertools.product(rules, [(0, DRAFT), (0, 0), (0, 3), (1, 1), (1, 2)], POISON, uniforms))[::thin]
    target = P.expand(len(every), 2, V).clone()
    for b, (_, (row, id), poison, _) in enumerate(every):
        target[b, row, id] = poison
    alpha = [[*a, *[x.default for x in TABLE[name].parameters[len(a) :]], 0.5, 0.5][:2] for (name, a), *_ in every]
    how = {
        "rule": torch.tensor([RULES[name] for (name, _), *_ in every]),
        "alpha": torch.tensor(alpha),
        "target_kind": "probs",
        "draft_kind": "probs",
    }
    return target, torch.tensor([u for *_, u in every], dtype=torch.float64), how


def thinned(backend):
    """Return n, if a backend tests every n-th request. It is coprime to the lengths of the cycles above, so no value is
    always skipped."""
    return {"cpu": 1, "cuda": 1, "triton": 1}.get(backend, 131 if backend in rule_cases.SLOW else 11)


def assert_told(out):
    """Check that NaN logprobs come with a status bit, and that none is +inf."""
    assert ((out.status & 1 > 0) | ~out.logprobs.isnan().any(-1)).all()
    assert not (out.logprobs == math.inf).any()


@pytest.mark.parametrize("method", ["token", "block"])
def test_chains(backend, method):
    target, u, how = requests(TABLE if method == "token" else LAWS, thinned(backend))
    B = len(u)
    args = {
        "target_logits": target,
        "draft_tokens": torch.full((B, 1), DRAFT),
        "draft_logits": Q.expand(B, 2, V),
        "uniforms": u,
        "method": method,
    }
    out, ref = backends.run("verify_chain", backend, **args, **how), flat.call(reference.verify_chain, **args, **how)
    assert_told(ref)
    assert_told(out)
    checks.assert_same_tokens(out, ref, method)
    assert {0, 1} <= set(ref.status.tolist())
    assert torch.equal(out.logprobs.isnan(), ref.logprobs.isnan()) and torch.equal(
        out.logprobs == -math.inf, ref.logprobs == -math.inf
    )


@pytest.mark.parametrize("method", ["kseq", "recursive", "recursive_without_replacement", "traversal", "target_only"])
def test_trees(backend, method):
    target, u, how = requests(of_tree_method(method), 2 * thinned(backend) + 1)
    if not backends.serves(backend, "verify_tree", how):
        how = {name: x for name, x in how.items() if name not in ("rule", "alpha")}
    B = len(u)
    tree = torch.tensor([[-1, 0]]).expand(B, 2), torch.tensor([[-1, DRAFT]]).expand(B, 2)
    u = torch.cat([u[:, :1], u], 1)  # target_only reads the root's uniform, the other methods node 1's
    args = {"tree": tree, "target_logits": target, "draft_logits": Q.expand(B, 2, V), "uniforms": u, "method": method}
    out, ref = backends.run("verify_tree", backend, **args, **how), flat.call(reference.verify_tree, **args, **how)
    assert_told(ref)
    assert_told(out)
    checks.assert_same_tokens(out, ref, method)
    assert torch.equal(out.logprobs.isnan(), ref.logprobs.isnan()) and torch.equal(
        out.logprobs == -math.inf, ref.logprobs == -math.inf
    )


@pytest.mark.parametrize("rule, alpha", [("chow", 0.5), ("chow_log", 2.0)])
def test_a_rule_that_keeps_the_draft(backend, rule, alpha):
    """The rule keeps q at every position. A negative target probability counts as 0, so its logprob is -inf. One that
    is not finite makes the row invalid, wherever it lies, and the step ends there."""
    verify = backends.call("verify_chain", backend)
    rows = P.repeat(4, 2, 1)
    rows[1, 0, DRAFT] = rows[2, 0, DRAFT] = -0.1
    rows[2, 0, DRAFT], rows[3, 0, 4] = math.nan, math.nan
    out = verify(rows, torch.full((4, 1), DRAFT), Q.expand(4, 1, V), target_kind="probs", draft_kind="probs", rule=rule,
                 alpha=alpha, uniforms=torch.tensor([[0.9, 0.1]], dtype=torch.float64).expand(4, 2))  # fmt: skip
    assert out.tokens.tolist() == [[DRAFT, 0], [DRAFT, 0], [0, -1], [0, -1]]
    assert out.status.tolist() == [0, 0, 1, 1]
    assert out.logprobs[0, 0].item() == pytest.approx(math.log(0.05), abs=1e-6) and out.logprobs[1, 0] == -math.inf
    assert out.logprobs[2:, 0].isnan().all()


def test_a_negative_probability_takes_nothing_from_its_siblings(backend):
    """target_only places the children's probabilities one after the other. Here they are 0 (from -.2) and .4, so u =
    .39 accepts the second child."""
    p = torch.tensor([0.4, -0.2, 0.6])
    tree = torch.tensor([[-1, 0, 0]]), torch.tensor([[-1, 1, 0]])
    for coin, accepted in ((0.39, 1), (0.41, 0)):
        out = backends.run("verify_tree", backend, tree, p.expand(1, 3, 3), method="target_only", target_kind="probs",
                           max_depth=1, uniforms=torch.tensor([[coin, 0.0, 0.0, 0.5]],
                           dtype=torch.float64))  # fmt: skip
        assert out.num_accepted.tolist() == [accepted] and out.status.tolist() == [0]


# ---- temperature 0: the largest entry -----------------------------------------------------------------------------

TIED = torch.tensor([[0.1, 0.4, 0.4, 0.05, 0.05], [0.2, 0.2, 0.2, 0.2, 0.2], [0.0, 0.0, 0.0, 0.0, 1.0]])


@pytest.mark.parametrize("method", ["token", "block"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_chains(backend, method, dtype):
    """Emits the first of equal maxima, without a random number or q. Drafts that are the argmax are accepted."""
    drafts = torch.tensor([[1, 0], [2, 0], [1, 3]])
    args = {"target_logits": TIED.expand(3, 3, V).to(dtype), "draft_tokens": drafts, "method": method}
    args |= {"target_kind": "probs", "temperature": 0}
    for draft in ({}, {"draft_logits": torch.full((3, 2, V), math.nan), "draft_kind": "probs"}):
        out = backends.run("verify_chain", backend, **args, **draft)
        assert out.tokens.tolist() == [[1, 0, 4], [1, -1, -1], [1, 0, -1]]
        assert out.num_accepted.tolist() == [2, 0, 1] and out.status.tolist() == [0, 0, 0]
        assert (out.logprobs == 0).all()


@pytest.mark.parametrize("method", TREE_METHODS)
def test_greedy_trees(backend, method):
    """Node 1 is the argmax of the root's row, and node 3 that of node 1's."""
    tree = torch.tensor([[-1, 0, 0, 1]]), torch.tensor([[-1, 1, 2, 0]])
    rows = TIED[[0, 1, 2, 2]][None]
    out = backends.run("verify_tree", backend, tree, rows, rows, method=method, target_kind="probs", draft_kind="probs",
                       temperature=0)  # fmt: skip
    assert out.path.tolist() == [[0, 1, 3, -1]] and out.tokens.tolist() == [[1, 0, 4, -1]]
    assert out.status.tolist() == [0] and (out.logprobs == 0).all()


@pytest.mark.parametrize("op", ["verify_chain", "verify_tree"])
def test_greedy_drafts(backend, op):
    """A greedy draft row is one-hot at its argmax, so a draft token of another id was not drawn from it."""
    ids = torch.tensor([1, 2]).repeat_interleave(20)
    u = torch.arange(20, dtype=torch.float64).repeat(2)[:, None] / 20
    target, draft = P.log().expand(40, 2, V), TIED[:1].expand(40, 2, V)
    if op == "verify_chain":
        how = {"draft_tokens": ids[:, None], "uniforms": torch.cat([u, 1 - u], 1)}
    else:
        tree = torch.tensor([[-1, 0]]).expand(40, 2), torch.stack([torch.full_like(ids, -1), ids], 1)
        how = {"tree": tree, "method": "recursive", "uniforms": torch.cat([u, u, 1 - u], 1)}
    rows = draft[:, :1] if op == "verify_chain" else draft
    out = backends.run(op, backend, target_logits=target, draft_logits=rows, draft_kind="probs", draft_temperature=0,
                       **how)  # fmt: skip
    plain = backends.run(op, backend, target_logits=target, **how)
    assert 0 < plain.num_accepted[:20].sum() < 20
    assert torch.equal(out.tokens[:20], plain.tokens[:20]) and (out.status[:20] == 0).all()
    assert (out.num_accepted[20:] == 0).all() and (out.status[20:] == 4).all()


@pytest.mark.parametrize("more", [{"top_k": 3}, {"temperature": torch.zeros(1)}, {"rule": "ensemble", "alpha": 0.5}])
def test_greedy_probabilities_go_with_nothing_else(more):
    args = {"target_logits": TIED.expand(1, 3, V), "draft_tokens": torch.tensor([[1, 0]]), "target_kind": "probs"}
    args |= {"draft_logits": TIED[None, :2], "uniforms": torch.zeros(1, 3, dtype=torch.float64)}
    flat.call(sk.verify_chain, **args, temperature=0)
    with pytest.raises(ValueError, match="^verify_chain: .*target.kind='(probs|logits)'"):
        flat.call(sk.verify_chain, **args | {"temperature": 0} | more)
