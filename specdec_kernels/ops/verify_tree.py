# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from typing import NamedTuple

import torch

from specdec_kernels.ops import _call, _check, _rows, _rules, _verify
from specdec_kernels.ops._fake import fake
from specdec_kernels.registry import TREE_METHODS
from specdec_kernels.rows import Rows

_verify_tree, _write = _call.op("verify_tree"), _call.op("verify_tree", "out")


class VerifyTreeOutput(NamedTuple):
    tokens: torch.Tensor  # [B, max_depth+1] int64: accepted tokens, one final token, then -1
    num_accepted: torch.Tensor  # [B] int32, 0..max_depth
    logprobs: torch.Tensor  # [B, max_depth+1] float32, ln of the target's probability of each emitted token, 0 at pads
    status: torch.Tensor  # [B] int32, 0 or STATUS_* bits
    path: torch.Tensor  # [B, max_depth+1] int32: the root and the accepted nodes, then -1


def verify_tree(
    tree: tuple[torch.Tensor | None, ...],
    target: Rows | torch.Tensor,
    draft: Rows | torch.Tensor | None = None,
    *,
    method: str,
    max_depth: int | None = None,
    links: tuple[torch.Tensor, torch.Tensor] | None = None,
    rule: str | torch.Tensor = "exact",
    alpha: float | tuple[float, float] | torch.Tensor | None = None,
    seed: torch.Tensor | None = None,
    offset: torch.Tensor | None = None,
    uniforms: torch.Tensor | None = None,
    num_requests: torch.Tensor | None = None,
    out: VerifyTreeOutput | None = None,
    require_exact: bool = False,
) -> VerifyTreeOutput:
    """Verify a tree of drafts per request; by default the output is distributed exactly as the target's own samples.

    The accepted nodes form a path from the root, and one more token is drawn at its end. Rows of nodes that are not
    visited are not read, except that the CUDA kernels read the rows of all nodes of a request with a lossy rule. No
    distribution or residual is written to memory. The way in which a node's children are produced decides which methods
    keep the target's distribution:

    =================================  ==============================================================================
    method                             children of a node
    =================================  ==============================================================================
    ``kseq``                           drawn i.i.d. from one row per node, tested in draft order with multiplicity
    ``recursive``                      drawn independently (rows may differ), in draft order with multiplicity
    ``recursive_without_replacement``  distinct: each drawn from its row without its earlier siblings, or i.i.d. draws
                                       merged in order of first appearance
    ``traversal``                      as ``recursive_without_replacement``; decides from the leaves to the root
    ``target_only``                    any distinct children (top-k trees, lookups); reads no draft row
    ``greedy``                         any; follows the target's argmax, whatever the temperature
    ``race``                           any; for high acceptance the first k of ``sample(race=True)`` on the draft's row;
                                       reads no draft row. The output is the same for every tree
    =================================  ==============================================================================

    For i.i.d. drafts pass ``build_tree``'s tree, which records the order of drafts: if A, B, A was drafted, a test of
    the merged children A, A, B is biased. The output is also biased if ``kseq`` or ``recursive`` get distinct children,
    or if a method other than ``target_only``, ``greedy`` and ``race`` gets a top-k tree. No check can detect this.

    Args:
        tree: what ``build_tree`` returns, or (parents [B, N] or [N], tokens of the same shape), int32 or int64. Node 0
            is the last committed token, a parent comes before its children, and a node with parent -1 after node 0 is
            padding.
        target: ``Rows``, or a tensor: the rows as they are. [B, N, V]: row i is the distribution of node i's children.
            Parameters are numbers or [B], stats [B, N, 4]. ``row`` [B, N]: the index of node i's row in logits
            [B, M, V] (stats are then [B, M, 4]); an index out of range is an invalid row. Penalties: [B] or numbers,
            lists [S, H] with ``penalties.row`` [B]. Node i's row gets the penalties after the nodes on the path from
            the root to it. Bias: lists [S, I] or [B, N, I]; ``bias.row`` [B] or [B, N]. Masks: [S, W] or [B, N, W];
            ``allowed.row`` [B] or [B, N].
        draft: ``Rows`` or a tensor, [B, N, Vq]: row i is the one that node i's children were drawn from. None: one-hot
            drafts. ``row`` [B, N]: the index in logits [B, Mq, Vq] of the row that node i itself was drawn from (by
            default that of its parent). A negative index is a one-hot draft; one out of range has no q. A greedy
            request needs no draft row under the exact rule, and none is read. Vq may differ from V: an id that a side
            does not have has probability 0 there. Sparse rows: ``ids`` [B, N, E] or [B, Mq, E], of the shape of the
            logits; mapped rows: ``vocab_map``. Node tokens may then be any id below 2^24: one that is not listed has
            q = 0. ``target_only``, ``greedy`` and ``race`` ignore the draft.
        method: see above.
        max_depth: the deepest level whose nodes can be accepted; the output has max_depth + 1 columns. By default the L
            of a tree with draft_nodes, else N - 1.
        links: (first_child [B, N], next_sibling [B, N]), where -1 ends a list: the order in which siblings are tested.
            By default they are tested in the order of their numbers. Not for ``kseq`` and ``recursive`` with
            draft_nodes.
        rule, alpha: as in ``verify_chain``, but only rules that define a distribution, and only for methods that test
            against the draft's row. At every node whose children are tested, pi = T(q, p) takes the place of p in the
            test and in the residual. There p is the node's row and q the row that the first of these children was drawn
            from. The token after any other node is drawn from the target. ``target_only`` takes "thresholds": a child
            with p of at least threshold_single is always accepted, and the sum of the children's probabilities with
            which the uniform is compared is divided by threshold_acc.
        seed, offset: [B] int64; see ``uniforms``. Not needed by ``greedy``, nor by the exact rule if the target's
            temperature is the number 0. ``race``: ``offset`` is the absolute position of the first emitted token. The
            row of a node i levels below the root has the noise of position ``offset + i``, so its children are drafted
            by ``sample(race=True, offset=offset + i)``. Without ``offset``, seed [B, N] holds a noise key for each
            node's row, as in ``verify_chain``.
        uniforms: float64 in [0, 1), in place of seed and offset. The last column is for the final draw. With
            draft_nodes and ``kseq`` or ``recursive``: [B, K*L+1], with draft k at level l in column k*L+l. Otherwise
            [B, N+1], with node i's test in column i; ``target_only`` uses one uniform for each visited parent, in the
            parent's column. Values outside [0, 1) count as the nearer end, NaN as 0. Not for ``race``.
        num_requests, out, require_exact: as in ``verify_chain``; ``out`` ends with the path.

    Returns:
        VerifyTreeOutput ``(tokens, num_accepted, logprobs, status, path)``; ``path`` holds the nodes whose cached keys
        and values to keep. Bits of ``status``: 1: a needed row was invalid; if it is the target's, the token is its
        largest finite entry. 2: a residual was empty, or had less than 2^-126 of p's mass, so the token was drawn from
        the one before it. Apart from rounding, a request has this bit with probability at most 2^-126. 4: a child was
        not accepted because its token was not drawn from its row, is outside both vocabularies, or (``kseq``) was drawn
        from another distribution than its siblings. Bit 4 is also set if a parent does not come before its node, or a
        draft_nodes entry is not a child of the one before; these are ignored (on CPU tensors they raise). Under
        ``recursive_without_replacement``, ``traversal``, ``target_only`` and ``race`` a second sibling with the same
        token is skipped. Every emitted token is in [0, V), and bad data in one request changes no other. An absent
        request has tokens and path -1, and 0 everywhere else.

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came.

    Example:
        >>> p, q = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([0.2, 0.5, 0.3])
        >>> tree = torch.tensor([[-1, 0, 0]]), torch.tensor([[-1, 1, 2]])  # two children of the root
        >>> out = verify_tree(tree, p.log().expand(1, 3, 3), q.log().expand(1, 3, 3), method="recursive", max_depth=1,
        ...                   uniforms=torch.tensor([[0.0, 0.5, 0.9, 0.1]], dtype=torch.float64))
        >>> out.tokens, out.path
        (tensor([[1, 0]]), tensor([[0, 1]], dtype=torch.int32))

    Source: Sun et al. 2023 (SpecTr); Miao et al. 2023 (SpecInfer); Chen et al. 2024 (Sequoia); Weng et al. 2025
    (traversal); Narasimhan et al. 2024 (the cascades among the rules); SGLang (thresholds); Daliri et al. 2024 (race).
    """
    op = "verify_tree"
    _check.choice(op, "method", method, TREE_METHODS)
    target = _rows.of_either(op, "target", target)
    draft = None if draft is None else _rows.of_either(op, "draft", draft)
    _check_tuples(op, tree, links)
    parents, tokens, draft_nodes, depth = _nodes(op, method, tree, target)
    max_depth = depth if max_depth is None else _check.integer(op, "max_depth", max_depth, kind="an int or None")
    if not TREE_METHODS[method].reads_draft:
        draft = None
    if method == "greedy":
        target = target._replace(temperature=None, top_k=None, top_p=None, min_p=None, top_n_sigma=None, stats=None)
    rules = _rules.arguments(op, method, rule, alpha, target.logits.device)
    certain = method == "greedy" or (_check.is_greedy(target.temperature) and not rules.given)
    _check.randomness(op, seed, offset, uniforms, certain, method == "race")
    of_target = _verify.flat(op, "target", target, rules.given)
    of_draft = _verify.flat(op, "draft", draft, rules.given)
    nodes = (parents, tokens, draft_nodes, *(links or (None, None)))
    by = (TREE_METHODS[method].code, max_depth, *rules.as_taken(target.logits.device))
    randomness = (seed, offset, _check.contiguous(uniforms), num_requests)
    arguments = (
        *nodes,
        *of_target,
        *of_draft,
        *by,
        *randomness,
        *_verify.views(op, target, draft, lambda: tokens.shape),
    )
    if _check.flag(op, "require_exact", require_exact):
        rules.require_exact(op, arguments)
    if out is None:
        return VerifyTreeOutput(*_verify_tree(*arguments))
    return _verify.write(op, VerifyTreeOutput, _write, arguments, out)


