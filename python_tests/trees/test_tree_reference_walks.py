# SPDX-License-Identifier: Apache-2.0
"""reference.verify_tree with given uniforms: columns, margins, invalid data, rows by index, greedy rows."""

import math

import numpy as np
import pytest
import torch
from support import tiers
from support.tree_laws import ALL, GOLDEN, rows_of

from specdec_kernels import reference, testing
from specdec_kernels.reference import banded
from specdec_kernels.reference import tree_law as one_tree_law
from specdec_kernels.reference.banded import band, walks
from specdec_kernels.reference.tree_law import plain_tree
from specdec_kernels.rows import Rows


def logits_of(row, prefixes):
    with np.errstate(divide="ignore"):
        return torch.from_numpy(np.log(np.stack([row(t) for t in prefixes]))).float()


def prefixes_of(tree):
    parents, tokens = tree.parents[0].tolist(), tree.tokens[0].tolist()
    out = [()]
    for i in range(1, len(parents)):
        out.append((*out[parents[i]], tokens[i]) if parents[i] >= 0 else ())
    return out


@pytest.mark.parametrize("method", [*ALL, "greedy"])
@pytest.mark.slow
def test_uniforms_reproduce_the_enumerated_law(method, n=1200 if tiers.TIER == "all" else 600):
    """Sampled outcomes of one tree pass a chi-square test against the enumerated distribution. This tests the columns
    of the uniforms and the final draw; test_tree_reference.py tests the enumeration."""
    p, q = rows_of("random", 3)
    tree = reference.build_tree(torch.tensor([[[0, 1], [2, 1], [0, 2]]]))
    law = one_tree_law(tree, p, q, method)
    wide = [x.expand(n, *x.shape[1:]) for x in tree]
    columns = 6 if method in ("kseq", "recursive") else 7
    u = torch.rand(n, columns + 1, generator=torch.Generator().manual_seed(8), dtype=torch.float64)
    at = prefixes_of(tree)
    out = banded.verify_tree(
        wide, logits_of(p, at).expand(n, 7, 3), logits_of(q, at).expand(n, 7, 3), method=method, uniforms=u
    )
    result = testing.check_tokens(out.tokens.numpy(), law)
    assert result.passed, result
    assert (out.status == 0).all() and out.tokens.shape == (n, 3) and out.path.shape == (n, 3)
    for tokens, path, count, logprobs in zip(
        out.tokens.tolist(), out.path.tolist(), out.num_accepted.tolist(), out.logprobs.tolist()
    ):
        assert [tree.tokens[0, i].item() for i in path[1 : count + 1]] == tokens[:count] and path[count + 1 :] == [
            -1
        ] * (2 - count)
        if method != "greedy":
            want = [math.log(p(tuple(tokens[:i]))[tokens[i]]) for i in range(count + 1)] + [0] * (2 - count)
            assert logprobs == pytest.approx(want, abs=1e-6)


GOLDEN_LOGITS = tuple(torch.from_numpy(np.log(x)).float() for x in GOLDEN)


def node_step(
    method, tokens, u, p=GOLDEN_LOGITS[0], q=GOLDEN_LOGITS[1], kind="logits", target_row=None, draft_row=None, **more
):
    """Verify the children `tokens` of one root."""
    n = len(tokens) + 1
    tree = plain_tree([-1] + [0] * len(tokens), [-1, *tokens])
    return banded.verify_tree(
        tree,
        Rows(p.expand(1, n, len(p)), kind=kind, row=target_row),
        None if q is None else Rows(q.expand(1, n, len(q)), kind=kind, row=draft_row),
        method=method,
        uniforms=torch.tensor([u], dtype=torch.float64),
        **more,
    )


