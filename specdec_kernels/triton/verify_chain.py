# SPDX-License-Identifier: Apache-2.0
"""verify_chain: the stats of both sides where they are not handed over, then two launches. The first walks the drafts and sums
the chunks of (p - q)+ at the stop; the second draws from them. Requests by a rule or by block have a launch of their own before."""

import torch

from .core import check
from .core import launch
from .chain.final import final_kernel
from .chain.by_rule import request_kernel
from .row_stats import laws
from .chain.stop import stop_kernel

OP = "verify_chain"


def check_cu_draft(cu_draft: torch.Tensor, B: int, D: int, G: int) -> None:
    cu = cu_draft.tolist()
    check.that(cu[0] == 0, OP, f"cu_draft must start at 0, got {cu[0]}")
    for b in range(B):
        g = cu[b + 1] - cu[b]
        check.that(g >= 0, OP, f"cu_draft must ascend, got {cu[b]} then {cu[b + 1]} at index {b}")
        check.that(g <= G, OP, f"max_draft must be at least the longest draft, got {G} with {g} drafted tokens in request {b}")
    check.that(cu[B] == D, OP, f"cu_draft must end at D={D}, got {cu[B]}")


class Side:
    """The rows of one side: logits or probabilities, with the four floats of each if whoever read them handed them over."""

    def __init__(self, name, rows, kind, stats, parameters, layout: launch.Layout, like):
        ragged = layout.cu_draft is not None
        check.that(kind in (0, 1), OP, f"{name}_kind must be 0 (logits) or 1 (probabilities), got {kind}")
        check.dim(OP, f"{name}_logits", rows, 2 if ragged else 3)
        check.device(OP, f"{name}_logits", rows, like)
        self.rows = check.rows(OP, f"{name}_logits", rows)
        lead = (layout.rows,) if ragged else (layout.B, layout.G + layout.extra)
        check.shape(OP, f"{name}_logits", rows, *lead, self.rows.V)
        if stats is not None:
            check.shape(OP, f"{name}_stats", stats, *lead, 4)
            check.stats(OP, f"{name}_stats", stats, like)
        given = parameters.given()
        wanted = f"{name}_stats and sampling parameters need logits, got {name}_kind 1 (probabilities)"
        check.that(kind == 0 or (stats is None and not given), OP, wanted)
        wanted = f"{name}_stats already hold the sampling parameters: give one or the other"
        check.that(stats is None or not given, OP, wanted)
        self.probs, self.stats, self.parameters, self.layout, self.sums = kind == 1, stats, parameters, layout, None

    def read(self) -> None:
        if not self.probs and self.stats is None:
            self.stats, self.sums = laws(self.rows, self.layout, self.parameters)

    def arguments(self):
        return (*self.rows, self.layout.extra, self.stats)


