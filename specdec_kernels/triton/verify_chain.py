# SPDX-License-Identifier: Apache-2.0
"""verify_chain: the stats of both sides where they are not handed over, then two launches. The first walks the drafts
and sums the chunks of (p - q)+ at the stop; the second draws from them. Requests by a rule or by block have a launch of
their own before."""

import torch

from .chain.by_rule import request_kernel
from .chain.draft_test import Given, Out
from .chain.exact import Stop, final_kernel, stop_kernel
from .chain.position import FLOATS, INTS, Positions
from .core import launch
from .core.arguments import GivenRows, row_memory, values
from .core.padded import put_absent
from .core.philox import Random
from .core.store import Store
from .row_stats import find_stats
from .rules.arguments import rules_of


class ChainRows:
    """The rows of one side: logits or probabilities, with the four floats of each if whoever read them handed them
    over."""

    def __init__(self, given: GivenRows, layout: launch.Layout):
        self.rows, self.layout, self.sampling = row_memory(given.logits), layout, given.sampling()
        self.probs, self.stats = given.kind == 1, given.stats
        self.scratch, self.store = None, launch.NO_STORE
        self.finds = not self.probs and self.stats is None
        if given.row is not None:
            # Where slots follow one another as their rows do, a number needs no division.
            lead = given.logits.shape[:-1]
            even = len(lead) == 1 or self.rows.batch_stride == lead[1] * self.rows.row_stride
            K = None if even else max(lead[1], 1)
            self.store = Store(given.row.contiguous(), lead.numel(), K, launch.FLAGS[self.finds])

    def read(self) -> None:
        if self.finds:
            self.stats, self.scratch = find_stats(self.rows, self.layout, self.sampling, self.store)

    def argument(self, sums: bool = False):
        """`sums`: with the chunk sums of the rows, if they were just found."""
        scratch = launch.NO_SCRATCH
        if sums and self.scratch is not None:
            scratch = self.scratch._replace(listed=None, few=None)
        return launch.rows(self.rows, self.probs, self.stats, scratch=scratch, layout=self.layout, store=self.store)


def layout_of(draft_tokens, cu_draft, max_draft, bonus_tokens, num_requests) -> launch.Layout:
    """Of the target's rows."""
    row = int(bonus_tokens is None)
    if cu_draft is None:
        return launch.Layout(*draft_tokens.shape, row, row, count=num_requests)
    B, D = cu_draft.size(0) - 1, draft_tokens.size(0)
    return launch.Layout(B, max_draft, row, row, cu_draft.contiguous(), D, num_requests)


def draft_rows(given: GivenRows, layout: launch.Layout, by_rule: bool) -> ChainRows | None:
    """Beside a target's layout. None: one-hot drafts."""
    if given.logits is None:
        return None
    B, positions = layout.B, given.logits if given.row is None else given.row
    ragged = layout.cu_draft is not None
    extra = int(B > 0 and positions.size(0) == layout.D + B) if ragged else int(positions.size(1) == layout.G + 1)
    scored = extra if by_rule else 0  # only a rule reads the draft's row at the end
    return ChainRows(given, layout._replace(bonus=scored, extra=extra))


def launch_by_rule(walk, target, draft, rules, random, out, masses, block: bool, positions: int) -> None:
    rows, B, G = target.rows, target.layout.B, target.layout.G
    wider = launch.table(rows.V if draft is None else max(rows.V, draft.rows.V))
    places = Positions(
        launch.empty(rows, (B, G + 1, INTS.value), torch.int32),
        launch.empty(rows, (B, G + 1, FLOATS.value), torch.float64),
    )
    sides = target.argument(), launch.NO_ROWS if draft is None else draft.argument()
    sizes = wider.sizes(ROWS=1, CHUNKS=launch.table(rows.V).chunks, TOGETHER=wider.at_once)
    constants = {"BLOCK": block, "SCORES_END": draft is not None and draft.layout.extra == 1, "POSITIONS": positions}
    args = (target.layout.count, G, *walk, *sides, rules, random, out, places, masses)
    launch.run(request_kernel, (B,), wider.walk_threads, *args, **constants, S=sizes)


def launch_exact(walk, target, draft, random, out, sums, positions: int) -> None:
    """`sums`: of (p - q)+, of p, and p's largest entries."""
    B, G, count, table = target.layout.B, target.layout.G, target.layout.count, launch.table(target.rows.V)
    per_program = table.per_program(B)
    grid = launch.blocks(B, table.rows), launch.blocks(table.chunk_count, per_program)
    q_side = launch.NO_ROWS if draft is None else draft.argument()
    stop = Stop(launch.empty(target.rows, (B,), torch.int32), *sums)
    args = (B, count, G, *walk, target.argument(sums=True), q_side, random, out, stop, per_program)
    launch.run(stop_kernel, grid, table.wide_threads, *args, POSITIONS=positions, S=table.sizes())
    D, token_batch_stride, token_stride, _, given = walk
    args = (B, count, G, D, token_batch_stride, token_stride, given, target.argument(), q_side, random, out, stop)
    launch.run(final_kernel, grid[:1], table.row_threads, *args, S=table.sizes())


def verify_chain(
    results, target, draft_tokens, draft, cu_draft, max_draft, bonus_tokens, method, rule, alpha, rule_numbers,
    seed, offset, uniforms, num_requests,
):  # fmt: skip
    layout = layout_of(draft_tokens, cu_draft, max_draft, bonus_tokens, num_requests)
    rules = rules_of(rule, alpha, rule_numbers)
    B, G, D, cu_draft = layout.B, layout.G, layout.D, layout.cu_draft
    if not B:
        return
    by_rule, block = rules.rule.data is not None, method == 1
    target, draft = ChainRows(GivenRows(*target), layout), draft_rows(GivenRows(*draft), layout, by_rule)
    target.read()
    if draft is not None:
        draft.read()
    random = Random(values(seed), values(offset), uniforms)
    ruled = launch.empty(target.rows, (B,), torch.int32) if block or by_rule else None
    out = Out(*results, ruled)
    sums = launch.empty(target.rows, (3, B, launch.table(target.rows.V).chunk_count), torch.float32)
    batch_stride = draft_tokens.stride(0) if cu_draft is None else 0
    bonus_stride = 0 if bonus_tokens is None else bonus_tokens.stride(0)
    walk = (D, batch_stride, draft_tokens.stride(-1), bonus_stride, Given(draft_tokens, cu_draft, bonus_tokens))
    positions = launch.power_of_2(G + 1)
    if ruled is not None:
        launch_by_rule(walk, target, draft, rules, random, out, sums[0], block, positions)
    if not block:  # else all of them are done
        launch_exact(walk, target, draft, random, out, sums, positions)
    put_absent(num_requests, *zip(results, (-1, 0, 0, 0)))