@pytest.mark.parametrize(
    "method, edges",
    [
        ("recursive", [0.6]),
        ("recursive_without_replacement", [0.6]),
        ("traversal", [0.6]),
        ("kseq", [0.6]),
        ("target_only", [0.3]),
    ],
)
def test_margin_is_small_at_an_edge_and_large_elsewhere(method, edges):
    """The only child, token 1, is accepted below u = p / q = .6 (for one draft, rho = 1). target_only accepts it below
    p = .3, by the root's uniform."""
    for edge in edges:
        column = 0 if method == "target_only" else 1

        def u(x):
            return [x if j == column else 0.2 for j in range(3)]

        near, far = node_step(method, [1], u(edge + 1e-8)), node_step(method, [1], u(edge + 1e-4))
        assert near.margin < 1 < far.margin
        assert node_step(method, [1], u(edge - 1e-4)).num_accepted.item() == 1 and far.num_accepted.item() == 0


def test_kseq_margin_knows_what_rho_may_be_off_by():
    """With two drafts, draft 1 is accepted below u = .3 / (rho * .5). An op may stop its search for the root of f at f
    = -1e-6, where rho is higher by about 1e-6 / |f'|."""
    edge = 0.6 / ((1.8 + math.sqrt(1.24)) / 2)
    near, far = (node_step("kseq", [1, 1], [0, edge - d, 0.9, 0.2]) for d in (3e-7, 1e-4))
    assert near.num_accepted.item() == far.num_accepted.item() == 1 and near.margin < 1 < far.margin


@pytest.mark.parametrize("method", ALL)
def test_bad_rows_and_tokens(method):
    p, q = GOLDEN_LOGITS
    nan = torch.tensor([math.nan, 0.0, 1.0])
    u = [0.99, 0.99, 0.99, 0.5]
    out = node_step(method, [0, 1], u, p=nan)
    assert (
        out.status.item() & 1 and out.tokens[0, 0].item() == 2 and out.logprobs[0, 0].isnan()
    )  # the largest finite entry
    out = node_step(method, [-7, 5], u)
    assert out.status.item() == 4 and out.tokens[0].tolist()[1:] == [-1, -1] and 0 <= out.tokens[0, 0] < 3
    # nothing is subtracted from p, of which a final uniform of .5 gives 0
    assert out.tokens[0, 0].item() == 0 and out.num_accepted.item() == 0
    if method == "target_only":
        return
    out = node_step(method, [0, 1], u, q=nan)
    assert out.status.item() == 5 and out.num_accepted.item() == 0 and 0 <= out.tokens[0, 0] < 3
    out = node_step(
        method, [0, 0], [0.0, 0.0, 0.0, 0.5], q=torch.tensor([-math.inf, 0.0, 0.0])
    )  # q(0) = 0: not drawn from q
    assert out.status.item() == 4 and out.num_accepted.item() == 0


def test_greedy_requests_mix_with_sampled_ones():
    p, q = GOLDEN_LOGITS
    tree = (torch.tensor([-1, 0, 0, 2]), torch.tensor([-1, 1, 0, 2]))
    for method in (*ALL, "greedy"):
        out = banded.verify_tree(
            tree,
            Rows(p.expand(2, 4, 3), temperature=torch.tensor([0.0, 1.0])),
            q.expand(2, 4, 3),
            method=method,
            max_depth=2,
            uniforms=torch.full((2, 5), 0.5, dtype=torch.float64),
        )
        assert out.tokens[0].tolist() == [0, 0, -1] and out.path[0].tolist() == [0, 2, -1] and out.status[0].item() == 0
        assert out.tokens.shape == (2, 3)


