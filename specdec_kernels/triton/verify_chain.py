# SPDX-License-Identifier: Apache-2.0
"""verify_chain: the launches of row_stats for sides without stats, then two launches.

The first, stop_kernel, finds where each request stops and sums the chunks of p and of (p - q)+ there. The second,
final_kernel, draws the last token from these sums. Requests with a rule other than "exact" are verified in an extra
launch before these two (chain/by_rule.py). With the method "block", that launch verifies all requests, and the two are
left out. In place of the two, a race has three launches: those of core/race.py, and end_race_kernel."""

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from specdec_kernels.registry import CHAIN_METHODS

from .chain.by_rule import request_kernel
from .chain.draft_test import (
    Drafts,
    Given,
    Out,
    dist_at,
    end_race_kernel,
    index_of,
    load_drafts,
    put_accepted,
    request_of,
    test_drafts,
)
from .chain.position import FLOATS, INTS, Positions
from .core import launch
from .core.arguments import GivenRows, GivenViews, by_id, in_order, noise, row_memory, table_of, values
from .core.draw import DOMAIN_FINAL, EMPTY_RESIDUAL, INVALID_ROW, Random, aim, has_mass, hit, total_mass, uniform_of
from .core.launch import put_absent
from .core.memory import Store, Views, is_present, some
from .core.race import run_race
from .core.row import LOG2E, chunks_of, finite_max, is_bad, scaled
from .core.rows import entries, is_something, is_valid, prob, without
from .row_stats import find_stats
from .rules.rule import rules_of


class Stop(NamedTuple):
    """The results of stop_kernel at the position where each request stops."""

    removes: Any  # [B]: whether a rejection leaves (p - q)+
    masses: Any  # [B, chunks]: chunk sums of (p - q)+; of p if no draft was rejected
    p_masses: Any  # [B, chunks]: chunk sums of p, directly after `masses` in memory
    maxes: Any  # [B, chunks]: the largest finite entries of p's row


@triton.jit
def serves(out, b, exists):
    """Return whether a request exists and was not verified by request_kernel."""
    if out.by_rule is None:
        return exists
    else:
        return exists & (tl.load(out.by_rule + b, mask=exists, other=1) == 0)


@triton.jit
def put_masses(target, draft, b, index, p, q, reads, takes, c, stop, draws, S):
    """Write the sums of chunk c of p and of (p - q)+, and p's largest finite entry there. If p's chunk sums are known,
    p is read only where q is subtracted (`reads`)."""
    at = b * chunks_of(target) + c
    z, w = entries(target, b, p, tl.zeros([S.ROWS], tl.int32) + c, reads, False, S)
    p_mass = tl.sum(w, 1)
    if target.PROBS:
        p_mass = tl.where(is_bad(z), float("nan"), p_mass)
    largest = finite_max(z)
    if target.scratch.maxes is not None:
        held = draws & is_something(p) & (p.hot < 0) & ~reads
        known = index * chunks_of(target) + c
        m = tl.load(target.scratch.maxes + known, mask=held, other=0.0)
        s = tl.load(target.scratch.sums + known, mask=held, other=0.0)
        share = s * tl.exp2(scaled(m, p.stats.max, p.stats.scale * LOG2E) - p.stats.log_norm * LOG2E)
        p_mass = tl.where(held, tl.where(s == 0, 0.0, share), p_mass)
        largest = tl.where(held, m, largest)
    mass = p_mass
    if some(takes):
        _, x = entries(draft, b, q, tl.zeros([S.ROWS], tl.int32) + c, takes, True, S)
        r = without(w, q, x, tl.zeros([S.ROWS], tl.int32) + c, S)
        mass = tl.where(takes & (p_mass == p_mass), tl.sum(r, 1), p_mass)
    tl.store(stop.p_masses + at, p_mass, mask=draws)
    tl.store(stop.masses + at, mass, mask=draws)
    tl.store(stop.maxes + at, largest, mask=draws)


