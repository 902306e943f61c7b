# SPDX-License-Identifier: Apache-2.0
"""verify_chain: the stats of both sides where they are not handed over, then two launches. The first walks the drafts
and sums the chunks of (p - q)+ at the stop; the second draws from them. Requests by a rule or by block have a launch of
their own before."""

import torch

from specdec_kernels.ops._memory import check_own

from .chain.by_rule import request_kernel
from .chain.draft_test import Given, Out
from .chain.exact import Stop, final_kernel, stop_kernel
from .chain.position import FLOATS, INTS, Positions
from .core import check, launch
from .core.padded import put_absent
from .core.philox import Random
from .core.results import make_room
from .core.store import Store
from .row_stats import find_stats
from .rules.arguments import rules_of

OP = "verify_chain"


def check_cu_draft(cu_draft: torch.Tensor, B: int, D: int, G: int, padded: bool) -> None:
    """Of the first B requests; of padded buffers D is how much room there is."""
    if padded and B == 0:
        return
    cu = cu_draft.tolist()
    check.that(cu[0] == 0, OP, f"cu_draft must start at 0, got {cu[0]}")
    for b in range(B):
        g = cu[b + 1] - cu[b]
        check.that(g >= 0, OP, f"cu_draft must ascend, got {cu[b]} then {cu[b + 1]} at index {b}")
        check.that(
            g <= G, OP, f"max_draft must be at least the longest draft, got {G} with {g} drafted tokens in request {b}"
        )
    most = "most at " if padded else ""
    check.that(cu[B] == D or (padded and cu[B] < D), OP, f"cu_draft must end at {most}D={D}, got {cu[B]}")


class ChainRows:
    """The rows of one side: logits or probabilities, with the four floats of each if whoever read them handed them
    over."""

    def __init__(self, given: check.GivenRows, sampling, layout: launch.Layout, like):
        positions = (layout.B, layout.G + layout.extra) if layout.cu_draft is None else (layout.rows,)
        logits, row, name = given.logits, given.row, f"{given.name}.row"
        if row is not None:
            wanted = f"{given.name}.logits must have 2 or 3 dimensions where {name} is given"
            check.that(logits.dim() in (2, 3), OP, f"{wanted}, got shape {list(logits.shape)}")
        lead = positions if row is None else logits.shape[:-1]
        self.rows = check.side(OP, given, sampling, lead, like)
        self.probs, self.stats, self.sampling, self.layout = given.kind == 1, given.stats, sampling, layout
        self.scratch, self.store = None, launch.NO_STORE
        self.finds = not self.probs and self.stats is None
        if row is not None:
            check.shape(OP, name, row, *positions)
            row = check.integers(OP, name, row, like).contiguous()
            # Where slots follow one another as their rows do, a number needs no division.
            even = len(lead) == 1 or self.rows.batch_stride == lead[1] * self.rows.row_stride
            K = None if even else max(lead[1], 1)
            self.store = Store(row, lead.numel(), K, launch.FLAGS[self.finds])

    def read(self) -> None:
        if self.finds:
            self.stats, self.scratch = find_stats(self.rows, self.layout, self.sampling, self.store)

    def argument(self, sums: bool = False):
        """`sums`: with the chunk sums of the rows, if they were just found."""
        scratch = launch.NO_SCRATCH
        if sums and self.scratch is not None:
            scratch = self.scratch._replace(listed=None, few=None)
        return launch.rows(self.rows, self.probs, self.stats, scratch=scratch, layout=self.layout, store=self.store)


