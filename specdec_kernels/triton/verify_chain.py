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


class ChainSide:
    """The rows of one side: logits or probabilities, with the four floats of each if whoever read them handed them
    over."""

    def __init__(self, name, rows, kind, stats, parameters, layout: launch.Layout, row, like):
        check.that(kind in (0, 1), OP, f"{name}_kind must be 0 (logits) or 1 (probabilities), got {kind}")
        positions = (layout.B, layout.G + layout.extra) if layout.cu_draft is None else (layout.rows,)
        if row is None:
            check.dim(OP, f"{name}_logits", rows, len(positions) + 1)
        else:
            wanted = f"{name}_logits must have 2 or 3 dimensions where {name}_row is given"
            check.that(rows.dim() in (2, 3), OP, f"{wanted}, got shape {list(rows.shape)}")
        check.device(OP, f"{name}_logits", rows, like)
        self.rows = check.rows(OP, f"{name}_logits", rows)
        lead = positions if row is None else rows.shape[:-1]
        check.shape(OP, f"{name}_logits", rows, *lead, self.rows.V)
        if stats is not None:
            check.shape(OP, f"{name}_stats", stats, *lead, 4)
            check.stats(OP, f"{name}_stats", stats, like)
        given = parameters.given()
        wanted = f"{name}_stats and sampling parameters need logits, got {name}_kind 1 (probabilities)"
        check.that(kind == 0 or (stats is None and not given), OP, wanted)
        wanted = f"{name}_stats already hold the sampling parameters: give one or the other"
        check.that(stats is None or not given, OP, wanted)
        self.probs, self.stats, self.parameters, self.layout, self.scratch = kind == 1, stats, parameters, layout, None
        self.finds = not self.probs and stats is None
        self.store = launch.NO_STORE
        if row is not None:
            check.shape(OP, f"{name}_row", row, *positions)
            row = check.integers(OP, f"{name}_row", row, like).contiguous()
            # Where slots follow one another as their rows do, a number needs no division.
            even = len(lead) == 1 or self.rows.batch_stride == lead[1] * self.rows.row_stride
            K = None if even else max(lead[1], 1)
            self.store = Store(row, lead.numel(), K, launch.FLAGS[self.finds])

    def read(self) -> None:
        if self.finds:
            self.stats, self.scratch = find_stats(self.rows, self.layout, self.parameters, self.store)

    def argument(self, sums: bool = False):
        """`sums`: with the chunk sums of the rows, if they were just found."""
        scratch = launch.NO_SCRATCH
        if sums and self.scratch is not None:
            scratch = self.scratch._replace(listed=None, few=None)
        return launch.side(self.rows, self.probs, self.stats, scratch=scratch, layout=self.layout, store=self.store)


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


def draft_side(rows, kind, stats, parameters, layout: launch.Layout, by_rule: bool, row, like):
    """Beside a target's layout. None: one-hot drafts."""
    if rows is None:
        wanted = "draft_row, draft_stats and draft sampling parameters need draft_logits, got none"
        check.that(stats is None and row is None and not parameters.given(), OP, wanted)
        return None
    B, G, ragged = layout.B, layout.G, layout.cu_draft is not None
    name, positions = ("draft_logits", rows) if row is None else ("draft_row", row)
    check.dim(OP, name, positions, (1 if ragged else 2) + (row is None))
    extra = int(B > 0 and positions.size(0) == layout.D + B) if ragged else int(positions.size(1) == G + 1)
    scored = extra if by_rule else 0  # only a rule reads the draft's row at the end
    layout = layout._replace(bonus=scored, extra=extra)
    return ChainSide("draft", rows, kind, stats, parameters, layout, row, like)


