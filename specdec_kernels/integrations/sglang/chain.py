# SPDX-License-Identifier: Apache-2.0
"""SGLang's chain kernel and its block-wise kernel by verify_chain: one chain of drafts per request."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from specdec_kernels.integrations import _keys
from specdec_kernels.integrations._strides import in_order
from specdec_kernels.integrations.sglang import outputs
from specdec_kernels.ops.verify_chain import verify_chain
from specdec_kernels.rows import Rows


def chain_speculative_sampling_triton(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor | None,
    retrive_next_sibling: torch.Tensor | None,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
    *,
    block_verification: bool = False,
) -> None:
    """Verify one chain per request with the acceptance test min(1, p / q), by ``verify_chain``.

    The caller gives the random numbers. Differences from SGLang:

    - If (p - q)+ has no mass, the token comes from p; SGLang emits the last id of the vocabulary.
    - A draft probability up to 1 + 1e-3 counts as 1, since rounded rows can reach it; SGLang rejects the draft.
    - An id below 0 ends its request's draft, and the next token comes from p.
    - Rows whose entries are not neighbours in memory are copied. Other strides cost nothing.

    Args:
        predicts ... retrive_index: as in ``tree_speculative_sampling_target_only``; candidates [B, S], the last
            committed token's first.
        retrive_next_token, retrive_next_sibling, threshold_single, threshold_acc, deterministic: ignored, as in SGLang.
        uniform_samples: [B, S]: the random number of draft i (from 1 on) in column i - 1.
        uniform_samples_for_final_sampling: [B].
        target_probs: [B, S, V].
        draft_probs: [B, S-1, V]; more rows after these are not read.
        block_verification: ``verify_chain``'s method "block".
    """
    _verify(
        "chain_speculative_sampling_triton",
        "block" if block_verification else "token",
        (predicts, accept_index, accept_token_num),
        candidates,
        retrive_index,
        (uniform_samples, uniform_samples_for_final_sampling),
        target_probs,
        draft_probs,
    )


def chain_block_speculative_sampling_triton(
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    retrive_next_token: torch.Tensor | None,
    retrive_next_sibling: torch.Tensor | None,
    uniform_samples: torch.Tensor,
    uniform_samples_for_final_sampling: torch.Tensor,
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
    threshold_single: float = 1.0,
    threshold_acc: float = 1.0,
    deterministic: bool = True,
) -> None:
    """Verify one chain per request as a block, by ``verify_chain`` with the method "block" (Sun et al. 2024).

    Arguments and differences from SGLang are those of ``chain_speculative_sampling_triton``.
    """
    _verify(
        "chain_block_speculative_sampling_triton",
        "block",
        (predicts, accept_index, accept_token_num),
        candidates,
        retrive_index,
        (uniform_samples, uniform_samples_for_final_sampling),
        target_probs,
        draft_probs,
    )


def _verify(
    op: str,
    method: str,
    results: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    candidates: torch.Tensor,
    retrive_index: torch.Tensor,
    coins: tuple[torch.Tensor, torch.Tensor],
    target_probs: torch.Tensor,
    draft_probs: torch.Tensor,
) -> None:
    predicts, accept_index, accept_token_num = results
    S = outputs.check(op, candidates, accept_index, accept_token_num)
    if S != candidates.size(1):
        raise ValueError(f"{op}: accept_index must have shape {list(candidates.shape)}, got {list(accept_index.shape)}")
    tests, final = coins
    out = verify_chain(
        Rows(in_order(target_probs), kind="probs"),
        candidates[:, 1:],
        Rows(in_order(draft_probs[:, : S - 1]), kind="probs"),
        method=method,
        uniforms=torch.cat([tests[:, : S - 1], final.unsqueeze(1)], 1).double(),
    )
    path = torch.arange(S, device=candidates.device).expand(len(candidates), S)
    path = torch.where(path <= out.num_accepted.unsqueeze(1), path, -1)
    outputs.write(predicts, accept_index, accept_token_num, retrive_index, path, out.tokens)


class RejectionNoise(NamedTuple):
    """The random state of ``BlockwiseRejection``. SGLang's own class works too."""

    key: int  # the same on every rank
    counter: torch.Tensor  # [1] int64, on the device: a call adds 1


def make_rejection_noise(random_seed: int, device: torch.device | str) -> RejectionNoise:
    return RejectionNoise(_keys.signed(random_seed), torch.zeros(1, dtype=torch.int64, device=device))


class BlockwiseRejection:
    """SGLang's name for rejection sampling that reads raw logits block by block, as ``verify_chain`` does."""

    @staticmethod
    def execute(
        *,
        candidates: torch.Tensor,
        target_logits: torch.Tensor,
        draft_logits: torch.Tensor | None,
        target_temperatures: torch.Tensor,
        draft_temperatures: torch.Tensor,
        noise: Any,
        cutoff_verify_lens: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Verify one chain per request, from logits. Differences from SGLang:

        - Request b uses the seed ``noise.key ^ (b << 40)`` and the offset ``noise.counter`` (see ``uniforms``), so a
          replayed graph draws new numbers, and ranks draw equal ones.
        - An id below 0 ends its request's draft, and the bonus token is drawn from the target's distribution there.
        - A temperature of 0 is greedy.

        Args:
            candidates: [B, S], the last committed token's first.
            target_logits: [B*S, V] and draft_logits [B, S-1 or more, Vq], before temperature; None: one-hot drafts.
            target_temperatures, draft_temperatures: [B] or [B, 1].
            noise: ``key`` and ``counter``, as in ``RejectionNoise``. The counter is advanced in place.
            cutoff_verify_lens: [B]: the most tokens of request b that are emitted. If this cuts off accepted drafts,
                the first of those is returned instead of the bonus token.

        Returns:
            (accepted drafts [B] int32, the token after them [B] int64, accepted drafts that were cut off [B] int32).
        """
        B, S = candidates.shape
        draft = None
        if draft_logits is not None:
            draft = Rows(in_order(draft_logits[:B, : S - 1]), temperature=draft_temperatures.reshape(-1).float())
        out = verify_chain(
            Rows(in_order(target_logits.unflatten(0, (B, S))), temperature=target_temperatures.reshape(-1).float()),
            candidates[:, 1:],
            draft,
            seed=_keys.of_rows(noise.key, B, candidates.device),
            offset=noise.counter,
        )
        noise.counter.add_(1)
        accepted = out.num_accepted
        if cutoff_verify_lens is not None:
            most = cutoff_verify_lens.clamp(1, S) - 1  # in its own dtype: int64 numbers may not fit in int32
            accepted = torch.minimum(accepted, most.to(accepted.dtype))
        bonus = out.tokens.gather(1, accepted.to(torch.int64).unsqueeze(1)).squeeze(1)
        return accepted, bonus, out.num_accepted - accepted