def check_layout(draft_tokens, cu_draft, max_draft, bonus_tokens, num_requests, like):
    """The layout of the target's rows, and of how many requests values are looked at."""
    ragged = cu_draft is not None
    check.dim(OP, "draft_tokens", draft_tokens, 1 if ragged else 2)
    D = 0
    if ragged:
        check.dim(OP, "cu_draft", cu_draft, 1)
        check.that(cu_draft.size(0) >= 1, OP, "cu_draft must have shape [B+1], got [0]")
        B, G, D = cu_draft.size(0) - 1, max_draft, draft_tokens.size(0)
        check.that(G >= 0, OP, f"max_draft must be >= 0, got {G}")
        check.that(G < 1 << 31, OP, f"max_draft must be below 2^31, got {G}")
        cu_draft = check.integers(OP, "cu_draft", cu_draft, like).contiguous()
    else:
        B, G = draft_tokens.shape
    check.integers(OP, "draft_tokens", draft_tokens, like)
    seen = check.present(OP, "num_requests", num_requests, B, like)
    if ragged and cu_draft.device.type == "cpu":
        check_cu_draft(cu_draft, seen, D, G, num_requests is not None)
    if bonus_tokens is not None:
        check.shape(OP, "bonus_tokens", bonus_tokens, B)
        check.integers(OP, "bonus_tokens", bonus_tokens, like)
    row = int(bonus_tokens is None)
    return launch.Layout(B, G, row, row, cu_draft, D, num_requests), seen


def draft_rows(given: check.GivenRows, sampling, layout: launch.Layout, by_rule: bool, like):
    """Beside a target's layout. None: one-hot drafts."""
    if given.logits is None:
        return check.missing(OP, given, sampling)
    B, G, ragged, row = layout.B, layout.G, layout.cu_draft is not None, given.row
    name, positions = ("draft.logits", given.logits) if row is None else ("draft.row", row)
    check.dim(OP, name, positions, (1 if ragged else 2) + (row is None))
    extra = int(B > 0 and positions.size(0) == layout.D + B) if ragged else int(positions.size(1) == G + 1)
    scored = extra if by_rule else 0  # only a rule reads the draft's row at the end
    return ChainRows(given, sampling, layout._replace(bonus=scored, extra=extra), like)


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


def verify_chain(*given, results=None):
    of_target, draft_tokens, of_draft = given[:9], given[9], given[10:19]
    cu_draft, max_draft, bonus_tokens, method, rule, alpha, rule_numbers, seed, offset, uniforms, count = given[19:]
    like = of_target[0]
    check.given(OP, target_logits=like, draft_tokens=draft_tokens)
    of_target, of_draft = check.GivenRows("target", *of_target), check.GivenRows("draft", *of_draft)
    layout, seen = check_layout(draft_tokens, cu_draft, max_draft, bonus_tokens, count, like)
    B, G, D, cu_draft = layout.B, layout.G, layout.D, layout.cu_draft
    sampling, draft_sampling = (check.sampling_of(OP, rows, like, B, seen) for rows in (of_target, of_draft))
    target = ChainRows(of_target, sampling, layout, like)
    of_rule = check.Numbers.of(OP, "rule_numbers", rule_numbers, 3)
    by_rule = rule is not None or of_rule.given()
    draft = draft_rows(of_draft, draft_sampling, layout, by_rule, like)
    check.that(method in (0, 1), OP, f"method must be 0 (token) or 1 (block), got {method}")
    block = method == 1
    rules = rules_of(OP, rule, alpha, of_rule, block, like, B, seen, G)
    check.uniforms(OP, uniforms, B, G + 1, like)
    random = Random(check.per_row(OP, "seed", seed, B, like), check.per_row(OP, "offset", offset, B, like), uniforms)
    check.randomness(OP, seed, offset, uniforms, sampling.temperature, of_target.stats)

    tokens, num_accepted, logprobs, status = results = make_room(OP, B, G + 1, like, results)
    if B:
        target.read()
        if draft is not None:
            draft.read()
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
        put_absent(count, (tokens, -1), (num_accepted, 0), (logprobs, 0), (status, 0))
    return results


def verify_chain_out(*arguments, **out) -> None:
    check_own(OP, arguments, out)
    verify_chain(*arguments, results=out)
