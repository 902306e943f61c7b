# SPDX-License-Identifier: Apache-2.0
"""verify_tree: one launch, in which a program walks the tree of its request and reads the rows that it visits, nothing
else."""

import torch
import triton
import triton.language as tl

from specdec_kernels.ops._memory import check_own
from specdec_kernels.rules import NAMES, TABLE

from .core import check, launch
from .core.padded import is_present, put_absent
from .core.philox import Random
from .core.residual import FLOATS, INTS, Room, Sides
from .core.results import make_room
from .core.row import widest
from .rules.arguments import rules_of
from .rules.rule import EXACT, THRESHOLDS, Rules
from .tree.descend import GREEDY, KSEQ, RECURSIVE, TARGET_ONLY, TRAVERSAL, descend
from .tree.traversal import FRAME_INTS, FRAME_REALS, Frames, traverse
from .tree.tree import Tables, Tree
from .tree.walk import Out

OP = "verify_tree"
THREADS = 256
METHODS = ("kseq", "recursive", "recursive_without_replacement", "target_only", "greedy", "traversal")


@triton.jit
def walk(tree, sides, rules, random, out, b, links, frames, exists, METHOD: tl.constexpr, S):
    if METHOD == TRAVERSAL:
        traverse(tree, sides, rules, random, out, b, links, frames, exists, S)
    else:
        descend(tree, sides, rules, random, out, b, links, exists, METHOD, S)


@launch.kernel
def verify_tree_kernel(
    B, count, N, K, L, D, columns, target_count, draft_count, most_steps, tables, target, draft, rules, random, out,
    room, frames, METHOD: tl.constexpr, MIXES: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64) * S.ROWS + tl.arange(0, S.ROWS)
    # A tuple that is assigned loses its constants, so these go straight into the call.
    walk(
        Tree(tables, N, K, L, D, columns, target_count, draft_count, widest(target, draft), S.TILE),
        Sides(target, draft, room, MIXES), rules, random, out,
        b, b * most_steps + (1 if MIXES else 0), frames, (b < B) & is_present(count, b), METHOD, S,
    )  # fmt: skip


def integer_table(name, t, want, like):
    """Contiguous, or None."""
    if t is None:
        return None
    check.shape(OP, name, t, *want)
    return check.integers(OP, name, t, like).contiguous()


def check_rules(rule, number, method, like, B, seen):
    """A rule that a method on a device does not take is the exact one; one given as a number is known."""
    if number is not None:
        return check_taken(int(number), method, "")
    if rule is not None and like.device.type == "cpu":
        for b, code in enumerate(rule.expand(B)[:seen].tolist()):
            check_taken(code, method, f" at index {b}")


def check_taken(code, method, at):
    takes = (
        code == THRESHOLDS.value
        if method == TARGET_ONLY.value
        else method != GREEDY.value and TABLE[NAMES[code]].defines_distribution
    )
    wanted = f"rule {NAMES[code]} is not defined for method {METHODS[method]}, got it{at}"
    check.that(code == EXACT.value or takes, OP, wanted)


class TreeSide:
    """The rows of one side, [B, rows of a request, V]."""

    def __init__(self, name, rows, kind, stats, parameters, B, like):
        check.that(kind in (0, 1), OP, f"{name}_kind must be 0 (logits) or 1 (probabilities), got {kind}")
        check.dim(OP, f"{name}_logits", rows, 3)
        check.device(OP, f"{name}_logits", rows, like)
        self.count = rows.size(1)
        self.rows = check.rows(OP, f"{name}_logits", rows)
        check.shape(OP, f"{name}_logits", rows, B, self.count, self.rows.V)
        if stats is not None:
            check.shape(OP, f"{name}_stats", stats, B, self.count, 4)
            check.stats(OP, f"{name}_stats", stats, like)
        given = parameters.given()
        wanted = f"{name}_stats and sampling parameters need logits, got {name}_kind 1 (probabilities)"
        check.that(kind == 0 or (stats is None and not given), OP, wanted)
        wanted = f"{name}_stats already hold the sampling parameters: give one or the other"
        check.that(stats is None or not given, OP, wanted)
        self.probs, self.stats, self.parameters, self.B = kind == 1, stats, parameters, B

    def argument(self, table):
        """The rows, and scratch for their laws."""
        few = table.few if self.parameters.filters() else None
        scratch = launch.scratch(self.rows, self.B, self.B, few)
        return launch.side(self.rows, self.probs, self.stats, self.parameters, scratch)


def check_tables(
    parents, tokens, draft_nodes, method, target_row, draft_row, first_child, next_sibling, max_depth, like
):
    """The tables, and B, N, K, L and the columns of tests."""
    check.that(0 <= method <= TRAVERSAL.value, OP, f"method must be 0 to 5, got {method}")
    check.dim(OP, "parents", parents, 2)
    B, N = parents.shape
    check.that(N >= 1, OP, f"parents must have at least the root, got shape {list(parents.shape)}")
    check.that(0 <= max_depth < 2**31 - 1, OP, f"max_depth must be in [0, 2^31 - 1), got {max_depth}")
    parents = integer_table("parents", parents, (B, N), like)
    tokens = integer_table("tokens", tokens, (B, N), like)
    K, L, columns = 0, 0, N
    if draft_nodes is not None:
        wanted = f"draft_nodes are for methods that test drafts, got method {method}"
        check.that(method in (KSEQ.value, RECURSIVE.value), OP, wanted)
        check.that(first_child is None, OP, "links give no order where the drafts of draft_nodes are tested, got both")
        check.dim(OP, "draft_nodes", draft_nodes, 3)
        K, L = draft_nodes.shape[1:]
        columns = K * L
        draft_nodes = integer_table("draft_nodes", draft_nodes, (B, K, L), like)
    named = ("target_row", "draft_row", "first_child", "next_sibling")
    others = [
        integer_table(name, t, (B, N), like)
        for name, t in zip(named, (target_row, draft_row, first_child, next_sibling))
    ]
    wanted = "links must be (first_child, next_sibling), got one of them"
    check.that((first_child is None) == (next_sibling is None), OP, wanted)
    return Tables(parents, tokens, *others, draft_nodes), (B, N, K, L, columns)


