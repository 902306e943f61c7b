# SPDX-License-Identifier: Apache-2.0
"""Growing draft trees, with one pass of the draft model per level over all nodes of that level.

Arguments of both functions: batch: n requests. rows [n, 1, Vq]: the model's logits over its Vq ids after each
request's last token. limits [n]: the deepest level to draft for each request. Where reading is not free
(transfers.py) trees have their largest possible width, and unused nodes are padding.
"""

import torch

import specdec_kernels as sk

from ..drafters.draft_runner import DraftRunner
from ..drafters.tree_shape import TreeShape
from ..models.slot_cache import Branches
from ..proposal import TreeDraft
from ..transfers import at_most, upload

__all__ = ["independent", "shaped"]


def independent(model: DraftRunner, batch, rows, limits, K: int, L: int) -> TreeDraft:
    """Draw K chains of length L i.i.d., and merge their common prefixes.

    Draft k takes the k-th of K draws from its node's row. So drafts are independent, and a row that several drafts
    share is read once.
    """
    n, last = len(batch), max(limits)
    limit, whole = upload(limits, batch.device), dict(dtype=torch.int64, device=batch.device)
    drafts = torch.full((n, K, L), -1, **whole)
    at = torch.zeros(n, K, **whole)  # the index in `rows` of each draft's current node
    row_of = torch.zeros(n, K * L + 1, **whole)  # the index of each node's row among the rows of all levels
    first, drawn_from, count, views = torch.ones(n, **whole), [], 0, batch.views.after_chain([])
    for level in range(last):
        W = rows.shape[1]
        out = sk.sample(_flat(model, rows, batch, views), k=K, **batch.draws(level, level * K, W))
        drawn = out.tokens.view(n, W, K).gather(1, at[:, None])[:, 0]
        drafts[:, :, level] = drawn.masked_fill(limit[:, None] <= level, -1)
        drawn_from.append(out.rows)
        count += W
        if level + 1 == last:
            break
        tree = sk.build_tree(drafts[:, :, : level + 1])
        new = (tree.parents >= 0).sum(1) + 1 - first
        node = torch.arange(at_most(new, K), device=batch.device)
        nodes = first[:, None] + node
        row_of.scatter_(1, nodes, (count + node).expand_as(nodes))
        rows = model.grow(tree.tokens.gather(1, nodes), Branches(tree.parents, first))
        assert tree.draft_nodes is not None  # build_tree always returns them
        at = (tree.draft_nodes[:, :, level] - first[:, None]).clamp(min=0)
        views = batch.views.after_nodes(tree.parents, tree.tokens, nodes, level + 1)
        first = first + new
    tree = sk.build_tree(drafts)
    used = at_most((tree.parents >= 0).sum(1), K * L) + 1
    parents, tokens = tree.parents[:, :used], tree.tokens[:, 1:used]
    row = row_of.gather(1, parents.clamp(min=0).long())
    return TreeDraft(parents, tokens, draft_nodes=tree.draft_nodes, rows=_joined(drawn_from, n, row), viewed=True)


