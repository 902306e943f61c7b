# SPDX-License-Identifier: Apache-2.0
"""transformers' own assisted generation with verification by verify_chain.

``generate(..., assistant_model=...)`` verifies a sampled draft by a function of transformers. ``patch`` replaces that
function until ``unpatch``. This fixes two faults of transformers' function. If (p - q)+ has no mass, it divides 0 by 0
and the draw fails. And it can only use random numbers from torch's global generator. The draft model still draws from
that generator, so a seed given to ``patch`` fixes only acceptances and final tokens.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import logging
from collections.abc import Callable
from typing import Any

import torch

from specdec_kernels.integrations import _keys
from specdec_kernels.ops.verify_chain import verify_chain

log = logging.getLogger(__name__)

MODULE, NAME = "transformers.generation.utils", "_speculative_sampling"
_FIRST = "candidate_input_ids candidate_logits candidate_length new_logits"
# The function's parameters in each known version: at least 5.0 to 5.12, and 5.23
PARAMETERS = (f"{_FIRST} is_done_candidate", _FIRST, f"{_FIRST} assistant_ensemble_weight")


def patch(seed: int | None = None, generator: torch.Generator | None = None) -> bool:
    """Make transformers' assisted generation verify by verify_chain, in this process. A second call changes the seed.

    Args:
        seed: with a seed, the same prompt uses the same random numbers in every call. The offset of a step is the
            number of tokens so far.
        generator: instead of a seed, a generator from which each step draws its seed. Without both, steps draw seeds
            from torch's own generator.

    Returns:
        True if the function is replaced. If it takes unknown arguments it is not, and a warning is logged.

    Raises:
        ValueError: seed and generator are both given.
    """
    if seed is not None and generator is not None:
        raise ValueError("patch: seed and generator exclude each other, got both")
    try:
        module = importlib.import_module(MODULE)
        upstream = inspect.unwrap(getattr(module, NAME))
    except (ImportError, AttributeError) as error:
        log.warning("transformers' assisted generation is not patched: %s", error)
        return False
    came = " ".join(inspect.signature(upstream).parameters)
    if came not in PARAMETERS:
        log.warning("transformers' assisted generation is not patched: %s takes (%s)", NAME, came)
        return False
    setattr(module, NAME, _verifying(upstream, seed, generator))
    return True


def unpatch() -> None:
    """Restore transformers' own function; do nothing if it is not patched."""
    module = importlib.import_module(MODULE)
    function = getattr(module, NAME)
    if hasattr(function, "specdec_kernels"):
        setattr(module, NAME, function.__wrapped__)


def _verifying(upstream: Callable, seed: int | None, generator: torch.Generator | None) -> Callable:
    signature = inspect.signature(upstream)

    @functools.wraps(upstream)
    def replaced(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        return speculative_sampling(seed, generator, **signature.bind(*args, **kwargs).arguments)

    replaced.specdec_kernels = True  # type: ignore[attr-defined]
    return replaced


def speculative_sampling(
    seed: int | None,
    generator: torch.Generator | None,
    candidate_input_ids: torch.Tensor,
    candidate_logits: torch.Tensor,
    candidate_length: int,
    new_logits: torch.Tensor,
    is_done_candidate: bool = False,
    assistant_ensemble_weight: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Replacement of transformers' ``_speculative_sampling``: verify one chain.

    candidate_input_ids is [1, T+g] for T tokens and g drafts; candidate_logits [1, g, Vq] and new_logits [1, g+1, V]
    are already processed. assistant_ensemble_weight w is the rule "ensemble" with alpha w: its distribution
    w p + (1 - w) q takes the place of p in tests and residuals, but not after the last draft. A draft with q = 0 is
    rejected. is_done_candidate: the draft has ended the text, so no token follows if all of it is kept.

    Returns:
        (kept drafts and one more token [1, n+1], n).
    """
    device, length = new_logits.device, candidate_input_ids.size(1) - candidate_length
    seeds = _keys.drawn(generator, 1, device) if seed is None else _keys.of_rows(seed, 1, device)
    rule: dict[str, Any] = {}
    if assistant_ensemble_weight is not None:
        rule = {"rule": "ensemble", "alpha": float(assistant_ensemble_weight)}
    out = verify_chain(
        new_logits,
        candidate_input_ids[:, length:],
        candidate_logits,
        seed=seeds,
        offset=torch.full((1,), length, dtype=torch.int64, device=device),
        **rule,
    )
    n = out.num_accepted[0].to(torch.int64)
    if is_done_candidate and n == candidate_length:
        n = n - 1
    return out.tokens[:, : int(n) + 1], n
