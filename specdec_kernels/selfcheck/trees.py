# SPDX-License-Identifier: Apache-2.0
"""Checks of trees drafted, merged and verified by the ops.

Tokens that a step does not reach are drawn from the target, so that all results have the same length.
"""

from functools import partial

import torch

from ..registry import TREE_METHODS
from ..testing import check_law, complete_tokens, enumerate_law
from .statistics import Agreement, Check, does_not_follow, follows

TREE_STEPS = 250_000
V, K, L = 6, 3, 2  # small enough that drafts A, B, A are common, large enough to test second rejections
SHAPE = torch.tensor([-1, 0, 0, 1, 1, 2, 2], dtype=torch.int64, device="cpu")  # two children at each inner node


def rows(seed):
    """Return logits [V, V] of a level: row t is the distribution after token t."""
    generator = torch.Generator().manual_seed(seed)
    return 1.2 * torch.randn(V, V, generator=generator, dtype=torch.float32, device="cpu")


P, Q = [rows(i) for i in (1, 2, 3)], [rows(i) for i in (4, 5)]


def seeds(generator, B):
    """Return random seeds and offsets of B requests, for races."""
    return {
        name: torch.randint(1 << 40, (B,), generator=generator, dtype=torch.int64, device="cpu")
        for name in ("seed", "offset")
    }


def draws(sk, table, tokens, **options):
    """Draw the tokens after each of `tokens` [n, m] by sk.sample -> [n, m, k]. Seeds and offsets are [n]."""
    m = tokens.shape[1]
    options |= {name: options[name].repeat_interleave(m) for name in ("seed", "offset")}
    return sk.sample(table.to(tokens.device)[tokens.flatten()], **options).tokens.view(len(tokens), m, -1)


def independent(sk, rng):
    """Draft K independent chains of length L, and merge them."""
    root = torch.zeros(len(rng["seed"]), 1, dtype=torch.int64, device=rng["seed"].device)
    first = draws(sk, Q[0], root, k=K, **rng)[:, 0]
    slot = torch.arange(K, 2 * K, device=root.device).repeat(len(root))
    return sk.build_tree(torch.stack((first, draws(sk, Q[1], first, slot=slot, **rng)[:, :, 0]), 2))


def distinct(sk, rng):
    """Draft a tree of SHAPE, with each node's children drawn without replacement."""
    root = torch.zeros(len(rng["seed"]), 1, dtype=torch.int64, device=rng["seed"].device)
    first = draws(sk, Q[0], root, k=2, replacement=False, **rng)[:, 0]
    slot = torch.tensor([2, 4], device=root.device, dtype=torch.int64).repeat(len(root))
    second = draws(sk, Q[1], first, k=2, replacement=False, slot=slot, **rng).flatten(1)
    return SHAPE.to(root.device), torch.cat((root - 1, first, second), 1)


def likeliest(sk, rng):
    """Draft a tree of SHAPE from the draft's most likely tokens."""
    first = Q[0][0].topk(2).indices
    tokens = torch.cat(
        (torch.tensor([-1], dtype=torch.int64, device="cpu"), first, Q[1][first].topk(2).indices.flatten())
    )
    device = rng["seed"].device
    return SHAPE.to(device), tokens.to(device).expand(len(rng["seed"]), -1)


def row_after(tables):
    """Return a function from a tuple of tokens to the next token's distribution; `tables`: logits of each position."""
    return lambda t: tables[len(t)][t[-1] if t else 0].double().softmax(-1).numpy()


def tree_law(sk, device, seed, method, drafted, steps):
    """Return the chi-square of the first three tokens against the target's joint distribution."""

    def draw(seeds):
        rng = dict(seed=seeds.to(device), offset=seeds.to(device) % 977)
        tree = drafted(sk, rng)
        parents, tokens = (x.expand(len(seeds), -1) for x in tree[:2])
        depth = sk.tree_mask(parents).depth.long()
        at = depth * V + tokens.clamp(min=0)  # the rows of all levels in one table
        p, q = torch.cat(P).to(device), torch.cat(Q + [torch.zeros(V, V, dtype=torch.float32, device="cpu")]).to(device)
        out = sk.verify_tree(tree, p[at], q[at], method=method, max_depth=L, **rng).tokens
        return complete_tokens(out, row_after(P), 3, [int(seeds[0])])  # what the step did not reach

    return check_law(draw, enumerate_law(row_after(P), 3), steps, seed=seed)


def joint_law(sk, device, seed, method, drafted):
    return follows(tree_law(sk, device, seed, method, drafted, TREE_STEPS))


def agreement(sk, device, seed):
    generator, found = torch.Generator().manual_seed(seed), Agreement("tokens", "path", "status")
    for name, method in TREE_METHODS.items():
        B, wide = 40, 60
        p, q = (
            2 * torch.randn(B, K * L + 1, wide, generator=generator, dtype=torch.float32, device="cpu")
            for _ in range(2)
        )
        tree = sk.reference.build_tree(q[:, 0].softmax(-1).multinomial(K * L, True, generator=generator).view(B, K, L))
        columns = K * L + 1 + (not method.tests_drafts)
        random = {"uniforms": torch.rand(B, columns, generator=generator, dtype=torch.float64, device="cpu")}
        if name == "race":
            random = seeds(generator, B)
        ref = sk.reference.banded.verify_tree(tree, p, q, method=name, **random)
        rows, tree = ([x.to(device) for x in of] for of in ((p, q), tree))
        out = sk.verify_tree(tree, *rows, method=name, **{key: x.to(device) for key, x in random.items()})
        found.add(out, ref)
    return found.finding("tree")


def control(sk, device, seed):
    """Control: distinct children verified as independent ones must be noticed."""
    return does_not_follow(tree_law(sk, device, seed, "recursive", distinct, TREE_STEPS // 5))


_DRAFTED = {"independent": independent, "distinct": distinct, "any": likeliest}
TREE_CHECKS: dict[str, Check] = {
    "float64 reference, trees": agreement,
    **{
        f"joint distribution, {name}": partial(joint_law, method=name, drafted=_DRAFTED[method.children])
        for name, method in TREE_METHODS.items()
        if name != "greedy"  # it follows the argmax, so there is no distribution to test
    },
    "control: a tree verified by another's rule": control,
}