def shaped(model: DraftRunner, batch, rows, limits, shape: TreeShape, top: list[bool]) -> TreeDraft:
    """Draft a tree of fixed shape: a node's children are drawn without replacement, or are its likeliest tokens.

    The random numbers of a draw are indexed by the child's number, so no two draws of a tree share one. In a race a
    node's children are the first finishers of the race at their position, and all branches have the same noise there.

    top [n]: whether a request's tree is made of the likeliest tokens.
    """
    limits = [min(limit, shape.depth) for limit in limits]
    n, last, limit = len(batch), max(limits), upload(limits, batch.device)
    tokens = torch.full((n, len(shape.parents)), -1, device=batch.device, dtype=torch.int64)
    parents = tokens.int()  # set when nodes are drafted
    drawn_from: list[sk.Rows] = []
    for depth in range(1, last + 1):
        above, level = shape.levels[depth - 1], shape.levels[depth]
        widest = max(len(shape.children[i]) for i in above)
        nodes = torch.arange(above.start, above.stop, device=batch.device).expand(n, -1)
        views = batch.views.after_nodes(parents, tokens, nodes, depth - 1)
        found = []
        if not all(top):
            first = [min(shape.children[i], default=1) - 1 for i in above]  # a leaf's draws are dropped
            draws = batch.draws(depth - 1, upload(first * n, batch.device), len(above))
            out = sk.sample(_flat(model, rows, batch, views), k=widest, replacement=False, **draws)
            found.append(out.tokens.view(n, len(above), -1))
            drawn_from.append(out.rows)
        if any(top):
            found.append(_likeliest(model.by_target_id(rows), widest, views))
        drawn = found[0] if len(found) == 1 else _mixed(top, *found)
        for i, node in enumerate(above):
            live = (limit >= depth) & ((parents[:, node] >= 0) | (node == 0))
            for rank, child in enumerate(shape.children[node]):
                if rank < drawn.shape[2]:
                    token = drawn[:, i, rank].masked_fill(~live, -1)
                    tokens[:, child], parents[:, child] = token, torch.where(token >= 0, node, -1).int()
        if depth < last:
            fed = slice(level.start, level.stop)
            rows = model.grow(tokens[:, fed], Branches(parents[:, : level.stop], [level.start] * n))
    return _packed(parents, tokens[:, 1:], [] if batch.race else drawn_from)


def _packed(parents, tokens, drawn_from) -> TreeDraft:
    """Remove the nodes that were not drafted, row by row, so that a row's numbering depends on its own tree alone."""
    padding = parents < 0
    padding[:, 0] = False
    order = padding.int().argsort(dim=1, stable=True)
    number = order.argsort(1)
    used = at_most((~padding).sum(1), padding.shape[1])
    above = torch.where(parents >= 0, number.gather(1, parents.clamp(min=0).long()).int(), -1)
    above, row = (x.gather(1, order)[:, :used] for x in (above, parents))
    rows = _joined(drawn_from, len(row), row) if drawn_from else None
    return TreeDraft(above, tokens.gather(1, order[:, 1:used] - 1), rows=rows, viewed=True)


def _flat(model, rows, batch, views: dict) -> sk.Rows:
    """Flatten a level's rows [n, W, Vq] to [n W, Vq], each with its request's sampling parameters and its own views."""
    return model.rows(rows.flatten(0, 1), **_per_row(batch.sampling, rows.shape[1]), **views)


def _likeliest(rows, w: int, views: dict):
    """Return the ids [n, W, w] of the largest logits of rows [n, W, V], as the requests see them; at most V of them."""
    w = min(w, rows.shape[2])
    if not views:
        return rows.topk(w).indices
    flat = rows.flatten(0, 1)
    score = torch.zeros(len(flat), dtype=torch.float32, device=flat.device)
    return sk.row_topw(sk.Rows(flat, **views), score, w).ids.view(*rows.shape[:2], w)


def _mixed(top: list[bool], drawn, likeliest):
    """Return children [n, W, w]: the likeliest for the requests in `top`, the drawn ones for the others."""
    w = min(likeliest.shape[2], drawn.shape[2])
    return torch.where(upload(top, drawn.device, torch.bool)[:, None, None], likeliest[:, :, :w], drawn[:, :, :w])


def _joined(levels: list[sk.Rows], n: int, row) -> sk.Rows:
    """Join the rows of all levels, [n W, Vq] each, to [n, M, Vq]. row [n, N]: the row each node was drawn from."""
    logits, stats = (
        torch.cat([x.unflatten(0, (n, -1)) for x in each], 1)
        for each in zip(*((rows.logits, rows.stats) for rows in levels))
    )
    return sk.Rows(logits, stats=stats, row=row, vocab_map=levels[0].vocab_map)


def _per_row(of_request: dict, width: int) -> dict:
    """Repeat each request's values for its `width` rows."""
    return {name: None if x is None else x.repeat_interleave(width) for name, x in of_request.items()}
