# SPDX-License-Identifier: Apache-2.0
"""SGLang's tree verification by verify_tree. Trees are given by first children and next siblings."""

from __future__ import annotations

from typing import Any

import torch

from specdec_kernels.integrations._strides import in_order
from specdec_kernels.integrations.sglang import outputs
from specdec_kernels.ops.verify_tree import verify_tree
from specdec_kernels.rows import Rows

_LEAST = 1e-9  # smallest threshold; SGLang clamps threshold_acc to it


def tree_speculative_sampling_target_only(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor | None = None,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Verify a tree with the target's distribution alone, by ``verify_tree`` with method "target_only".

    The caller gives the random numbers, and with the same numbers the decisions are SGLang's. A child is accepted if
    its parent's random number is below S / threshold_acc, where S is the sum of the probabilities of the children up to
    and including this one. It is also accepted if its own probability reaches threshold_single. Differences:

    - A random number *equal* to the sum rejects. SGLang's ``<=`` accepts a token of probability 0 with the number 0.
    - A second sibling with the same token is skipped. SGLang adds its probability again, which biases the output.
    - Thresholds of 0 count as 1e-9 (in SGLang only threshold_acc), so a token of probability 0 is never accepted.
    - ``draft_probs`` is not read. (SGLang's kernel needs zeros there, since it keeps the rejected children's
      probabilities in it.) If given, it is written as SGLang does: at each node that was reached, p of the tokens of
      rejected children.
    - Rows whose entries are not neighbours in memory are copied. Other strides cost nothing.

    Args:
        predicts, accept_index, accept_token_num: written in place, int32: ``predicts[accept_index[b, i]]`` is the token
            after node i of the accepted path, accept_token_num the number of accepted drafts.
        candidates: [B, N] drafted ids, the root's first.
        retrive_index: [B, N], the index of each node in predicts.
        retrive_next_token, retrive_next_sibling: [B, N] first child and next sibling, -1 for none. A node comes before
            its children.
        uniform_samples: [B, N] in [0, 1): node i's number decides among its children.
        uniform_samples_for_final_sampling: [B].
        target_probs: [B, N, V].
        draft_probs: [B, N, V], written in place; or None.
        deterministic: ignored.
        threshold_single, threshold_acc: in [0, 1]; 1 and 1 keep the target's distribution.
    """
    op = "tree_speculative_sampling_target_only"
    S = outputs.check(op, candidates, accept_index, accept_token_num)
    uniforms = torch.cat([uniform_samples, uniform_samples_for_final_sampling.unsqueeze(1)], 1).double()
    thresholds = tuple(max(float(x), _LEAST) for x in (threshold_single, threshold_acc))
    lossy: dict[str, Any] = {} if thresholds == (1.0, 1.0) else {"rule": "thresholds", "alpha": thresholds}
    parents, rank = _family(retrive_next_token, retrive_next_sibling)
    out = verify_tree(
        (parents, candidates),
        Rows(in_order(target_probs), kind="probs"),
        method="target_only",
        max_depth=S - 1,
        links=(retrive_next_token, retrive_next_sibling),
        uniforms=uniforms,
        **lossy,
    )
    outputs.write(predicts, accept_index, accept_token_num, retrive_index, out.path, out.tokens)
    if draft_probs is not None:
        _write_rejected(draft_probs, target_probs, candidates, parents, rank, out.path)


def verify_tree_greedy(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor,
    retrive_next_sibling: torch.Tensor,
    target_predict: torch.Tensor,
) -> None:
    """Follow the target's own tokens through the tree, by ``verify_tree`` with method "greedy". Results equal SGLang's.

    Args:
        predicts ... retrive_next_sibling: as in ``tree_speculative_sampling_target_only``.
        target_predict: [B, N]; flattened, the entry at a node's retrive_index is the target's token after that node.
    """
    S = outputs.check("verify_tree_greedy", candidates, accept_index, accept_token_num)
    parents, _ = _family(retrive_next_token, retrive_next_sibling)
    chosen = target_predict.flatten()[retrive_index]
    # Greedy verification only needs to know if a child has the chosen token: tokens become 1 or 0, and argmax is 1.
    found = (candidates == chosen.gather(1, parents.clamp(min=0))).to(torch.int64)
    rows = torch.arange(2, dtype=torch.float32, device=found.device).expand(*found.shape, 2)
    links = (retrive_next_token, retrive_next_sibling)
    path = verify_tree((parents, found), rows, method="greedy", max_depth=S - 1, links=links).path
    outputs.write(
        predicts,
        accept_index,
        accept_token_num,
        retrive_index,
        path,
        chosen.gather(1, path.clamp(min=0).to(torch.int64)),
    )


def _family(first_child: torch.Tensor, next_sibling: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each node's parent [B, N], which is -1 for the root and for nodes in no list of children, and each node's
    rank [B, N]: how many siblings come before it."""
    B, N = first_child.shape
    nodes = torch.arange(N, device=first_child.device).expand(B, N)

    def pointing(links: torch.Tensor) -> torch.Tensor:
        """Return for each node the node whose link points to it, or -1."""
        named = torch.where((links >= 0) & (links < N), links, N).to(torch.int64)
        return nodes.new_full((B, N + 1), -1).scatter_(1, named, nodes)[:, :N]

    parent_of_first, elder = pointing(first_child), pointing(next_sibling)
    eldest, rank = torch.where(elder >= 0, elder, nodes), (elder >= 0).to(torch.int64)
    for _ in range(N.bit_length()):  # each round doubles the distance covered
        eldest, rank = eldest.gather(1, eldest), rank + rank.gather(1, eldest)
    return parent_of_first.gather(1, eldest), rank


def _write_rejected(
    draft_probs: torch.Tensor,
    target_probs: torch.Tensor,
    candidates: torch.Tensor,
    parents: torch.Tensor,
    rank: torch.Tensor,
    path: torch.Tensor,
) -> None:
    """Write p of the tokens of rejected children to draft_probs, in the rows of their parents.

    At each node on the path, the children before the accepted one were rejected. At the last node all children were
    rejected, unless the path has its full length: then they were not tested.
    """
    B, N = parents.shape
    on_path = path[:, :-1] >= 0  # children of a node in the last column are not tested
    visited = torch.where(on_path, path[:, :-1], N).to(torch.int64)
    after = path[:, 1:].to(torch.int64)
    accepted = torch.where(after >= 0, rank.gather(1, after.clamp(min=0)), N)
    tested = rank.new_zeros(B, N + 1).scatter_(1, visited, torch.where(on_path, accepted, 0))[:, :N]
    node = parents.clamp(min=0)
    rejected = (parents >= 0) & (rank < tested.gather(1, node))
    inside = (candidates >= 0) & (candidates < target_probs.size(2))
    token = torch.where(inside, candidates, 0).to(torch.int64)
    # Nodes with one place write the same there: two children with one token, or padding beside a child of the root.
    twins = (node[:, :, None] == node[:, None]) & (token[:, :, None] == token[:, None])
    written = (twins & (rejected & inside)[:, None]).any(2)
    at = torch.arange(B, device=node.device)[:, None], node, token
    draft_probs[at] = torch.where(written, target_probs[at].to(draft_probs.dtype), draft_probs[at])
