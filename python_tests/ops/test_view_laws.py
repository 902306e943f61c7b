# SPDX-License-Identifier: Apache-2.0
"""A step under a bias, growing penalties and a grammar's masks emits the distribution of plain decoding under them.

Joint distributions of chains and trees against enumeration, on flat and on peaked rows."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch

import specdec_kernels as sk
from specdec_kernels import testing
from specdec_kernels.reference.penalties import History, penalised
from specdec_kernels.reference.views import biased
from specdec_kernels.rows import Rows

V, G, T = 5, 2, 0.8
IDS, COUNTS, AMOUNTS = [1, 3], [0, 2], (1.3, 0.5, 0.7)  # 1 is in the prompt, 3 was emitted twice
BIAS = [(2, 0.8), (0, -0.5), (2, -0.3)]
PREFIXES = [x for n in range(G + 1) for x in itertools.product(range(V), repeat=n)]


def forbidden(last):
    """Return the ids that the grammar forbids after the token `last`. V stands for the start."""
    return {(2 * last + 1) % V, (last + 3) % V}


def seen(row, tokens):
    """Return the probabilities of a row under all views, after these tokens."""
    e = biased(np.asarray(row, dtype=np.float32), *zip(*BIAS))
    e = penalised(e, History.of_list(IDS, COUNTS, V).after(tokens), *AMOUNTS)
    e = np.where(np.isin(np.arange(V), [*forbidden(tokens[-1] if len(tokens) else V)]), -np.inf, e)
    return testing.softmax(e.astype(np.float64), temperature=T)


def table(seed, spread):
    """Return the logits after each prefix."""
    rng = np.random.default_rng(seed)
    return {x: rng.normal(0, spread, V).astype(np.float32) for x in PREFIXES}


def views(last):
    """Return the views of rows after the tokens `last` [n, positions]. V stands for the start."""
    words = [[sum(1 << v for v in range(V) if v not in forbidden(t))] for t in range(V + 1)]
    zero = torch.zeros(len(last), dtype=torch.int64)
    ids, values = zip(*BIAS)
    lists = (torch.tensor([x], dtype=torch.int32) for x in (IDS, COUNTS))
    return {
        "temperature": T,
        "bias": sk.Bias(torch.tensor([ids]), torch.tensor([values]), zero),
        "penalties": sk.Penalties(*AMOUNTS, *lists, row=zero),
        "allowed": sk.Allowed(torch.tensor(words, dtype=torch.int32), last),
    }


def verified(step, method, of_draft=True, late=0):
    """Return the emitted tokens of a step. late: by how many positions a mutant delays the masks."""
    n = len(step.draft_tokens)
    last = torch.cat([torch.full((n, 1), V), step.draft_tokens], 1)
    if late:
        last = torch.cat([last[:, :1].expand(n, late), last[:, :-late]], 1)
    of = views(last)
    draft = Rows(step.draft_logits, **of) if of_draft else Rows(step.draft_logits)
    random = {"seed": step.seed, "offset": step.seed * 0}
    return sk.verify_chain(Rows(step.target_logits, **of), step.draft_tokens, draft, method=method, **random).tokens


@pytest.mark.parametrize("spread", [1.5, 60.0])
@pytest.mark.parametrize("of_draft", [True, False])
@pytest.mark.parametrize("method", ["token", "block"])
def test_a_chain(method, of_draft, spread):
    p, q = table(1, spread), table(2, spread / 2)
    draft_transform = seen if of_draft else testing.softmax
    case = testing.Case("views", "", p.get, q.get, G, transform=seen, draft_transform=draft_transform)
    testing.assert_verifier(partial(verified, method=method, of_draft=of_draft), case, 40_000, expected=method)


def test_masks_that_come_late_are_found():
    p, q = table(1, 1.5), table(2, 1.5)
    case = testing.Case("views", "", p.get, q.get, G, transform=seen, draft_transform=seen)
    assert not testing.check_verifier(partial(verified, method="token", late=1), case, 4_000).passed


def paths(parents, tokens):
    """Return the tokens from the root to each node, [n][N] tuples."""
    found = []
    for up, own in zip(parents.tolist(), tokens.tolist()):
        way = [()]
        for i in range(1, len(up)):
            way.append((*way[up[i]], own[i]) if up[i] >= 0 else ())
        found.append(way)
    return found


def stepped(seeds, p, q, drawn_from, method, K=2):
    """Return the emitted tokens of a step on a tree of K drafts of G tokens. p, q: logits; drawn_from: the
    probabilities that drafts are drawn from."""
    rng, n = np.random.default_rng(int(seeds[0])), len(seeds)
    drafts = np.zeros((n, K, 0), dtype=np.int64)
    for _ in range(G):
        laws = np.array([[drawn_from[tuple(x)] for x in of] for of in drafts.tolist()])
        drawn = (laws.cumsum(-1) < rng.random((n, K, 1))).sum(-1)
        drafts = np.concatenate([drafts, drawn.clip(max=V - 1)[:, :, None]], -1)
    tree = sk.build_tree(torch.from_numpy(drafts))
    ways = paths(tree.parents, tree.tokens)
    last = torch.tensor([[way[-1] if way else V for way in of] for of in ways])
    of = views(last)
    target, draft = (torch.tensor(np.array([[z[way] for way in of_ways] for of_ways in ways])) for z in (p, q))
    rows = Rows(target, **of), Rows(draft, **of)
    return sk.verify_tree(tree, *rows, method=method, seed=seeds, offset=seeds * 0).tokens


@pytest.mark.parametrize("spread", [1.5, 60.0])
@pytest.mark.parametrize("method", ["kseq", "recursive"])
def test_a_tree(method, spread):
    p, q = table(3, spread), table(4, spread / 2)
    target, draft = ({x: seen(z[x], x) for x in PREFIXES} for z in (p, q))
    law = testing.enumerate_law(target.get, G + 1)

    def draw(seeds):
        tokens = stepped(seeds, p, q, draft, method)
        return testing.complete_tokens(tokens, target.get, G + 1, seed=int(seeds[0]) + 1)

    testing.assert_law(draw, law, 30_000, batch=10_000)