def launch_by_rule(walk, target, draft, rules, random, out, masses, block: bool, positions: int) -> None:
    rows, B, G = target.rows, target.layout.B, target.layout.G
    wider = launch.table(rows.V if draft is None else max(rows.V, draft.rows.V))
    places = Positions(
        launch.empty(rows, (B, G + 1, INTS.value), torch.int32),
        launch.empty(rows, (B, G + 1, FLOATS.value), torch.float64),
    )
    sides = target.argument(), launch.NO_SIDE if draft is None else draft.argument()
    sizes = wider.sizes(ROWS=1, CHUNKS=launch.table(rows.V).chunks, TOGETHER=wider.at_once)
    constants = {"BLOCK": block, "SCORES_END": draft is not None and draft.layout.extra == 1, "POSITIONS": positions}
    args = (target.layout.count, G, *walk, *sides, rules, random, out, places, masses)
    launch.run(request_kernel, (B,), wider.walk_threads, *args, **constants, S=sizes)


def launch_exact(walk, target, draft, random, out, sums, positions: int) -> None:
    """`sums`: of (p - q)+, of p, and p's largest entries."""
    B, G, count, table = target.layout.B, target.layout.G, target.layout.count, launch.table(target.rows.V)
    per_program = table.per_program(B)
    grid = launch.blocks(B, table.rows), launch.blocks(table.chunk_count, per_program)
    q_side = launch.NO_SIDE if draft is None else draft.argument()
    stop = Stop(launch.empty(target.rows, (B,), torch.int32), *sums)
    args = (B, count, G, *walk, target.argument(sums=True), q_side, random, out, stop, per_program)
    launch.run(stop_kernel, grid, table.wide_threads, *args, POSITIONS=positions, S=table.sizes())
    D, token_batch_stride, token_stride, _, given = walk
    args = (B, count, G, D, token_batch_stride, token_stride, given, target.argument(), q_side, random, out, stop)
    launch.run(final_kernel, grid[:1], table.row_threads, *args, S=table.sizes())


def verify_chain(
    target_logits, draft_tokens, draft_logits, cu_draft, max_draft, bonus_tokens, temperature, top_k, top_p, min_p,
    target_stats, draft_stats, draft_temperature, draft_top_k, draft_top_p, draft_min_p, target_kind, draft_kind,
    method, rule, alpha, seed, offset, uniforms, target_row, draft_row, num_requests, numbers=None, rule_numbers=None,
    results=None,
):  # fmt: skip
    check.given(OP, target_logits=target_logits, draft_tokens=draft_tokens)
    like = target_logits
    layout, seen = check_layout(draft_tokens, cu_draft, max_draft, bonus_tokens, num_requests, like)
    B, G, D, cu_draft = layout.B, layout.G, layout.D, layout.cu_draft
    of_target, of_draft = check.Numbers.of(OP, "numbers", numbers, 2, 4)
    parameters = check.sampling(OP, "", (temperature, top_k, top_p, min_p), of_target, like, B, seen)
    given = (draft_temperature, draft_top_k, draft_top_p, draft_min_p)
    draft_parameters = check.sampling(OP, "draft_", given, of_draft, like, B, seen)
    target = ChainSide("target", target_logits, target_kind, target_stats, parameters, layout, target_row, like)
    [of_rule] = check.Numbers.of(OP, "rule_numbers", rule_numbers, 1, 3)
    by_rule = rule is not None or of_rule.given()
    draft = draft_side(draft_logits, draft_kind, draft_stats, draft_parameters, layout, by_rule, draft_row, like)
    check.that(method in (0, 1), OP, f"method must be 0 (token) or 1 (block), got {method}")
    block = method == 1
    rules = rules_of(OP, rule, alpha, of_rule, block, like, B, seen, G)
    check.uniforms(OP, uniforms, B, G + 1, like)
    random = Random(check.per_row(OP, "seed", seed, B, like), check.per_row(OP, "offset", offset, B, like), uniforms)
    check.randomness(OP, seed, offset, uniforms, temperature, of_target, target_stats)

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
        put_absent(num_requests, (tokens, -1), (num_accepted, 0), (logprobs, 0), (status, 0))
    return results


def verify_chain_out(*arguments, **out) -> None:
    check_own(OP, arguments, out)
    verify_chain(*arguments, results=out)