@triton.jit
def stop_at(drafts, B, count, target, draft, random, bonus_stride, out, stop, per_program, POSITIONS: tl.constexpr, S):
    b = tl.program_id(0).to(tl.int64) * S.ROWS + tl.arange(0, S.ROWS)
    exists = serves(out, b, (b < B) & is_present(count, b))
    x = request_of(drafts, b, exists)
    test = test_drafts(drafts, x, exists, target, draft, random, POSITIONS, S)
    draws = exists
    if drafts.given.bonus_tokens is not None:
        draws = exists & (test.n < x.g)
    first = tl.program_id(1) * per_program
    if first == 0:
        put_accepted(drafts, x, test, bonus_stride, target.V, exists, out, POSITIONS)
        tl.store(stop.removes + b, test.removed.to(tl.int32), mask=exists)
    p = dist_at(target, drafts, x, test.n, draws, b * 0 - 1, S)
    d = tl.sum(tl.where(tl.arange(0, POSITIONS)[None, :] == test.n[:, None], test.d, 0), 1)
    takes = draws & test.removed & (p.hot < 0)
    q = dist_at(draft, drafts, x, test.n, takes, tl.where(takes, d, -1), S)
    reads = draws & (p.hot < 0)
    if target.scratch.maxes is not None:
        reads = reads & test.removed
    index = index_of(target, drafts, x, test.n)
    chunks = chunks_of(target)
    for c in range(first, tl.minimum(first + per_program, chunks)):
        put_masses(target, draft, b, index, p, q, reads, takes, c, stop, draws, S)