def verify_chain(
    target_logits, draft_tokens, draft_logits, cu_draft, max_draft, bonus_tokens, temperature, top_k, top_p, min_p, target_stats,
    draft_stats, draft_temperature, draft_top_k, draft_top_p, draft_min_p, target_kind, draft_kind, method, rule, alpha, seed, offset, uniforms,
):  # fmt: skip
    check.given(OP, target_logits=target_logits, draft_tokens=draft_tokens)
    ragged = cu_draft is not None
    like = target_logits
    check.dim(OP, "draft_tokens", draft_tokens, 1 if ragged else 2)
    D = 0
    if ragged:
        check.dim(OP, "cu_draft", cu_draft, 1)
        check.that(cu_draft.size(0) >= 1, OP, "cu_draft must have shape [B+1], got [0]")
        B, G, D = cu_draft.size(0) - 1, max_draft, draft_tokens.size(0)
        check.that(G >= 0, OP, f"max_draft must be >= 0, got {G}")
        check.that(G < 1 << 31, OP, f"max_draft must be below 2^31, got {G}")
        cu_draft = check.integers(OP, "cu_draft", cu_draft, like).contiguous()
        if cu_draft.device.type == "cpu":
            check_cu_draft(cu_draft, B, D, G)
    else:
        B, G = draft_tokens.shape
    check.integers(OP, "draft_tokens", draft_tokens, like)
    bonus = (None, 0)
    if bonus_tokens is not None:
        check.shape(OP, "bonus_tokens", bonus_tokens, B)
        bonus = (check.integers(OP, "bonus_tokens", bonus_tokens, like), bonus_tokens.stride(0))
    parameters = check.sampling(OP, "", temperature, top_k, top_p, min_p, like, B)
    draft_parameters = check.sampling(OP, "draft_", draft_temperature, draft_top_k, draft_top_p, draft_min_p, like, B)
    row = int(bonus_tokens is None)
    target = Side("target", target_logits, target_kind, target_stats, parameters, launch.Layout(B, G, row, row, cu_draft, D), like)
    if draft_logits is not None:
        check.dim(OP, "draft_logits", draft_logits, 2 if ragged else 3)
        extra = int(B > 0 and draft_logits.size(0) == D + B) if ragged else int(draft_logits.size(1) == G + 1)
        scored = 0 if rule is None else extra  # only a rule reads the draft's row at the end
        draft = Side("draft", draft_logits, draft_kind, draft_stats, draft_parameters, launch.Layout(B, G, scored, extra, cu_draft, D), like)
    else:
        draft = None
        wanted = "draft_stats and draft sampling parameters need draft_logits, got none"
        check.that(draft_stats is None and not draft_parameters.given(), OP, wanted)
    check.that(method in (0, 1), OP, f"method must be 0 (token) or 1 (block), got {method}")
    block = method == 1
    rules = check.rules(OP, rule, alpha, block, like, B)
    check.uniforms(OP, uniforms, B, G + 1, like)
    seeds, offsets = check.per_row(OP, "seed", seed, B, like), check.per_row(OP, "offset", offset, B, like)
    check.together(OP, seed, offset)
    given = (uniforms, seed, temperature, target_stats)
    check.that(any(x is not None for x in given), OP, "needs seed and offset, or uniforms, got neither")

    tokens = launch.empty(target.rows, (B, G + 1), torch.int64)
    logprobs = launch.empty(target.rows, (B, G + 1), torch.float32)
    num_accepted, status, removes = (launch.empty(target.rows, (B,), torch.int32) for _ in range(3))
    if B:
        target.read()
        if draft is not None:
            draft.read()
        table = launch.table(target.rows.V)
        count = table.chunk_count
        masses, p_masses, maxes = launch.empty(target.rows, (3, B, count), torch.float32)
        per_program = table.per_program(B)
        walk = (B, G, cu_draft, D, draft_tokens, 0 if ragged else draft_tokens.stride(0), draft_tokens.stride(-1))
        sums = (None, None) if target.sums is None else (target.sums.maxes, target.sums.sums)
        q_rows = (None, 0, 0, 0, 0, None) if draft is None else draft.arguments()
        randomness = (*seeds, *offsets, uniforms)
        kinds = {"TARGET_PROBS": target.probs, "DRAFT_PROBS": draft is not None and draft.probs}
        sizes = {**kinds, "ROWS": table.rows, "WIDTH": table.width}
        positions = launch.power_of_2(G + 1)
        by_rule = None
        if block or rule is not None:
            by_rule = launch.empty(target.rows, (B,), torch.int32)
            places = launch.empty(target.rows, (B, G + 1, 4), torch.int32), launch.empty(target.rows, (B, G + 1, 6), torch.float64)
            wider = table if draft is None else launch.table(max(target.rows.V, draft.rows.V))
            launch.run(
                request_kernel, (B,), wider.walk_threads, *walk, *bonus, *target.arguments(), *q_rows, *rules, *randomness,
                tokens, num_accepted, logprobs, status, by_rule, *places, masses, BLOCK=block,
                SCORES_END=draft is not None and draft.layout.extra == 1, **kinds, POSITIONS=positions, TOGETHER=wider.at_once,
                WIDTH=wider.width, CHUNKS=table.chunks,
            )  # fmt: skip
        if block:  # all of them
            return tokens, num_accepted, logprobs, status
        out = (by_rule, tokens, num_accepted, logprobs, status, removes, p_masses, masses, maxes, count)
        launch.run(
            stop_kernel, (launch.blocks(B, table.rows), launch.blocks(count, per_program)), table.wide_threads, *walk, *bonus,
            *target.arguments(), *sums, *q_rows, *randomness, *out, per_program, **sizes, POSITIONS=positions,
        )  # fmt: skip
        launch.run(
            final_kernel, (launch.blocks(B, table.rows),), table.row_threads, *walk, *target.arguments(), *q_rows, *randomness, *out,
            **sizes, BONUS=bonus_tokens is not None, CHUNKS=table.chunks,
        )  # fmt: skip
    return tokens, num_accepted, logprobs, status
