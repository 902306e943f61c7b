# SPDX-License-Identifier: Apache-2.0
"""Adding a looked-up draft to a model's tree, as one more branch."""

from dataclasses import replace

from torch.nn.functional import pad

from ..proposal import TreeDraft
from ..transfers import Readback, upload

__all__ = ["with_lookup"]


def with_lookup(draft: TreeDraft, found: list[list[int]], readback: Readback | None = None) -> TreeDraft:
    """Add each row's looked-up tokens to its tree. The first ones share nodes of the tree, the rest become a chain.

    A new node is the last child of its parent. It is one-hot, since looked-up text does not depend on any draw. The
    output stays exact for methods that test distinct children in one of two ways: each child by its own distribution
    without the children tested before it (``recursive_without_replacement``, ``traversal``), or by the target's
    distribution alone (``target_only``, ``greedy``, ``race``). It would not for ``kseq``, whose drafts must share one
    distribution, nor for ``recursive`` on merged drafts: a node proposed by model and text would have two
    distributions.

    The host searches for the node where tree and text differ, so it reads the tree through `readback`.
    """
    readback = Readback() if readback is None else readback
    asked = readback.ask(draft.parents), readback.ask(draft.tokens)
    parents, tokens = (x.rows for x in asked)
    ends = [sum(p >= 0 for p in above) + 1 for above in parents]  # padding comes last in a row
    branches = [_branch(*row) for row in zip(parents, tokens, ends, found)]
    width, device = draft.parents.shape[1], draft.parents.device
    more = max(0, max(end + len(ids) for end, (_, ids) in zip(ends, branches)) - width)
    for above, below, end, (new, ids) in zip(parents, tokens, ends, branches):
        above += [-1] * more
        below += [-1] * more
        above[end : end + len(ids)], below[end - 1 : end - 1 + len(ids)] = new, ids
    rows = draft.rows
    if rows is not None and rows.row is not None:
        rows = rows._replace(row=pad(rows.row, (0, more), value=-1))
    parents, tokens = upload(parents, device, draft.parents.dtype), upload(tokens, device)
    return replace(draft, parents=parents, tokens=tokens, rows=rows)


def _branch(parents, tokens, end, ids):
    """Return (parents, tokens) of the ids that the tree lacks, as nodes end, end + 1, ..."""
    children = {(p, t): i for i, (p, t) in enumerate(zip(parents[1:], tokens), 1) if p >= 0}
    at = 0
    for done, token in enumerate(ids):
        if (at, token) not in children:
            rest = ids[done:]
            return [at, *range(end, end + len(rest) - 1)], rest
        at = children[at, token]
    return [], []
