# SPDX-License-Identifier: Apache-2.0
"""How trees of drafts grow, one pass of the draft model per level over all the nodes of the level.

batch: n requests. rows [n, 1, Vq]: the model's logits behind each request's last token. limits [n]: the deepest level
    to draft. Where reading is not free (transfers.py) trees are as wide as they can become, the rest is padding.
"""

from dataclasses import replace

import torch

import specdec_kernels as sk

from ..drafters.draft_runner import DraftRunner
from ..drafters.tree_shape import TreeShape
from ..models.slot_cache import Branches
from ..proposal import TreeDraft
from ..transfers import at_most, upload

__all__ = ["independent", "shaped"]


def independent(model: DraftRunner, batch, rows, limits, K: int, L: int) -> TreeDraft:
    """K chains of length L, drawn i.i.d. and merged where they agree.

    Draft k takes the k-th of K draws from its node's row: drafts are independent, and a row that several share is read
    once.
    """
    n, last = len(batch), max(limits)
    limit, whole = upload(limits, batch.device), dict(dtype=torch.int64, device=batch.device)
    drafts = torch.full((n, K, L), -1, **whole)
    at = torch.zeros(n, K, **whole)  # where in `rows` each draft stands
    row_of = torch.zeros(n, K * L + 1, **whole)  # where in all rows each node's is
    first, logits, stats, count = torch.ones(n, **whole), [], [], 0
    for level in range(last):
        W = rows.shape[1]
        out = sk.sample(rows.flatten(0, 1), k=K, slot=level * K, **_per_row(batch, W))
        drawn = out.tokens.view(n, W, K).gather(1, at[:, None])[:, 0]
        drafts[:, :, level] = drawn.masked_fill(limit[:, None] <= level, -1)
        logits.append(rows)
        stats.append(out.stats.view(n, W, 4))
        count += W
        if level + 1 == last:
            break
        tree = sk.build_tree(drafts[:, :, : level + 1])
        new = (tree.parents >= 0).sum(1) + 1 - first
        node = torch.arange(at_most(new, K), device=batch.device)
        nodes = first[:, None] + node
        row_of.scatter_(1, nodes, (count + node).expand_as(nodes))
        rows = model.grow(tree.tokens.gather(1, nodes), Branches(tree.parents, first))
        assert tree.draft_nodes is not None  # build_tree's, not a caller's own
        at = (tree.draft_nodes[:, :, level] - first[:, None]).clamp(min=0)
        first = first + new
    tree = sk.build_tree(drafts)
    used = at_most((tree.parents >= 0).sum(1), K * L) + 1
    parents, tokens = tree.parents[:, :used], tree.tokens[:, 1:used]
    row = row_of.gather(1, parents.clamp(min=0).long())
    return TreeDraft(
        parents, tokens, draft_nodes=tree.draft_nodes, logits=torch.cat(logits, 1), stats=torch.cat(stats, 1), row=row
    )


def shaped(model: DraftRunner, batch, rows, limits, shape: TreeShape, top: bool) -> TreeDraft:
    """A tree of fixed shape: the children of a node drawn without replacement, or (top) the likeliest tokens.

    A child's draw takes the slot of its number, so no two draws of a tree share a random number.
    """
    limits = [min(limit, shape.depth) for limit in limits]
    n, last, limit = len(batch), max(limits), upload(limits, batch.device)
    tokens = torch.full((n, len(shape.parents)), -1, device=batch.device, dtype=torch.int64)
    parents = tokens.int()  # set as nodes come about
    logits, stats = [], []
    for depth in range(1, last + 1):
        above, level = shape.levels[depth - 1], shape.levels[depth]
        widest = max(len(shape.children[i]) for i in above)
        flat = rows.flatten(0, 1)
        if top:
            drawn = flat.topk(min(widest, flat.shape[1])).indices
        else:
            first = [min(shape.children[i], default=1) - 1 for i in above]  # a leaf keeps none of its draws
            slot, each = upload(first * n, batch.device), _per_row(batch, len(above))
            out = sk.sample(flat, k=widest, replacement=False, slot=slot, **each)
            drawn = out.tokens
            logits.append(rows)
            stats.append(out.stats.view(n, -1, 4))
        drawn = drawn.view(n, len(above), -1)
        for i, node in enumerate(above):
            live = (limit >= depth) & ((parents[:, node] >= 0) | (node == 0))
            for rank, child in enumerate(shape.children[node]):
                if rank < drawn.shape[2]:
                    token = drawn[:, i, rank].masked_fill(~live, -1)
                    tokens[:, child], parents[:, child] = token, torch.where(token >= 0, node, -1).int()
        if depth < last:
            fed = slice(level.start, level.stop)
            rows = model.grow(tokens[:, fed], Branches(parents[:, : level.stop], [level.start] * n))
    draft = _packed(parents, tokens[:, 1:])
    if top:
        return replace(draft, row=None)
    return replace(draft, logits=torch.cat(logits, 1), stats=torch.cat(stats, 1))


def _packed(parents, tokens) -> TreeDraft:
    """Nodes that did not come about are left out, row by row: a row's numbering depends on its own tree alone."""
    padding = parents < 0
    padding[:, 0] = False
    order = padding.int().argsort(dim=1, stable=True)
    number = order.argsort(1)
    used = at_most((~padding).sum(1), padding.shape[1])
    above = torch.where(parents >= 0, number.gather(1, parents.clamp(min=0).long()).int(), -1)
    above, row = (x.gather(1, order)[:, :used] for x in (above, parents))
    return TreeDraft(above, tokens.gather(1, order[:, 1:used] - 1), row=row)


def _per_row(batch, width):
    """The batch's sampling parameters, seeds and offsets for `width` rows of each request."""
    return {name: None if x is None else x.repeat_interleave(width) for name, x in batch.draw_params.items()}