def _check_tuples(op, tree, links):
    if not isinstance(tree, tuple | list) or len(tree) < 2:
        raise TypeError(
            f"{op}: tree must be (parents, tokens, ...) as build_tree returns it, got {type(tree).__name__}"
        )
    if links is not None and not (isinstance(links, tuple | list) and len(links) == 2):
        raise TypeError(f"{op}: links must be (first_child, next_sibling) or None, got {type(links).__name__}")


def _nodes(op, method, tree, target):
    """Return parents and tokens [B, N], draft_nodes if the method tests its drafts, and the deepest level."""
    parents, tokens, _, draft_nodes = (*tree, None, None)[:4]
    _check.dims(op, "target.logits", _check.tensor(op, "target.logits", target.logits), "B, M, V")
    parents, tokens = (
        x.expand(len(target.logits), -1) if _check.tensor(op, name, x).dim() == 1 else x
        for name, x in (("parents", parents), ("tokens", tokens))
    )
    if draft_nodes is None:
        return parents, tokens, None, parents.shape[-1] - 1 if parents.dim() else 0
    _check.dims(op, "draft_nodes", _check.tensor(op, "draft_nodes", draft_nodes), "B, K, L")
    return parents, tokens, draft_nodes if TREE_METHODS[method].tests_drafts else None, draft_nodes.size(2)


@fake("verify_tree")
def _(parents, target_logits, max_depth):
    B = parents.size(0)
    return (
        target_logits.new_empty((B, max_depth + 1), dtype=torch.int64),
        target_logits.new_empty((B,), dtype=torch.int32),
        target_logits.new_empty((B, max_depth + 1), dtype=torch.float32),
        target_logits.new_empty((B,), dtype=torch.int32),
        target_logits.new_empty((B, max_depth + 1), dtype=torch.int32),
    )