@launch.kernel
def stop_kernel(
    B, count, G, D, token_batch_stride, token_stride, bonus_stride, given, target, draft, random, out, stop,
    per_program, POSITIONS: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    stop_at(
        Drafts(given, token_batch_stride, token_stride, G, D), B, count, target, draft, random, bonus_stride, out, stop,
        per_program, POSITIONS, S,
    )  # fmt: skip


@triton.jit
def draw_last(drafts, B, count, target, draft, random, out, stop, S):
    """Draw the last token: from (p - q)+ if a draft was rejected and that has mass, otherwise from p."""
    b = tl.program_id(0).to(tl.int64) * S.ROWS + tl.arange(0, S.ROWS)
    exists = serves(out, b, (b < B) & is_present(count, b))
    x = request_of(drafts, b, exists)
    n = tl.load(out.num_accepted + b, mask=exists, other=0).to(tl.int64)
    draws = exists
    if drafts.given.bonus_tokens is not None:
        draws = exists & (n < x.g)
    removed = draws & (tl.load(stop.removes + b, mask=exists, other=0) > 0)
    p = dist_at(target, drafts, x, n, draws, b * 0 - 1, S)
    sure = p.hot >= 0
    summed = draws & ~sure & is_valid(target, p)
    chunks = chunks_of(target)
    at = b * chunks
    total = total_mass(stop.masses, at, chunks, summed, S)
    p_total = total_mass(stop.p_masses, at, chunks, summed, S)
    rest = summed & removed & has_mass(total)
    whole = summed & ~rest & has_mass(p_total)
    found = rest | whole
    lost = draws & ~sure & ~found

    u = uniform_of(random, b, drafts.G, drafts.G + 1, DOMAIN_FINAL, b * 0, exists)
    which = at + tl.where(rest, 0, B * chunks)  # p_masses follow masses in memory
    aimed = aim(stop.masses, which, stop.maxes, at, chunks, u * tl.where(rest, total, p_total), found, lost, S)
    z, w = entries(target, b, p, aimed.chunk, found | lost, False, S)
    if some(rest):
        d = load_drafts(drafts, x, n, rest)
        q = dist_at(draft, drafts, x, n, rest, tl.where(rest, d, -1), S)
        _, y = entries(draft, b, q, aimed.chunk, rest, True, S)
        w = tl.where(rest[:, None], without(w, q, y, aimed.chunk, S), w)
    token = tl.where(sure, p.hot, hit(aimed, z, w, found, lost, S))
    _, log_p = prob(target, b, p, token, found)
    log_p = tl.where(lost, float("nan"), log_p)
    to = b * (drafts.G + 1) + n
    tl.store(out.tokens + to, token, mask=draws)
    tl.store(out.logprobs + to, log_p.to(tl.float32), mask=draws)
    bits = tl.where(whole & removed, EMPTY_RESIDUAL, 0) | tl.where(lost, INVALID_ROW, 0)
    tl.store(out.status + b, tl.load(out.status + b, mask=draws, other=0) | bits, mask=draws)


@launch.kernel
def final_kernel(
    B, count, G, D, token_batch_stride, token_stride, given, target, draft, random, out, stop, S: tl.constexpr
):  # fmt: skip
    draw_last(Drafts(given, token_batch_stride, token_stride, G, D), B, count, target, draft, random, out, stop, S)


class ChainRows:
    """The rows of one side: logits or probabilities, and the four floats of each if the caller gave them or read()
    computed them."""

    def __init__(self, given: GivenRows, views: Views, layout: launch.Layout, ids: torch.Tensor | None = None):
        self.rows, self.layout, self.sampling = row_memory(given.logits, views), layout, given.sampling()
        self.probs, self.stats = given.kind == 1, given.stats
        self.scratch, self.store = None, launch.NO_STORE
        self.finds = not self.probs and self.stats is None
        if given.row is not None:
            # If the rows of all slots are evenly spaced, the address of an index needs no division.
            lead = given.logits.shape[:-1]
            K = None if len(lead) == 1 or self.rows.batch_stride == lead[1] * self.rows.row_stride else max(lead[1], 1)
            self.store = Store(given.row.contiguous(), lead.numel(), K, launch.FLAGS[self.finds])
        if ids is not None:
            self.rows = by_id(self.rows, ids, self.probs, layout, self.store)
            self.store, self.stats = in_order(self.store, self.stats)

    def read(self) -> None:
        if self.finds:
            self.stats, self.scratch = find_stats(self.rows, self.layout, self.sampling, self.store)

    def argument(self, sums: bool = False):
        """Return the rows as a kernel's argument. sums: include the rows' chunk sums, if read() has computed them."""
        scratch = launch.NO_SCRATCH
        if sums and self.scratch is not None:
            scratch = self.scratch._replace(listed=None, few=None)
        return launch.rows(self.rows, self.probs, self.stats, scratch=scratch, layout=self.layout, store=self.store)


def layout_of(draft_tokens, cu_draft, max_draft, bonus_tokens, num_requests) -> launch.Layout:
    """Return the layout of the target's rows."""
    row = int(bonus_tokens is None)
    if cu_draft is None:
        return launch.Layout(*draft_tokens.shape, row, row, count=num_requests)
    B, D = cu_draft.size(0) - 1, draft_tokens.size(0)
    return launch.Layout(B, max_draft, row, row, cu_draft.contiguous(), D, num_requests)


def draft_rows(given: GivenRows, views: Views, layout: launch.Layout, by_rule: bool, ids) -> ChainRows | None:
    """Return the draft's rows; None if all drafts are one-hot. layout: the target's."""
    if given.logits is None:
        return None
    B, positions = layout.B, given.logits if given.row is None else given.row
    ragged = layout.cu_draft is not None
    extra = int(B > 0 and positions.size(0) == layout.D + B) if ragged else int(positions.size(1) == layout.G + 1)
    scored = extra if by_rule else 0  # only a walk by a rule reads the draft's row after the last draft
    return ChainRows(given, views, layout._replace(bonus=scored, extra=extra), ids)


def launch_by_rule(walk, target, draft, rules, random, out, masses, block: bool, positions: int) -> None:
    rows, B, G = target.rows, target.layout.B, target.layout.G
    wider = launch.table(rows.V) if draft is None else table_of(rows.V, draft.rows)
    places = Positions(
        launch.empty(rows, (B, G + 1, INTS.value), torch.int32),
        launch.empty(rows, (B, G + 1, FLOATS.value), torch.float64),
    )
    sides = target.argument(), launch.NO_ROWS if draft is None else draft.argument()
    plain = all(not x.rows.views.GIVEN.value and x.rows.ids is launch.NO_IDS for x in (target, draft) if x)
    at_once = wider.at_once if plain else max(1, wider.at_once // 2)  # views and ids take registers
    sizes = wider.sizes(ROWS=1, CHUNKS=launch.table(rows.V).chunks, TOGETHER=at_once)
    constants = {"BLOCK": block, "SCORES_END": draft is not None and draft.layout.extra == 1, "POSITIONS": positions}
    args = (target.layout.count, G, *walk, *sides, rules, random, out, places, masses)
    launch.run(request_kernel, (B,), wider.walk_threads, *args, **constants, S=sizes)


def launch_exact(walk, target, draft, random, out, sums, positions: int) -> None:
    """Launch the kernels of the exact rule. sums: memory for `masses`, `p_masses` and `maxes` of Stop."""
    B, G, count, table = target.layout.B, target.layout.G, target.layout.count, launch.table(target.rows.V)
    q_side = launch.NO_ROWS if draft is None else draft.argument()
    threads = table.row_threads if draft and draft.rows.ids is not launch.NO_IDS else table.wide_threads
    stop = Stop(launch.empty(target.rows, (B,), torch.int32), *sums)
    args = (B, count, G, *walk, target.argument(sums=True), q_side, random, out, stop)
    launch.run_chunks(stop_kernel, table, B, *args, threads=threads, POSITIONS=positions)
    D, token_batch_stride, token_stride, _, given = walk
    args = (B, count, G, D, token_batch_stride, token_stride, given, target.argument(), q_side, random, out, stop)
    launch.run_rows(final_kernel, table, B, *args)


def launch_race(walk, target, random, results, positions: int) -> None:
    B, G, count, table = target.layout.B, target.layout.G, target.layout.count, launch.table(target.rows.V)
    lost = launch.empty(target.rows, (B, G + 1), torch.int32)
    out = Out(*results, None)
    run_race(target.argument(), target.layout, random, out.tokens, out.logprobs, lost=lost)
    args = (B, count, G, *walk, target.rows.V, lost, out)
    launch.run_rows(end_race_kernel, table, B, *args, threads=table.wide_threads, POSITIONS=positions)


def verify_chain(
    results, target, draft_tokens, draft, cu_draft, max_draft, bonus_tokens, method, rule, alpha, rule_numbers,
    seed, offset, uniforms, num_requests, target_views, draft_views, draft_ids,
):  # fmt: skip
    layout = layout_of(draft_tokens, cu_draft, max_draft, bonus_tokens, num_requests)
    rules = rules_of(rule, alpha, rule_numbers)
    B, G, D, cu_draft = layout.B, layout.G, layout.D, layout.cu_draft
    if not B:
        return
    of_target, of_draft = (GivenViews(*x).of_chains(draft_tokens, cu_draft) for x in (target_views, draft_views))
    target = ChainRows(GivenRows(*target), of_target, layout)
    target.read()
    batch_stride = draft_tokens.stride(0) if cu_draft is None else 0
    bonus_stride = 0 if bonus_tokens is None else bonus_tokens.stride(0)
    walk = (D, batch_stride, draft_tokens.stride(-1), bonus_stride, Given(draft_tokens, cu_draft, bonus_tokens))
    positions = launch.power_of_2(G + 1)
    if method == CHAIN_METHODS["race"].code:
        launch_race(walk, target, noise(seed, offset), results, positions)
    else:
        by_rule, block = rules.rule.data is not None, method == CHAIN_METHODS["block"].code
        draft = draft_rows(GivenRows(*draft), of_draft, layout, by_rule, draft_ids)
        if draft is not None:
            draft.read()
        random = Random(values(seed), values(offset), uniforms)
        ruled = launch.empty(target.rows, (B,), torch.int32) if block or by_rule else None
        out = Out(*results, ruled)
        sums = launch.empty(target.rows, (3, B, launch.table(target.rows.V).chunk_count), torch.float32)
        if ruled is not None:
            launch_by_rule(walk, target, draft, rules, random, out, sums[0], block, positions)
        if not block:  # with the method "block", request_kernel has verified all requests
            launch_exact(walk, target, draft, random, out, sums, positions)
    put_absent(num_requests, *zip(results, (-1, 0, 0, 0)))
