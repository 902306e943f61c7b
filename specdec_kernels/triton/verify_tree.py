# SPDX-License-Identifier: Apache-2.0
"""verify_tree: one launch walks the trees, and reads only the rows of visited nodes. Before it, by_id() copies
draft rows that have ids."""

import torch
import triton
import triton.language as tl

from .core import launch
from .core.arguments import GivenRows, GivenViews, by_id, contiguous, noise, row_memory, table_of, values
from .core.draw import Random
from .core.launch import put_absent
from .core.memory import Store, Views, is_present
from .core.residual import FLOATS, INTS, Room, Sides
from .core.row import widest
from .tree.descend import GREEDY, RACE, TRAVERSAL, descend
from .tree.traversal import FRAME_INTS, FRAME_REALS, Frames, traverse
from .tree.tree import Tables, Tree
from .tree.walk import Out, descend_by_race

THREADS = 256


@triton.jit
def walk(tree, sides, random, out, b, links, frames, exists, METHOD: tl.constexpr, S):
    if METHOD == TRAVERSAL:
        traverse(tree, sides, random, out, b, links, frames, exists, S)
    elif METHOD == RACE:
        descend_by_race(tree, sides, random, out, b, exists, S)
    else:
        descend(tree, sides, random, out, b, links, exists, METHOD, S)


@launch.kernel
def verify_tree_kernel(
    B, count, N, K, L, D, columns, target_count, draft_count, most_steps, tables, target, draft, random, out,
    room, frames, METHOD: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64) * S.ROWS + tl.arange(0, S.ROWS)
    # Triton drops the constants of a tuple that is assigned, so these are made in the call.
    walk(
        Tree(tables, N, K, L, D, columns, target_count, draft_count, widest(target, draft), S.TILE),
        Sides(target, draft, room), random, out, b, b * most_steps, frames, (b < B) & is_present(count, b), METHOD, S,
    )  # fmt: skip


class TreeRows:
    """The rows of one side, [B, rows of a request, V]."""

    def __init__(self, given: GivenRows, views: Views, B: int):
        self.rows, self.sampling, self.B = row_memory(given.logits, views), given.sampling(), B
        self.copied = False
        self.count, self.probs, self.stats = given.logits.size(1), given.kind == 1, given.stats

    def read_by_id(self, ids: torch.Tensor, tables: Tables, count) -> None:
        """Write out rows that have ids, with their views. A row that is given by index may belong to several nodes,
        each with views of its own; then every node gets a copy."""
        M, layout = self.count, launch.Layout(self.B, self.count, 0, 0, count=count)
        self.copied = self.rows.views.GIVEN.value and tables.draft_row is not None
        if not self.copied:
            self.rows = by_id(self.rows, ids, self.probs, layout)
            return
        row = tables.draft_row.long()
        first = torch.arange(self.B, device=row.device)[:, None] * M
        row = torch.where((row >= 0) & (row < M), row + first, -1)
        layout, store = layout._replace(G=row.size(1)), Store(row, self.B * M, max(M, 1), launch.FLAGS[False])
        self.rows = by_id(self.rows, ids, self.probs, layout, store, tables.parents)

    def argument(self, table):
        """Return the rows as a kernel's argument, with scratch for their stats."""
        few = table.few if self.sampling.filters() else None
        scratch = launch.scratch(self.rows, self.B, self.B, few)
        return launch.rows(self.rows, self.probs, self.stats, self.sampling, scratch)


def launch_walk(tables, shape, count, D, target, draft, random, out, method) -> None:
    B, N, K, L, columns = shape
    rows = target.rows
    table = table_of(rows.V, draft.rows) if draft else launch.table(rows.V)
    if launch.interpreted():
        sizes = table.sizes(ROWS=min(table.rows, launch.power_of_2(B)))
    else:
        # Registers are scarce: one row and, of the side with the narrower entries, at most 16 bytes per thread.
        # Traversal keeps two frames, and reads one chunk.
        narrowest = min(side.rows.data.itemsize for side in (target, draft) if side)
        at_once = THREADS * (8 if method == TRAVERSAL.value else 16) // narrowest // launch.CHUNK
        sizes = table.sizes(ROWS=1, TOGETHER=min(table.together, max(1, at_once)))
    sizes = sizes._replace(TILE=min(128, launch.power_of_2(max(N, K))))
    most_steps = max(N, K)
    room = Room(
        launch.empty(rows, (B, most_steps, INTS.value), torch.int64),
        launch.empty(rows, (B, most_steps, FLOATS.value), torch.float32),
        launch.empty(rows, (B, launch.blocks(rows.V, launch.CHUNK)), torch.float32),
    )
    frames = None
    if method == TRAVERSAL.value:
        F = min(D, N - 1) + 1
        ints = launch.empty(rows, (B, F, FRAME_INTS.value), torch.int64)
        frames = Frames(ints, launch.empty(rows, (B, F, FRAME_REALS.value), torch.float64))
    sides = target.argument(table), launch.NO_ROWS if draft is None else draft.argument(table)
    counts = target.count, 0 if draft is None else draft.count, most_steps
    args = (B, count, N, K, L, D, columns + 1, *counts, tables, *sides, random, out, room, frames)
    grid = (launch.blocks(B, sizes.ROWS),)
    launch.run(verify_tree_kernel, grid, THREADS, *args, METHOD=method, S=sizes)


def verify_tree(
    results, parents, node_tokens, draft_nodes, first_child, next_sibling, target, draft, method, max_depth,
    seed, offset, uniforms, num_requests, target_views, draft_views, draft_ids,
):  # fmt: skip
    B, N = parents.shape
    if not B:
        return
    K, L = (0, 0) if draft_nodes is None else draft_nodes.shape[1:]
    shape = B, N, K, L, N if draft_nodes is None else K * L
    of_target, of_draft = GivenRows(*target), GivenRows(*draft)
    tables = (parents, node_tokens, of_target.row, of_draft.row, first_child, next_sibling, draft_nodes)
    tables = Tables(*map(contiguous, tables), launch.FLAGS[False])
    views = target_views, draft_views
    on_target, on_draft = (GivenViews(*x).of_trees(tables.parents, tables.tokens) for x in views)
    target = TreeRows(of_target, on_target, B)
    draft = None if of_draft.logits is None else TreeRows(of_draft, on_draft, B)
    if draft_ids is not None:
        draft.read_by_id(draft_ids, tables, num_requests)
        tables = tables._replace(copied=launch.FLAGS[draft.copied])
    if method == GREEDY.value:
        target.stats, target.sampling = None, launch.NO_SAMPLING
    random = noise(seed, offset) if method == RACE.value else Random(values(seed), values(offset), uniforms)
    out = Out(*results)
    launch_walk(tables, shape, num_requests, max_depth, target, draft, random, out, method)
    put_absent(num_requests, *zip(results, (-1, 0, 0, 0, -1)))