def check_sides(target, draft, tables, draft_stats, draft_parameters, method, N) -> None:
    by_node = "must have a row for each of N={} nodes where {}_row is not given, got {}".format
    given = tables.target_row is not None
    check.that(given or target.count == N, OP, f"target_logits {by_node(N, 'target', target.count)}")
    check.that(draft is not None or method != KSEQ.value, OP, "method kseq needs draft_logits, got none")
    given = tables.draft_row is not None
    if draft is not None:
        check.that(given or draft.count == N, OP, f"draft_logits {by_node(N, 'draft', draft.count)}")
    else:
        wanted = "draft_row, draft_stats and draft sampling parameters need draft_logits, got none"
        check.that(draft_stats is None and not given and not draft_parameters.given(), OP, wanted)


def launch_walk(tables, shape, count, D, target, draft, rules, random, out, method) -> None:
    B, N, K, L, columns = shape
    rows, by_rule = target.rows, rules.rule.data is not None
    table = launch.table(max(rows.V, draft.rows.V if draft else 1))
    if launch.interpreted() and not by_rule:
        sizes = table.sizes(ROWS=min(table.rows, launch.power_of_2(B)))
    else:  # a walk is too long to share registers; 16 bytes for each thread, of traversal, which keeps two frames, 8
        narrowest = min(side.rows.data.itemsize for side in (target, draft) if side)
        at_once = THREADS * (8 if method == TRAVERSAL.value else 16) // narrowest // launch.CHUNK
        sizes = table.sizes(ROWS=1, TOGETHER=min(table.together, max(1, at_once)))
    sizes = sizes._replace(TILE=min(128, launch.power_of_2(max(N, K))))
    mixes = by_rule and method != TARGET_ONLY.value
    most_steps = max(N, K) + (N if mixes else 0)
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
    sides = target.argument(table), launch.NO_SIDE if draft is None else draft.argument(table)
    counts = target.count, 0 if draft is None else draft.count, most_steps
    args = (B, count, N, K, L, D, columns + 1, *counts, tables, *sides, rules, random, out, room, frames)
    grid = (launch.blocks(B, sizes.ROWS),)
    launch.run(verify_tree_kernel, grid, THREADS, *args, METHOD=method, MIXES=mixes, S=sizes)


def verify_tree(
    parents, tokens, draft_nodes, target_logits, draft_logits, method, max_depth, target_row, draft_row,
    first_child, next_sibling, temperature, top_k, top_p, min_p, target_stats, draft_stats,
    draft_temperature, draft_top_k, draft_top_p, draft_min_p, target_kind, draft_kind, rule, alpha,
    seed, offset, uniforms, num_requests, numbers=None, rule_numbers=None, results=None,
):  # fmt: skip
    check.given(OP, parents=parents, node_tokens=tokens, target_logits=target_logits)
    like = target_logits
    tables, shape = check_tables(
        parents, tokens, draft_nodes, method, target_row, draft_row, first_child, next_sibling, max_depth, like
    )
    B, N, _, _, columns = shape
    seen = check.present(OP, "num_requests", num_requests, B, like)
    of_target, of_draft = check.Numbers.of(OP, "numbers", numbers, 2, 4)
    parameters = check.sampling(OP, "", (temperature, top_k, top_p, min_p), of_target, like, B, seen)
    given = (draft_temperature, draft_top_k, draft_top_p, draft_min_p)
    draft_parameters = check.sampling(OP, "draft_", given, of_draft, like, B, seen)
    target = TreeSide("target", target_logits, target_kind, target_stats, parameters, B, like)
    draft = None
    if draft_logits is not None:
        draft = TreeSide("draft", draft_logits, draft_kind, draft_stats, draft_parameters, B, like)
    check_sides(target, draft, tables, draft_stats, draft_parameters, method, N)
    [of_rule] = check.Numbers.of(OP, "rule_numbers", rule_numbers, 1, 3)
    rules = rules_of(OP, rule, alpha, of_rule, False, like, B, seen)
    check_rules(rule, of_rule.values[0], method, like, B, seen)
    check.uniforms(OP, uniforms, B, columns + 1, like)
    random = Random(check.per_row(OP, "seed", seed, B, like), check.per_row(OP, "offset", offset, B, like), uniforms)
    greedy = True if method == GREEDY.value else None
    check.randomness(OP, seed, offset, uniforms, temperature, of_target, target_stats, greedy)

    tokens, num_accepted, logprobs, status, path = results = make_room(OP, B, max_depth + 1, like, results, path=True)
    out = Out(*results)
    if B:
        if method == GREEDY.value:
            target.stats, target.parameters = None, launch.NO_SAMPLING
            rules = Rules(launch.NO_VALUES, None, None, False, False)
        launch_walk(tables, shape, num_requests, max_depth, target, draft, rules, random, out, method)
        put_absent(num_requests, (tokens, -1), (num_accepted, 0), (logprobs, 0), (status, 0), (path, -1))
    return results


def verify_tree_out(*arguments, **out) -> None:
    check_own(OP, arguments, out)
    verify_tree(*arguments, results=out)
