# SPDX-License-Identifier: Apache-2.0
"""verify_tree: one launch, in which a program walks the tree of its request and reads the rows that it visits, nothing else."""

import torch
import triton
import triton.language as tl

from specdec_kernels.rules import NAMES, TABLE

from .core import check
from .core import launch
from .tree.descend import GREEDY, KSEQ, RECURSIVE, TARGET_ONLY, TRAVERSAL, descend
from .core.links import FLOATS, INTS, Rows
from .core.row_stats import Parameters
from .rules.rule import EXACT, THRESHOLDS, Rules
from .core.side import Side, Sizes
from .tree.traversal import FRAME_INTS, FRAME_REALS, traverse
from .tree.tree import Randomness, Tree
from .tree.walk import Out

OP = "verify_tree"
THREADS = 256
METHODS = ("kseq", "recursive", "recursive_without_replacement", "target_only", "greedy", "traversal")


@triton.jit
def walk(tree, rows, rules, random, out, b, links, frame_ints, frame_reals, exists, METHOD: tl.constexpr, S):
    if METHOD == TRAVERSAL:
        traverse(tree, rows, rules, random, out, b, links, frame_ints, frame_reals, exists, S)
    else:
        descend(tree, rows, rules, random, out, b, links, exists, METHOD, S)


