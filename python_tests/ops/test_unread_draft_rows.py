# SPDX-License-Identifier: Apache-2.0
"""A greedy request does not read draft rows under rules where the target alone decides. Whatever the rows or draft_row
hold, it emits the argmax with status 0. A sampled request sets status 4."""

import pytest
import torch
from support import backends, races

from specdec_kernels.registry import CHAIN_METHODS, STATUS_INVALID_DRAFT, TREE_METHODS

B, G, V = 4, 3, 11
# rules that do not read q at T = 0
BY_TARGET = ("exact", "lenience", "lossy", "ensemble", "typical", "relaxed", "thresholds")
NOWHERE = (-7, G * B, 1 << 30, (1 << 31) - 1)
NAN, INF = float("nan"), float("inf")


def inputs(greedy):
    """Return rows whose argmax was drafted. The second request is greedy in both cases."""
    generator = torch.Generator().manual_seed(5)
    target, draft = torch.randn(B, G + 1, V, generator=generator), torch.randn(B, G, V, generator=generator)
    temperature = torch.zeros(B) if greedy else torch.tensor([1.0, 0.0, 0.7, 1.3])
    random = {"seed": torch.arange(B), "offset": torch.arange(B)}
    return target, target.argmax(-1)[:, :G].contiguous(), draft, {"temperature": temperature, **random}


def spoilt(draft, how):
    """Return the draft's rows and the row index of each position. The second position has an invalid row or index."""
    rows, numbers = draft.clone().flatten(0, 1), torch.arange(B * G).view(B, G)
    if isinstance(how, int):
        numbers[:, 1] = how
    else:
        rows[1::G] = how
    return rows, numbers


HOW = [*NOWHERE, NAN, INF, -INF]
CASES = [(method, rule) for method in CHAIN_METHODS for rule in BY_TARGET if rule in CHAIN_METHODS[method].rules]


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("method, rule", CASES)
def test_chains(backend, method, rule, how):
    target, tokens, draft, random = inputs(greedy=True)
    alpha = (1.0, 0.5) if rule == "relaxed" else None
    given = {"method": method, "rule": rule, "alpha": alpha, **random}
    want = backends.run("verify_chain", backend, target, tokens, draft, **given)
    assert want.num_accepted.tolist() == [G] * B and not want.status.any()
    rows, numbers = spoilt(draft, how)
    got = backends.run("verify_chain", backend, target, tokens, rows, draft_row=numbers, **given)
    for a, b in zip(got, want):
        assert torch.equal(a, b)


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("method", TREE_METHODS)
def test_trees(backend, method, how):
    target, tokens, draft, random = inputs(greedy=True)
    N = G + 1
    parents = torch.arange(-1, G).expand(B, N)
    tree = parents, torch.cat([torch.full((B, 1), -1), tokens], 1)
    number = (torch.arange(N).expand(B, N) - 1).clamp(min=0)  # index of the row that a node was drawn from
    given = {"method": method, **random}
    want = backends.run("verify_tree", backend, tree, target, draft, draft_row=number, **given)
    assert want.num_accepted.tolist() == [G] * B and not want.status.any()
    draft, number = draft.clone(), number.clone()
    if not isinstance(how, int):
        draft[:, 1] = how
    elif how > 0 or method != "kseq":
        number[:, 2] = how if how > 0 else 99
    got = backends.run("verify_tree", backend, tree, target, draft, draft_row=number, **given)
    for a, b in zip(got, want):
        assert torch.equal(a, b)


@pytest.mark.parametrize("how", NOWHERE)
@pytest.mark.parametrize("method", races.OTHERS)
def test_sampled_requests_say_so(backend, method, how):
    """Sampled requests set status 4, beside a greedy request that does not."""
    target, tokens, draft, random = inputs(greedy=False)
    rows, numbers = spoilt(draft, how)
    numbers[:, 0] = how  # the first position is always reached
    got = backends.run("verify_chain", backend, target, tokens, rows, draft_row=numbers, method=method, **random)
    assert got.status.tolist() == [STATUS_INVALID_DRAFT, 0, STATUS_INVALID_DRAFT, STATUS_INVALID_DRAFT]
    assert got.num_accepted[[0, 2, 3]].eq(0).all() and got.num_accepted[1] == G
