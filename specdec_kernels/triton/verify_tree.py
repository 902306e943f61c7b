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
from .rules.codes import EXACT, THRESHOLDS
from .rules.rule import Rules
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


class TreeRows:
    """The rows of one side, [B, rows of a request, V]."""

    def __init__(self, given: check.GivenRows, sampling, B, N, like):
        check.dim(OP, f"{given.name}.logits", given.logits, 3)
        self.count = given.logits.size(1)
        self.rows = check.side(OP, given, sampling, (B, self.count), like)
        wanted = f"{given.name}.logits must have a row for each of N={N} nodes where {given.name}.row is not given"
        check.that(given.row is not None or self.count == N, OP, f"{wanted}, got {self.count}")
        self.probs, self.stats, self.sampling, self.B = given.kind == 1, given.stats, sampling, B

    def argument(self, table):
        """The rows, and scratch for their laws."""
        few = table.few if self.sampling.filters() else None
        scratch = launch.scratch(self.rows, self.B, self.B, few)
        return launch.rows(self.rows, self.probs, self.stats, self.sampling, scratch)


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
    named = ("target.row", "draft.row", "first_child", "next_sibling")
    others = [
        integer_table(name, t, (B, N), like)
        for name, t in zip(named, (target_row, draft_row, first_child, next_sibling))
    ]
    wanted = "links must be (first_child, next_sibling), got one of them"
    check.that((first_child is None) == (next_sibling is None), OP, wanted)
    return Tables(parents, tokens, *others, draft_nodes), (B, N, K, L, columns)


def draft_rows(given: check.GivenRows, sampling, method, B, N, like):
    """None: one-hot drafts."""
    if given.logits is not None:
        return TreeRows(given, sampling, B, N, like)
    check.that(method != KSEQ.value, OP, "method kseq needs draft.logits, got none")
    return check.missing(OP, given, sampling)


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
    sides = target.argument(table), launch.NO_ROWS if draft is None else draft.argument(table)
    counts = target.count, 0 if draft is None else draft.count, most_steps
    args = (B, count, N, K, L, D, columns + 1, *counts, tables, *sides, rules, random, out, room, frames)
    grid = (launch.blocks(B, sizes.ROWS),)
    launch.run(verify_tree_kernel, grid, THREADS, *args, METHOD=method, MIXES=mixes, S=sizes)


def verify_tree(*given, results=None):
    parents, tokens, draft_nodes, first_child, next_sibling, of_target, of_draft = *given[:5], given[5:14], given[14:23]
    method, max_depth, rule, alpha, rule_numbers, seed, offset, uniforms, count = given[23:]
    like = of_target[0]
    check.given(OP, parents=parents, node_tokens=tokens, target_logits=like)
    of_target, of_draft = check.GivenRows("target", *of_target), check.GivenRows("draft", *of_draft)
    links = first_child, next_sibling
    tables, shape = check_tables(
        parents, tokens, draft_nodes, method, of_target.row, of_draft.row, *links, max_depth, like
    )
    B, N, _, _, columns = shape
    seen = check.present(OP, "num_requests", count, B, like)
    sampling, draft_sampling = (check.sampling_of(OP, rows, like, B, seen) for rows in (of_target, of_draft))
    target = TreeRows(of_target, sampling, B, N, like)
    draft = draft_rows(of_draft, draft_sampling, method, B, N, like)
    of_rule = check.Numbers.of(OP, "rule_numbers", rule_numbers, 3)
    rules = rules_of(OP, rule, alpha, of_rule, False, like, B, seen)
    check_rules(rule, of_rule.values[0], method, like, B, seen)
    check.uniforms(OP, uniforms, B, columns + 1, like)
    random = Random(check.per_row(OP, "seed", seed, B, like), check.per_row(OP, "offset", offset, B, like), uniforms)
    greedy = True if method == GREEDY.value else None
    check.randomness(OP, seed, offset, uniforms, sampling.temperature, of_target.stats, greedy)

    tokens, num_accepted, logprobs, status, path = results = make_room(OP, B, max_depth + 1, like, results, path=True)
    out = Out(*results)
    if B:
        if method == GREEDY.value:
            target.stats, target.sampling = None, launch.NO_SAMPLING
            rules = Rules(launch.NO_VALUES, None, None, False, False)
        launch_walk(tables, shape, count, max_depth, target, draft, rules, random, out, method)
        put_absent(count, (tokens, -1), (num_accepted, 0), (logprobs, 0), (status, 0), (path, -1))
    return results


def verify_tree_out(*arguments, **out) -> None:
    check_own(OP, arguments, out)
    verify_tree(*arguments, results=out)