@launch.kernel
def verify_tree_kernel(
    B, N, K, L, D, parents, node_tokens, draft_nodes, target_row, draft_row, first_child, next_sibling,
    target, V, target_batch_stride, target_row_stride, target_count, target_stats, temperature, temperature_stride, top_ks, top_k_stride,
    top_ps, top_p_stride, min_ps, min_p_stride, target_maxes, target_sums, target_listed, target_few, target_chunks,
    draft, Vq, draft_batch_stride, draft_row_stride, draft_count, draft_stats, draft_temperature, draft_temperature_stride, draft_top_ks,
    draft_top_k_stride, draft_top_ps, draft_top_p_stride, draft_min_ps, draft_min_p_stride, draft_maxes, draft_sums, draft_listed,
    draft_few, draft_chunks, rule, rule_stride, alpha, alpha_stride, second_stride,
    seed, seed_stride, offset, offset_stride, uniforms, columns,
    tokens, num_accepted, logprobs, status, path, masses, link_ints, link_floats, most_links, frame_ints, frame_reals,
    METHOD: tl.constexpr, BLENDS: tl.constexpr, TARGET_PROBS: tl.constexpr, DRAFT_PROBS: tl.constexpr, TOGETHER: tl.constexpr,
    ROWS: tl.constexpr, WIDTH: tl.constexpr, CHUNKS: tl.constexpr, FEW: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    b = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    widest = V
    if draft is not None:
        widest = tl.maximum(V, Vq)
    # A tuple that is assigned loses its constants, so these go straight into the call.
    walk(
        Tree(parents, node_tokens, target_row, draft_row, first_child, next_sibling, draft_nodes, N, K, L, D, widest, TILE),
        Rows(
            Side(
                target, V, target_batch_stride, target_row_stride, target_count, target_stats,
                Parameters(temperature, temperature_stride, top_ks, top_k_stride, top_ps, top_p_stride, min_ps, min_p_stride),
                target_maxes, target_sums, target_listed, target_few, target_chunks, TARGET_PROBS,
            ),
            Side(
                draft, Vq, draft_batch_stride, draft_row_stride, draft_count, draft_stats,
                Parameters(
                    draft_temperature, draft_temperature_stride, draft_top_ks, draft_top_k_stride, draft_top_ps, draft_top_p_stride,
                    draft_min_ps, draft_min_p_stride,
                ),
                draft_maxes, draft_sums, draft_listed, draft_few, draft_chunks, DRAFT_PROBS,
            ),
            link_ints, link_floats, masses, BLENDS,
        ),
        Rules(rule, rule_stride, alpha, alpha_stride, second_stride),
        Randomness(seed, seed_stride, offset, offset_stride, uniforms, columns),
        Out(tokens, num_accepted, logprobs, status, path),
        b, b * most_links + (1 if BLENDS else 0), frame_ints, frame_reals, b < B, METHOD, Sizes(TOGETHER, ROWS, WIDTH, CHUNKS, FEW),
    )  # fmt: skip


def integer_table(name, t, want, like):
    """Contiguous, or None."""
    if t is None:
        return None
    check.shape(OP, name, t, *want)
    return check.integers(OP, name, t, like).contiguous()


def check_rules(rule, method, like, B):
    """A rule that a method on a device does not take is the exact one."""
    if rule is None or like.device.type != "cpu":
        return
    for b, code in enumerate(rule.expand(B).tolist()):
        takes = code == THRESHOLDS.value if method == TARGET_ONLY.value else method != GREEDY.value and TABLE[NAMES[code]].defines_distribution
        wanted = f"rule {NAMES[code]} is not defined for method {METHODS[method]}, got it at index {b}"
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

    def arguments(self, table):
        """The rows, and scratch for their laws."""
        chunks = launch.blocks(self.rows.V, launch.CHUNK)
        maxes, sums = launch.empty(self.rows, (2, self.B, chunks), torch.float32)
        listed = few = None
        if self.parameters.filters():
            listed = launch.empty(self.rows, (self.B, chunks), torch.int32)
            few = launch.empty(self.rows, (self.B, table.few), torch.float32)
        return (*self.rows, self.count, self.stats, *self.parameters.arguments(), maxes, sums, listed, few, chunks)


NO_RULES = (None, 0, None, 0, -1)
NO_SIDE = (None, 0, 0, 0, 0, None, None, 0, None, 0, None, 0, None, 0, None, None, None, None, 0)


def verify_tree(
    parents, tokens, draft_nodes, target_logits, draft_logits, method, max_depth, target_row, draft_row, first_child, next_sibling,
    temperature, top_k, top_p, min_p, target_stats, draft_stats, draft_temperature, draft_top_k, draft_top_p, draft_min_p,
    target_kind, draft_kind, rule, alpha, seed, offset, uniforms,
):  # fmt: skip
    check.given(OP, parents=parents, node_tokens=tokens, target_logits=target_logits)
    like = target_logits
    check.that(0 <= method <= TRAVERSAL.value, OP, f"method must be 0 to 5, got {method}")
    check.dim(OP, "parents", parents, 2)
    (B, N), D = parents.shape, max_depth
    check.that(N >= 1, OP, f"parents must have at least the root, got shape {list(parents.shape)}")
    check.that(0 <= D < 2**31 - 1, OP, f"max_depth must be in [0, 2^31 - 1), got {D}")
    parents = integer_table("parents", parents, (B, N), like)
    node_tokens = integer_table("tokens", tokens, (B, N), like)
    K, L, columns = 0, 0, N
    if draft_nodes is not None:
        wanted = f"draft_nodes are for methods that test drafts, got method {method}"
        check.that(method in (KSEQ.value, RECURSIVE.value), OP, wanted)
        check.that(first_child is None, OP, "links give no order where the drafts of draft_nodes are tested, got both")
        check.dim(OP, "draft_nodes", draft_nodes, 3)
        K, L = draft_nodes.shape[1:]
        columns = K * L
        draft_nodes = integer_table("draft_nodes", draft_nodes, (B, K, L), like)
    target_row, draft_row, first_child, next_sibling = (
        integer_table(name, t, (B, N), like)
        for name, t in (
            ("target_row", target_row), ("draft_row", draft_row), ("first_child", first_child), ("next_sibling", next_sibling),
        )
    )  # fmt: skip
    wanted = "links must be (first_child, next_sibling), got one of them"
    check.that((first_child is None) == (next_sibling is None), OP, wanted)

    parameters = check.sampling(OP, "", temperature, top_k, top_p, min_p, like, B)
    draft_parameters = check.sampling(OP, "draft_", draft_temperature, draft_top_k, draft_top_p, draft_min_p, like, B)
    target = TreeSide("target", target_logits, target_kind, target_stats, parameters, B, like)
    by_node = "must have a row for each of N={} nodes where {}_row is not given, got {}".format
    check.that(target_row is not None or target.count == N, OP, f"target_logits {by_node(N, 'target', target.count)}")
    check.that(draft_logits is not None or method != KSEQ.value, OP, "method kseq needs draft_logits, got none")
    draft = None
    if draft_logits is not None:
        draft = TreeSide("draft", draft_logits, draft_kind, draft_stats, draft_parameters, B, like)
        check.that(draft_row is not None or draft.count == N, OP, f"draft_logits {by_node(N, 'draft', draft.count)}")
    else:
        wanted = "draft_row, draft_stats and draft sampling parameters need draft_logits, got none"
        check.that(draft_stats is None and draft_row is None and not draft_parameters.given(), OP, wanted)
    rules = check.rules(OP, rule, alpha, False, like, B)
    check_rules(rule, method, like, B)
    check.uniforms(OP, uniforms, B, columns + 1, like)
    seeds, offsets = check.per_row(OP, "seed", seed, B, like), check.per_row(OP, "offset", offset, B, like)
    check.together(OP, seed, offset)
    given = any(x is not None for x in (uniforms, seed, temperature, target_stats)) or method == GREEDY.value
    check.that(given, OP, "needs seed and offset, or uniforms, got neither")

    out_tokens = launch.empty(target.rows, (B, D + 1), torch.int64)
    logprobs = launch.empty(target.rows, (B, D + 1), torch.float32)
    num_accepted, status = (launch.empty(target.rows, (B,), torch.int32) for _ in range(2))
    path = launch.empty(target.rows, (B, D + 1), torch.int32)
    if B:
        if method == GREEDY.value:
            target.stats, target.parameters, rules = None, check.Sampling(*[(None, 0)] * 4), NO_RULES
        table = launch.table(max(target.rows.V, draft.rows.V if draft else 1))
        by_rule = rules[0] is not None
        if launch.interpreted() and not by_rule:
            table = table._replace(rows=min(table.rows, launch.power_of_2(B)))
        else:  # a walk is too long to share registers; 16 bytes for each thread
            narrowest = min(side.rows.data.itemsize for side in (target, draft) if side)
            table = table._replace(rows=1, together=min(table.together, THREADS * 16 // narrowest // launch.CHUNK))
        blends = by_rule and method != TARGET_ONLY.value
        most_links = max(N, K) + (N if blends else 0)
        masses = launch.empty(target.rows, (B, launch.blocks(target.rows.V, launch.CHUNK)), torch.float32)
        ints = launch.empty(target.rows, (B, most_links, INTS.value), torch.int64)
        floats = launch.empty(target.rows, (B, most_links, FLOATS.value), torch.float32)
        frames = None, None
        if method == TRAVERSAL.value:
            F = min(D, N - 1) + 1
            frames = (
                launch.empty(target.rows, (B, F, FRAME_INTS.value), torch.int64),
                launch.empty(target.rows, (B, F, FRAME_REALS.value), torch.float64),
            )
        launch.run(
            verify_tree_kernel, (launch.blocks(B, table.rows),), THREADS,
            B, N, K, L, D, parents, node_tokens, draft_nodes, target_row, draft_row, first_child, next_sibling,
            *target.arguments(table), *(NO_SIDE if draft is None else draft.arguments(table)), *rules,
            *seeds, *offsets, uniforms, columns, out_tokens, num_accepted, logprobs, status, path, masses, ints, floats, most_links, *frames,
            METHOD=method, BLENDS=blends, TARGET_PROBS=target.probs, DRAFT_PROBS=draft is not None and draft.probs, TOGETHER=table.together,
            ROWS=table.rows, WIDTH=table.width, CHUNKS=table.chunks, FEW=table.few, TILE=min(128, launch.power_of_2(max(N, K))),
        )  # fmt: skip
    return out_tokens, num_accepted, logprobs, status, path
