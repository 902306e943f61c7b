# SPDX-License-Identifier: Apache-2.0
"""FlashInfer's ``chain_speculative_sampling`` by verify_chain. The arguments are the same, so only the import changes.

    from specdec_kernels.integrations.flashinfer import chain_speculative_sampling

Written from the documentation of FlashInfer 0.7; FlashInfer itself is not imported.
"""

from __future__ import annotations

import torch

from specdec_kernels.integrations import _keys
from specdec_kernels.integrations._strides import in_order
from specdec_kernels.ops.accept import accept
from specdec_kernels.ops.uniforms import uniforms
from specdec_kernels.ops.verify_chain import verify_chain
from specdec_kernels.rows import Rows

_OP = "chain_speculative_sampling"


def chain_speculative_sampling(
    draft_probs: torch.Tensor,
    draft_token_ids: torch.Tensor,
    target_probs: torch.Tensor,
    maybe_output_accepted_token_num: torch.Tensor | None = None,
    maybe_output_emitted_draft_token_num: torch.Tensor | None = None,
    deterministic: bool = True,
    generator: torch.Generator | None = None,
    seed: int | torch.Tensor | None = None,
    offset: int | torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """``flashinfer.sampling.chain_speculative_sampling``: verify one drafted path per request from probabilities.

    The emitted tokens follow the target's distribution, as FlashInfer's do, but with other random numbers. Differences:

    - **Random numbers.** Request b uses the seed ``seed ^ (b << 40)`` and ``offset``, as in ``uniforms``. If either is
      missing, seeds are drawn on the device from the generator (by default the device's).
    - **The count of accepted tokens** tests each position once, with the random number that verification uses there.
      FlashInfer draws a second number for the position at which it has stopped, so its count may include it.
    - **Edges.** A drafted id of draft probability 0 cannot have been drawn from that row and is rejected; FlashInfer
      keeps it if the target allows it. An id below 0 ends its request's draft; FlashInfer reads outside of its rows.
      If (p - q)+ has no mass, the token comes from p.
    - **Types.** Rows of bfloat16 and float16 are read directly. Rows may have any strides; those whose entries are not
      adjacent in memory are copied. Ids may be int64, and tensors may be on the CPU. Calls do not wait for a GPU.
      ``deterministic`` has no effect: results are always deterministic.

    Args:
        draft_probs, draft_token_ids, target_probs: [B, G, V], [B, G] and [B, G+1, V].
        maybe_output_accepted_token_num: [B] integers: the number of drafts that pass their own test, regardless of
            other positions, is added in place.
        maybe_output_emitted_draft_token_num: [B] integers: the number of drafts that are emitted is added in place.
        deterministic: ignored.
        generator: seeds are drawn from it if seed or offset is None.
        seed, offset: both numbers, or both tensors [1] or [B] of int64 or uint64. Different offsets give different
            random numbers.

    Returns:
        (token ids [B, G+1] int32 with -1 after the last one, and the two counts: the tensors given, or new ones of
        int32).

    Raises:
        TypeError, ValueError: naming the argument, what was wanted and what came.

    Example:
        >>> p, q = torch.tensor([0.5, 0.3, 0.2]).expand(1, 3, 3), torch.tensor([0.2, 0.5, 0.3]).expand(1, 2, 3)
        >>> tokens, _, emitted = chain_speculative_sampling(q, torch.tensor([[0, 0]]), p, seed=1, offset=0)
        >>> tokens[0, :2].tolist(), emitted.tolist()  # p(0) > q(0): always accepted
        ([0, 0], [2])

    Source: Chen et al. 2023, Algorithm 2; FlashInfer.
    """
    B, G = draft_token_ids.shape
    device = target_probs.device
    seeds, offsets = _numbers(seed, offset, generator, B, device)
    draft_probs, target_probs = in_order(draft_probs), in_order(target_probs)
    out = verify_chain(
        Rows(target_probs, kind="probs"), draft_token_ids, Rows(draft_probs, kind="probs"), seed=seeds, offset=offsets
    )
    counts = (_passing(draft_probs, draft_token_ids, target_probs, uniforms(seeds, offsets, G)), out.num_accepted)
    given = (maybe_output_accepted_token_num, maybe_output_emitted_draft_token_num)
    accepted, emitted = (n if x is None else x.add_(n) for x, n in zip(given, counts))
    return out.tokens.to(torch.int32), accepted, emitted


def _numbers(seed, offset, generator, B, device):
    """Return seeds and offsets [B] int64."""
    if seed is None or offset is None:
        return _keys.drawn(generator, B, device), torch.zeros(B, dtype=torch.int64, device=device)
    if isinstance(seed, torch.Tensor) != isinstance(offset, torch.Tensor):
        raise ValueError(f"{_OP}: seed and offset must both be numbers or both tensors, got one of each")
    for name, x in (("seed", seed), ("offset", offset)):
        if isinstance(x, torch.Tensor) and (x.dim() != 1 or x.size(0) not in (1, B)):
            raise ValueError(f"{_OP}: {name} must be a number or have shape [{B}] or [1], got {list(x.shape)}")
    if isinstance(offset, torch.Tensor):
        offsets = _keys.as_int64(offset).expand(B)
    else:
        offsets = torch.full((B,), _keys.signed(offset), dtype=torch.int64, device=device)
    return _keys.of_rows(seed, B, device), offsets


def _passing(q, tokens, p, u):
    """Return [B] int32: the number of drafts that pass their own test, each with its own random number."""
    ids = tokens.to(torch.int64)
    inside = (ids >= 0) & (ids < min(p.size(2), q.size(2)))
    ids = torch.where(inside, ids, 0).unsqueeze(2)
    p, q = (x[:, : ids.size(1)].gather(2, ids).squeeze(2) for x in (p, q))
    return (accept(p, q, u) & inside).sum(1, dtype=torch.int32)