def test_rows_by_index_links_and_depth():
    p, q = GOLDEN_LOGITS
    tree = (torch.tensor([[-1, 0, 0, 1]]), torch.tensor([[-1, 2, 1, 0]]))
    rows = torch.stack([q, q, p])[None]
    u = torch.tensor([[0.0, 0.65, 0.59, 0.0, 0.1]], dtype=torch.float64)
    target, draft = Rows(rows, row=torch.tensor([[2, 2, 2, 2]])), Rows(rows, row=torch.tensor([[0, 0, 1, 0]]))
    args = dict(method="recursive", uniforms=u)
    out = banded.verify_tree(tree, target, draft, **args)
    assert out.path.tolist() == [[0, 1, 3, -1]] and out.tokens.tolist() == [[2, 0, 0, -1]]
    links = (torch.tensor([[2, 3, -1, -1]]), torch.tensor([[-1, -1, 1, -1]]))  # child 2 before child 1
    assert banded.verify_tree(tree, target, draft, links=links, **args).path.tolist() == [[0, 2, -1, -1]]
    assert banded.verify_tree(tree, target, draft, max_depth=1, **args).path.tolist() == [[0, 1]]
    assert banded.verify_tree(tree, target, draft, max_depth=0, **args).tokens.tolist() == [[0]]
    cycle = (torch.tensor([[1, 3, -1, -1]]), torch.tensor([[-1, 1, -1, -1]]))
    assert banded.verify_tree(tree, target, draft, links=cycle, **args).tokens.shape == (1, 4)  # the walk ends


def test_seeds_are_the_uniforms_of_domains_0_and_1():
    p, q = GOLDEN_LOGITS
    tree = reference.build_tree(torch.randint(0, 3, (64, 3, 2), generator=torch.Generator().manual_seed(4)))
    seed, offset = torch.arange(64) * 977, torch.arange(64) + 2**33
    for method, columns in (("kseq", 6), ("traversal", 7)):
        args = tree, p.expand(64, 7, 3), q.expand(64, 7, 3)
        u = torch.cat([reference.uniforms(seed, offset, columns, 0), reference.uniforms(seed, offset, 1, 1)], 1)
        a = banded.verify_tree(*args, method=method, seed=seed, offset=offset)
        b = banded.verify_tree(*args, method=method, uniforms=u)
        assert all(torch.equal(x, y) for x, y in zip(a, b)) and set(a.num_accepted.tolist()) == {0, 1, 2}


def test_one_hot_branches_and_rows_out_of_range():
    """Node 1 is the looked-up token 1 (draft_row -1), and node 2 is drawn from q. Token 1 is accepted with p = .3.
    After a rejection, node 2 is tested against q without token 1, (.4, 0, .6)."""
    p, q = GOLDEN_LOGITS
    rows = torch.tensor([[0, -1, 0]])
    for u, tokens in (([0, 0.29, 0, 0.2], [1, 0]), ([0, 0.31, 0.99, 0.2], [0, 0]), ([0, 0.31, 0.99, 0.6], [0, 1])):
        out = node_step("recursive_without_replacement", [1, 0], u, draft_row=rows)
        assert out.tokens[0, :2].tolist() == tokens and out.num_accepted.item() == 1
    tests = [node_step("recursive_without_replacement", [1, x], [0, 0.31, 0.5, 0.2], draft_row=rows) for x in (0, 2)]
    # residual (5/7, 0, 2/7) against q = (.4, 0, .6): 0 is accepted, and 2 with (2/7) / .6 = .476, which fails at u =
    # .5; the final token is then 0
    assert [t.tokens[0, 0].item() for t in tests] == [0, 0] and [t.num_accepted.item() for t in tests] == [1, 0]
    out = node_step("recursive", [1, 0], [0, 0.99, 0.99, 0.2], draft_row=torch.tensor([[0, 9, 9]]))
    assert out.status.item() == 5 and out.tokens[0].tolist() == [0, -1, -1]
    out = node_step("recursive", [1, 0], [0, 0.1, 0.99, 0.2], target_row=torch.tensor([[9, 0, 0]]))
    assert out.status.item() == 1 and out.tokens[0].tolist() == [0, -1, -1]


