# SPDX-License-Identifier: Apache-2.0
"""Rows, drafts and comparisons for exact distributions of tree verification. reference.tree_law enumerates the rule."""

import numpy as np
import torch
from support import backends, tiers

from specdec_kernels import testing
from specdec_kernels.reference.build_tree import Tree, build_tree
from specdec_kernels.reference.tree_law import iid_drafts

EXACT = 1e-12
ALL = ("kseq", "recursive", "recursive_without_replacement", "target_only", "traversal")
MERGED = ("recursive_without_replacement", "target_only", "traversal")  # these require distinct children

GOLDEN = (np.array([0.5, 0.3, 0.2]), np.array([0.2, 0.5, 0.3]))
# The golden pair's residual is one-hot, which hides wrong residuals. Here it is r = (0, 1/6, 5/6): after a rejection of
# 0 a second draft 1 is accepted with probability (1/6) / .35 = 10/21, a second draft 2 always.
TELLING = (np.array([0.2, 0.4, 0.4]), np.array([0.5, 0.35, 0.15]))


def constant(row):
    return lambda prefix: row


def random_rows(seed, vocab, concentration=0.7):
    """Return rows that depend on the whole prefix."""
    table = {}

    def row(prefix):
        if prefix not in table:
            table[prefix] = np.random.default_rng([seed, len(prefix), *prefix]).dirichlet(np.full(vocab, concentration))
        return table[prefix]

    return row


def with_zeros(row, keep):
    """Return the same rows with p = 0 for a third of the tokens, but never for all."""

    def cut(prefix):
        r = row(prefix).copy()
        r[(np.arange(len(r)) + sum(prefix) + len(prefix)) % 3 == keep] = 0.0
        return r / r.sum()

    return cut


def rows_of(kind, vocab):
    p, q = random_rows(1, vocab), random_rows(2, vocab)
    if kind == "zeros":
        return with_zeros(p, 0), with_zeros(q, 1)
    if kind == "equal":
        return p, p
    return p, q


def error(law, p, length):
    """Return the largest error of the completed joint distribution, or its missing mass: 0 if the rule is lossless."""
    full, target = testing.complete_law(law, p, length), testing.enumerate_law(p, length)
    return max(max(abs(full.get(t, 0.0) - target.get(t, 0.0)) for t in {*full, *target}), abs(sum(law.values()) - 1))


def first_token(law, vocab):
    """Return the distribution of the first emitted token."""
    out = np.zeros(vocab)
    for tokens, mass in law.items():
        out[tokens[0]] += mass
    return out


def without_drafts(trees):
    """Yield merged trees without `draft_nodes`, so that only the distinct children of a node are known."""
    for tree, probability in trees:
        yield Tree(tree.parents, tree.tokens), probability


def grouped_trees(q, K, L):
    """Yield trees of a mutant that tests equal drafts together (A, A, B for A, B, A), as merging with a count does."""
    for drafts, probability in iid_drafts(q, K, L):
        first = drafts[0].unique(dim=0, return_inverse=True)[1].tolist()
        rank = {x: first.index(x) for x in first}
        order = sorted(range(K), key=lambda k: rank[first[k]])
        yield build_tree(drafts[:, order]), probability


N = 200_000 if tiers.TIER == "all" else 80_000


def prefixes(tree):
    at = [()] * tree.parents.shape[1]
    for i, (parent, token) in enumerate(zip(tree.parents[0].tolist(), tree.tokens[0].tolist())):
        if parent >= 0:
            at[i] = (*at[parent], token)
    return at


def logits(row, at):
    with np.errstate(divide="ignore"):
        return torch.from_numpy(np.log(np.stack([row(t) for t in at]))).float()


def draws(backend, trees, p, q, method, seed=1, **rule):
    """Return the emitted tokens of requests whose trees are drawn with their probabilities."""
    n = N if backends.BACKENDS[backend].slower == 1 else 800
    trees = list(trees)
    rng = np.random.default_rng(seed)
    mass = np.array([m for _, m in trees])
    pick = torch.from_numpy(rng.choice(len(trees), n, p=mass / mass.sum()))
    at = [prefixes(tree) for tree, _ in trees]
    rows = [torch.stack([logits(side, t) for t in at])[pick] for side in (p, q)]
    tree = [None if trees[0][0][i] is None else torch.cat([t[i] for t, _ in trees])[pick] for i in range(4)]
    i = torch.arange(n)
    out = backends.call("verify_tree", backend)(
        tuple(tree), *rows, method=method, seed=i % 1009, offset=i // 1009, **rule
    )
    assert (out.status == 0).all()
    return out.tokens.numpy()
