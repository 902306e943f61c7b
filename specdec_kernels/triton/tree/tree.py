# SPDX-License-Identifier: Apache-2.0
"""The tree of drafts of each request, and the choice of the child to test next, for a block of requests
(csrc/ops/verify_tree/tree.h)."""

from typing import Any, NamedTuple

import triton
import triton.language as tl

from ..core.draw import DOMAIN_ACCEPT, uniform_of
from ..core.memory import get_value, some

INSIDE = tl.constexpr(-1)  # as `wanted`: any id of a vocabulary
OUTSIDE = tl.constexpr(-2)  # as `wanted`: any number that is no id


class Tables(NamedTuple):
    """Contiguous tables of integers."""

    parents: Any  # [B, N]
    tokens: Any  # [B, N]
    target_row: Any  # [B, N]: the row of a node; None: row n is that of node n
    draft_row: Any  # [B, N]: the row that a node was drawn from; None: its parent's number
    first_child: Any  # [B, N] or None: links between nodes
    next_sibling: Any  # [B, N] or None
    draft_nodes: Any  # [B, K, L]: the drafts are tested; None: the nodes are tested
    copied: Any  # whether the draft's row n is a copy, made for node n, of the row that node n was drawn from


class Tree(NamedTuple):
    tables: Any
    N: Any
    K: Any
    L: Any
    D: Any  # the deepest level whose nodes may be accepted
    columns: Any  # columns of uniforms
    target_count: Any  # rows of a request
    draft_count: Any
    widest: Any  # the size of the larger vocabulary
    TILE: Any


class Tests(NamedTuple):
    """The progress of the tests at a node."""

    at: Any  # the next draft or node to try; with links, the child that was tried last
    count: Any  # with links, the number of children tried so far


@triton.jit
def choose_tests(mask, a, b):
    return Tests(tl.where(mask, a.at, b.at), tl.where(mask, a.count, b.count))


@triton.jit
def test_uniform(tree, random, b, column, on):
    return uniform_of(random, b, column, tree.columns, DOMAIN_ACCEPT, column, on)


@triton.jit
def look_up(table, at, mask):
    return get_value(table + at, mask, -1).to(tl.int64)


@triton.jit
def token_of(tree, b, node, mask):
    return look_up(tree.tables.tokens, b * tree.N + node, mask)


@triton.jit
def parent_of(tree, b, node, mask):
    """Return the parent of each node; -1 if it has none."""
    return tl.maximum(look_up(tree.tables.parents, b * tree.N + node, mask), -1)


@triton.jit
def is_child(tree, first, child, node, mask):
    """Return whether `child` is a child of `node`, in a request whose nodes begin at `first` in the tables [B, N]."""
    there = mask & (child > node) & (child < tree.N)
    return there & (look_up(tree.tables.parents, first + child, there) == node)


@triton.jit
def is_wanted(tree, first, child, wanted, mask):
    token = look_up(tree.tables.tokens, first + child, mask)
    inside = (token >= 0) & (token < tree.widest)
    return mask & tl.where(wanted >= 0, token == wanted, inside == (wanted == INSIDE))


@triton.jit
def is_bad_tree(tree, b, exists):
    """Return whether a parent is below -1 or does not come before its node, or a draft's next node is not a child of
    the last one. The walk ignores such parents and steps."""
    first = (b * tree.N)[:, None]
    lane = tl.arange(0, tree.TILE).to(tl.int64)[None, :]
    bad = (exists & False).to(tl.int32)
    for begin in range(0, tree.N, tree.TILE):
        i = begin + lane
        inside = exists[:, None] & (i < tree.N)
        parent = look_up(tree.tables.parents, first + i, inside)
        bad |= tl.max((inside & ((parent < -1) | (parent >= i))).to(tl.int32), 1)
    if tree.tables.draft_nodes is not None:
        steps = tree.K * tree.L
        for begin in range(0, steps, tree.TILE):
            i = begin + lane
            at = (b * steps)[:, None] + i
            node = look_up(tree.tables.draft_nodes, at, exists[:, None] & (i < steps))
            going = node != -1
            deeper = going & (i % tree.L > 0)
            above = tl.where(deeper, look_up(tree.tables.draft_nodes, at - 1, deeper), 0)
            bad |= tl.max((going & ~is_child(tree, first, node, above, going)).to(tl.int32), 1)
    return bad > 0


@triton.jit
def next_test(tree, b, node, depth, tests, wanted, on):
    """Return each node's next child whose token is wanted (-1: none), the column of its uniform, and the tests after
    it.

    Children come in the order in which they were drawn. With draft_nodes, each draft that passes through the node and
    goes on to a child gives that child. Otherwise each child comes once, in the order of links or by index. A link that
    does not lead to a child ends the list.
    """
    first = b * tree.N
    child = node * 0 - 1
    column = child
    at = tests.at
    count = tests.count
    searching = on & (depth < tree.D)
    if tree.tables.draft_nodes is not None:
        searching &= (depth < tree.L) & (at < tree.K)
        while some(searching):
            k = at[:, None] + tl.arange(0, tree.TILE)[None, :]
            here = searching[:, None] & (k < tree.K)
            level = (b[:, None] * tree.K + k) * tree.L + depth[:, None]
            above = look_up(tree.tables.draft_nodes, level - 1, here & (depth > 0)[:, None])
            here &= (depth == 0)[:, None] | (above == node[:, None])
            c = look_up(tree.tables.draft_nodes, level, here)
            here = is_child(tree, first[:, None], c, node[:, None], here)
            here = is_wanted(tree, first[:, None], c, wanted[:, None], here)
            hit = tl.min(tl.where(here, k, tree.K), 1)
            found = searching & (hit < tree.K)
            child = tl.where(found, tl.sum(tl.where(k == hit[:, None], c, 0), 1), child)
            column = tl.where(found, hit * tree.L + depth, column)
            at = tl.where(searching, tl.where(found, hit + 1, at + tree.TILE), at)
            searching &= ~found & (at < tree.K)
    elif tree.tables.first_child is not None:
        searching &= count < tree.N
        while some(searching):
            begin = look_up(tree.tables.first_child, first + node, searching & (count == 0))
            following = look_up(tree.tables.next_sibling, first + at, searching & (count > 0))
            at = tl.where(searching, tl.where(count == 0, begin, following), at)
            here = is_child(tree, first, at, node, searching)
            count = tl.where(searching, tl.where(here, count + 1, tree.N), count)
            found = is_wanted(tree, first, at, wanted, here)
            child = tl.where(found, at, child)
            searching &= ~found & (count < tree.N)
        column = child
    else:
        at = tl.where(searching, tl.maximum(at, node + 1), at)
        searching &= at < tree.N
        while some(searching):
            i = at[:, None] + tl.arange(0, tree.TILE)[None, :]
            here = is_child(tree, first[:, None], i, node[:, None], searching[:, None] & (i < tree.N))
            here = is_wanted(tree, first[:, None], i, wanted[:, None], here)
            hit = tl.min(tl.where(here, i, tree.N), 1)
            found = searching & (hit < tree.N)
            child = tl.where(found, hit, child)
            at = tl.where(searching, tl.where(found, hit + 1, at + tree.TILE), at)
            searching &= ~found & (at < tree.N)
        column = child
    return child, column, Tests(at, count)