def test_probability_rows():
    P, Q = (torch.tensor(x, dtype=torch.float32) for x in GOLDEN)
    for method in ALL:
        for v in (0.0, 0.3, 0.7, 0.99):
            u = [0.4, 0.5, 0.5, v]
            a, b = (node_step(method, [1, 2], u), node_step(method, [1, 2], u, p=P, q=Q, kind="probs"))
            assert torch.equal(a.tokens, b.tokens) and torch.equal(a.path, b.path) and b.status.item() == 0
    assert node_step("greedy", [1, 0], [0.0] * 4, p=P, q=None, kind="probs").tokens[0].tolist() == [0, 0, -1]


@pytest.mark.parametrize("method", [*ALL, "greedy"])
def test_trees_of_nothing(method):
    p, q = GOLDEN_LOGITS
    for K, L in ((0, 2), (2, 0)):
        tree = reference.build_tree(torch.zeros(1, K, L, dtype=torch.int64))
        out = banded.verify_tree(
            tree,
            p.expand(1, 1, 3),
            q.expand(1, 1, 3),
            method=method,
            uniforms=torch.tensor([[0.4]] if method in ("kseq", "recursive") else [[0.0, 0.4]], dtype=torch.float64),
        )
        assert out.tokens.tolist() == [[0] + [-1] * L] and out.path.tolist() == [[0] + [-1] * L]
    empty = banded.verify_tree(
        (torch.zeros(0, 3), torch.zeros(0, 3)), torch.zeros(0, 3, 5), torch.zeros(0, 3, 5), method=method
    )
    assert empty.tokens.shape == (0, 3)


@pytest.mark.thorough
@pytest.mark.parametrize("method", ALL)
@pytest.mark.slow
def test_margin_covers_the_errors_it_is_made_of(method, monkeypatch, B=500 if tiers.TIER == "all" else 300):
    """Every probability is moved up or down by its error bound, as if float32 had 10 bits. No token outside the band
    changes, and some inside it do."""
    coarse = 2.0**-10
    for m in (band, walks):
        monkeypatch.setattr(m, "SUM_EPS", 32 * coarse)
    monkeypatch.setattr(band, "EPS", coarse)
    rng = np.random.default_rng(12)  # the same rows on every machine; torch's differ in the last bits
    q = rng.normal(size=(B, 7, 5))
    p = q + rng.normal(size=(B, 7, 5))
    drafts = torch.from_numpy((q[:, 0] + rng.gumbel(size=(3, 2, B, 5))).argmax(-1)).permute(2, 0, 1)
    p, q, u = torch.from_numpy(p).float(), torch.from_numpy(q).float(), torch.from_numpy(rng.random((B, 8)))
    args = dict(method=method, uniforms=u[:, :7] if method in ("kseq", "recursive") else u)
    draft = Rows(q, row=torch.zeros(B, 7, dtype=torch.int64))
    tree = reference.build_tree(drafts)
    ref = banded.verify_tree(tree, p, draft, **args)
    exact, noise = walks.Side.law, np.random.default_rng(13)

    def moved(side):
        law_of, cache = exact(side), {}

        def row(i):
            if i not in cache:
                p = (x := law_of(i)).p
                cache[i] = x._replace(p=band.Band(p.value + p.err * noise.choice([-1, 1], len(p)), p.err))
            return cache[i]

        return row

    monkeypatch.setattr(walks.Side, "law", moved)
    out = banded.verify_tree(tree, p, draft, **args)
    same = (out.tokens == ref.tokens).all(-1)
    assert (ref.margin[~same] <= 1).all(), ref.margin[~same]
    assert 0 < (~same).sum() and 0.3 < (ref.margin > 1).double().mean() < 1


def test_errors():
    p, q = GOLDEN_LOGITS
    with pytest.raises(ValueError, match="verify_tree: method must be one of 'kseq', .* got 'x'"):
        node_step("x", [1], [0, 0, 0])
    with pytest.raises(ValueError, match="verify_tree: method 'kseq' needs draft, got None"):
        node_step("kseq", [1], [0, 0, 0], q=None)
    with pytest.raises(ValueError, match=r"verify_tree: uniforms must have shape \[B=1, 2\+1\], got \[1, 2\]"):
        node_step("recursive", [1], [0, 0])
